"""Kernels as files of device code, compiled ahead for the common kinds of GPU: made by `tensorpost warmup --cuda`.

NVRTC compiles without a GPU, so a container image can hold what its first call would otherwise wait for. The files lie
in CuPy's own cache folder (`CUPY_CACHE_DIR`). Of kernels made for an expression, of which there is one for each that is
asked for, only those of `EXPRESSIONS` are among them.

The files hold code that the GPU runs: whoever can write to the folder can run code there as the server's user.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tensorpost.descriptors import parse_operator
from tensorpost.values.extras import install_command

from ...forms import Pointwise
from ...planning import make_plan
from ..base import CannotOpen
from .launches import ArrayLayout
from .pointwise_kernels import plan_pointwise
from .variants import VARIANTS, Variant

ARCHITECTURES = (70, 75, 80, 90, 100, 120)
"""Compute capabilities compiled for. Code for one runs on later minor versions of the same major one, so 80 serves 86
and 89 too (CUDA C++ Programming Guide, section Binary Compatibility)."""

_FIRST_COMPILER = {100: (12, 8), 120: (12, 8)}
"""The first version of NVRTC that compiles for an architecture, where that is newer than CUDA 12.0."""
_FIRST_COMPILER_WITHOUT = {70: (13, 0)}
"""The first version of NVRTC that compiles for an architecture no longer (CUDA 13.0 release notes, Volta)."""

_BINARY = ("ELEMENT_WISE_ADD", "ELEMENT_WISE_SUBTRACT", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_DIVIDE")
_UNARY = ("ACTIVATION_RELU", "ACTIVATION_SIGMOID", "ACTIVATION_TANH")
EXPRESSIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_BINARY, ("ATensor", "BTensor")),
    **dict.fromkeys(_UNARY, ("InputTensor",)),
}
"""Operators whose expressions are compiled ahead for float32 and float16, and the names of their inputs. Expressions
of ONNX's operators are the same."""


def folder() -> Path:
    """CuPy's cache folder: `CUPY_CACHE_DIR`, else `~/.cupy/kernel_cache`."""
    chosen = os.environ.get("CUPY_CACHE_DIR")
    return Path(chosen) if chosen else Path("~/.cupy/kernel_cache").expanduser()


def options_of(variant: Variant) -> tuple[str, ...]:
    """The compiler's options.

    CuPy's `RawKernel` adds `-ftz=true`, which flushes subnormal numbers to zero. Expressions are compiled without it,
    and products are not contracted with sums, so that every operation is rounded as in NumPy.
    """
    return (*variant.options, "-fmad=false" if variant.prelude else "-ftz=true")


def check_writable() -> None:
    """Whether CuPy can write what it compiles to its folder, unless it is told not to (`CUPY_CACHE_IN_MEMORY=1`).

    Raises:
        CannotOpen: it cannot, and would fail at the first kernel that is not among ours.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)  # as CuPy does in any case when it is imported
        if os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
            with tempfile.TemporaryFile(dir=folder()), tempfile.TemporaryFile():
                pass
    except OSError as error:
        raise CannotOpen(
            f"CuPy cannot write the kernels that it compiles to {folder()}, or to the temporary folder: "
            f"{error.strerror}; set CUPY_CACHE_IN_MEMORY=1 with CUPY_CACHE_DIR a folder that exists, or set both "
            "CUPY_CACHE_DIR and TMPDIR to folders that this process can write to"
        ) from error


def variants_ahead() -> Iterator[Variant]:
    """Every kernel that is compiled ahead: those of files, and those of `EXPRESSIONS`.

    Of an expression there is one kernel for operands without gaps, and one for a second operand of which one element is
    repeated along the innermost axis; each for words of 1 element to 16 bytes, as alignment and sizes allow.
    """
    yield from VARIANTS
    for (operator, names), dtype in itertools.product(EXPRESSIONS.items(), ("FLOAT32", "FLOAT16")):
        for length, repeated in itertools.product((1, 2, 4, 8), (False, True)):
            sizes, strides = ([2, 3 if length == 1 else length], [1, 0]) if repeated else ([length], [1])
            first = {"DataType": dtype, "Sizes": sizes}
            tensors = dict(zip(names, (first, {**first, "Strides": strides}), strict=False))
            plan = make_plan(parse_operator({"type": operator, "desc": tensors}, complete=True), slice_bytes=1024)
            form = plan.steps[0].form
            assert isinstance(form, Pointwise)
            *inputs, out = [
                ArrayLayout(layout.data_type.dtype, tuple([n * layout.data_type.item_size for n in layout.strides]), 0)
                for layout in [slot.layout for slot in (*plan.inputs, *plan.outputs)]
            ]
            box = tuple([(0, size) for size in sizes])
            yield from [launch.variant for launch in plan_pointwise(form, inputs, box, out) or ()]


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

    Architectures that this version of NVRTC does not know are left out.

    Returns:
        The folder, and how many were compiled now.

    Raises:
        CannotOpen: CuPy or NVRTC is not installed, or the files cannot be written.
    """
    variants = dict.fromkeys(variants_ahead())
    try:
        nvrtc: Any = importlib.import_module("cupy.cuda").nvrtc
        known = [number for number in architectures if _is_known(number, nvrtc.getVersion())]
        missing = [(v, number) for number in known for v in variants if not _path(v, number).exists()]
        folder().mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for making in [threads.submit(_make, nvrtc, *pair) for pair in missing]:
                making.result()
    except ImportError as error:
        raise CannotOpen(f"CuPy is not installed: {error}; {install_command('cuda13')}, or with cuda12") from None
    except OSError as error:
        raise CannotOpen(f"the kernels cannot be kept in {folder()}: {error.strerror}; set CUPY_CACHE_DIR") from None
    return folder(), len(missing)


def _is_known(architecture: int, version: tuple[int, int]) -> bool:
    """Whether this version of NVRTC compiles for an architecture."""
    never: tuple[int, int] = (sys.maxsize, 0)
    first, without = _FIRST_COMPILER.get(architecture, (0, 0)), _FIRST_COMPILER_WITHOUT.get(architecture, never)
    return first <= version < without


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
