"""Kernels as files of device code, compiled ahead for the common kinds of GPU: made by `tensorpost warmup --cuda`.

NVRTC compiles without a GPU, so a container image can hold what its first call would otherwise wait for. The files lie
in CuPy's own cache folder (`CUPY_CACHE_DIR`). Kernels made for an expression are not among them: there is one for each
expression that is asked for.

The files hold code that the GPU runs: whoever can write to the folder can run code there as the server's user.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tensorpost.extras import install_command

from ..base import CannotOpen
from .variants import VARIANTS, Variant

__all__ = ["ARCHITECTURES", "build", "find", "options_of"]

ARCHITECTURES = (70, 75, 80, 90, 100, 120)
"""Compute capabilities compiled for. Code for one runs on later minor versions of the same major one, so 80 serves 86
and 89 too (CUDA C++ Programming Guide, section Binary Compatibility)."""


def folder() -> Path:
    """CuPy's cache folder: `CUPY_CACHE_DIR`, else `~/.cupy/kernel_cache`."""
    chosen = os.environ.get("CUPY_CACHE_DIR")
    return Path(chosen) if chosen else Path("~/.cupy/kernel_cache").expanduser()


def options_of(variant: Variant) -> tuple[str, ...]:
    """The compiler's options, as CuPy's `RawKernel` would complete them."""
    return (*variant.options, "-ftz=true")


def find(variant: Variant, capability: str) -> bytes | None:
    """The code of a kernel for a GPU; None if there is no file for it.

    Args:
        variant: which kernel.
        capability: the GPU's compute capability without its point, as CuPy writes it: `90`, `120`.
    """
    major, minor = divmod(int(capability), 10)
    for architecture in sorted(ARCHITECTURES, reverse=True):
        if architecture // 10 == major and architecture % 10 <= minor:
            try:
                content = _path(variant, architecture).read_bytes()
            except OSError:
                continue
            digest, code = content[:32], content[32:]
            if hashlib.sha256(code).digest() == digest:
                return code
    return None


def build(architectures: Iterable[int] = ARCHITECTURES) -> tuple[Path, int]:
    """Compile every kernel that is not there yet, for each of these architectures; takes half a minute for each.

    Returns:
        The folder, and how many were compiled now.

    Raises:
        CannotOpen: CuPy or NVRTC is not installed, or the files cannot be written.
    """
    missing = [(v, number) for number in architectures for v in VARIANTS if not _path(v, number).exists()]
    try:
        nvrtc: Any = importlib.import_module("cupy.cuda").nvrtc
        nvrtc.getVersion()
        folder().mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for making in [threads.submit(_make, nvrtc, *pair) for pair in missing]:
                making.result()
    except ImportError as error:
        raise CannotOpen(f"CuPy is not installed: {error}; {install_command('cuda13')}, or with cuda12") from None
    except OSError as error:
        raise CannotOpen(f"the kernels cannot be kept in {folder()}: {error.strerror}; set CUPY_CACHE_DIR") from None
    return folder(), len(missing)


def _path(variant: Variant, architecture: int) -> Path:
    key = hashlib.sha256("\0".join((variant.source, variant.kernel, *options_of(variant))).encode()).hexdigest()
    return folder() / f"tensorpost-{key[:32]}-sm_{architecture}.cubin"


def _make(nvrtc: Any, variant: Variant, architecture: int) -> None:
    program = nvrtc.createProgram(variant.source, variant.file, (), ())
    try:
        nvrtc.compileProgram(program, (*options_of(variant), f"-arch=sm_{architecture}"))
        _write(variant, architecture, nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)


def _write(variant: Variant, architecture: int, code: bytes) -> None:
    """Write a compiled kernel's file in one step, so that no server ever sees half of it."""
    with tempfile.NamedTemporaryFile(dir=folder(), delete=False) as file:
        file.write(hashlib.sha256(code).digest() + code)
    Path(file.name).chmod(0o644)  # every user may run it
    Path(file.name).replace(_path(variant, architecture))
