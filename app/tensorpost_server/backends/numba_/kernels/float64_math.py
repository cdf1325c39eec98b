# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""Functions of one or two float32, computed in float64 and rounded once: at most 0.51 units in the last place.

As in `float32_math.py` LLVM makes vector code of them: no branches, no tables, no calls. Only angles beyond 2^40 and
remainders go element by element. Most series are Taylor's, for which float64 leaves room; that of the arctangent is a
fit of our own. Infinities, zeros and NaN give what C's functions do.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .float32_math import with_sign
from .memory import floats, inlined

_DOUBLE, _LONG = ir.DoubleType(), ir.IntType(64)
NAN, INFINITY = math.nan, math.inf


def _intrinsic_of_one(name):
    """LLVM's own function of one float64."""

    @intrinsic
    def function(_typing, value):
        def code(_context, builder, _signature, arguments):
            return builder.call(builder.module.declare_intrinsic(name, [_DOUBLE]), arguments)

        return types.float64(types.float64), code

    return function


sqrt, absolute, trunc, rint = map(_intrinsic_of_one, ("llvm.sqrt", "llvm.fabs", "llvm.trunc", "llvm.rint"))


@intrinsic
def fma(_typing, x, y, z):
    """The product of the first two, plus the third, rounded once."""

    def code(_context, builder, _signature, arguments):
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), code


def polynomial(*coefficients):
    """A polynomial with these coefficients, lowest power first, by Horner's scheme."""

    @intrinsic
    def function(_typing, x):
        def code(_context, builder, _signature, arguments):
            made = _DOUBLE(coefficients[-1])
            for coefficient in coefficients[-2::-1]:
                made = builder.fma(made, arguments[0], _DOUBLE(coefficient))
            return made

        return types.float64(types.float64), code

    return function


@inlined
def wide(x):
    """The number as float64."""
    return types.float64(x)


@inlined
def signed(magnitude, x):
    """The number as float32 with the sign of another one."""
    return with_sign(types.float32(magnitude), x)


# ---- logarithms and exponentials -------------------------------------------------------------------------------------

ONE_BITS, ROOT_BITS = 0x3FF0000000000000, 0x3FE6A09E667F3BCD  # 1 and the root of 1/2
TWO_TO_52_BITS = 0x4330000000000000
BIAS = float(2**52 + 1023)


@intrinsic
def exponent(_typing, value):
    """The n for which value / 2^n lies between the roots of 1/2 and 2; of a positive normal number."""

    def code(_context, builder, _signature, arguments):
        raised = builder.lshr(_raised(builder, arguments[0]), _LONG(52))
        number = builder.bitcast(builder.or_(raised, _LONG(TWO_TO_52_BITS)), _DOUBLE)
        return builder.fsub(number, _DOUBLE(BIAS))  # CPUs have no vectors of integers as wide to convert

    return types.float64(types.float64), code


@intrinsic
def mantissa(_typing, value):
    """The value / 2^n for the n of `exponent`."""

    def code(_context, builder, _signature, arguments):
        low = builder.and_(_raised(builder, arguments[0]), _LONG(2**52 - 1))
        return builder.bitcast(builder.add(low, _LONG(ROOT_BITS)), _DOUBLE)

    return types.float64(types.float64), code


def _raised(builder, value):
    return builder.add(builder.bitcast(value, _LONG), _LONG(ONE_BITS - ROOT_BITS))


LN2 = math.log(2)
atanh_series = polynomial(*[1 / divisor for divisor in range(3, 19, 2)])


@inlined
def log_positive(x):
    """The natural logarithm of a positive normal number: twice the series of the inverse hyperbolic tangent."""
    f = mantissa(x) - 1.0
    s = f / (f + 2.0)
    t = s * s
    return exponent(x) * LN2 + 2.0 * (s + s * t * atanh_series(t))


