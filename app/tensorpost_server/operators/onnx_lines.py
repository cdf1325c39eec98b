"""ONNX's softmax, reductions, selections, scans, products and quantization.

Where the text is silent: sums of float16 and bfloat16 are made in float32 and rounded once; sums of integers wrap; a
mean or a root of them is truncated, but right where the type holds it, even if it does not hold the sum; NaN is the
largest in TopK, and what ArgMax and ArgMin find.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.descriptors import ReduceFunction
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.parameters import (
    AxesParameters,
    BlockedScaleParameters,
    GemmParameters,
    MatMulParameters,
    PositionParameters,
    ScanParameters,
    TopKParameters,
)
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import packed_strides

from ..forms import Array, Box, BoxFunction, Form, Lines, Pointwise, SqueezedLines, cut_by_lines, whole_box
from ..forms.expression import Expression, call, maximum, minimum, operand
from ..forms.float16 import wide
from ..forms.in_blocks import in_blocks
from .onnx_elementwise import expression_form
from .onnx_movement import packed_form
from .onnx_small_types import dequantize_codes_form, needs_codes, quantize_codes_form
from .product import gemm
from .reduction import positions, reduce_lines, top_k
from .registry import form_of_node
from .scan import scan
from .softmax import hardmax_lines, softmax_lines


@form_of_node("Softmax", "LogSoftmax", "Hardmax")
def softmax_form(node: OnnxNode) -> Lines | Array:
    """Softmax, LogSoftmax or Hardmax along the axes together."""
    axes = node.parameters_as(AxesParameters).axes
    if node.op_type == "Hardmax":
        return _uncut(node, hardmax_lines(node.input.shape, axes))
    return _uncut(node, softmax_lines(node.input.shape, axes, logarithm=node.op_type == "LogSoftmax"))


def _uncut(node: OnnxNode, lines: Lines) -> Lines | Array:
    """The form itself, or one that makes the output as a whole; see `cut_by_lines`."""
    return cut_by_lines(lines, packed_strides(node.output.shape), node.output.row.numpy_name)


_REDUCTIONS = {
    "ReduceL1": ReduceFunction.L1, "ReduceL2": ReduceFunction.L2, "ReduceLogSum": ReduceFunction.LOG_SUM,
    "ReduceLogSumExp": ReduceFunction.LOG_SUM_EXP, "ReduceMax": ReduceFunction.MAX,
    "ReduceMean": ReduceFunction.AVERAGE, "ReduceMin": ReduceFunction.MIN, "ReduceProd": ReduceFunction.MULTIPLY,
    "ReduceSum": ReduceFunction.SUM, "ReduceSumSquare": ReduceFunction.SUM_SQUARE,
}  # fmt: skip


@form_of_node(*_REDUCTIONS)
def reduce_form(node: OnnxNode) -> Form:
    """One value for each line, which may run along several axes; for an empty line, the identity element."""
    axes, function = node.parameters_as(AxesParameters).axes, _REDUCTIONS[node.op_type]
    if not axes and function in (ReduceFunction.MAX, ReduceFunction.MIN):
        return packed_form(node)
    item = 8 if node.input.row.kind in "iu" else node.input.row.item_size
    parameters, scratch = (("axes", axes), ("function", function)), 3 * max(4, item)
    return _lines(node, _reduce, axes, parameters, scratch, reduction=function.name)


def _reduce(xp: ModuleType, x: Any, out: Any, axes: tuple[int, ...], function: ReduceFunction) -> None:
    if x.size and x.dtype.kind in "iu" and function is ReduceFunction.AVERAGE:
        out[...] = _whole_mean(xp, x, axes)
    elif x.size and x.dtype.kind in "iu" and function is ReduceFunction.L2:
        wide = x.astype("float64")
        out[...] = xp.sqrt(xp.sum(in_blocks(xp, xp.square, wide, wide), axis=axes, keepdims=True))
    elif x.size:
        reduce_lines(xp, x, out, axes, function)
    elif function in (ReduceFunction.MAX, ReduceFunction.MIN):
        lowest: Any = -np.inf
        highest: Any = np.inf
        if out.dtype.kind == "b":
            lowest, highest = False, True
        elif out.dtype.kind in "iu":
            lowest, highest = np.iinfo(out.dtype).min, np.iinfo(out.dtype).max
        out[...] = lowest if function is ReduceFunction.MAX else highest
    else:
        logarithms = dict.fromkeys((ReduceFunction.LOG_SUM, ReduceFunction.LOG_SUM_EXP), -np.inf)
        value = {ReduceFunction.MULTIPLY: 1, ReduceFunction.AVERAGE: np.nan, **logarithms}.get(function, 0)
        out[...] = value if np.isfinite(value) or out.dtype.kind not in "iu" else 0


def _whole_mean(xp: ModuleType, x: Any, axes: tuple[int, ...]) -> Any:
    """The exact mean of integers, truncated: of the upper and lower halves of 64 bits, whose sums fit."""
    wide = "uint64" if x.dtype == np.uint64 else "int64"
    x, half = x.astype(wide, copy=False), np.dtype(wide).type(32)
    total = {"axis": axes, "keepdims": True, "dtype": wide}
    upper, lower = xp.sum(x >> half, **total), xp.sum(x & np.dtype(wide).type(0xFFFFFFFF), **total)
    count = np.dtype(wide).type(x.size // upper.size)
    rest = ((upper % count) << half) + lower
    mean = ((upper // count) << half) + rest // count
    return mean + ((mean < 0) & (rest % count != 0))  # floored so far


@form_of_node("ArgMax", "ArgMin")
def position_form(node: OnnxNode) -> Form:
    """Where the largest or the smallest element is, the first or the last of equal ones."""
    parameters = (*node.meaning.named(), ("smallest", node.op_type == "ArgMin"))
    axes = node.parameters_as(PositionParameters).axes
    return _lines(node, positions, axes, parameters, node.input.row.item_size + 8)


def _lines(
    node: OnnxNode, function: Any, axes: tuple[int, ...], parameters: tuple[Any, ...], scratch: int, reduction: str = ""
) -> Form:
    """Lines whose axes stay as sizes of 1, or are dropped."""
    shape = node.input.shape
    kept = tuple([1 if axis in axes else size for axis, size in enumerate(shape)])
    lines = Lines(function, axes, shape, (kept,), (parameters,), scratch, reduction=reduction)
    if node.output.shape == kept:
        return lines
    return SqueezedLines(lines)


@form_of_node("TopK")
def top_k_form(node: OnnxNode) -> Lines:
    """Values and positions of each line in order, the first K of them."""
    sizes = node.output.shape
    parameters = [(*node.meaning.named(), ("positions", which)) for which in (False, True)]
    return Lines(
        top_k, (node.parameters_as(TopKParameters).axis,), node.input.shape, (sizes,) * len(node.results),
        tuple(parameters[: len(node.results)]), 40,
    )  # fmt: skip


@form_of_node("CumSum", "CumProd")
def scan_form(node: OnnxNode) -> Lines | Array:
    """The sum or the product of the elements up to each one."""
    shape, axis = node.input.shape, node.parameters_as(ScanParameters).axis
    parameters = (*node.meaning.named(), ("sums", node.op_type == "CumSum"))
    return _uncut(node, Lines(scan, (axis,), shape, (shape,), (parameters,), max(8, node.input.row.item_size)))


# ---- products --------------------------------------------------------------------------------------------------------


def _product_scratch(node: OnnxNode) -> int:
    """Operands and sums in the type that they are multiplied in."""
    elements = [tensor.element_count for _, tensor in (*node.tensors, *node.results)]
    return max(4, node.output.row.item_size) * (sum(elements) + elements[-1])


@form_of_node("Gemm")
def gemm_form(node: OnnxNode) -> BoxFunction:
    """`alpha * A' x B' + beta * C`, C broadcast."""
    p = node.parameters_as(GemmParameters)
    parameters = (("transposed", p.transposed), ("alpha", p.alpha), ("beta", p.beta), ("shape", node.output.shape))
    return BoxFunction(_gemm, len(node.tensors), parameters, 2 * p.inner, scratch=_product_scratch(node))


def _gemm(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    transposed: tuple[bool, bool],
    alpha: float,
    beta: float,
    shape: tuple[int, int],
) -> None:
    operands = [wide(xp, x) for x in inputs[:2]]
    if operands[0].dtype.kind in "iu" and (alpha, beta) != (1.0, 1.0):
        operands = [x.astype("float64") for x in operands]
    summands = [xp.broadcast_to(wide(xp, c), shape).astype(operands[0].dtype) for c in inputs[2:]]
    gemm(xp, [*operands, *summands], box, out, transposed, alpha, beta, None)


@form_of_node("MatMul", "MatMulInteger")
def matmul_form(node: OnnxNode) -> BoxFunction:
    """NumPy's matmul; integers of MatMulInteger less their zero points, exactly in int32."""
    p = node.parameters_as(MatMulParameters)
    parameters = (("whole", p.whole), ("zeros", p.zeros))
    return BoxFunction(_matmul, len(node.tensors), parameters, 2 * p.inner, scratch=_product_scratch(node))


