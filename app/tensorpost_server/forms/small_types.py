"""ONNX's floating-point types of 8 bits or fewer, and its integers of 4 and 2 bits: codes to numbers, numbers to codes.

A code is the low bits of a byte. Both directions go by the numbers of all codes, so they are the same for every array
library. What is between two numbers goes to the nearer one, halves to the even code (ONNX, Cast-19); to float8e8m0 as
`round_mode` says.

Choices where ONNX's text is silent: -NaN keeps its sign where there is one; NaN has no code in float4 and float6, and
becomes the 0 that ml_dtypes makes of it; what is below 0 is NaN in float8e8m0; floating-point numbers go to integers
toward zero, and what does not fit loses its high bits, as in ONNX's own tests and in ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.datatypes import DataType, data_type

__all__ = ["codes_of", "numbers_of"]

_SIGNED_ZEROS = frozenset({"float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"})

_QUIET = {"float8_e5m2": 0x7E}
"""The code of NaN where there are several: as ml_dtypes has it."""


def numbers_of(xp: ModuleType, codes: Any, name: str) -> Any:
    """The numbers of codes: float32, of integers int8, which hold all of them exactly.

    Args:
        xp: the array library.
        codes: array of uint8.
        name: NumPy name of the type.
    """
    return xp.take(xp.asarray(_numbers(name)), codes)


def codes_of(xp: ModuleType, numbers: Any, name: str, *, saturate: bool = True, round_mode: str = "up") -> Any:
    """The codes of numbers, as an array of uint8.

    Args:
        xp: the array library.
        numbers: array of float32, float64, integers or truth values.
        name: NumPy name of the type.
        saturate: whether numbers beyond the largest become that; else infinity, or NaN where the type has none. Types
            without both have the largest either way.
        round_mode: `up`, `down` or `nearest` (halves up), for float8e8m0 only.
    """
    row = data_type(name)
    if row.kind in "iu":
        return _integer_codes(xp, numbers, row)
    wide = numbers if numbers.dtype.kind == "f" else numbers.astype("float64")
    # ml_dtypes takes a tenth of the time; it rounds float64 to float32 first, which may be another number.
    if xp is np and wide.dtype.itemsize <= 4 and name != "float8_e8m0fnu":
        most = float(_numbers(name)[_encoding(name, "").largest])
        limited = np.clip(wide, -most, most) if saturate else wide
        return limited.astype(row.dtype).view(np.uint8)
    return codes_by_thresholds(xp, wide, name, saturate=saturate, round_mode=round_mode)


def codes_by_thresholds(xp: ModuleType, numbers: Any, name: str, *, saturate: bool, round_mode: str) -> Any:
    """`codes_of` of a floating-point type, without `ml_dtypes` and for any array library."""
    encoding = _encoding(name, round_mode if name == "float8_e8m0fnu" else "")
    wide = numbers.astype("float64")
    codes = xp.searchsorted(xp.asarray(encoding.thresholds), abs(wide), side="right").astype("uint8")
    codes = xp.where(codes > encoding.largest, np.uint8(encoding.largest if saturate else encoding.beyond), codes)
    sign, nan, missing = np.uint8(encoding.sign), np.uint8(encoding.nan or 0), xp.isnan(wide)
    if not encoding.sign:
        outside = missing | (wide < (0 if saturate else encoding.least))
        return xp.where(outside, nan, codes)
    negative = xp.signbit(wide) if name in _SIGNED_ZEROS else xp.signbit(wide) & (codes != 0)
    signs = xp.where(negative, sign, np.uint8(0))
    if encoding.nan is None:
        return xp.where(missing, sign ^ signs, codes | signs)
    return xp.where(missing, nan | signs if nan < encoding.sign else nan, codes | signs)


def _integer_codes(xp: ModuleType, numbers: Any, row: DataType) -> Any:
    """The low bits of whole numbers."""
    if numbers.dtype.kind == "f":
        limit = float(1 << 30)  # all its low bits are 0, and so are those of whatever float32 holds beyond it
        numbers = xp.clip(xp.nan_to_num(numbers.astype("float64"), nan=0.0), -limit, limit).astype("int32")
    return numbers.astype("uint8") & np.uint8((1 << row.bits) - 1)


@cache
def _numbers(name: str) -> NDArray[Any]:
    """The number of each byte, of which the low bits count."""
    row = data_type(name)
    mask = (1 << (row.bits or 8)) - 1
    codes = (np.arange(256) & mask).astype(np.uint8)
    return codes.view(row.dtype).astype(np.int8 if row.kind in "iu" else np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Encoding:
    """How numbers become codes.

    Attributes:
        thresholds: the least number that has a larger code than `k`, for each code `k` from 0 to the largest.
        largest: the code of the largest number.
        beyond: the code of what is larger, unless it is limited.
        nan: the code of NaN; None if there is none.
        sign: the bit of the sign; 0 if there is none.
        least: the least number above 0.
    """

    thresholds: NDArray[np.float64]
    largest: int
    beyond: int
    nan: int | None
    sign: int
    least: float


@cache
def _encoding(name: str, round_mode: str) -> _Encoding:
    bits = data_type(name).bits or 8
    sign = 0 if round_mode else 1 << bits - 1
    values = _numbers(name)[: sign or 256].astype(np.float64)
    finite = values[np.isfinite(values)]
    largest = len(finite) - 1
    following = np.append(finite, 2 * finite[-1] if round_mode else 2 * finite[-1] - finite[-2])
    middles = (following[:-1] + following[1:]) / 2
    above = np.nextafter(middles, np.inf)
    thresholds = {
        "up": np.nextafter(following[:-1], np.inf), "down": following[1:], "nearest": middles
    }.get(round_mode, np.where(np.arange(largest + 1) % 2, middles, above))  # fmt: skip
    infinite = np.flatnonzero(np.isposinf(values))
    not_numbers = np.flatnonzero(np.isnan(_numbers(name)[: 1 << bits]))
    nan = _QUIET.get(name, int(not_numbers[0]) if not_numbers.size else None)
    beyond = int(infinite[0]) if infinite.size else largest if nan is None else nan
    return _Encoding(thresholds, largest, beyond, nan, sign, float(values[0 if round_mode else 1]))
