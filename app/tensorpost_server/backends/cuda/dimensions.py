"""Dimensions of a box that is resampled, as loops with taps, and what the plans of all its kernels share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .geometry import ByteLoop, alignment, axis_row
from .launches import Launch
from .tap_tables import KernelTable, Reach, Span, SpanTaps, reach_of
from .variants import Variant

THREADS = 128  # of a block of every kernel in resample.cu
MOST_OUTER = 8  # of resample.cu


@dataclass(frozen=True, slots=True)
class TablePart:
    """What a table field of a kernel's structure points to.

    Attributes:
        table: the array.
        first: bytes from its start.
    """

    table: KernelTable
    first: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One launch of a resampling.

    Attributes:
        launch: the kernel launch, with offsets into its own input and output.
        tables: what the structure's fields of these names point to; other table fields stay 0.
        made: bytes of an array that the step writes and the next one reads; 0 where the step writes the output.
    """

    launch: Launch
    tables: dict[str, TablePart]
    made: int = 0


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of the box.

    Attributes:
        extent: how many outputs there are.
        target: bytes between them in the output.
        source: bytes between the input's elements.
        start: first output, counted in the span's table.
        span: its table's; None where the dimension is copied, or its one index is already in the input's offset.
        taps: taps of the span, if it has a table.
        repeat: elements that move together; extent and start count elements.
    """

    extent: int
    target: int
    source: int
    start: int = 0
    span: Span | None = None
    taps: SpanTaps | None = None
    repeat: int = 1

    @property
    def weighted(self) -> bool:
        """Whether an output is more than a copy."""
        return self.taps is not None and not self.taps.copies

    @property
    def elements(self) -> int:
        """Elements of the input along the dimension."""
        return self.extent if self.span is None else self.span.mapping.input_size * self.repeat

    def part(self, width: int, *, ranked: bool = False) -> TablePart | None:
        """The table of `width` taps for each output, from its first output on; None where an index is the output's."""
        if self.span is None:
            return None
        table = KernelTable((self.span,), "indices" if width == 1 else "padded", width, self.repeat, ranked)
        return TablePart(table, self.start * table.item)

    def reach(self) -> Reach | None:
        """What the outputs of the span read; there must be a span."""
        assert self.span is not None
        return reach_of(self.span)


def outputs_of(span: Span) -> int:
    """The number of outputs of a span."""
    return span.stop - span.start


@dataclass(frozen=True, slots=True)
class Planes:
    """Loops over planes, innermost first, and where each reads.

    Attributes:
        loops: a loop for each dimension.
        first: where in the table `lists` the indices of each loop begin; -1 for a loop that is copied.
        lists: the table of indices of all loops; None if no loop is resampled.
    """

    loops: list[ByteLoop]
    first: list[int]
    lists: TablePart | None

    @property
    def count(self) -> int:
        """The number of planes."""
        return math.prod(loop.extent for loop in self.loops)

    @property
    def source(self) -> list[int]:
        """Strides of the loops in the input, in bytes."""
        return [loop.source for loop in self.loops]

    @property
    def target(self) -> list[int]:
        """Strides of the loops in the output, in bytes."""
        return [loop.target for loop in self.loops]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a kernel's structure that describe the planes."""
        return {"outer": len(self.loops), "axis": [axis_row(loop) for loop in self.loops], "first": self.first}


def planes_of(dimensions: list[Dimension]) -> Planes | None:
    """The dimensions as loops over planes; None if there are more of them than a launch has room for."""
    if len(dimensions) > MOST_OUTER:
        return None
    first, spans, length = list[int](), list[Span](), 0
    for dimension in reversed(dimensions):
        if dimension.span is None:
            first.append(-1)
        else:
            first.append(length + dimension.start)
            spans.append(dimension.span)
            length += outputs_of(dimension.span)
    loops = [ByteLoop(dimension.extent, dimension.target, dimension.source) for dimension in reversed(dimensions)]
    return Planes(loops, first, TablePart(KernelTable(tuple(spans), "indices")) if spans else None)


def columns_of(variant: Variant) -> int:
    """The number of neighbouring columns that a thread of this kernel computes."""
    return int(dict(variant.defines)["COLUMNS"])


def writes_words(x: Dimension, target: Sequence[int], columns: int, item: int, target_address: int) -> bool:
    """Whether every group of columns is one aligned word of the output."""
    word = columns * item
    return x.target == item and x.extent % columns == 0 and alignment([word, target_address, *target]) == word


def present(tables: dict[str, TablePart | None]) -> dict[str, TablePart]:
    """The tables of a kernel without those that it does not need."""
    return {name: part for name, part in tables.items() if part is not None}
