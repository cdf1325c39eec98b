"""`Pointwise` on NumPy: any box, layout and block, and one rounding of float16."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorpost_server.forms import Box, Pointwise, pointwise, whole_box
from tensorpost_server.forms.base import Abandoned, stoppable
from tensorpost_server.forms.expression import call, operand, where

X, Y = operand(0), operand(1)
ADD = Pointwise(X + Y, ("float32", "float32"), "float32")


def filled(form: Pointwise, inputs: list[NDArray[Any]], box: Box, out: NDArray[Any]) -> NDArray[Any]:
    form.fill(np, inputs, box, out)
    return out


@st.composite
def arrays(draw: st.DrawFn, sizes: tuple[int, ...]) -> NDArray[Any]:
    """Of these sizes: axes in any order, some broadcast, some with gaps or backwards."""
    order = draw(st.permutations(range(len(sizes))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, 0])) for _ in sizes]
    shape = [1 if steps[axis] == 0 else sizes[axis] * abs(steps[axis]) for axis in order]
    base = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape).astype(np.float32)
    x = base.transpose(np.argsort(order))
    x = x[tuple([slice(None, None, step or 1) for step in steps])]
    return np.broadcast_to(x, sizes)


@pytest.mark.parametrize("block", [1, 5, 16, pointwise.BLOCK])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_box_of_any_layouts_in_blocks_of_any_size(block: int, data: st.DataObject):
    sizes = tuple(data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=4)))
    x, y = data.draw(arrays(sizes)), data.draw(arrays(sizes))
    ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in sizes]
    box = tuple([(low, high) for low, high in ends])
    out = np.empty([high - low for low, high in box][::-1], np.float32).T

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointwise, "BLOCK", block)
        filled(ADD, [x, y], box, out)

    np.testing.assert_array_equal(out, (x + y)[tuple([slice(*span) for span in box])])


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_outside_reads_is_read(data: st.DataObject):
    sizes = (4, 6)
    inputs = [data.draw(arrays(sizes)).copy() for _ in range(2)]
    box = ((1, 3), (data.draw(st.integers(0, 3)), 5))
    poisoned = [np.full_like(x, np.nan) for x in inputs]
    for x, bad, read in zip(inputs, poisoned, ADD.reads(box), strict=True):
        assert read is not None
        part = tuple([slice(*span) for span in read])
        bad[part] = x[part]
    shape = [stop - start for start, stop in box]

    np.testing.assert_array_equal(
        filled(ADD, inputs, box, np.empty(shape, np.float32)), filled(ADD, poisoned, box, np.empty(shape, np.float32))
    )


@pytest.mark.parametrize("size", [100, 3 * pointwise.BLOCK + 17])
def test_float16_is_rounded_once(size: int):
    # Every sum and product is exact in float64, so rounding that is the only rounding there should be.
    random = np.random.default_rng(3)
    x, y = (random.standard_normal(size).astype(np.float16) for _ in range(2))
    form = Pointwise(X * Y + X, ("float32", "float32"), "float32")
    exact = x.astype(np.float64) * y.astype(np.float64)
    exact = (exact.astype(np.float32).astype(np.float64) + x).astype(np.float32)  # as float32 computes it

    result = filled(form, [x, y], whole_box((size,)), np.empty(size, np.float16))

    np.testing.assert_array_equal(result, exact.astype(np.float16))


def test_truth_values_and_other_types():
    x, y = np.array([1, 2, 3], np.int32), np.array([3, 2, 1], np.int32)
    box = whole_box((3,))

    less = filled(Pointwise(X < Y, ("int32", "int32"), "int32"), [x, y], box, np.empty(3, np.uint8))
    chosen = Pointwise(where(operand(0), X + 1, X), ("uint8",), "uint8")
    wrapped = filled(chosen, [np.array([0, 7, 255], np.uint8)], box, np.empty(3, np.uint8))

    assert less.tolist() == [1, 0, 0]
    assert wrapped.tolist() == [0, 8, 0]


def test_nothing_warns_of_infinities():
    x = np.array([0.0, -1.0, 1e30], np.float32)
    form = Pointwise(call("log", X) / 0.0, ("float32",), "float32")

    with np.errstate(all="raise"):
        result = filled(form, [x], whole_box((3,)), np.empty(3, np.float32))

    np.testing.assert_array_equal(result, np.array([-np.inf, np.nan, np.inf], np.float32))


def test_a_long_computation_can_be_stopped():
    stop = threading.Event()
    stop.set()
    x = np.zeros(4 * pointwise.BLOCK, np.float32)

    with stoppable(stop), pytest.raises(Abandoned):
        filled(ADD, [x, x], whole_box(x.shape), np.empty_like(x))
