"""ONNX's reductions, selections, scans, products and quantization; a row of `LINES` for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..values.problems import counted
from ..values.sentences import named
from .directml_twins import (
    DirectmlTwin,
    descriptor,
    mapped,
    packed,
    padded,
    require_floats,
    shifted,
    spread,
    untranslated,
)
from .inference_context import InferenceContext, InferredOutputs
from .inferred_node import InferredNode
from .movement_shapes import type_of_code
from .operator_row import OperatorRow
from .parameters import (
    AxesParameters,
    BlockedScaleParameters,
    BroadcastParameters,
    GemmParameters,
    MatMulParameters,
    PositionParameters,
    ScanParameters,
    TopKParameters,
)
from .tensor import OnnxTensor, Shape

if TYPE_CHECKING:
    from ..descriptors import BufferTensorDesc, OperatorDesc

__all__ = ["LINES"]

_NO_INTEGERS = "DirectML's GEMM takes float32 and float16"


def _without(shape: Shape, axes: tuple[int, ...], *, keep: bool) -> Shape:
    if keep:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduced(context: InferenceContext) -> InferredOutputs:
    """Shape of a reduction; without axes along all of them, or along none with `noop_with_empty_axes`."""
    shape = context.first.shape
    axes = context.axes("axes", len(shape)) or ()
    if not axes and not context.attributes.get("noop_with_empty_axes"):
        axes = tuple(range(len(shape)))
    output = _without(shape, axes, keep=bool(context.attributes["keepdims"]))
    return InferredOutputs([output], AxesParameters(tuple(sorted(axes))))


def _position(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    axis = context.axis("axis", len(shape), 0)
    if shape[axis] == 0:
        context.refuse("shape", ("inputs", "data"), f"axis {axis} has no element", list(shape), "at least one")
    last = bool(context.attributes.get("select_last_index"))
    output = _without(shape, (axis,), keep=bool(context.attributes["keepdims"]))
    return InferredOutputs([output], PositionParameters((axis,), last))


def _top_k(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    axis = context.axis("axis", len(shape), -1)
    name = "k" if context.since == 1 else "K"
    k, least = context.integer(name), int(context.since == 1)  # ONNX's own inference refuses an attribute of 0
    if not least <= k <= shape[axis]:
        message = f"there are no {k} elements along axis {axis}" if k else "TopK-1 takes one element or more"
        context.refuse("value", context.place(name), message, k, f"{least} to {shape[axis]}")
    output = (*shape[:axis], k, *shape[axis + 1 :])
    largest = bool(context.attributes.get("largest", 1))
    return InferredOutputs([output, output], TopKParameters(axis, k, largest))


def _scanned(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    backward, exclusive = (bool(context.attributes[name]) for name in ("reverse", "exclusive"))
    axis = context.axis("axis", len(shape))
    return InferredOutputs([shape], ScanParameters(axis, backward, exclusive))


def _gemm(context: InferenceContext) -> InferredOutputs:
    a, b, *c = context.shapes
    if len(a) != 2 or len(b) != 2:
        context.refuse("rank", ("inputs",), "A and B must be matrices", [list(a), list(b)], "2 dimensions")
    transposed = bool(context.attributes["transA"]), bool(context.attributes["transB"])
    (rows, inner), (other, columns) = a[::-1] if transposed[0] else a, b[::-1] if transposed[1] else b
    if inner != other:
        left, right = [f"{name}, transposed," if by else name for name, by in zip("AB", transposed, strict=True)]
        message = f"{left} has {counted(inner, 'column')} and {right} has {counted(other, 'row')}; they must be equal"
        context.refuse("shapes-differ", ("inputs", "B"), message, [list(a), list(b)], "an equal inner size")
    output = (rows, columns)
    for shape in c:
        small = (1,) * (2 - len(shape)) + shape
        broadcasts = context.since >= 7 or context.attributes.get("broadcast")
        if len(small) > 2 or any(length not in (1, size) for length, size in zip(small, output, strict=True)):
            context.refuse(
                "shapes-differ", ("inputs", "C"), "C does not fit the product", list(shape), f"{list(output)}, or 1"
            )
        if not broadcasts and shape != output:
            context.refuse("shapes-differ", ("inputs", "C"), "set broadcast=1", list(shape), str(list(output)))
    alpha, beta = context.attributes["alpha"], context.attributes["beta"]
    return InferredOutputs([output], GemmParameters(transposed, alpha, beta, inner))


def _as_matrices(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """The shapes of two factors, of which a vector is a row on the left and a column on the right."""
    return (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b


def _matmul(context: InferenceContext) -> InferredOutputs:
    """NumPy's matmul."""
    a, b = context.shapes[:2]
    if not a or not b:
        context.refuse("rank", ("inputs",), "scalars have no matrix product; use Mul", None, "rank 1 or more")
    left, right = _as_matrices(a, b)
    rank = max(len(left), len(right)) - 2
    batches = [(1,) * (rank - len(shape) + 2) + shape[:-2] for shape in (left, right)]
    batch = tuple(y if x == 1 else x for x, y in zip(*batches, strict=True))
    fits = all(y in (1, size) for y, size in zip(batches[1], batch, strict=True))
    if left[-1] != right[-2] or not fits:
        message = f"matrices of shapes {list(a)} and {list(b)} cannot be multiplied"
        context.refuse("shapes-differ", ("inputs",), message, None, "an equal inner size, batches that broadcast")
    whole = (*batch, left[-2], right[-1])
    output = (*batch, *((left[-2],) if len(a) > 1 else ()), *((right[-1],) if len(b) > 1 else ()))
    return InferredOutputs([output], MatMulParameters(whole, left[-1]))


