"""Coordinates whose numerators do not fit int64: a roi is any float64, so denominators reach 2^1074 and more."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost.onnx import ResizeAxis
from tensorpost.onnx import exact_lines as _lines
from tensorpost.onnx import resize as module
from tensorpost.onnx.resize import NearestMode

TINY = Fraction(5e-324)
ROUNDED = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda x: math.ceil(x - Fraction(1, 2)),
    "round_prefer_ceil": lambda x: math.floor(x + Fraction(1, 2)),
}

plain = st.builds(Fraction, st.integers(-40, 40), st.integers(1, 8))
nearly_plain = st.builds(lambda x, off: x + off * TINY, plain, st.integers(-2, 2))
anything = st.one_of(plain, nearly_plain, st.floats(-9, 9).map(Fraction), st.fractions(-9, 9))


def crop(length: int, outputs: int, start: float, end: float, mode: NearestMode = "floor") -> ResizeAxis:
    """What tf_crop_and_resize makes of a roi."""
    step = (Fraction(end) - Fraction(start)) * (length - 1) / (outputs - 1)
    return ResizeAxis(length, outputs, Fraction(1), step, Fraction(start) * (length - 1), mode)


# ---- lines -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(slope=anything, start=anything, count=st.integers(1, 80))
def test_floors_are_those_of_exact_fractions(slope: Fraction, start: Fraction, count: int) -> None:
    assert _lines.floors(slope, start, count).tolist() == [math.floor(slope * i + start) for i in range(count)]


def test_the_lowest_place_of_every_small_line() -> None:
    for one in range(1, 15):
        for step, start, count in itertools.product(range(one), range(one), (1, 2, 4, one, one + 5)):
            heights = [(step * i + start) % one for i in range(count)]
            at = _lines._lowest(step, start, one, count)
            assert at in range(count)
            assert heights[at] == min(heights), (step, start, one, count)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 12])
def test_the_neighbours_among_fractions_of_small_denominators(most: int) -> None:
    known = {Fraction(p, q) for q in range(1, most + 1) for p in range(q + 1)}
    for number in {Fraction(p, q) for q in range(1, 30) for p in range(q)}:
        below, above = _lines._neighbours(number, most)
        assert Fraction(*below) == max(f for f in known if f <= number)
        assert Fraction(*above) == min(f for f in known if f >= number)
        assert max(below[1], above[1]) <= most


# ---- axes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    length=st.integers(1, 12),
    outputs=st.integers(1, 60),
    step=anything,
    offset=st.one_of(anything, st.floats(-1e300, 1e300).map(Fraction)),
    mode=st.sampled_from(sorted(ROUNDED)),
    data=st.data(),
)
def test_nearest_is_that_of_exact_fractions(
    length: int, outputs: int, step: Fraction, offset: Fraction, mode: Any, data: st.DataObject
) -> None:
    axis = ResizeAxis(length, outputs, Fraction(1), step, offset, mode)
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    expected = [min(max(ROUNDED[mode](step * o + offset), 0), length - 1) for o in range(start, stop)]

    assert axis.nearest(start, stop).tolist() == expected
    assert axis._nearest_of_any(start, stop).tolist() == expected, "and it needs no coordinate to be fine"


def test_nearest_is_the_same_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    axis = crop(1000, 5000, 5e-324, 0.7, "round_prefer_ceil")
    whole = axis.nearest(0, 5000)
    monkeypatch.setattr(module, "_AT_ONCE", 37)

    assert np.array_equal(axis.nearest(0, 5000), whole)
    assert np.array_equal(axis.nearest(123, 3001), whole[123:3001])


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("roi", [(5e-324, 0.7), (0.1, 0.7), (1.3, -0.2), (0.0, 1.0)])
def test_places_are_rounded_once(roi: tuple[float, float], crops: bool) -> None:
    axis = crop(9, 9001, *roi)
    base, beyond = axis.places(2000, 9001, crops=crops)

    for o in range(2000, 9001, 61):
        x = axis.step * o + axis.offset
        x = min(max(x, Fraction(0)), Fraction(8)) if crops else x
        assert base[o - 2000] == math.floor(x)
        # int64 numerators and denominators are rounded to float64 before they are divided
        assert beyond[o - 2000] == pytest.approx(float(x - math.floor(x)), rel=2**-51, abs=0)


def test_a_weight_does_not_depend_on_the_part_it_is_computed_in() -> None:
    # The numerators of the first outputs would fit int64, those of the last would not.
    axis = ResizeAxis(4, 1 << 10, Fraction(1), Fraction((1 << 53) + 1, 1 << 53), Fraction(1, 3 << 53))

    _, whole = axis.places(0, 1 << 10)
    _, first = axis.places(0, 2)

    assert np.array_equal(first, whole[:2])
    assert first[1] == float(axis.step + axis.offset - 1)


# ---- what it costs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many coordinates are made at a time; of Python integers no thread can run meanwhile."""
    found: list[int] = []
    coordinates = ResizeAxis.coordinates

    def spy(axis: ResizeAxis, start: int, stop: int) -> Any:
        x, one = coordinates(axis, start, stop)
        assert x.dtype == object
        found.append(len(x))
        return x, one

    monkeypatch.setattr(ResizeAxis, "coordinates", spy)
    return found


def test_nearest_computes_with_no_array_of_python_integers(widths: list[int]) -> None:
    crop(3, 10**7, 5e-324, 0.7).nearest(0, 1 << 18)

    assert widths == []


def test_places_computes_with_few_python_integers_at_a_time(widths: list[int]) -> None:
    crop(3, 10**7, 5e-324, 0.7).places(0, 20_000)

    assert sum(widths) == 20_000
    assert max(widths) <= 4096


@pytest.mark.parametrize("method", ["nearest", "places"])
def test_memory_is_that_of_the_result_and_of_some_integers(method: str) -> None:
    axis, outputs = crop(3, 10**7, 5e-324, 0.7), 1 << 15
    axis.nearest(0, 2)
    tracemalloc.start()
    try:
        getattr(axis, method)(0, outputs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 50 * outputs + (2 << 20 if method == "places" else 0)
