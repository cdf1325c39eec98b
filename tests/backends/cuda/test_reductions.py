"""reduce.cu on the host: reductions of any axes, layout and alignment, against float64 and Python's integers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.cuda_cases import Call, Strided
from tests.support.cuda_emulation import COMPILER, Emulator, layout, run

from tensorpost.descriptors import ReduceFunction
from tensorpost_server.backends.cuda import launch_plan, reduce_kernels
from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.forms import Box, Lines
from tensorpost_server.operators.reduction import reduce_lines

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++ or clang++ on PATH, or CXX")
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
INTEGERS = ("SUM", "MAX", "MIN", "L1", "SUM_SQUARE", "MULTIPLY")
FLOATS = (*INTEGERS, "AVERAGE", "L2", "LOG_SUM", "LOG_SUM_EXP")


@pytest.fixture(scope="session")
def emulator(emulation: Path) -> Emulator:
    return Emulator(emulation)


@pytest.fixture(autouse=True)
def all_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that CuPy would reduce, because it is faster, are reduced by the kernel in these tests, too."""
    monkeypatch.setattr(launch_plan, "cupy_is_faster", lambda *_: False)


@pytest.mark.parametrize(
    ("function", "sizes", "axes", "dtype", "by_cupy"),
    [
        ("MAX", (4, 15), (1,), "float32", True), ("MAX", (4, 16), (1,), "float32", False),
        ("MAX", (4, 15), (1,), "uint8", True), ("MAX", (4, 15), (1,), "float16", False),
        ("SUM", (4, 15), (1,), "float32", False), ("MAX", (4, 15), (0,), "float32", False),
        ("MAX", (4, 15), (0, 1), "float32", False), ("MIN", (4, 3, 15), (1, 2), "float64", True),
        ("MIN", (4, 5, 7), (0, 2), "int32", True), ("MAX", (1, 15), (1,), "float32", False),
    ],
)  # fmt: skip
def test_unaligned_rows_are_reduced_by_cupy(
    function: str, sizes: tuple[int, ...], axes: tuple[int, ...], dtype: str, by_cupy: bool
) -> None:
    form, x = lines(function, sizes, axes), layout(np.zeros(sizes, dtype))
    assert reduce_kernels.cupy_is_faster(form, x) == by_cupy
    shifted = replace(x, address=x.address + np.dtype(dtype).itemsize)
    assert reduce_kernels.cupy_is_faster(form, shifted) == by_cupy, "the address decides nothing"


