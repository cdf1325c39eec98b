"""Kernels compiled ahead: which file is taken for which GPU, and that none is taken for another source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensorpost_server.backends.cuda import kernel_files
from tensorpost_server.backends.cuda.variants import VARIANTS

KERNEL = VARIANTS[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return tmp_path


def write(*architectures: int) -> None:
    for architecture in architectures:
        kernel_files._write(KERNEL, architecture, b"code for %d" % architecture)


@pytest.mark.parametrize(
    ("capability", "found"),
    [("75", b"code for 75"), ("80", b"code for 80"), ("89", b"code for 80"), ("90", b"code for 90"), ("61", None),
     ("72", None), ("121", None)],
)  # fmt: skip
def test_code_runs_on_later_minor_versions_only(capability: str, found: bytes | None) -> None:
    write(75, 80, 90)

    assert kernel_files.find(KERNEL, capability) == found


def test_another_source_has_another_file() -> None:
    write(90)

    assert kernel_files.find(replace(KERNEL, prelude="int x;"), "90") is None
    assert kernel_files.find(replace(KERNEL, defines=(*KERNEL.defines, ("MORE", "1"))), "90") is None


def test_a_damaged_file_is_none(folder: Path) -> None:
    write(90)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])

    assert kernel_files.find(KERNEL, "90") is None
    assert kernel_files.find(KERNEL, "900") is None
