"""How a formula of elements becomes a `Pointwise` form: the types it is computed in, ScaleBias and saturation.

Choices where DirectML's pages are silent: FLOAT16 is computed in float32 and rounded once; ScaleBias is applied in the
type that the operator is computed in, rounded after the product and after the sum; integers with a ScaleBias are
computed in float64, truncated toward zero and saturated; integer results wrap modulo 2^bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorpost.descriptors import OperatorDesc, ScaleBias

from ..forms import Pointwise
from ..forms.expression import Expression, call, maximum, minimum, operand, where
from .registry import form_of_class

__all__ = ["binary", "computed_type", "operands", "pointwise", "saturated", "unary"]


def computed_type(name: str) -> str:
    """The type that elements of a NumPy type are computed in: float32 for float16, else their own."""
    return "float32" if name == "float16" else name


def unary(cls: type[OperatorDesc], formula: Callable[[Expression], Expression]) -> None:
    """Give an operator of one input its formula."""

    def make(desc: OperatorDesc) -> Pointwise:
        return pointwise(desc, formula(*operands(desc)))

    form_of_class(cls)(make)


def binary(cls: type[OperatorDesc], formula: Callable[[Expression, Expression], Expression]) -> None:
    """Give an operator of two inputs its formula."""

    def make(desc: OperatorDesc) -> Pointwise:
        return pointwise(desc, formula(*operands(desc)))

    form_of_class(cls)(make)


def pointwise(desc: OperatorDesc, expression: Expression, computed_in: str | None = None) -> Pointwise:
    """The form of an expression of the `operands`.

    Args:
        desc: with or without a ScaleBias.
        expression: what is computed.
        computed_in: NumPy name of the type that it is computed in, and saturated from for integers; by default the
            first input's, and float64 for integers with a ScaleBias.
    """
    types = [slot.layout.data_type.numpy_name for slot in desc.inputs]
    integer = np.dtype(types[0]).kind in "iu"
    saturates = integer and (getattr(desc, "scale_bias", None) is not None or computed_in == "float64")
    wide = "float64" if saturates else computed_in or computed_type(types[0])
    if saturates:
        expression = saturated(expression, types[0])
    return Pointwise(expression, (wide,) * len(types), wide)


def operands(desc: OperatorDesc) -> list[Expression]:
    """An operand for each input, the first one after the descriptor's ScaleBias if it has one."""
    found = [operand(index) for index in range(len(desc.inputs))]
    scale_bias: ScaleBias | None = getattr(desc, "scale_bias", None)
    if scale_bias is not None:
        found[0] = found[0] * scale_bias.scale + scale_bias.bias
    return found


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
