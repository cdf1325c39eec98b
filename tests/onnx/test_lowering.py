"""Lowering to DirectML: what can be expressed at which level, and that both dialects then compute the same bytes."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorpost.descriptors import FeatureLevel, OperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor, Verdict, lower
from tensorpost.values.problems import InvalidParameter
from tensorpost_server.operators import form_of

LEVELS = [str(level) for level in FeatureLevel]
EXACT, TIES, NOT = Verdict.EXACT, Verdict.EXACT_EXCEPT_TIES, Verdict.NOT_EXPRESSIBLE
CROP = "tf_crop_and_resize"
CROPS: dict[str, Any] = {"coordinate_transformation_mode": CROP}


def tile(data_type: str, shape: Any, repeats: Any) -> OnnxNode:
    return OnnxNode.of("Tile", {"input": OnnxTensor(data_type, shape), "repeats": repeats}, opset=13)


def resize(shape: Any, data_type: str = "float", opset: int = 19, **given: Any) -> OnnxNode:
    inputs = {name: given.pop(name) for name in ("scales", "sizes", "roi") if name in given}
    if opset == 11:
        inputs = {"roi": [], "scales": [], **inputs}
    return OnnxNode("Resize", {"X": OnnxTensor(data_type, shape), **inputs}, given, opset=opset)


def both(node: OnnxNode, desc: OperatorDesc, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The node's output, and the descriptor's on the same bytes, seen as the node's output."""
    ours = np.empty(node.output.shape, x.dtype)
    form_of(node).fill(np, [x], tuple((0, n) for n in ours.shape), ours)
    (_, source), (_, target) = desc.tensors()
    lowered = np.empty(target.sizes, target.dtype)
    bits = np.frombuffer(np.ascontiguousarray(x).tobytes(), source.dtype).reshape(source.sizes)
    form_of(desc).fill(np, [bits], tuple((0, n) for n in target.sizes), lowered)
    return ours, np.frombuffer(lowered.tobytes(), x.dtype).reshape(ours.shape)


# -- Tile --


@pytest.mark.parametrize(
    ("node", "level", "data_type", "sizes", "repeats"),
    [
        (tile("float", (2, 3, 4), (5, 1, 1)), "1_0", "FLOAT32", (1, 2, 3, 4), (1, 5, 1, 1)),
        (tile("double", (3,), (2,)), "6_4", "UINT32", (3, 2), (2, 1)),
        (tile("double", (3,), (2,)), "2_1", "UINT32", (1, 1, 3, 2), (1, 1, 2, 1)),
        (tile("bool", (2, 2), (1, 3)), "2_1", "UINT8", (1, 1, 2, 2), (1, 1, 1, 3)),
        (tile("float16", (), ()), "3_1", "FLOAT16", (1,), (1,)),
        (tile("float16", (), ()), "1_0", "FLOAT16", (1, 1, 1, 1), (1, 1, 1, 1)),
        (tile("bfloat16", (2,), (3,)), "3_1", "UINT16", (2,), (3,)),
        (tile("complex64", (2,), (3,)), "3_1", "UINT32", (2, 2), (3, 1)),
        (tile("complex128", (2,), (3,)), "3_1", "UINT32", (2, 4), (3, 1)),
        (tile("complex128", (2,), (3,)), "6_0", "UINT32", (2, 4), (3, 1)),
        (tile("int64", (2, 2), (1, 2)), "4_1", "INT64", (2, 2), (1, 2)),
        (tile("int8", (1, 2), (3, 4)), "5_0", "INT8", (1, 2), (3, 4)),
        # five dimensions: the last three merge, then the one of size 1 in front of them
        (tile("float", (2, 1, 2, 3, 4), (2, 3, 5, 1, 1)), "2_1", "FLOAT32", (1, 1, 2, 24), (1, 1, 2, 15)),
        # the extra dimension merges with the last one
        (tile("double", (2,) * 8, (2,) * 8), "4_1", "UINT32", (2,) * 7 + (4,), (2,) * 8),
        # 2^32 UINT32 are one too many
        (tile("double", (1 << 15,), (1 << 16,)), "4_1", "UINT64", (1 << 15,), (1 << 16,)),
        (tile("complex128", (2,) * 7, (2,) * 7), "4_1", "UINT32", (2,) * 7 + (4,), (2,) * 7 + (1,)),
    ],
)  # fmt: skip
def test_tile(node: OnnxNode, level: str, data_type: str, sizes: Any, repeats: Any) -> None:
    lowering = lower(node, level)
    assert lowering.verdict is EXACT
    desc: Any = lowering.descriptor
    assert desc.operator_type == "TILE"
    assert desc.input_tensor.data_type.name == data_type
    assert desc.input_tensor.sizes == sizes
    assert desc.repeats == repeats
    desc.validate_for(level)


