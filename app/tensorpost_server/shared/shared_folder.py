"""The folder of a server with several processes: made by its supervisor, and removed by the last one that uses it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tensorpost.values.problems import InsufficientStorage

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 # where Linux has a file system in memory; the folder has a random name

_PREFIX, _LOCK = "tensorpost_processes-", "in-use"

RESERVED_BYTES = 8 << 20
"""Bytes of the file system that tensors and graphs leave free: the database of them grows too, by a few MiB."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


def parent_folder() -> Path:
    """Where the folder is made."""
    return MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir())


class SharedFolder:
    """The folder while this process uses it, which its lock on a file there says; the system ends the lock.

    Args:
        path: the folder.
        is_new: whether it has no file for the locks yet.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        made = path / (f"new-{_LOCK}" if is_new else _LOCK)
        self._lock = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(self._lock, is_shared=True)
        if is_new:  # by its name it is never there unlocked
            made.rename(path / _LOCK)

    @classmethod
    def make(cls) -> SharedFolder:
        """A new folder that only this user can open, in memory where there is a file system for that.

        Those that servers have left behind which were killed are removed.

        Raises:
            OSError: it cannot be made.
        """
        parent = parent_folder()
        for path in parent.glob(f"{_PREFIX}*"):
            _remove_unless_used(path)
        return cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), is_new=True)

    def release(self) -> None:
        """Use it no more; the last one that did removes it, with all that is in it.

        Memory that a process maps stays until that process lets go of it.
        """
        os.close(self._lock)
        _remove_unless_used(self.path)


def _remove_unless_used(folder: Path) -> None:
    """Remove a folder of this user that no process uses; one that is just being made has no lock yet, and stays."""
    try:
        about = folder.lstat()
        if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode):
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it is not there any more, or not ours
        return
    try:
        _lock(lock, is_shared=False)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _lock(descriptor: int, *, is_shared: bool) -> None:
    import fcntl  # not there on Windows

    fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def shared_file(folder: Path, name: str) -> Path:
    """A file of the group."""
    return folder / name


def socket_path(folder: Path, place: int) -> Path:
    """The Unix socket on which the process at a place answers the others."""
    return folder / f"process-{place}.sock"


def tensor_path(folder: Path, number: int) -> Path:
    """The file with the bytes of a held tensor."""
    return folder / f"tensor-{number}"


def metrics_path(folder: Path, place: int, name: str) -> Path:
    """A file with what a process at a place has counted."""
    return folder / f"metrics-{place}-{name}"


def graph_path(folder: Path, place: int, name: str) -> Path:
    """A file with a stored graph, which the process at a place writes."""
    return folder / f"graph-{place}-{name}"


def allocate(descriptor: int, size_in_bytes: int) -> None:
    """Give a new file its length and all of its memory, so that no access to it fails where none is left.

    Raises:
        OSError: the file system has too little.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_in_bytes)
    else:  # macOS
        os.ftruncate(descriptor, size_in_bytes)


@contextmanager
def room_for(path: Path, size_in_bytes: int) -> Generator[None]:
    """Around the making of a file of the folder: it is removed if it could not be made.

    Raises:
        InsufficientStorage: the file system has too little room.
    """
    try:
        system = os.statvfs(path.parent)
        if size_in_bytes + RESERVED_BYTES > system.f_bavail * system.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
    except BaseException as error:
        path.unlink(missing_ok=True)
        if not isinstance(error, OSError) or error.errno not in _FULL:
            raise
        raise InsufficientStorage(
            f"{path.parent.parent}, where processes share tensors and graphs, has no room for {size_in_bytes:,} bytes; "
            "delete held tensors, make that file system larger (docker run --shm-size), or use one process "
            "(--workers 1)",
            extra={"actual": size_in_bytes},
        ) from None
