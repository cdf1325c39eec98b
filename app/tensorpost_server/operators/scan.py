"""Running sums and products along lines.

Choices where the pages are silent: FLOAT16 and FLOAT32 are summed and multiplied in float32, in the array library's
order; integers wrap.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import AxisDirection

from ..forms import Array, Lines, cut_by_lines
from ..forms.in_blocks import accumulate
from .registry import form_of_class


@form_of_class(dml.CumulativeSummationOperatorDesc, dml.CumulativeProductOperatorDesc)
def scan_form(desc: dml.CumulativeSummationOperatorDesc | dml.CumulativeProductOperatorDesc) -> Lines | Array:
    """The sum or the product of the elements up to each one (DML_CUMULATIVE_SUMMATION_OPERATOR_DESC)."""
    sums = isinstance(desc, dml.CumulativeSummationOperatorDesc)
    exclusive = desc.has_exclusive_sum if sums else desc.has_exclusive_product
    backward = desc.axis_direction is AxisDirection.DECREASING
    parameters = (("axis", desc.axis), ("sums", sums), ("backward", backward), ("exclusive", exclusive))
    sizes = desc.input_tensor.sizes
    lines = Lines(scan, (desc.axis,), sizes, (sizes,), (parameters,), max(8, desc.input_tensor.item_size))
    return cut_by_lines(lines, desc.output_tensor.effective_strides, desc.output_tensor.dtype.name)


def scan(xp: ModuleType, x: Any, out: Any, axis: int, sums: bool, backward: bool, exclusive: bool) -> None:
    """The sum or the product of the elements up to each one, without itself where it is exclusive."""
    x, out = xp.moveaxis(x, axis, -1), xp.moveaxis(out, axis, -1)
    if backward:
        x, out = x[..., ::-1], out[..., ::-1]
    if exclusive:
        out[..., :1] = 0 if sums else 1
        x, out = x[..., :-1], out[..., 1:]
    wide = "float32" if x.dtype.name == "float16" else x.dtype
    if x.shape[-1]:
        accumulate(xp, x, out, sums=sums, wide=wide)
