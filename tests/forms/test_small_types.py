"""Codes and numbers of ONNX's small types, beside ml_dtypes and the package onnx."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.values.datatypes import DATA_TYPES, data_type
from tensorpost.values.packed_elements import packed_bytes, packed_elements, unpacked_elements
from tensorpost_server.forms.small_types import codes_by_thresholds, codes_of, numbers_of

SMALL = [row.numpy_name for row in DATA_TYPES if row.is_small]
FLOATS = [name for name in SMALL if data_type(name).kind == "f" and name != "float8_e8m0fnu"]
INTEGERS = [name for name in SMALL if data_type(name).kind in "iu"]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def every_code(name: str) -> NDArray[np.uint8]:
    return np.arange(1 << (data_type(name).bits or 8), dtype=np.uint8)


def hard_numbers(name: str) -> NDArray[np.float32]:
    """All numbers of a type, what lies between two of them, and next to that; very large and small ones, and NaN."""
    values = np.unique(np.abs(every_code(name).view(data_type(name).dtype).astype(np.float32)))
    values = values[np.isfinite(values)]
    following = np.append(values, 2 * values[-1] - values[-2])
    middles = (following[1:] + following[:-1]) / 2
    near = [values, following, middles, np.nextafter(middles, np.inf), np.nextafter(middles, 0)]
    chance = np.random.default_rng(0)
    spread = chance.standard_normal(4000) * 10.0 ** chance.integers(-45, 39, 4000)
    found = np.concatenate([*near, spread, [0, 1e38, np.inf, np.nan]]).astype(np.float32)
    return np.concatenate([found, -found])


@pytest.mark.parametrize("name", SMALL)
def test_numbers_are_those_of_ml_dtypes(name: str) -> None:
    codes = every_code(name)
    np.testing.assert_array_equal(numbers_of(np, codes, name), codes.view(data_type(name).dtype).astype(np.float32))


@pytest.mark.parametrize("name", [name for name in SMALL if data_type(name).bits])
def test_the_high_bits_of_a_byte_do_not_count(name: str) -> None:
    codes = every_code(name)
    high = codes | np.uint8(0xFF << data_type(name).bits & 0xFF)
    np.testing.assert_array_equal(numbers_of(np, high, name), numbers_of(np, codes, name))


@pytest.mark.parametrize("name", FLOATS)
def test_codes_are_those_of_ml_dtypes(name: str) -> None:
    numbers = hard_numbers(name)
    wanted = numbers.astype(data_type(name).dtype).view(np.uint8)
    np.testing.assert_array_equal(codes_of(np, numbers, name, saturate=False), wanted)
    found = codes_by_thresholds(np, numbers, name, saturate=False, round_mode="up")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", [name for name in FLOATS if not data_type(name).bits])
def test_saturated_codes(name: str) -> None:
    numbers, dtype = hard_numbers(name), data_type(name).dtype
    most: Any = ml_dtypes.finfo(dtype).max
    wanted = np.clip(numbers, -float(most), float(most)).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(codes_of(np, numbers, name), wanted)
    found = codes_by_thresholds(np, numbers, name, saturate=True, round_mode="up")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("source", [np.float16, np.float64, np.int32, np.uint8, np.bool_])
def test_codes_of_other_types(source: Any) -> None:
    numbers = np.arange(0, 260).astype(source)
    wanted = numbers.astype(np.float64).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(codes_of(np, numbers, "float8_e4m3fn"), wanted)
    found = codes_by_thresholds(np, numbers.astype(np.float64), "float8_e4m3fn", saturate=True, round_mode="up")
    np.testing.assert_array_equal(found, wanted)


def test_float64_is_rounded_once() -> None:
    # By way of float32 it would be the middle of 1 and 1.125, which goes to the even code, 1.
    number = np.array([1.0625 + 2.0**-40])
    assert codes_of(np, number, "float8_e4m3fn").view(ml_dtypes.float8_e4m3fn).astype(float).tolist() == [1.125]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_their_low_bits(name: str) -> None:
    bits, numbers = data_type(name).bits, np.arange(-40, 40)
    np.testing.assert_array_equal(codes_of(np, numbers, name), numbers % (1 << bits))
    np.testing.assert_array_equal(codes_of(np, numbers + 0.75 * np.sign(numbers), name), numbers % (1 << bits))
    assert codes_of(np, np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float32), name).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("round_mode", "wanted"),
    [("up", [1, 2, 2, 4, 4, 4]), ("down", [1, 1, 1, 2, 2, 4]), ("nearest", [1, 1, 2, 2, 4, 4])],
)
def test_powers_of_two(round_mode: str, wanted: list[float]) -> None:
    numbers = np.array([1, 1.25, 1.5, 2.75, 3, 4], np.float32)
    codes = codes_of(np, numbers, "float8_e8m0fnu", round_mode=round_mode)
    assert numbers_of(np, codes, "float8_e8m0fnu").tolist() == wanted


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [True, False])
def test_powers_of_two_as_onnx_makes_them(round_mode: str, saturate: bool) -> None:
    helper: Any = pytest.importorskip("onnx.numpy_helper", reason="the package onnx has no wheel for every Python")
    numbers = np.random.default_rng(0).standard_normal(4000) * 2.0 ** np.random.default_rng(1).integers(-120, 120, 4000)
    numbers = np.abs(numbers).astype(np.float32)
    wanted = helper.to_float8e8m0(numbers, saturate, round_mode).view(np.uint8)
    found = codes_of(np, numbers, "float8_e8m0fnu", saturate=saturate, round_mode=round_mode)
    np.testing.assert_array_equal(found, wanted)


def test_ends_of_the_powers_of_two() -> None:
    numbers = np.array([0, 1e-45, np.inf, np.nan, -1], np.float32)  # the table of ONNX's Cast
    assert codes_of(np, numbers, "float8_e8m0fnu").tolist() == [0, 0, 254, 255, 255]
    least = codes_of(np, numbers, "float8_e8m0fnu", saturate=False, round_mode="nearest")
    assert least.tolist() == [255, 255, 255, 255, 255]


@pytest.mark.parametrize("bits", [2, 4, 6])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 1 << 18, (1 << 18) + 7])
def test_packed_elements(bits: int, count: int) -> None:
    elements = np.random.default_rng(bits).integers(0, 1 << bits, count).astype(np.uint8)
    packed = packed_elements(elements, bits)
    whole = sum(int(element) << (bits * at) for at, element in enumerate(elements[:64]))
    assert packed[:8] == whole.to_bytes(64, "little")[: min(8, len(packed))]
    assert len(packed) == packed_bytes(count, bits)
    np.testing.assert_array_equal(unpacked_elements(np.frombuffer(packed, np.uint8), bits, count), elements)
