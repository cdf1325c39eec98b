"""How an output is cut into slices: boxes of coordinates that follow each other in memory.

An output's strides are nested (they are one-to-one), so its axes have an order in memory: largest stride first. Cutting
along that order makes every slice a rectangular box of coordinates and one contiguous run of bytes, packed or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorpost.values.layout import Layout, last_index

from ..forms.base import Box, whole_box

SMALL_GAP = 64 * 1024  # bytes of padding that are sent with the slice before them rather than on their own


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """One slice.

    Attributes:
        box: the coordinates it holds.
        begin: its first byte in the output.
        computed: bytes that the backend makes, zeros in between elements included.
        padding: zero bytes that follow before the next slice, or before the output's end.
        output: which output it is of, in binding order.
    """

    box: Box
    begin: int
    computed: int
    padding: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Slices:
    """The cut of one output.

    Attributes:
        layout: the output's layout.
        order: its axes, largest stride first.
        split: which of them, counted in that order, is cut; those before it are one coordinate in each slice.
        parts: how many parts of about equal size the cut axis falls into.
        output: which output it is, in binding order.
        count: how many slices there are.
        whole: the only slice, if there is just one: made once, because small calls read it repeatedly.
    """

    layout: Layout
    order: tuple[int, ...]
    split: int
    parts: int
    output: int = 0
    count: int = field(init=False, compare=False, repr=False)
    whole: OutputSlice | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        sizes = self.layout.sizes
        count = 0 if 0 in sizes else math.prod([sizes[axis] for axis in self.order[: self.split]]) * self.parts
        object.__setattr__(self, "count", count)
        if count == 1:
            size = self.layout.size_in_bytes
            whole = OutputSlice(whole_box(sizes), 0, size, 0, self.output) if self.layout.packed else self._piece(0)
            object.__setattr__(self, "whole", whole)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[OutputSlice]:
        return (self.piece(index) for index in range(len(self)))

    @property
    def has_gaps(self) -> bool:
        """Whether some bytes inside slices belong to no element and must be zeroed."""
        return not self.layout.packed

    def piece(self, index: int) -> OutputSlice:
        """Slice `index`, 0 to `len(self) - 1`."""
        return self.whole if self.whole is not None else self._piece(index)

    def _piece(self, index: int) -> OutputSlice:
        box = self._box(index)
        begin = self._offset(box)
        item = self.layout.data_type.item_size
        if self.layout.packed:
            return OutputSlice(box, begin, math.prod([stop - start for start, stop in box]) * item, 0, self.output)
        extent = last_index([stop - start for start, stop in box], self.layout.strides) + 1
        end = self._offset(self._box(index + 1)) if index + 1 < self.count else self.layout.size_in_bytes
        computed = extent * item
        gap = end - begin - computed
        if gap <= SMALL_GAP:
            return OutputSlice(box, begin, computed + gap, 0, self.output)
        return OutputSlice(box, begin, computed, gap, self.output)

    def _box(self, index: int) -> Box:
        box = [(0, size) for size in self.layout.sizes]
        if self.order:
            cut_axis = self.order[self.split]
            size = self.layout.sizes[cut_axis]
            index, part = divmod(index, self.parts)
            box[cut_axis] = (part * size // self.parts, (part + 1) * size // self.parts)
            for axis in reversed(self.order[: self.split]):
                index, at = divmod(index, self.layout.sizes[axis])
                box[axis] = (at, at + 1)
        return tuple(box)

    def _offset(self, box: Box) -> int:
        firsts = [start * stride for (start, _), stride in zip(box, self.layout.strides, strict=True)]
        return sum(firsts) * self.layout.data_type.item_size


@dataclass(frozen=True, slots=True)
class OutputSlices:
    """The slices of several outputs, one output after the other: the order of their bytes in the answer.

    Attributes:
        outputs: the cut of each output.
        whole: always None, since there is more than one slice; see `Slices`.
    """

    outputs: tuple[Slices, ...]
    whole: OutputSlice | None = None

    def __len__(self) -> int:
        return sum(map(len, self.outputs))

    def __iter__(self) -> Iterator[OutputSlice]:
        return itertools.chain.from_iterable(self.outputs)

    @property
    def has_gaps(self) -> bool:
        """Whether `Slices.has_gaps` holds for any output."""
        return any(slices.has_gaps for slices in self.outputs)

    def piece(self, index: int) -> OutputSlice:
        """Slice `index`, 0 to `len(self) - 1`."""
        for slices in self.outputs:
            if index < len(slices):
                return slices.piece(index)
            index -= len(slices)
        raise IndexError(index)


@dataclass(frozen=True, slots=True)
class SliceRange:
    """Some of the slices of a packed output, in order; the first and the last may begin and end outside of the rows.

    Attributes:
        slices: all of them.
        first: the first of these.
        stop: the one after the last of these.
        whole: always None; see `Slices`.
        has_gaps: always False, since the output is packed.
    """

    slices: Slices
    first: int
    stop: int
    whole: OutputSlice | None = None
    has_gaps: bool = False

    def __len__(self) -> int:
        return self.stop - self.first

    def __iter__(self) -> Iterator[OutputSlice]:
        return (self.piece(index) for index in range(len(self)))

    def piece(self, index: int) -> OutputSlice:
        """Slice `index`, 0 to `len(self) - 1`."""
        return self.slices.piece(self.first + index)


def cut(layout: Layout, slice_bytes: int, output: int = 0) -> Slices:
    """Cut an output into slices of about `slice_bytes`.

    A packed output that is larger has no slice of less than a third of that: small slices cost as much as large ones.

    Args:
        layout: the output's layout; its strides must be one-to-one.
        slice_bytes: the most bytes a slice may span, except that one element is always whole.
        output: which output it is, in binding order.
    """
    item = layout.data_type.item_size
    # A stride means nothing where the size is 1; such axes go first, where they cost no slice.
    keys = [(size != 1, -stride) for size, stride in zip(layout.sizes, layout.strides, strict=True)]
    order = tuple(sorted(range(len(keys)), key=keys.__getitem__))
    for split, axis in enumerate(order):
        size, pitch = layout.sizes[axis], layout.strides[axis] * item
        if size > 1 and 0 < pitch <= slice_bytes:
            return Slices(layout, order, split, -(-size // (slice_bytes // pitch)), output)
    split = max(0, len(order) - 1)
    return Slices(layout, order, split, layout.sizes[order[split]] if order else 1, output)
