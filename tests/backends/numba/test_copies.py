"""Copies by compiled loops: NumPy's bytes for every item, order, step, fill and cut."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.numba.test_expressions import computed, plan_of, slot
from tests.support.batches import each

from tensorpost_server.backends.numba_ import NumbaBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms import Copies, Copy, Loop

ITEMS = ("uint8", "float16", "float32", "float64")


def both(numba: NumbaBackend, form: Copies, inputs: list[Any], output: Any, slice_bytes: int = 1 << 20) -> Any:
    """The output, which must be the same bytes as NumPy's."""
    plan = plan_of(form, [slot(f"x{i}", x) for i, x in enumerate(inputs)], slot("y", output), slice_bytes)
    assert numba.uses_numpy(plan) is None
    sent = [x.tobytes() for x in inputs]
    mine = computed(numba, plan, sent)
    assert mine == computed(NumpyBackend(), plan, sent)
    return np.frombuffer(mine, output.dtype).reshape(output.shape)


@each("dtype", ITEMS)
@each("shape", [(64, 48), (67, 131), (3, 500), (500, 3), (2, 90), (90, 4), (5, 6), (1, 70)])
@each("slice_bytes", [1 << 20, 3000])
def test_matrices_are_transposed(numba: NumbaBackend, dtype: str, shape: tuple[int, int], slice_bytes: int):
    x = np.random.default_rng(1).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    loops = (Loop(shape[1], (0, 1), ((1, 1),)), Loop(shape[0], (1, 1), ((0, 1),)))
    form = Copies((2,), ((Copy(0, (0, 0), (0, 0), tuple([loop for loop in loops if loop.extent > 1])),),))

    assert both(numba, form, [x], np.empty(shape[::-1], dtype), slice_bytes).tobytes() == x.T.tobytes()


@given(
    data=st.data(),
    dtype=st.sampled_from(ITEMS),
    sizes=st.lists(st.sampled_from([2, 3, 5, 8, 17]), min_size=1, max_size=4),
    slice_bytes=st.sampled_from([1 << 20, 64, 1000]),
)
@settings(max_examples=200, deadline=None)
def test_any_order_and_step_over_a_fill(
    numba: NumbaBackend, data: st.DataObject, dtype: str, sizes: list[int], slice_bytes: int
):
    rank = len(sizes)
    axes = data.draw(st.permutations(range(rank)))
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2, 0])) for _ in sizes]
    pads = [data.draw(st.integers(0, 3)) for _ in sizes]
    shape, start = [0] * rank, [0] * rank
    for axis, size, step in zip(axes, sizes, steps, strict=True):
        shape[axis] = (size - 1) * abs(step) + 1
        start[axis] = shape[axis] - 1 if step < 0 else 0
    x = np.random.default_rng(2).integers(0, 100, shape).astype(dtype)
    loops = [
        Loop(n, (to, 1), ((axis, step),)) for to, (axis, n, step) in enumerate(zip(axes, sizes, steps, strict=True))
    ]
    copy = Copy(0, tuple(start), tuple(pads), tuple(loops))
    out = np.empty([size + 2 * pad for size, pad in zip(sizes, pads, strict=True)], dtype)

    both(numba, Copies((rank,), ((copy,),), 7), [x], out, slice_bytes)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mprotect")
@each("dtype", ITEMS)
@each("at_end", [False, True])
def test_steps_read_no_byte_outside_the_input(numba: NumbaBackend, dtype: str, at_end: bool):
    """Between two pages of which no byte may be read, at the beginning and at the end of the page."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    whole = np.frombuffer(memory, np.uint8)
    for guard in (0, 2 * page):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + guard), page, 0) == 0
    for step in (2, 3, 4, 5):
        for count in (4, 5, 8, 9, 16, 17, 18, 31, 33, 64):
            length = (count - 1) * step + 1
            size = length * np.dtype(dtype).itemsize
            view = memoryview(memory)[2 * page - size : 2 * page] if at_end else memoryview(memory)[page : page + size]
            x = np.frombuffer(view, dtype)
            x[:] = np.random.default_rng(step).integers(0, 100, length)
            copy = Copy(0, (0,), (0,), (Loop(count, (0, 1), ((0, step),)),))
            plan = plan_of(Copies((1,), ((copy,),)), [slot("x", x)], slot("y", np.empty(count, dtype)))
            run = numba.start(plan, [view])

            assert bytes(run.compute(0)) == x[::step].tobytes(), (step, count)


def test_several_inputs_are_joined(numba: NumbaBackend):
    parts = [np.full((4, n), n, np.int16) for n in (1, 5, 300)]
    starts = [0, 1, 6]
    copies = [
        Copy.of_box(part.shape, target_start=(0, start), input=number)
        for number, (part, start) in enumerate(zip(parts, starts, strict=True))
    ]

    result = both(numba, Copies((2, 2, 2), (tuple(copies),)), parts, np.empty((4, 306), np.int16), 500)

    np.testing.assert_array_equal(result, np.concatenate(parts, axis=1))