@inlined
def log1p_wide(x):
    """The logarithm of 1 + x: what the sum loses is added in the first order."""
    u = 1.0 + x
    made = log_positive(u) + (x - (u - 1.0)) / u
    made = made if x < INFINITY else x  # infinity and NaN
    made = made if u != 0 else -INFINITY
    return NAN if u < 0 else made


ROUNDER = 1.5 * 2**52  # added to a small number, it leaves the nearest integer in the lowest bits
LOG2_E = 1 / math.log(2)
LN2_HIGH = 0.6931471803691238  # 33 bits, so that products with small integers are exact
LN2_LOW = 1.9082149292705877e-10


@intrinsic
def power_of_2(_typing, rounded):
    """2^n, n being the integer in the lowest bits of `rounded`."""

    def code(_context, builder, _signature, arguments):
        n = builder.add(builder.bitcast(arguments[0], _LONG), _LONG(1023))
        return builder.bitcast(builder.shl(n, _LONG(52)), _DOUBLE)

    return types.float64(types.float64), code


FARTHEST = 300.0  # float32 is 0 or infinite from 104 on, and the products of two powers are still numbers
expm1_series = polynomial(*[1 / math.factorial(n) for n in range(2, 12)])


@inlined
def clipped(x):
    """Where powers of e are float64 numbers."""
    x = FARTHEST if x > FARTHEST else x
    return -FARTHEST if x < -FARTHEST else x


@inlined
def expm1_reduced(x, rounded):
    """Equals e^r - 1 for the difference r of x and n ln(2), for the integer n in `rounded`."""
    n = rounded - ROUNDER
    r = x - n * LN2_HIGH - n * LN2_LOW
    return expm1_series(r) * r * r + r


@inlined
def exp_wide(x):
    """The power of e."""
    x = clipped(x)
    rounded = x * LOG2_E + ROUNDER
    scale = power_of_2(rounded)
    return expm1_reduced(x, rounded) * scale + scale


@inlined
def expm1_wide(x):
    """Equals e^x - 1."""
    x = clipped(x)
    rounded = x * LOG2_E + ROUNDER
    scale = power_of_2(rounded)
    return expm1_reduced(x, rounded) * scale + (scale - 1.0)


@inlined
def expm1(x):
    """Equals e^x - 1, with the sign of x."""
    return signed(absolute(expm1_wide(wide(x))), x)


@inlined
def log1p(x):
    """The logarithm of 1 + x, with the sign of x."""
    made = log1p_wide(wide(x))
    return types.float32(made) if x != 0 else x


@inlined
def sinh(x):
    """The hyperbolic sine, (e - 1 + (e - 1) / e) / 2 for e = e^|x|."""
    e = expm1_wide(absolute(wide(x)))
    return signed(0.5 * (e + e / (e + 1.0)), x)


@inlined
def cosh(x):
    """The hyperbolic cosine."""
    e = exp_wide(absolute(wide(x)))
    return types.float32(0.5 * (e + 1.0 / e))


@inlined
def arcsinh(x):
    """The inverse of the hyperbolic sine."""
    z = absolute(wide(x))
    made = log1p_wide(z + z * z / (1.0 + sqrt(z * z + 1.0)))
    return signed(made if z < INFINITY else z, x)


@inlined
def arccosh(x):
    """The inverse of the hyperbolic cosine."""
    t = wide(x) - 1.0
    made = log1p_wide(t + sqrt(t * (t + 2.0)))
    return types.float32(made if t >= 0 else NAN)


@inlined
def arctanh(x):
    """The inverse of the hyperbolic tangent."""
    z = absolute(wide(x))
    made = 0.5 * log1p_wide(2.0 * z / (1.0 - z))
    return signed(made if z <= 1 else NAN, x)