@pytest.mark.parametrize(
    ("node", "level", "words"),
    [
        (tile("float", (2, 3), (2, 0)), "6_4", "no empty tensors"),
        (tile("float", (0, 3), (2, 2)), "6_4", "no empty tensors"),
        (tile("string", (2,), (2,)), "6_4", "no strings"),
        (tile("float", (2,) * 9, (2,) * 9), "6_4", "9 dimensions are left.*takes 8"),
        (tile("float", (2,) * 5, (2,) * 5), "3_0", "5 dimensions are left.*takes 4"),
        (tile("double", (1 << 15,), (1 << 16,)), "4_0", r"2\^32 - 1"),
        (tile("int8", (2,), (2,)), "2_0", "does not take INT8.*from 2_1"),
        (tile("int64", (2,), (2,)), "4_0", "does not take INT64.*from 4_1"),
        (tile("bool", (2,), (2,)), "1_0", "does not take UINT8.*from 2_1"),
        (tile("int8", (1 << 16,), (1 << 16,)), "6_4", "does not fit DirectML's UINT"),
    ],
)
def test_tile_that_cannot_be_expressed(node: OnnxNode, level: str, words: str) -> None:
    lowering = lower(node, level)
    assert lowering.verdict is NOT
    assert lowering.descriptor is None
    assert re.search(words, lowering.reason), lowering.reason


def test_tile_1_is_lowered_like_tile_6() -> None:
    node = OnnxNode.of("Tile", {"input": OnnxTensor("float", (2, 3)), "tiles": 2.0, "axis": -1.0}, opset=1)
    desc: Any = lower(node).descriptor
    assert desc.repeats == (1, 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_lowered_tile_is_the_same_bytes(data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=10))
    while math.prod(size * repeat for size, repeat in axes) > 20_000:
        axes.pop()
    dtype = data.draw(st.sampled_from(["float32", "float64", "int64", "bool", "complex64", "complex128", "uint16"]))
    shape, repeats = [size for size, _ in axes], [repeat for _, repeat in axes]
    x = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    node = OnnxNode.of("Tile", {"input": x, "repeats": repeats}, opset=13)
    lowering = lower(node, data.draw(st.sampled_from(LEVELS)))
    if lowering.descriptor is None:
        assert lowering.verdict is NOT
        return
    ours, lowered = both(node, lowering.descriptor, x)
    assert ours.tobytes() == lowered.tobytes()


# -- Resize: which operator, with which fields --


@pytest.mark.parametrize(
    ("given", "scale", "offset_in", "offset_out"),
    [
        ({"sizes": [8], "coordinate_transformation_mode": "half_pixel"}, 2.0, 0.5, -0.5),
        ({"sizes": [8], "coordinate_transformation_mode": "pytorch_half_pixel"}, 2.0, 0.5, -0.5),
        ({"sizes": [1], "coordinate_transformation_mode": "pytorch_half_pixel"}, 1.0, 0.5, -0.5),
        ({"sizes": [7], "coordinate_transformation_mode": "align_corners"}, 2.0, 0.0, 0.0),
        ({"sizes": [1], "coordinate_transformation_mode": "align_corners"}, float(np.finfo(np.float32).max), 0.0, 0.0),
        ({"sizes": [8], "coordinate_transformation_mode": "asymmetric"}, 2.0, 0.0, 0.0),
        ({"sizes": [8], "opset": 11, "coordinate_transformation_mode": "tf_half_pixel_for_nn"}, 2.0, 0.0, -0.5),
        ({"scales": [0.6], "coordinate_transformation_mode": "half_pixel_symmetric"}, np.float32(0.6), 1 / 6, -0.5),
        ({"sizes": [4], "coordinate_transformation_mode": CROP, "roi": [0.25, 0.75]}, 2.0, 0.0, -1.5),
        ({"sizes": [1], "coordinate_transformation_mode": CROP, "roi": [0.25, 0.75]}, 1.0, 0.0, -1.5),
        ({"sizes": [4], "coordinate_transformation_mode": "half_pixel"}, 1.0, 0.5, -0.5),
    ],
)
def test_coordinates_become_scale_and_offsets(given: Any, scale: float, offset_in: float, offset_out: float) -> None:
    lowering = lower(resize((4,), mode="linear", **given))
    desc: Any = lowering.descriptor
    assert lowering.verdict is not NOT
    assert desc.operator_type == "RESAMPLE2"
    assert desc.scales == (scale,)
    assert desc.input_pixel_offsets == pytest.approx((offset_in,), rel=1e-6)
    assert desc.output_pixel_offsets == (offset_out,)


