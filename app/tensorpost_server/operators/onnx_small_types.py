"""Cast, quantization, IsInf and IsNaN of ONNX's types of 8 bits or fewer, computed from their codes.

Numbers are quantized in float32, or in what `precision` names: from opset 23 on the type of the scale, as the text
says. Before, and where nothing is rounded otherwise, float16 and bfloat16 are divided in float32, as by ONNX Runtime.
Choices where the text is silent: a zero point of a floating-point type is added and subtracted like any other, and a
quotient that is NaN becomes the integer 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.parameters import BlockedScaleParameters, BroadcastParameters
from tensorpost.values.datatypes import DATA_TYPES, DataType, data_type

from ..forms import Box, BoxFunction, Pointwise
from ..forms.base import whole_box
from ..forms.small_types import codes_of, numbers_of
from .onnx_elementwise import cast, expression_form, infinity_form, twin_form
from .registry import form_of_node

_BLOCK = 1 << 16


@form_of_node("Cast", "CastLike")
def cast_form(node: OnnxNode) -> Pointwise | BoxFunction:
    """Conversion of each element; see `cast`, and `small_types.py` for types of 8 bits or fewer."""
    source, target = node.input.row, node.output.row
    if not (source.is_small or target.is_small):
        form = cast(source.numpy_name, target.numpy_name)
        return expression_form(node, form.expression, types=form.types, wide=form.computed_in)
    parameters = (
        ("source", source.numpy_name),
        ("target", target.numpy_name),
        ("saturate", bool(node.attribute("saturate"))),
        ("round_mode", node.attribute("round_mode") or "up"),
    )
    return BoxFunction(_cast, len(node.tensors), parameters, 4, block=_BLOCK, of_bits=True)


def _cast(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, source: str, target: str, saturate: bool, round_mode: str
) -> None:  # fmt: skip
    numbers = _numbers(xp, _part(inputs[0], box), data_type(source))
    if data_type(target).is_small:
        out[...] = codes_of(xp, numbers, target, saturate=saturate, round_mode=round_mode)
    else:
        _store(xp, numbers, out, target)


def _store(xp: ModuleType, numbers: Any, out: Any, target: str) -> None:
    """Cast float32 or int8 to a type of more than 8 bits; of bfloat16 the output has the bits."""
    if target == "bfloat16":
        out[...] = _bfloat16_bits(xp, numbers.astype("float32")) >> np.uint32(16)
    else:
        cast(numbers.dtype.name, target).fill(xp, [numbers], whole_box(out.shape), out)


def _bfloat16_bits(xp: ModuleType, numbers: Any) -> Any:
    """The bits of float32 rounded to what bfloat16 holds; NaN stays NaN."""
    bits = numbers.view("uint32")
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return xp.where(xp.isnan(numbers), (bits | np.uint32(0x400000)) & np.uint32(0xFFFF0000), near)


def _part(array: Any, box: Box) -> Any:
    return array[(*[slice(*span) for span in box], ...)]  # of rank 0, too, an array and not a number


def _numbers(xp: ModuleType, array: Any, row: DataType) -> Any:
    """The elements in a type that array libraries compute with; those of `ml_dtypes` come as bits."""
    if row.is_small:
        return numbers_of(xp, array, row.numpy_name)
    return (array.astype("uint32") << np.uint32(16)).view("float32") if row.numpy_name == "bfloat16" else array


@form_of_node("IsInf", "IsNaN")
def finite_form(node: OnnxNode) -> Pointwise | BoxFunction:
    """Whether an element is infinite, or none that a number stands for."""
    if not node.input.row.is_small:
        return twin_form(node) if node.op_type == "IsNaN" else infinity_form(node)
    signs = (bool(node.attribute("detect_negative")), bool(node.attribute("detect_positive")))
    parameters = (("source", node.input.data_type), ("signs", None if node.op_type == "IsNaN" else signs))
    return BoxFunction(_is_special, 1, parameters, 2, block=_BLOCK, of_bits=True)


def _is_special(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, source: str, signs: tuple[bool, bool] | None
) -> None:
    numbers = _numbers(xp, _part(inputs[0], box), data_type(source))
    if signs is None:
        out[...] = xp.isnan(numbers)
    else:
        negative, positive = signs
        out[...] = (xp.isneginf(numbers) & negative) | (xp.isposinf(numbers) & positive)


def needs_codes(node: OnnxNode) -> bool:
    """Whether a quantization is of a type of 8 bits or fewer, or is divided in another type than float32."""
    tensors = [tensor for _, tensor in (*node.tensors, *node.results)]
    return any(tensor.row.is_small for tensor in tensors) or precision_of(node) != "float32"


def precision_of(node: OnnxNode) -> str:
    """NumPy name of the type that a node divides in."""
    scale = dict(node.tensors).get("y_scale")
    if scale is None or node.schema.since_version < 23:
        return "float32"
    code = node.attribute("precision")
    if code:
        return next(row.numpy_name for row in DATA_TYPES if row.onnx_code == code)
    return scale.data_type if scale.data_type in ("float16", "bfloat16") else "float32"


def quantize_codes_form(node: OnnxNode) -> BoxFunction:
    """`round(x / scale) + zero`, limited to the output's type; see `needs_codes`."""
    saturate = node.attribute("saturate")
    parameters = (
        *_parameters(node),
        ("precision", precision_of(node)),
        ("saturate", saturate is None or bool(saturate)),
    )
    return BoxFunction(_quantize, len(node.tensors), parameters, 6, block=_BLOCK, of_bits=True)


