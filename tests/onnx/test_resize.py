"""ONNX Resize and Upsample: tables by hand, an exact index-by-index oracle, and laws that hold for any input."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import onnx_oracle
from tests.support.onnx_oracle import Request
from tests.support.vectors import Case, all_hold, cases_of, elements

from tensorpost.onnx import OnnxNode, OnnxTensor, ResizeAxis, Resizing
from tensorpost.values.datatypes import DATA_TYPES
from tensorpost_server.operators import form_of

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

# Each product and addition of at most 30 taps per axis is rounded once, weights too; cubic weights add up to at most
# 1.6 per axis in magnitude. So 2^-24 (2^-53) times 30 times 1.6^3 of the largest sample, and 2^7 is more than that.
FLOAT32_ERROR, FLOAT64_ERROR = 2.0**-17, 2.0**-46


def node_of(request: Request, x: NDArray[Any], opset: int = 19) -> OnnxNode:
    return OnnxNode("Resize", {"X": x, **request.inputs()}, request.attributes(), opset=opset)


def fill(node: OnnxNode, x: NDArray[Any]) -> NDArray[Any]:
    out = np.empty(node.output.shape, x.dtype)
    form_of(node).fill(np, [x], tuple((0, n) for n in out.shape), out)
    return out


def assert_equals_oracle(request: Request, x: NDArray[Any]) -> None:
    got, expected = fill(node_of(request, x), x), onnx_oracle.resize(request, x)
    assert got.shape == expected.shape
    if request.mode == "nearest" or x.dtype.kind in "iu":
        assert np.array_equal(got, expected.astype(x.dtype)), (got, expected)
    else:
        error = {"float32": FLOAT32_ERROR, "float64": FLOAT64_ERROR}[x.dtype.name]
        largest = np.abs(x).max(initial=0)
        assert np.abs(got - expected.astype(np.float64)).max(initial=0) <= error * max(largest, 1)


# -- by hand --


def test_vectors(run: Any) -> None:
    def check(case: Case) -> None:
        node: Any = case.desc
        case.check_array("output", run(node, elements(node.inputs[0], case.inputs[0])), case.outputs()[0])

    all_hold(cases_of("Resize", "Upsample"), check)


# -- the oracle --


@st.composite
def requests(draw: st.DrawFn) -> tuple[Request, tuple[int, ...]]:
    rank = draw(st.integers(1, 3))
    longest = 4 if rank == 3 else 7  # the oracle's fractions take their time
    shape = tuple(draw(st.lists(st.integers(1, longest), min_size=rank, max_size=rank)))
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    coordinates = draw(st.sampled_from(COORDINATES))
    axes = draw(st.none() | st.permutations(range(rank)).map(lambda p: p[: draw(st.integers(1, rank))]))
    count = rank if axes is None else len(axes)
    by_scales = draw(st.booleans()) and coordinates != "tf_crop_and_resize"
    roi = None
    if coordinates == "tf_crop_and_resize":
        edges = st.sampled_from([-0.25, 0.0, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25])
        roi = draw(st.lists(edges, min_size=2 * count, max_size=2 * count))
    scales = st.floats(0.3125, 2.5, width=32) | st.sampled_from([0.5, 1.0, 1.5, 2.0])
    return (
        Request(
            scales=draw(st.lists(scales, min_size=count, max_size=count)) if by_scales else None,
            sizes=None if by_scales else draw(st.lists(st.integers(1, longest + 2), min_size=count, max_size=count)),
            roi=roi,
            axes=axes,
            mode=mode,
            coordinates=coordinates,
            nearest_mode=draw(st.sampled_from(NEAREST)),
            cubic_coeff_a=draw(st.sampled_from([-0.75, -0.5, -0.6])),
            exclude_outside=draw(st.integers(0, 1)),
            extrapolation_value=draw(st.sampled_from([0.0, 9.5, -3.25])),
            antialias=0 if mode == "nearest" else draw(st.integers(0, 1)),
            policy="stretch" if by_scales else draw(st.sampled_from(["stretch", "not_larger", "not_smaller"])),
        ),
        shape,
    )


@settings(max_examples=100, deadline=None)
@given(requests(), st.sampled_from(["float32", "float64", "uint8", "int8", "int16", "int32"]), st.integers(0, 2**32))
def test_oracle(drawn: tuple[Request, tuple[int, ...]], dtype: str, seed: int) -> None:
    request, shape = drawn
    x = np.random.default_rng(seed).integers(0, 127, shape).astype(dtype)
    if dtype != "uint8":
        x -= 60
    assert_equals_oracle(request, x)


@pytest.mark.parametrize("nearest_mode", NEAREST)
@pytest.mark.parametrize("coordinates", COORDINATES[:5])
def test_nearest_is_exact_for_every_pair_of_lengths(coordinates: str, nearest_mode: str) -> None:
    """As fractions: no output index of any size may fall to a neighbour."""
    request = Request(coordinates=coordinates, nearest_mode=nearest_mode)
    for n, length in itertools.product(range(1, 17), range(1, 21)):
        sized = Request(sizes=[length], coordinates=coordinates, nearest_mode=nearest_mode)
        x = np.arange(n, dtype=np.int16)
        (axis,) = onnx_oracle.axes_of(sized, x.shape)
        taps = [onnx_oracle.taps(request, axis, o) for o in range(length)]
        expected = [tap[0][0] for tap in taps if tap]
        node = node_of(sized, x)
        assert isinstance(node.meaning, Resizing)
        assert node.meaning.axes[0].nearest(0, length).tolist() == expected, (n, length)


@pytest.mark.parametrize("scale", [0.3, 0.6, 0.7, 1.1, 1.7, 2.3, 3.0])
@pytest.mark.parametrize("nearest_mode", NEAREST)
def test_nearest_is_exact_for_float32_scales(scale: float, nearest_mode: str) -> None:
    for coordinates, n in itertools.product(COORDINATES[:5], (1, 2, 5, 10, 33)):
        assert_equals_oracle(
            Request(scales=[scale], coordinates=coordinates, nearest_mode=nearest_mode), np.arange(n, dtype=np.int32)
        )


GROWING, SHRINKING = (1.0, 1.25, 1.5, 2.0, 2.4, 3.0), (0.25, 0.5, 0.75, 0.9)


@pytest.mark.parametrize(
    ("opset", "scale"), [*itertools.product((7, 8, 9, 10), GROWING), *((10, scale) for scale in SHRINKING)]
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_versions_without_coordinate_modes_are_asymmetric(scale: float, opset: int, mode: str) -> None:
    x = np.random.default_rng(1).integers(-50, 50, (4, 9)).astype(np.float64)
    request = Request(scales=[1, scale], mode=mode, coordinates="asymmetric", legacy=True)
    if opset < 9:
        node = OnnxNode.of("Upsample", {"X": x}, opset=opset, scales=[1.0, scale], mode=mode)
    else:
        op_type = "Resize" if opset == 10 else "Upsample"
        node = OnnxNode.of(op_type, {"X": x, "scales": [1.0, scale]}, opset=opset, mode=mode)
    expected = onnx_oracle.resize(request, x).astype(np.float64)
    np.testing.assert_allclose(fill(node, x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
def test_all_versions_with_coordinate_modes_agree(opset: int) -> None:
    x = np.random.default_rng(2).random((5, 6))
    request = Request(sizes=[7, 4], roi=[0, 0, 1, 1], mode="cubic")
    inputs = {**request.inputs(), "scales": []} if opset == 11 else request.inputs()
    got = fill(OnnxNode("Resize", {"X": x, **inputs}, {"mode": "cubic"}, opset=opset), x)
    np.testing.assert_allclose(got, onnx_oracle.resize(request, x).astype(float), rtol=0, atol=1e-12)


# -- integers --


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_constant_stays_constant(dtype: str, antialias: int, mode: str) -> None:
    limits = np.iinfo(dtype)
    largest = limits.max if limits.bits <= 32 else 1 << 40  # float64 sums of larger ones are not exact to one
    for value, n, length in itertools.product((7, 85, largest, -largest), (3, 7, 10), (4, 9, 11)):
        if limits.min <= value:
            x = np.full((n, n), value, dtype)
            request = Request(sizes=[length, length + 1], mode=mode, antialias=antialias)
            assert (fill(node_of(request, x), x) == value).all(), (value, n, length)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_overshoot_saturates(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, limits.max, limits.min], dtype)
    got = fill(node_of(Request(scales=[4], mode="cubic", cubic_coeff_a=-0.75), x), x)
    assert got.max() == limits.max
    assert got.min() == limits.min


def test_whole_results_of_thirds_are_not_cut() -> None:
    """0, 3, 6 upsampled by 3 has whole numbers at every output; float32 or float64 sums alone would cut some."""
    x = np.arange(0, 90, 3, dtype=np.uint8)
    got = fill(node_of(Request(sizes=[88], mode="linear", coordinates="align_corners"), x), x)
    assert got.tolist() == list(range(88))


def test_signed_results_truncate_toward_zero() -> None:
    x = np.array([-10, -9, 9, 10], np.int16)
    got = fill(node_of(Request(sizes=[13], mode="linear", coordinates="align_corners"), x), x)
    assert got.tolist() == [-10, -9, -9, -9, -9, -4, 0, 4, 9, 9, 9, 9, 10]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_antialias_rounds_each_axis_with_ties_away_from_zero(dtype: str) -> None:
    """Weights 1/8, 3/8, 3/8, 1/8 make every eighth a possible sum."""
    signed = np.iinfo(dtype).min < 0
    x = np.random.default_rng(5).integers(-100 if signed else 0, 100, (12, 16)).astype(dtype)
    assert_equals_oracle(Request(scales=[0.5, 0.5], mode="linear", antialias=1), x)
    row = np.array([4, 4, 4, 4, 4, 0, 0, 0], dtype)  # 4, then 3.5 and 0.5 around the step
    got = fill(node_of(Request(scales=[0.5], mode="linear", antialias=1), row), row)
    assert got.tolist() == [4, 4, 2, 0]
    if signed:
        assert fill(node_of(Request(scales=[0.5], mode="linear", antialias=1), -row), -row).tolist() == [-4, -4, -2, 0]


def test_the_last_axis_is_rounded_first() -> None:
    """Found by search: the other order gives another result, so this pins the order."""
    request = Request(scales=[0.5, 0.5], mode="linear", antialias=1)
    differ = 0
    for seed in range(10):
        x = np.random.default_rng(seed).integers(0, 255, (8, 8)).astype(np.uint8)
        got = fill(node_of(request, x), x)
        turned = fill(node_of(request, x.T), np.ascontiguousarray(x.T)).T
        assert np.array_equal(got, onnx_oracle.resize(request, x).astype(np.uint8))
        differ += not np.array_equal(got, turned)
    assert differ


# -- types --


@pytest.mark.parametrize(
    "row",
    [row for row in DATA_TYPES if row.numpy_name != "str" and not row.is_small],
    ids=lambda row: row.numpy_name,
)
def test_nearest_copies_every_type_bit_for_bit(row: Any, run: Any) -> None:
    bits = np.random.default_rng(3).integers(0, 2 if row.numpy_name == "bool" else 256, 12 * row.item_size, np.uint8)
    x = bits.view(row.dtype).reshape(3, 4)
    request = Request(sizes=[5, 7])
    indices = onnx_oracle.resize(request, np.arange(12).reshape(3, 4))
    got = run(node_of(request, x), x)
    assert got.tobytes() == x.reshape(-1)[indices.astype(int)].tobytes()


def test_nearest_takes_strings(run: Any) -> None:
    x = np.array(["a", "b"], object)
    assert run(node_of(Request(scales=[2]), x), x).tolist() == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("dtype", "bits"), [(np.float16, 11), (ml_dtypes.bfloat16, 8)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_half_precision_is_rounded_once(dtype: Any, bits: int, mode: str) -> None:
    x = np.random.default_rng(4).integers(-64, 64, (5, 6)).astype(dtype)
    request = Request(sizes=[8, 9], mode=mode)
    got = fill(node_of(request, x), x).astype(np.float64)
    expected = onnx_oracle.resize(request, x.astype(np.float64)).astype(np.float64)
    spacing = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-14))) + 1 - bits)
    assert (np.abs(got - expected) <= spacing / 2 * (1 + 2.0**-10) + 64 * FLOAT32_ERROR).all()


@pytest.mark.parametrize(("dtype", "part"), [(np.complex64, np.float32), (np.complex128, np.float64)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_complex_numbers_are_resampled_part_by_part(dtype: Any, part: Any, mode: str) -> None:
    rng = np.random.default_rng(6)
    x = (rng.random((4, 5)) + 1j * rng.random((4, 5))).astype(dtype)
    request = Request(sizes=[6, 3], mode=mode, antialias=1)
    got = fill(node_of(request, x), x)
    for name in ("real", "imag"):
        half = np.ascontiguousarray(getattr(x, name))
        assert half.dtype == part
        assert np.array_equal(getattr(got, name), fill(node_of(request, half), half))


def test_overflow_of_half_precision_is_infinite_and_silent() -> None:
    x = np.array([0, 65504, 65504, 0], np.float16)
    got = fill(node_of(Request(scales=[4], mode="cubic"), x), x)
    assert np.isinf(got).any()
    assert not np.isnan(got).any()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_an_infinity_or_nan_reaches_only_outputs_that_weigh_it(mode: str) -> None:
    for odd in (np.inf, np.nan):
        x = np.array([1, 2, odd, 4, 5, 6, 7, 8], np.float64)
        got = fill(node_of(Request(sizes=[15], mode=mode, coordinates="align_corners"), x), x)  # x = o / 2
        assert np.array_equal(got[[0, 2, 6, 8, 10, 12, 14]], [1, 2, 4, 5, 6, 7, 8])
        assert not np.isfinite(got[[3, 4, 5]]).any()
        reach = 1 if mode == "linear" else 3
        assert np.isfinite(got[4 + reach + 1 :]).all()


# -- tf_crop_and_resize --


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("dtype", "value", "element"),
    [
        ("uint8", 300.7, 255), ("uint8", -2.0, 0), ("int8", -2.7, -2), ("int32", 3e9, 2**31 - 1), ("float32", 9.5, 9.5),
        ("float16", 1e6, np.inf), ("complex64", -1.5, -1.5 + 0j), ("uint64", 9.9, 9),
    ],
)  # fmt: skip
def test_outside_is_the_extrapolation_value(mode: str, dtype: str, value: float, element: Any) -> None:
    x = np.arange(20).reshape(4, 5).astype(dtype)
    request = Request(
        sizes=[6, 5],
        roi=[-0.5, 0.5, 1.25, 1.75],
        mode=mode,
        coordinates="tf_crop_and_resize",
        extrapolation_value=value,
    )
    got = fill(node_of(request, x), x)
    # rows: -1.5, -0.45, 0.6, 1.65, 2.7, 3.75; columns: 2, 3.25, 4.5, 5.75, 7
    outside = np.ones((6, 5), bool)
    outside[2:5, :2] = False
    assert (got[outside] == element).all()
    assert not (got[~outside] == element).any()


@pytest.mark.parametrize(("name", "value", "expected"), [("bool", 2.0, True), ("bool", 0.0, False)])
def test_extrapolated_booleans(name: str, value: float, expected: bool) -> None:
    x = np.array([not expected] * 3)
    request = Request(sizes=[2], roi=[0, 2], coordinates="tf_crop_and_resize", extrapolation_value=value)
    assert fill(node_of(request, x), x).tolist() == [not expected, expected]


def test_the_edge_of_the_input_is_inside() -> None:
    """end = 1 is the last element exactly, whatever start is; in float64 the sum of products may end just beyond it."""
    for start, n, length in itertools.product((0.1, 0.2, 0.3, 0.7), (4, 7, 10, 11), (3, 4, 7, 11)):
        request = Request(
            sizes=[length], roi=[start, 1.0], mode="linear", coordinates="tf_crop_and_resize", extrapolation_value=-1
        )
        x = np.arange(n, dtype=np.float32)
        assert fill(node_of(request, x), x)[-1] == n - 1


# -- laws --


@settings(max_examples=40, deadline=None)
@given(requests(), st.data())
def test_any_box_has_the_bits_of_the_whole(drawn: tuple[Request, tuple[int, ...]], data: st.DataObject) -> None:
    request, shape = drawn
    dtype = data.draw(st.sampled_from(["float32", "uint8", "int32", "float16", "complex64"]))
    x = np.random.default_rng(8).integers(0, 100, shape).astype(dtype)
    node = node_of(request, x)
    whole = fill(node, x)
    box = tuple(
        (start, stop)
        for start, stop in (sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in whole.shape)
    )
    out = np.zeros([stop - start for start, stop in box][::-1], dtype).T  # not contiguous
    form_of(node).fill(np, [x], box, out)
    assert out.tobytes() == whole[tuple(slice(*span) for span in box)].tobytes()


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_integers_are_the_same_however_they_are_cut(dtype: str, antialias: int) -> None:
    """Large enough for several blocks inside the kernel."""
    x = np.random.default_rng(9).integers(0, 255, (3, 150, 700)).astype(dtype)
    request = Request(sizes=[3, 401, 333], mode="linear", antialias=antialias)
    node = node_of(request, x)
    whole = fill(node, x)
    assert whole.size > 1 << 18
    parts = []
    for start in range(0, 401, 100):
        part = np.empty((3, min(100, 401 - start), 333), dtype)
        form_of(node).fill(np, [x], ((0, 3), (start, start + part.shape[1]), (0, 333)), part)
        parts.append(part)
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES[:5])
def test_scale_1_is_a_copy(mode: str, coordinates: str) -> None:
    x = np.random.default_rng(10).random((3, 4)).astype(np.float32)
    for request in (
        Request(scales=[1, 1], mode=mode, coordinates=coordinates),
        Request(sizes=[3, 4], mode=mode, coordinates=coordinates),
    ):
        assert fill(node_of(request, x), x).tobytes() == x.tobytes()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "half_pixel_symmetric", "align_corners"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_mirroring_commutes(mode: str, coordinates: str, antialias: int) -> None:
    x = np.random.default_rng(11).random(9)
    for kind in (Request(sizes=[5]), Request(sizes=[20])):
        request = Request(sizes=kind.sizes, mode=mode, coordinates=coordinates, antialias=antialias)
        straight, mirrored = fill(node_of(request, x), x), fill(node_of(request, x), x[::-1].copy())
        np.testing.assert_allclose(mirrored[::-1], straight, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_resizing_is_linear_and_keeps_constants(mode: str, antialias: int, exclude_outside: int) -> None:
    rng = np.random.default_rng(12)
    a, b = rng.random((2, 6, 7))
    request = Request(sizes=[9, 4], mode=mode, antialias=antialias, exclude_outside=exclude_outside)
    node = node_of(request, a)
    np.testing.assert_allclose(fill(node, 2 * a - b), 2 * fill(node, a) - fill(node, b), rtol=0, atol=1e-13)
    np.testing.assert_allclose(fill(node, np.full((6, 7), 3.0)), 3.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_axes_in_any_order_are_the_full_form(mode: str, antialias: int) -> None:
    antialias = 0 if mode == "nearest" else antialias
    x = np.random.default_rng(13).random((2, 5, 3, 4))
    full = Request(sizes=[2, 3, 3, 9], mode=mode, antialias=antialias)
    for axes, sizes in (([1, 3], [3, 9]), ([3, 1], [9, 3]), ([-1, -3], [9, 3])):
        part = Request(sizes=sizes, axes=axes, mode=mode, antialias=antialias)
        assert np.array_equal(fill(node_of(part, x), x), fill(node_of(full, x), x))


def test_sizes_and_the_scales_they_mean_agree_where_scales_are_exact() -> None:
    x = np.random.default_rng(14).random((4, 6))
    for mode, coordinates in itertools.product(("nearest", "linear", "cubic"), COORDINATES[:5]):
        sized = Request(sizes=[8, 3], mode=mode, coordinates=coordinates)
        scaled = Request(scales=[2, 0.5], mode=mode, coordinates=coordinates)
        assert np.array_equal(fill(node_of(sized, x), x), fill(node_of(scaled, x), x))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_antialias_filters_an_axis_that_keeps_its_length(dtype: str) -> None:
    """Found by Hypothesis: the common scale 3/4 leaves 2 elements 2 long, with whole coordinates, yet below 1."""
    x = np.random.default_rng(16).integers(0, 100, (4, 2)).astype(dtype)
    request = Request(sizes=[3, 1], mode="linear", coordinates="align_corners", antialias=1, policy="not_smaller")
    assert node_of(request, x).output.shape == (3, 2)
    assert_equals_oracle(request, x)
    assert not np.array_equal(fill(node_of(request, x), x)[0], x[0])


def test_a_filter_longer_than_the_input(run: Any) -> None:
    x = np.random.default_rng(15).random((1000,))
    got = run(node_of(Request(sizes=[1], mode="linear", antialias=1), x), x)
    weights = 1 - np.abs(np.arange(-500, 1500) - 499.5) / 1000
    padded = x[np.arange(-500, 1500).clip(0, 999)]
    np.testing.assert_allclose(got, [(weights * padded).sum() / weights.sum()], rtol=1e-12)


def test_coordinates_beyond_int64_are_python_integers() -> None:
    """A float64 roi has a denominator of up to 2^1074; nothing overflows."""
    x = np.arange(5.0)
    roi = np.array([1e-7, 0.9])
    node = OnnxNode.of(
        "Resize", {"X": x, "sizes": [7], "roi": roi}, opset=19, mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    expected = 1e-7 * 4 + np.arange(7) * (0.9 - 1e-7) * 4 / 6
    np.testing.assert_allclose(fill(node, x), expected, rtol=1e-15)
    assert isinstance(node.meaning, Resizing)
    assert node.meaning.axes[0].coordinates(0, 7)[0].dtype == object


def test_the_range_inside_is_where_x_lies_in_the_input() -> None:
    steps = [Fraction(text) for text in ("-2", "-3/10", "0", "1/2", "7/4")]
    offsets = [Fraction(text) for text in ("-3", "0", "3/2", "4", "9")]
    for step, offset, n, length in itertools.product(steps, offsets, (1, 5), (1, 6)):
        axis = ResizeAxis(n, length, Fraction(1), step, offset)
        inside = [o for o in range(length) if 0 <= step * o + offset <= n - 1]
        assert list(range(*axis.inside)) == inside


def test_an_unresized_axis_costs_no_memory_for_taps() -> None:
    node = OnnxNode.of("Resize", {"X": OnnxTensor("uint8", (1 << 40, 4)), "scales": [1, 2]}, opset=19)
    assert isinstance(node.meaning, Resizing)
    assert [axis.is_copied for axis in node.meaning.axes] == [True, False]
