"""How transpose.cu is used: a nest whose innermost loops over the input and over the output differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .geometry import AXIS, DIVISOR, ByteLoop, alignment, axis_row, divisor_row, fits_in_32_bits
from .launches import MOST_LOOPS, VECTOR, Launch, NestStart, nest_launch, structure
from .variants import byte_transpose_variant, transpose_variant

THREADS = 128  # of transpose.cu
TILE = {1: (64, 128), 2: (64, 128), 4: (32, 64), 8: (32, 32), 16: (32, 32)}
"""Items of a tile along the output's lines and along the input's, by bytes of an item."""
UNALIGNED_BYTES = 128, 128  # such a tile where lines of single bytes are not aligned: 1.17 times as fast as by `TILE`
MOST_TILE = 48 << 10  # bytes of shared memory, more than which no device gives without being asked
LEAST_TILE = 64  # items; below it there is nothing to win
JOINED_LINE = 128  # bytes; shorter lines that follow each other are read or written as one
GROUP = 3  # log2 of the words of a line that a warp takes at once: then its accesses use all banks of shared memory
LEAST_LINES = 8  # of a tile; with fewer, a warp takes words of one line

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
"""`Transpose` of transpose.cu."""

BYTES_THREADS, BYTES_A, BYTES_B, BYTES_OVERLAP = 256, 256, 128, 16  # of transpose_bytes.cu
LEAST_BYTES = 96
"""Bytes along both axes from which on transpose_bytes.cu is used, for lines that are not aligned."""
BYTE_TRANSPOSE = np.dtype(
    [
        ("extent_a", "<u4"), ("extent_b", "<u4"), ("tiles_a", DIVISOR), ("tiles_b", DIVISOR), ("axes", "<u4"),
        ("source_a", "<i8"), ("target_b", "<i8"), ("begin", "<i8"), ("end", "<i8"), ("axis", AXIS, (MOST_LOOPS,)),
    ],
    align=True,
)  # fmt: skip
"""`ByteTranspose` of transpose_bytes.cu."""


def plan_transpose(nest: list[ByteLoop], item: int, start: NestStart) -> Launch | None:
    """A transpose by tiles; None if no two axes are contiguous, one on either side, or a tile would be tiny."""
    a, b = nest[-1], next((loop for loop in nest[:-1] if loop.source == item), None)
    if b is None or a.target != item or a.extent * b.extent < LEAST_TILE:
        return None
    others, per_word = [loop for loop in nest[:-1] if loop is not b], VECTOR // item
    aligned_source = alignment([start.source_at, a.source, *(loop.source for loop in others)]) == VECTOR
    aligned_target = alignment([start.target_at, b.target, *(loop.target for loop in others)]) == VECTOR
    if item == 1 and not (aligned_source and aligned_target) and min(a.extent, b.extent) >= LEAST_BYTES:
        return _byte_transpose(nest, a, b, others, start)
    most_a, most_b = TILE[item] if aligned_target or item > 1 else UNALIGNED_BYTES
    joined_target = not aligned_target and a.extent <= min(most_a, JOINED_LINE // item) and b.target == a.extent * item
    joined_source = not aligned_source and b.extent <= min(most_b, JOINED_LINE // item) and a.source == b.extent * item
    joined_source = joined_source and not (joined_target and a.extent <= b.extent)
    joined_target = joined_target and not joined_source
    margin = 0 if aligned_source else per_word  # a whole word, so that words of shared memory stay aligned
    tile_a, tile_b = _tile(a.extent, b.extent, most_a, most_b, per_word)
    if tile_b < b.extent and margin and tile_b > per_word:
        tile_b -= per_word  # so that a line has no more words than an aligned one
    overlap = 0 if aligned_target or tile_a == a.extent else per_word - 1
    if overlap:
        tile_a = max(tile_a // per_word - 1, 1) * per_word
    # Lines of shared memory begin in different banks, an odd number of them apart.
    line = -(-(tile_b + margin) // per_word) * per_word + margin
    step = (-(-line * item // 4) | 1) * 4 // item if item < 8 else line | 1
    if item == 1 and not aligned_target:
        step = line | 1  # those a word of the output apart are in different banks too: 1.14 times as fast
    if not (joined_source or joined_target) and min(a.extent, tile_a + overlap) * step * item > MOST_TILE:
        tile_a = (MOST_TILE // (step * item) - per_word) // per_word * per_word
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
    return nest_launch(variant, grid, THREADS, parameters, start, shared * item)


def _byte_transpose(nest: list[ByteLoop], a: ByteLoop, b: ByteLoop, others: list[ByteLoop], start: NestStart) -> Launch:
    tiles_a = -(-(a.extent + BYTES_OVERLAP) // (BYTES_A - BYTES_OVERLAP))
    tiles_b = -(-b.extent // BYTES_B)
    reached = [(loop.extent - 1) * loop.source for loop in nest]
    parameters = structure(
        BYTE_TRANSPOSE,
        extent_a=a.extent,
        extent_b=b.extent,
        tiles_a=divisor_row(tiles_a),
        tiles_b=divisor_row(tiles_b),
        axes=len(others),
        source_a=a.source,
        target_b=b.target,
        begin=sum(min(0, far) for far in reached),
        end=sum(max(0, far) for far in reached) + 1,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    grid = tiles_a * tiles_b * math.prod(loop.extent for loop in others)
    variant = byte_transpose_variant(wide=not fits_in_32_bits(nest))
    return nest_launch(variant, grid, BYTES_THREADS, parameters, start, BYTES_A * BYTES_B)


def _side(lines: int, items: int, per_word: int, joined: bool) -> tuple[Any, ...]:
    """How the lines of one side of a tile are shared out to warps, as `Side` of transpose.cu."""
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