def _matmul_integer(context: InferenceContext) -> InferredOutputs:
    product = _matmul(context)
    parameters = cast("MatMulParameters", product.parameters)
    for name, axis in (("a_zero_point", -2), ("b_zero_point", -1)):
        zero = context.tensors.get(name)
        matrix = context.tensors[name[0].upper()].shape
        if zero is not None and math.prod(zero.shape) != 1 and (len(matrix) < 2 or zero.shape != (matrix[axis],)):
            message = named(name) + " must be one number, or one for each row of A or column of B"
            context.refuse("shapes-differ", ("inputs", name), message, list(zero.shape), f"[] or [{matrix[axis]}]")
    present = tuple(name for name in ("a_zero_point", "b_zero_point") if name in context.tensors)
    return product._replace(parameters=replace(parameters, zeros=present))


def _scales(context: InferenceContext) -> BlockedScaleParameters | BroadcastParameters:
    """How scales and zero points are spread over x: one number, one for each entry of an axis, or for each block."""
    x, *parameters = context.shapes
    block = context.attributes.get("block_size", 0)
    if block:
        axis = context.axis("axis", len(x), 1)
        wanted = (*x[:axis], -(-x[axis] // block), *x[axis + 1 :]) if block > 0 else ()
        if any(shape != wanted for shape in parameters):
            message = f"blocks of {block} along axis {axis} need scales and zero points of shape {list(wanted)}"
            context.refuse("shapes-differ", ("inputs",), message, list(parameters[0]), str(list(wanted)))
        return BlockedScaleParameters(axis, block)
    input_sizes = [x]
    for shape in parameters:
        aligned = (1,) * len(x)
        if len(shape) > 1 or (shape and shape != (1,)):
            axis = context.axis("axis", len(x), 1)
            if shape != (x[axis],):
                message = f"a scale and a zero point of shape {list(shape)} do not match axis {axis}"
                context.refuse("shapes-differ", ("inputs",), message, list(shape), f"[] or [{x[axis]}]")
            aligned = (*aligned[:axis], x[axis], *aligned[axis + 1 :])
        input_sizes.append(aligned)
    return BroadcastParameters(tuple(input_sizes))


def _quantized(context: InferenceContext) -> InferredOutputs:
    zero, output = context.tensors.get("y_zero_point"), context.schema.outputs[0]
    default = type_of_code(context, "output_dtype", "uint8", output.types)
    kind = zero.data_type if zero is not None else default
    if zero is not None and context.attributes.get("output_dtype") and default != kind:
        message = "y_zero_point has another type than output_dtype"
        context.refuse("data-types-differ", ("attributes", "output_dtype"), message, default, kind)
    return InferredOutputs([context.first.shape], _scales(context), {output.variable: kind})


def _dequantized(context: InferenceContext) -> InferredOutputs:
    output = context.schema.outputs[0]
    default = context.tensors["x_scale"].data_type
    kind = type_of_code(context, "output_dtype", default, output.types)
    return InferredOutputs([context.first.shape], _scales(context), {output.variable: kind})


def _quantized_dynamically(context: InferenceContext) -> InferredOutputs:
    return InferredOutputs([context.first.shape, (), ()])


# ---- in DirectML -----------------------------------------------------------------------------------------------------

_FUNCTIONS: Mapping[str, str] = {
    "L1": "L1", "L2": "L2", "LogSum": "LOG_SUM", "LogSumExp": "LOG_SUM_EXP", "Max": "MAX", "Mean": "AVERAGE",
    "Min": "MIN", "Prod": "MULTIPLY", "Sum": "SUM", "SumSquare": "SUM_SQUARE",
}  # fmt: skip
"""DirectML's name of each reduction."""


def _along(name: str, node: InferredNode, axes: tuple[int, ...], least_rank: int, **fields: object) -> OperatorDesc:
    """An operator whose axes stay as sizes of 1."""
    kept = _without(node.input.shape, axes, keep=True)
    return descriptor(
        name, input_tensor=packed(node.input, least_rank), output_tensor=packed(node.output, least_rank, kept),
        axes=shifted(node, axes, least_rank), **fields,
    )  # fmt: skip


def _to_reduce(function: str) -> DirectmlTwin:
    def make(node: InferredNode, least_rank: int) -> OperatorDesc:
        if function not in ("MAX", "MIN"):
            require_floats(node, "integers wrap here as in NumPy, which DirectML leaves open")
        return _along("REDUCE", node, node.parameters_as(AxesParameters).axes, least_rank, function=function)

    return make


def _to_position(name: str) -> DirectmlTwin:
    def make(node: InferredNode, least_rank: int) -> OperatorDesc:
        parameters = node.parameters_as(PositionParameters)
        direction = "DECREASING" if parameters.last else "INCREASING"
        return _along(name, node, parameters.axes, least_rank, axis_direction=direction)

    return make


def _to_sums(node: InferredNode, least_rank: int) -> OperatorDesc:
    parameters = node.parameters_as(ScanParameters)
    (axis,) = shifted(node, [parameters.axis], least_rank)
    direction = "DECREASING" if parameters.backward else "INCREASING"
    return mapped(
        "CUMULATIVE_SUMMATION", node, least_rank, axis=axis, has_exclusive_sum=parameters.exclusive,
        axis_direction=direction,
    )  # fmt: skip


def _to_gemm(node: InferredNode, least_rank: int) -> OperatorDesc:
    require_floats(node, _NO_INTEGERS)
    parameters, tensors, output = (
        node.parameters_as(GemmParameters),
        dict(node.tensors),
        packed(node.output, least_rank),
    )
    fields = {"a_tensor": packed(tensors["A"], least_rank), "b_tensor": packed(tensors["B"], least_rank)}
    if "C" in tensors:
        shape = tensors["C"].shape
        fields["c_tensor"] = spread(tensors["C"], (1,) * (len(output.sizes) - len(shape)) + shape, output.sizes)
    trans_a, trans_b = ["TRANSPOSE" if flag else "NONE" for flag in parameters.transposed]
    return descriptor(
        "GEMM", **fields, output_tensor=output, trans_a=trans_a, trans_b=trans_b, alpha=parameters.alpha,
        beta=parameters.beta,
    )  # fmt: skip


def _to_matmul(node: InferredNode, least_rank: int) -> OperatorDesc:
    """A vector is a matrix of one row or column; a batch of one serves all."""
    require_floats(node, _NO_INTEGERS)
    parameters = node.parameters_as(MatMulParameters)
    *batch, rows, columns = whole = padded(parameters.whole, least_rank)
    (_, a), (_, b) = node.tensors
    left, right = _as_matrices(a.shape, b.shape)
    inner = parameters.inner

    def matrix(tensor: OnnxTensor, shape: Shape, sizes: tuple[int, int]) -> BufferTensorDesc:
        return spread(tensor, (1,) * (len(whole) - len(shape)) + shape, (*batch, *sizes))

    return descriptor(
        "GEMM", a_tensor=matrix(a, left, (rows, inner)), b_tensor=matrix(b, right, (inner, columns)),
        output_tensor=packed(node.output, least_rank, whole), trans_a="NONE", trans_b="NONE", alpha=1.0, beta=0.0,
    )  # fmt: skip


LINES: Mapping[str, OperatorRow] = {
    "ArgMax": OperatorRow(_position, _to_position("ARGMAX")),
    "ArgMin": OperatorRow(_position, _to_position("ARGMIN")),
    "CumProd": OperatorRow(_scanned, untranslated, "axis"),
    "CumSum": OperatorRow(_scanned, _to_sums, "axis"),
    "DequantizeLinear": OperatorRow(_dequantized, untranslated),
    "DynamicQuantizeLinear": OperatorRow(_quantized_dynamically, untranslated),
    "Gemm": OperatorRow(_gemm, _to_gemm),
    "MatMul": OperatorRow(_matmul, _to_matmul),
    "MatMulInteger": OperatorRow(_matmul_integer, untranslated),
    "QuantizeLinear": OperatorRow(_quantized, untranslated),
    **{f"Reduce{name}": OperatorRow(_reduced, _to_reduce(function), "axes") for name, function in _FUNCTIONS.items()},
    "TopK": OperatorRow(_top_k, untranslated, "K"),
}
