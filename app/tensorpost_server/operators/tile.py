"""Tile on arrays: whole copies of the input, laid side by side.

Any box of the output is a grid of copies, the first and the last of each axis possibly cut. Each part of the grid is
one broadcast assignment over axes split into (copy, element). NumPy's cost there is per inner row, so a row shorter
than `LONG_ROW` is moved as a single element of that many bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.descriptors import TileOperatorDesc
from tensorpost.layout import Layout

from .base import Box

__all__ = ["TileKernel", "kernel_for_tile"]

LONG_ROW = 256  # bytes; from here on NumPy's loop over a row's elements is no slower than one move of the row
SMALL = 64 * 1024  # bytes; for an output up to this size, taking it apart costs more than the copying
FEW_COPIES = 16  # up to this many copies of a short row, a loop over copies beats an inner loop of that length


@dataclass(frozen=True, slots=True)
class TileKernel:
    """Tile of an input of these sizes, rank 1 or more. Pure copies, so every bit of every element survives.

    Attributes:
        sizes: the input's sizes, each at least 1.
        small: how to make a whole output that is small, if it is.
    """

    sizes: tuple[int, ...]
    small: SmallOutput | None = None

    @classmethod
    def of(cls, sizes: tuple[int, ...], output: Layout) -> TileKernel:
        """The kernel for an input of these sizes and an output of this layout."""
        is_small = output.packed and 0 < output.size_in_bytes <= SMALL
        return cls(sizes, SmallOutput.of(sizes, output.sizes) if is_small else None)

    def work(self, sizes: Sequence[int]) -> int:
        """See `Kernel.work`: one read per element."""
        return math.prod(sizes)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any) -> None:
        """See `Kernel.fill`. Source of the rule: DML_TILE_OPERATOR_DESC, `Output[c] = Input[c mod Input.Sizes]`."""
        (x,) = inputs
        small = self.small
        if small is not None and xp is np and out.shape == small.sizes and out.flags.c_contiguous:
            out.reshape(small.split)[...] = x.reshape(small.apart)
            return
        pieces = [list(_runs(start, stop, size)) for (start, stop), size in zip(box, self.sizes, strict=True)]
        for grid in itertools.product(*pieces):
            source = x[tuple([slice(run.first, run.first + run.length) for run in grid])]
            target = out[tuple([slice(run.at, run.at + run.length * run.copies) for run in grid])]
            _lay(xp, source, target, [run.copies for run in grid])


@dataclass(frozen=True, slots=True)
class SmallOutput:
    """A whole output as one broadcast assignment, its shapes worked out once.

    Attributes:
        sizes: the output's.
        split: the same with each tiled axis as (copies, size).
        apart: the input's, to be assigned to that.
    """

    sizes: tuple[int, ...]
    split: tuple[int, ...]
    apart: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], output: Sequence[int]) -> SmallOutput:
        """The shapes for an input and an output of these sizes, which are multiples.

        Neighbouring axes become one where the copies allow it: the fewer, the faster.
        """
        split: list[int] = []
        apart: list[int] = []
        joined = False  # whether the last entry is an axis of elements that a following axis without copies may join
        for size, whole in zip(sizes, output, strict=True):
            copies = whole // size
            if copies == 1 and joined:
                split[-1] *= size
                apart[-1] *= size
                continue
            if copies != 1:
                split.append(copies)
                apart.append(1)
            split.append(size)
            apart.append(size)
            joined = True
        return cls(tuple(output), tuple(split), tuple(apart))


@dataclass(frozen=True, slots=True)
class _Run:
    """`copies` times the input range of `length` from `first`, at position `at` of the box."""

    at: int
    first: int
    length: int
    copies: int


def _runs(start: int, stop: int, size: int) -> Iterator[_Run]:
    """Cut [start, stop) at multiples of size: the rest of a copy, whole copies, the beginning of a copy."""
    first, at = start % size, start
    if first:
        length = min(size - first, stop - start)
        yield _Run(0, first, length, 1)
        at += length
    copies = (stop - at) // size
    if copies:
        yield _Run(at - start, 0, size, copies)
        at += copies * size
    if at < stop:
        yield _Run(at - start, 0, stop - at, 1)


def _lay(xp: ModuleType, source: Any, target: Any, copies: Sequence[int]) -> None:
    """Fill target with copies of source, `copies[i]` of them along axis i."""
    item = int(source.itemsize)
    axes = _merged_axes(source, target, copies)
    extent, target_stride, source_stride = axes[-1] if axes else (1, item, item)
    row = extent * item
    if xp is np and len(axes) > 1 and target_stride == source_stride == item and row < LONG_ROW:
        axes.pop()
        into, of = _split(xp, target, axes, 1, row), _split(xp, source, axes, 2, row)
        if axes[-1][2] == 0 and axes[-1][0] <= FEW_COPIES:
            for copy in range(axes[-1][0]):
                into[..., copy] = of[..., 0]
            return
    else:
        into, of = _split(xp, target, axes, 1, item), _split(xp, source, axes, 2, item)
    into[...] = of


def _merged_axes(source: Any, target: Any, copies: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, target stride, source stride) in bytes of the loops that copy, outermost first, as few as possible."""
    axes: list[tuple[int, int, int]] = []
    for count, size, step, source_step in zip(copies, source.shape, target.strides, source.strides, strict=True):
        for extent, into, of in ((count, size * step, 0), (size, step, source_step)):
            if extent == 1:
                continue
            if axes and axes[-1][1] == extent * into and axes[-1][2] == extent * of:
                axes[-1] = (axes[-1][0] * extent, into, of)
            else:
                axes.append((extent, into, of))
    return axes


def _split(xp: ModuleType, array: Any, axes: Sequence[tuple[int, int, int]], side: int, item: int) -> Any:
    """The array seen through the loops' axes, with elements of `item` bytes."""
    shape = [axis[0] for axis in axes]
    strides = [axis[side] for axis in axes]
    if item == array.itemsize:
        return xp.lib.stride_tricks.as_strided(array, shape=shape, strides=strides)
    rows = xp.lib.stride_tricks.as_strided(
        array, shape=[*shape, item // array.itemsize], strides=[*strides, array.itemsize]
    )
    return rows.view(np.dtype((np.void, item)))[..., 0]


def kernel_for_tile(desc: TileOperatorDesc) -> TileKernel:
    """The kernel of a Tile descriptor; the repeats are in the output's sizes already."""
    return TileKernel.of(desc.input_tensor.sizes, desc.output_tensor.layout)
