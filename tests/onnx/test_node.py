"""`OnnxNode` as a value: reading it from Python, JSON, a query string and a NodeProto, and what it refuses."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost.onnx import OnnxNode, OnnxTensor, Resizing
from tensorpost.values.problems import InvalidDescriptor, UnknownOperator, json_path

X = OnnxTensor("float", (2, 4))
SCALAR = OnnxTensor("float", ())
R11 = {"roi": [], "scales": []}


def broken(error: InvalidDescriptor) -> dict[str, str]:
    """Path to code of every violation."""
    return {json_path(v.path): v.code for v in error.violations}


def refuse(op_type: str, inputs: dict[str, Any], opset: int, **attributes: Any) -> dict[str, str]:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.of(op_type, inputs, opset=opset, **attributes)
    for violation in caught.value.violations:
        assert violation.message
        assert violation.source.startswith(("ONNX", "tensorpost", "NumPy"))
    return broken(caught.value)


# -- what a node is --


def test_a_node_knows_everything_that_was_decided() -> None:
    node = OnnxNode.of("Resize", {"X": X, "sizes": np.array([3, 7])}, opset=22, mode="linear", axes=[0, -1])
    assert node.schema.name == "Resize-19"
    assert node.input is X
    assert node.output == OnnxTensor("float32", (3, 7))
    assert node.value("sizes") == (3, 7)
    assert node.value("scales") is None
    assert dict(node.attributes) == {
        "mode": "linear", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor",
        "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0, "antialias": 0, "axes": (0, -1),
        "keep_aspect_ratio_policy": "stretch",
    }  # fmt: skip
    assert node.attribute("antialias") == 0
    assert node.warnings == ()


def test_a_node_is_a_value() -> None:
    nodes = [
        OnnxNode.of("Resize", {"X": X, "scales": [1, 1.5]}, opset=19, mode="cubic", extrapolation_value=2),
        OnnxNode.of("Tile", {"input": X, "repeats": [2, 0]}, opset=13),
        OnnxNode.of("Tile", {"input": X, "tiles": 2.0, "axis": 1.0}, opset=1),
        OnnxNode.of("Upsample", {"X": X}, opset=7, scales=[1.0, 2.0]),
    ]
    for node in nodes:
        again = pickle.loads(pickle.dumps(node))
        assert again == node
        assert hash(again) == hash(node)
        assert len({node, again}) == 1
        with pytest.raises(AttributeError):
            node.opset = 1  # pyright: ignore[reportAttributeAccessIssue] # that it is frozen is the point
        assert node.op_type in repr(node)
    assert len(set(nodes)) == len(nodes)


def test_defaults_written_out_make_no_difference() -> None:
    plain = OnnxNode.of("Resize", {"X": X, "scales": [1, 2]}, opset=13)
    assert plain == OnnxNode.of("Resize", {"X": X, "scales": [1, 2]}, opset=13, mode="nearest", cubic_coeff_a=-0.75)
    assert plain != OnnxNode.of("Resize", {"X": X, "scales": [1, 2]}, opset=13, mode="linear")


def test_only_type_and_shape_of_an_array_are_kept() -> None:
    array = np.zeros((2, 4), np.float16)
    assert OnnxNode.of("Tile", {"input": array, "repeats": [1, 1]}, opset=13).input == OnnxTensor("float16", (2, 4))
    texts = np.array(["a", "bc"])
    assert OnnxNode.of("Tile", {"input": texts, "repeats": [1]}, opset=13).input == OnnxTensor("string", (2,))


def test_float32_numbers_are_what_float32_holds() -> None:
    given_as = [np.array([1, 0.7], np.float32), [1, 0.7], (1.0, np.float64(0.7)), [np.float32(1), np.float32(0.7)]]
    nodes = [OnnxNode.of("Resize", {"X": X, "scales": scales}, opset=19, cubic_coeff_a=-0.6) for scales in given_as]
    assert len(set(nodes)) == 1
    assert nodes[0].value("scales") == (1.0, 0.699999988079071)
    assert nodes[0].attribute("cubic_coeff_a") == -0.6000000238418579
    document = nodes[0].to_json()
    assert document["inputs"]["scales"] == [1.0, 0.7]
    assert document["attributes"]["cubic_coeff_a"] == -0.6


def test_a_roi_keeps_its_own_precision() -> None:
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize"}
    for dtype in (np.float16, np.float32, np.float64):
        roi = np.array([0.1, 0.2, 0.8, 0.9], dtype)
        node = OnnxNode("Resize", {"X": X, "sizes": [1, 2], "roi": roi}, crop, opset=19)
        assert node.value("roi") == tuple(roi.astype(np.float64).tolist())
        assert OnnxNode.from_json(json.loads(node.to_json_text())) == node


def test_importing_it_needs_no_onnx_and_no_server() -> None:
    code = (
        "import sys, tensorpost.onnx\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'onnx', 'onnxruntime', 'fastapi', 'starlette', 'tensorpost_server', 'httpx'}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# -- JSON --


def test_the_json_form() -> None:
    document = {
        "op_type": "Resize",
        "opset": 11,
        "attributes": {"mode": "linear"},
        "inputs": {"X": {"data_type": "float", "shape": [2, 4]}, "roi": [], "scales": [1, 1.5]},
    }
    node = OnnxNode.from_json(document)
    assert node.schema.name == "Resize-11"
    assert node.output.shape == (2, 6)
    assert OnnxNode.from_json(json.loads(node.to_json_text())) == node
    assert node.to_json()["inputs"] == document["inputs"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([10, 11, 13, 18, 19, 28]),
    st.lists(st.floats(0.25, 4, width=32), min_size=2, max_size=2),
    st.floats(-2, 2, width=32),
    st.sampled_from(["float", "uint8", "bfloat16", "complex128", "string"]),
)
def test_json_and_back(opset: int, scales: list[float], coefficient: float, data_type: str) -> None:
    if data_type == "bfloat16" and opset < 13:
        data_type = "double"
    attributes = {} if opset == 10 else {"cubic_coeff_a": coefficient, "exclude_outside": 1}
    inputs = {"X": OnnxTensor(data_type, (3, 2)), "scales": scales, **({"roi": []} if opset == 11 else {})}
    node = OnnxNode("Resize", inputs, attributes, opset=opset)
    assert OnnxNode.from_json(json.loads(node.to_json_text())) == node


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], {"$": "document"}),
        ({}, {"$.op_type": "document", "$.inputs": "document"}),
        ({"op_type": "Tile", "inputs": [], "attributes": []},
         {"$.inputs": "document", "$.attributes": "document"}),
        ({"op_type": "Tile", "inputs": {}, "opsett": 1}, {"$.opsett": "document"}),
        ({"op_type": "Tile", "inputs": {}}, {"$.opset": "opset"}),
        ({"op_type": "Tile", "inputs": {}, "opset": "13"}, {"$.opset": "opset"}),
        ({"op_type": "Tile", "inputs": {}, "opset": True}, {"$.opset": "opset"}),
        ({"op_type": "Upsample", "inputs": {}, "opset": 10}, {"$.opset": "opset"}),
        ({"op_type": "Tile", "opset": 13, "inputs": {"input": [1, 2], "repeats": [1]}},
         {"$.inputs.input": "not-an-object"}),
        ({"op_type": "Tile", "opset": 13,
          "inputs": {"input": {"data_type": "flaot", "shape": [2, -1]}, "repeats": [1]}},
         {"$.inputs.input.data_type": "data-type-unknown", "$.inputs.input.shape[1]": "size"}),
        ({"op_type": "Tile", "opset": 13, "inputs": {"input": {"dtype": "float", "shape": "ab"}, "repeats": [1]}},
         {"$.inputs.input.data_type": "field-missing", "$.inputs.input.dtype": "field-unknown",
          "$.inputs.input.shape": "not-an-array"}),
        ({"op_type": "Tile", "opset": 13,
          "inputs": {"input": {"data_type": "float", "shape": [1] * 65}, "repeats": []}},
         {"$.inputs.input.shape": "rank"}),
        ({"op_type": "Tile", "opset": 13,
          "inputs": {"input": {"data_type": "double", "shape": [1 << 40, 1 << 40]}, "repeats": [1, 1]}},
         {"$.inputs.input.shape": "tensor-too-large"}),
    ],
)  # fmt: skip
def test_documents_that_are_refused(document: Any, expected: dict[str, str]) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.from_json(document)
    assert broken(caught.value) == expected


def test_an_unknown_operator_comes_first() -> None:
    with pytest.raises(UnknownOperator):
        OnnxNode.from_json({"op_type": "Tyle", "inputs": {}})
    with pytest.raises(UnknownOperator):
        OnnxNode.from_query("Tyle", "thirteen", {}, {"input": X})


# -- the query string --


def name_of(op_type: str) -> str:
    return "input" if op_type == "Tile" else "X"


@pytest.mark.parametrize(
    ("op_type", "opset", "params", "same"),
    [
        ("Tile", "13", {"repeats": "2,1"}, OnnxNode.of("Tile", {"input": X, "repeats": [2, 1]}, opset=13)),
        ("Tile", 1, {"tiles": "2", "axis": "-1"}, OnnxNode.of("Tile", {"input": X, "tiles": 2, "axis": -1}, opset=1)),
        ("Tile", 1, {"tiles": "2.0", "axis": "1.0"},
         OnnxNode.of("Tile", {"input": X, "tiles": 2.0, "axis": 1.0}, opset=1)),
        ("Resize", "19", {"scales": "1, 1.5", "mode": "linear", "antialias": "1", "cubic_coeff_a": "-5e-1"},
         OnnxNode.of("Resize", {"X": X, "scales": [1, 1.5]}, opset=19, mode="linear", antialias=1, cubic_coeff_a=-0.5)),
        ("Resize", "18", {"sizes": "8", "axes": "-1"},
         OnnxNode.of("Resize", {"X": X, "sizes": [8]}, opset=18, axes=[-1])),
        ("Resize", "11", {"roi": "", "scales": "", "sizes": "2,8"},
         OnnxNode.of("Resize", {"X": X, **R11, "sizes": [2, 8]}, opset=11)),
        ("Upsample", "7", {"scales": "1,2"}, OnnxNode.of("Upsample", {"X": X}, opset=7, scales=[1, 2])),
    ],
)  # fmt: skip
def test_query(op_type: str, opset: int | str, params: dict[str, str], same: OnnxNode) -> None:
    assert OnnxNode.from_query(op_type, opset, params, {name_of(op_type): X}) == same


def test_small_inputs_may_come_as_tensors_of_a_frame() -> None:
    node = OnnxNode.from_query("Resize", 19, {"mode": "cubic"}, {"X": X, "sizes": np.array([3, 3])})
    assert node == OnnxNode.of("Resize", {"X": X, "sizes": [3, 3]}, opset=19, mode="cubic")


@pytest.mark.parametrize(
    ("op_type", "params", "expected"),
    [
        ("Tile", {"repeats": "2,x"}, {"$.inputs.repeats[1]": "not-a-number"}),
        ("Tile", {"repeats": "2,,1"}, {"$.inputs.repeats[1]": "not-a-number"}),
        ("Tile", {"repeats": "2.0,1"}, {"$.inputs.repeats[0]": "not-a-number"}),
        ("Tile", {"repeats": "1_0,1"}, {"$.inputs.repeats[0]": "not-a-number"}),
        ("Tile", {"repeats": "٣,1"}, {"$.inputs.repeats[0]": "not-a-number"}),
        ("Tile", {"repeats": "9" * 5000}, {"$.inputs.repeats[0]": "not-a-number"}),
        ("Tile", {"repeats": "99999999999999999999,1"}, {"$.inputs.repeats[0]": "outside-int64"}),
        ("Tile", {"repeat": "2,1"}, {"$.attributes.repeat": "attribute-unknown", "$.inputs.repeats": "input-missing"}),
        ("Tile", {"input": "2,1", "repeats": "1,1"}, {"$.attributes.input": "attribute-unknown"}),
        ("Resize", {"scales": "1,nan"}, {"$.inputs.scales[1]": "scale-range"}),
        ("Resize", {"scales": "1,inf"}, {"$.inputs.scales[1]": "scale-range"}),
        ("Resize", {"scales": "1,1e999"}, {"$.inputs.scales[1]": "scale-range"}),
        ("Resize", {"scales": "1,1", "antialias": "yes", "cubic_coeff_a": "a"},
         {"$.attributes.antialias[0]": "not-a-number", "$.attributes.cubic_coeff_a[0]": "not-a-number"}),
        ("Resize", {"scales": "1,1", "antialias": "1,0"}, {"$.attributes.antialias": "not-a-number"}),
    ],
)  # fmt: skip
def test_queries_that_are_refused(op_type: str, params: dict[str, str], expected: dict[str, str]) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.from_query(op_type, 19, params, {name_of(op_type): X})
    assert broken(caught.value) == expected


def test_an_input_sent_twice_is_refused() -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.from_query("Resize", 19, {"sizes": "3,3"}, {"X": X, "sizes": np.array([3, 3])})
    assert broken(caught.value) == {"$.inputs.sizes": "input-twice"}


# -- NodeProto --


def proto(
    op_type: str, inputs: list[str], domain: str = "", outputs: tuple[str, ...] = ("y",), **attributes: Any
) -> Any:
    """An object with the fields of onnx.NodeProto that are read, and no others."""
    return SimpleNamespace(
        op_type=op_type, input=inputs, output=list(outputs), domain=domain,
        attribute=[SimpleNamespace(name=name, **fields) for name, fields in attributes.items()],
    )  # fmt: skip


def test_a_node_proto_is_read_by_position() -> None:
    node = proto(
        "Resize", ["x", "", "", "s"], mode={"type": 3, "s": b"cubic"}, cubic_coeff_a={"type": 1, "f": -0.5},
        antialias={"type": 2, "i": 1}, axes={"type": 7, "ints": [1]},
    )  # fmt: skip
    assert OnnxNode.from_node_proto(node, 18, {"x": X, "s": np.array([9])}) == OnnxNode.of(
        "Resize", {"X": X, "sizes": [9]}, opset=18, mode="cubic", cubic_coeff_a=-0.5, antialias=1, axes=[1]
    )
    upsample = proto("Upsample", ["x"], scales={"type": 6, "floats": [1.0, 2.0]})
    assert OnnxNode.from_node_proto(upsample, 8, {"x": X}).output.shape == (2, 8)


def test_a_real_node_proto_is_read_alike() -> None:
    helper = pytest.importorskip(
        "onnx.helper", reason="the package onnx is not installed; it has no wheel for every Python"
    )
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear", exclude_outside=1, axes=[0])
    assert OnnxNode.from_node_proto(node, 19, {"x": X, "s": np.array([2], np.float32)}) == OnnxNode.of(
        "Resize", {"X": X, "scales": [2]}, opset=19, mode="linear", exclude_outside=1, axes=[0]
    )


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (proto("Tile", ["x", "r"], domain="com.example"), {"$.domain": "domain"}),
        (proto("Tile", ["x", "r"], outputs=("y", "z")), {"$.outputs": "output-count"}),
        (proto("Tile", ["x", "r", "r"]), {"$.input": "input-unknown"}),
        (proto("Tile", ["x", "q"]), {"$.input[1]": "value-missing"}),
        (proto("Tile", ["x", ""]), {"$.inputs.repeats": "input-missing"}),
        (proto("Tile", ["x", "r"], mode={"type": 3, "s": b"linear"}), {"$.attributes.mode": "attribute-unknown"}),
        (proto("Tile", ["x", "r"], g={"type": 5, "g": None}), {"$.attributes.g": "attribute-type"}),
        (proto("Resize", ["x", "", "", "r"], mode={"type": 2, "i": 1}), {"$.attributes.mode": "attribute-type"}),
        (proto("Resize", ["x", "", "", "r"], mode={"type": 3, "s": b"", "ref_attr_name": "m"}),
         {"$.attributes.mode": "attribute-type"}),
    ],
)  # fmt: skip
def test_node_protos_that_are_refused(node: Any, expected: dict[str, str]) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.from_node_proto(node, 19, {"x": X, "r": np.array([1, 1])})
    assert broken(caught.value) == expected


# -- what Resize refuses --

SCALES = {"X": X, "scales": [1, 2]}
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
BAD: list[tuple[str, str, int, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    ("scale 0", "Resize", 19, {"X": X, "scales": [1, 0]}, {}, {"$.inputs.scales[1]": "scale-range"}),
    ("scale that float32 makes 0", "Resize", 19, {"X": X, "scales": [1, 1e-60]}, {},
     {"$.inputs.scales[1]": "scale-range"}),
    ("negative scale", "Resize", 19, {"X": X, "scales": [-2, 1]}, {}, {"$.inputs.scales[0]": "scale-range"}),
    ("NaN and infinite scales", "Resize", 19, {"X": X, "scales": [math.nan, math.inf]}, {},
     {"$.inputs.scales[0]": "scale-range", "$.inputs.scales[1]": "scale-range"}),
    ("scale beyond float32", "Resize", 19, {"X": X, "scales": [1, 1e39]}, {}, {"$.inputs.scales[1]": "scale-range"}),
    ("scale below 1 in Upsample", "Upsample", 9, {"X": X, "scales": [1, 0.5]}, {},
     {"$.inputs.scales[1]": "scale-range"}),
    ("scale below 1 in Upsample-7", "Upsample", 7, {"X": X}, {"scales": [1, 0.5]},
     {"$.attributes.scales[1]": "scale-range"}),
    ("no scales in Upsample-7", "Upsample", 7, {"X": X}, {}, {"$.attributes.scales": "attribute-missing"}),
    ("too few scales in Upsample-7", "Upsample", 7, {"X": X}, {"scales": [2]}, {"$.attributes.scales": "array-length"}),
    ("empty scales in Upsample-7", "Upsample", 7, {"X": X}, {"scales": []}, {"$.attributes.scales": "array-length"}),
    ("scales as an input in Upsample-7", "Upsample", 7, SCALES, {"scales": [1, 2]},
     {"$.inputs.scales": "input-unknown"}),
    ("empty scales in Resize-10", "Resize", 10, {"X": X, "scales": []}, {}, {"$.inputs.scales": "array-length"}),
    ("no scales in Resize-10", "Resize", 10, {"X": X}, {}, {"$.inputs.scales": "input-missing"}),
    ("both", "Resize", 19, {"X": X, "scales": [1, 2], "sizes": [2, 8]}, {}, {"$.inputs.scales": "scales-or-sizes"}),
    ("neither", "Resize", 19, {"X": X}, {}, {"$.inputs.scales": "scales-or-sizes"}),
    ("both empty", "Resize", 19, {"X": X, "scales": [], "sizes": []}, {}, {"$.inputs.scales": "scales-or-sizes"}),
    ("rank 0 has nothing to scale", "Resize", 19, {"X": SCALAR, "scales": []}, {},
     {"$.inputs.scales": "scales-or-sizes"}),
    ("too many scales", "Resize", 19, {"X": X, "scales": [1, 1, 2]}, {}, {"$.inputs.scales": "array-length"}),
    ("too few sizes", "Resize", 19, {"X": X, "sizes": [1]}, {}, {"$.inputs.sizes": "array-length"}),
    ("sizes per axis named", "Resize", 19, {"X": X, "sizes": [1, 2]}, {"axes": [1]},
     {"$.inputs.sizes": "array-length"}),
    ("negative size", "Resize", 19, {"X": X, "sizes": [2, -1]}, {}, {"$.inputs.sizes[1]": "size-negative"}),
    ("an empty axis cannot grow", "Resize", 19, {"X": OnnxTensor("float", (0, 2)), "sizes": [3, 2]}, {},
     {"$.inputs.sizes[0]": "empty-axis"}),
    ("no ratio of an empty axis", "Resize", 19, {"X": OnnxTensor("float", (0, 2)), "sizes": [0, 2]},
     {"keep_aspect_ratio_policy": "not_larger"}, {"$.inputs.sizes[0]": "empty-axis"}),
    ("axes out of range", "Resize", 19, SCALES, {"axes": [2, -3]},
     {"$.attributes.axes[0]": "axis-out-of-range", "$.attributes.axes[1]": "axis-out-of-range"}),
    ("an axis twice", "Resize", 19, SCALES, {"axes": [1, -1]}, {"$.attributes.axes[1]": "axis-repeated"}),
    ("axes of a scalar", "Resize", 19, {"X": SCALAR, "scales": [2]}, {"axes": [0]},
     {"$.attributes.axes[0]": "axis-out-of-range"}),
    ("no roi", "Resize", 19, SCALES, CROP, {"$.inputs.roi": "roi-missing"}),
    ("empty roi", "Resize", 11, {**SCALES, "roi": []}, CROP, {"$.inputs.roi": "roi-missing"}),
    ("roi for one axis of two", "Resize", 19, {**SCALES, "roi": [0, 1]}, CROP, {"$.inputs.roi": "array-length"}),
    ("roi that has no effect, but the wrong length", "Resize", 19, {**SCALES, "roi": [0, 1, 1]}, {},
     {"$.inputs.roi": "array-length"}),
    ("roi that is not finite", "Resize", 19, {**SCALES, "roi": [0, math.nan, 1, 1]}, CROP,
     {"$.inputs.roi[1]": "roi-not-finite"}),
    ("roi reversed under scales", "Resize", 19, {**SCALES, "roi": [0, 1, 1, 0]}, CROP,
     {"$.inputs.roi[1]": "roi-reversed"}),
    ("no roi in Resize-11", "Resize", 11, SCALES, {}, {"$.inputs.roi": "input-missing"}),
    ("no scales in Resize-11", "Resize", 11, {"X": X, "roi": [], "sizes": [2, 8]}, {},
     {"$.inputs.scales": "input-missing"}),
    ("antialias with nearest", "Resize", 19, SCALES, {"antialias": 1}, {"$.attributes.antialias": "antialias-nearest"}),
    ("policy with scales", "Resize", 19, SCALES, {"keep_aspect_ratio_policy": "not_larger"},
     {"$.attributes.keep_aspect_ratio_policy": "policy-with-scales"}),
    ("linear booleans", "Resize", 19, {"X": OnnxTensor("bool", (2, 4)), "scales": [1, 2]}, {"mode": "linear"},
     {"$.attributes.mode": "mode-type"}),
    ("cubic strings", "Resize", 19, {"X": OnnxTensor("string", (2, 4)), "scales": [1, 2]}, {"mode": "cubic"},
     {"$.attributes.mode": "mode-type"}),
    ("strings outside", "Resize", 19, {"X": OnnxTensor("string", (2, 4)), "sizes": [2, 2], "roi": [0, 0, 1, 2]}, CROP,
     {"$.inputs.roi": "mode-type"}),
    ("bfloat16 in Resize-11", "Resize", 11, {"X": OnnxTensor("bfloat16", (2, 4)), "scales": [1, 2], "roi": []}, {},
     {"$.inputs.X.data_type": "data-type-unsupported"}),
    ("float64 scales", "Resize", 19, {"X": X, "scales": np.ones(2)}, {}, {"$.inputs.scales": "input-type"}),
    ("int32 sizes", "Resize", 19, {"X": X, "sizes": np.ones(2, np.int32)}, {}, {"$.inputs.sizes": "input-type"}),
    ("integer roi", "Resize", 19, {**SCALES, "roi": np.array([0, 0, 1, 1])}, CROP, {"$.inputs.roi": "input-type"}),
    ("text as a scale", "Resize", 19, {"X": X, "scales": [1, "2"]}, {}, {"$.inputs.scales[1]": "not-a-number"}),
    ("an integer beyond float64 as a scale", "Resize", 19, {"X": X, "scales": [1, 10**400]}, {},
     {"$.inputs.scales[1]": "not-a-number"}),
    ("output beyond int64", "Resize", 19, {"X": X, "sizes": [1 << 40, 1 << 40]}, {},
     {"$.inputs.sizes": "output-too-large"}),
    ("scales beyond int64", "Resize", 19, {"X": X, "scales": [1e20, 1e20]}, {},
     {"$.inputs.scales": "output-too-large"}),
    ("an attribute of a later version", "Resize", 13, {"X": X, "scales": [1, 2]}, {"antialias": 0},
     {"$.attributes.antialias": "attribute-unknown"}),
    ("an attribute spelled wrongly", "Resize", 19, SCALES, {"nearest_mod": "floor"},
     {"$.attributes.nearest_mod": "attribute-unknown"}),
    ("a mode of no version", "Resize", 19, SCALES, {"mode": "bicubic"}, {"$.attributes.mode": "attribute-value"}),
    ("cubic in Resize-10", "Resize", 10, SCALES, {"mode": "cubic"}, {"$.attributes.mode": "attribute-value"}),
    ("half_pixel_symmetric in Resize-18", "Resize", 18, SCALES,
     {"coordinate_transformation_mode": "half_pixel_symmetric"},
     {"$.attributes.coordinate_transformation_mode": "attribute-value"}),
    ("tf_half_pixel_for_nn in Resize-13", "Resize", 13, SCALES,
     {"coordinate_transformation_mode": "tf_half_pixel_for_nn"},
     {"$.attributes.coordinate_transformation_mode": "attribute-value"}),
    ("exclude_outside 2", "Resize", 19, SCALES, {"exclude_outside": 2},
     {"$.attributes.exclude_outside": "attribute-value"}),
    ("exclude_outside true", "Resize", 19, SCALES, {"exclude_outside": True},
     {"$.attributes.exclude_outside": "not-a-number"}),
    ("mode 1", "Resize", 19, SCALES, {"mode": 1}, {"$.attributes.mode": "attribute-type"}),
    ("axes 1", "Resize", 19, SCALES, {"axes": 1}, {"$.attributes.axes": "attribute-type"}),
    ("fractional axis", "Resize", 19, SCALES, {"axes": [0, 1.5]}, {"$.attributes.axes[1]": "not-a-number"}),
    ("NaN coefficient", "Resize", 19, SCALES, {"cubic_coeff_a": math.nan},
     {"$.attributes.cubic_coeff_a": "attribute-value"}),
    ("coefficient beyond float32", "Resize", 19, SCALES, {"cubic_coeff_a": 1e39},
     {"$.attributes.cubic_coeff_a": "attribute-value"}),
    ("everything at once", "Resize", 19, {"X": X, "scales": [0, 1, 2], "sizes": [-1, 2], "scale": [1]},
     {"mode": "nearest", "antialias": 1, "axes": [0, 5], "nearest_mode": "round"},
     {"$.inputs.scale": "input-unknown", "$.attributes.nearest_mode": "attribute-value",
      "$.attributes.antialias": "antialias-nearest", "$.attributes.axes[1]": "axis-out-of-range",
      "$.inputs.scales": "scales-or-sizes", "$.inputs.scales[0]": "scale-range", "$.inputs.sizes[0]": "size-negative"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs", "attributes", "expected"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_refused(
    op_type: str, opset: int, inputs: dict[str, Any], attributes: dict[str, Any], expected: dict[str, str]
) -> None:
    assert refuse(op_type, inputs, opset, **attributes) == expected


@pytest.mark.parametrize(
    ("opset", "attributes", "hint"),
    [
        (13, {"antialias": 0}, "no attribute 'antialias'; Resize-18, Resize-19 do"),
        (18, {"coordinate_transformation_mode": "half_pixel_symmetric"}, "'half_pixel_symmetric'; Resize-19 does"),
        (13, {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, "'tf_half_pixel_for_nn'; Resize-11 does"),
        (19, {"nearest_mod": "floor"}, "did you mean 'nearest_mode'?"),
        (19, {"mode": "bicubic"}, "did you mean 'cubic'?"),
    ],
)
def test_a_refusal_says_where_to_look(opset: int, attributes: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode("Resize", SCALES, attributes, opset=opset)
    assert hint in caught.value.detail


# -- what is allowed, but worth saying --


@pytest.mark.parametrize(
    ("length", "scale", "double", "single"), [(10, 0.7, 6, 7), (10, 0.9, 8, 9), (10, 0.6, 6, 6), (100, 0.29, 28, 29)]
)
def test_sizes_are_computed_in_double_precision(length: int, scale: float, double: int, single: int) -> None:
    assert math.floor(length * float(np.float32(scale))) == double
    node = OnnxNode.of("Resize", {"X": OnnxTensor("float", (length,)), "scales": [scale]}, opset=19)
    assert node.output.shape == (double,)
    if single == double:
        assert node.warnings == ()
    else:
        (warning,) = node.warnings
        assert f"scales[0] gives {double} elements here" in warning
        assert f"but {single} in float32" in warning
        assert node.explain()["warnings"] == [warning]


def test_the_size_of_a_crop_by_scales_is_warned_about() -> None:
    node = OnnxNode("Resize", {**SCALES, "roi": [0, 0.25, 1, 0.75]}, CROP, opset=19)
    assert node.output.shape == (2, 4)
    (warning,) = node.warnings
    assert "give 8" in warning
    assert OnnxNode("Resize", {**SCALES, "roi": [0, 0, 1, 1]}, CROP, opset=19).warnings == ()


def test_a_policy_rounds_half_up_exactly() -> None:
    """7/6 of 3 is exactly 3.5, whatever double precision makes of it."""
    for shape, sizes, policy, output in (
        ((6, 3), [7, 4], "not_larger", (7, 4)),
        ((2, 4), [3, 7], "not_smaller", (4, 7)),
        ((10, 25), [7, 30], "not_larger", (7, 18)),
        ((3, 7), [1, 9], "not_larger", (1, 2)),
    ):
        node = OnnxNode(
            "Resize", {"X": OnnxTensor("float", shape), "sizes": sizes}, {"keep_aspect_ratio_policy": policy}, opset=19
        )
        assert node.output.shape == output


def test_a_roi_without_a_crop_has_no_effect() -> None:
    plain = OnnxNode.of("Resize", SCALES, opset=19)
    with_roi = OnnxNode.of("Resize", {**SCALES, "roi": [0.25, 0.25, 0.5, 0.5]}, opset=19)
    assert isinstance(with_roi.meaning, Resizing)
    assert with_roi.meaning == plain.meaning


def test_cubic_takes_any_rank_and_any_axes() -> None:
    for shape, scales in (((4,), [2]), ((2, 3, 4), [2, 2, 2]), ((1, 2, 3, 4, 5), [1, 2, 1, 2, 2])):
        node = OnnxNode.of("Resize", {"X": OnnxTensor("float", shape), "scales": scales}, opset=19, mode="cubic")
        assert node.output.shape == tuple(n * s for n, s in zip(shape, scales, strict=True))


def test_rank_0_is_copied_where_scales_have_no_entry() -> None:
    assert OnnxNode.of("Resize", {"X": SCALAR, "scales": []}, opset=10).output.shape == ()
    assert OnnxNode.of("Upsample", {"X": SCALAR, "scales": []}, opset=9).output.shape == ()


# -- operators of several tensors --


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "code"),
    [
        ("Add", {"A": X}, {}, "input-missing"),
        ("Add", {"A": X, "B": OnnxTensor("float", (5,))}, {}, "shapes-differ"),
        ("Add", {"A": X, "B": OnnxTensor("double", (3,))}, {}, "data-types-differ"),
        ("Add", {"A": X, "B": X, "C": X}, {}, "input-unknown"),
        ("Concat", {"inputs": [X, OnnxTensor("float", (3, 3))]}, {"axis": 1}, "shapes-differ"),
        ("Concat", {"inputs_1": X}, {"axis": 0}, "input-missing"),
        ("Reshape", {"data": X, "shape": [3, -1]}, {}, "shape"),
        ("Reshape", {"data": X, "shape": [-1, -1]}, {}, "shape"),
        ("Slice", {"data": X, "starts": [0], "ends": [1], "axes": [0], "steps": [0]}, {}, "window"),
        ("Split", {"input": X, "split": [1, 3]}, {}, "output-sizes"),
        ("Split", {"input": X}, {"num_outputs": 1 << 40}, "output-count"),
        ("Range", {"start": 0.0, "limit": 1e30, "delta": 1e-30}, {}, "value"),
        ("Range", {"start": 0, "limit": 1 << 62, "delta": 1}, {}, "output-too-large"),
        ("Expand", {"input": X, "shape": [1 << 40, 1 << 30, 1, 1]}, {}, "output-too-large"),
        ("Pad", {"data": X, "pads": [-2, 0, -2, 0]}, {}, "padding"),
        ("Transpose", {"data": X}, {"perm": [0, 0]}, "axis"),
        ("Cast", {"input": X}, {"to": "complex64"}, "data-type-unsupported"),
        ("Cast", {"input": X}, {"to": 99}, "data-type-unsupported"),
        ("TopK", {"X": X, "K": [9]}, {}, "value"),
        ("Gather", {"data": OnnxTensor("float", (0,)), "indices": OnnxTensor("int64", (1,))}, {}, "shape"),
        ("Gemm", {"A": X, "B": X}, {}, "shapes-differ"),
        ("MatMul", {"A": X, "B": OnnxTensor("float", ())}, {}, "rank"),
        ("ReduceSum", {"data": X, "axes": [0, 0]}, {}, "axis-repeated"),
    ],
)
def test_nodes_that_are_refused(op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.of(op_type, inputs, opset=19, **attributes)
    assert code in {violation.code for violation in caught.value.violations}, caught.value


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "says"),
    [
        ("Cast", {"input": X}, {"to": "complex64"}, "does not convert to complex64; `to` must be one of 1 (float)"),
        ("Cast", {"input": X}, {"to": 99}, "Cast-28 does not convert to type 99, which no tensor here can have"),
        ("EyeLike", {"input": OnnxTensor("float", (2, 2))}, {"dtype": "complex64"}, "EyeLike-22 does not make complex"),
        (
            "Gemm", {"A": OnnxTensor("float", (2, 3)), "B": OnnxTensor("float", (2, 4))}, {},
            "A has 3 columns and B has 2 rows; they must be equal",
        ),
        (
            "Gemm", {"A": OnnxTensor("float", (1, 3)), "B": OnnxTensor("float", (2, 4))}, {"transA": 1},
            "A, transposed, has 1 column and B has 2 rows",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_types_and_sizes(
    op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.of(op_type, inputs, opset=28, **attributes)
    assert says in caught.value.detail


def test_range_takes_the_type_of_its_numbers() -> None:
    def kind(*numbers: Any) -> str:
        node = OnnxNode.of("Range", dict(zip(("start", "limit", "delta"), numbers, strict=True)), opset=19)
        assert OnnxNode.from_json(node.to_json()) == node
        return node.output.data_type

    assert kind(0, 5, 1) == "int64"
    assert kind(0, 5, 0.5) == "float32"
    assert kind(np.int16(0), np.int16(5), np.int16(2)) == "int16"
    assert kind(np.float64(0), np.float64(5), np.float64(2)) == "float64"


def test_lengths_and_empty_lines_that_mean_nothing_are_no_faults() -> None:
    from tests.support.onnx_nodes import compute

    x, lengths = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([9, -4])
    node = OnnxNode.of("ReverseSequence", {"input": x, "sequence_lens": lengths}, opset=10)
    assert compute(node, {"input": x, "sequence_lens": lengths})[0].tolist() == [[4, 1], [2, 3], [0, 5]]
    for name in ("ReduceMean", "ReduceLogSum", "ReduceMax", "ReduceSum"):
        empty = np.zeros((2, 0), np.int32)
        node = OnnxNode.of(name, {"data": empty, **({"axes": [1]} if name == "ReduceSum" else {})}, opset=13)
        compute(node, {"data": empty})
