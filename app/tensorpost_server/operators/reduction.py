"""Reductions and selections along lines.

Choices where the pages are silent: sums of FLOAT16 and FLOAT32 are made in float32, pairwise as NumPy's are, or no less
exactly; integers wrap; NaN is the largest in TOP_K and TOP_K1, what ARGMIN and ARGMAX find, and passes through MAX and
MIN; LOG_SUM_EXP subtracts the largest element first.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import AxisDirection, ReduceFunction

from ..forms import Lines
from ..forms.base import go_on
from ..forms.in_blocks import in_blocks
from .registry import form_of_class

SORTED = 1 << 20  # elements of a line that are sorted at a time


@form_of_class(dml.ReduceOperatorDesc)
def reduce_form(desc: dml.ReduceOperatorDesc) -> Lines:
    """One value for each line, which may run along several axes (DML_REDUCE_OPERATOR_DESC)."""
    axes = tuple(sorted(set(desc.axes)))
    parameters = (("axes", axes), ("function", desc.function))
    item = desc.input_tensor.item_size
    temporaries = {
        ReduceFunction.L1: 1, ReduceFunction.L2: 1, ReduceFunction.SUM_SQUARE: 1, ReduceFunction.LOG_SUM_EXP: 3,
    }  # fmt: skip
    scratch = max(4, item) * temporaries.get(desc.function, 0) + (4 if item == 2 or desc.function.is_index else 0)
    return Lines(
        reduce_lines, axes, desc.input_tensor.sizes, (desc.output_tensor.sizes,), (parameters,), scratch,
        reduction=desc.function.name,
    )  # fmt: skip


def reduce_lines(xp: ModuleType, x: Any, out: Any, axes: tuple[int, ...], function: ReduceFunction) -> None:
    """Reduce the axes of an array, which stay as sizes of 1."""
    if function.is_index:
        positions(xp, x, out, axes, smallest=function is ReduceFunction.ARGMIN, last=False)
        return
    wide = "float32" if x.dtype.name in ("float16", "bfloat16") else x.dtype
    if function in (ReduceFunction.MAX, ReduceFunction.MIN):
        out[...] = (xp.max if function is ReduceFunction.MAX else xp.min)(x, axis=axes, keepdims=True)
        return
    summed = (ReduceFunction.SUM, ReduceFunction.AVERAGE, ReduceFunction.LOG_SUM, ReduceFunction.MULTIPLY)
    if xp is np or function not in summed:
        x = x.astype(wide, copy=False)  # CuPy widens while it sums; NumPy does so by pieces, whose sums are less exact
    total = {"axis": axes, "keepdims": True, "dtype": wide}
    match function:
        case ReduceFunction.SUM:
            out[...] = xp.sum(x, **total)
        case ReduceFunction.AVERAGE:
            out[...] = xp.sum(x, **total) / np.dtype(wide).type(x.size // out.size)
        case ReduceFunction.MULTIPLY:
            out[...] = xp.prod(x, **total)
        case ReduceFunction.L1:
            out[...] = xp.sum(in_blocks(xp, xp.abs, xp.empty_like(x), x), **total)
        case ReduceFunction.SUM_SQUARE:
            out[...] = xp.sum(in_blocks(xp, xp.square, xp.empty_like(x), x), **total)
        case ReduceFunction.L2:
            out[...] = xp.sqrt(xp.sum(in_blocks(xp, xp.square, xp.empty_like(x), x), **total))
        case ReduceFunction.LOG_SUM:
            out[...] = xp.log(xp.sum(x, **total))
        case _:
            largest = xp.max(x, axis=axes, keepdims=True)
            shift = xp.where(xp.isfinite(largest), largest, largest.dtype.type(0))
            kind = xp.exp(shift.reshape(-1)[:1]).dtype  # float64 of integers
            powers = in_blocks(xp, xp.subtract, xp.empty(x.shape, kind), x, shift)
            in_blocks(xp, xp.exp, powers, powers)
            out[...] = xp.log(xp.sum(powers, **total)) + shift


@form_of_class(dml.ArgminOperatorDesc, dml.ArgmaxOperatorDesc)
def position_form(desc: dml.ArgminOperatorDesc | dml.ArgmaxOperatorDesc) -> Lines:
    """Where the smallest or the largest element is, the first or the last of equal ones (DML_ARGMIN_OPERATOR_DESC)."""
    axes = tuple(sorted(set(desc.axes)))
    smallest, last = isinstance(desc, dml.ArgminOperatorDesc), desc.axis_direction is AxisDirection.DECREASING
    parameters = (("axes", axes), ("smallest", smallest), ("last", last))
    scratch = desc.input_tensor.item_size + 4
    return Lines(positions, axes, desc.input_tensor.sizes, (desc.output_tensor.sizes,), (parameters,), scratch)


def positions(xp: ModuleType, x: Any, out: Any, axes: tuple[int, ...], smallest: bool, last: bool) -> None:
    """Where the smallest or the largest element of each line is, counted in row-major order of the axes."""
    # The lines as the last axis, row-major over the reduced dimensions.
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    lines = x.transpose([*kept, *axes]).reshape([*[x.shape[axis] for axis in kept], -1])
    found = (xp.argmin if smallest else xp.argmax)(xp.flip(lines, -1) if last else lines, axis=-1)
    out[...] = (lines.shape[-1] - 1 - found if last else found).reshape(out.shape)


@form_of_class(dml.TopKOperatorDesc, dml.TopK1OperatorDesc)
def top_k_form(desc: dml.TopKOperatorDesc | dml.TopK1OperatorDesc) -> Lines:
    """Values and positions of each line in order, the first K of them (DML_TOP_K1_OPERATOR_DESC)."""
    largest = isinstance(desc, dml.TopKOperatorDesc) or desc.axis_direction is AxisDirection.DECREASING
    common = (("axis", desc.axis), ("k", desc.k), ("largest", largest))
    sizes = desc.output_value_tensor.sizes
    parameters = ((*common, ("positions", False)), (*common, ("positions", True)))
    return Lines(top_k, (desc.axis,), desc.input_tensor.sizes, (sizes, sizes), parameters, 40)


def top_k(xp: ModuleType, x: Any, out: Any, axis: int, k: int, largest: bool, positions: bool) -> None:
    """The first k elements of each line in order, or where they are."""
    # Equal elements keep their order in a stable sort; for the largest first the line is sorted from its end.
    lines = xp.flip(x, axis) if largest else x
    order = _first_in_order(xp, lines, axis, k, largest=largest)
    if largest:
        order = x.shape[axis] - 1 - order
    out[...] = order if positions else xp.take_along_axis(x, order, axis)


def _first_in_order(xp: ModuleType, lines: Any, axis: int, k: int, *, largest: bool) -> Any:
    """Where the first k elements of each line are, in ascending order, or the last k in descending order."""

    def first(order: Any) -> Any:
        order = xp.flip(order, axis) if largest else order
        return order[tuple([slice(0, k) if at == axis else slice(None) for at in range(lines.ndim)])]

    length = lines.shape[axis]
    if xp is not np or length <= 2 * SORTED or 4 * k > SORTED:
        return first(xp.argsort(lines, axis=axis, kind="stable"))
    # Those of the whole line are among those of its parts, whose order among equals is that of the line.
    found: list[Any] = []
    for start in range(0, length, SORTED):
        go_on()
        part = lines[tuple([slice(start, start + SORTED) if at == axis else slice(None) for at in range(lines.ndim)])]
        found.append(start + first(np.argsort(part, axis=axis, kind="stable")))
    places = np.sort(np.concatenate(found, axis=axis), axis=axis)
    values = np.take_along_axis(lines, places, axis)
    return np.take_along_axis(places, first(np.argsort(values, axis=axis, kind="stable")), axis)
