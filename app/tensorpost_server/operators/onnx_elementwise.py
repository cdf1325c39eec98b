"""ONNX's element-wise operators and activations as expressions.

An operator whose `ElementWiseTwin` names a DirectML operator with a formula (`FORMULAS`) is computed by that, and needs
nothing here. Others have a row: what DirectML does not have, or answers otherwise for some elements.

float16 and bfloat16 are computed in float32 and rounded once, all other types in themselves, booleans as 0 and 1. Where
ONNX's text is silent: integers wrap, and are divided by 0 as DirectML divides them (`elementwise.py`); a comparison
with NaN is false; Max and Min of NaN are NaN; what no integer type holds is cast to the nearest number that it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.directml_twins import ElementWiseTwin
from tensorpost.onnx.parameters import BroadcastParameters
from tensorpost.onnx.shapes import row_of
from tensorpost.values.datatypes import data_type

from ..forms import Copies, Form, Pointwise
from ..forms.expression import Expression, ExpressionLike, call, maximum, minimum, operand, where
from .activation import gelu, hard_sigmoid, sigmoid, softplus
from .elementwise import floored_remainder, quotient
from .elementwise_base import FORMULAS, saturated
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
    input_sizes = node.parameters_as(BroadcastParameters).input_sizes
    return Pointwise(expression, types, wide or types[-1], input_sizes=input_sizes)


def _computed(name: str) -> str:
    return {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}.get(name, name)


def _dtype(node: OnnxNode) -> np.dtype[Any]:
    return np.dtype(_computed(node.input.data_type))


def _attribute(node: OnnxNode, name: str) -> Any:
    value = node.attribute(name)
    assert value is not None
    return value


def twin_form(node: OnnxNode) -> Pointwise:
    """The formula of DirectML's operator, of two tensors after another where there are more."""
    twin = row_of(node.op_type).twin
    assert isinstance(twin, ElementWiseTwin)
    formula, fields = FORMULAS[twin.operator], SimpleNamespace(**twin.fields(node))
    xs = [operand(index) for index in range(len(node.tensors))]
    variadic = node.schema.inputs[0].variadic
    return expression_form(node, reduce(lambda a, b: formula(fields, [a, b]), xs) if variadic else formula(fields, xs))


_UNARY: dict[str, Callable[[OnnxNode, Expression], Expression]] = {
    "Abs": lambda node, x: x if _dtype(node).kind == "u" else abs(x),
    "Gelu": lambda node, x: gelu(x) if node.attribute("approximate") == "none" else _gelu_by_tanh(x),
    "HardSwish": lambda _, x: x * hard_sigmoid(x, 1 / 6, 0.5),
    "Mish": lambda _, x: x * call("tanh", softplus(x)),
    "Neg": lambda _, x: -x,
    "Relu": lambda _, x: maximum(x, 0),
    "Round": lambda _, x: call("rint", x),
    "Sign": lambda node, x: _sign(_dtype(node).kind, x),
    "Softplus": lambda _, x: softplus(x),
    "Softsign": lambda _, x: x / (1.0 + abs(x)),
    "Swish": lambda node, x: x * sigmoid(x * _attribute(node, "alpha")),
}

_BINARY: dict[str, Callable[[OnnxNode, Expression, Expression], Expression]] = {
    "BitShift": lambda node, a, b: a << b if node.attribute("direction") == "LEFT" else a >> b,
    "SwiGLU": lambda node, a, b: a * sigmoid(a * _attribute(node, "alpha")) * b,
    "Div": lambda node, a, b: quotient(_dtype(node), a, b),
    "Mod": lambda node, a, b: call("fmod", a, b) if node.attribute("fmod") else floored_remainder(_dtype(node), a, b),
}


@form_of_node(*_UNARY)
def unary_form(node: OnnxNode) -> Pointwise:
    """The formula of the operator."""
    return expression_form(node, _UNARY[node.op_type](node, operand(0)))


@form_of_node(*_BINARY)
def binary_form(node: OnnxNode) -> Pointwise:
    """The formula of the operator."""
    return expression_form(node, _BINARY[node.op_type](node, operand(0), operand(1)))


@form_of_node("Mean")
def mean_form(node: OnnxNode) -> Pointwise:
    """The sum, divided by how many there are."""
    xs = [operand(index) for index in range(len(node.tensors))]
    return expression_form(node, reduce(lambda a, b: a + b, xs) / float(len(xs)))


def _sign(kind: str, x: Expression) -> Expression:
    return where(x > 0, 1, 0 if kind == "u" else where(x < 0, -1, x if kind == "f" else 0))


def infinity_form(node: OnnxNode) -> Pointwise:
    """IsInf of a type that expressions compute."""
    x = operand(0)
    negative, positive = (bool(node.attribute(f"detect_{sign}")) for sign in ("negative", "positive"))
    if not (negative or positive):
        return expression_form(node, call("equal", x, x) & call("not_equal", x, x))
    infinity = math.inf if positive else -math.inf
    return expression_form(node, call("equal", abs(x) if negative and positive else x, infinity))


def _gelu_by_tanh(x: Expression) -> Expression:
    return 0.5 * x * (1.0 + call("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@form_of_node("Pow")
def power_form(node: OnnxNode) -> Pointwise:
    """Power in the type of the base, which is the result's; integers to floating-point powers in float64, truncated."""
    (_, base), (_, exponent) = node.tensors
    integer, whole = _dtype(node).kind in "iu", data_type(exponent.data_type).dtype.kind in "iu"
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
    raised = x if low is None else maximum(x, low)
    return expression_form(node, raised if high is None else minimum(raised, high))


@form_of_node("Where")
def where_form(node: OnnxNode) -> Pointwise:
    """Elements keep their bits."""
    name = node.tensors[1][1].data_type
    bits = name == "bfloat16"  # which array libraries do not choose between
    name = "uint16" if bits else name
    form = expression_form(node, where(operand(0), operand(1), operand(2)), types=("uint8", name, name), wide=name)
    return replace(form, of_bits=bits)


@form_of_node("Shrink")
def shrink_form(node: OnnxNode) -> Pointwise:
    """Integers are computed in float64, truncated and saturated."""
    bias, bound, x = _attribute(node, "bias"), _attribute(node, "lambd"), operand(0)
    shrunk = where(x < -bound, x + bias, where(x > bound, x - bias, 0.0))
    if _dtype(node).kind == "f":
        return expression_form(node, shrunk)
    return expression_form(node, saturated(shrunk, node.input.data_type), types=("float64",))


@form_of_node("BitCast")
def bit_cast_form(node: OnnxNode) -> Form:
    """The bits of each element."""
    if node.input.data_type == node.output.data_type:
        return (
            Copies.of_box(node.output.shape) if 0 not in node.output.shape else Copies((len(node.output.shape),), ((),))
        )
    bits = f"uint{8 * node.input.row.item_size}"
    return replace(expression_form(node, operand(0), types=(bits,), wide=bits), of_bits=True)


def cast(source: str, target: str) -> Pointwise:
    """Floating-point numbers to integers toward zero; whatever is not 0 to true; integers modulo the target's range."""
    if target == "bool":
        wide = _computed(source)
        return Pointwise(call("not_equal", operand(0), 0), (wide,), wide)
    if data_type(source).kind == "f" and data_type(target).kind in "iu":
        return Pointwise(saturated(operand(0), target), ("float64",), "float64")
    wide = {"bool": "uint8", "bfloat16": "float32"}.get(source, source)
    return Pointwise(operand(0), (wide,), wide)
