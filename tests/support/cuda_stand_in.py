"""A stand-in for CuPy whose device is the host and whose kernels are emulated: as much of it as compute.py uses."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.support.cuda_emulation import Emulator, address

from tensorpost_server.backends.cuda.variants import VARIANTS, Variant, source_of

__all__ = ["stand_in"]


class Array(np.ndarray[Any, Any]):
    """A NumPy array that says where it is as CuPy's do."""

    @property
    def data(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] # CuPy's is another thing, as it must be
        return SimpleNamespace(ptr=address(self))


class Kernel:
    """`cupy.RawKernel`."""

    def __init__(self, emulator: Emulator, code: str, name: str, options: tuple[str, ...]) -> None:
        (self.variant,) = [v for v in VARIANTS if (v.source, v.kernel, v.options) == (code, name, options)]
        self.emulator = emulator

    def __call__(self, grid: tuple[int], block: tuple[int], args: Sequence[Any], *, shared_mem: int) -> None:
        *places, parameters = args
        assert parameters.size == 1, "only arrays of one element are passed by value"
        self.emulator.call(self.variant, grid[0], block[0], shared_mem, places, parameters)


class Module:
    """`cupy.cuda.function.Module`, of what `compile_using_nvrtc` below returns."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def load(self, binary: tuple[str, tuple[str, ...], str]) -> None:
        self.binary = binary

    def get_function(self, name: str) -> Kernel:
        source, options, filename = self.binary
        found = Kernel.__new__(Kernel)
        prelude = source.removesuffix(source_of(filename))
        assert prelude != source, "a kernel of a file alone is a RawKernel, which CuPy keeps on disk"
        names = [option.removeprefix("-D").split("=") for option in options if option.startswith("-D")]
        found.variant = Variant(filename, name, tuple((key, value) for key, value in names), prelude)
        found.emulator = self.emulator
        return found


def compiled(source: str, options: tuple[str, ...], *, filename: str, cache_in_memory: bool) -> tuple[Any, None]:
    """`cupy.cuda.compiler.compile_using_nvrtc`."""
    assert cache_in_memory, "else CuPy writes the source to a temporary folder, which a container may not have"
    return (source, options, filename), None


def stand_in(folder: Path) -> Any:
    """A module to have in place of `cupy`; what it does not define is NumPy's. Kernels are compiled into `folder`."""
    emulator = Emulator(folder)
    module: Any = types.ModuleType("cupy")

    def array(value: Any, *_: Any) -> Array:
        aligned = np.zeros(value.nbytes + 16, np.uint8)
        part = aligned[-address(aligned) % 16 :][: value.nbytes].view(value.dtype).reshape(value.shape)
        part[...] = value
        return part.view(Array)

    module.asarray = array
    module.empty = lambda shape, dtype: array(np.empty(shape, dtype))
    module.RawKernel = lambda code, name, options: Kernel(emulator, code, name, options)
    module.cuda = SimpleNamespace(
        Device=lambda _number: SimpleNamespace(compute_capability="0"),  # for which there are no files of kernels
        runtime=SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        compiler=SimpleNamespace(compile_using_nvrtc=compiled),
        function=SimpleNamespace(Module=lambda: Module(emulator)),
    )
    strided = functools.partial(np.lib.stride_tricks.as_strided, subok=True)
    module.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=strided))
    module.__getattr__ = lambda name: getattr(np, name)
    return module
