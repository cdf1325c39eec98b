"""ONNX Tile: the examples by hand, an index-by-index oracle, and everything that must be refused."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import onnx_oracle
from tests.support.vectors import Case, all_hold, cases_of, elements

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.datatypes import DATA_TYPES
from tensorpost.values.problems import InvalidDescriptor, json_path
from tensorpost_server.operators import form_of

NUMERIC = [row.numpy_name for row in DATA_TYPES if row.numpy_name != "str" and not row.is_small]


def broken(*args: Any, **kwargs: Any) -> dict[str, str]:
    """Path to code of every violation."""
    with pytest.raises(InvalidDescriptor) as caught:
        OnnxNode.of("Tile", *args, **kwargs)
    return {json_path(v.path): v.code for v in caught.value.violations}


def test_vectors(run: Any) -> None:
    def check(case: Case) -> None:
        node: Any = case.desc
        case.check_array("output", run(node, elements(node.inputs[0], case.inputs[0])), case.outputs()[0])

    all_hold(cases_of("Tile"), check)


@pytest.mark.parametrize("name", NUMERIC)
def test_every_type_survives_bit_for_bit(name: str, run: Any) -> None:
    dtype = next(row for row in DATA_TYPES if row.numpy_name == name).dtype
    bits = np.random.default_rng(7).integers(0, 2 if name == "bool" else 256, 6 * dtype.itemsize, np.uint8)
    x = bits.view(dtype).reshape(2, 3)
    got = run(OnnxNode.of("Tile", {"input": x, "repeats": [3, 2]}, opset=13), x)
    assert got.tobytes() == onnx_oracle.tile(x, (3, 2)).tobytes()


def test_strings_are_tiled_in_python_and_travel_in_no_frame(run: Any) -> None:
    x = np.array([["a", "bc"]], object)
    node = OnnxNode.of("Tile", {"input": x, "repeats": [2, 2]}, opset=6)
    assert run(node, x).tolist() == [["a", "bc", "a", "bc"]] * 2
    assert run(node, x, ((1, 2), (1, 3))).tolist() == [["bc", "a"]]
    for container, reason in (("npy", "pickle"), ("frame", "safetensors")):
        with pytest.raises(InvalidDescriptor, match=rf"(?s)cannot travel.*{reason}.*Client.run and Client.onnx"):
            node.input.require_carriable(container)


def test_types_without_a_place_in_one_container_are_told_the_other() -> None:
    with pytest.raises(InvalidDescriptor, match="send an npy body"):
        OnnxTensor("complex128", (2,)).require_carriable("frame")
    OnnxTensor("bfloat16", (2,)).require_carriable("frame")
    OnnxTensor("bfloat16", (2,)).require_carriable("npy")
    OnnxTensor("complex128", (2,)).require_carriable("npy")


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_box_is_that_part_of_the_whole(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    repeats = data.draw(st.lists(st.integers(1, 4), min_size=len(shape), max_size=len(shape)))
    x = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    if data.draw(st.booleans()):
        x = x.T.copy().T  # strided
    node = OnnxNode.of("Tile", {"input": x, "repeats": repeats}, opset=13)
    whole = onnx_oracle.tile(x, repeats)
    assert whole.shape == node.output.shape
    ranges = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in whole.shape]
    box = tuple((start, stop) for start, stop in ranges)
    out = np.full([stop - start for start, stop in box], -1, np.int16)
    form_of(node).fill(np, [x], box, out)
    assert np.array_equal(out, whole[tuple(slice(*span) for span in box)])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), max_size=4))
def test_tiling_twice_multiplies_the_repeats(axes: list[tuple[int, int, int]]) -> None:
    shape, first, second = ([axis[i] for axis in axes] for i in range(3))
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    both = [a * b for a, b in zip(first, second, strict=True)]

    def tile(array: np.ndarray, repeats: list[int]) -> np.ndarray:
        node = OnnxNode.of("Tile", {"input": array, "repeats": repeats}, opset=13)
        out = np.empty(node.output.shape, array.dtype)
        form_of(node).fill(np, [array], tuple((0, n) for n in out.shape), out)
        return out

    assert np.array_equal(tile(tile(x, first), second), tile(x, both))
    assert np.array_equal(tile(x, first), np.tile(x, first))


@pytest.mark.parametrize("opset", [1, 5])
@pytest.mark.parametrize(
    ("tiles", "axis", "form"),
    [
        (2, 1, "described T1"),
        ([2], [1], "described T1"),
        (np.int64(2), np.array([1]), "described T1"),
        (2.0, -1.0, "declared T"),
        (np.array(2, np.float16), np.array([1], np.float16), "declared T"),
    ],
)
def test_tile_1_says_which_reading_it_follows(opset: int, tiles: Any, axis: Any, form: str) -> None:
    node = OnnxNode.of("Tile", {"input": OnnxTensor("float16", (3, 4)), "tiles": tiles, "axis": axis}, opset=opset)
    assert node.output.shape == (3, 8)
    assert node.explain()["form"] == form
    assert OnnxNode.from_json(json.loads(node.to_json_text())) == node


def test_tile_1_forms_are_different_nodes() -> None:
    x = OnnxTensor("float", (3,))
    described = OnnxNode.of("Tile", {"input": x, "tiles": 2, "axis": 0}, opset=1)
    declared = OnnxNode.of("Tile", {"input": x, "tiles": 2.0, "axis": 0.0}, opset=1)
    assert described != declared
    assert described.output == declared.output


X = OnnxTensor("float", (2, 3))
X13 = OnnxTensor("bfloat16", (2, 3))
BAD: list[tuple[str, int, dict[str, Any], dict[str, str]]] = [
    ("fractional tiles", 1, {"input": X, "tiles": 2.5, "axis": 0.0}, {"$.inputs.tiles": "count-not-whole"}),
    ("NaN tiles", 1, {"input": X, "tiles": math.nan, "axis": 0.0}, {"$.inputs.tiles": "count-not-whole"}),
    ("infinite axis", 1, {"input": X, "tiles": 1.0, "axis": math.inf}, {"$.inputs.axis": "count-not-whole"}),
    ("two forms", 1, {"input": X, "tiles": 2, "axis": 0.0}, {"$.inputs.axis": "forms-differ"}),
    ("negative tiles", 1, {"input": X, "tiles": -1, "axis": 0}, {"$.inputs.tiles": "repeat-negative"}),
    ("axis 2 of rank 2", 1, {"input": X, "tiles": 1, "axis": 2}, {"$.inputs.axis": "axis-out-of-range"}),
    ("axis -3 of rank 2", 1, {"input": X, "tiles": 1, "axis": -3}, {"$.inputs.axis": "axis-out-of-range"}),
    ("rank 0", 1, {"input": OnnxTensor("float", ()), "tiles": 1, "axis": 0}, {"$.inputs.axis": "axis-out-of-range"}),
    ("two tiles", 1, {"input": X, "tiles": [2, 2], "axis": 0}, {"$.inputs.tiles": "array-length"}),
    ("another float type", 1, {"input": X, "tiles": np.array(2.0), "axis": 0}, {"$.inputs.tiles": "input-type"}),
    ("int32 numbers", 1, {"input": X, "tiles": np.array(2, np.int32), "axis": 0}, {"$.inputs.tiles": "input-type"}),
    ("no axis", 1, {"input": X, "tiles": 2}, {"$.inputs.axis": "input-missing"}),
    ("int8 in Tile-1", 1, {"input": OnnxTensor("int8", (2,)), "tiles": 2, "axis": 0},
     {"$.inputs.input.data_type": "data-type-unsupported"}),
    ("bfloat16 in Tile-6", 6, {"input": X13, "repeats": [1, 1]}, {"$.inputs.input.data_type": "data-type-unsupported"}),
    ("too few repeats", 13, {"input": X, "repeats": [2]}, {"$.inputs.repeats": "array-length"}),
    ("too many repeats", 13, {"input": X, "repeats": [2, 1, 1]}, {"$.inputs.repeats": "array-length"}),
    ("negative repeat", 13, {"input": X, "repeats": [-1, 1]}, {"$.inputs.repeats[0]": "repeat-negative"}),
    ("two mistakes", 13, {"input": X, "repeats": [-1, 1, -2]},
     {"$.inputs.repeats": "array-length", "$.inputs.repeats[0]": "repeat-negative",
      "$.inputs.repeats[2]": "repeat-negative"}),
    ("fractional repeat", 13, {"input": X, "repeats": [1, 1.5]}, {"$.inputs.repeats[1]": "not-a-number"}),
    ("float repeats", 13, {"input": X, "repeats": np.ones(2)}, {"$.inputs.repeats": "input-type"}),
    ("boolean repeat", 13, {"input": X, "repeats": [True, 1]}, {"$.inputs.repeats[0]": "not-a-number"}),
    ("repeat beyond int64", 13, {"input": X, "repeats": [1 << 63, 1]}, {"$.inputs.repeats[0]": "outside-int64"}),
    ("a matrix of repeats", 13, {"input": X, "repeats": np.ones((1, 2), np.int64)},
     {"$.inputs.repeats": "input-shape"}),
    ("a lone repeat", 13, {"input": X, "repeats": 2}, {"$.inputs.repeats": "not-an-array"}),
    ("no repeats", 13, {"input": X}, {"$.inputs.repeats": "input-missing"}),
    ("no input", 13, {"repeats": [1, 1]}, {"$.inputs.input": "input-missing"}),
    ("an input of another version", 13, {"input": X, "repeats": [1, 1], "tiles": 2},
     {"$.inputs.tiles": "input-unknown"}),
    ("an output beyond int64", 13, {"input": X, "repeats": [1 << 40, 1 << 40]},
     {"$.inputs.repeats": "output-too-large"}),
    ("beyond int64, though empty", 13, {"input": OnnxTensor("int8", (0, 2)), "repeats": [1, 1 << 62]},
     {"$.inputs.repeats": "output-too-large"}),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "inputs", "expected"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_refused(opset: int, inputs: dict[str, Any], expected: dict[str, str]) -> None:
    assert broken(inputs, opset=opset) == expected


def test_tile_has_no_attributes() -> None:
    assert broken({"input": X, "repeats": [1, 1]}, opset=13, repeats=[1, 1]) == {
        "$.attributes.repeats": "attribute-unknown"
    }


def test_a_refused_type_names_the_versions_that_take_it() -> None:
    with pytest.raises(InvalidDescriptor, match=r"Tile-6 does not take tensor\(bfloat16\); Tile-13 does"):
        OnnxNode.of("Tile", {"input": X13, "repeats": [1, 1]}, opset=12)


def test_a_list_of_boxes_covers_bfloat16(run: Any) -> None:
    x = np.array([1, np.nan, -0.0], ml_dtypes.bfloat16)
    node = OnnxNode.of("Tile", {"input": x, "repeats": [3]}, opset=13)
    parts = [run(node, x, ((start, stop),)).tobytes() for start, stop in itertools.pairwise([0, 1, 5, 9])]
    assert b"".join(parts) == onnx_oracle.tile(x, (3,)).tobytes()
