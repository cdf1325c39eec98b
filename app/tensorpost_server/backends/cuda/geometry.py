"""Integers that the kernels need and the host works out: loops with strides, and division by multiplication.

Nothing here knows CuPy or a device, so all of it is tested without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...forms.base import coalesced

LARGEST_COUNT = (1 << 31) - 1  # indices in kernels are below 2^31, which `reciprocal` relies on

DIVISOR = np.dtype([("value", "<u4"), ("magic", "<u4"), ("shift", "<u4")], align=True)
"""`Divisor` of common.cuh."""
AXIS = np.dtype(
    [("extent", "<u4"), ("magic", "<u4"), ("shift", "<u4"), ("unused", "<u4"), ("source", "<i8"), ("target", "<i8")],
    align=True,
)
"""`Axis` of common.cuh."""


def reciprocal(divisor: int) -> tuple[int, int]:
    """The multiplier and shift with which `divide` divides by this number.

    With l the least number of bits that 2^l >= d, the multiplier is floor(2^32 (2^l - d) / d) + 1, so that
    (2^32 + multiplier) / 2^(32 + l) is above 1 / d by less than 2^-(32 + l): too little to matter below 2^32.
    Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), figure 4.1.

    Args:
        divisor: 1 to 2^31 - 1.
    """
    if not 1 <= divisor <= LARGEST_COUNT:
        raise ValueError(f"a kernel divides by 1 to 2^31 - 1, not by {divisor}")
    shift = (divisor - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


def divide(number: int, magic: int, shift: int) -> int:
    """What `divide` of common.cuh computes, for numbers below 2^31."""
    return (number * magic >> 32) + number >> shift


@dataclass(frozen=True, slots=True)
class ByteLoop:
    """One loop of a nest that copies.

    Attributes:
        extent: how often it runs.
        target: bytes between its elements in the output.
        source: bytes between them in the input; 0 repeats one.
    """

    extent: int
    target: int
    source: int


def merged(loops: Iterable[ByteLoop]) -> list[ByteLoop]:
    """The same copies by as few loops as possible, in the order of the output's memory, innermost last."""
    axes = [(loop.extent, loop.target, loop.source) for loop in loops]
    return [ByteLoop(*axis) for axis in coalesced(sorted(axes, key=lambda axis: -abs(axis[1])))]


def alignment(numbers: Iterable[int], most: int = 16) -> int:
    """The largest power of two, at most `most`, that divides all of these."""
    return math.gcd(most, *numbers)


def fits_in_32_bits(loops: Sequence[ByteLoop], room: int = 16) -> bool:
    """Whether signed 32-bit numbers hold every offset, with some room for the access at the largest one."""
    target = sum((loop.extent - 1) * abs(loop.target) for loop in loops)
    source = sum((loop.extent - 1) * abs(loop.source) for loop in loops)
    return max(target, source) + room <= LARGEST_COUNT


def axis_row(loop: ByteLoop) -> tuple[Any, ...]:
    """A loop as an element of `AXIS`."""
    return (loop.extent, *reciprocal(loop.extent), 0, loop.source, loop.target)


def divisor_row(value: int) -> tuple[int, int, int]:
    """A number to divide by as an element of `DIVISOR`."""
    return (value, *reciprocal(value))
