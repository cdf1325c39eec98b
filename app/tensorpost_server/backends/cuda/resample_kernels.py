"""How the kernels of resample.cu are used: a box of a resampled tensor as one launch, or as one pass along each axis.

Every dimension of the box is a loop with a stride in the output and one in the input, and those that are resampled have
taps. The loop with the smallest output stride is the row of a thread (x), and one more its column (y).

If every output has a single tap of weight 1, elements are gathered: those of 1 and 2 bytes by staged_resample.py,
larger ones where they are (direct_resample.py, which also blends unsigned bytes linearly along two axes). If there are
at most 4 weighted axes of at most 2 taps each, or 2 axes of at most 4, and what outputs read moves along with them,
staged_resample.py blends them in one launch. Anything else goes axis by axis through arrays of float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...forms import Box
from ...forms.axes import AxisMap
from ...forms.base import coalesced
from ...forms.separable import Rounding
from .dimensions import MOST_OUTER, THREADS, Dimension, Step, TablePart, outputs_of, planes_of
from .direct_resample import plan_bytes, plan_gather
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, ByteLoop, alignment, axis_row, divisor_row, merged
from .launches import ArrayLayout, Launch, structure
from .staged_resample import plan_staged
from .tap_tables import KernelTable, span_of, taps_of
from .variants import BLEND_TYPES, PASS_TYPES, blend_variant, move_variant, pass_variant

PASS_GROUPS = 4  # GROUPS of resample_pass
MOST_REPEATED = 1 << 18  # outputs of an axis joined with the elements behind it
SHORT = 512  # bytes; copied elements fewer than these make no good rows
LONGEST_SUM = 1 << 16  # taps of one output; beyond, one thread would be busy too long

_FLOATS = frozenset({"float32", "float16", "bfloat16"})

PASS = np.dtype(
    [
        ("count", "<u4"), ("inner", DIVISOR), ("outputs", DIVISOR), ("along_inner", "<u4"), ("inner_size", "<u4"),
        ("outer_size", "<u4"), ("apart", "<u4"), ("anchored", "<u4"), ("outer", "<u4"), ("source_inner", "<i4"),
        ("target_inner", "<i4"), ("source_axis", "<i8"), ("target_axis", "<i8"), ("starts", "<u8"), ("taps", "<u8"),
        ("axis", AXIS, (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Pass` of resample.cu."""


def plan_resample(
    axes: Sequence[AxisMap | None], rounding: Rounding, box: Box, dtype: str, x: ArrayLayout, out: ArrayLayout
) -> list[Step] | None:
    """The steps that fill a box, in order.

    Args:
        axes: one map per dimension; None copies it.
        rounding: how sums become integers.
        box: part of the output; not empty.
        dtype: NumPy name of the output's type if sums are made in float32. Only its size matters where elements are
            gathered.
        x: the input array.
        out: the array that holds the box; its strides are one-to-one.

    Returns:
        None if our kernels cannot do it: elements not aligned to their size, sums of a type that has no kernel,
        integers that are not to be truncated, very many taps, more than a launch has room for, or an input of another
        type that is not summed axis by axis as float32.
    """
    item = out.dtype.itemsize
    for array in (x, out):
        if alignment([array.dtype.itemsize, array.address, *array.strides]) < array.dtype.itemsize:
            return None
    if item > 16:
        return None
    source, dimensions = 0, list[Dimension]()
    for mapping, (start, stop), source_stride, target_stride in zip(axes, box, x.strides, out.strides, strict=True):
        extent = stop - start
        if mapping is None:
            source += start * source_stride
            dimensions.append(Dimension(extent, target_stride, source_stride))
            continue
        span = span_of(mapping, start, stop)
        taps = taps_of(span)
        if taps is None or taps.most > LONGEST_SUM:
            return None
        first = start - span.start
        if taps.copies and extent == 1:
            source += int(taps.index[first]) * source_stride
            dimensions.append(Dimension(1, target_stride, source_stride))
        else:
            dimensions.append(Dimension(extent, target_stride, source_stride, first, span, taps))
    dimensions = _joined(dimensions)
    is_same = x.dtype == out.dtype
    if not any(dimension.weighted for dimension in dimensions):
        return None if not is_same else _gather(dimensions, item, source, x.address, out.address)
    if dtype not in PASS_TYPES or (dtype not in _FLOATS and rounding is not Rounding.TRUNCATE):
        return None
    if not is_same:
        return _passes(dimensions, x.dtype.name, dtype, source) if dtype == "float32" else None
    if dtype in BLEND_TYPES:
        blended = _blend(dimensions, dtype, item, source, x.address, out.address)
        if blended is not None:
            return [blended]
    return _passes(dimensions, dtype, dtype, source)


