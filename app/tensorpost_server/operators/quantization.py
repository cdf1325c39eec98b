"""Quantization: expressions, where every tensor has the output's sizes or 1, and blocks or 4-bit elements elsewhere.

Choices where the pages are silent: numbers are quantized in float32, FLOAT16 too, halves to the even integer; a scale
and a zero point are those of a block of neighbours, as many as the sizes say.

DirectML's answers decide: an absent zero point is 0, but the middle of the range of UINT8 and UINT4 in QUANTIZE and
DEQUANTIZE; integers of 32 bits become float32 before the zero point is subtracted; a quotient that is NaN becomes the
least integer (0 in some layouts of INT8 in ELEMENT_WISE_QUANTIZE_LINEAR, which is not followed); the range that
DYNAMIC_QUANTIZE_LINEAR finds is that of 0 and all elements but NaN.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc
from tensorpost.values.datatypes import TensorDataType

from ..forms import Array, BoxFunction, Pointwise
from ..forms.base import whole_box
from ..forms.blockwise import BlockSource, blockwise, to_four_bits
from ..forms.expression import Expression, ExpressionLike, call, minimum, operand, where
from ..forms.in_blocks import in_blocks
from .registry import form_of_class

LIMITS = {
    TensorDataType.UINT8: (0, 255), TensorDataType.INT8: (-128, 127), TensorDataType.UINT4: (0, 15),
    TensorDataType.INT4: (-8, 7),
}  # fmt: skip


def quantized(x: Expression, scale: Expression, zero_point: ExpressionLike, integer: TensorDataType) -> Expression:
    """`clamp(round(x / scale) + zero_point)`; of a quotient that is NaN the least integer."""
    low, high = LIMITS[integer]
    whole = call("rint", x / scale) + zero_point
    return where(whole > low, minimum(whole, high), low)


@form_of_class(dml.ElementWiseQuantizeLinearOperatorDesc, dml.QuantizeOperatorDesc)
def quantize_form(desc: Any) -> Pointwise | BoxFunction | Array:
    """`clamp(round(x / Scale) + ZeroPoint)` (DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC)."""
    integer = desc.output_tensor.data_type
    x, scale, zero_point = _operands(desc, integer)
    return _form(desc, quantized(x, scale, zero_point, integer))


@form_of_class(dml.ElementWiseDequantizeLinearOperatorDesc, dml.DequantizeOperatorDesc)
def dequantize_form(desc: Any) -> Pointwise | BoxFunction | Array:
    """`(x - ZeroPoint) * Scale` (DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC)."""
    x, scale, zero_point = _operands(desc, desc.input_tensor.data_type)
    return _form(desc, (x - zero_point) * scale)


def _operands(desc: OperatorDesc, integer: TensorDataType) -> tuple[Expression, Expression, ExpressionLike]:
    x, scale, *zero_point = [operand(index) for index in range(len(desc.inputs))]
    middle = isinstance(desc, dml.BlockQuantization) and integer.name.startswith("U")
    return x, scale, zero_point[0] if zero_point else float(1 << integer.bits - 1 if middle else 0)


def _form(desc: OperatorDesc, expression: Expression) -> Pointwise | BoxFunction | Array:
    tensors, output = [tensor for _, tensor in desc.tensors("input")], desc.tensors("output")[0][1]
    form = Pointwise(expression, ("float32",) * len(tensors), "float32")
    four_bits = any(tensor.data_type.bits == 4 for tensor in (*tensors, output))
    if not four_bits and all(
        size in (1, whole) for tensor in tensors for size, whole in zip(tensor.sizes, output.sizes, strict=True)
    ):
        return form
    by_blocks = blockwise(form, tuple([_source(tensor, output.sizes) for tensor in tensors]))
    if output.data_type.bits > 4:
        return by_blocks
    size_in_bytes, signed = desc.outputs[0].layout.size_in_bytes, output.data_type.name == "INT4"
    return to_four_bits(by_blocks, output.sizes, output.effective_strides, size_in_bytes, signed=signed)


def _source(tensor: BufferTensorDesc, sizes: tuple[int, ...]) -> BlockSource:
    blocks = tuple([size // own for size, own in zip(sizes, tensor.sizes, strict=True)])
    strides = tensor.effective_strides if tensor.data_type.bits == 4 else None
    return BlockSource(tensor.sizes, blocks, strides, tensor.data_type is TensorDataType.INT4)


@form_of_class(dml.ElementWiseQuantizedLinearAddOperatorDesc)
def quantized_add_form(desc: dml.ElementWiseQuantizedLinearAddOperatorDesc) -> Pointwise:
    """The sum of `(x - ZeroPoint) * Scale`, quantized (DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC)."""
    place = {path[0]: operand(index) for index, (path, _) in enumerate(desc.tensors("input"))}
    a, b = [
        (place[of + "_tensor"] - place.get(of + "_zero_point_tensor", 0.0)) * place[of + "_scale_tensor"] for of in "ab"
    ]
    zero_point = place.get("output_zero_point_tensor", 0.0)
    made = quantized(a + b, place["output_scale_tensor"], zero_point, desc.output_tensor.data_type)
    return Pointwise(made, ("float32",) * len(place), "float32")


@form_of_class(dml.DynamicQuantizeLinearOperatorDesc)
def dynamic_form(desc: dml.DynamicQuantizeLinearOperatorDesc) -> Array:
    """Quantized with the range of all elements and 0 (DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC)."""
    integer = desc.output_tensor.data_type
    made = quantized(operand(0), operand(1), operand(2), integer)
    parameters = (("form", Pointwise(made, ("float32",) * 3, "float32")), ("integer", integer))
    count = math.prod(desc.input_tensor.sizes)
    return Array(_dynamic, 1, 3 * count, parameters, count * (1 + desc.input_tensor.item_size))


def _dynamic(xp: ModuleType, x: Any, form: Pointwise, integer: TensorDataType) -> tuple[Any, Any, Any]:
    low, high = LIMITS[integer]
    zero, ones = np.float32(0), (1,) * x.ndim

    def numbers_of(x: Any) -> Any:
        return xp.where(xp.isnan(x), x.dtype.type(0), x)

    numbers = in_blocks(xp, numbers_of, xp.empty_like(x), x)
    least = xp.minimum(numbers.min().astype("float32"), zero)
    scale = (xp.maximum(numbers.max().astype("float32"), zero) - least) / np.float32(high - low)
    below = least / scale
    zero_point = xp.clip(xp.rint(low - xp.where(xp.isnan(below), zero, below)), low, high).astype(integer.name.lower())
    made = xp.empty(x.shape, zero_point.dtype)
    form.fill(xp, [x, xp.broadcast_to(scale, x.shape), xp.broadcast_to(zero_point, x.shape)], whole_box(x.shape), made)
    return made, scale.reshape(ones), zero_point.reshape(ones)
