"""Element-wise operators as expressions. A new one is a line: its class, and a formula of its operands.

Choices where DirectML's pages are silent, beside those of `elementwise_base.py`: angles are radians; outside their
domain functions give what C's do (NaN, infinities); a remainder of 0 has the sign of A or, in MODULUS_FLOOR, of B;
negative powers of integers are truncated toward zero; an integer to a floating-point power is computed in float64,
truncated and saturated, where there is no ScaleBias.

DirectML's answers decide for integers divided by 0: all bits are set in an unsigned quotient or remainder, as
Direct3D's `udiv` has it; a signed quotient is 1 of a negative number and -1 of another one; the signed remainder is the
number itself in MODULUS_TRUNCATE, and the quotient in MODULUS_FLOOR. 64 bits, which could not be asked, follow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorpost import descriptors as dml

from ..forms import Pointwise
from ..forms.expression import Expression, ExpressionLike, call, maximum, minimum, operand, where
from .activation import activated
from .elementwise_base import binary, limited, operands, pointwise, saturated, scaling, unary, wide_integer
from .registry import form_of_class

unary(dml.ElementWiseIdentityOperatorDesc, lambda x: x)
unary(dml.ElementWiseRecipOperatorDesc, lambda x: 1.0 / x)
unary(dml.ElementWiseCeilOperatorDesc, lambda x: call("ceil", x))
unary(dml.ElementWiseFloorOperatorDesc, lambda x: call("floor", x))
unary(dml.ElementWiseExpOperatorDesc, lambda x: call("exp", x))
unary(dml.ElementWiseLogOperatorDesc, lambda x: call("log", x))
unary(dml.ElementWiseSqrtOperatorDesc, lambda x: call("sqrt", x))
unary(dml.ElementWiseErfOperatorDesc, lambda x: call("erf", x))
unary(dml.ElementWiseSinOperatorDesc, lambda x: call("sin", x))
unary(dml.ElementWiseCosOperatorDesc, lambda x: call("cos", x))
unary(dml.ElementWiseTanOperatorDesc, lambda x: call("tan", x))
unary(dml.ElementWiseAsinOperatorDesc, lambda x: call("arcsin", x))
unary(dml.ElementWiseAcosOperatorDesc, lambda x: call("arccos", x))
unary(dml.ElementWiseAtanOperatorDesc, lambda x: call("arctan", x))
unary(dml.ElementWiseSinhOperatorDesc, lambda x: call("sinh", x))
unary(dml.ElementWiseCoshOperatorDesc, lambda x: call("cosh", x))
unary(dml.ElementWiseTanhOperatorDesc, lambda x: call("tanh", x))
unary(dml.ElementWiseAsinhOperatorDesc, lambda x: call("arcsinh", x))
unary(dml.ElementWiseAcoshOperatorDesc, lambda x: call("arccosh", x))
unary(dml.ElementWiseAtanhOperatorDesc, lambda x: call("arctanh", x))
binary(dml.ElementWiseAddOperatorDesc, lambda a, b: a + b)
binary(dml.ElementWiseSubtractOperatorDesc, lambda a, b: a - b)
binary(dml.ElementWiseMultiplyOperatorDesc, lambda a, b: a * b)
binary(dml.ElementWiseDifferenceSquareOperatorDesc, lambda a, b: (a - b) * (a - b))
binary(dml.ElementWiseMaxOperatorDesc, maximum)
binary(dml.ElementWiseMinOperatorDesc, minimum)
binary(dml.ElementWiseAtanYxOperatorDesc, lambda a, b: call("arctan2", a, b))


@form_of_class(dml.ElementWiseAbsOperatorDesc, dml.ElementWiseNegateOperatorDesc)
def magnitude_form(desc: dml.ElementWiseAbsOperatorDesc | dml.ElementWiseNegateOperatorDesc) -> Pointwise:
    """The absolute or the opposite value: of the least integer of 8 or 16 bits the largest, of more bits itself."""
    (x,), name = operands(desc), desc.input_tensor.dtype.name
    made = abs(x) if isinstance(desc, dml.ElementWiseAbsOperatorDesc) else -x
    if desc.input_tensor.dtype.kind == "f" or scaling(desc) is not None:
        return pointwise(desc, made)
    return pointwise(desc, limited(made, name), wide_integer(name))


@form_of_class(dml.ElementWiseAdd1OperatorDesc)
def add1_form(desc: dml.ElementWiseAdd1OperatorDesc) -> Pointwise:
    """The activation of the sum, which is not rounded to FLOAT16 between them."""
    return pointwise(desc, activated(desc.fused_activation, operand(0) + operand(1)))


@form_of_class(dml.ElementWiseDivideOperatorDesc)
def divide_form(desc: dml.ElementWiseDivideOperatorDesc) -> Pointwise:
    """See `quotient`."""
    return pointwise(desc, quotient(desc.a_tensor.dtype, operand(0), operand(1)))


def quotient(dtype: np.dtype[Any], a: Expression, b: Expression) -> Expression:
    """A / B in a type, integers toward zero."""
    if dtype.kind not in "iu":
        return a / b
    return where(call("equal", b, 0), _by_zero(dtype, a), call("divide_integers", a, b))


def _by_zero(dtype: np.dtype[Any], a: Expression) -> ExpressionLike:
    """An integer divided by 0."""
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else where(a < 0, 1, -1)


@form_of_class(dml.ElementWiseMeanOperatorDesc)
def mean_form(desc: dml.ElementWiseMeanOperatorDesc) -> Pointwise:
    """(A + B) / 2; a sum of integers wraps before it is halved, toward zero, as DirectML's does."""
    total = operand(0) + operand(1)
    if desc.a_tensor.dtype.kind == "f":
        return pointwise(desc, total * 0.5)
    return pointwise(desc, call("divide_integers", total, 2))


