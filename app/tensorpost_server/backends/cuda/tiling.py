"""How the two kernels of tile.cu are used: a box of a tiled tensor as a few nests of loops, each one launch.

A nest whose output can be written in aligned words of 16 bytes, each within one input row (or of one repeated element),
is copied word by word. Shorter and odd rows are laid in shared memory first, as many as make some kilobytes, and
written from there; that needs rows that follow each other in the output. What is left is copied element by element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...forms import Box
from .geometry import (
    AXIS,
    DIVISOR,
    LARGEST_COUNT,
    Loop,
    alignment,
    axis_row,
    divisor_row,
    fits_in_32_bits,
    merged,
    runs,
)
from .launches import ENOUGH_BLOCKS, Launch, structure
from .variants import copy_variant, unit_variant

__all__ = ["COPY", "MOST_LOOPS", "UNIT", "plan_tile"]

MOST_LOOPS = 20  # MOST_AXES of tile.cu; DirectML's 8 dimensions need 16
VECTOR = 16  # bytes; the widest access there is
COPY_THREADS, WORDS = 128, 4  # of tile_copy: threads of a block, words of a thread
UNIT_THREADS = 256  # of tile_unit
LONGEST_WALK = 16  # places that a thread of tile_copy writes a word to
MOST_UNIT = 16 << 10  # bytes; 8 blocks of one multiprocessor have room for them
LEAST_PERIOD = 1 << 10  # bytes; a shorter unit is laid several times, as what is written from it wraps around
LEAST_RUN = 512  # bytes; below it most of a run's vectors would be at its ends
SEGMENT = 4096  # vectors of a run that a block writes before it looks for the next job
REUSE = 16  # bytes that a block writes for each byte of the unit that it lays, if there is so much work

COPY = np.dtype(
    [
        ("count", "<u4"), ("axes", "<u4"), ("walk", "<u4"), ("copies", "<u4"), ("stride", "<i8"),
        ("axis", AXIS, (MOST_LOOPS,)),
    ],
    align=True,
)  # fmt: skip
"""`Copy` of tile.cu."""
UNIT = np.dtype(
    [
        ("last_items", "<u4"), ("filled", "<u4"), ("run", "<u4"), ("last_run", "<u4"),
        ("last", "<u4"), ("period", DIVISOR), ("segments", DIVISOR), ("segment", "<u4"), ("jobs", "<u4"),
        ("share", "<u4"), ("blocks", DIVISOR), ("inner", "<u4"), ("moving", "<u4"), ("repeating", "<u4"),
        ("axis", AXIS, (MOST_LOOPS + 2,)),
    ],
    align=True,
)  # fmt: skip
"""`Unit` of tile.cu."""


def plan_tile(
    sizes: Sequence[int],
    box: Box,
    item: int,
    of_strides: Sequence[int],
    into_strides: Sequence[int],
    of_address: int = 0,
    into_address: int = 0,
) -> list[Launch] | None:
    """The launches that fill a box, in any order.

    Args:
        sizes: the input's.
        box: part of the output; not empty.
        item: bytes per element: 1, 2, 4, 8 or 16.
        of_strides: of the input, in bytes.
        into_strides: of the output, in bytes; one-to-one.
        of_address: where the input's first element is, at least modulo 16.
        into_address: the same for the output.

    Returns:
        None if there are more loops than a kernel has room for.
    """
    natural = alignment([item, of_address, into_address, *of_strides, *into_strides])
    parts = (Loop(item // natural, natural, natural),)  # of an element that is not where its size would have it
    found: list[Launch] = []
    axes = zip(box, sizes, of_strides, into_strides, strict=True)
    for pieces in itertools.product(*[list(_pieces(*axis)) for axis in axes]):
        of, into = sum(piece[0] for piece in pieces), sum(piece[1] for piece in pieces)
        nest = merged([*(loop for piece in pieces for loop in piece[2]), *parts])
        if len(nest) > MOST_LOOPS:
            return None
        found += _plan_nest(nest, natural, of, into, of_address, into_address)
    return found


def _pieces(
    span: tuple[int, int], size: int, of_stride: int, into_stride: int
) -> Iterator[tuple[int, int, tuple[Loop, ...]]]:
    """Input offset, output offset and loops of each part of an axis."""
    start, stop = span
    if of_stride == 0 or size == 1:
        yield 0, 0, (Loop(stop - start, into_stride, 0),)
        return
    for at, first, length, copies in runs(start, stop, size):
        loops = (Loop(copies, length * into_stride, 0), Loop(length, into_stride, of_stride))
        yield first * of_stride, at * into_stride, loops


def _plan_nest(nest: list[Loop], item: int, of: int, into: int, of_address: int, into_address: int) -> Iterator[Launch]:
    if math.prod(loop.extent for loop in nest) * item > LARGEST_COUNT:
        # Halves of the longest loop, so that neither indices nor a run's bytes leave 31 bits.
        at = max(range(len(nest)), key=lambda i: nest[i].extent)
        long = nest[at]
        low = long.extent // 2
        for start, extent in ((0, low), (low, long.extent - low)):
            part = merged([*nest[:at], replace(long, extent=extent), *nest[at + 1 :]])
            yield from _plan_nest(part, item, of + start * long.of, into + start * long.into, of_address, into_address)
        return
    input_at, output_at = of_address + of, into_address + into
    innermost = nest[-1] if nest else Loop(1, item, item)
    outer = nest[:-1]
    if innermost.into == item and innermost.of in (0, item):
        row = innermost.extent * item
        word = alignment([row, output_at, *(loop.into for loop in outer)])
        same = alignment([row, input_at, *(loop.of for loop in outer)])
        if innermost.of == 0:
            if word == VECTOR:
                rows = Loop(row // VECTOR, VECTOR, 0)
                yield _copy(_without_ones([*outer, rows]), VECTOR, item, item < VECTOR, of, into)
                return
            same = item
        elif word == VECTOR:
            words = Loop(row // VECTOR, VECTOR, VECTOR)
            yield _copy(_without_ones([*outer, words]), VECTOR, same, False, of, into)
            return
        wider = min(word, same)
        if wider > item:
            nest, item = _without_ones([*outer, Loop(row // wider, wider, wider)]), wider
        unit = _unit(nest, item, of, into)
        if unit is not None:
            yield unit
            return
    yield _copy(nest, item, item, False, of, into)


def _without_ones(nest: list[Loop]) -> list[Loop]:
    return [loop for loop in nest if loop.extent != 1]


def _copy(nest: list[Loop], store: int, load: int, splat: bool, of: int, into: int) -> Launch:
    """Words of `store` bytes.

    The innermost repeating loop is walked, so that what is read is written several times; but never the loop over the
    words of a row, which must stay neighbours in a warp.
    """
    repeating = [loop for loop in nest[:-1] if loop.of == 0]
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
        stride=walked.into,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    variant = copy_variant(store, load, splat=splat, wide=not fits_in_32_bits(nest))
    return Launch(variant, -(-count // block), COPY_THREADS, parameters, of, into)


def _unit(nest: list[Loop], item: int, of: int, into: int) -> Launch | None:
    """A unit laid once and written often; None if no part of the output is contiguous for `LEAST_RUN` bytes."""
    size, inner, outer = item, list[Loop](), list(nest)
    while outer and outer[-1].into == size and size * outer[-1].extent <= MOST_UNIT:
        if outer[-1].of == 0 and size >= LEAST_PERIOD:
            break  # what repeats the unit writes it again, and need not be laid
        size *= outer[-1].extent
        inner.append(outer.pop())
    run = last_run = size
    chunk: Loop | None = None
    if outer and outer[-1].into == size:
        if outer[-1].of == 0:
            run = last_run = size * outer.pop().extent
        elif size < MOST_UNIT // 2:
            # Part of a loop: as many of its turns as fit, the same number in each unit but the last.
            loop = outer.pop()
            parts = -(-loop.extent // (MOST_UNIT // size))
            turns = -(-loop.extent // parts)
            parts = -(-loop.extent // turns)
            inner.append(replace(loop, extent=turns))
            chunk = Loop(parts, turns * loop.into, turns * loop.of)
            run = turns * size
            last_run = (loop.extent - (parts - 1) * turns) * size
            size = run
    if run < LEAST_RUN:
        return None
    moving = [loop for loop in reversed(outer) if loop.of != 0]
    repeating = [loop for loop in reversed(outer) if loop.of == 0]
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
    variant = unit_variant(item, wide=not fits_in_32_bits(nest))
    shared = -(-(max(period, filled * item) + 2 * VECTOR) // VECTOR) * VECTOR
    return Launch(variant, units * blocks, UNIT_THREADS, parameters, of, into, shared)
