"""How the kernels of resample.cu are used: a box of a resampled tensor as one launch, or as one pass along each axis.

Every dimension of the box is a loop with a stride in the output and one in the input, and those that are resampled have
taps. The loop with the smallest output stride is the row of a thread (x), and one more its column (y).

If every output has a single tap of weight 1, elements are gathered: those of 1 and 2 bytes by staging.py, larger ones
where they are. If there are at most 4 weighted axes of at most 2 taps each, or 2 axes of at most 4, and what outputs
read moves along with them, staging.py blends them in one launch. Anything else goes axis by axis through arrays of
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...forms import Box
from ...forms.axes import AxisMap
from ...forms.separable import Rounding
from .dimensions import (
    MOST_OUTER,
    THREADS,
    Dimension,
    Step,
    TablePart,
    columns_of,
    outputs_of,
    planes_of,
    there,
    writes_words,
)
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, Loop, alignment, axis_row, divisor_row, merged
from .launches import ENOUGH_BLOCKS, Launch, structure
from .staging import plan_staged
from .tables import Table, span_of, taps_of
from .variants import BLEND_TYPES, PASS_TYPES, blend_variant, gather_variant, move_variant, pass_variant

__all__ = ["GATHER", "PASS", "plan_resample"]

ROWS = 8  # output rows that a thread of resample_gather walks, if there are enough threads
FEWEST_ROWS = 4  # with fewer, input rows that neighbouring threads both read count too much
PASS_GROUPS = 4  # GROUPS of resample_pass
MOST_REPEATED = 1 << 18  # outputs of an axis joined with the elements behind it
SHORT = 512  # bytes; copied elements fewer than these make no good rows
LONGEST_SUM = 1 << 16  # taps of one output; beyond, one thread would be busy too long

_FLOATS = frozenset({"float32", "float16", "bfloat16"})

GATHER = np.dtype(
    [
        ("count", "<u4"), ("slots", DIVISOR), ("second", DIVISOR), ("chunks_first", "<u4"), ("width", "<u4"),
        ("height", "<u4"), ("rows", "<u4"), ("vector", "<u4"), ("outer", "<u4"), ("of_x", "<i4"), ("into_x", "<i4"),
        ("of_y", "<i8"), ("into_y", "<i8"), ("list_x", "<u8"), ("list_y", "<u8"), ("lists", "<u8"),
        ("axis", AXIS, (MOST_OUTER,)), ("first", "<i4", (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Gather` of resample.cu."""