def _joined(dimensions: list[Dimension]) -> list[Dimension]:
    """The dimensions in the order of the output's memory; copied ones that follow each other become one."""
    found: list[Dimension] = []
    kept = [dimension for dimension in dimensions if dimension.extent != 1 or dimension.span is not None]
    kept.sort(key=lambda dimension: -abs(dimension.target))
    for is_copied, group in itertools.groupby(kept, key=lambda dimension: dimension.span is None):
        if is_copied:
            axes = coalesced([(dimension.extent, dimension.target, dimension.source) for dimension in group])
            found += [Dimension(extent, target, source) for extent, target, source in axes]
        else:
            found += group
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
        follows = (next_one.target, next_one.source) == (x.extent * x.target, x.extent * x.source)
        if follows and next_one.span is not None and outputs_of(next_one.span) * x.extent <= MOST_REPEATED:
            dimensions.remove(next_one)
            return replace(
                next_one,
                extent=next_one.extent * x.extent,
                target=x.target,
                source=x.source,
                start=next_one.start * x.extent,
                repeat=x.extent,
            )
    return x


def _gather(
    dimensions: list[Dimension], item: int, source: int, source_address: int, target_address: int
) -> list[Step] | None:
    dimensions = list(dimensions)
    x = _take_x(dimensions, item)
    y = dimensions.pop() if dimensions else Dimension(1, item, item)
    planes = planes_of(dimensions)
    if planes is None:
        return None
    if item <= 2:
        staged = plan_staged(move_variant(item), x, y, [], planes, item, item, source, source_address, target_address)
        if staged is not None:
            return [staged]
    return plan_gather(x, y, planes, item, source, target_address)


def _blend(
    dimensions: list[Dimension], dtype: str, item: int, source: int, source_address: int, target_address: int
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
    if dtype == "uint8" and taps_x == taps_y == 2 and planes == 1:
        direct = plan_bytes(x, y, loops, source, source_address, target_address)
        if direct is not None:
            return direct
    variant = blend_variant(dtype, taps_x, taps_y, planes)
    staged_item = item if dtype in _FLOATS and planes == 1 else 4  # Staged of resample.cu
    return plan_staged(variant, x, y, weighted, loops, item, staged_item, source, source_address, target_address)


def _width(dimension: Dimension) -> int | None:
    """The taps that a kernel gives every output of a dimension; None if there is no such kernel."""
    if not dimension.weighted:
        return 1
    assert dimension.taps is not None
    if not 1 <= dimension.taps.least <= dimension.taps.most <= 4:
        return None
    return 2 if dimension.taps.most <= 2 else 4


def _passes(dimensions: list[Dimension], read: str, dtype: str, source: int) -> list[Step] | None:
    """One pass along each resampled dimension, those that shrink most first; float32 arrays in between.

    Elements of the type `read` become elements of `dtype`.
    """
    anchored = dtype not in _FLOATS
    # The current array's extent of each dimension; its first entry is entry `low` of the input's.
    low, held = [0] * len(dimensions), [dimension.extent for dimension in dimensions]
    for i, dimension in enumerate(dimensions):
        if dimension.taps is not None:
            low[i], stop = dimension.taps.reads(dimension.start, dimension.start + dimension.extent)
            held[i] = stop - low[i]
    strides = [dimension.source for dimension in dimensions]
    offset = source + sum(first * stride for first, stride in zip(low, strides, strict=True))
    order = sorted(
        (i for i, dimension in enumerate(dimensions) if dimension.span is not None),
        key=lambda i: _growth(dimensions[i]),
    )
    current, steps = read, list[Step]()
    for along in order:
        last = along == order[-1]
        made, targets = 0, [dimension.target for dimension in dimensions]
        held[along] = dimensions[along].extent
        if not last:
            made = 4
            for i in reversed(range(len(dimensions))):
                targets[i] = made
                made *= held[i]
        loops = [ByteLoop(*loop) for loop in zip(held, targets, strides, strict=True)]
        # Tables count from the input's first entry.
        first = offset - low[along] * strides[along]
        launch = _pass(loops, along, current, dtype if last else "float32", first, anchored)
        span = dimensions[along].span
        if launch is None or span is None:
            return None
        starts = TablePart(KernelTable((span,), "starts"), dimensions[along].start * 4)
        steps.append(Step(launch, {"starts": starts, "taps": TablePart(KernelTable((span,), "taps"))}, made))
        current, strides, offset = "float32", targets, 0
    return steps


def _growth(dimension: Dimension) -> float:
    assert dimension.span is not None
    return dimension.span.mapping.output_size / dimension.span.mapping.input_size


def _pass(
    loops: list[ByteLoop], along: int, source_type: str, target_type: str, source: int, anchored: bool
) -> Launch | None:
    """The launch that runs along one of the loops."""
    axis = loops[along]
    others = merged([*loops[:along], *loops[along + 1 :]])
    inner = ByteLoop(1, 0, 0)
    along_inner = bool(others) and (abs(others[-1].target) < abs(axis.target) or axis.extent == 1)
    if along_inner:
        inner = others.pop()
    outer_size = math.prod(loop.extent for loop in others)
    apart = -(-(inner.extent if along_inner else outer_size) // PASS_GROUPS)
    count = axis.extent * (apart * outer_size if along_inner else apart)
    widest = inner.extent * max(abs(inner.source), abs(inner.target))
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
        source_inner=inner.source,
        target_inner=inner.target,
        source_axis=axis.source,
        target_axis=axis.target,
        axis=[axis_row(loop) for loop in reversed(others)],
    )
    return Launch(pass_variant(source_type, target_type), -(-count // THREADS), THREADS, parameters, ((0, source),), 0)
