"""The DirectML operator that is the same function as an ONNX node, for all operators but Tile and Resize.

Left out is what DirectML answers otherwise: magnitudes and signs of integers, their quotients and remainders, sums of
them that overflow, Clip (which bound wins), casts of floating-point numbers to integers, indices outside of their axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..descriptors import BufferTensorDesc, OperatorDesc, operator_class
from ..descriptors.feature_levels import FeatureLevel
from ..values.datatypes import TensorDataType
from .node import OnnxNode
from .tensor import OnnxTensor

__all__ = ["LOWERED", "lower_operator"]

_MOST_DIMENSIONS = 8
_FLOATS = ("float32", "float16")


class NotLowered(Exception):
    """Why a node has no operator of the same function."""


def lower_operator(node: OnnxNode, level: FeatureLevel) -> OperatorDesc | str:
    """The operator, or why there is none.

    Raises:
        InvalidDescriptor: DirectML's rules refuse the descriptor.
    """
    make = LOWERED.get(node.op_type)
    if make is None:
        return f"{node.op_type} is computed as ONNX says, and not translated here"
    least = 4 if level < FeatureLevel.L3_0 else 1
    try:
        found = make(node, least)
    except NotLowered as reason:
        return str(reason)
    # A descriptor's tensors are bound in the order of the node's, byte for byte.
    for slots, own in ((node.inputs, found.inputs), (node.outputs, found.outputs)):
        if [slot.layout.size_in_bytes for slot in slots] != [slot.layout.size_in_bytes for slot in own]:
            return "DirectML's tensors have other sizes in bytes than the node's"
    return found


DescriptorFields = Mapping[str, Any]
DescriptorFactory = Callable[[OnnxNode, int], OperatorDesc]


def _type(tensor: OnnxTensor) -> TensorDataType:
    name = "uint8" if tensor.data_type == "bool" else tensor.data_type
    if name.upper() not in TensorDataType.__members__:
        raise NotLowered(f"DirectML has no {tensor.data_type}")
    return TensorDataType[name.upper()]


def _sizes(shape: Sequence[int], least: int) -> tuple[int, ...]:
    if len(shape) > _MOST_DIMENSIONS:
        raise NotLowered(f"{len(shape)} dimensions are more than DirectML's {_MOST_DIMENSIONS}")
    return (1,) * (max(least, 1) - len(shape)) + tuple(shape)


def _packed(tensor: OnnxTensor, least: int) -> BufferTensorDesc:
    return BufferTensorDesc.packed(_type(tensor), _sizes(tensor.shape, least))


def _broadcast(tensor: OnnxTensor, aligned: Sequence[int], output: Sequence[int]) -> BufferTensorDesc:
    """The tensor with the output's sizes, and strides of 0 where it has one element for all."""
    strides: list[int] = []
    for axis, (own, size) in enumerate(zip(aligned, output, strict=True)):
        strides.append(0 if own == 1 < size else math.prod(aligned[axis + 1 :]))
    return BufferTensorDesc(data_type=_type(tensor), sizes=tuple(output), strides=tuple(strides))


def _element_wise(
    name: str, *fields: str, types: Sequence[str] = (), attributes: Callable[[OnnxNode], DescriptorFields] | None = None
) -> DescriptorFactory:
    """A function of elements.

    Args:
        name: DirectML's operator.
        fields: DirectML's fields of the inputs, in the node's order.
        types: types of the first tensor for which the function is the same; default all.
        attributes: the other fields.
    """
    fields = fields or ("input_tensor",)

    def make(node: OnnxNode, least: int) -> OperatorDesc:
        tensors = [tensor for _, tensor in node.tensors]
        if types and tensors[0].data_type not in types:
            raise NotLowered(f"of {tensors[0].data_type} DirectML's {name} is another function, or there is none")
        if len(tensors) != len(fields):
            raise NotLowered(f"DirectML's {name} has {len(fields)} inputs, not {len(tensors)}")
        shape = node.output.shape
        aligned = dict(node.parameters).get("input_sizes") or [tensor.shape for tensor in tensors]
        output = _sizes(shape, least)
        inputs = {
            field: _broadcast(tensor, (1,) * (len(output) - len(own)) + tuple(own), output)
            for field, tensor, own in zip(fields, tensors, aligned, strict=True)
        }
        return _made(
            name, **inputs, output_tensor=_packed(node.output, least), **(attributes(node) if attributes else {})
        )

    return make


def _made(name: str, **fields: Any) -> OperatorDesc:
    return operator_class(name)(**fields)


def _unary(name: str, types: Sequence[str] = _FLOATS) -> DescriptorFactory:
    return _element_wise(f"ELEMENT_WISE_{name}", types=types)


