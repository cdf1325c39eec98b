"""`resampling`: which descriptor a user's words become, and that it picks and weighs what it says.

Indices are checked against whole-number arithmetic written here; results against numbers by hand, and against the same
request in DirectML's and in ONNX's words.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorpost.calls.resampling import resample_desc, resampling, simplest_ratio
from tensorpost.descriptors import (
    AxisDirection,
    BufferTensorDesc,
    InterpolationMode,
    OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    parse_operator,
)
from tensorpost.onnx import OnnxNode, Verdict, lower
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter
from tensorpost_server.operators import form_of


def run(subject: Any, x: NDArray[Any]) -> NDArray[Any]:
    """Compute on NumPy, as a server would."""
    shape = subject.output.shape if isinstance(subject, OnnxNode) else subject.output_tensor.sizes
    out = np.empty(shape, x.dtype)
    form_of(subject).fill(np, [x], tuple((0, size) for size in shape), out)
    return out


def resampled(x: NDArray[Any], **arguments: Any) -> NDArray[Any]:
    plan = resampling(x, **arguments)
    return run(plan.operation, x.reshape(plan.sent_shape)).reshape(plan.output_shape)


def half_up(size: int, length: int) -> list[int]:
    """floor((o + 0.5) * size / length) in whole numbers."""
    return [min((2 * o + 1) * size // (2 * length), size - 1) for o in range(length)]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_linear_by_sizes_aligns_pixel_centres() -> None:
    desc = resample_desc(np.zeros((1, 3, 4, 6), np.float32), sizes=(8, 3), axes=(-2, -1))
    assert desc == Resample2OperatorDesc(
        input_tensor=BufferTensorDesc(data_type="FLOAT32", sizes=(1, 3, 4, 6)),
        output_tensor=BufferTensorDesc(data_type="FLOAT32", sizes=(1, 3, 8, 3)),
        interpolation_mode=InterpolationMode.LINEAR,
        rounding_direction=AxisDirection.DECREASING,
        scales=(1, 1, 2, 0.5),
        input_pixel_offsets=(0.5, 0.5, 0.5, 0.5),
        output_pixel_offsets=(-0.5, -0.5, -0.5, -0.5),
    )


def test_nearest_rounds_halves_up() -> None:
    desc = resample_desc(np.zeros((4, 6), np.uint8), scales=(2, 0.5), mode="nearest")
    assert desc == Resample2OperatorDesc(
        input_tensor=BufferTensorDesc(data_type="UINT8", sizes=(4, 6)),
        output_tensor=BufferTensorDesc(data_type="UINT8", sizes=(8, 3)),
        interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR,
        rounding_direction=AxisDirection.DECREASING,
        scales=(2, 0.5),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(-0.5, -0.5),
    )


def test_directml_s_antialias_is_resample3() -> None:
    desc = resample_desc(np.zeros((8, 8), np.float32), sizes=2, axes=(0, 1), antialias="directml")
    assert isinstance(desc, Resample3OperatorDesc)
    assert desc.antialiased
    assert desc.scales == (0.25, 0.25)


def test_antialias_is_onnx_resize() -> None:
    plan = resampling(np.zeros((8, 8, 3), np.uint8), sizes=2, axes=(0, 1), antialias=True)
    node = plan.operation
    assert isinstance(node, OnnxNode)
    assert node.op_type == "Resize"
    assert [node.attribute(name) for name in ("mode", "antialias", "exclude_outside")] == ["linear", 1, 1]
    assert (plan.sent_shape, plan.received_shape, plan.output_shape) == ((8, 8, 3), (2, 2, 3), (2, 2, 3))


def test_antialiased_numbers_by_hand() -> None:
    # RESAMPLE3: 8 to 4 to 2, the means of pairs. Pillow: a triangle that is 4 wide on both sides of 1.5 and of 5.5. It
    # weighs the elements 0 to 5, and 2 to 7, by 4 less their distance, divided by the sum of these weights.
    x = np.array([0, 0, 8, 0, 0, 0, 0, 0], np.float32)
    assert resampled(x, scales=(0.25,), antialias="directml").tolist() == [2, 0]
    weights = [2.5, 3.5, 3.5, 2.5, 1.5, 0.5]
    expected = [8 * weights[2] / sum(weights), 8 * weights[-1] / sum(weights)]
    assert resampled(x, scales=(0.25,), antialias=True) == pytest.approx(expected)
    assert resampled(x, scales=(0.25,)).tolist() == [4, 0]


def test_a_factor_that_leaves_a_rest_is_the_scale_of_the_filter() -> None:
    plan = resampling(np.zeros((10, 11), np.float32), scales=(0.7, 0.3), antialias=True)
    assert plan.output_shape == plan.received_shape == (7, 3)
    assert isinstance(plan.operation, OnnxNode)
    assert dict(plan.operation.values)["scales"] == pytest.approx((0.7, 0.3))


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
def test_antialias_takes_more_types_and_dimensions(dtype: str) -> None:
    x = np.arange(2 * 2 * 4 * 4 * 4).reshape(2, 2, 4, 4, 4).astype(dtype)
    y = resampled(x, sizes=2, axes=(2, 3, 4), antialias=True)
    assert (y.shape, y.dtype) == ((2, 2, 2, 2, 2), x.dtype)
    assert np.all(np.diff(y.ravel()) > 0)


def test_an_axis_that_is_not_named_is_left_alone() -> None:
    desc = resample_desc(np.zeros((2, 4, 6, 3), np.float16), scales=1.5, axes=(1, 2), mode="nearest")
    assert desc.to_document()["desc"]["Scales"] == [1, 1.5, 1.5, 1]
    assert desc.to_document()["desc"]["InputPixelOffsets"] == [0.5, 0, 0, 0.5]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"sizes": (8, 3)}, {"sizes": [8, 3], "axes": (0, 1)}),
        ({"sizes": (8, 3)}, {"sizes": np.array([3, 8]), "axes": (1, 0)}),
        ({"scales": (2, 0.5)}, {"sizes": (8, 3)}),
        ({"scales": (2.0, 1.0)}, {"scales": 2, "axes": 0}),
        ({"scales": (1, 1)}, {"sizes": (4, 6)}),
        ({"scales": (2, 2)}, {"scales": np.float32(2), "axes": [-1, -2]}),
    ],
)
def test_ways_to_say_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    x = np.zeros((4, 6), np.float32)
    assert resample_desc(x, **one) == resample_desc(x, **other)


def test_a_descriptor_serves_as_well_as_an_array() -> None:
    strided = BufferTensorDesc(data_type="INT8", sizes=(2, 3), strides=(8, 1))
    desc = resample_desc(strided, sizes=(4, 3))
    assert isinstance(desc, Resample2OperatorDesc)
    assert desc.input_tensor == strided
    assert desc.output_tensor.strides is None


# ---- scales ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "scale", "length"),
    [
        (10, 0.7, 7), (10, np.float32(0.7), 7), (100, 0.29, 29), (3, 1 / 3, 1), (11, 1 / 11, 1), (7, 0.5, 3),
        (5, 1.5, 7), (30, 0.7, 21), (10, 1.1, 11), (3, 2.9999, 8), (1000, 0.999, 999),
    ],
)  # fmt: skip
def test_a_scale_is_the_fraction_that_was_meant(size: int, scale: float, length: int) -> None:
    assert resampling(np.zeros(size, np.float32), scales=(scale,)).output_shape == (length,)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1500), st.integers(1, 1500))
def test_a_fraction_is_found_again(numerator: int, denominator: int) -> None:
    ratio = Fraction(numerator, denominator)
    assert simplest_ratio(float(ratio)) == ratio
    assert simplest_ratio(float(np.float32(float(ratio)))) == ratio


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-10, 2.0**10, width=32))
def test_every_scale_keeps_its_float32(scale: float) -> None:
    ratio = simplest_ratio(scale)
    assert np.float32(float(ratio)) == np.float32(scale)
    smaller = np.arange(1, (ratio.denominator + 1) // 2)
    others = (np.maximum(1, np.rint(scale * smaller)) / smaller).astype(np.float32)
    assert not np.any(others == np.float32(scale)), "a fraction of less than half the denominator would do"


def test_a_scale_and_its_size_pick_the_same_elements() -> None:
    x = np.arange(100, dtype=np.float32)
    ties = resampled(x, scales=(0.1,), mode="nearest")
    assert ties.tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
    np.testing.assert_array_equal(ties, resampled(x, sizes=(10,), mode="nearest"))


def test_a_given_scale_is_the_scale_of_the_coordinates() -> None:
    # 5 * 1.5 = 7.5 gives 7 elements; x = (o + 0.5) / 1.5 - 0.5, not (o + 0.5) * 5 / 7 - 0.5
    desc = resample_desc(np.zeros(5, np.float32), scales=(1.5,))
    assert desc.to_document()["desc"]["Scales"] == [1.5]
    x = np.arange(5, dtype=np.float32) * 6
    np.testing.assert_allclose(resampled(x, scales=(1.5,)), [0, 3, 7, 11, 15, 19, 23], rtol=1e-6)


# ---- nearest ---------------------------------------------------------------------------------------------------------


def test_nearest_is_exact_for_every_pair_of_small_sizes() -> None:
    moved = 0
    for size in range(1, 41):
        x = np.arange(size, dtype=np.uint8)
        for length in range(1, 41):
            plan = resampling(x, sizes=(length,), mode="nearest")
            assert run(plan.desc, x).tolist() == half_up(size, length), (size, length)
            assert plan.misses == 0
            moved += size != length and plan.desc.input_pixel_offsets != (0.0,)
    assert moved > 0  # some pairs need it


@pytest.mark.parametrize(("size", "length"), [(20, 6), (14, 39), (26, 7), (18, 39)])
def test_where_plain_float32_falls_to_the_neighbour(size: int, length: int) -> None:
    x = np.arange(size, dtype=np.uint8)
    desc = resample_desc(x, sizes=(length,), mode="nearest")
    plain = {**desc.to_document()["desc"], "InputPixelOffsets": [0]}
    assert run(parse_operator({"type": "RESAMPLE2", "desc": plain}), x).tolist() != half_up(size, length)
    assert run(desc, x).tolist() == half_up(size, length)


@pytest.mark.parametrize(("size", "length"), [(1920, 1079), (1080, 1920), (4000, 3999), (3999, 4000), (4096, 999)])
def test_nearest_is_exact_on_long_axes_too(size: int, length: int) -> None:
    x = np.arange(size, dtype=np.float32)
    plan = resampling(x, sizes=(length,), mode="nearest")
    assert plan.misses == 0
    np.testing.assert_array_equal(run(plan.desc, x), half_up(size, length))


def test_misses_counts_what_float32_cannot_hold() -> None:
    x = np.arange(4999, dtype=np.float32)
    plan = resampling(x, sizes=(3001,), mode="nearest")
    right = np.array(half_up(4999, 3001))
    assert plan.misses == np.count_nonzero(run(plan.desc, x) != right) == 1
    node = OnnxNode.of("Resize", {"X": x, "sizes": [3001]}, opset=19, mode="nearest", nearest_mode="round_prefer_ceil")
    np.testing.assert_array_equal(run(node, x), right)


def test_misses_are_added_up_over_axes() -> None:
    x = BufferTensorDesc(data_type="UINT8", sizes=(4999, 2, 4999))
    assert resampling(x, sizes=3001, axes=(0, 2), mode="nearest").misses == 2
    assert resampling(x, sizes=3001, axes=(0, 2), mode="linear").misses == 0


def test_an_axis_beyond_float32_counts_whole() -> None:
    x = BufferTensorDesc(data_type="UINT8", sizes=(2**24 + 2,))
    assert resampling(x, sizes=(7,), mode="nearest").misses == 7


# ---- three dialects --------------------------------------------------------------------------------------------------

SIZES = st.integers(1, 17)


@settings(max_examples=100, deadline=None)
@given(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES))
def test_nearest_has_the_same_bytes_in_every_dialect(shape: tuple[int, int], sizes: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.int16).astype(np.float16).reshape(shape)
    ours = resampled(x, sizes=sizes, mode="nearest")
    node = OnnxNode.of("Resize", {"X": x, "sizes": sizes}, opset=19, nearest_mode="round_prefer_ceil")
    assert run(node, x).tobytes() == ours.tobytes()
    lowered = lower(node)
    assert lowered.descriptor is not None
    if lowered.verdict is Verdict.EXACT:
        assert run(lowered.descriptor, x).tobytes() == ours.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES), st.sampled_from(["float32", "float16", "uint8", "int8"]))
def test_linear_is_what_onnx_lowers_to(shape: tuple[int, int], sizes: tuple[int, int], dtype: str) -> None:
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    lowered = lower(OnnxNode.of("Resize", {"X": x, "sizes": sizes}, opset=19, mode="linear"))
    assert isinstance(lowered.descriptor, OperatorDesc)
    assert run(lowered.descriptor, x).tobytes() == resampled(x, sizes=sizes).tobytes()


@pytest.mark.parametrize("scales", [(2, 2), (0.5, 4), (1, 0.25), (8, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_linear_has_the_same_bytes_in_every_dialect_where_float32_is_exact(
    scales: tuple[float, float], dtype: str
) -> None:
    x = np.random.default_rng(0).integers(-100, 100, (8, 12)).astype(dtype)
    ours = resampled(x, scales=scales)
    assert (
        run(OnnxNode.of("Resize", {"X": x, "scales": scales}, opset=19, mode="linear"), x).tobytes() == ours.tobytes()
    )
    document = {
        "type": "DML_OPERATOR_RESAMPLE2",
        "desc": {
            "InputTensor": {"DataType": dtype.upper(), "Sizes": [8, 12]},
            "InterpolationMode": "LINEAR",
            "RoundingDirection": "INCREASING",  # linear ignores it
            "Scales": list(scales),
        },
    }
    assert run(parse_operator(document, complete=True), x).tobytes() == ours.tobytes()


def test_linear_numbers_by_hand() -> None:
    assert resampled(np.array([10, 20, 30, 40], np.float32), scales=(2,)).tolist() == [
        10, 12.5, 17.5, 22.5, 27.5, 32.5, 37.5, 40,
    ]  # fmt: skip
    assert resampled(np.array([1, 2], np.uint8), scales=(3,)).tolist() == [1, 1, 1, 1, 2, 2]  # 1.667 is truncated


# ---- more than four dimensions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes", "sent"),
    [
        ((2, 3, 4, 8, 8), (-2, -1), (24, 8, 8)),
        ((2, 3, 4, 5, 6), (2,), (6, 4, 30)),
        ((2, 3, 4, 5, 6), (2, 3, 4), (6, 4, 5, 6)),
        ((2, 2, 2, 2, 2, 2, 2, 2, 2), (4,), (16, 2, 16)),
        ((2, 3, 4, 5), (1,), (2, 3, 4, 5)),
    ],
)
def test_neighbours_that_are_not_resized_are_merged(
    shape: tuple[int, ...], axes: tuple[int, ...], sent: tuple[int, ...]
) -> None:
    x = np.random.default_rng(1).random(shape, np.float32)
    plan = resampling(x, scales=2, axes=axes)
    assert plan.desc.input_tensor.sizes == sent
    assert plan.input_shape == shape
    doubled = {axis % len(shape) for axis in axes}
    assert plan.output_shape == tuple(size * (1 + (axis in doubled)) for axis, size in enumerate(shape))
    node = OnnxNode.of("Resize", {"X": x, "sizes": list(plan.output_shape)}, opset=19, mode="linear")
    np.testing.assert_array_equal(resampled(x, scales=2, axes=axes), run(node, x))


# ---- refusals --------------------------------------------------------------------------------------------------------

X = np.zeros((4, 6), np.float32)


@pytest.mark.parametrize(
    ("x", "arguments", "said"),
    [
        (X, {}, "exactly one of sizes and scales must be given, but neither is"),
        (X, {"sizes": (1, 1), "scales": (1, 1)}, "but both are"),
        (X, {"scales": 2}, "name them, as in axes=(-2, -1)"),
        (X, {"sizes": 3}, "sizes is a single number"),
        (X, {"sizes": (1,)}, "sizes has 1 entry but x has 2 dimensions"),
        (X, {"sizes": (1, 2), "axes": (0,)}, "sizes has 2 entries but axes names 1 dimension"),
        (X, {"sizes": (1, 2), "axes": (0, 2)}, "axes[1] is 2, but x has 2 dimensions"),
        (X, {"sizes": (1, 2), "axes": (1, -1)}, "axes[1] is -1, an axis that was named before"),
        (X, {"sizes": (1, 2), "axes": (0.0, 1)}, "axes[0] is 0.0; it must be a whole number"),
        (X, {"sizes": (0, 2)}, "sizes[0] is 0; a result has at least 1 element"),
        (X, {"sizes": (2.0, 2)}, "sizes[0] is 2.0; it must be a whole number"),
        (X, {"sizes": (True, 2)}, "sizes[0] is True"),
        (X, {"sizes": "22"}, "sizes is '22', a text"),
        (X, {"scales": (0.1, 1)}, "scales[0] is 0.1, which leaves none of the 4 elements of axis 0"),
        (X, {"scales": (0, 1)}, "scales[0] is 0.0; it must be a number above 0"),
        (X, {"scales": (-1, 1)}, "scales[0] is -1.0"),
        (X, {"scales": (float("nan"), 1)}, "scales[0] is nan"),
        (X, {"scales": (float("inf"), 1)}, "scales[0] is inf"),
        (X, {"scales": (1e39, 1)}, "scales[0] is 1e+39; it must be a number above 0 that a 32-bit float can hold"),
        (X, {"scales": ("2", 1)}, "scales[0] is '2'; it must be a number"),
        (X, {"scales": (2, 2), "mode": "cubic"}, 'tp.onnx("Resize", x, scales=[2, 2], axes=[0, 1], mode="cubic")'),
        (X, {"scales": 1.5, "axes": 1, "mode": "bicubic"}, 'x, scales=[1.5], axes=[1], mode="cubic")'),
        (X, {"sizes": (7, 9), "axes": (-1, 0), "mode": "bicubic"}, 'x, sizes=[7, 9], axes=[1, 0], mode="cubic")'),
        (X.astype("f8"), {"scales": 2, "axes": 7, "mode": "bicubic"}, "Also: mode is 'bicubic'"),
        (X.astype("f8"), {"scales": 2, "axes": 7, "mode": "bicubic"}, "Also: axes[0] is 7"),
        (X, {"scales": (2, 2), "mode": "linaer"}, "Did you mean 'linear'"),
        (X, {"scales": (2, 2), "mode": "nearest", "antialias": True}, "use mode='linear'"),
        (X, {"scales": (2, 2), "antialias": "pillow"}, "antialias is 'pillow'; it must be True for"),
        (X, {"scales": (2, 2), "antialias": 1}, "antialias is 1; it must be True"),
        (
            BufferTensorDesc(data_type="FLOAT32", sizes=(2, 2), strides=(4, 1)),
            {"scales": (2, 2), "antialias": True}, "whose tensors have no strides or padding",
        ),
        ([[1.0]], {"scales": (2, 2)}, "not list; np.asarray(x) makes an array"),
        (np.zeros((2, 2)), {"scales": (2, 2)}, "not float64; convert it first, as in x.astype(np.float32)"),
        (np.zeros((2, 2), np.uint16), {"scales": (2, 2)}, "takes it and answers in the same type, with fractions"),
        (np.zeros((2, 2), np.int16), {"scales": (2, 2)}, 'x, scales=[2, 2], axes=[0, 1], mode="linear"'),
        (np.zeros((2, 2), np.bool_), {"scales": (2, 2)}, "x.view(np.uint8)"),
        (np.zeros((), np.float32), {"scales": ()}, "x has no dimensions"),
        (np.zeros((0, 2), np.float32), {"scales": (2, 2)}, "no elements; DirectML has no empty tensors"),
        (np.zeros((2,) * 5, np.float32), {"scales": (2,) * 5}, "5 dimensions are left"),
        (np.zeros((2,) * 9, np.float32), {"scales": 2, "axes": range(0, 9, 2)}, "9 dimensions are left"),
        (
            BufferTensorDesc(data_type="FLOAT32", sizes=(2, 2, 2, 2, 2), strides=(32, 8, 4, 2, 1)),
            {"scales": 2, "axes": -1}, "strides or padding cannot be merged",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(x: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        resampling(x, **arguments)
    assert said in caught.value.detail


def test_a_descriptor_alone_cannot_say_how_to_reshape() -> None:
    with pytest.raises(InvalidParameter, match="merges those that are not resized"):
        resample_desc(np.zeros((2, 3, 4, 8, 8), np.float32), scales=2, axes=(-2, -1))


def test_pillow_s_filter_has_no_descriptor() -> None:
    plan = resampling(X, sizes=2, axes=(0, 1), antialias=True)
    with pytest.raises(InvalidParameter, match="say antialias='directml' for RESAMPLE3's filter"):
        _ = plan.desc
    with pytest.raises(InvalidParameter, match="no DirectML descriptor has it"):
        resample_desc(X, sizes=2, axes=(0, 1), antialias=True)  # pyright: ignore[reportArgumentType] # wrong on purpose


def test_directml_s_limits_are_its_own_errors() -> None:
    with pytest.raises(InvalidDescriptor, match="Sizes multiply to 1099511627776 elements"):
        resampling(np.zeros((4, 6), np.float32), sizes=(2**20, 2**20))