def dequantize_codes_form(node: OnnxNode) -> BoxFunction:
    """`(x - zero) * scale`; see `needs_codes`."""
    return BoxFunction(_dequantize, len(node.tensors), _parameters(node), 4, block=_BLOCK, of_bits=True)


def _parameters(node: OnnxNode) -> tuple[tuple[str, Any], ...]:
    axis = block = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    if isinstance(node.meaning, BlockedScaleParameters):
        axis, block = node.meaning.axis, node.meaning.block
    else:
        sizes = node.parameters_as(BroadcastParameters).input_sizes
    names = tuple([tensor.data_type for _, tensor in (*node.tensors, *node.results)])
    return ("types", names), ("sizes", sizes), ("axis", axis), ("block", block)


def _operands(
    xp: ModuleType, inputs: Sequence[Any], box: Box, types: tuple[str, ...], sizes: tuple[tuple[int, ...], ...],
    axis: int, block: int,
) -> list[Any]:  # fmt: skip
    """The elements of a box, and what of the scales and zero points belongs to them, in float32."""
    found: list[Any] = []
    for place, array in enumerate(inputs):
        row, part, spreads = data_type(types[place]), [slice(*span) for span in box], bool(block and place)
        if spreads:
            part[axis] = slice(None)
        elif sizes:
            part = [slice(0, 1) if n == 1 else at for n, at in zip(sizes[place], part, strict=True)]
        own = array.reshape(sizes[place]) if sizes else array
        read = _numbers(xp, own[(*part, ...)], row).astype("float32")
        found.append(xp.take(read, xp.arange(*box[axis]) // block, axis=axis) if spreads else read)
    return found


def _quantize(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, types: tuple[str, ...],
    sizes: tuple[tuple[int, ...], ...], axis: int, block: int, precision: str, saturate: bool,
) -> None:  # fmt: skip
    x, scale, *zero = _operands(xp, inputs, box, types, sizes, axis, block)
    if precision == "float64":
        x = x.astype(precision)
    quotient = _rounded(xp, _rounded(xp, x, precision) / _rounded(xp, scale, precision), precision)
    target = data_type(types[-1])
    if target.kind == "f":
        out[...] = codes_of(xp, quotient + zero[0] if zero else quotient, target.numpy_name, saturate=saturate)
        return
    whole = xp.rint(xp.nan_to_num(quotient, nan=0.0))
    low, high = target.limits
    whole = xp.clip(whole + zero[0] if zero else whole, low, high)
    out[...] = codes_of(xp, whole, target.numpy_name) if target.is_small else whole


def _rounded(xp: ModuleType, numbers: Any, precision: str) -> Any:
    """Numbers that a type has, as float32."""
    if precision == "float16":
        return numbers.astype("float16").astype("float32")
    if precision == "bfloat16":
        return _bfloat16_bits(xp, numbers).view("float32")
    return numbers


def _dequantize(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, types: tuple[str, ...],
    sizes: tuple[tuple[int, ...], ...], axis: int, block: int,
) -> None:  # fmt: skip
    x, scale, *zero = _operands(xp, inputs, box, types, sizes, axis, block)
    real = (x - zero[0] if zero else x) * scale
    _store(xp, real, out, types[-1])
