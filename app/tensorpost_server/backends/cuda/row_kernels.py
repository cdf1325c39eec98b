"""How rows.cu is used: long rows of the output that parts of inputs and the fill value make side by side.

Joins and paddings are one launch then, which writes every word of the output once. So are slices whose rows are aligned
otherwise than the output's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...forms import Copy
from .geometry import DIVISOR, LARGEST_COUNT, ByteLoop, alignment, divisor_row
from .launches import VECTOR, ArrayLayout, Launch, NestStart, structure
from .variants import rows_variant

THREADS, WORDS = 128, 2  # of rows.cu: threads of a block, words of a thread
LINE = 128  # bytes that the words of neighbouring threads begin at a multiple of: one of the device's cache
MOST_AXES = 6  # of rows.cu: loops over rows
MOST_PARTS = 4  # of a row
LEAST_ROW = 256  # bytes; below it too many of a row's words would be at its ends

_ROW_AXIS = np.dtype(
    [("extent", "<u4"), ("magic", "<u4"), ("shift", "<u4"), ("unused", "<u4"), ("target", "<i8")], align=True
)
_PART_AXIS = np.dtype([("low", "<u4"), ("extent", "<u4"), ("source", "<i8")], align=True)
_PART = np.dtype([("begin", "<u4"), ("end", "<u4"), ("source", "<i8"), ("axis", _PART_AXIS, (MOST_AXES,))], align=True)
ROWS = {
    parts: np.dtype(
        [
            ("count", "<u4"), ("chunks", DIVISOR), ("chunk", "<u4"), ("lanes", "<u4"), ("row", "<u4"), ("axes", "<u4"),
            ("parts", "<u4"), ("filled", "<u4"), ("fill", "<u4", (4,)), ("axis", _ROW_AXIS, (MOST_AXES,)),
            ("part", _PART, (parts,)),
        ],
        align=True,
    )
    for parts in (1, MOST_PARTS)
}  # fmt: skip
"""`Rows` of rows.cu, by the parts that a row may have."""


class _Range(NamedTuple):
    """The rows along one loop that have a part: the first, how many, and bytes between them in the input."""

    low: int
    extent: int
    source: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What the rows have of one input.

    Attributes:
        input: which input.
        begin: its first byte in a row.
        end: one past its last.
        source: bytes from the input's first element to where byte 0 of row 0 would be.
        ranges: the range of each loop over rows.
    """

    input: int
    begin: int
    end: int
    source: int
    ranges: tuple[_Range, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the output.

    Attributes:
        row: bytes of a row.
        loops: the loops over rows, innermost first: how many rows, and bytes from one to the next.
        parts: the pieces of a row, in its order.
    """

    row: int
    loops: tuple[tuple[int, int], ...]
    parts: tuple[_Part, ...]


def plan_row_nest(nest: Sequence[ByteLoop], item: int, start: NestStart) -> Launch | None:
    """Rows of one input, the innermost loop; None if they are short or repeated, or there are too many of them.

    Args:
        nest: loops, innermost last.
        item: bytes that all is aligned to.
        start: where the nest begins.
    """
    *outer, row = nest
    if row.extent * row.target < LEAST_ROW or not all(loop.source for loop in outer):
        return None
    ranges = tuple([_Range(0, loop.extent, loop.source) for loop in reversed(outer)])
    part = _Part(start.input, 0, row.extent * row.target, start.source, ranges)
    loops = tuple([(loop.extent, loop.target) for loop in reversed(outer)])
    return _launch(_Rows(part.end, loops, (part,)), None, min(item, 8), start.target)


def plan_parts(
    copies: Sequence[Copy], element: bytes | None, inputs: Sequence[ArrayLayout], sizes: Sequence[int], out: ArrayLayout
) -> list[Launch] | None:
    """Several copies, or copies and a fill value, together; None if they do not make long rows.

    Args:
        copies: all into one box.
        element: the fill value; None if the copies write all of the box.
        inputs: the input arrays.
        sizes: the box's sizes.
        out: the array that holds it.
    """
    if len(copies) + (element is not None) < 2:
        return None
    if element is not None and alignment([len(element), out.address, *out.strides]) < len(element):
        return None
    rows = _rows(copies, inputs, sizes, out)
    if rows is None or min(part.end - part.begin for part in rows.parts) < LEAST_ROW:
        return None
    places = [rows.row, out.address, *(stride for _, stride in rows.loops)]
    for part in rows.parts:
        address = inputs[part.input].address + part.source
        places += [part.begin, part.end, address, *(each.source for each in part.ranges)]
    found: list[Launch] = []
    for group in _groups(rows):
        launch = _launch(group[0], element, alignment(places, 8), group[1])
        if launch is None:
            return None
        found.append(launch)
    return found


def _rows(
    copies: Sequence[Copy], inputs: Sequence[ArrayLayout], sizes: Sequence[int], out: ArrayLayout
) -> _Rows | None:
    """The copies as parts of rows, as long as possible; None if one of them repeats, reverses or spreads elements."""
    found = [ranges for copy in copies if (ranges := _ranges(copy, inputs[copy.input].strides)) is not None]
    if not found or len(found) < len(copies) or min(out.strides, default=1) < 1:
        return None
    axes = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -out.strides[axis])
    row = out.dtype.itemsize
    spans = [(0, row)] * len(found)
    # An axis joins the row where rows follow each other in the output, and what is in them does in every input.
    while axes and out.strides[axes[-1]] == row and sizes[axes[-1]] * row <= LARGEST_COUNT:
        along = [ranges[axes[-1]] for ranges in found]
        if any(span != (0, row) for span in spans) or any(one.extent > 1 and one.source != row for one in along):
            break
        spans = [(one.low * row, (one.low + one.extent) * row) for one in along]
        row *= sizes[axes.pop()]
    loops = tuple([(sizes[axis], out.strides[axis]) for axis in reversed(axes)])
    parts: list[_Part] = []
    for copy, (begin, end), ranges in zip(copies, spans, found, strict=True):
        first = sum(at * stride for at, stride in zip(copy.source_start, inputs[copy.input].strides, strict=True))
        outer = tuple([ranges[axis] for axis in reversed(axes)])
        source = first - begin - sum(one.low * one.source for one in outer)
        parts.append(_Part(copy.input, begin, end, source, outer))
    return _Rows(row, loops, tuple(sorted(parts, key=lambda part: part.begin)))


def _ranges(copy: Copy, strides: Sequence[int]) -> list[_Range] | None:
    """What a copy writes along each axis of the output; None unless that is a box of different elements."""
    found = [_Range(at, 1, 0) for at in copy.target_start]
    for loop in copy.loops:
        (axis, step), source = loop.target, sum(own * strides[axis] for axis, own in loop.source)
        if loop.extent > 1 and (step != 1 or source < 1 or found[axis].extent > 1):
            return None
        found[axis] = found[axis]._replace(extent=loop.extent, source=source)
    return found


def _groups(rows: _Rows) -> list[tuple[_Rows, int]]:
    """Rows with no more parts than a launch has room for, and where each begins in the output."""
    parts = rows.parts
    if len(parts) <= MOST_PARTS:
        return [(rows, 0)]
    ends = [part.begin for part in parts[MOST_PARTS::MOST_PARTS]] + [rows.row]
    groups: list[tuple[_Rows, int]] = []
    begin = 0
    for first, end in zip(range(0, len(parts), MOST_PARTS), ends, strict=True):
        moved = [
            replace(part, begin=part.begin - begin, end=part.end - begin, source=part.source + begin)
            for part in parts[first : first + MOST_PARTS]
        ]
        groups.append((_Rows(end - begin, rows.loops, tuple(moved)), begin))
        begin = end
    return groups


def _launch(rows: _Rows, element: bytes | None, item: int, target: int) -> Launch | None:
    """One launch, `target` bytes from the output's first element; None if there are too many loops or words."""
    most = 1 if len(rows.parts) == 1 else MOST_PARTS
    words = -(-(LINE - item + rows.row) // VECTOR)
    chunks = -(-words // (WORDS * 32))
    chunk = -(-words // (chunks * LINE // VECTOR)) * LINE // VECTOR
    lanes = (-(-chunk // WORDS) - 1).bit_length()
    count = chunks * math.prod(extent for extent, _ in rows.loops)
    too_many = len(rows.loops) > MOST_AXES or (count << lanes) + THREADS > LARGEST_COUNT
    if too_many or rows.row + WORDS * 32 * VECTOR > LARGEST_COUNT:
        return None
    none = [_Range(0, 0, 0)] * MOST_AXES
    parameters = structure(
        ROWS[most],
        count=count,
        chunks=divisor_row(chunks),
        chunk=chunk,
        lanes=lanes,
        row=rows.row,
        axes=len(rows.loops),
        parts=len(rows.parts),
        filled=element is not None,
        fill=np.frombuffer(element * (VECTOR // len(element)), "<u4") if element else (),
        axis=[(*divisor_row(extent), 0, stride) for extent, stride in rows.loops],
        part=[(one.begin, one.end, one.source, [*one.ranges, *none][:MOST_AXES]) for one in rows.parts],
    )
    sources = [(part.input, 0) for part in rows.parts]
    sources += sources[:1] * (most - len(sources))
    grid = -(-(count << lanes) // THREADS)
    return Launch(rows_variant(item, most), grid, THREADS, parameters, tuple(sources), target)
