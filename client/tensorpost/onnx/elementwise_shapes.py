"""ONNX's functions of elements: shapes, parameters and DirectML's twins; a row of `ELEMENTWISE` for each operator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..values.datatypes import DATA_TYPES, data_type
from .directml_twins import (
    FLOATS,
    INPUT,
    DescriptorFields,
    DirectmlTwin,
    ElementWiseTwin,
    NotExpressible,
    activation,
    binary,
    mapped,
    shifted,
    unary,
    untranslated,
)
from .inference_context import InferenceContext, InferredOutputs
from .inferred_node import InferredNode
from .movement_shapes import refuse_type, type_of_code
from .operator_row import OperatorRow
from .parameters import AxesParameters, BroadcastParameters
from .tensor import Shape

if TYPE_CHECKING:
    from ..descriptors import OperatorDesc


def _broadcast(context: InferenceContext) -> InferredOutputs:
    """NumPy's broadcasting; before opset 7 one of `broadcast` and `axis`, before 8 none for any number of tensors."""
    shapes = context.shapes
    legacy = context.schema.attribute("broadcast") is not None
    if legacy and context.attributes.get("broadcast"):
        left, right = shapes
        if len(right) <= len(left) and math.prod(right) == 1:  # one element goes with all, wherever `axis` begins
            return _aligned(context, [left, ()])
        start = context.axis("axis", len(left), len(left) - len(right), end=True) if len(right) <= len(left) else -1
        if start < 0 or left[start : start + len(right)] != right:
            message = f"B's shape {list(right)} does not match A's shape {list(left)} from axis {start} on"
            context.refuse("shapes-differ", ("inputs",), message, list(right), "equal sizes, from `axis` on")
        return _aligned(context, [left, (1,) * start + right + (1,) * (len(left) - start - len(right))])
    if (legacy or context.schema.inputs[0].variadic) and context.since < 8 and len(set(shapes)) > 1:
        hint = "set broadcast=1, or use opset 7" if legacy else "use opset 8, which broadcasts"
        message = f"the tensors have different shapes, and {context.schema.name} does not broadcast them; {hint}"
        context.refuse("shapes-differ", ("inputs",), message, [list(shape) for shape in shapes][:8], "equal shapes")
    return _aligned(context, shapes)


def _aligned(context: InferenceContext, shapes: Sequence[Shape], to_first: bool = False) -> InferredOutputs:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    output = tuple([_common(sizes) for sizes in zip(*aligned, strict=True)])
    if -1 in output or (to_first and output != shapes[0]):
        message = f"shapes {', '.join(str(list(shape)) for shape in shapes[:8])} cannot be broadcast"
        message += " to the first one" if to_first else " to one shape"
        context.refuse("shapes-differ", ("inputs",), message, None, "sizes that are equal or 1, aligned to the right")
    equal = all(shape == output for shape in aligned)
    return InferredOutputs([output], BroadcastParameters(() if equal else tuple(aligned)))


def _common(sizes: Iterable[int]) -> int:
    """The size that all of these are broadcast to; -1 if there is none."""
    several = {*sizes} - {1}
    return 1 if not several else several.pop() if len(several) == 1 else -1


def _clip(context: InferenceContext) -> InferredOutputs:
    for name, tensor in context.tensors.items():
        if name != "input" and tensor.shape:
            context.refuse("input-shape", ("inputs", name), f"{name} must be a scalar", list(tensor.shape), "rank 0")
    return _broadcast(context)


def _prelu(context: InferenceContext) -> InferredOutputs:
    x, slope = context.shapes
    if context.since < 7 and len(slope) == 1 < len(x):  # of channels
        slope = slope + (1,) * (len(x) - 2)
    return _aligned(context, [x, slope], to_first=True)


def _mod(context: InferenceContext) -> InferredOutputs:
    integer = data_type(context.types["T"]).dtype.kind in "iu"
    if context.since < 28 and not integer and not context.attributes["fmod"]:
        message = "before opset 28 the remainder of floating-point numbers is C's fmod; set fmod=1"
        context.refuse("attribute-value", ("attributes", "fmod"), message, 0, "1")
    return _broadcast(context)


def _to_modulus(node: InferredNode, least_rank: int) -> OperatorDesc:
    return binary("MODULUS_TRUNCATE" if node.attribute("fmod") else "MODULUS_FLOOR", FLOATS)(node, least_rank)


def _cast(context: InferenceContext) -> InferredOutputs:
    target = context.attributes["to"]
    named = [
        row.numpy_name
        for row in DATA_TYPES
        if (row.onnx.upper() == target.upper() if isinstance(target, str) else row.onnx_code == target)
    ]
    allowed = context.schema.outputs[0].types
    if not named or named[0] not in allowed:
        refuse_type(context, "to", "does not convert to", target, allowed)
    return InferredOutputs([context.first.shape], BroadcastParameters(), {"T2": named[0]})


