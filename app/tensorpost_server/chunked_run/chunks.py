"""How an array is cut into chunks: boxes of one shape on a regular grid, those at the ends of axes smaller."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.values.layout import Layout

from ..forms.base import Box, extents
from ..planning import OutputSlice


def chunk_shape(sizes: Sequence[int], item_bytes: int, most_bytes: int) -> tuple[int, ...]:
    """The largest box of at most `most_bytes` that is contiguous in C order: 1s, a part of an axis, whole axes.

    One element of the cut axis is never cut, however large it is. An output without elements has no chunk.
    """
    if 0 in sizes:
        return tuple([max(1, size) for size in sizes])
    shape = [1] * len(sizes)
    left = max(1, most_bytes // item_bytes)
    for axis in reversed(range(len(sizes))):
        shape[axis] = min(sizes[axis], left)
        if shape[axis] < sizes[axis]:
            break
        left //= sizes[axis]
        if not left:
            break
    return tuple(shape)


def aligned_shape(sizes: Sequence[int], item_bytes: int, most_bytes: int, unit: Sequence[int]) -> tuple[int, ...]:
    """The same of whole units, so that none of them is cut; one unit if it is larger.

    Args:
        sizes: the array's.
        item_bytes: bytes of an element.
        most_bytes: the most bytes of a chunk.
        unit: sizes of what lies together in a store.
    """
    units = [-(-size // part) for size, part in zip(sizes, unit, strict=True)]
    counts = chunk_shape(units, item_bytes * math.prod(unit), most_bytes)
    return tuple([
        max(1, min(size, count * part)) for size, count, part in zip(sizes, counts, unit, strict=True)
    ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chunks:
    """The cut of an array into boxes of one shape, those at the ends smaller: `Plan.slices` of a distributed run.

    Attributes:
        layout: the array's, packed.
        shape: sizes of a box.
        whole: None, as in `OutputSlices`.
        has_gaps: False, as in `Slices`.
    """

    layout: Layout
    shape: tuple[int, ...]
    whole: OutputSlice | None = None
    has_gaps: bool = False

    def __len__(self) -> int:
        return math.prod(self._grid())

    def _grid(self) -> tuple[int, ...]:
        return tuple(-(-size // part) for size, part in zip(self.layout.sizes, self.shape, strict=True))

    def box(self, index: int) -> Box:
        """The coordinates of chunk `index`, counted in C order."""
        at = np.unravel_index(index, self._grid())
        starts = [int(i) * part for i, part in zip(at, self.shape, strict=True)]
        return tuple([
            (start, min(start + part, size))
            for start, part, size in zip(starts, self.shape, self.layout.sizes, strict=True)
        ])  # fmt: skip

    def bytes(self, index: int) -> int:
        """Bytes of the elements of a chunk."""
        return bytes_of(self.layout, self.box(index))

    def piece(self, index: int) -> OutputSlice:
        """Chunk `index`, whose shape is one that `chunk_shape` makes: it is one run of the array's bytes."""
        return piece_of(self.layout, self.box(index))

    def taken(self, ranges: Sequence[range]) -> Iterator[TakenPart]:
        """The chunks that have elements of a box with steps, in C order.

        Args:
            ranges: the coordinates of the box along each axis, in the array, upwards.
        """
        grid = self._grid()
        for parts in itertools.product(*[_cut(*each) for each in zip(ranges, self.shape, strict=True)]):
            index = 0
            for count, (at, _, _) in zip(grid, parts, strict=True):
                index = index * count + at
            yield TakenPart(index, tuple([part for _, part, _ in parts]), tuple([target for _, _, target in parts]))


@dataclass(frozen=True, slots=True)
class TakenPart:
    """What a box takes from one chunk.

    Attributes:
        index: the chunk's.
        part: the elements in the chunk.
        target: the elements in the box.
    """

    index: int
    part: tuple[slice, ...]
    target: tuple[slice, ...]

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod([each.stop - each.start for each in self.target])


def _cut(coordinates: range, part: int) -> Iterator[tuple[int, slice, slice]]:
    """The chunks of one axis that have some of the coordinates: place, and where the elements are in both."""
    at = 0
    while at < len(coordinates):
        place = coordinates[at] // part
        end = at + len(range(coordinates[at], min(coordinates.stop, (place + 1) * part), coordinates.step))
        first, last = coordinates[at] - place * part, coordinates[end - 1] - place * part
        yield place, slice(first, last + 1, coordinates.step), slice(at, end)
        at = end


def piece_of(layout: Layout, box: Box, output: int = 0) -> OutputSlice:
    """The slice of a packed output that is a box, which is one run of its bytes."""
    item = layout.data_type.item_size
    begin = sum(start * stride for (start, _), stride in zip(box, layout.strides, strict=True))
    return OutputSlice(box, begin * item, math.prod(extents(box)) * item, 0, output)


def indices(box: Box) -> tuple[Any, ...]:
    """What takes the box from an array; of rank 0 an array, too, and not a number."""
    return (*[slice(*span) for span in box], ...)


def bytes_of(layout: Layout, box: Box) -> int:
    """Bytes of the elements of a box."""
    return math.prod(extents(box)) * layout.data_type.item_size


def dtype_of(layout: Layout) -> np.dtype[Any]:
    """The type of its elements."""
    return np.dtype(layout.data_type.dtype)