def _matmul(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, whole: tuple[int, ...], zeros: tuple[str, ...] | None
) -> None:
    a, b = [wide(xp, x) for x in inputs[:2]]
    if zeros is not None:
        a, b = a.astype("int32"), b.astype("int32")
        for name, zero in zip(zeros, inputs[2:], strict=True):
            number = zero.astype("int32")
            if name == "a_zero_point":
                a = a - (number.reshape(-1, 1) if number.size > 1 else number.reshape(-1)[0])
            else:
                b = b - number.reshape(-1)
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    spans = iter(box)
    leading = [slice(*next(spans)) for _ in whole[:-2]]
    rows = slice(0, 1) if a.ndim == 1 else slice(*next(spans))
    columns = slice(0, 1) if b.ndim == 1 else slice(*next(spans))
    left = xp.broadcast_to(left, (*whole[:-2], *left.shape[-2:]))[(*leading, rows)]
    right = xp.broadcast_to(right, (*whole[:-2], *right.shape[-2:]))[(*leading, slice(None), columns)]
    out[...] = xp.matmul(left, right).reshape(out.shape)


# ---- quantization ----------------------------------------------------------------------------------------------------


@form_of_node("QuantizeLinear")
def quantize_form(node: OnnxNode) -> Form:
    """`round(x / scale) + zero`, halves to even, limited to the output's type."""
    if needs_codes(node):
        return quantize_codes_form(node)
    limits = np.iinfo(data_type(node.output.data_type).dtype)
    whole = call("rint", operand(0) / operand(1))
    whole = whole + operand(2) if len(node.tensors) > 2 else whole
    return _scaled(node, maximum(minimum(whole, int(limits.max)), int(limits.min)))


