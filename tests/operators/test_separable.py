"""The separable kernel with maps of any kind: weights of any sign, absent taps, every type, every way to compute."""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.tuning import tuned

from tensorpost_server.forms import axis_plans
from tensorpost_server.forms.axes import AxisMap, Taps
from tensorpost_server.forms.base import blocks
from tensorpost_server.forms.resample_axes import LinearAxis, Nearest, NearestAxis
from tensorpost_server.forms.separable import Rounding, Separable

# All that the kernel may use of an array library: CuPy has it too.
PORTABLE = cast(
    "types.ModuleType",
    types.SimpleNamespace(
        **{
            name: getattr(np, name)
            for name in (
                "add",
                "ascontiguousarray",
                "asarray",
                "clip",
                "empty",
                "moveaxis",
                "multiply",
                "subtract",
                "take",
            )
        }
    ),
)


@dataclass(frozen=True)
class Listed:
    """A map that is its list of taps: for each output, pairs of index and weight. Weights of 0 are absent taps."""

    input_size: int
    listed: tuple[tuple[tuple[int, float], ...], ...]
    copies: bool = False

    @property
    def output_size(self) -> int:
        return len(self.listed)

    def most_taps(self, start: int, stop: int) -> int:
        return max(1, *(len(taps) for taps in self.listed[start:stop]))

    def taps(self, start: int, stop: int) -> Taps:
        shape = (self.most_taps(start, stop), stop - start)
        index, weight = np.zeros(shape, np.int64), np.zeros(shape)
        for output, taps in enumerate(self.listed[start:stop]):
            for tap, (i, w) in enumerate(taps):
                index[tap, output], weight[tap, output] = i, w
        return index, None if self.copies else weight


WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 0.25, 0.5, -0.75, 2.0])


@st.composite
def maps(draw: st.DrawFn, input_size: int) -> AxisMap | None:
    kind = draw(st.sampled_from(["none", "copies", "weights", "weights"]))
    indices = st.integers(0, input_size - 1)
    if kind == "none":
        return None
    count = draw(st.integers(1, 14))
    if kind == "copies":
        return Listed(input_size, tuple(((draw(indices), 1.0),) for _ in range(count)), copies=True)
    # Often the taps advance evenly, so that slices are found; then they are disturbed.
    step, first = draw(st.integers(0, 2)), draw(indices)
    rows: list[tuple[tuple[int, float], ...]] = []
    shared = draw(st.lists(WEIGHTS, min_size=1, max_size=4))
    for output in range(count):
        own = draw(st.one_of(st.just(shared), st.just(shared), st.lists(WEIGHTS, max_size=4)))
        rows.append(tuple(((first + step * output + tap) % input_size, w) for tap, w in enumerate(own)))
    return Listed(input_size, tuple(rows))


@st.composite
def kernels(draw: st.DrawFn) -> tuple[tuple[AxisMap | None, ...], tuple[int, ...]]:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    return tuple(draw(maps(size)) for size in shape), shape


def dense(axes: Sequence[AxisMap | None], shape: Sequence[int]) -> list[NDArray[np.float64]]:
    """Each axis as a matrix of output by input."""
    matrices: list[NDArray[np.float64]] = []
    for mapping, size in zip(axes, shape, strict=True):
        if mapping is None:
            matrices.append(np.eye(size))
            continue
        assert isinstance(mapping, Listed)
        matrix = np.zeros((mapping.output_size, size))
        for output, taps in enumerate(mapping.listed):
            for i, w in taps:
                matrix[output, i] += w
        matrices.append(matrix)
    return matrices


def apply(matrices: Sequence[NDArray[np.float64]], x: NDArray[Any]) -> NDArray[np.float64]:
    values = x.astype(np.float64)
    for axis, matrix in enumerate(matrices):
        values = np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)
    return values


def fill(kernel: Separable, x: NDArray[Any], dtype: Any, xp: types.ModuleType = np) -> NDArray[Any]:
    sizes = [n if axis is None else axis.output_size for axis, n in zip(kernel.axes, x.shape, strict=True)]
    out = np.full(sizes, 77, dtype)
    kernel.fill(xp, [x], tuple((0, size) for size in sizes), out)
    return out


WAYS = ({}, {"LARGE": 0, "SHORTEST_RUN": 5}, {"LONG_SUM": 1}, {"BLOCK": 8, "COPIED_BLOCK": 8, "MOST_TAPS": 4})


