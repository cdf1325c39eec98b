"""What the nodes of each operator mean, and the shapes of their outputs: one row of `RULES` for each operator.

A rule serves all versions of its operator. It reads what a node was given and returns the shapes of its outputs with
named parameters, in which nothing of the version is left: the server's row for the operator takes those.

Source: ONNX's operators, default domain, as `operators.json` lists them. Choices where the text is silent: negative
axes count from the end in every version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..values.datatypes import DATA_TYPES, data_type
from .given_node import Broken, GivenNode, InferredOutputs, Meaning, Shape
from .line_shapes import LINES
from .movement_shapes import MOVEMENT, refuse_type
from .package import infer_by_package
from .resize import Resizing, resizing
from .schemas import WRITTEN_BY_HAND
from .tensor import OnnxTensor, too_large
from .tile import Tiling, tiling

__all__ = ["RULES", "infer"]

Rule = Callable[[GivenNode], InferredOutputs]


def infer(given: GivenNode) -> tuple[Tiling | Resizing | Meaning, list[tuple[str, OnnxTensor]]] | None:
    """The meaning of a node and its results; None if a rule is broken, which is then in the report."""
    schema, report = given.schema, given.report
    if schema.op_type in WRITTEN_BY_HAND:
        tensor = given.tensors.get(schema.inputs[0].name)
        if tensor is None:
            return None
        made = (
            tiling(schema, tensor, given.values, report)
            if schema.op_type == "Tile"
            else resizing(schema, tensor, given.values, given.attributes, report)
        )
        if (given.outputs or 1) != 1:
            report.add("output-count", ("output",), f"{schema.name} has one output", given.outputs, "1")
        return None if made is None else (made[0], [("output", OnnxTensor(tensor.data_type, made[1]))])
    if report.found:
        return None
    try:
        shapes, meaning, types = RULES.get(schema.op_type, infer_by_package)(given)
        return meaning, list(_results(given, shapes, types))
    except Broken:
        return None


def _results(given: GivenNode, shapes: Sequence[Shape], types: Mapping[str, str]) -> Iterable[tuple[str, OnnxTensor]]:
    outputs = given.schema.outputs
    names = [entry.name for entry in outputs]
    if outputs[-1].variadic:
        names = [f"{outputs[-1].name}_{index}" for index in range(len(shapes))]
    least = len(shapes) if outputs[-1].variadic else sum([not entry.optional for entry in outputs])
    wanted = given.outputs or max(1, least)  # all of LSTM's are optional
    if not least <= wanted <= len(shapes):
        message = f"{given.schema.name} has {len(shapes)} outputs here, not {wanted}"
        given.refuse("output-count", ("outputs",), message, wanted, str(len(shapes)))
    for index in range(wanted):
        entry = outputs[min(index, len(outputs) - 1)]
        kind = types.get(entry.variable or entry.name) or given.types.get(entry.variable) or entry.types[0]
        if too_large(kind, shapes[index]) or len(shapes[index]) > 64:
            message = f"the output would have the shape {list(shapes[index])[:64]}, which no array here can have"
            given.refuse(
                "output-too-large", ("outputs",), message, None, "fewer than 2^63 bytes, at most 64 dimensions"
            )
        yield "output" if len(shapes) == 1 else names[index], OnnxTensor(kind, shapes[index])


# ---- element-wise ----------------------------------------------------------------------------------------------------


def _broadcast(given: GivenNode) -> InferredOutputs:
    """NumPy's broadcasting; before opset 7 one of `broadcast` and `axis`, before 8 none for any number of tensors."""
    shapes = given.shapes
    legacy = given.schema.attribute("broadcast") is not None
    if legacy and given.attributes.get("broadcast"):
        left, right = shapes
        start = given.axis("axis", len(left), len(left) - len(right), end=True) if len(right) <= len(left) else -1
        if start < 0 or left[start : start + len(right)] != right:
            message = f"B's shape {list(right)} does not match A's shape {list(left)} from axis {start} on"
            given.refuse("shapes-differ", ("inputs",), message, list(right), "equal sizes, from `axis` on")
        return _aligned(given, [left, (1,) * start + right + (1,) * (len(left) - start - len(right))])
    if (legacy or given.schema.inputs[0].variadic) and given.since < 8 and len(set(shapes)) > 1:
        hint = "set broadcast=1, or use opset 7" if legacy else "use opset 8, which broadcasts"
        message = f"the tensors have different shapes, and {given.schema.name} does not broadcast them; {hint}"
        given.refuse("shapes-differ", ("inputs",), message, [list(shape) for shape in shapes][:8], "equal shapes")
    return _aligned(given, shapes)