def _bit_cast(context: InferenceContext) -> InferredOutputs:
    """The same bits as elements of another type, of as many bits."""
    source, allowed = context.first.row, context.schema.outputs[0].types
    target = data_type(type_of_code(context, "to", "", allowed))
    if (source.item_size, source.bits) != (target.item_size, target.bits):
        sizes = [row.bits or 8 * row.item_size for row in (source, target)]
        message = f"{source.onnx} has {sizes[0]} bits and {target.onnx} {sizes[1]}; they must be equal"
        context.refuse("data-types-differ", ("attributes", "to"), message, target.onnx, f"a type of {sizes[0]} bits")
    return InferredOutputs([context.first.shape], BroadcastParameters(), {"T2": target.numpy_name})


def _gated(context: InferenceContext) -> InferredOutputs:
    gate, value = context.shapes
    if gate != value:
        message = f"A and B have the shapes {list(gate)} and {list(value)}, and SwiGLU does not broadcast"
        context.refuse("shapes-differ", ("inputs", "B"), message, list(value), str(list(gate)))
    return InferredOutputs([gate], BroadcastParameters())


def _cast_like(context: InferenceContext) -> InferredOutputs:
    """The second tensor only says its type, and is not read."""
    return InferredOutputs([context.first.shape], BroadcastParameters((context.first.shape,)))


def _to_cast(node: InferredNode, least_rank: int) -> OperatorDesc:
    source, target = node.input.row.dtype.kind, node.output.row.dtype.kind
    if node.output.data_type == "bool" or (source == "f" and target != "f"):
        raise NotExpressible("DirectML casts floating-point numbers to integers, and numbers to booleans, differently")
    return mapped("CAST", node, least_rank)


def _softmax(context: InferenceContext) -> InferredOutputs:
    """Axes of the softmax: from opset 13 on one axis; before, all from `axis` on."""
    shape = context.first.shape
    axis = context.axis("axis", len(shape), end=context.since < 13)
    axes = tuple(range(axis, len(shape))) if context.since < 13 else (axis,)
    return InferredOutputs([shape], AxesParameters(axes))


def _to_softmax(name: str) -> DirectmlTwin:
    def make(node: InferredNode, least_rank: int) -> OperatorDesc:
        if not node.input.shape:
            raise NotExpressible("DirectML has no tensors of rank 0")
        axes = shifted(node, node.parameters_as(AxesParameters).axes, least_rank)
        return mapped(f"ACTIVATION_{name}1", node, least_rank, axes=axes)

    return make


def _infinity_mode(node: InferredNode) -> DescriptorFields:
    modes = {(1, 1): "EITHER", (1, 0): "NEGATIVE", (0, 1): "POSITIVE"}
    mode = modes.get((bool(node.attribute("detect_negative")), bool(node.attribute("detect_positive"))))
    if mode is None:
        raise NotExpressible("DirectML looks for one kind of infinity at least")
    return {"infinity_mode": mode}


def _no_approximation(node: InferredNode) -> DescriptorFields:
    if node.attribute("approximate") != "none":
        raise NotExpressible("DirectML's GELU is the exact one")
    return {}