@form_of_node("DequantizeLinear")
def dequantize_form(node: OnnxNode) -> Form:
    """`(x - zero) * scale`."""
    if needs_codes(node):
        return dequantize_codes_form(node)
    real = operand(0) - operand(2) if len(node.tensors) > 2 else operand(0)
    return _scaled(node, real * operand(1))


def _scaled(node: OnnxNode, expression: Expression) -> Form:
    """An expression in float32; with a scale for each block along an axis, of elements whose scales are taken first."""
    types = ("float32",) * len(node.tensors)
    if not isinstance(node.meaning, BlockedScaleParameters):
        return expression_form(node, expression, types=types)
    parameters = (*node.meaning.named(), ("form", Pointwise(expression, types, "float32")))
    return BoxFunction(_by_blocks, len(node.tensors), parameters, 2, block=1 << 16)


def _by_blocks(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int, block: int, form: Pointwise
) -> None:
    part = [slice(*span) for span in box]
    x = inputs[0][tuple(part)]
    part[axis] = slice(None)
    which = xp.arange(*box[axis]) // block
    scales = [xp.take(scale[tuple(part)], which, axis=axis) for scale in inputs[1:]]
    form.fill(xp, [x, *scales], whole_box(x.shape), out)


@form_of_node("DynamicQuantizeLinear")
def quantize_dynamically_form(node: OnnxNode) -> Array:
    """uint8 by a scale and a zero point that hold 0 and all elements."""
    count = node.input.element_count
    return Array(_quantize_dynamically, 1, 8 * count, (), 12 * count)


def _quantize_dynamically(xp: ModuleType, x: Any) -> tuple[Any, Any, Any]:
    low = xp.minimum(xp.min(x), 0) if x.size else x.dtype.type(0)
    high = xp.maximum(xp.max(x), 0) if x.size else x.dtype.type(0)
    scale = ((high - low) / 255).astype("float32")
    divisor = xp.where(scale == 0, xp.float32(1), scale)
    zero = xp.clip(xp.rint(-low / divisor), 0, 255)

    def quantized(x: Any) -> Any:
        return xp.clip(xp.rint(x / divisor) + zero, 0, 255)

    y = in_blocks(xp, quantized, xp.empty(x.shape, "uint8"), x)
    return y, scale, zero.astype("uint8")