def _aligned(given: GivenNode, shapes: Sequence[Shape], to_first: bool = False) -> InferredOutputs:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    output = tuple([_common(sizes) for sizes in zip(*aligned, strict=True)])
    if -1 in output or (to_first and output != shapes[0]):
        message = f"shapes {', '.join(str(list(shape)) for shape in shapes[:8])} cannot be broadcast"
        message += " to the first one" if to_first else " to one shape"
        given.refuse("shapes-differ", ("inputs",), message, None, "sizes that are equal or 1, aligned to the right")
    equal = all(shape == output for shape in aligned)
    return InferredOutputs([output], () if equal else (("input_sizes", tuple(aligned)),))


def _common(sizes: Iterable[int]) -> int:
    """The size that all of these are broadcast to; -1 if there is none."""
    found = {*sizes} - {1}
    return 1 if not found else found.pop() if len(found) == 1 else -1


def _clip(given: GivenNode) -> InferredOutputs:
    for name, tensor in given.tensors.items():
        if name != "input" and tensor.shape:
            given.refuse("input-shape", ("inputs", name), f"{name} must be a scalar", list(tensor.shape), "rank 0")
    result = _broadcast(given)
    return result._replace(meaning=(*result.meaning, ("bounds", tuple([n for n in given.tensors if n != "input"]))))


def _prelu(given: GivenNode) -> InferredOutputs:
    x, slope = given.shapes
    if given.since < 7 and len(slope) == 1 < len(x):  # of channels
        slope = slope + (1,) * (len(x) - 2)
    return _aligned(given, [x, slope], to_first=True)


def _mod(given: GivenNode) -> InferredOutputs:
    integer = data_type(given.types["T"]).dtype.kind in "iu"
    if given.since < 28 and not integer and not given.attributes["fmod"]:
        message = "before opset 28 the remainder of floating-point numbers is C's fmod; set fmod=1"
        given.refuse("attribute-value", ("attributes", "fmod"), message, 0, "1")
    return _broadcast(given)


def _cast(given: GivenNode) -> InferredOutputs:
    target = given.attributes["to"]
    found = [
        row.numpy_name
        for row in DATA_TYPES
        if (row.onnx.upper() == target.upper() if isinstance(target, str) else row.onnx_code == target)
    ]
    allowed = [name for name in given.schema.outputs[0].types if name != "str"]  # which no body holds
    if not found or found[0] not in allowed:
        refuse_type(given, "to", "does not convert to", target, allowed)
    return InferredOutputs([given.first.shape], types={"T2": found[0]})


def _cast_like(given: GivenNode) -> InferredOutputs:
    """The second tensor only says its type, and is not read."""
    return InferredOutputs([given.first.shape], (("input_sizes", (given.first.shape,)),))


def _softmax(given: GivenNode) -> InferredOutputs:
    """Axes of the softmax: from opset 13 on one axis; before, all from `axis` on."""
    shape = given.first.shape
    axis = given.axis("axis", len(shape), end=given.since < 13)
    return InferredOutputs([shape], (("axes", tuple(range(axis, len(shape))) if given.since < 13 else (axis,)),))


_ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu Cos "
    "Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu "
    "Less LessOrEqual Log Max Mean Min Mish Mul Neg Not Or Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
    "Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "Mod": _mod,
    "PRelu": _prelu,
    "Softmax": _softmax,
    **MOVEMENT,
    **LINES,
}
"""What a node means, by operator."""