@pytest.mark.parametrize(
    ("nearest_mode", "direction", "second", "first"),
    [
        ("round_prefer_ceil", "DECREASING", -0.5, 0.0), ("floor", "DECREASING", 0.0, 0.5),
        ("round_prefer_floor", "INCREASING", 0.5, 0.0), ("ceil", "INCREASING", 0.0, -0.5),
    ],
)  # fmt: skip
def test_rounding_becomes_a_direction_and_an_offset(
    nearest_mode: str, direction: str, second: float, first: float
) -> None:
    node = resize((4,), sizes=[8], nearest_mode=nearest_mode, coordinate_transformation_mode="asymmetric")
    newer: Any = lower(node, "5_1").descriptor
    assert newer.operator_type == "RESAMPLE2"
    assert newer.rounding_direction.name == direction
    assert newer.input_pixel_offsets == (second,)
    older: Any = lower(node, "5_0").descriptor
    assert older.operator_type == "RESAMPLE1"
    assert older.input_pixel_offsets[-1] == first


@pytest.mark.parametrize(
    ("level", "operator", "rank"),
    [("1_0", None, 0), ("2_0", "RESAMPLE", 4), ("2_1", "RESAMPLE1", 4), ("3_1", "RESAMPLE1", 4),
     ("5_0", "RESAMPLE1", 4), ("5_1", "RESAMPLE2", 2), ("6_2", "RESAMPLE2", 2), ("6_4", "RESAMPLE2", 2)],
)  # fmt: skip
def test_the_operator_of_each_level(level: str, operator: str | None, rank: int) -> None:
    lowering = lower(resize((4, 4), scales=[1, 2], mode="linear"), level)
    if operator is None:
        assert lowering.verdict is NOT
        assert "2_0" in lowering.reason
        return
    desc: Any = lowering.descriptor
    assert desc.operator_type == operator
    assert len(desc.input_tensor.sizes) == rank


def test_untouched_neighbours_merge() -> None:
    desc: Any = lower(resize((2, 3, 4, 8, 8), scales=[1, 1, 1, 2, 0.5], mode="linear")).descriptor
    assert desc.input_tensor.sizes == (24, 8, 8)
    assert desc.output_tensor.sizes == (24, 16, 4)
    kept: Any = lower(resize((2, 3, 8, 8), scales=[1, 1, 2, 2], mode="linear")).descriptor
    assert kept.input_tensor.sizes == (2, 3, 8, 8)
    assert lower(resize((2, 3, 4, 5, 6), scales=[2, 2, 2, 2, 2], mode="linear")).verdict is NOT


def test_booleans_travel_as_uint8() -> None:
    desc: Any = lower(resize((4,), "bool", scales=[2])).descriptor
    assert desc.input_tensor.data_type.name == "UINT8"