def _binary(name: str, types: Sequence[str] = ()) -> DescriptorFactory:
    return _element_wise(f"ELEMENT_WISE_{name}", "a_tensor", "b_tensor", types=types)


def _activation(name: str, **attributes: str) -> DescriptorFactory:
    """An activation; `attributes` gives, for each of DirectML's fields, the node's attribute that it is taken from."""
    return _element_wise(
        f"ACTIVATION_{name}",
        types=_FLOATS,
        attributes=lambda node: {k: node.attribute(v) for k, v in attributes.items()},
    )


def _is_infinity(node: OnnxNode) -> DescriptorFields:
    found = node.attribute("detect_negative"), node.attribute("detect_positive")
    if found == (0, 0):
        raise NotLowered("DirectML looks for one kind of infinity at least")
    return {"infinity_mode": {(1, 1): "EITHER", (1, 0): "NEGATIVE", (0, 1): "POSITIVE"}[found]}  # pyright: ignore[reportArgumentType] # 0 or 1


def _gelu(node: OnnxNode) -> DescriptorFields:
    if node.attribute("approximate") != "none":
        raise NotLowered("DirectML's GELU is the exact one")
    return {}


def _remainder(node: OnnxNode, least: int) -> OperatorDesc:
    name = "MODULUS_TRUNCATE" if node.attribute("fmod") else "MODULUS_FLOOR"
    return _binary(name, _FLOATS)(node, least)


def _cast(node: OnnxNode, least: int) -> OperatorDesc:
    source, target = node.input, node.output
    if "bool" in (target.data_type,) or (source.row.dtype.kind == "f" and target.row.dtype.kind != "f"):
        raise NotLowered("DirectML casts floating-point numbers to integers, and numbers to truth values, otherwise")
    if len(node.tensors) > 1:
        raise NotLowered("DirectML's CAST has one input")
    return _made("CAST", input_tensor=_packed(source, least), output_tensor=_packed(target, least))


def _reshaped(node: OnnxNode, least: int) -> OperatorDesc:
    """The same bytes under another shape."""
    sizes = _sizes((node.input.element_count,), least)
    tensor = BufferTensorDesc.packed(_type(node.input), sizes)
    return _made("ELEMENT_WISE_IDENTITY", input_tensor=tensor, output_tensor=tensor)


def _identity_of(node: OnnxNode, strides: Sequence[int], least: int) -> OperatorDesc:
    output = _packed(node.output, least)
    padded = (0,) * (len(output.sizes) - len(strides)) + tuple(strides)
    source = BufferTensorDesc(data_type=_type(node.input), sizes=output.sizes, strides=padded)
    return _made("ELEMENT_WISE_IDENTITY", input_tensor=source, output_tensor=output)


def _transposed(node: OnnxNode, least: int) -> OperatorDesc:
    shape = node.input.shape
    return _identity_of(node, [math.prod(shape[axis + 1 :]) for axis in dict(node.parameters)["perm"]], least)


def _expanded(node: OnnxNode, least: int) -> OperatorDesc:
    own = dict(node.parameters)["own"]
    sizes = zip(own, node.output.shape, strict=True)
    return _identity_of(
        node, [0 if a == 1 < b else math.prod(own[axis + 1 :]) for axis, (a, b) in enumerate(sizes)], least
    )


def _shifted(node: OnnxNode, axis: int, least: int) -> int:
    return axis + len(_sizes(node.input.shape, least)) - len(node.input.shape)


def _concatenated(node: OnnxNode, least: int) -> OperatorDesc:
    axis = _shifted(node, dict(node.parameters)["axis"], least)
    tensors = [_packed(tensor, least) for _, tensor in node.tensors]
    return _made("JOIN", input_tensors=tensors, output_tensor=_packed(node.output, least), axis=axis)


def _split(node: OnnxNode, least: int) -> OperatorDesc:
    axis = _shifted(node, dict(node.parameters)["axis"], least)
    tensors = [_packed(tensor, least) for _, tensor in node.results]
    return _made("SPLIT", input_tensor=_packed(node.input, least), output_tensors=tensors, axis=axis)


def _sliced(node: OnnxNode, least: int) -> OperatorDesc:
    found = dict(node.parameters)
    source, output = _packed(node.input, least), _packed(node.output, least)
    more = len(source.sizes) - len(node.input.shape)
    start, steps = (0,) * more + tuple(found["start"]), (1,) * more + tuple(found["steps"])
    # A window that is walked backwards begins at its end.
    reach = [abs(step) * (size - 1) + 1 for step, size in zip(steps, output.sizes, strict=True)]
    offsets = [at if step > 0 else at - size + 1 for at, step, size in zip(start, steps, reach, strict=True)]
    return _made(
        "SLICE1", input_tensor=source, output_tensor=output, input_window_offsets=tuple(offsets),
        input_window_sizes=tuple(reach), input_window_strides=steps,
    )  # fmt: skip


