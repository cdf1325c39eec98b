# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""Functions of one float32 that LLVM can turn into vector code: no branches, no tables, no calls.

The polynomials are least-maximum fits of our own in float64, rounded to float32. Largest errors in units in the last
place of the result, over all float32 numbers (`tests/backends/numba/test_expressions.py` holds them to it):
exp 0.9, log 1.0, tanh 2.6, erf 1.5; gelu 2.3 for positive numbers, and 6e-8 in all for negative ones. NaN gives NaN;
infinities, zeros and subnormal numbers give what C's functions do.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....forms.special import ERF_FLOAT32
from .memory import inlined

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)


def _number(value):
    return np.float32(value)


def _intrinsic_of_one(name):
    """LLVM's own function of one float32."""

    @intrinsic
    def function(_typing, value):
        def code(_context, builder, _signature, arguments):
            return builder.call(builder.module.declare_intrinsic(name, [_FLOAT]), arguments)

        return types.float32(types.float32), code

    return function


absolute, sqrt, floor, ceil, trunc, rint = map(
    _intrinsic_of_one, ("llvm.fabs", "llvm.sqrt", "llvm.floor", "llvm.ceil", "llvm.trunc", "llvm.rint")
)


@intrinsic
def fma(_typing, x, y, z):
    """The product of the first two, plus the third, rounded once."""

    def code(_context, builder, _signature, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), code


@intrinsic
def with_sign(_typing, magnitude, sign):
    """The magnitude of one number with the sign of another one."""

    def code(_context, builder, _signature, arguments):
        signature = ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT])
        return builder.call(builder.module.declare_intrinsic("llvm.copysign", [_FLOAT], signature), arguments)

    return types.float32(types.float32, types.float32), code


@intrinsic
def choice(_typing, condition, if_not_zero, if_zero):
    """One of two numbers. A conditional expression would become a branch around the loads of both."""

    def code(_context, builder, _signature, arguments):
        truth = builder.fcmp_unordered("!=", arguments[0], _FLOAT(0))
        return builder.select(truth, arguments[1], arguments[2])

    return types.float32(types.float32, types.float32, types.float32), code


ROUNDER = _number(1.5 * 2**23)  # added to a small number, it leaves the nearest integer in the lowest bits


@intrinsic
def times_power(_typing, value, rounded):
    """The value times 2^n, n being the integer in the lowest bits of `rounded`, in two steps that do not overflow."""

    def code(_context, builder, _signature, arguments):
        value, rounded = arguments
        n = builder.shl(builder.bitcast(rounded, _INT), _INT(23))  # in the bits of the exponent
        half = builder.and_(builder.ashr(n, _INT(1)), _INT(-1 << 23))
        for part in (half, builder.sub(n, half)):
            value = builder.fmul(value, builder.bitcast(builder.add(part, _INT(127 << 23)), _FLOAT))
        return value

    return types.float32(types.float32, types.float32), code


@intrinsic
def times_small_power(_typing, value, rounded):
    """`times_power` in one step, of a number near 1 and n from -254 to 0; 0 for results below normal numbers."""

    def code(_context, builder, _signature, arguments):
        value, rounded = (builder.bitcast(argument, _INT) for argument in arguments)
        bits = builder.add(value, builder.shl(rounded, _INT(23)))
        return builder.bitcast(builder.select(builder.icmp_signed(">", bits, _INT(0)), bits, _INT(0)), _FLOAT)

    return types.float32(types.float32, types.float32), code


@intrinsic
def times_normal_power(_typing, value, rounded):
    """`times_power` of a number near 1 and an n for which the result is a normal number."""

    def code(_context, builder, _signature, arguments):
        value, rounded = (builder.bitcast(argument, _INT) for argument in arguments)
        return builder.bitcast(builder.add(value, builder.shl(rounded, _INT(23))), _FLOAT)

    return types.float32(types.float32, types.float32), code


@intrinsic
def magnitude_bits(_typing, value):
    """The bits of the absolute value: their order is that of the numbers, and NaN is above all."""

    def code(_context, builder, _signature, arguments):
        return builder.and_(builder.bitcast(arguments[0], _INT), _INT(0x7FFFFFFF))

    return types.int32(types.float32), code


