"""Element-wise operators as expressions. A new one is a line: its class, and a formula of its operands.

Choices where DirectML's pages are silent: FLOAT16 is computed in float32 and rounded once; ScaleBias is applied in the
type that the operator is computed in, rounded after the product and after the sum; integers with a ScaleBias are
computed in float64, truncated toward zero and saturated; integer results wrap modulo 2^bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import OperatorDesc

from ..forms import Pointwise
from ..forms.expression import Expression, call, maximum, minimum, operand, where
from .registry import form_of_class

__all__ = ["binary", "computed_type", "saturated", "unary"]


def computed_type(name: str) -> str:
    """The type that elements of a NumPy type are computed in: float32 for float16, else their own."""
    return "float32" if name == "float16" else name


def unary(cls: type[OperatorDesc], formula: Callable[[Expression], Expression]) -> None:
    """Give an operator of one input its formula."""

    def make(desc: OperatorDesc) -> Pointwise:
        return _form(desc, formula)

    form_of_class(cls)(make)


def binary(cls: type[OperatorDesc], formula: Callable[[Expression, Expression], Expression]) -> None:
    """Give an operator of two inputs its formula."""

    def make(desc: OperatorDesc) -> Pointwise:
        return _form(desc, formula)

    form_of_class(cls)(make)


def _form(desc: OperatorDesc, formula: Callable[..., Expression]) -> Pointwise:
    """The form of a formula of the operands, in the type of the first input."""
    types = [slot.layout.data_type.numpy_name for slot in desc.inputs]
    operands = [operand(index) for index in range(len(types))]
    scale_bias = getattr(desc, "scale_bias", None)
    integer = np.dtype(types[0]).kind in "iu"
    computed_in = "float64" if scale_bias is not None and integer else computed_type(types[0])
    if scale_bias is not None:
        operands[0] = operands[0] * scale_bias.scale + scale_bias.bias
    expression = formula(*operands)
    if scale_bias is not None and integer:
        expression = saturated(expression, types[0])
    return Pointwise(expression, (computed_in,) * len(types), computed_in)


def saturated(expression: Expression, integer: str) -> Expression:
    """A floating-point expression as an integer: truncated toward zero, limited to the type's range, NaN as 0.

    The largest number of a 64-bit type is no floating-point number; what reaches it becomes the one below.
    """
    limits, low = np.iinfo(integer), float(np.iinfo(integer).min)
    high = float(limits.max)
    if int(high) > limits.max:
        high = float(np.nextafter(np.float64(high), 0))
    whole = maximum(minimum(call("trunc", expression), high), low)
    return where(call("equal", expression, expression), whole, 0.0)


def _gelu(x: Expression) -> Expression:
    """By the limit for -infinity, where the formula as it stands would be NaN: FLOAT32's lowest number gives it."""
    finite = maximum(x, -3.4028234663852886e38)
    return finite * 0.5 * (1.0 + call("erf", finite * 0.7071067811865476))


unary(dml.ElementWiseIdentityOperatorDesc, lambda x: x)
unary(dml.ElementWiseAbsOperatorDesc, lambda x: abs(x))
unary(dml.ElementWiseExpOperatorDesc, lambda x: call("exp", x))
binary(dml.ElementWiseAddOperatorDesc, lambda a, b: a + b)
binary(dml.ElementWiseSubtractOperatorDesc, lambda a, b: a - b)
binary(dml.ElementWiseMultiplyOperatorDesc, lambda a, b: a * b)
binary(dml.ElementWiseMaxOperatorDesc, maximum)
binary(dml.ElementWiseMinOperatorDesc, minimum)
unary(dml.ActivationReluOperatorDesc, lambda x: maximum(x, 0.0))
unary(dml.ActivationGeluOperatorDesc, _gelu)


@form_of_class(dml.ElementWiseDivideOperatorDesc)
def divide_form(desc: dml.ElementWiseDivideOperatorDesc) -> Pointwise:
    """A / B; integers toward zero, and 0 where the divisor is 0."""
    function = "divide_integers" if desc.a_tensor.dtype.kind in "iu" else "divide"
    return _form(desc, partial(call, function))


@form_of_class(dml.ElementWiseClipOperatorDesc)
def clip_form(desc: dml.ElementWiseClipOperatorDesc) -> Pointwise:
    """`max(Min, min(x, Max))`, the bounds cast to the tensor's type: truncated and saturated for integers."""
    dtype = desc.input_tensor.dtype
    low: float = desc.min
    high: float = desc.max
    if dtype.kind in "iu" and desc.scale_bias is None:
        limits = np.iinfo(dtype)
        low, high = (min(max(int(bound), int(limits.min)), int(limits.max)) for bound in (low, high))
    elif dtype.itemsize == 2:
        with np.errstate(over="ignore"):
            low, high = (float(np.float16(bound)) for bound in (low, high))

    def formula(x: Expression) -> Expression:
        return maximum(minimum(x, high), low)

    return _form(desc, formula)


@form_of_class(dml.ElementWiseIfOperatorDesc)
def if_form(desc: dml.ElementWiseIfOperatorDesc) -> Pointwise:
    """Elements keep their type, float16 too, so that every NaN passes unchanged."""
    name = desc.a_tensor.dtype.name
    return Pointwise(where(operand(0), operand(1), operand(2)), ("uint8", name, name), name)


@form_of_class(dml.CastOperatorDesc)
def cast_form(desc: dml.CastOperatorDesc) -> Pointwise:
    """DML_CAST_OPERATOR_DESC; the conversions are tensorpost's choice, see the descriptor."""
    source, target = desc.input_tensor.dtype, desc.output_tensor.dtype
    if source.kind == "f" and target.kind in "iu":
        wide = "float64" if target.itemsize >= 4 or source.itemsize == 8 else "float32"
        return Pointwise(saturated(operand(0), target.name), (wide,), wide)
    return Pointwise(operand(0), (source.name,), source.name)