_SAME_NAME = "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Sign Sin Sinh Sqrt Tan Tanh"
ELEMENTWISE: Mapping[str, OperatorRow] = {
    **{name: OperatorRow(_broadcast, unary(name.upper())) for name in _SAME_NAME.split()},
    "Add": OperatorRow(_broadcast, binary("ADD")),
    "And": OperatorRow(_broadcast, binary("LOGICAL_AND")),
    "BitwiseAnd": OperatorRow(_broadcast, binary("BIT_AND")),
    "BitwiseNot": OperatorRow(_broadcast, unary("BIT_NOT", ())),
    "BitwiseOr": OperatorRow(_broadcast, binary("BIT_OR")),
    "BitwiseXor": OperatorRow(_broadcast, binary("BIT_XOR")),
    "Celu": OperatorRow(_broadcast, activation("CELU", alpha="alpha")),
    "Div": OperatorRow(_broadcast, binary("DIVIDE", FLOATS)),
    "Elu": OperatorRow(_broadcast, activation("ELU", alpha="alpha")),
    "Equal": OperatorRow(_broadcast, binary("LOGICAL_EQUALS")),
    "Gelu": OperatorRow(
        _broadcast,
        ElementWiseTwin("ACTIVATION_GELU", INPUT, FLOATS, _no_approximation),
        choices={"approximate": {20: ("none", "tanh")}},
    ),
    "Greater": OperatorRow(_broadcast, binary("LOGICAL_GREATER_THAN")),
    "GreaterOrEqual": OperatorRow(_broadcast, binary("LOGICAL_GREATER_THAN_OR_EQUAL")),
    "HardSigmoid": OperatorRow(_broadcast, activation("HARD_SIGMOID", alpha="alpha", beta="beta")),
    "Identity": OperatorRow(_broadcast, unary("IDENTITY", ())),
    "IsInf": OperatorRow(_broadcast, ElementWiseTwin("ELEMENT_WISE_IS_INFINITY", INPUT, FLOATS, _infinity_mode)),
    "IsNaN": OperatorRow(_broadcast, unary("IS_NAN")),
    "LeakyRelu": OperatorRow(_broadcast, activation("LEAKY_RELU", alpha="alpha")),
    "Less": OperatorRow(_broadcast, binary("LOGICAL_LESS_THAN")),
    "LessOrEqual": OperatorRow(_broadcast, binary("LOGICAL_LESS_THAN_OR_EQUAL")),
    "Max": OperatorRow(_broadcast, binary("MAX")),
    "Mean": OperatorRow(_broadcast, binary("MEAN", FLOATS)),
    "Min": OperatorRow(_broadcast, binary("MIN")),
    "Mul": OperatorRow(_broadcast, binary("MULTIPLY")),
    "Neg": OperatorRow(_broadcast, unary("NEGATE")),
    "Not": OperatorRow(_broadcast, unary("LOGICAL_NOT", ())),
    "Or": OperatorRow(_broadcast, binary("LOGICAL_OR")),
    "Pow": OperatorRow(_broadcast, ElementWiseTwin("ELEMENT_WISE_POW", ("input_tensor", "exponent_tensor"), FLOATS)),
    "Reciprocal": OperatorRow(_broadcast, unary("RECIP")),
    "Relu": OperatorRow(_broadcast, activation("RELU")),
    "Round": OperatorRow(
        _broadcast,
        ElementWiseTwin("ELEMENT_WISE_ROUND", INPUT, FLOATS, lambda _: {"rounding_mode": "HALVES_TO_NEAREST_EVEN"}),
    ),
    "Selu": OperatorRow(_broadcast, activation("SCALED_ELU", alpha="alpha", gamma="gamma")),
    "Shrink": OperatorRow(_broadcast, activation("SHRINK", bias="bias", threshold="lambd")),
    "Sigmoid": OperatorRow(_broadcast, activation("SIGMOID")),
    "Softplus": OperatorRow(
        _broadcast, ElementWiseTwin("ACTIVATION_SOFTPLUS", INPUT, FLOATS, lambda _: {"steepness": 1.0})
    ),
    "Softsign": OperatorRow(_broadcast, activation("SOFTSIGN")),
    "Sub": OperatorRow(_broadcast, binary("SUBTRACT")),
    "Sum": OperatorRow(_broadcast, binary("ADD")),
    "Swish": OperatorRow(_broadcast, activation("SWISH", sigmoid_input_scale="alpha")),
    "ThresholdedRelu": OperatorRow(_broadcast, activation("THRESHOLDED_RELU", alpha="alpha")),
    "Where": OperatorRow(_broadcast, ElementWiseTwin("ELEMENT_WISE_IF", ("condition_tensor", "a_tensor", "b_tensor"))),
    "Xor": OperatorRow(_broadcast, binary("LOGICAL_XOR")),
    "HardSwish": OperatorRow(_broadcast, untranslated),
    "Mish": OperatorRow(_broadcast, untranslated),
    "BitCast": OperatorRow(_bit_cast, untranslated),
    "SwiGLU": OperatorRow(_gated, untranslated),
    "BitShift": OperatorRow(_broadcast, untranslated, choices={"direction": {11: ("LEFT", "RIGHT")}}),
    "Cast": OperatorRow(_cast, _to_cast),
    "CastLike": OperatorRow(_cast_like, untranslated),
    "Clip": OperatorRow(_clip, untranslated),
    "Hardmax": OperatorRow(_softmax, _to_softmax("HARDMAX")),
    "LogSoftmax": OperatorRow(_softmax, _to_softmax("LOG_SOFTMAX")),
    "Mod": OperatorRow(_mod, _to_modulus),
    "PRelu": OperatorRow(
        _prelu, ElementWiseTwin("ACTIVATION_PARAMETERIZED_RELU", ("input_tensor", "slope_tensor"), FLOATS)
    ),
    "Softmax": OperatorRow(_softmax, _to_softmax("SOFTMAX")),
}
