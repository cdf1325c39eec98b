"""Which kernels copy a box of a `Copies` form: as rows of several parts (row_kernels.py), else as nests of loops.

A nest is one launch, of the first of these that fits it:

* words of 16 bytes, where the output can be written in them and each is within one input row or repeats one element;
* rows of at least some hundred bytes that are contiguous on both sides but aligned differently (row_kernels.py);
* short and odd rows that follow each other in the output: laid in shared memory, and written from there in words;
* lines that are interleaved or taken apart, as pixel shuffles do (interleave_kernels.py);
* a transpose, where another axis is contiguous in the input than in the output (transpose_kernels.py);
* element by element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...forms import Box, Copies
from ...forms.base import extents
from ...forms.copy_loops import byte_loops, uncovered
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, ByteLoop, alignment, axis_row, divisor_row, fits_in_32_bits, merged
from .interleave_kernels import plan_interleave
from .launches import ENOUGH_BLOCKS, MOST_LOOPS, VECTOR, ArrayLayout, Launch, NestStart, nest_launch, structure
from .row_kernels import plan_parts, plan_row_nest
from .transpose_kernels import plan_transpose
from .variants import copy_variant, units_variant

COPY_THREADS, WORDS = 128, 2  # of copy_words: threads of a block, words of a thread
UNIT_THREADS = 256  # of copy_units
LONGEST_WALK = 16  # places that a thread of copy_words writes a word to
MOST_UNIT = 16 << 10  # bytes; 8 blocks of one multiprocessor have room for them
LEAST_PERIOD = 1 << 10  # bytes; a shorter unit is laid several times, as what is written from it wraps around
LEAST_RUN = 512  # bytes; below it most of a run's vectors would be at its ends
SEGMENT = 4096  # vectors of a run that a block writes before it looks for the next job
MOST_TOGETHER = 8  # items that a thread of copy_units lays after working out where the first one is
REUSE = 16  # bytes that a block writes for each byte of the unit that it lays, if there is so much work
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
        ("last_items", "<u4"), ("filled", "<u4"), ("together", "<i4"), ("step", "<i4"), ("run", "<u4"),
        ("last_run", "<u4"), ("last", "<u4"), ("period", DIVISOR), ("segments", DIVISOR), ("segment", "<u4"),
        ("jobs", "<u4"), ("share", "<u4"), ("blocks", DIVISOR), ("inner", "<u4"), ("moving", "<u4"),
        ("repeating", "<u4"),
        ("axis", AXIS, (MOST_LOOPS + 2,)),
    ],
    align=True,
)  # fmt: skip
"""`Unit` of copy.cu."""


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
    element = None if form.fill_value is None else form.fill_element(out.dtype).tobytes()
    rows = plan_parts(parts, element, inputs, extents(box), out)
    if rows is not None:
        return rows
    if element is not None:
        for part in uncovered(box, parts):
            loops = [ByteLoop(stop - start, stride, 0) for (start, stop), stride in zip(part, out.strides, strict=True)]
            target = sum(start * stride for (start, _), stride in zip(part, out.strides, strict=True))
            nest = merged(loops)
            if alignment([item, out.address, *out.strides]) < item or len(nest) > MOST_LOOPS:
                return None
            found += _plan_fill(nest, element, NestStart(-1, 0, target, 0, out.address))
    for move in parts:
        x = inputs[move.input]
        source, target, loops = byte_loops(move, x.strides, out.strides)
        strides = itertools.chain.from_iterable(loop[1:] for loop in loops)
        natural = alignment([item, x.address, out.address, source, target, *strides])
        # An element that is not where its size would have it is copied in parts.
        nest = merged([*(ByteLoop(*loop) for loop in loops), ByteLoop(item // natural, natural, natural)])
        if len(nest) > MOST_LOOPS:
            return None
        found += _plan_nest(nest, natural, NestStart(move.input, source, target, x.address, out.address))
    return found


def _halves(nest: list[ByteLoop], item: int, start: NestStart) -> list[tuple[list[ByteLoop], NestStart]] | None:
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


def _plan_fill(nest: list[ByteLoop], element: bytes, start: NestStart) -> Iterator[Launch]:
    item = len(element)
    if halves := _halves(nest, item, start):
        for half in halves:
            yield from _plan_fill(half[0], element, half[1])
        return
    word = item
    if nest and nest[-1].target == item:
        row = nest[-1].extent * item
        word = alignment([row, start.target_at, *(loop.target for loop in nest[:-1])])
        nest = _without_ones([*nest[:-1], ByteLoop(row // word, word, 0)])
    yield _words(nest, word, 0, False, start, element * (VECTOR // item))


def _plan_nest(nest: list[ByteLoop], item: int, start: NestStart) -> Iterator[Launch]:
    if halves := _halves(nest, item, start):
        for half in halves:
            yield from _plan_nest(half[0], item, half[1])
        return
    innermost = nest[-1] if nest else ByteLoop(1, item, item)
    outer = nest[:-1]
    if innermost.target != item or innermost.source not in (0, item):
        launch = plan_interleave(nest, item, start) or plan_transpose(nest, item, start)
        yield launch or _words(nest, item, item, False, start)
        return
    row = innermost.extent * item
    word = alignment([row, start.target_at, *(loop.target for loop in outer)])
    if innermost.source == 0:
        if word == VECTOR:
            rows = ByteLoop(row // VECTOR, VECTOR, 0)
            yield _words(_without_ones([*outer, rows]), VECTOR, item, item < VECTOR, start)
        else:
            yield _units(nest, item, start) or _words(nest, item, item, False, start)
        return
    same = alignment([row, start.source_at, *(loop.source for loop in outer)])
    if min(word, same) < VECTOR:
        launch = plan_row_nest([*outer, ByteLoop(row, 1, 1)], min(word, same), start)
        if launch is not None:
            yield launch
            return
    if word == VECTOR:
        words = ByteLoop(row // VECTOR, VECTOR, VECTOR)
        yield _words(_without_ones([*outer, words]), VECTOR, same, False, start)
        return
    wider = min(word, same)
    if wider > item:
        nest, item = _without_ones([*outer, ByteLoop(row // wider, wider, wider)]), wider
    yield _units(nest, item, start) or _words(nest, item, item, False, start)


def _without_ones(nest: list[ByteLoop]) -> list[ByteLoop]:
    return [loop for loop in nest if loop.extent != 1]


def _words(nest: list[ByteLoop], store: int, load: int, splat: bool, start: NestStart, fill: bytes = b"") -> Launch:
    """Words of `store` bytes.

    The innermost repeating loop is walked, so that what is read is written several times; but never the loop over the
    words of a row, which must stay neighbours in a warp.
    """
    repeating = [loop for loop in nest[:-1] if loop.source == 0]
    walked = repeating[-1] if repeating else ByteLoop(1, 0, 0)
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
    return nest_launch(variant, -(-count // block), COPY_THREADS, parameters, start)


def _units(nest: list[ByteLoop], item: int, start: NestStart) -> Launch | None:
    """A unit laid once and written often; None if no part of the output is contiguous for `LEAST_RUN` bytes."""
    size, inner, outer = item, list[ByteLoop](), list(nest)
    while outer and outer[-1].target == size and size * outer[-1].extent <= MOST_UNIT:
        if outer[-1].source == 0 and size >= LEAST_PERIOD:
            break  # what repeats the unit writes it again, and need not be laid
        size *= outer[-1].extent
        inner.append(outer.pop())
    run = last_run = size
    chunk: ByteLoop | None = None
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
            chunk = ByteLoop(parts, turns * loop.target, turns * loop.source)
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
    # Laying an item takes as long whatever its size, so of small items each block writes more of what it has laid.
    reuse, enough = (REUSE, ENOUGH_BLOCKS) if item >= 4 else (2 * REUSE, 3 * ENOUGH_BLOCKS // 4)
    share = min(jobs, max(1, min(reuse * period * segments // run, units * jobs // enough)))
    blocks = -(-jobs // share)
    together = ByteLoop(1, item, 0)
    if inner and inner[0].extent <= MOST_TOGETHER:
        together = inner.pop(0)
    loops = [*inner, *moving, *repeating]
    parameters = structure(
        UNIT,
        last_items=last_run // item if chunk else size // item,
        filled=filled,
        together=together.extent,
        step=together.source,
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
    shared = -(-(max(period, (filled + together.extent) * item) + 2 * VECTOR) // VECTOR) * VECTOR
    return nest_launch(variant, units * blocks, UNIT_THREADS, parameters, start, shared)