def lines(function: str, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Lines:
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    parameters = (("axes", axes), ("function", ReduceFunction[function]))
    return Lines(reduce_lines, axes, sizes, (kept,), (parameters,), 0, reduction=function)


def placed(x: NDArray[Any], order: tuple[int, ...] | None = None, skip: int = 0, gap: int = 0) -> Strided:
    """The array in memory by this order of axes, `skip` elements from an aligned address, rows `gap` elements apart."""
    order = order or tuple(range(x.ndim))
    strides, step = [0] * x.ndim, 1
    for place, axis in enumerate(reversed(order)):
        strides[axis], step = step, step * x.shape[axis] + (gap if place == 0 else 0)
    made = Strided(np.zeros(skip + step + 1, x.dtype), skip, x.shape, tuple(strides))
    made.array(np, made.memory)[...] = x
    return made


def reduced(emulator: Emulator, form: Lines, x: Strided, box: Box | None = None, out_skip: int = 0) -> NDArray[Any]:
    """A box of the output; nothing beside it was written."""
    box = box or tuple((0, size) for size in form.outputs[0])
    out = placed(np.zeros([stop - start for start, stop in box], x.memory.dtype), skip=out_skip)
    out.memory.view(np.uint8)[...] = 0xA5
    memory = run(emulator, Call(form, (x,), box, out))
    found = out.array(np, memory).copy()
    out.array(np, memory).view(np.uint8)[...] = 0xA5
    assert (memory.view(np.uint8) == 0xA5).all(), "something was written outside of the output"
    return found


def by_lines(x: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in kept)
    return np.ascontiguousarray(x.transpose([*kept, *axes])).reshape(count, -1)


def exact(function: str, line: list[Any], bits: int, signed: bool) -> int:
    """A line of integers by Python's, modulo 2^bits."""
    match function:
        case "MAX":
            return max(line)
        case "MIN":
            return min(line)
        case "MULTIPLY":
            total = math.prod(line)
        case "L1":
            total = sum(map(abs, line))
        case "SUM_SQUARE":
            total = sum(n * n for n in line)
        case _:
            total = sum(line)
    total %= 1 << bits
    return total - (1 << bits) if signed and total >> bits - 1 else total


def near(function: str, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lines of numbers in float64."""
    match function:
        case "AVERAGE":
            return y.mean(-1)
        case "MAX":
            return y.max(-1)
        case "MIN":
            return y.min(-1)
        case "MULTIPLY":
            return np.multiply.reduce(y, -1)
        case "L1":
            return np.abs(y).sum(-1)
        case "L2":
            return np.sqrt((y * y).sum(-1))
        case "SUM_SQUARE":
            return (y * y).sum(-1)
        case "LOG_SUM":
            return np.log(y.sum(-1))
        case "LOG_SUM_EXP":
            return np.logaddexp.reduce(y, -1)
        case _:
            return y.sum(-1)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((37, 67), (1,)), ((37, 67), (0,)), ((5, 9, 21), (0, 2)), ((5, 9, 21), (1,)), ((64, 128), (1,)), ((64, 128), (0,)),
    ((300, 40), (0,)), ((40, 300), (0, 1)), ((2, 3, 40, 7), (1, 3)), ((33, 1), (0,)), ((9, 4), ()), ((1, 1), (0, 1)),
]  # fmt: skip


def shapes_for(function: str, most: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All shapes for a sum and a maximum; the other functions differ in what they do with an element."""
    return SHAPES[: most if function in ("SUM", "MAX") else 3]


@pytest.mark.parametrize("function", INTEGERS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_integers_are_exact(emulator: Emulator, dtype: str, function: str):
    limits = np.iinfo(dtype)
    for sizes, axes in shapes_for(function, 9):
        x = np.random.default_rng(1).integers(limits.min, limits.max, sizes, dtype, endpoint=True)
        got = reduced(emulator, lines(function, sizes, axes), placed(x, skip=1))
        want = [exact(function, line, limits.bits, limits.min < 0) for line in by_lines(x, axes).tolist()]
        assert got.ravel().tolist() == want, (sizes, axes)


@pytest.mark.parametrize("function", FLOATS)
@pytest.mark.parametrize(
    ("dtype", "finest", "most"), [("float32", 2e-6, 12), ("float16", 1e-3, 4), ("float64", 1e-14, 4)]
)
def test_floats_are_near_the_exact_ones(emulator: Emulator, dtype: str, finest: float, most: int, function: str):
    # A product is off by a rounding for each factor, which are as often up as down.
    off = {"MAX": 0, "MIN": 0, "MULTIPLY": 10 * finest}.get(function, finest)
    for (sizes, axes), skip in zip(shapes_for(function, most), itertools.cycle((0, 1))):
        x = np.abs(np.random.default_rng(2).normal(size=sizes)) + 0.25
        x = (np.exp((x - 1) / 40) if function == "MULTIPLY" else x / 8 if dtype == "float16" else x).astype(dtype)
        got = reduced(emulator, lines(function, sizes, axes), placed(x, skip=skip)).ravel().astype(np.float64)
        want = near(function, by_lines(x, axes).astype(np.float64))
        np.testing.assert_allclose(got, want, rtol=off, atol=off, err_msg=str((sizes, axes)))


@pytest.mark.parametrize(
    ("sizes", "axes", "launches"),
    [
        ((3, 70_000), (1,), 2), ((70_001, 3), (0,), 2), ((9_000, 5), (0,), 2), ((300, 901), (0, 1), 2),
        ((7, 9_000, 5), (0, 1), 2),
    ],
    ids=str,
)  # fmt: skip
def test_long_lines_are_cut_into_segments(
    emulator: Emulator, sizes: tuple[int, ...], axes: tuple[int, ...], launches: int
):
    x = np.random.default_rng(3).integers(-128, 128, sizes).astype(np.int32)
    form = lines("SUM", sizes, axes)
    source = placed(x, skip=1)
    steps = plan(
        form, [layout(source.view)], tuple((0, n) for n in form.outputs[0]), layout(np.zeros(form.outputs[0], "i4"))
    )

    assert steps is not None
    assert len(steps) == launches
    assert reduced(emulator, form, source).tolist() == x.sum(axes, keepdims=True).tolist()
    for function in ("AVERAGE", "LOG_SUM_EXP"):
        y = (x / 64).astype(np.float32)
        want = near(function, by_lines(y, axes).astype(np.float64))
        got = reduced(emulator, lines(function, sizes, axes), placed(y)).ravel()
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@given(data=st.data())
@EXAMPLES
def test_any_layout_box_and_alignment(emulator: Emulator, data: st.DataObject):
    sizes = tuple(data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=4)))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1)))))
    order = tuple(data.draw(st.permutations(range(len(sizes)))))
    x = np.random.default_rng(4).integers(0, 256, sizes).astype("uint8")
    form = lines("SUM", sizes, axes)
    box = tuple((data.draw(st.integers(0, size - 1)), size) for size in form.outputs[0])
    source = placed(x, order, data.draw(st.integers(0, 17)), data.draw(st.integers(0, 2)))

    got = reduced(emulator, form, source, box, data.draw(st.integers(0, 3)))

    want = x.sum(axes, dtype=np.uint8, keepdims=True)[tuple(slice(*span) for span in box)]
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("step", [(-1, 1), (1, -1), (2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_steps_and_repeated_elements(emulator: Emulator, step: tuple[int, int], axes: tuple[int, ...]):
    x = np.random.default_rng(5).integers(0, 256, (40, 50)).astype("uint8")
    view = x[:: step[0], :: step[1]]
    first = (39 * 50 if step[0] < 0 else 0) + (49 if step[1] < 0 else 0)
    for strides in ((50 * step[0], step[1]), (0, step[1]), (50 * step[0], 0)):
        given_ = Strided(x.ravel(), first, view.shape, strides)
        got = reduced(emulator, lines("SUM", view.shape, axes), given_)
        assert got.tolist() == given_.view.sum(axes, dtype=np.uint8, keepdims=True).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("sizes", "axes"), [*SHAPES[:9], ((3, 9_001), (1,)), ((9_001, 3), (0,))], ids=str)
def test_a_part_at_any_address_has_the_bytes_of_the_whole(
    emulator: Emulator, sizes: tuple[int, ...], axes: tuple[int, ...], dtype: str
):
    x = np.random.default_rng(6).normal(size=sizes).astype(dtype)
    form = lines("SUM", sizes, axes)
    whole = reduced(emulator, form, placed(x))
    for skip, gap, low in ((1, 0, 0), (3, 5, 0), (2, 0, 1)):
        box = tuple((min(low, size - 1), size) for size in form.outputs[0])
        part = reduced(emulator, form, placed(x, skip=skip, gap=gap), box, out_skip=skip)
        assert part.tobytes() == whole[tuple(slice(*span) for span in box)].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_special_numbers(emulator: Emulator, dtype: str, axes: tuple[int, ...]):
    inf, nan = np.inf, np.nan
    rows = [
        [1, nan, 3], [inf, 1, 2], [-inf, 1, 2], [-inf, -inf, -inf], [inf, -inf, 1], [inf, inf, 1], [nan, inf, -inf],
        [700, 700.5, -700], [-0.0, -0.0, -0.0],
    ]  # fmt: skip
    x = np.array(rows, dtype)
    x = x if axes == (1,) else np.ascontiguousarray(x.T)
    got = {
        name: reduced(emulator, lines(name, x.shape, axes), placed(x)).ravel()
        for name in ("MAX", "MIN", "SUM", "LOG_SUM_EXP")
    }

    np.testing.assert_array_equal(got["MAX"], np.array([nan, inf, 2, -inf, inf, inf, nan, 700.5, 0], dtype))
    np.testing.assert_array_equal(got["MIN"], np.array([nan, 1, -inf, -inf, -inf, 1, nan, -700, 0], dtype))
    np.testing.assert_array_equal(got["SUM"], np.array([nan, inf, -inf, -inf, nan, inf, nan, 700.5, 0], dtype))
    assert np.signbit(got["SUM"][-1])
    want = [
        nan,
        inf,
        2 + math.log1p(math.exp(-1)),
        -inf,
        inf,
        inf,
        nan,
        700.5 + math.log1p(math.exp(-0.5)),
        math.log(3),
    ]
    np.testing.assert_allclose(got["LOG_SUM_EXP"].astype(float), want, rtol=1e-3 if dtype == "float16" else 1e-6)


def test_wide_offsets(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reduce_kernels, "fits_in_32_bits", lambda *_: False)  # as beyond 2 GiB
    x = np.random.default_rng(7).integers(0, 256, (19, 500, 5)).astype("uint8")
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1)):
        got = reduced(emulator, lines("SUM", x.shape, axes), placed(x, skip=1))
        assert got.tolist() == x.sum(axes, dtype=np.uint8, keepdims=True).tolist()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [("AVERAGE", "int32"), ("L2", "uint8"), ("LOG_SUM", "int64"), ("ARGMAX", "float32"), ("SUM", "complex64"),
     ("MAX", "bool")],
)  # fmt: skip
def test_what_the_kernel_has_not_is_cupys(function: str, dtype: str):
    form = replace(lines("SUM", (4, 5), (1,)), reduction=function)
    x, out = np.zeros((4, 5), dtype), np.zeros((4, 1), dtype)

    assert plan(form, [layout(x)], ((0, 4), (0, 1)), layout(out)) is None
    assert plan(lines("SUM", (4, 0), (1,)), [layout(x[:, :0])], ((0, 4), (0, 1)), layout(out)) is None