def _blocks(name: str) -> DescriptorFactory:
    def make(node: OnnxNode, least: int) -> OperatorDesc:
        found = dict(node.parameters)
        order = {"DCR": "DEPTH_COLUMN_ROW", "CRD": "COLUMN_ROW_DEPTH"}[found["mode"]]
        source, output = _packed(node.input, least), _packed(node.output, least)
        return _made(name, input_tensor=source, output_tensor=output, block_size=found["block"], order=order)

    return make


def _lines(name: str) -> DescriptorFactory:
    """A function of lines along axes, with an output of the same shape."""

    def make(node: OnnxNode, least: int) -> OperatorDesc:
        if not node.input.shape:
            raise NotLowered("DirectML has no tensors of rank 0")
        axes = tuple([_shifted(node, axis, least) for axis in dict(node.parameters)["axes"]])
        source, output = _packed(node.input, least), _packed(node.output, least)
        return _made(f"ACTIVATION_{name}1", input_tensor=source, output_tensor=output, axes=axes)

    return make


def _reduced(function: str) -> DescriptorFactory:
    def make(node: OnnxNode, least: int) -> OperatorDesc:
        if node.input.data_type not in _FLOATS and function not in ("MAX", "MIN"):
            raise NotLowered("integers wrap here as in NumPy, which DirectML leaves open")
        shape = node.input.shape
        axes = dict(node.parameters)["axes"]
        kept = tuple([1 if axis in axes else size for axis, size in enumerate(shape)])
        source = _packed(node.input, least)
        output = BufferTensorDesc.packed(_type(node.output), _sizes(kept, least))
        return _made(
            "REDUCE", function=function, input_tensor=source, output_tensor=output,
            axes=tuple([_shifted(node, axis, least) for axis in axes]),
        )  # fmt: skip

    return make


def _position(name: str) -> DescriptorFactory:
    def make(node: OnnxNode, least: int) -> OperatorDesc:
        found, shape = dict(node.parameters), node.input.shape
        kept = tuple([1 if axis in found["axes"] else size for axis, size in enumerate(shape)])
        output = BufferTensorDesc.packed(_type(node.output), _sizes(kept, least))
        return _made(
            name, input_tensor=_packed(node.input, least), output_tensor=output,
            axes=tuple([_shifted(node, axis, least) for axis in found["axes"]]),
            axis_direction="DECREASING" if found["last"] else "INCREASING",
        )  # fmt: skip

    return make


def _scanned(node: OnnxNode, least: int) -> OperatorDesc:
    found = dict(node.parameters)
    return _made(
        "CUMULATIVE_SUMMATION", input_tensor=_packed(node.input, least), output_tensor=_packed(node.output, least),
        axis=_shifted(node, found["axis"], least), has_exclusive_sum=bool(found["exclusive"]),
        axis_direction="DECREASING" if found["backward"] else "INCREASING",
    )  # fmt: skip


def _gemm(node: OnnxNode, least: int) -> OperatorDesc:
    if node.input.data_type not in _FLOATS:
        raise NotLowered("DirectML's GEMM takes float32 and float16")
    found, output = dict(node.parameters), _packed(node.output, least)
    tensors = dict(node.tensors)
    fields: dict[str, Any] = {"a_tensor": _packed(tensors["A"], least), "b_tensor": _packed(tensors["B"], least)}
    if "C" in tensors:
        shape = tensors["C"].shape
        fields["c_tensor"] = _broadcast(tensors["C"], (1,) * (len(output.sizes) - len(shape)) + shape, output.sizes)
    turned = [("TRANSPOSE" if flag else "NONE") for flag in found["turned"]]
    return _made(
        "GEMM", **fields, output_tensor=output, trans_a=turned[0], trans_b=turned[1], alpha=found["alpha"],
        beta=found["beta"],
    )  # fmt: skip


def _matmul(node: OnnxNode, least: int) -> OperatorDesc:
    """A vector is a matrix of one row or column; a batch of one serves all."""
    if node.input.data_type not in _FLOATS:
        raise NotLowered("DirectML's GEMM takes float32 and float16")
    found = dict(node.parameters)
    whole: tuple[int, ...] = _sizes(found["whole"], least)
    batch, rows, columns, inner = whole[:-2], whole[-2], whole[-1], found["inner"]
    (_, a), (_, b) = node.tensors
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape

    def matrix(tensor: OnnxTensor, shape: tuple[int, ...], sizes: tuple[int, int]) -> BufferTensorDesc:
        return _broadcast(tensor, (1,) * (len(whole) - len(shape)) + shape, (*batch, *sizes))

    return _made(
        "GEMM", a_tensor=matrix(a, left, (rows, inner)), b_tensor=matrix(b, right, (inner, columns)),
        output_tensor=BufferTensorDesc.packed(_type(node.output), whole), trans_a="NONE", trans_b="NONE", alpha=1.0,
        beta=0.0,
    )  # fmt: skip