@pytest.mark.parametrize(
    ("dtype", "accumulate"), [("float32", "float32"), ("float16", "float32"), ("float64", "float64")]
)
@given(case=kernels())
@settings(max_examples=25, deadline=None)
def test_any_maps_are_products_of_matrices(dtype: str, accumulate: str, case: tuple[Any, tuple[int, ...]]) -> None:
    axes, shape = case
    # Small multiples of a power of two: every product and sum is exact, so the order of sums does not matter.
    x = (np.arange(math.prod(shape)) % 13 - 6).reshape(shape).astype(dtype)
    want = apply(dense(axes, shape), x).astype(dtype)
    for (name, xp), way in itertools.product({"numpy": np, "any library": PORTABLE}.items(), WAYS):
        with tuned(**way):
            result = fill(Separable(axes, accumulate), x, dtype, xp)
        np.testing.assert_array_equal(result, want, f"{name} {way}")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64", "complex64"])
@given(factor=st.integers(2, 9), width=st.integers(12, 40), phase=st.integers(0, 20), cut=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_repeated_elements_are_those_of_numpy_repeat(dtype: str, factor: int, width: int, phase: int, cut: int) -> None:
    raw = np.random.default_rng(3).integers(0, 256, 3 * width * np.dtype(dtype).itemsize, np.uint8)
    x = (raw & 1).astype(bool).reshape(3, width) if dtype == "bool" else raw.view(dtype).reshape(3, width)
    want = np.repeat(x, factor, axis=1)[:, phase : width * factor - cut]
    kernel = Separable((None, NearestAxis(width, width * factor, factor, 0.5, -0.5, Nearest.HALF_UP)))
    out = np.empty(want.shape, dtype)

    with tuned(LARGE=0):
        kernel.fill(np, [x], ((0, 3), (phase, width * factor - cut)), out)

    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint16", "float32", "float64", "complex64", "complex128"])
def test_gathers_copy_every_type_bit_for_bit(dtype: str) -> None:
    raw = np.random.default_rng(2).integers(0, 256, 6 * 5 * np.dtype(dtype).itemsize, np.uint8)
    x = (raw & 1).astype(bool).reshape(6, 5) if dtype == "bool" else raw.view(dtype).reshape(6, 5)
    rows, columns = [5, 0, 0, 3], [4, 1, 1, 2, 3, 0, 4]
    axes = tuple(
        Listed(size, tuple(((i, 1.0),) for i in chosen), copies=True) for size, chosen in [(6, rows), (5, columns)]
    )
    result = fill(Separable(axes), x, dtype)
    assert result.tobytes() == x[np.ix_(rows, columns)].tobytes()


def test_a_tap_of_weight_0_is_not_read() -> None:
    taps = (((0, 1.0), (1, 0.0)), ((1, 0.0), (2, 0.5), (1, 0.0), (3, 0.5)), ((1, 0.0),))
    x = np.array([1, np.nan, 2, 4], np.float32)
    assert fill(Separable((Listed(4, taps),)), x, "float32").tolist() == [1, 3, 0]


def test_absent_taps_do_not_widen_what_is_read() -> None:
    rows = [((500 + o, 0.5), (0, 0.0), (501 + o, 0.5)) if o % 7 else ((500 + o, 1.0), (999, 0.0)) for o in range(50)]
    plan = axis_plans._plan(Listed(1000, tuple(rows)), 0, 50, "float32", large=True)
    assert (plan.low, plan.high) == (500, 550)


def test_outputs_without_taps_between_others_are_zero() -> None:
    x = np.full((4, 3), 5, np.float32)
    taps = (((0, 1.0),), (), ((1, 2.0),), (), (), ((3, 1.0),))
    result = fill(Separable((Listed(4, taps), None)), x, "float32")
    assert result[:, 0].tolist() == [5, 0, 10, 0, 0, 5]


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255), ("int32", -(2**31), 2**31 - 1)]
)
@pytest.mark.parametrize("accumulate", ["float32", "float64"])
def test_truncation_saturates(dtype: str, low: int, high: int, accumulate: str) -> None:
    # Weights -1 and 2 sum to 1 and reach beyond the type: 2 * high - low and 2 * low - high.
    taps = (((0, -1.0), (1, 2.0)), ((1, -1.0), (0, 2.0)))
    x = np.array([low, high], dtype)
    kernel = Separable((Listed(2, taps),), accumulate, Rounding.TRUNCATE)
    assert fill(kernel, x, dtype).tolist() == [high, low]


