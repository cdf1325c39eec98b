"""The folder of a server with several processes: made by its supervisor, and removed when that ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 # where Linux has a file system in memory; the folder has a random name


def make_shared_folder() -> Path:
    """A new folder that only this user can open, in memory where there is a file system for that.

    Raises:
        OSError: it cannot be made.
    """
    parent = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="tensorpost_processes-", dir=parent))


def remove_shared_folder(folder: Path) -> None:
    """Remove the folder with all that is in it; memory that a process maps stays until that process lets go of it."""
    shutil.rmtree(folder, ignore_errors=True)


def shared_file(folder: Path, name: str) -> Path:
    """A file of the group."""
    return folder / name


def socket_path(folder: Path, place: int) -> Path:
    """The Unix socket on which the process at a place answers the others."""
    return folder / f"process-{place}.sock"


def tensor_path(folder: Path, number: int) -> Path:
    """The file with the bytes of a held tensor."""
    return folder / f"tensor-{number}"
