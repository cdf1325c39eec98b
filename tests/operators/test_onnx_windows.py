"""ONNX Resize where windows are folded at the input's ends and summed in parts: the weights of the plain way."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.tuning import tuned

from tensorpost.onnx import OnnxNode, OnnxTensor, ResizeAxis
from tensorpost_server.forms import onnx_axes
from tensorpost_server.forms.onnx_axes import FilterMap
from tensorpost_server.operators import form_of


def matrix(mapping: FilterMap, start: int, stop: int, *span: int) -> NDArray[np.float64]:
    index, weight = mapping.taps_within(start, stop, *span) if span else mapping.taps(start, stop)
    assert weight is not None
    full = np.zeros((stop - start, mapping.input_size))
    np.add.at(full, (np.arange(stop - start), index), weight)
    return full


@given(
    length=st.integers(1, 30), outputs=st.integers(1, 12), stretch=st.fractions(1, 40, max_denominator=9),
    step=st.fractions(-9, 9, max_denominator=7), offset=st.fractions(-20, 40, max_denominator=5),
    cubic=st.booleans(), exclude=st.booleans(), data=st.data(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_parts_of_a_filter_together_are_the_filter(
    length: int, outputs: int, stretch: Fraction, step: Fraction, offset: Fraction,
    cubic: bool, exclude: bool, data: st.DataObject,
) -> None:  # fmt: skip
    stretch = max(stretch, Fraction(8, 7))
    axis = ResizeAxis(length, outputs, 1 / stretch, step, offset)
    mapping = FilterMap(axis, 2 if cubic else 1, -0.75, exclude, stretch, crops=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
    whole = matrix(mapping, 0, outputs)

    parts = [matrix(mapping, 0, outputs, *span) for span in itertools.pairwise([0, *cuts, length])]

    np.testing.assert_allclose(sum(parts), whole, atol=1e-9)
    low, high = mapping.reach(0, outputs)
    assert not whole[:, :low].any()
    assert not whole[:, high:].any()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_results_are_the_same_in_parts_and_in_any_box(dtype: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(4).integers(0, 200, (90, 70)).astype(dtype)
    attributes = {"mode": mode, "antialias": 1}
    kernel = form_of(OnnxNode("Resize", {"X": OnnxTensor(dtype, x.shape), "sizes": [5, 4]}, attributes, opset=19))
    plain, whole, part = np.empty((5, 4), dtype), np.empty((5, 4), dtype), np.empty((2, 3), dtype)
    kernel.fill(np, [x], ((0, 5), (0, 4)), plain)

    monkeypatch.setattr(onnx_axes, "_FOLDED", 16)
    with tuned(LONG_SUM=2, MOST_TAPS=7, BETWEEN=6, MOST_BETWEEN=20):
        kernel = form_of(OnnxNode("Resize", {"X": OnnxTensor(dtype, x.shape), "sizes": [5, 4]}, attributes, opset=19))
        kernel.fill(np, [x], ((0, 5), (0, 4)), whole)
        kernel.fill(np, [x], ((2, 4), (1, 4)), part)

    if dtype == "float32":
        np.testing.assert_allclose(whole, plain, rtol=1e-5)
    else:
        np.testing.assert_array_equal(whole, plain)
    np.testing.assert_array_equal(part, whole[2:4, 1:4])
