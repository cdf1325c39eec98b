"""ONNX's element-wise operators and activations as expressions; a new one is a row.

float16 and bfloat16 are computed in float32 and rounded once, all other types in themselves, booleans as 0 and 1. Where
ONNX's text is silent: integers wrap, and are divided by 0 as DirectML divides them (`elementwise.py`); a comparison
with NaN is false; Max and Min of NaN are NaN; what no integer type holds is cast to the nearest number that it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.values.datatypes import data_type

from ..forms import Pointwise
from ..forms.expression import Expression, ExpressionLike, call, maximum, minimum, operand, where
from .activation import gelu, hard_sigmoid, sigmoid, softplus
from .elementwise_base import saturated
from .registry import form_of_node


def expression_form(
    node: OnnxNode, expression: Expression, *, types: tuple[str, ...] = (), wide: str = ""
) -> Pointwise:
    """The form of an expression of the node's tensors, broadcast as the node's meaning says.

    Args:
        node: the node.
        expression: what is computed; an operand stands for each tensor.
        types: NumPy names of the types that each is converted to; default those described at the top of the file.
        wide: type of the constants; default the type of the last tensor.
    """
    types = types or tuple([_computed(tensor.data_type) for _, tensor in node.tensors])
    input_sizes = dict(node.parameters).get("input_sizes", ())
    return Pointwise(expression, types, wide or types[-1], input_sizes=input_sizes)


def _computed(name: str) -> str:
    return {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(name, name)


def _kind(node: OnnxNode) -> str:
    return node.input.row.dtype.kind if node.input.data_type != "bfloat16" else "f"


def _attribute(node: OnnxNode, name: str) -> Any:
    value = node.attribute(name)
    assert value is not None
    return value


def _function(name: str) -> Callable[[OnnxNode, Expression], Expression]:
    return lambda _, x: call(name, x)


_UNARY: dict[str, Callable[[OnnxNode, Expression], Expression]] = {
    **{name: _function(function) for name, function in {
        "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
        "Atanh": "arctanh", "BitwiseNot": "invert", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
        "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "negative", "Round": "rint", "Sin": "sin",
        "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
    }.items()},
    "Abs": lambda node, x: x if _kind(node) == "u" else abs(x),
    "Celu": lambda node, x: _celu(x, _attribute(node, "alpha")),
    "Elu": lambda node, x: where(x < 0.0, call("expm1", x) * _attribute(node, "alpha"), x),
    "Gelu": lambda node, x: gelu(x) if node.attribute("approximate") == "none" else _gelu_by_tanh(x),
    "HardSigmoid": lambda node, x: hard_sigmoid(x, _attribute(node, "alpha"), _attribute(node, "beta")),
    "HardSwish": lambda _, x: x * hard_sigmoid(x, 1 / 6, 0.5),
    "IsInf": lambda node, x: _is_infinity(node, x),
    "IsNaN": lambda _, x: call("not_equal", x, x),
    "LeakyRelu": lambda node, x: where(x < 0.0, x * _attribute(node, "alpha"), x),
    "Mish": lambda _, x: x * call("tanh", softplus(x)),
    "Not": lambda _, x: call("equal", x, 0),
    "Reciprocal": lambda _, x: 1.0 / x,
    "Relu": lambda _, x: maximum(x, 0),
    "Selu": lambda node, x: _selu(x, _attribute(node, "alpha"), _attribute(node, "gamma")),
    "Sigmoid": lambda _, x: sigmoid(x),
    "Sign": lambda node, x: _sign(_kind(node), x),
    "Softplus": lambda _, x: softplus(x),
    "Softsign": lambda _, x: x / (1.0 + abs(x)),
    "Swish": lambda node, x: x * sigmoid(x * _attribute(node, "alpha")),
    "ThresholdedRelu": lambda node, x: where(x > _attribute(node, "alpha"), x, 0.0),
}  # fmt: skip

_BINARY: dict[str, Callable[[OnnxNode, Expression, Expression], Expression]] = {
    "Add": lambda _, a, b: a + b,
    "And": lambda _, a, b: call("not_equal", a, 0) & call("not_equal", b, 0),
    "BitShift": lambda node, a, b: a << b if node.attribute("direction") == "LEFT" else a >> b,
    "BitwiseAnd": lambda _, a, b: a & b,
    "BitwiseOr": lambda _, a, b: a | b,
    "BitwiseXor": lambda _, a, b: a ^ b,
    "Div": lambda node, a, b: _quotient(node, a, b),
    "Equal": lambda _, a, b: call("equal", a, b),
    "Greater": lambda _, a, b: a > b,
    "GreaterOrEqual": lambda _, a, b: a >= b,
    "Less": lambda _, a, b: a < b,
    "LessOrEqual": lambda _, a, b: a <= b,
    "Mod": lambda node, a, b: _remainder(node, a, b),
    "Mul": lambda _, a, b: a * b,
    "Or": lambda _, a, b: call("not_equal", a, 0) | call("not_equal", b, 0),
    "PRelu": lambda _, x, slope: where(x < 0, x * slope, x),
    "Sub": lambda _, a, b: a - b,
    "Xor": lambda _, a, b: call("not_equal", a, 0) ^ call("not_equal", b, 0),
}

_VARIADIC: dict[str, Callable[[list[Expression]], Expression]] = {
    "Max": lambda xs: reduce(maximum, xs),
    "Mean": lambda xs: reduce(_sum, xs) / float(len(xs)),
    "Min": lambda xs: reduce(minimum, xs),
    "Sum": lambda xs: reduce(_sum, xs),
}


@form_of_node(*_UNARY, *_BINARY, *_VARIADIC)
def element_form(node: OnnxNode) -> Pointwise:
    """The formula of the operator."""
    xs = [operand(index) for index in range(len(node.tensors))]
    if node.op_type in _UNARY:
        return expression_form(node, _UNARY[node.op_type](node, xs[0]))
    if node.op_type in _BINARY:
        return expression_form(node, _BINARY[node.op_type](node, xs[0], xs[1]))
    return expression_form(node, _VARIADIC[node.op_type](xs))


def _sum(a: Expression, b: Expression) -> Expression:
    return a + b


def _sign(kind: str, x: Expression) -> Expression:
    return where(x > 0, 1, 0 if kind == "u" else where(x < 0, -1, x if kind == "f" else 0))


def _selu(x: Expression, alpha: float, gamma: float) -> Expression:
    return gamma * where(x > 0.0, x, call("expm1", x) * alpha)


def _celu(x: Expression, alpha: float) -> Expression:
    return maximum(x, 0.0) + minimum(call("expm1", x / alpha) * alpha, 0.0)


def _is_infinity(node: OnnxNode, x: Expression) -> Expression:
    either = node.attribute("detect_negative"), node.attribute("detect_positive")
    if either == (0, 0):
        return call("equal", x, x) & call("not_equal", x, x)
    if either == (1, 1):
        return call("equal", abs(x), math.inf)
    return call("equal", x, -math.inf if either == (1, 0) else math.inf)


def _by_zero(node: OnnxNode, a: Expression) -> ExpressionLike:
    dtype = node.input.row.dtype
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else where(a < 0, 1, -1)


def _quotient(node: OnnxNode, a: Expression, b: Expression) -> Expression:
    """Integers toward zero."""
    if _kind(node) == "f":
        return a / b
    return where(call("equal", b, 0), _by_zero(node, a), call("divide_integers", a, b))


def _remainder(node: OnnxNode, a: Expression, b: Expression) -> Expression:
    """Remainder with A's sign if `fmod` is set, else with B's; so has a remainder of 0."""
    rest = call("fmod", a, b)
    if node.attribute("fmod"):
        return rest
    zero = where(b < 0, -0.0, 0.0) if _kind(node) == "f" else 0
    moved = where((rest < 0) ^ (b < 0), rest + b, rest)
    return where(call("equal", rest, 0), zero, moved)


def _gelu_by_tanh(x: Expression) -> Expression:
    return 0.5 * x * (1.0 + call("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@form_of_node("Pow")
def power_form(node: OnnxNode) -> Pointwise:
    """Power in the type of the base, which is the result's; integers to floating-point powers in float64, truncated."""
    (_, base), (_, exponent) = node.tensors
    integer, whole = _kind(node) in "iu", data_type(exponent.data_type).dtype.kind in "iu"
    if integer and whole:
        power = call("power_integers", operand(0), operand(1))
        return expression_form(node, power, types=(base.data_type,) * 2)
    power = call("power", operand(0), operand(1))
    if integer:
        return expression_form(node, saturated(power, base.data_type), types=("float64", "float64"))
    wide = _computed(base.data_type)
    return expression_form(node, power, types=(wide, wide))