@pytest.mark.parametrize(
    ("node", "level", "words"),
    [
        (resize((4,), scales=[2], mode="cubic"), "6_4", "no cubic"),
        (resize((4,), scales=[0.75], mode="linear", antialias=1), "6_4", "antialias"),
        (resize((5,), "uint8", sizes=[10], mode="linear", antialias=1), "6_4", "rounds integers after each axis"),
        (resize((5, 2), "int8", scales=[1, 3], mode="linear", antialias=1), "6_4", "rounds integers after each axis"),
        (resize((4,), sizes=[3], roi=[0.5, 1.5], mode="linear", **CROPS), "6_4", "extrapolat"),
        (resize((4,), sizes=[3], roi=[1, 0], mode="linear", **CROPS), "6_4", "reversed"),
        (resize((4,), sizes=[3], roi=[0.5, 0.5], mode="linear", **CROPS), "6_4", "empty"),
        (resize((0, 4), scales=[1, 2]), "6_4", "no empty tensors"),
        (resize((), opset=10, scales=[]), "6_4", "rank 0"),
        (resize((4,), "int16", scales=[2]), "6_4", "no int16"),
        (resize((4,), "double", scales=[2], mode="linear"), "6_4", "no float64"),
        (resize((4,), "bfloat16", scales=[2]), "6_4", "no bfloat16"),
        (resize((4,), "int8", scales=[2]), "6_1", "6_2"),
        (resize((4,), scales=[2], mode="linear", coordinate_transformation_mode="asymmetric"), "2_0", "half-pixel"),
        (resize((4,), scales=[2], nearest_mode="ceil"), "2_0", "half-pixel"),
        (resize((2,), sizes=[1], roi=[0, 0.1], mode="linear", **CROPS), "2_0", "half-pixel"),
        (resize((1 << 31, 4), scales=[1, 2]), "6_4", r"2\^32 - 1"),
        (resize((4, 4), opset=10, scales=[2, 0.5]), "6_4", "different ways"),
    ],
)  # fmt: skip
def test_resize_that_cannot_be_expressed(node: OnnxNode, level: str, words: str) -> None:
    lowering = lower(node, level)
    assert lowering.verdict is NOT, lowering
    assert lowering.descriptor is None
    assert re.search(words, lowering.reason), lowering.reason


@pytest.mark.parametrize(
    "given", [{"antialias": 1}, {"exclude_outside": 1}, {"roi": [0.0, 1.0]}, {"keep_aspect_ratio_policy": "stretch"}]
)
def test_what_has_no_effect_is_no_obstacle(given: Any) -> None:
    plain = lower(resize((4,), sizes=[8], mode="linear"))
    assert lower(resize((4,), sizes=[8], mode="linear", **given)) == plain


@pytest.mark.parametrize(
    ("nearest_mode", "level", "given", "verdict"),
    [
        # 4 to 2 with half pixels is all ties: 0.5, 2.5
        ("round_prefer_floor", "6_4", {"sizes": [2]}, EXACT), ("round_prefer_floor", "3_0", {"sizes": [2]}, TIES),
        ("round_prefer_floor", "2_0", {"sizes": [2]}, TIES), ("round_prefer_ceil", "2_0", {"sizes": [2]}, EXACT),
        ("round_prefer_ceil", "3_0", {"sizes": [2]}, EXACT), ("floor", "3_0", {"sizes": [2]}, EXACT),
        # 4 to 8 with half pixels has none
        ("round_prefer_floor", "3_0", {"sizes": [8]}, EXACT), ("round_prefer_floor", "2_0", {"sizes": [8]}, EXACT),
        ("ceil", "3_0", {"sizes": [8]}, EXACT),
        # whole coordinates are the ties of ceil
        ("ceil", "3_0", {"sizes": [8], "coordinate_transformation_mode": "asymmetric"}, TIES),
        ("ceil", "5_1", {"sizes": [8], "coordinate_transformation_mode": "asymmetric"}, EXACT),
        # RESAMPLE is asymmetric with floor for whole scales
        ("floor", "2_0", {"sizes": [8], "coordinate_transformation_mode": "asymmetric"}, EXACT),
        ("floor", "2_0", {"opset": 11, "sizes": [8], "coordinate_transformation_mode": "tf_half_pixel_for_nn"}, EXACT),
    ],
)  # fmt: skip
def test_verdicts_of_nearest(nearest_mode: str, level: str, given: Any, verdict: Verdict) -> None:
    assert lower(resize((4,), nearest_mode=nearest_mode, **given), level).verdict is verdict


