"""Which node a plan becomes, or why none: rows worked by hand from the pages of DirectML and ONNX."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tensorpost import descriptors as dml
from tensorpost.datatypes import data_type
from tensorpost.descriptors import AxisDirection, BufferTensorDesc, InterpolationMode
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.directml import Constant, Node, TensorType, to_onnx
from tensorpost_server.planning import make_plan


def converted(subject: Any) -> Node | str:
    return to_onnx(make_plan(subject, 1 << 20))


def typed(name: str, *shape: int) -> TensorType:
    return TensorType(data_type(name), shape)


def resize_of(subject: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], dict[str, Any]]:
    node = converted(subject)
    assert isinstance(node, Node), node
    assert (node.op_type, node.opset) == ("Resize", 19)
    source, roi, scales = node.inputs
    assert isinstance(source, TensorType)
    assert roi is None
    assert isinstance(scales, Constant)
    return source.shape, node.outputs[0].shape, scales.entries, dict(node.attributes)


def tensors(sizes: tuple[int, ...], output: tuple[int, ...], data_type: str = "FLOAT32") -> dict[str, Any]:
    return {
        "input_tensor": BufferTensorDesc.packed(data_type, sizes),
        "output_tensor": BufferTensorDesc.packed(data_type, output),
    }


def resample1(sizes: Any, output: Any, scales: Any, i: float, o: float, mode: str = "NEAREST_NEIGHBOR") -> Any:
    return dml.Resample1OperatorDesc(
        **tensors(sizes, output), interpolation_mode=InterpolationMode[mode], scales=scales,
        input_pixel_offsets=(i,) * len(sizes), output_pixel_offsets=(o,) * len(sizes),
    )  # fmt: skip


def resample2(i: float, o: float, direction: str, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        **tensors((4,), (8,)), "interpolation_mode": "NEAREST_NEIGHBOR", "rounding_direction": direction,
        "scales": (2,), "input_pixel_offsets": (i,), "output_pixel_offsets": (o,), **changes,
    }  # fmt: skip
    return dml.Resample2OperatorDesc(**arguments)


# Tile


@pytest.mark.parametrize(
    ("data_type", "carrier"),
    [
        ("FLOAT32", "uint32"), ("FLOAT16", "uint16"), ("UINT32", "uint32"), ("UINT16", "uint16"), ("UINT8", "uint8"),
        ("INT32", "uint32"), ("INT16", "uint16"), ("INT8", "uint8"), ("UINT64", "uint64"), ("INT64", "uint64"),
    ],
)  # fmt: skip
def test_tile_of_every_type_travels_as_unsigned_integers(data_type: str, carrier: str) -> None:
    node = converted(dml.TileOperatorDesc.of(BufferTensorDesc.packed(data_type, (2, 3)), (3, 1)))

    assert isinstance(node, Node)
    assert (node.op_type, node.opset, node.attributes) == ("Tile", 13, ())
    assert node.inputs == (typed(carrier, 2, 3), Constant.vector("int64", (3, 1)))
    assert node.outputs == (typed(carrier, 6, 3),)


def test_strides_do_not_matter_to_the_node() -> None:
    packed = dml.TileOperatorDesc.of(BufferTensorDesc.packed("INT16", (2, 3)), (1, 2))
    strided = dml.TileOperatorDesc(
        input_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 3), strides=(0, 1)),
        output_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 6), strides=(1, 5)),
        repeats=(1, 2),
    )

    assert converted(packed) == converted(strided), "one session for both"


@pytest.mark.parametrize(
    ("data_type", "shape", "repeats", "expected"),
    [
        ("bool", (2,), [2], ("uint8", (2,), (4,))),
        ("bfloat16", (2,), [2], ("uint16", (2,), (4,))),
        ("float64", (2,), [2], ("uint64", (2,), (4,))),
        ("complex64", (2,), [2], ("uint64", (2,), (4,))),
        ("complex128", (2,), [2], ("uint64", (2, 2), (4, 2))),
        ("float32", (), [], ("uint32", (1,), (1,))),
    ],
)
def test_onnx_tile(data_type: str, shape: Any, repeats: Any, expected: Any) -> None:
    node = converted(OnnxNode.of("Tile", {"input": OnnxTensor(data_type, shape), "repeats": repeats}, opset=13))

    carrier, given, made = expected
    assert isinstance(node, Node)
    assert (node.inputs[0], *node.outputs) == (typed(carrier, *given), typed(carrier, *made))


def test_what_tile_cannot() -> None:
    nine = OnnxNode.of("Tile", {"input": OnnxTensor("float32", (2,) * 9), "repeats": [1] * 9}, opset=13)
    text = OnnxNode.of("Tile", {"input": OnnxTensor("str", (2,)), "repeats": [2]}, opset=13)

    assert converted(nine) == "DirectML's Tile takes 8 dimensions; this one would have 9"
    assert converted(text) == "DirectML has no strings"
    huge = OnnxNode.of("Tile", {"input": OnnxTensor("int8", (1 << 16,)), "repeats": [1 << 16]}, opset=13)
    assert converted(huge) == "DirectML's tensors have at most 4,294,967,295 elements"


# Resample: the kinds of offsets


def test_resample_is_half_pixel_and_rounds_halves_up() -> None:
    desc = dml.ResampleOperatorDesc(
        **tensors((4,), (8,)), interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR, scales=(2,)
    )

    _, _, _, attributes = resize_of(desc)

    assert attributes == {
        "mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil",
    }  # fmt: skip


def test_the_example_of_two_dimensions() -> None:
    desc = resample1((1, 1, 4, 4), (1, 1, 8, 8), (1, 1, 2, 2), 0.5, -0.5, "LINEAR")

    assert resize_of(desc) == (
        (4, 4), (8, 8), (2.0, 2.0), {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0.5, -0.5), ("half_pixel", "round_prefer_ceil")),
        ((0.0, 0.0), ("asymmetric", "round_prefer_ceil")),
        ((0.5, 0.0), ("asymmetric", "floor")),
        ((1.0, -0.5), ("half_pixel", "floor")),
    ],
)
def test_nearest_of_resample1(offsets: tuple[float, float], expected: tuple[str, str]) -> None:
    attributes = resize_of(resample1((4,), (8,), (2,), *offsets))[3]

    assert (attributes["coordinate_transformation_mode"], attributes["nearest_mode"]) == expected


@pytest.mark.parametrize(
    ("direction", "offsets", "expected"),
    [
        ("DECREASING", (0.5, -0.5), ("half_pixel", "floor")),
        ("DECREASING", (0.0, -0.5), ("half_pixel", "round_prefer_ceil")),
        ("DECREASING", (0.0, 0.0), ("asymmetric", "floor")),
        ("DECREASING", (-0.5, 0.0), ("asymmetric", "round_prefer_ceil")),
        ("INCREASING", (0.5, -0.5), ("half_pixel", "ceil")),
        ("INCREASING", (1.0, -0.5), ("half_pixel", "round_prefer_floor")),
        ("INCREASING", (0.0, 0.0), ("asymmetric", "ceil")),
        ("INCREASING", (0.5, 0.0), ("asymmetric", "round_prefer_floor")),
    ],
)
def test_nearest_of_resample2_and_3(direction: str, offsets: tuple[float, float], expected: tuple[str, str]) -> None:
    attributes = resize_of(resample2(*offsets, direction))[3]

    assert (attributes["coordinate_transformation_mode"], attributes["nearest_mode"]) == expected
    third = dml.Resample3OperatorDesc(
        **tensors((4,), (8,)),
        interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR, rounding_direction=AxisDirection[direction], scales=(2,),
        input_pixel_offsets=offsets[:1], output_pixel_offsets=offsets[1:], antialiased=True,
    )  # fmt: skip
    assert converted(third) == converted(resample2(*offsets, direction)), "nearest ignores Antialiased"


def test_linear_of_the_corners() -> None:
    assert resize_of(resample1((4,), (8,), (2,), 0, 0, "LINEAR"))[3]["coordinate_transformation_mode"] == "asymmetric"


def test_an_axis_that_every_kind_reads_alike_fits_any() -> None:
    """Scale 1 with x = o + 0.5 and the floor is a copy; a lone element is read wherever x is."""
    copied = resample2(
        0, 0, "DECREASING", **tensors((3, 4), (3, 8)), scales=(1, 2), input_pixel_offsets=(0, 0.5),
        output_pixel_offsets=(-0.5, -0.5),
    )  # fmt: skip
    lone = resample1((1, 4), (5, 8), (0.3, 2), 0.5, -0.5)

    assert resize_of(copied)[3]["nearest_mode"] == "floor"
    assert resize_of(lone)[:3] == ((1, 4), (5, 8), (5.0, 2.0))


def test_copied_axes_side_by_side_become_one() -> None:
    desc = resample1((3, 4, 1, 8), (3, 4, 1, 16), (1, 1, 1, 2), 0.5, -0.5)

    assert resize_of(desc)[:3] == ((12, 8), (12, 16), (1.0, 2.0))


def test_a_copy_is_a_resize_by_one() -> None:
    assert resize_of(resample1((3, 4), (3, 4), (1, 1), 0.5, -0.5))[:3] == ((1, 12), (1, 12), (1.0, 1.0))


# Resample: what does not fit


@pytest.mark.parametrize(
    ("desc", "reason"),
    [
        (resample1((3,), (4,), (2,), 0.5, -0.5), r"an axis of 3 with scale 2 has 4 elements .* which is 6 before"),
        (resample1((3,), (8,), (2,), 0.5, -0.5), "an axis of 3 with scale 2 has 8 elements"),
        # The float32 0.7 is a little less: 6.99999988 in double, and 7 in float32.
        (resample1((10,), (6,), (0.7,), 0.5, -0.5), "an axis of 10 with scale 0.699999988 has 6 elements"),
        (resample1((10,), (7,), (0.7,), 0.5, -0.5), "an axis of 10 with scale 0.699999988 has 7 elements"),
        (resample1((4,), (8,), (2,), 0.25, -0.5), r"pixel offsets 0\.25 and -0\.5 for nearest \(half-up\)"),
        (resample1((4,), (8,), (2,), 0.5, 0, "LINEAR"), r"pixel offsets 0\.5 and 0 for linear"),
        (
            resample2(0, 0, "DECREASING", **tensors((4, 4), (8, 8)), scales=(2, 2), input_pixel_offsets=(0.5, 0),
                      output_pixel_offsets=(-0.5, 0)),
            "its axes read the input in different ways",
        ),
        (resample1(((1 << 24) + 1,), ((1 << 24) + 1,), (2,), 0, 0), "an axis is longer than 16,777,216"),
    ],
)  # fmt: skip
def test_resamples_that_are_refused(desc: Any, reason: str) -> None:
    found = converted(desc)

    assert isinstance(found, str)
    assert re.search(reason, found), found


def test_gradients_and_filters_are_refused() -> None:
    gradient = dml.ResampleGradOperatorDesc(
        input_gradient_tensor=BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 4)),
        output_gradient_tensor=BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 2)),
        interpolation_mode=InterpolationMode.LINEAR,
        scales=(1, 1, 1, 2), input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip
    filtered = dml.Resample3OperatorDesc(
        **tensors((8,), (2,)),
        interpolation_mode=InterpolationMode.LINEAR, rounding_direction=AxisDirection.DECREASING, scales=(0.25,),
        input_pixel_offsets=(0.5,), output_pixel_offsets=(-0.5,), antialiased=True,
    )  # fmt: skip

    assert converted(gradient) == "no ONNX node is known that computes RESAMPLE_GRAD"
    assert "steps are not published" in str(converted(filtered))


def test_antialiasing_that_filters_nothing_is_plain_linear() -> None:
    desc = dml.Resample3OperatorDesc(
        **tensors((8,), (4,)),
        interpolation_mode=InterpolationMode.LINEAR, rounding_direction=AxisDirection.DECREASING, scales=(0.5,),
        input_pixel_offsets=(0.5,), output_pixel_offsets=(-0.5,), antialiased=True,
    )  # fmt: skip

    assert resize_of(desc)[3] == {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


# ONNX Resize


def test_an_onnx_node_goes_through_its_exact_lowering() -> None:
    node = OnnxNode.of(
        "Resize", {"X": OnnxTensor("uint8", (1, 2, 3, 4)), "scales": np.array([1, 1, 2, 2], np.float32)}, opset=19,
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_floor",
    )  # fmt: skip

    assert resize_of(node) == (
        (2, 3, 4), (2, 6, 8), (1.0, 2.0, 2.0),
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "round_prefer_floor"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "cubic"}, "in DirectML it is not expressible: DirectML has no cubic interpolation"),
        ({"mode": "linear", "scales": [1.0, 0.3]}, "in DirectML it is exact except ties: "),
    ],
)
def test_an_onnx_node_without_one_is_refused(changes: dict[str, Any], reason: str) -> None:
    scales = np.array(changes.pop("scales", [1, 2]), np.float32)
    node = OnnxNode.of("Resize", {"X": OnnxTensor("float32", (3, 7)), "scales": scales}, opset=19, **changes)

    found = converted(node)

    assert isinstance(found, str)
    assert found.startswith(reason)
