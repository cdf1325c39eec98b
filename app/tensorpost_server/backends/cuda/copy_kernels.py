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

from ...forms import Box, Copies, Copy
from ...forms.base import extents, whole_box
from ...forms.copy_loops import byte_loops
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, Loop, alignment, axis_row, divisor_row, fits_in_32_bits, merged
from .launches import ENOUGH_BLOCKS, ArrayLayout, Launch, structure
from .variants import Variant, copy_variant, rows_variant, transpose_variant, units_variant

__all__ = ["COPY", "MOST_LOOPS", "ROWS", "TRANSPOSE", "UNIT", "plan_copies"]

MOST_LOOPS = 20  # MOST_AXES of copy.cu; Tile of DirectML's 8 dimensions needs 16
MOST_FILLS = 32  # boxes of fill value; with more of them, everything is filled before the copies are made
VECTOR = 16  # bytes; the widest access there is
COPY_THREADS, WORDS = 128, 4  # of copy_words and copy_rows: threads of a block, words of a thread
UNIT_THREADS = 256  # of copy_units
LONGEST_WALK = 16  # places that a thread of copy_words writes a word to
MOST_UNIT = 16 << 10  # bytes; 8 blocks of one multiprocessor have room for them
LEAST_PERIOD = 1 << 10  # bytes; a shorter unit is laid several times, as what is written from it wraps around
LEAST_RUN = 512  # bytes; below it most of a run's vectors would be at its ends
LEAST_ROW = 256  # bytes; below it too many of a row's words would be at its ends
SEGMENT = 4096  # vectors of a run that a block writes before it looks for the next job
REUSE = 16  # bytes that a block writes for each byte of the unit that it lays, if there is so much work
TRANSPOSE_THREADS = 256
TILE = {
    1: 128,
    2: 64,
    4: 64,
    8: 32,
    16: 32,
}  # items of a line of a tile, by bytes of an item: lines of 128 bytes or more
WIDEST_WORD = 8  # bytes that a thread of a transpose moves at once; items are exchanged one by one in shared memory
LEAST_TILE = 64  # items; below it there is nothing to win

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
ROWS = np.dtype(
    [("count", "<u4"), ("words", DIVISOR), ("row", "<u4"), ("axes", "<u4"), ("axis", AXIS, (MOST_LOOPS,))], align=True
)
"""`Rows` of copy.cu."""
TRANSPOSE = np.dtype(
    [
        ("extent_a", "<u4"), ("extent_b", "<u4"), ("tiles_a", DIVISOR), ("tiles_b", DIVISOR), ("tile_a", DIVISOR),
        ("tile_b", DIVISOR), ("step_a", "<u4"), ("step_b", "<u4"), ("axes", "<u4"), ("source_a", "<i8"),
        ("target_b", "<i8"), ("axis", AXIS, (MOST_LOOPS,)),
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
    item, found, parts = out.dtype.itemsize, list[Launch](), list(form.within(box, output))
    if form.fill_value is not None:
        element = form.fill_element(out.dtype).tobytes()
        for part in _uncovered(extents(box), parts, out.strides):
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


def _uncovered(sizes: Sequence[int], parts: Sequence[Copy], strides: Sequence[int]) -> list[Box]:
    """Boxes that together hold all that no move writes to; the whole where that is too many boxes."""
    whole = whole_box(sizes)
    found = [whole]
    for move in parts:
        covered = _covered(move)
        if covered is None:
            return [whole]
        found = [rest for box in found for rest in _without(box, covered, strides)]
        if len(found) > MOST_FILLS:
            return [whole]
    return found


def _covered(move: Copy) -> Box | None:
    """The box that a move writes to; None if it leaves out elements between those it writes."""
    ends = list(move.target_start)
    for loop in reversed(move.loops):
        axis, step = loop.target
        if step != ends[axis] - move.target_start[axis] + 1:
            return None
        ends[axis] += (loop.extent - 1) * step
    return tuple([(start, end + 1) for start, end in zip(move.target_start, ends, strict=True)])


def _without(box: Box, hole: Box, strides: Sequence[int]) -> Iterator[Box]:
    """The parts of a box outside of a hole, cut along the axis with the largest stride first."""
    if any(max(start, low) >= min(stop, high) for (start, stop), (low, high) in zip(box, hole, strict=True)):
        yield box
        return
    left = list(box)
    for axis in sorted(range(len(box)), key=lambda axis: -strides[axis]):
        (start, stop), (low, high) = left[axis], hole[axis]
        for part in ((start, low), (high, stop)):
            if part[0] < part[1]:
                yield (*left[:axis], part, *left[axis + 1 :])
        left[axis] = (max(start, low), min(stop, high))


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
        rows_of_words = _rows(nest, min(word, same, 8), start)
        if rows_of_words is not None:
            yield rows_of_words
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


def _rows(nest: list[Loop], item: int, start: _Start) -> Launch | None:
    """Rows, the innermost loop, in words of the output; None if there are too many words."""
    row = nest[-1].extent * nest[-1].target
    words = -(-(VECTOR - item + row) // VECTOR)
    count, block = words * math.prod(loop.extent for loop in nest[:-1]), COPY_THREADS * WORDS
    if count + block > LARGEST_COUNT:
        return None
    outer = [axis_row(loop) for loop in reversed(nest[:-1])]
    parameters = structure(ROWS, count=count, words=divisor_row(words), row=row, axes=len(outer), axis=outer)
    variant = rows_variant(item, wide=not fits_in_32_bits(nest))
    return _launch(variant, -(-count // block), COPY_THREADS, parameters, start)


def _transpose(nest: list[Loop], item: int, start: _Start) -> Launch | None:
    """A transpose by tiles; None if no two axes are contiguous, one on either side, or a tile would be tiny."""
    a, b = nest[-1], next((loop for loop in nest[:-1] if loop.source == item), None)
    if b is None or a.target != item or a.extent * b.extent < LEAST_TILE:
        return None
    others = [loop for loop in nest[:-1] if loop is not b]
    tile_a, tile_b = _tile(a.extent, b.extent, TILE[item])
    # Whether a tile's lines follow each other in memory.
    follow_source = tile_b == b.extent and a.source == b.extent * item
    follow_target = tile_a == a.extent and b.target == a.extent * item
    places = [start.source_at, start.target_at, *(stride for one in others for stride in (one.source, one.target))]
    word = alignment(places, WIDEST_WORD)
    while word > item:
        per_word = word // item
        crosses_a, crosses_b = tile_a % per_word > 0, tile_b % per_word > 0
        whole_source = follow_source or (b.extent % per_word == 0 and a.source % word == 0)
        whole_target = follow_target or (a.extent % per_word == 0 and b.target % word == 0)
        if whole_source and whole_target and not (crosses_a and crosses_b):
            break
        word //= 2
    else:
        word, crosses_a, crosses_b = item, False, False
    step_a, step_b = (1, tile_a) if crosses_a else (tile_b if crosses_b else tile_b | 1, 1)
    tiles_a, tiles_b = -(-a.extent // tile_a), -(-b.extent // tile_b)
    parameters = structure(
        TRANSPOSE,
        extent_a=a.extent,
        extent_b=b.extent,
        tiles_a=divisor_row(tiles_a),
        tiles_b=divisor_row(tiles_b),
        tile_a=divisor_row(tile_a),
        tile_b=divisor_row(tile_b),
        step_a=step_a,
        step_b=step_b,
        axes=len(others),
        source_a=a.source,
        target_b=b.target,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    grid = tiles_a * tiles_b * math.prod(loop.extent for loop in others)
    variant = transpose_variant(item, word, wide=not fits_in_32_bits(nest))
    shared = item * ((tile_a - 1) * step_a + (tile_b - 1) * step_b + 1)
    return _launch(variant, grid, TRANSPOSE_THREADS, parameters, start, shared)


def _tile(extent_a: int, extent_b: int, most: int) -> tuple[int, int]:
    """The items of a tile along both axes: a square, or as many where one axis is short; of 32 or more, multiples."""
    a, b = min(most, extent_a), min(most, extent_b)
    if a < most:
        b = min(extent_b, most * most // a // 32 * 32)
    elif b < most:
        a = min(extent_a, most * most // b // 32 * 32)
    return a, b


def _launch(
    variant: Variant, grid: int, block: int, parameters: NDArray[Any], start: _Start, shared: int = 0
) -> Launch:
    sources = ((start.input, start.source),) if start.input >= 0 else ()
    return Launch(variant, grid, block, parameters, sources, start.target, shared)