@form_of_class(dml.ElementWiseModulusTruncateOperatorDesc)
def modulus_truncate_form(desc: dml.ElementWiseModulusTruncateOperatorDesc) -> Pointwise:
    """The remainder of the division toward zero, of A's sign."""
    a, b = operand(0), operand(1)
    rest, dtype = call("fmod", a, b), desc.a_tensor.dtype
    if dtype.kind == "f":
        return pointwise(desc, rest)
    by_zero = int(np.iinfo(dtype).max) if dtype.kind == "u" else a
    return pointwise(desc, where(call("equal", b, 0), by_zero, rest))


@form_of_class(dml.ElementWiseModulusFloorOperatorDesc)
def modulus_floor_form(desc: dml.ElementWiseModulusFloorOperatorDesc) -> Pointwise:
    """See `floored_remainder`."""
    a, b, dtype = operand(0), operand(1), desc.a_tensor.dtype
    rest = floored_remainder(dtype, a, b)
    return pointwise(desc, rest if dtype.kind == "f" else where(call("equal", b, 0), _by_zero(dtype, a), rest))


def floored_remainder(dtype: np.dtype[Any], a: Expression, b: Expression) -> Expression:
    """The remainder of the division toward zero, moved to B's side of 0; a 0 has B's sign."""
    rest = call("fmod", a, b)
    zero = 0 if dtype.kind in "iu" else where(b < 0, -0.0, 0.0)
    return where(call("equal", rest, 0), zero, where((rest < 0) ^ (b < 0), rest + b, rest))


