"""Tables of taps are made within bounds, whatever an axis is."""

from __future__ import annotations

import tracemalloc

import pytest

from tensorpost_server.backends.cuda.tap_tables import Span, taps_of
from tensorpost_server.forms.axes import AxisMap
from tensorpost_server.forms.resample_axes import AdjointAxis, LinearAxis, PyramidAxis

WIDE = 1 << 22


@pytest.mark.parametrize(
    "axis",
    [
        AdjointAxis(LinearAxis(1, WIDE, 1.0, 0.5, -0.5)),  # all outputs read the one element
        PyramidAxis(WIDE, 1, 1e-9, 0.5, -0.5),
    ],
    ids=["gradient", "antialiased"],
)
def test_one_window_of_millions_is_not_made(axis: AxisMap) -> None:
    tracemalloc.start()
    try:
        taps = taps_of(Span(axis, 0, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert taps is None
    assert peak < 1 << 20


def test_an_ordinary_window_is() -> None:
    taps = taps_of(Span(AdjointAxis(LinearAxis(1, 1000, 1.0, 0.5, -0.5)), 0, 1))

    assert taps is not None
    assert taps.most == 1000