@inlined
def power(x, y):
    """The first number to the power of the second, e^(y ln |x|), with the sign of an odd power."""
    magnitude, exponent_ = absolute(wide(x)), wide(y)
    logarithm = log_positive(magnitude)
    logarithm = logarithm if magnitude != 0 else -INFINITY
    logarithm = logarithm if magnitude < INFINITY else magnitude
    scaled = exponent_ * logarithm
    scaled = scaled if magnitude != 1 else 0.0
    made = exp_wide(scaled)
    whole = trunc(exponent_) == exponent_
    half = 0.5 * exponent_
    odd = whole and trunc(half) != half
    made = -made if odd and with_sign(types.float32(1), x) < 0 else made
    made = NAN if x < 0 and magnitude < INFINITY and not whole else made
    made = made if x == x and y == y else NAN
    return types.float32(1.0 if y == 0 or x == 1 else made)


# ---- inverse trigonometric functions ---------------------------------------------------------------------------------

atan_series = polynomial(
    0.9999999999997496, -0.3333333332178824, 0.19999999110940675, -0.14285687111236914, 0.11110672986523416,
    -0.09086614581348038, 0.07664476669508383, -0.06540746938886981, 0.05469198392745657, -0.0425120109995324,
    0.0286356083161365, -0.015418113523878726, 0.006036573112614652, -0.0014985317097143168, 0.0001749861376729474,
)  # fmt: skip
HALF_PI, PI = math.pi / 2, math.pi


@inlined
def angle(y, x):
    """The angle of the point (x, y) for y from 0 on, between 0 and pi."""
    across = absolute(x)
    larger = y if y > across else across
    smaller = across if y > across else y
    z = smaller / larger
    z = z if larger > 0 else 0.0
    z = z if smaller < INFINITY else 1.0
    t = z * z
    made = atan_series(t) * z
    return HALF_PI - made if y > across else made


@inlined
def arctan(x):
    """The angle of a tangent."""
    made = angle(absolute(wide(x)), 1.0)
    return signed(made if x == x else NAN, x)


@inlined
def arctan2(y, x):
    """The angle of the point (x, y)."""
    made = angle(absolute(wide(y)), wide(x))
    made = PI - made if with_sign(types.float32(1), x) < 0 else made
    return signed(made if x == x and y == y else NAN, y)


@inlined
def arcsin(x):
    """The angle of a sine: that of the point whose distance from 0 is 1."""
    z = absolute(wide(x))
    made = angle(z, sqrt((1.0 - z) * (1.0 + z)))
    return signed(made if z <= 1 else NAN, x)


@inlined
def arccos(x):
    """The angle of a cosine."""
    z = absolute(wide(x))
    made = angle(sqrt((1.0 - z) * (1.0 + z)), z)
    made = PI - made if x < 0 else made
    return types.float32(made if z <= 1 else NAN)


# ---- trigonometric functions -----------------------------------------------------------------------------------------

TWO_OVER_PI = 2 / math.pi
HALF_PI_LOW = 6.123233995736766e-17  # pi / 2 = HALF_PI + HALF_PI_LOW
FAR = 2.0**40  # from here on the number of quarters takes more bits than products of two float64 leave


@intrinsic
def low_bits(_typing, value):
    """The lowest two bits of a whole number below 2^51."""

    def code(_context, builder, _signature, arguments):
        moved = builder.fadd(arguments[0], _DOUBLE(ROUNDER))
        return builder.and_(builder.bitcast(moved, _LONG), _LONG(3))

    return types.int64(types.float64), code


sine_series = polynomial(*[(-1) ** n / math.factorial(2 * n + 1) for n in range(7)])
cosine_series = polynomial(*[(-1) ** n / math.factorial(2 * n) for n in range(8)])


@inlined
def sine_of(r, quarters):
    t = r * r
    made = cosine_series(t) if quarters & 1 else sine_series(t) * r
    return -made if quarters & 2 else made


@inlined
def cosine_of(r, quarters):
    return sine_of(r, quarters + 1)