@form_of_class(dml.ElementWisePowOperatorDesc)
def pow_form(desc: dml.ElementWisePowOperatorDesc) -> Pointwise:
    """Powers of integers by integers are exact; floating-point ones are as wide as every exponent needs.

    DirectML applies the ScaleBias to the exponent too, and truncates both to 32 bits where they are integers.
    """
    base, exponent = desc.input_tensor.dtype, desc.exponent_tensor.dtype
    (x, power), scale_bias = operands(desc), scaling(desc)
    if scale_bias is not None:
        power = power * scale_bias.scale + scale_bias.bias
        x = saturated(x, wide_integer(base.name)) if base.kind in "iu" else x
        power = saturated(power, wide_integer(exponent.name)) if exponent.kind in "iu" else power
    if base.kind in "iu" and exponent.kind in "iu":
        read = "int64" if scale_bias is None else "float32"
        made = call("power_integers", call("as_int64", x), call("as_int64", power))
        if base.itemsize < 4:  # which DirectML computes in 32 bits
            made = limited(call("as_int32" if base.kind == "i" else "as_uint32", made), base.name)
        return Pointwise(made, (read, read), read)
    exact = scale_bias is None and (base.kind in "iu" or exponent.name.endswith("int32"))
    whole = call("equal", call("trunc", power), power)
    result = call("power", x, power)
    if base.kind in "iu":  # a whole number, from which the device's function may be off
        result = where(whole & (power >= 0.0), call("rint", result), result)
    return pointwise(desc, where((x < 0.0) & ~whole, math.nan, result), "float64" if exact else "float32")


@form_of_class(dml.ElementWiseConstantPowOperatorDesc)
def constant_pow_form(desc: dml.ElementWiseConstantPowOperatorDesc) -> Pointwise:
    """Elements to the power of the constant; what is below 0 has whole powers only."""
    (x,) = operands(desc)
    if desc.exponent.is_integer():
        return pointwise(desc, call("power", x, desc.exponent))
    return pointwise(desc, where(x < 0.0, math.nan, call("power", abs(x), desc.exponent)))


@form_of_class(dml.ElementWiseSignOperatorDesc)
def sign_form(desc: dml.ElementWiseSignOperatorDesc) -> Pointwise:
    """Sign, by comparisons as on the page, so NaN and both zeros give +0; an unsigned type has no -1."""
    x = operand(0)
    return pointwise(desc, where(x > 0, 1, 0 if desc.input_tensor.dtype.kind == "u" else where(x < 0, -1, 0)))


@form_of_class(dml.ElementWiseRoundOperatorDesc)
def round_form(desc: dml.ElementWiseRoundOperatorDesc) -> Pointwise:
    """Whole numbers by one of three rules; a result of 0 has the sign of the element."""
    x = operand(0)
    whole = call("trunc", x)
    match desc.rounding_mode:
        case dml.RoundingMode.HALVES_TO_NEAREST_EVEN:
            return pointwise(desc, call("rint", x))
        case dml.RoundingMode.TOWARD_ZERO:
            return pointwise(desc, whole)
        case dml.RoundingMode.TOWARD_INFINITY:  # which rounds halves away from 0
            return pointwise(desc, where(abs(x - whole) >= 0.5, whole + where(x < 0.0, -1.0, 1.0), whole))


@form_of_class(dml.ElementWiseIfOperatorDesc)
def if_form(desc: dml.ElementWiseIfOperatorDesc) -> Pointwise:
    """Elements keep their type, float16 too, so that every NaN passes unchanged."""
    name = desc.a_tensor.dtype.name
    return Pointwise(where(operand(0), operand(1), operand(2)), ("uint8", name, name), name)


@form_of_class(dml.CastOperatorDesc)
def cast_form(desc: dml.CastOperatorDesc) -> Pointwise:
    """DML_CAST_OPERATOR_DESC; the conversions are DirectML's, see the descriptor."""
    source, target = desc.input_tensor.dtype, desc.output_tensor.dtype
    if source.kind == "f" and target.kind in "iu":
        wide = "float64" if target.itemsize == 8 or source.itemsize == 8 else "float32"
        return Pointwise(saturated(operand(0), target.name), (wide,), wide)
    if target.kind in "iu" and target.itemsize < source.itemsize + (source.kind != target.kind):
        wide = wide_integer(target.name)
        return Pointwise(limited(operand(0), target.name), (wide,), wide)
    return Pointwise(operand(0), (source.name,), source.name)
