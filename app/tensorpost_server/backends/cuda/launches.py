"""What a plan for the device consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .variants import Variant

VECTOR = 16  # bytes; the widest access there is
MOST_LOOPS = 20  # MOST_AXES of common.cuh; Tile of DirectML's 8 dimensions needs 16
ENOUGH_BLOCKS = 8 * 132
"""Blocks that fill the largest device known here (an H100 or H200, 132 multiprocessors) several times over.

With fewer, a plan gives a thread less to do, at the cost of doing some work more than once. Only speed depends on it.
"""


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """What a launch depends on of an array on the device.

    Attributes:
        dtype: its elements.
        strides: distance between entries along each axis, bytes.
        address: address of its first element, modulo 16.
    """

    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One kernel launch; everything but where the arrays are.

    Attributes:
        variant: which kernel.
        grid: how many blocks are launched.
        block: threads of a block.
        parameters: the kernel's structure, as an array without dimensions.
        sources: index of the input of each array that is read, and how many bytes after the input's first element the
            launch's offsets count from.
        target: bytes after the output's first element where offsets count from.
        shared: bytes of shared memory, beyond what the kernel declares.
    """

    variant: Variant
    grid: int
    block: int
    parameters: NDArray[Any]
    sources: tuple[tuple[int, int], ...]
    target: int
    shared: int = 0


def structure(dtype: np.dtype[Any], **fields: Any) -> NDArray[Any]:
    """A kernel's structure with these fields; the others are 0. Arrays may be given fewer elements than they have."""
    made = np.zeros((), dtype)
    for name, value in fields.items():
        if made[name].ndim:
            made[name][: len(value)] = value
        else:
            made[name] = value
    made.setflags(write=False)
    return made


@dataclass(frozen=True, slots=True)
class NestStart:
    """Where a nest of loops that copies begins.

    Attributes:
        input: which input.
        source: bytes from the input's first element.
        target: bytes from the output's first element.
        source_address: address of the input's first element, modulo 16.
        target_address: address of the output's first element, modulo 16.
    """

    input: int
    source: int
    target: int
    source_address: int
    target_address: int

    @property
    def source_at(self) -> int:
        """Address that the nest reads first, modulo 16."""
        return self.source_address + self.source

    @property
    def target_at(self) -> int:
        """Address that the nest writes first, modulo 16."""
        return self.target_address + self.target


def nest_launch(
    variant: Variant, grid: int, block: int, parameters: NDArray[Any], start: NestStart, shared: int = 0
) -> Launch:
    """A launch of a kernel that reads at most one input; the arguments are those of `Launch`."""
    sources = ((start.input, start.source),) if start.input >= 0 else ()
    return Launch(variant, grid, block, parameters, sources, start.target, shared)