@inlined
def tangent_of(r, quarters):
    t = r * r
    s, c = sine_series(t) * r, cosine_series(t)
    return -c / s if quarters & 1 else s / c


@intrinsic
def bits(_typing, value):
    """The bits of a float32."""

    def code(_context, builder, _signature, arguments):
        return builder.zext(builder.bitcast(arguments[0], ir.IntType(32)), _LONG)

    return types.uint64(types.float32), code


W0, W1, W2, W3, W4, W5, W6 = map(
    types.uint64,
    (
        0xA2F9836E,
        0x4E441529,
        0xFC2757D1,
        0xF534DDC0,
        0xDB629599,
        0x3C439041,
        0xFE5163AB,
    ),
)


@inlined
def word(index):
    """32 bits of 2 / pi after the binary point, from 32 * index on."""
    found = W6
    found = W5 if index == 5 else found
    found = W4 if index == 4 else found
    found = W3 if index == 3 else found
    found = W2 if index == 2 else found
    found = W1 if index == 1 else found
    return W0 if index == 0 else found


@inlined
def far_quarters(x):
    """The product of a number from 2^40 on and 2 / pi, modulo 4, in units of 2^-62: only some bits of 2 / pi count."""
    whole = bits(x)
    factor = (whole & types.uint64(0x7FFFFF)) | types.uint64(0x800000)
    first = ((whole >> types.uint64(23)) & types.uint64(0xFF)) - types.uint64(152)  # what is before makes fours
    at, shift = first >> types.uint64(5), first & types.uint64(31)
    high = (word(at) << types.uint64(32)) | word(at + types.uint64(1))
    low = (word(at + types.uint64(2)) << types.uint64(32)) | word(at + types.uint64(3))
    if shift:
        high = (high << shift) | (low >> (types.uint64(64) - shift))
        low = low << shift
    return factor * high + ((factor * (low >> types.uint64(32))) >> types.uint64(32))


UNIT = math.pi / 2 * 2.0**-62


def _of_angles(of_reduced, odd):
    """A block function: the angles near 0 as vectors, then those far from it one by one."""

    @inlined
    def with_sign_of(made, x):
        return types.float32(-made if odd and with_sign(types.float32(1), x) < 0 else made)

    @inlined
    def of_block(result, a, b, c, count):
        out, x = floats(result), floats(a)
        far = 0
        for i in range(count):
            z = absolute(wide(x[i]))
            n = rint(z * TWO_OVER_PI)
            r = fma(n, -HALF_PI_LOW, fma(n, -HALF_PI, z))
            out[i] = with_sign_of(of_reduced(r, low_bits(n)), x[i])
            far += 1 if z >= FAR else 0
        if far:
            for i in range(count):
                z = absolute(wide(x[i]))
                if z >= FAR and z < INFINITY:
                    turned = far_quarters(x[i])
                    quarters = (turned + types.uint64(1 << 61)) >> types.uint64(62)
                    rest = types.int64(turned - (quarters << types.uint64(62)))
                    out[i] = with_sign_of(of_reduced(rest * UNIT, types.int64(quarters)), x[i])

    return of_block


sin, cos, tan = _of_angles(sine_of, True), _of_angles(cosine_of, False), _of_angles(tangent_of, True)


# ---- remainders ------------------------------------------------------------------------------------------------------


@inlined
def fmod(result, a, b, c, count):
    """A block function: the rest of a division toward zero, exact. A quotient of many bits takes several rounds."""
    out, x, y = floats(result), floats(a), floats(b)
    for i in range(count):
        rest, divisor = absolute(wide(x[i])), absolute(wide(y[i]))
        if rest < INFINITY and divisor > 0:
            while absolute(rest) >= divisor:
                rest = fma(-trunc(rest / divisor), divisor, rest)
            rest = rest + divisor if rest < 0 else rest
        else:
            rest = NAN
        out[i] = signed(rest if y[i] == y[i] else NAN, x[i])