@intrinsic
def exponent(_typing, value):
    """The n for which value / 2^n lies between the roots of 1/2 and 2; of a positive normal number."""

    def code(_context, builder, _signature, arguments):
        return builder.sitofp(_exponent(builder, arguments[0]), _FLOAT)

    return types.float32(types.float32), code


@intrinsic
def mantissa(_typing, value):
    """The value / 2^n for the n of `exponent`."""

    def code(_context, builder, _signature, arguments):
        shifted = builder.shl(_exponent(builder, arguments[0]), _INT(23))
        return builder.bitcast(builder.sub(builder.bitcast(arguments[0], _INT), shifted), _FLOAT)

    return types.float32(types.float32), code


def _exponent(builder, value):
    root = int(_number(math.sqrt(0.5)).view(np.int32))
    return builder.ashr(builder.sub(builder.bitcast(value, _INT), _INT(root)), _INT(23))


# ---- exp and tanh ----------------------------------------------------------------------------------------------------

ZERO, ONE, TWO = map(_number, (0, 1, 2))
LOG2_E = _number(1 / math.log(2))
LN2_HIGH = _number(0.693145751953125)  # 15 bits, so that products with small integers are exact
LN2_LOW = _number(math.log(2) - 0.693145751953125)
E2, E3, E4, E5, E6 = map(
    _number, (0.4999999403953552, 0.1666651964187622, 0.041668400168418884, 0.008368851616978645, 0.0013814320554956794)
)


@inlined
def exp_tail(r):
    """Equals (e^r - 1 - r) / r^2 for |r| up to ln(2) / 2."""
    return fma(fma(fma(fma(E6, r, E5), r, E4), r, E3), r, E2)


@inlined
def reduced(x, rounded):
    """The difference of x and n ln(2) for the integer n in `rounded`."""
    n = rounded - ROUNDER
    return fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


# From there on 0 and infinity. No float16, or LLVM would widen an input twice: before and after comparing it as a half.
EXP_LOW, EXP_HIGH = _number(-104.01), _number(89.01)


@inlined
def exp(x):
    """The power of e."""
    clipped = EXP_LOW if x < EXP_LOW else x
    clipped = EXP_HIGH if clipped > EXP_HIGH else clipped
    rounded = fma(clipped, LOG2_E, ROUNDER)
    r = reduced(clipped, rounded)
    return times_power(fma(fma(exp_tail(r), r, ONE), r, ONE), rounded)


EXP_NORMAL = int(_number(87).view(np.int32))  # bits of a number up to which, and down to whose negative, exp is normal


@inlined
def exp_normal(x):
    """The power of e of a number whose magnitude is below `EXP_NORMAL`: the same bits, in half the operations."""
    rounded = fma(x, LOG2_E, ROUNDER)
    r = reduced(x, rounded)
    return times_normal_power(fma(fma(exp_tail(r), r, ONE), r, ONE), rounded)


TANH_HIGH = _number(20)  # of twice the number; tanh is 1 from 9.02 on


@inlined
def tanh(x):
    """The hyperbolic tangent, (e^2x - 1) / (e^2x + 1)."""
    twice = TWO * absolute(x)
    twice = TANH_HIGH if twice > TANH_HIGH else twice
    rounded = fma(twice, LOG2_E, ROUNDER)
    power = times_normal_power(ONE, rounded)
    r = reduced(twice, rounded)
    above_one = fma(fma(exp_tail(r) * r, r, r), power, power - ONE)
    return with_sign(above_one / (above_one + TWO), x)


# ---- log -------------------------------------------------------------------------------------------------------------

SMALLEST_NORMAL, INFINITY = _number(2.0**-126), _number(math.inf)
NAN = _number(math.nan)
TWO_TO_23, TWENTY_THREE = _number(2.0**23), _number(23)
HALF = _number(0.5)
L3, L4, L5, L6, L7, L8, L9, L10 = map(
    _number,
    (
        0.3333333134651184, -0.2500082552433014, 0.20001235604286194, -0.1662314385175705,
        0.14201368391513824, -0.13162004947662354, 0.1276543289422989, -0.07634391635656357,
    ),
)  # fmt: skip


