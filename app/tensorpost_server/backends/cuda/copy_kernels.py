"""How the kernels of copy.cu are used: a box of a `Copies` form as nests of loops, each one launch.

A nest is copied by the first of these that fits it:

* words of 16 bytes, where the output can be written in them and each is within one input row or repeats one element;
* rows of at least some hundred bytes that are contiguous on both sides but aligned differently: words of the output,
  shifted together out of two words of the input;
* short and odd rows that follow each other in the output: laid in shared memory, and written from there in words;
* a transpose, where another axis is contiguous in the input than in the output: tiles through shared memory;
* element by element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms import Box, Copies
from ...forms.base import extents
from ...forms.copies import Move, byte_loops, moves, uncovered
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, Loop, alignment, axis_row, divisor_row, fits_in_32_bits, merged
from .launches import ENOUGH_BLOCKS, ArrayLayout, Launch, structure
from .variants import Variant, copy_variant, rows_variant, transpose_variant, units_variant

__all__ = ["COPY", "MOST_LOOPS", "ROWS", "TRANSPOSE", "UNIT", "plan_copies"]

MOST_LOOPS = 20  # MOST_AXES of copy.cu; Tile of DirectML's 8 dimensions needs 16
MOST_ROW_AXES = 6  # of copy.cu: loops over rows
MOST_PARTS = 4  # of a row
VECTOR = 16  # bytes; the widest access there is
LINE = 128  # bytes of the device's cache
COPY_THREADS, WORDS = 128, 2  # of copy_words and copy_rows: threads of a block, words of a thread
UNIT_THREADS = 256  # of copy_units
LONGEST_WALK = 16  # places that a thread of copy_words writes a word to
MOST_UNIT = 16 << 10  # bytes; 8 blocks of one multiprocessor have room for them
LEAST_PERIOD = 1 << 10  # bytes; a shorter unit is laid several times, as what is written from it wraps around
LEAST_RUN = 512  # bytes; below it most of a run's vectors would be at its ends
LEAST_ROW = 256  # bytes; below it too many of a row's words would be at its ends
SEGMENT = 4096  # vectors of a run that a block writes before it looks for the next job
REUSE = 16  # bytes that a block writes for each byte of the unit that it lays, if there is so much work
TRANSPOSE_THREADS = 256
TILE = {1: (128, 128), 2: (64, 128), 4: (64, 64), 8: (32, 32), 16: (32, 32)}
"""Items of a tile along the output's lines and along the input's, by bytes of an item."""
UNALIGNED_TILE = TILE | {2: (128, 128)}  # the larger a tile, the less is read twice
MOST_TILE = 48 << 10  # bytes of shared memory, more than which no device gives without being asked
LEAST_TILE = 64  # items; below it there is nothing to win
JOINED_LINE = 128  # bytes; shorter lines that follow each other are read or written together
GROUP = 3  # log2 of the words of a line that a warp of a transpose takes, so that it uses all banks of shared memory
LEAST_LINES = 8  # of a tile; with fewer, a warp takes words of one line

COPY = np.dtype(
    [
        ("count", "<u4"), ("axes", "<u4"), ("walk", "<u4"), ("copies", "<u4"), ("fill", "<u4", (4,)), ("stride", "<i8"),
        ("axis", AXIS, (MOST_LOOPS,)),
    ],
    align=True,
)  # fmt: skip
"""`Copy` of copy.cu."""
UNIT = np.dtype(
    [
        ("last_items", "<u4"), ("filled", "<u4"), ("run", "<u4"), ("last_run", "<u4"),
        ("last", "<u4"), ("period", DIVISOR), ("segments", DIVISOR), ("segment", "<u4"), ("jobs", "<u4"),
        ("share", "<u4"), ("blocks", DIVISOR), ("inner", "<u4"), ("moving", "<u4"), ("repeating", "<u4"),
        ("axis", AXIS, (MOST_LOOPS + 2,)),
    ],
    align=True,
)  # fmt: skip
"""`Unit` of copy.cu."""
_ROW_AXIS = np.dtype(
    [("extent", "<u4"), ("magic", "<u4"), ("shift", "<u4"), ("unused", "<u4"), ("target", "<i8")], align=True
)
_PART_AXIS = np.dtype([("low", "<u4"), ("extent", "<u4"), ("source", "<i8")], align=True)
_PART = np.dtype(
    [("begin", "<u4"), ("end", "<u4"), ("source", "<i8"), ("axis", _PART_AXIS, (MOST_ROW_AXES,))], align=True
)
ROWS = {
    parts: np.dtype(
        [
            ("count", "<u4"), ("chunks", DIVISOR), ("chunk", "<u4"), ("lanes", "<u4"), ("row", "<u4"), ("axes", "<u4"),
            ("parts", "<u4"), ("filled", "<u4"), ("fill", "<u4", (4,)), ("axis", _ROW_AXIS, (MOST_ROW_AXES,)),
            ("part", _PART, (parts,)),
        ],
        align=True,
    )
    for parts in (1, MOST_PARTS)
}  # fmt: skip
"""`Rows` of copy.cu, by the parts that a row may have."""
_SIDE = np.dtype([("words", "<u4"), ("groups", DIVISOR), ("shift", "<u4"), ("joined", "<u4")], align=True)
TRANSPOSE = np.dtype(
    [
        ("extent_a", "<u4"), ("extent_b", "<u4"), ("tiles_a", DIVISOR), ("tiles_b", DIVISOR), ("tile_a", "<u4"),
        ("tile_b", "<u4"), ("step_a", "<u4"), ("step_b", "<u4"), ("overlap", "<u4"), ("margin", "<u4"),
        ("read", _SIDE), ("written", _SIDE), ("axes", "<u4"), ("source_a", "<i8"), ("target_b", "<i8"),
        ("axis", AXIS, (MOST_LOOPS,)),
    ],
    align=True,
)  # fmt: skip
"""`Transpose` of copy.cu."""


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a nest begins.

    Attributes:
        input: which input.
        source: bytes from the input's first element.
        target: bytes from the output's first element.
        source_address: of the input's first element, modulo 16.
        target_address: of the output's.
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


@dataclass(frozen=True, slots=True)
class _Part:
    """What the rows of one launch have of one input.

    Attributes:
        input: which input.
        begin: its first byte in a row.
        end: one past its last.
        source: bytes from the input's first element to where byte 0 of row 0 would be.
        axes: for each loop over rows, innermost first: the first row that has the part, how many do, and bytes between
            them in the input.
    """

    input: int
    begin: int
    end: int
    source: int
    axes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the output.

    Attributes:
        row: bytes of a row.
        loops: over rows: how many and bytes between them, innermost first.
        parts: in the order of the row.
    """

    row: int
    loops: tuple[tuple[int, int], ...]
    parts: tuple[_Part, ...]