LOWERED: Mapping[str, DescriptorFactory] = {
    **{name: _unary(name.upper()) for name in (
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log",
        "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    )},
    "Neg": _unary("NEGATE"),
    "Reciprocal": _unary("RECIP"),
    "IsNaN": _unary("IS_NAN"),
    "Not": _unary("LOGICAL_NOT", ()),
    "BitwiseNot": _unary("BIT_NOT", ()),
    "Identity": _unary("IDENTITY", ()),
    "Round": _element_wise(
        "ELEMENT_WISE_ROUND", types=_FLOATS, attributes=lambda _: {"rounding_mode": "HALVES_TO_NEAREST_EVEN"}
    ),
    "IsInf": _element_wise("ELEMENT_WISE_IS_INFINITY", types=_FLOATS, attributes=_is_infinity),
    **{name: _binary(target) for name, target in {
        "Add": "ADD", "Sub": "SUBTRACT", "Mul": "MULTIPLY", "And": "LOGICAL_AND", "Or": "LOGICAL_OR",
        "Xor": "LOGICAL_XOR", "Equal": "LOGICAL_EQUALS", "Greater": "LOGICAL_GREATER_THAN",
        "Less": "LOGICAL_LESS_THAN", "GreaterOrEqual": "LOGICAL_GREATER_THAN_OR_EQUAL",
        "LessOrEqual": "LOGICAL_LESS_THAN_OR_EQUAL", "BitwiseAnd": "BIT_AND", "BitwiseOr": "BIT_OR",
        "BitwiseXor": "BIT_XOR", "Max": "MAX", "Min": "MIN", "Sum": "ADD",
    }.items()},
    "Div": _binary("DIVIDE", _FLOATS),
    "Mod": _remainder,
    "Mean": _binary("MEAN", _FLOATS),
    "Pow": _element_wise("ELEMENT_WISE_POW", "input_tensor", "exponent_tensor", types=_FLOATS),
    "Where": _element_wise("ELEMENT_WISE_IF", "condition_tensor", "a_tensor", "b_tensor"),
    "PRelu": _element_wise("ACTIVATION_PARAMETERIZED_RELU", "input_tensor", "slope_tensor", types=_FLOATS),
    "Celu": _activation("CELU", alpha="alpha"),
    "Elu": _activation("ELU", alpha="alpha"),
    "Gelu": _element_wise("ACTIVATION_GELU", types=_FLOATS, attributes=_gelu),
    "HardSigmoid": _activation("HARD_SIGMOID", alpha="alpha", beta="beta"),
    "LeakyRelu": _activation("LEAKY_RELU", alpha="alpha"),
    "Relu": _activation("RELU"),
    "Selu": _activation("SCALED_ELU", alpha="alpha", gamma="gamma"),
    "Shrink": _activation("SHRINK", bias="bias", threshold="lambd"),
    "Sigmoid": _activation("SIGMOID"),
    "Softplus": _element_wise("ACTIVATION_SOFTPLUS", types=_FLOATS, attributes=lambda _: {"steepness": 1.0}),
    "Softsign": _activation("SOFTSIGN"),
    "Swish": _activation("SWISH", sigmoid_input_scale="alpha"),
    "ThresholdedRelu": _activation("THRESHOLDED_RELU", alpha="alpha"),
    "Hardmax": _lines("HARDMAX"),
    "LogSoftmax": _lines("LOG_SOFTMAX"),
    "Softmax": _lines("SOFTMAX"),
    "Cast": _cast,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaped),
    "Concat": _concatenated,
    "DepthToSpace": _blocks("DEPTH_TO_SPACE1"),
    "Expand": _expanded,
    "Slice": _sliced,
    "SpaceToDepth": _blocks("SPACE_TO_DEPTH1"),
    "Split": _split,
    "Transpose": _transposed,
    "ArgMax": _position("ARGMAX"),
    "ArgMin": _position("ARGMIN"),
    "CumSum": _scanned,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **{f"Reduce{name}": _reduced(function) for name, function in {
        "L1": "L1", "L2": "L2", "LogSum": "LOG_SUM", "LogSumExp": "LOG_SUM_EXP", "Max": "MAX", "Mean": "AVERAGE",
        "Min": "MIN", "Prod": "MULTIPLY", "Sum": "SUM", "SumSquare": "SUM_SQUARE",
    }.items()},
}  # fmt: skip
"""What makes the descriptor of a node, by operator; the number of dimensions is the least that a level takes."""
