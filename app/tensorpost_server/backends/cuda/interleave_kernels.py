"""How copy_interleaved of copy.cu is used: two or four lines are interleaved, or one is split into them.

On an H200, pixel shuffles by 2 reach 0.99, 0.98 and 0.87 of the device's copy in elements of 4, 2 and 1 bytes. By tiles
of a transpose, which hold two lines of an image, they reached 0.68, 0.38 and 0.24.
"""

from __future__ import annotations

import math

import numpy as np

from .geometry import AXIS, ByteLoop, alignment, axis_row
from .launches import MOST_LOOPS, VECTOR, Launch, NestStart, nest_launch, structure
from .variants import INTERLEAVED, interleave_variant

THREADS, WORDS = 128, 2  # of copy_interleaved: threads of a block, words of a thread
INTERLEAVE = np.dtype(
    [("count", "<u4"), ("axes", "<u4"), ("splits", "<u4"), ("apart", "<i8"), ("axis", AXIS, (MOST_LOOPS,))], align=True
)
"""`Interleave` of copy.cu."""


def plan_interleave(nest: list[ByteLoop], item: int, start: NestStart) -> Launch | None:
    """The launch for a nest whose innermost loops over the input and over the output differ.

    Returns:
        None unless one of them is over 2 or 4 lines, whose items lie side by side in the words of one.
    """
    inner, other = nest[-1], next((loop for loop in nest[:-1] if loop.source == item), None)
    if other is None or inner.target != item:
        return None
    splits = (item, other.extent) in INTERLEAVED and inner.source == other.extent * item
    lines, along = (other, inner) if splits else (inner, other)
    if (item, lines.extent) not in INTERLEAVED or not (splits or along.target == lines.extent * item):
        return None
    part = VECTOR // lines.extent
    others = [loop for loop in nest[:-1] if loop is not other]
    ends = [start.source_at, *(loop.source for loop in others)], [start.target_at, *(loop.target for loop in others)]
    together, apart = ends if splits else ends[::-1]
    step = lines.target if splits else lines.source
    if alignment(together) < VECTOR or alignment([step, along.extent * item, *apart], part) < part:
        return None
    words = along.extent * item // part
    loops = [*others, ByteLoop(words, part, VECTOR) if splits else ByteLoop(words, VECTOR, part)]
    count = math.prod(loop.extent for loop in loops)
    parameters = structure(
        INTERLEAVE,
        count=count,
        axes=len(loops),
        splits=splits,
        apart=step,
        axis=[axis_row(loop) for loop in reversed(loops)],
    )
    return nest_launch(
        interleave_variant(item, lines.extent), -(-count // (THREADS * WORDS)), THREADS, parameters, start
    )