PASS = np.dtype(
    [
        ("count", "<u4"), ("inner", DIVISOR), ("outputs", DIVISOR), ("along_inner", "<u4"), ("inner_size", "<u4"),
        ("outer_size", "<u4"), ("apart", "<u4"), ("anchored", "<u4"), ("outer", "<u4"), ("of_inner", "<i4"),
        ("into_inner", "<i4"), ("of_axis", "<i8"), ("into_axis", "<i8"), ("starts", "<u8"), ("taps", "<u8"),
        ("axis", AXIS, (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Pass` of resample.cu."""


def plan_resample(
    axes: Sequence[AxisMap | None],
    rounding: Rounding,
    box: Box,
    dtype: str,
    item: int,
    of_strides: Sequence[int],
    into_strides: Sequence[int],
    of_address: int = 0,
    into_address: int = 0,
) -> list[Step] | None:
    """The steps that fill a box, in order.

    Args:
        axes: one map per dimension; None copies it.
        rounding: of integers.
        box: part of the output; not empty.
        dtype: of input and output, its NumPy name. Only its size matters where elements are gathered.
        item: bytes per element.
        of_strides: of the input, in bytes.
        into_strides: of the output, in bytes; one-to-one.
        of_address: where the input's first element is, at least modulo 16.
        into_address: the same for the output.

    Returns:
        None if our kernels cannot do it: elements not aligned to their size, sums of a type that has no kernel,
        integers that are not to be truncated, very many taps, or more than a launch has room for.
    """
    if alignment([item, of_address, into_address, *of_strides, *into_strides]) < item or item > 16:
        return None
    of, dimensions = 0, list[Dimension]()
    for mapping, (start, stop), of_stride, into_stride in zip(axes, box, of_strides, into_strides, strict=True):
        extent = stop - start
        if mapping is None:
            of += start * of_stride
            dimensions.append(Dimension(extent, into_stride, of_stride))
            continue
        span = span_of(mapping, start, stop)
        taps = taps_of(span)
        if taps is None or taps.most > LONGEST_SUM:
            return None
        first = start - span.start
        if taps.copies and extent == 1:
            of += int(taps.index[first]) * of_stride
            dimensions.append(Dimension(1, into_stride, of_stride))
        else:
            dimensions.append(Dimension(extent, into_stride, of_stride, first, span, taps))
    dimensions = _joined(dimensions)
    if not any(dimension.weighted for dimension in dimensions):
        return _gather(dimensions, item, of, of_address, into_address)
    if dtype not in PASS_TYPES or (dtype not in _FLOATS and rounding is not Rounding.TRUNCATE):
        return None
    if dtype in BLEND_TYPES:
        blended = _blend(dimensions, dtype, item, of, of_address, into_address)
        if blended is not None:
            return [blended]
    return _passes(dimensions, dtype, of)


def _joined(dimensions: list[Dimension]) -> list[Dimension]:
    """In the order of the output's memory, copied dimensions joined with each other where they follow each other."""
    found: list[Dimension] = []
    there = [dimension for dimension in dimensions if dimension.extent != 1 or dimension.span is not None]
    for inner in sorted(there, key=lambda dimension: -abs(dimension.into)):
        outer = found[-1] if found else None
        copied = outer is not None and outer.span is None and inner.span is None
        if outer and copied and (outer.into, outer.of) == (inner.extent * inner.into, inner.extent * inner.of):
            found[-1] = replace(inner, extent=outer.extent * inner.extent)
        else:
            found.append(inner)
    return found


def _take_x(dimensions: list[Dimension], item: int) -> Dimension:
    """Take out the dimension of the rows: the innermost one, with the next one if alone it is too short."""
    long = [dimension for dimension in dimensions if dimension.extent > 1]
    if not long:
        return dimensions.pop() if dimensions else Dimension(1, item, item)
    x = long[-1]
    dimensions.remove(x)
    if x.span is None and x.extent * item < SHORT and len(long) > 1:
        next_one = long[-2]
        follows = (next_one.into, next_one.of) == (x.extent * x.into, x.extent * x.of)
        if follows and next_one.span is not None and outputs_of(next_one.span) * x.extent <= MOST_REPEATED:
            dimensions.remove(next_one)
            return replace(
                next_one,
                extent=next_one.extent * x.extent,
                into=x.into,
                of=x.of,
                start=next_one.start * x.extent,
                repeat=x.extent,
            )
    return x


def _gather(dimensions: list[Dimension], item: int, of: int, of_address: int, into_address: int) -> list[Step] | None:
    dimensions = list(dimensions)
    x = _take_x(dimensions, item)
    y = dimensions.pop() if dimensions else Dimension(1, item, item)
    planes = planes_of(dimensions)
    if planes is None:
        return None
    if item <= 2:
        staged = plan_staged(move_variant(item), x, y, [], planes, item, item, of, of_address, into_address)
        if staged is not None:
            return [staged]
    variant = gather_variant(item)
    slots, columns = -(-x.extent // columns_of(variant)), columns_of(variant)
    rows = ROWS
    while rows > FEWEST_ROWS and slots * planes.count * -(-y.extent // rows) < ENOUGH_BLOCKS * THREADS:
        rows //= 2
    chunks = -(-y.extent // rows)
    rows = -(-y.extent // chunks)
    chunks = -(-y.extent // rows)
    chunks_first = slots >= 32  # then a warp has one chunk or two; narrower planes are better off side by side
    count = slots * chunks * planes.count
    widest = max(x.elements * abs(x.of), x.extent * abs(x.into))
    if max(count, widest, x.extent, y.extent, planes.count) > LARGEST_COUNT:
        return None
    parameters = structure(
        GATHER,
        count=count,
        slots=divisor_row(slots),
        second=divisor_row(chunks if chunks_first else planes.count),
        chunks_first=chunks_first,
        width=x.extent,
        height=y.extent,
        rows=rows,
        vector=writes_words(x, [y.into, *planes.into], columns, item, into_address),
        of_x=x.of,
        into_x=x.into,
        of_y=y.of,
        into_y=y.into,
        **planes.fields,
    )
    tables = {"list_x": x.part(1), "list_y": y.part(1), "lists": planes.lists}
    return [Step(Launch(variant, -(-count // THREADS), THREADS, parameters, of, 0), there(tables))]


def _blend(
    dimensions: list[Dimension], dtype: str, item: int, of: int, of_address: int, into_address: int
) -> Step | None:
    """One launch for all axes; None if there is no such kernel.

    Which axis is blended when depends on the axes alone, so that every box of an output has the same bits: all but the
    two innermost, the outer one of them last.
    """
    dimensions = list(dimensions)
    x = _take_x(dimensions, item)
    weighted = [dimension for dimension in reversed(dimensions) if dimension.weighted]  # innermost first
    for dimension in weighted:
        dimensions.remove(dimension)
    if not weighted:
        y = dimensions.pop() if dimensions else Dimension(1, item, item)
    else:
        y = weighted.pop(0 if x.weighted else min(1, len(weighted) - 1))
        if not x.weighted:
            weighted.reverse()
    taps_x, taps_y = _width(x), _width(y)
    if taps_x is None or taps_y is None or len(weighted) > 2 or any(_width(one) != 2 for one in weighted):
        return None
    if {taps_x, taps_y} == {2, 4}:
        taps_x = taps_y = 4
    planes = 1 << len(weighted)
    if planes > 1 and 4 in (taps_x, taps_y):
        return None
    loops = planes_of(dimensions)
    if loops is None:
        return None
    variant = blend_variant(dtype, taps_x, taps_y, planes)
    staged_item = item if dtype in _FLOATS and planes == 1 else 4  # Staged of resample.cu
    return plan_staged(variant, x, y, weighted, loops, item, staged_item, of, of_address, into_address)


def _width(dimension: Dimension) -> int | None:
    """The taps that a kernel gives every output of a dimension; None if there is no such kernel."""
    if not dimension.weighted:
        return 1
    assert dimension.taps is not None
    if not 1 <= dimension.taps.least <= dimension.taps.most <= 4:
        return None
    return 2 if dimension.taps.most <= 2 else 4


def _passes(dimensions: list[Dimension], dtype: str, of: int) -> list[Step] | None:
    """One pass along each resampled dimension, those that shrink most first; float32 arrays in between."""
    anchored = dtype not in _FLOATS
    # The current array holds so many entries of each dimension, the first of them being entry `low` of the input's.
    low, held = [0] * len(dimensions), [dimension.extent for dimension in dimensions]
    for i, dimension in enumerate(dimensions):
        if dimension.taps is not None:
            low[i], stop = dimension.taps.reads(dimension.start, dimension.start + dimension.extent)
            held[i] = stop - low[i]
    strides = [dimension.of for dimension in dimensions]
    offset = of + sum(first * stride for first, stride in zip(low, strides, strict=True))
    order = sorted(
        (i for i, dimension in enumerate(dimensions) if dimension.span is not None),
        key=lambda i: _growth(dimensions[i]),
    )
    current, steps = dtype, list[Step]()
    for along in order:
        last = along == order[-1]
        made, targets = 0, [dimension.into for dimension in dimensions]
        held[along] = dimensions[along].extent
        if not last:
            made = 4
            for i in reversed(range(len(dimensions))):
                targets[i] = made
                made *= held[i]
        loops = [Loop(*loop) for loop in zip(held, targets, strides, strict=True)]
        # Tables count from the input's first entry.
        first = offset - low[along] * strides[along]
        launch = _pass(loops, along, current, dtype if last else "float32", first, anchored)
        span = dimensions[along].span
        if launch is None or span is None:
            return None
        starts = TablePart(Table((span,), "starts"), dimensions[along].start * 4)
        steps.append(Step(launch, {"starts": starts, "taps": TablePart(Table((span,), "taps"))}, made))
        current, strides, offset = "float32", targets, 0
    return steps


def _growth(dimension: Dimension) -> float:
    assert dimension.span is not None
    return dimension.span.mapping.output_size / dimension.span.mapping.input_size


def _pass(loops: list[Loop], along: int, of_type: str, into_type: str, of: int, anchored: bool) -> Launch | None:
    """The launch that runs along one of the loops."""
    axis = loops[along]
    others = merged([*loops[:along], *loops[along + 1 :]])
    inner = Loop(1, 0, 0)
    along_inner = bool(others) and (abs(others[-1].into) < abs(axis.into) or axis.extent == 1)
    if along_inner:
        inner = others.pop()
    outer_size = math.prod(loop.extent for loop in others)
    apart = -(-(inner.extent if along_inner else outer_size) // PASS_GROUPS)
    count = axis.extent * (apart * outer_size if along_inner else apart)
    widest = inner.extent * max(abs(inner.of), abs(inner.into))
    if len(others) > MOST_OUTER or max(count, widest, outer_size) > LARGEST_COUNT:
        return None
    parameters = structure(
        PASS,
        count=count,
        inner=divisor_row(apart if along_inner else 1),
        outputs=divisor_row(axis.extent),
        along_inner=along_inner,
        inner_size=inner.extent,
        outer_size=outer_size,
        apart=apart,
        anchored=anchored,
        outer=len(others),
        of_inner=inner.of,
        into_inner=inner.into,
        of_axis=axis.of,
        into_axis=axis.into,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    return Launch(pass_variant(of_type, into_type), -(-count // THREADS), THREADS, parameters, of, 0)