def test_align_corners_through_a_float32_scale_loses_the_last_element() -> None:
    """8 to 2: the scale is 1/7 in float32, and 1 / (1/7) is just below 7."""
    lowering = lower(resize((8,), sizes=[2], nearest_mode="floor", coordinate_transformation_mode="align_corners"))
    assert lowering.verdict is TIES
    assert (
        lowering.reason
        == "1 of 2 coordinates fall to the neighbour of the exact element, first at output index 1 of dimension 0"
    )


def test_how_often_align_corners_loses_elements() -> None:
    """n and L from 2 to 64, floor: 268 of 3,969 pairs lose some index, 462 indices in all."""
    pairs = indices = 0
    for n, length in itertools.product(range(2, 65), repeat=2):
        node = resize((n,), sizes=[length], nearest_mode="floor", coordinate_transformation_mode="align_corners")
        lowering = lower(node)
        if lowering.verdict is TIES:
            pairs += 1
            indices += int(lowering.reason.split()[0])
    assert (pairs, indices) == (268, 462)


def test_integers_next_to_a_whole_number_are_ties() -> None:
    """Sums by quarters are exact in float32; sums by thirds are not."""
    assert lower(resize((4, 4), "uint8", scales=[2, 2], mode="linear")).verdict is EXACT
    assert lower(resize((4, 4), "uint8", scales=[3, 3], mode="linear")).verdict is TIES


def test_linear_is_exact_where_float32_holds_every_coordinate() -> None:
    assert lower(resize((4, 4), scales=[2, 0.5], mode="linear")).verdict is EXACT
    lowering = lower(resize((4, 4), "float16", scales=[1, 3], mode="linear"))
    assert lowering.verdict is TIES
    assert "8 of 16 coordinates are rounded to float32, first at output index 0 of dimension 1" in lowering.reason


def test_a_very_long_axis_is_not_vouched_for() -> None:
    lowering = lower(resize(((1 << 24) + 2,), scales=[1.5]))
    assert lowering.verdict is TIES
    assert "not all were compared" in lowering.reason


def test_there_is_no_such_level() -> None:
    with pytest.raises(InvalidParameter):
        lower(tile("float", (2,), (2,)), "7_0")


# -- Resize: the same bytes --


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_lowered_resize_computes_what_the_verdict_says(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    coordinates = data.draw(
        st.sampled_from(
            ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", CROP]
        )
    )
    given: dict[str, Any] = {"coordinate_transformation_mode": coordinates}
    given["mode"] = data.draw(st.sampled_from(["nearest", "linear"]))
    if coordinates == CROP:
        edges = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
        given["roi"] = data.draw(st.lists(edges, min_size=2 * rank, max_size=2 * rank))
    if coordinates == CROP or data.draw(st.booleans()):
        given["sizes"] = data.draw(st.lists(st.integers(1, 12), min_size=rank, max_size=rank))
    else:
        given["scales"] = data.draw(st.lists(st.floats(0.25, 3, width=32), min_size=rank, max_size=rank))
    if given["mode"] == "nearest":
        given["nearest_mode"] = data.draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    elif data.draw(st.booleans()):
        given["antialias"] = 1
    dtype = data.draw(st.sampled_from(["float32", "uint8"]))
    node = resize(shape, dtype, **given)
    lowering = lower(node, data.draw(st.sampled_from(LEVELS)))
    if lowering.descriptor is None:
        assert lowering.verdict is NOT
        return
    x = np.random.default_rng(5).integers(0, 256, shape).astype(dtype)
    ours, lowered = both(node, lowering.descriptor, x)
    if lowering.verdict is EXACT:
        assert ours.tobytes() == lowered.tobytes()
    elif given["mode"] == "linear" and dtype == "float32":
        # A coordinate below 16 is off by at most 2^-20, neighbours differ by at most 81; sums of values below 729 are
        # off by a few times 2^-24 of that.
        np.testing.assert_allclose(lowered, ours, rtol=0, atol=1e-3)
    elif given["mode"] == "linear":
        assert np.abs(ours.astype(int) - lowered.astype(int)).max() <= 1
    else:
        assert lowering.verdict is TIES
        assert "dimension" in lowering.reason
