"""Runs the CUDA kernels on the host: their source, compiled by the C++ compiler with the few names of CUDA they use.

It shows that indices, tables and structures agree between the planning and the kernels, and that no access is
misaligned. It shows nothing about a device: neither speed, nor races, nor what its compiler makes of the source.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.cuda_cases import Call

from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.backends.cuda.launches import ArrayLayout, Launch
from tensorpost_server.backends.cuda.tap_tables import array_of
from tensorpost_server.backends.cuda.variants import VARIANTS, Variant

__all__ = ["COMPILER", "Emulator", "address", "aligned", "layout", "run"]

COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
FLAGS = (COMPILER or "", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off")
HEADER = Path(__file__).with_name("cuda_emulation.hpp")


class Emulator:
    """Compiles variants when they are first launched.

    Args:
        folder: where to; it must stay as long as the emulator is used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.function = functools.cache(self._function)

    def _function(self, variant: Variant) -> Any:
        return ctypes.CDLL(str(self.library(variant))).run

    def library(self, variant: Variant, more: str = "") -> Path:
        """A variant's shared library, compiled if it is not there; `more` is C++ to append."""
        assert COMPILER is not None
        name = "".join(c if c.isalnum() else "_" for c in str(variant)) + (
            f"_{zlib.crc32((variant.prelude + more).encode())}" if variant.prelude or more else ""
        )
        path = self.folder / name
        library = path.with_suffix(".so")
        if not library.exists():
            driver = (
                f'extern "C" void run(unsigned grid, unsigned block, unsigned shared, void **arguments) '
                f"{{ launch({variant.kernel}, grid, block, shared, arguments); }}\n"
            )
            fresh = path.with_suffix(f".{os.getpid()}.so")  # another test process may be compiling the same
            command = [*FLAGS, *variant.options, "-include", str(self.header()), "-x", "c++", "-", "-o", str(fresh)]
            subprocess.run(command, check=True, input=(variant.source + driver + more).encode())
            fresh.replace(library)
        return library

    def header(self) -> Path:
        """The names of CUDA, compiled once for all variants: it is most of what there is to compile."""
        header = self.folder / HEADER.name
        compiled = self.folder / f"{HEADER.name}.gch"
        if not compiled.exists():
            fresh = [path.with_suffix(f"{path.suffix}.{os.getpid()}") for path in (header, compiled)]
            shutil.copyfile(HEADER, fresh[0])
            subprocess.run([*FLAGS, "-std=c++17", "-x", "c++-header", str(HEADER), "-o", str(fresh[1])], check=True)
            fresh[0].replace(header)
            fresh[1].replace(compiled)
        return header

    def run(self, launch: Launch, sources: Sequence[int], target: int, tables: Mapping[str, int] | None = None) -> None:
        """Run a launch.

        Args:
            launch: from the planning.
            sources: address of each input's first element.
            target: address of the output's.
            tables: addresses for these fields of the kernel's structure.
        """
        parameters = launch.parameters.copy()
        for name, at in (tables or {}).items():
            parameters[name] = at
        places = [*(sources[number] + start for number, start in launch.sources), target + launch.target]
        self.call(launch.variant, launch.grid, launch.block, launch.shared, places, parameters)

    def call(
        self, variant: Variant, grid: int, block: int, shared: int, places: Sequence[int], parameters: NDArray[Any]
    ) -> None:
        """Run a kernel with these addresses and this structure as its arguments."""
        pointers = (ctypes.c_void_p * len(places))(*places)
        size = ctypes.sizeof(ctypes.c_void_p)
        arguments = (ctypes.c_void_p * (len(places) + 1))(
            *(ctypes.addressof(pointers) + i * size for i in range(len(places))), address(parameters)
        )
        self.function(variant)(grid, block, shared, arguments)


def address(array: NDArray[Any]) -> int:
    """Where an array's first element is."""
    return int(array.__array_interface__["data"][0])


def layout(array: NDArray[Any]) -> ArrayLayout:
    """What the planning knows of an array."""
    return ArrayLayout(array.dtype, array.strides, address(array) % 16)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy at a multiple of 16, as device memory is."""
    block = np.zeros(array.nbytes + 16, np.uint8)
    copy = block[-block.ctypes.data % 16 :][: array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def run(emulator: Emulator, call: Call, used: set[Variant] | None = None) -> NDArray[Any]:
    """The output's memory afterwards; `used` gets the kernels that were launched."""
    memory = aligned(call.out.memory)
    inputs = [x.array(np, aligned(x.memory)) for x in call.inputs]
    before = [x.copy() for x in inputs]
    out = call.out.array(np, memory)
    steps = plan(call.form, [layout(x) for x in inputs], call.box, layout(out))
    assert steps is not None, "our kernels can do all of these"
    sources, kept = [address(x) for x in inputs], list[Any]()
    for step in steps:
        assert step.launch.variant.prelude or step.launch.variant in VARIANTS
        assert step.launch.shared <= 48 << 10, "more than any device gives without being asked"
        if used is not None:
            used.add(step.launch.variant)
        arrays = {name: array_of(part.table).view(np.uint8)[part.first :] for name, part in step.tables.items()}
        target = np.full(max(1, step.made), 0xA5, np.uint8)
        kept += [arrays, target]
        places = {name: address(array) for name, array in arrays.items()}
        emulator.run(step.launch, sources, address(target) if step.made else address(out), places)
        if step.made:
            sources = [address(target)]
    assert all(x.tobytes() == was.tobytes() for x, was in zip(inputs, before, strict=True)), "an input was written to"
    return memory