@inlined
def log(x):
    """The natural logarithm."""
    subnormal = x < SMALLEST_NORMAL
    scaled = x * TWO_TO_23 if subnormal else x
    n = exponent(scaled)
    n = n - TWENTY_THREE if subnormal else n
    f = mantissa(scaled) - ONE
    g = fma(fma(fma(fma(fma(fma(fma(L10, f, L9), f, L8), f, L7), f, L6), f, L5), f, L4), f, L3)
    square = f * f
    tail = fma(g * f, square, fma(n, LN2_LOW, -HALF * square))
    result = fma(n, LN2_HIGH, f + tail)
    result = result if x < INFINITY else x  # infinity and NaN
    result = result if x != ZERO else -INFINITY
    return NAN if x < ZERO else result


# ---- erf -------------------------------------------------------------------------------------------------------------

ERF_HIGH = _number(4)  # erf is 1 from there on
P0, P1, P2, P3, P4, P5, P6 = map(_number, ERF_FLOAT32[0])
Q0, Q1, Q2, Q3, Q4, Q5, Q6 = map(_number, ERF_FLOAT32[1])
LN2 = _number(math.log(2))
F2, F3, F4, F5 = map(_number, (0.4999922513961792, 0.16667118668556213, 0.041890986263751984, 0.00831243023276329))


@inlined
def erf(x):
    """The error function: x P(x^2) near 0, 1 - e^Q(|x|) elsewhere, see `forms/special.py`."""
    a = absolute(x)
    a = ERF_HIGH if a > ERF_HIGH else a
    t = a * a
    near = fma(fma(fma(fma(fma(fma(P6, t, P5), t, P4), t, P3), t, P2), t, P1), t, P0) * x
    q = fma(fma(fma(fma(fma(fma(Q6, a, Q5), a, Q4), a, Q3), a, Q2), a, Q1), a, Q0)
    rounded = fma(q, LOG2_E, ROUNDER)
    r = fma(rounded - ROUNDER, -LN2, q)  # e^Q is at most 0.16, so its last bits do not count
    power = fma(fma(fma(fma(fma(F5, r, F4), r, F3), r, F2), r, ONE), r, ONE)
    far = ONE - times_small_power(power, rounded)
    return with_sign(far, x) if a >= ONE else near  # near for NaN, which integers would make a number of


# ---- gelu ------------------------------------------------------------------------------------------------------------

GELU_HIGH = _number(
    11
)  # the share of a smaller number is below 2^-126 from there on, and the polynomial goes on falling
G0, G1, G2, G3, G4, G5, G6, G7, G8 = map(
    _number,
    (
        -0.9999999403953552, -1.1511073112487793, -0.4591900408267975, -0.052556898444890976, 0.007159782573580742,
        -0.00021687091793864965, -0.0001507710840087384, 3.148520045215264e-05, -2.142669018212473e-06,
    ),
)  # fmt: skip
T1, T2, T3, T4, T5 = map(
    _number, (0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671513922512531, 0.001326472614891827)
)
MINUS_ZERO = _number(-0.0)


@inlined
def gelu(x):
    """0.5 x (1 + erf(x / sqrt(2))), -0 for -infinity: what is above 0 of x, less |x| 2^G(|x|).

    2^G(a) is the share of the normal distribution below -a, so nothing cancels for negative numbers.
    """
    a = absolute(x)
    a = GELU_HIGH if a > GELU_HIGH else a
    g = fma(fma(fma(fma(fma(fma(fma(fma(G8, a, G7), a, G6), a, G5), a, G4), a, G3), a, G2), a, G1), a, G0)
    rounded = g + ROUNDER
    r = g - (rounded - ROUNDER)
    power = fma(fma(fma(fma(fma(T5, r, T4), r, T3), r, T2), r, T1), r, ONE)
    return fma(-a, times_small_power(power, rounded), MINUS_ZERO if x < ZERO else x)


# ---- of two numbers --------------------------------------------------------------------------------------------------


@inlined
def maximum(x, y):
    """The larger number."""
    larger = x if x > y else y
    return larger if x == x else x  # NaN wins


@inlined
def minimum(x, y):
    """The smaller number."""
    smaller = x if x < y else y
    return smaller if x == x else x  # NaN wins