@form_of_node("Clip")
def clip_form(node: OnnxNode) -> Pointwise:
    """`min(max(x, min), max)`: max wins where it is below min."""
    names = [name for name, _ in node.tensors]

    def bound(name: str) -> ExpressionLike | None:
        if name in names:
            return operand(names.index(name))
        value = node.attribute(name)
        return value if isinstance(value, float) else None

    x, low, high = operand(0), bound("min"), bound("max")
    made = x if low is None else maximum(x, low)
    return expression_form(node, made if high is None else minimum(made, high))


@form_of_node("Where")
def where_form(node: OnnxNode) -> Pointwise:
    """Elements keep their bits."""
    name = node.tensors[1][1].data_type
    bits = name == "bfloat16"  # which array libraries do not choose between
    name = "uint16" if bits else name
    made = expression_form(node, where(operand(0), operand(1), operand(2)), types=("uint8", name, name), wide=name)
    return replace(made, of_bits=bits)


@form_of_node("Shrink")
def shrink_form(node: OnnxNode) -> Pointwise:
    """Integers are computed in float64, truncated and saturated."""
    bias, bound, x = _attribute(node, "bias"), _attribute(node, "lambd"), operand(0)
    made = where(x < -bound, x + bias, where(x > bound, x - bias, 0.0))
    if _kind(node) == "f":
        return expression_form(node, made)
    return expression_form(node, saturated(made, node.input.data_type), types=("float64",))


@form_of_node("Cast", "CastLike")
def cast_form(node: OnnxNode) -> Pointwise:
    """Floating-point numbers to integers toward zero; whatever is not 0 to true; integers modulo the target's range."""
    source, target = node.input.data_type, node.output.data_type
    from_float = data_type(source).dtype.kind == "f" or source == "bfloat16"
    if target == "bool":
        wide = _computed(source)
        return expression_form(node, call("not_equal", operand(0), 0), types=(wide,))
    if from_float and data_type(target).dtype.kind in "iu":
        return expression_form(node, saturated(operand(0), target), types=("float64",))
    own = {"bool": "uint8", "bfloat16": "float32"}.get(source, source)
    return expression_form(node, operand(0), types=(own,))