def plan_copies(
    form: Copies, inputs: Sequence[ArrayLayout], box: Box, out: ArrayLayout, output: int = 0
) -> list[Launch] | None:
    """The launches that fill a box, in order.

    Args:
        form: what is copied.
        inputs: the input arrays; elements of 1, 2, 4, 8 or 16 bytes.
        box: part of the output; not empty.
        out: the array that holds the box; its strides are one-to-one.
        output: which output.

    Returns:
        None if there are more loops than a kernel has room for.
    """
    item, found, parts = out.dtype.itemsize, list[Launch](), list(moves(form, box, output))
    element = None if form.fill_value is None else form.fill_element(out.dtype).tobytes()
    rows = _plan_rows(parts, element, inputs, extents(box), out)
    if rows is not None:
        return rows
    if element is not None:
        for part in uncovered(box, parts):
            loops = [Loop(stop - start, stride, 0) for (start, stop), stride in zip(part, out.strides, strict=True)]
            target = sum(start * stride for (start, _), stride in zip(part, out.strides, strict=True))
            nest = merged(loops)
            if alignment([item, out.address, *out.strides]) < item or len(nest) > MOST_LOOPS:
                return None
            found += _plan_fill(nest, element, _Start(-1, 0, target, 0, out.address))
    for move in parts:
        x = inputs[move.input]
        source, target, loops = byte_loops(move, x.strides, out.strides)
        strides = itertools.chain.from_iterable(loop[1:] for loop in loops)
        natural = alignment([item, x.address, out.address, source, target, *strides])
        # An element that is not where its size would have it is copied in parts.
        nest = merged([*(Loop(*loop) for loop in loops), Loop(item // natural, natural, natural)])
        if len(nest) > MOST_LOOPS:
            return None
        found += _plan_nest(nest, natural, _Start(move.input, source, target, x.address, out.address))
    return found


def _halves(nest: list[Loop], item: int, start: _Start) -> list[tuple[list[Loop], _Start]] | None:
    """Two halves of a nest of 2^31 bytes or more: neither indices nor a run's bytes may leave 31 bits."""
    if math.prod(loop.extent for loop in nest) * item <= LARGEST_COUNT:
        return None
    at = max(range(len(nest)), key=lambda i: nest[i].extent)
    loop, low = nest[at], nest[at].extent // 2
    return [
        (
            merged([*nest[:at], replace(loop, extent=extent), *nest[at + 1 :]]),
            replace(start, source=start.source + first * loop.source, target=start.target + first * loop.target),
        )
        for first, extent in ((0, low), (low, loop.extent - low))
    ]


def _plan_fill(nest: list[Loop], element: bytes, start: _Start) -> Iterator[Launch]:
    item = len(element)
    if halves := _halves(nest, item, start):
        for half in halves:
            yield from _plan_fill(half[0], element, half[1])
        return
    word = item
    if nest and nest[-1].target == item:
        row = nest[-1].extent * item
        word = alignment([row, start.target_at, *(loop.target for loop in nest[:-1])])
        nest = _without_ones([*nest[:-1], Loop(row // word, word, 0)])
    yield _words(nest, word, 0, False, start, element * (VECTOR // item))


def _plan_nest(nest: list[Loop], item: int, start: _Start) -> Iterator[Launch]:
    if halves := _halves(nest, item, start):
        for half in halves:
            yield from _plan_nest(half[0], item, half[1])
        return
    innermost = nest[-1] if nest else Loop(1, item, item)
    outer = nest[:-1]
    if innermost.target != item or innermost.source not in (0, item):
        yield _transpose(nest, item, start) or _words(nest, item, item, False, start)
        return
    row = innermost.extent * item
    word = alignment([row, start.target_at, *(loop.target for loop in outer)])
    if innermost.source == 0:
        if word == VECTOR:
            rows = Loop(row // VECTOR, VECTOR, 0)
            yield _words(_without_ones([*outer, rows]), VECTOR, item, item < VECTOR, start)
        else:
            yield _units(nest, item, start) or _words(nest, item, item, False, start)
        return
    same = alignment([row, start.source_at, *(loop.source for loop in outer)])
    if min(word, same) < VECTOR and row >= LEAST_ROW and all(loop.source for loop in outer):
        axes = tuple([(0, loop.extent, loop.source) for loop in reversed(outer)])
        parts = (_Part(start.input, 0, row, start.source, axes),)
        rows = _Rows(row, tuple([(loop.extent, loop.target) for loop in reversed(outer)]), parts)
        launch = _launch_rows(rows, None, min(word, same, 8), start.target)
        if launch is not None:
            yield launch
            return
    if word == VECTOR:
        words = Loop(row // VECTOR, VECTOR, VECTOR)
        yield _words(_without_ones([*outer, words]), VECTOR, same, False, start)
        return
    wider = min(word, same)
    if wider > item:
        nest, item = _without_ones([*outer, Loop(row // wider, wider, wider)]), wider
    yield _units(nest, item, start) or _words(nest, item, item, False, start)


def _without_ones(nest: list[Loop]) -> list[Loop]:
    return [loop for loop in nest if loop.extent != 1]


def _words(nest: list[Loop], store: int, load: int, splat: bool, start: _Start, fill: bytes = b"") -> Launch:
    """Words of `store` bytes.

    The innermost repeating loop is walked, so that what is read is written several times; but never the loop over the
    words of a row, which must stay neighbours in a warp.
    """
    repeating = [loop for loop in nest[:-1] if loop.source == 0]
    walked = repeating[-1] if repeating else Loop(1, 0, 0)
    others = [loop for loop in nest if loop is not walked]
    words, block = math.prod(loop.extent for loop in others), COPY_THREADS * WORDS
    walk = min(walked.extent, LONGEST_WALK)
    while walk > 1 and words * -(-walked.extent // walk) < ENOUGH_BLOCKS * block:
        walk = -(-walk // 2)
    count = words * -(-walked.extent // walk)
    parameters = structure(
        COPY,
        count=count,
        axes=len(others),
        walk=walk,
        copies=walked.extent,
        fill=np.frombuffer(fill, "<u4") if fill else (),
        stride=walked.target,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    variant = copy_variant(store, load, splat=splat, wide=not fits_in_32_bits(nest))
    return _launch(variant, -(-count // block), COPY_THREADS, parameters, start)


def _units(nest: list[Loop], item: int, start: _Start) -> Launch | None:
    """A unit laid once and written often; None if no part of the output is contiguous for `LEAST_RUN` bytes."""
    size, inner, outer = item, list[Loop](), list(nest)
    while outer and outer[-1].target == size and size * outer[-1].extent <= MOST_UNIT:
        if outer[-1].source == 0 and size >= LEAST_PERIOD:
            break  # what repeats the unit writes it again, and need not be laid
        size *= outer[-1].extent
        inner.append(outer.pop())
    run = last_run = size
    chunk: Loop | None = None
    if outer and outer[-1].target == size:
        if outer[-1].source == 0:
            run = last_run = size * outer.pop().extent
        elif size < MOST_UNIT // 2:
            # Part of a loop: as many of its turns as fit, the same number in each unit but the last.
            loop = outer.pop()
            parts = -(-loop.extent // (MOST_UNIT // size))
            turns = -(-loop.extent // parts)
            parts = -(-loop.extent // turns)
            inner.append(replace(loop, extent=turns))
            chunk = Loop(parts, turns * loop.target, turns * loop.source)
            run = turns * size
            last_run = (loop.extent - (parts - 1) * turns) * size
            size = run
    if run < LEAST_RUN:
        return None
    moving = [loop for loop in reversed(outer) if loop.source != 0]
    repeating = [loop for loop in reversed(outer) if loop.source == 0]
    if chunk is not None:
        moving.insert(0, chunk)
    inner = _without_ones(inner)
    period = size * (-(-LEAST_PERIOD // size) if run > size else 1)
    filled = (min(period, run) + (2 * VECTOR if run > size else 0)) // item
    units = math.prod(loop.extent for loop in moving)
    segments = -(-((VECTOR - 1 + run + VECTOR - 1) // VECTOR) // SEGMENT)
    jobs = segments * math.prod(loop.extent for loop in repeating)
    share = min(jobs, max(1, min(REUSE * period * segments // run, units * jobs // ENOUGH_BLOCKS)))
    blocks = -(-jobs // share)
    loops = [*inner, *moving, *repeating]
    parameters = structure(
        UNIT,
        last_items=last_run // item if chunk else size // item,
        filled=filled,
        run=run,
        last_run=last_run,
        last=chunk.extent - 1 if chunk else 0xFFFFFFFF,
        period=divisor_row(period),
        segments=divisor_row(segments),
        segment=SEGMENT,
        jobs=jobs,
        share=share,
        blocks=divisor_row(blocks),
        inner=len(inner),
        moving=len(moving),
        repeating=len(repeating),
        axis=[axis_row(loop) for loop in loops],
    )
    variant = units_variant(item, wide=not fits_in_32_bits(nest))
    shared = -(-(max(period, filled * item) + 2 * VECTOR) // VECTOR) * VECTOR
    return _launch(variant, units * blocks, UNIT_THREADS, parameters, start, shared)


def _plan_rows(
    moves: Sequence[Move], element: bytes | None, inputs: Sequence[ArrayLayout], sizes: Sequence[int], out: ArrayLayout
) -> list[Launch] | None:
    """Several moves of long rows, and the fill value between them, together; None if they are not that.

    One launch in place of many, and every word of the output written once.
    """
    if len(moves) + (element is not None) < 2:
        return None
    rows = _rows_of(moves, inputs, sizes, out)
    if rows is None or min(part.end - part.begin for part in rows.parts) < LEAST_ROW:
        return None
    if element is not None and alignment([len(element), out.address, *out.strides]) < len(element):
        return None
    places = [out.address, *(stride for _, stride in rows.loops)]
    for part in rows.parts:
        address = inputs[part.input].address + part.source
        places += [part.begin, part.end, address, *(stride for _, _, stride in part.axes)]
    item = alignment([rows.row, *places], 8)
    launches: list[Launch] = []
    for at in range(0, len(rows.parts), MOST_PARTS):
        group = rows.parts[at : at + MOST_PARTS]
        begin, end = (group[0].begin, group[-1].end) if len(group) < len(rows.parts) else (0, rows.row)
        moved = [
            replace(part, begin=part.begin - begin, end=part.end - begin, source=part.source + begin) for part in group
        ]
        launch = _launch_rows(_Rows(end - begin, rows.loops, tuple(moved)), element, item, begin)
        if launch is None:
            return None
        launches.append(launch)
    return launches


def _rows_of(
    moves: Sequence[Move], inputs: Sequence[ArrayLayout], sizes: Sequence[int], out: ArrayLayout
) -> _Rows | None:
    """The moves as parts of rows, as long as possible; None if one of them repeats, reverses or spreads elements.

    With more parts than a launch has room for, all rows have all parts and nothing else.
    """
    boxes = [_strided_box(move, inputs[move.input].strides) for move in moves]
    found = [box for box in boxes if box is not None]
    if len(found) < len(boxes) or not found or min(out.strides, default=1) < 1:
        return None
    axes = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -out.strides[axis])
    row = out.dtype.itemsize
    spans = [(0, row)] * len(found)
    # An axis joins the row where rows follow each other in the output, and what is in them does in every input.
    while axes and out.strides[axes[-1]] == row and sizes[axes[-1]] * row <= LARGEST_COUNT:
        ranges = [box[axes[-1]] for box in found]
        if any(span != (0, row) for span in spans) or any(n > 1 and stride != row for _, n, stride in ranges):
            break
        spans = [(low * row, (low + n) * row) for low, n, _ in ranges]
        row *= sizes[axes.pop()]
    loops: list[tuple[int, int]] = []
    ranges: list[list[tuple[int, int, int]]] = [[] for _ in found]
    for axis in reversed(axes):
        size, stride = sizes[axis], out.strides[axis]
        outer = [box[axis] for box in found]
        if (
            loops
            and stride == loops[-1][0] * loops[-1][1]
            and all(
                each[-1][:2] == (0, loops[-1][0]) and (n == 1 or step == loops[-1][0] * each[-1][2])
                for each, (_, n, step) in zip(ranges, outer, strict=True)
            )
        ):  # one loop with the one inside it
            inner = loops[-1][0]
            loops[-1] = (inner * size, loops[-1][1])
            for each, (low, n, _) in zip(ranges, outer, strict=True):
                each[-1] = (low * inner, n * inner, each[-1][2])
        else:
            loops.append((size, stride))
            for each, one in zip(ranges, outer, strict=True):
                each.append(one)
    parts: list[_Part] = []
    for move, (begin, end), each in zip(moves, spans, ranges, strict=True):
        first = sum(at * stride for at, stride in zip(move.source_start, inputs[move.input].strides, strict=True))
        source = first - begin - sum(low * stride for low, _, stride in each)
        parts.append(_Part(move.input, begin, end, source, tuple(each)))
    whole = all(one[:2] == (0, size) for each in ranges for one, (size, _) in zip(each, loops, strict=True))
    if len(parts) > MOST_PARTS and not (whole and sum(part.end - part.begin for part in parts) == row):
        return None
    return _Rows(row, tuple(loops), tuple(sorted(parts, key=lambda part: part.begin)))


def _strided_box(move: Move, strides: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """First coordinate, extent and bytes of the input, for each axis of the output; None if the move is no such box."""
    found = [(at, 1, 0) for at in move.target_start]
    for loop in move.loops:
        (axis, step), stride = loop.target, sum(own * strides[axis] for axis, own in loop.source)
        if loop.extent > 1 and (step != 1 or stride < 1 or found[axis][1] > 1):
            return None
        found[axis] = (found[axis][0], loop.extent, stride)
    return found


def _launch_rows(rows: _Rows, element: bytes | None, item: int, target: int) -> Launch | None:
    """The rows in words of the output; None if there are too many loops or words."""
    most = 1 if len(rows.parts) == 1 else MOST_PARTS
    words = -(-(LINE - item + rows.row) // VECTOR)
    chunks = -(-words // (WORDS * 32))
    chunk = -(-words // (chunks * LINE // VECTOR)) * LINE // VECTOR
    lanes = (-(-chunk // WORDS) - 1).bit_length()
    count = chunks * math.prod(extent for extent, _ in rows.loops)
    if len(rows.loops) > MOST_ROW_AXES or (count << lanes) + COPY_THREADS > LARGEST_COUNT:
        return None
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
        part=[
            (part.begin, part.end, part.source, [*part.axes, *[(0, 0, 0)] * (MOST_ROW_AXES - len(part.axes))])
            for part in rows.parts
        ],
    )
    sources = [(part.input, 0) for part in rows.parts]
    sources += sources[:1] * (most - len(sources))
    return Launch(
        rows_variant(item, most), -(-(count << lanes) // COPY_THREADS), COPY_THREADS, parameters, tuple(sources), target
    )


def _transpose(nest: list[Loop], item: int, start: _Start) -> Launch | None:
    """A transpose by tiles; None if no two axes are contiguous, one on either side, or a tile would be tiny."""
    a, b = nest[-1], next((loop for loop in nest[:-1] if loop.source == item), None)
    if b is None or a.target != item or a.extent * b.extent < LEAST_TILE:
        return None
    others, per_word = [loop for loop in nest[:-1] if loop is not b], VECTOR // item
    aligned_source = alignment([start.source_at, a.source, *(loop.source for loop in others)]) == VECTOR
    aligned_target = alignment([start.target_at, b.target, *(loop.target for loop in others)]) == VECTOR
    short = JOINED_LINE // item
    joined_target = not aligned_target and a.extent < short and b.target == a.extent * item
    joined_source = not aligned_source and b.extent < short and a.source == b.extent * item
    joined_source = joined_source and not (joined_target and a.extent <= b.extent)
    joined_target = joined_target and not joined_source
    margin = 0 if aligned_source else per_word  # a whole word, so that words of shared memory stay aligned
    tiles = TILE if aligned_source and aligned_target else UNALIGNED_TILE
    tile_a, tile_b = _tile(a.extent, b.extent, *tiles[item], per_word)
    if tile_b < b.extent and margin and tile_b > per_word:
        tile_b -= per_word  # so that a line has no more words than an aligned one
    overlap = 0 if aligned_target or tile_a == a.extent else per_word - 1
    if overlap:
        tile_a = max(tile_a // per_word - 1, 1) * per_word
    # Lines of shared memory begin in different banks, an odd number of them apart.
    line = -(-(tile_b + margin) // per_word) * per_word + margin
    step = (-(-line * item // 4) | 1) * 4 // item if item < 8 else line | 1
    if not (joined_source or joined_target):
        most = MOST_TILE // (step * item) - overlap
        if most < tile_a:
            tile_a = most // per_word * per_word
            overlap = 0 if aligned_target else per_word - 1
    height = min(a.extent, tile_a + overlap)
    read_items = (height * tile_b if joined_source else tile_b) + margin
    written_items = tile_a * tile_b if joined_target else tile_a
    if not overlap and not aligned_target:
        written_items += per_word - 1
    if joined_target:
        step_a, step_b, shared = 1, a.extent, line * a.extent + per_word
    elif joined_source:
        step_a, step_b, shared = b.extent, 1, read_items + 2 * per_word
    else:
        step_a, step_b, shared = step, 1, height * step
    tiles_a = -(-(a.extent + overlap) // tile_a)
    tiles_b = -(-b.extent // tile_b)
    parameters = structure(
        TRANSPOSE,
        extent_a=a.extent,
        extent_b=b.extent,
        tiles_a=divisor_row(tiles_a),
        tiles_b=divisor_row(tiles_b),
        tile_a=tile_a,
        tile_b=tile_b,
        step_a=step_a,
        step_b=step_b,
        overlap=overlap,
        margin=margin,
        read=_side(height, read_items, per_word, joined_source),
        written=_side(tile_b, written_items, per_word, joined_target),
        axes=len(others),
        source_a=a.source,
        target_b=b.target,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    grid = tiles_a * tiles_b * math.prod(loop.extent for loop in others)
    variant = transpose_variant(item, wide=not fits_in_32_bits(nest))
    return _launch(variant, grid, TRANSPOSE_THREADS, parameters, start, shared * item)


def _side(lines: int, items: int, per_word: int, joined: bool) -> tuple[Any, ...]:
    """How the lines of one side of a tile are shared out to warps, as `Side` of copy.cu."""
    words = -(-items // per_word)
    shift = min(5 if joined or lines < LEAST_LINES else GROUP, (words - 1).bit_length())
    return (words, divisor_row(-(-words >> shift)), shift, joined)


def _tile(extent_a: int, extent_b: int, most_a: int, most_b: int, per_word: int) -> tuple[int, int]:
    """The items of a tile along both axes: where one axis is short, as many, in words that fill warps."""
    a, b, most = min(most_a, extent_a), min(most_b, extent_b), most_a * most_b
    if a < most_a:
        b = min(extent_b, _rounded(most // a, per_word))
    elif b < most_b:
        a = min(extent_a, _rounded(most // b, per_word))
    return a, b


def _rounded(items: int, per_word: int) -> int:
    unit = 32 * per_word if items >= 32 * per_word else 32
    return items // unit * unit


def _launch(
    variant: Variant, grid: int, block: int, parameters: NDArray[Any], start: _Start, shared: int = 0
) -> Launch:
    sources = ((start.input, start.source),) if start.input >= 0 else ()
    return Launch(variant, grid, block, parameters, sources, start.target, shared)