def test_truncation_is_toward_zero() -> None:
    taps = tuple(((0, 1 - w), (1, w)) for w in (0.125, 0.5, 0.875))
    kernel = Separable((Listed(2, taps),), rounding=Rounding.TRUNCATE)
    assert fill(kernel, np.array([-1, -3], np.int8), "int8").tolist() == [-1, -2, -2]
    assert fill(kernel, np.array([1, 3], np.int8), "int8").tolist() == [1, 2, 2]


@pytest.mark.parametrize("taps", [2, 3, 100])
def test_truncation_keeps_a_constant(taps: int) -> None:
    weights = np.random.default_rng(taps).random((4, taps))
    weights /= weights.sum(axis=1, keepdims=True)
    mapping = Listed(taps, tuple(tuple(enumerate(map(float, row))) for row in weights))
    for constant in (1, 127, 255):
        x = np.full((taps, taps), constant, np.uint8)
        assert (fill(Separable((mapping, mapping), rounding=Rounding.TRUNCATE), x, "uint8") == constant).all()


# ---- how it is done --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2, 3, 4, 0.5, 0.25, 1.5])
@pytest.mark.parametrize("linear", [False, True], ids=["nearest", "linear"])
def test_simple_scales_need_no_gather(scale: float, linear: bool) -> None:
    numbers = (120, int(120 * scale), scale, 0.5, -0.5)
    mapping = LinearAxis(*numbers) if linear else NearestAxis(*numbers, Nearest.HALF_UP)
    plan = axis_plans._plan(mapping, 10, mapping.output_size - 10, "float32", large=True)
    assert plan.pieces
    assert all(piece.slices for piece in plan.pieces)


def test_the_order_of_axes_is_the_cheapest() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        rank = int(random.integers(2, 5))
        sizes, outputs = random.integers(1, 60, rank), random.integers(1, 60, rank)
        axes = tuple(LinearAxis(int(i), int(o), 1.0, 0.0, 0.0) for i, o in zip(sizes, outputs, strict=True))

        def work(order: Sequence[int], axes: tuple[LinearAxis, ...] = axes) -> float:
            """Elements made, those along the last axis counted four times."""
            shape, total = [axis.input_size for axis in axes], 0
            for axis in order:
                shape[axis] = axes[axis].output_size
                total += math.prod(shape) * (4 if axis == len(axes) - 1 else 1)
            return total

        best = min(work(order) for order in itertools.permutations(range(rank)))
        assert work(Separable(axes)._order) == pytest.approx(best)


@given(
    box=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4),
    most=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_blocks_cover_the_box_once(box: list[tuple[int, int]], most: int) -> None:
    spans = tuple((low, low + extent) for low, extent in box)
    seen = np.zeros([high for _, high in spans], np.int64)
    for block in blocks(spans, most):
        seen[tuple(slice(*span) for span in block)] += 1
        assert math.prod(high - low for low, high in block) <= most
    assert (seen[tuple(slice(*span) for span in spans)] == 1).all()
    assert seen.sum() == math.prod(extent for _, extent in box)


def test_plans_are_kept_within_a_budget() -> None:
    plans = axis_plans._Plans(budget=64_000)
    mapping = LinearAxis(100, 4000, 40.0, 0.5, -0.5)
    first = plans.plan(mapping, 0, 50, "float32", False)
    assert plans.plan(mapping, 0, 50, "float32", False) is first
    assert plans.plan(mapping, 0, 50, "float64", False) is not first
    for start in range(100, 4000, 100):
        plans.plan(mapping, start, start + 100, "float32", False)
    assert plans._bytes <= plans.budget
    assert len(plans._kept) > 5
    assert plans.plan(mapping, 0, 50, "float32", False) is not first  # the oldest went first
    assert plans.plan(mapping, 0, 4000, "float32", False) is not plans.plan(
        mapping, 0, 4000, "float32", False
    )  # too large


def test_threads_may_share_a_kernel() -> None:
    x = np.random.default_rng(0).random((64, 48)).astype(np.float32)
    axes = (LinearAxis(64, 150, 2.34, 0.5, -0.5), LinearAxis(48, 100, 2.1, 0.5, -0.5))
    kernel = Separable(axes)
    whole = fill(kernel, x, "float32")
    out = np.zeros_like(whole)

    def rows(start: int) -> None:
        stop = min(start + 7, 150)
        kernel.fill(np, [x], ((start, stop), (0, 100)), out[start:stop])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rows, range(0, 150, 7)))
    np.testing.assert_array_equal(out, whole)
