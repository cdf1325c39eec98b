"""How a formula of elements becomes a `Pointwise` form: the types it is computed in, ScaleBias and saturation.

Choices where DirectML's pages are silent: FLOAT16 is computed in float32 and rounded once; ScaleBias is applied in the
type that the operator is computed in, rounded after the product and after the sum.

DirectML's answers decide, for integers: with a ScaleBias they are computed in float32, truncated toward zero and
saturated. Results of 32 and 64 bits wrap modulo 2^bits. Those of 8 and 16 bits wrap in ADD, SUBTRACT, MULTIPLY, DIVIDE
and ACTIVATION_PARAMETERIZED_RELU; in ABS, NEGATE, POW and CAST they are computed in 32 bits and `limited`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tensorpost.descriptors import OperatorDesc, ScaleBias

from ..forms import Pointwise
from ..forms.expression import Expression, call, maximum, minimum, operand, where
from .registry import form_of_class

Formula: TypeAlias = Callable[[Any, list[Expression]], Expression]
"""An expression of the descriptor's fields that are no tensors, and of its operands."""
FORMULAS: dict[str, Formula] = {}
"""Formulas by operator, for ONNX's operators of the same function and for fused activations."""


def computed_type(name: str) -> str:
    """The type that elements of a NumPy type are computed in: float32 for float16, else their own."""
    return "float32" if name == "float16" else name


def with_formula(cls: type[OperatorDesc], formula: Formula) -> None:
    """Give an operator its formula."""

    def make(desc: OperatorDesc) -> Pointwise:
        return pointwise(desc, formula(desc, operands(desc)))

    FORMULAS[cls.operator_type] = formula
    form_of_class(cls)(make)


def unary(cls: type[OperatorDesc], formula: Callable[[Expression], Expression]) -> None:
    """Give an operator of one input its formula."""
    with_formula(cls, lambda _, x: formula(*x))


def binary(cls: type[OperatorDesc], formula: Callable[[Expression, Expression], Expression]) -> None:
    """Give an operator of two inputs its formula."""
    with_formula(cls, lambda _, x: formula(*x))


def pointwise(desc: OperatorDesc, expression: Expression, computed_in: str | None = None) -> Pointwise:
    """The form of an expression of the `operands`.

    Args:
        desc: the operator, with or without a ScaleBias.
        expression: what is computed.
        computed_in: NumPy name of the type that it is computed in; by default the first input's, and float32 for
            integers with a ScaleBias. From a floating-point type integers are saturated.
    """
    types = [slot.layout.data_type.numpy_name for slot in desc.inputs]
    integer = np.dtype(types[0]).kind in "iu"
    scaled = integer and scaling(desc) is not None
    wide = computed_in or ("float32" if scaled else computed_type(types[0]))
    if integer and wide.startswith("float"):
        expression = saturated(expression, types[0])
    return Pointwise(expression, (wide,) * len(types), wide)


def scaling(desc: OperatorDesc) -> ScaleBias | None:
    """The descriptor's ScaleBias, if any; None where integers would stay as they are, as in DirectML.

    Of 64 bits only a Scale of 1 and a Bias of 0 are legal.
    """
    found: ScaleBias | None = getattr(desc, "scale_bias", None)
    dtype = desc.inputs[0].layout.data_type.dtype
    if found is None or dtype.itemsize == 8:
        return None
    return None if dtype.kind in "iu" and (found.scale, found.bias) == (1.0, 0.0) else found


def operands(desc: OperatorDesc) -> list[Expression]:
    """An operand for each input, the first one after the descriptor's ScaleBias if it has one."""
    found = [operand(index) for index in range(len(desc.inputs))]
    scale_bias = scaling(desc)
    if scale_bias is not None:
        found[0] = found[0] * scale_bias.scale + scale_bias.bias
    return found


def saturated(expression: Expression, integer: str) -> Expression:
    """A floating-point expression as an integer: truncated toward zero, limited to the type's range, NaN as 0.

    The largest number of a 64-bit type is not a floating-point number; what reaches it becomes the one below.
    """
    if integer in ("int32", "uint32"):  # whose largest number is not a float32
        return call(f"saturate_{integer}", expression)
    limits, low = np.iinfo(integer), float(np.iinfo(integer).min)
    high = float(limits.max)
    if int(high) > limits.max:
        high = float(np.nextafter(np.float64(high), 0))
    whole = maximum(minimum(call("trunc", expression), high), low)
    return where(call("equal", expression, expression), whole, 0.0)


def wide_integer(integer: str) -> str:
    """The type of 32 bits that Direct3D computes integers of fewer bits in, of the same sign; else the type itself."""
    return {1: f"{integer[:-1]}32", 2: f"{integer[:-2]}32"}.get(np.dtype(integer).itemsize, integer)


def limited(expression: Expression, integer: str) -> Expression:
    """An expression in `wide_integer` as an element of 8 or 16 bits: the nearest number that the type holds.

    So Direct3D writes integers that their type cannot hold: clamped, not wrapped.
    """
    if np.dtype(integer).itemsize > 2:
        return expression
    limits = np.iinfo(integer)
    limited_above = minimum(expression, int(limits.max))
    return maximum(limited_above, int(limits.min)) if limits.min else limited_above
