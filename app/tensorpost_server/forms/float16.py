"""float16 to float32 and back, several times faster than NumPy's own cast and bit for bit the same.

NumPy converts one element at a time, 1.3 to 1.6 ns each; a few whole-array integer and float32 operations on the bits
take 0.3 and 0.8 ns (one core of an AMD EPYC 9005). CuPy converts in hardware, so there it is a plain cast.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from .base import blocks, go_on, whole_box

CHUNK = 1 << 16  # elements; the scratch arrays of one chunk stay in the second-level cache
LARGE = 1 << 22  # elements from which on the wait for others' turns is between blocks of as many
SHORT = 1 << 12  # below it a cast costs less than the calls it would save

_REBIAS = np.float32(2.0**112)  # float32's exponent bias is 127, float16's 15
_SIGN_AND_HALF = np.int32(-0x70002000)  # 0x8fffe000: the sign, and 15 bits of a half shifted left by 13
_LARGEST_FINITE = 0x477FEFFF  # bits of the largest float32 that rounds to a finite half, just below 65520


def widen(xp: ModuleType, halves: Any) -> Any:
    """The float16 array, of any strides, as a new float32 array; exact, infinities and NaN included."""
    if xp is not np or halves.size < SHORT:
        return halves.astype(np.float32)
    wide = np.empty(halves.shape, np.float32)
    if halves.size > LARGE:
        for part in blocks(whole_box(halves.shape), LARGE):
            go_on()
            where = tuple([slice(*span) for span in part])
            wide[where] = widen(np, halves[where])
        return wide
    bits = wide.view(np.int32)
    # Widening with the sign extended puts copies of it above bit 15; the mask keeps the topmost one.
    np.copyto(bits, halves.view(np.int16))
    np.left_shift(bits, np.int32(13), out=bits)
    np.bitwise_and(bits, _SIGN_AND_HALF, out=bits)
    np.multiply(wide, _REBIAS, out=wide)  # exact, and turns halves below 2^-14 into normal numbers
    if np.bitwise_and(halves.view(np.uint16), np.uint16(0x7FFF)).max() >= 0x7C00:
        bits[np.abs(wide) >= 65536] |= np.int32(0x7F800000)  # infinities and NaN came out as finite numbers
    return wide


def wide(xp: ModuleType, x: Any) -> Any:
    """The array in the type that it is multiplied and summed in: float16 in float32."""
    return widen(xp, x) if x.dtype.name == "float16" else x


def narrow(xp: ModuleType, floats: Any, out: Any) -> None:
    """Round float32 to float16, to nearest even.

    Args:
        xp: the array library.
        floats: contiguous float32 array; only read.
        out: float16 array of the same shape, of any strides.
    """
    if xp is not np or floats.size < SHORT:
        with np.errstate(over="ignore"):  # a value beyond 65504 becomes infinite, which is its rounding
            out[...] = floats
        return
    if floats.size > 2 * CHUNK:
        axis = next(axis for axis, size in enumerate(floats.shape) if size > 1)
        rows = max(1, CHUNK * floats.shape[axis] // floats.size)
        for start in range(0, floats.shape[axis], rows):
            part = (*(0,) * axis, slice(start, start + rows))
            narrow(xp, floats[part], out[part])
        return
    bits = floats.view(np.uint32)
    rounded = np.bitwise_and(bits, np.uint32(0x7FFFFFFF))
    if rounded.max() > _LARGEST_FINITE:
        with np.errstate(over="ignore"):
            np.copyto(out, floats, casting="unsafe")
        return
    # Adding and subtracting 2^(e + 13), e the value's exponent but at least -14, rounds to the 11 bits that a half has
    # there, ties to even as every float32 addition does.
    power = np.bitwise_and(rounded, np.uint32(0x7F800000))
    np.clip(power, np.uint32(113 << 23), np.uint32(254 << 23), out=power)  # five times faster than maximum
    np.add(power, np.uint32(13 << 23), out=power)
    value = rounded.view(np.float32)
    np.add(value, power.view(np.float32), out=value)
    np.subtract(value, power.view(np.float32), out=value)
    np.multiply(value, np.float32(2.0**-112), out=value)  # exact: what is left has 11 bits
    np.right_shift(rounded, np.uint32(13), out=rounded)
    sign = np.right_shift(bits, np.uint32(16), out=power)
    np.bitwise_and(sign, np.uint32(0x8000), out=sign)
    np.bitwise_or(rounded, sign, out=rounded)
    np.copyto(out.view(np.uint16), rounded, casting="unsafe")
