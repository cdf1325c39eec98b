"""Operators of ONNX Runtime: versions that only brought bfloat16, which it does not have; windows in the padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.live_server import default_server
from tests.support.onnx_nodes import runtime

from tensorpost import Client
from tensorpost.onnx.package import ONLY_BFLOAT16
from tensorpost.values.problems import NoBackend

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
X = np.random.default_rng(0).random((1, 1, 4, 4)).astype(np.float32)
BOXES, BATCHES = np.array([[0, 0, 3, 3]], np.float32), np.array([0])


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


def test_their_versions_differ_by_types_only() -> None:
    defs: Any = pytest.importorskip("onnx.defs")

    def signature(op_type: str, opset: int) -> Any:
        schema = defs.get_schema(op_type, opset, "")
        attributes = [(name, entry.type, str(entry.default_value)) for name, entry in sorted(schema.attributes.items())]
        inputs, outputs = ([(entry.name, entry.option) for entry in each] for each in (schema.inputs, schema.outputs))
        return inputs, outputs, attributes

    for op_type in ONLY_BFLOAT16:
        assert defs.get_schema(op_type, 22, "").since_version == 22
        assert signature(op_type, 22) == signature(op_type, 21)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("RoiAlign", [X, BOXES, BATCHES], {"output_height": 2, "output_width": 2}),
        ("MaxRoiPool", [X, np.array([[0, 0, 0, 3, 3]], np.float32)], {"pooled_shape": [2, 2]}),
        ("GlobalLpPool", [X], {"p": 3}),
    ],
)
@pytest.mark.parametrize("opset", [21, 22, 25])
def test_they_are_computed(tp: Client, op_type: str, inputs: list[Any], attributes: Any, opset: int) -> None:
    (wanted,) = runtime(op_type, 21, inputs, 1, **attributes)
    np.testing.assert_array_equal(tp.onnx(op_type, *inputs, opset=opset, **attributes), wanted)


def test_drawn_numbers(tp: Client) -> None:
    assert tp.onnx("RandomUniformLike", X, opset=22, low=2.0, high=3.0).min() >= 2
    assert {*tp.onnx("Bernoulli", X, opset=22).reshape(-1).tolist()} <= {0, 1}


def test_beside_others_in_a_model(tp: Client) -> None:
    helper: Any = pytest.importorskip("onnx.helper")
    nodes = [
        helper.make_node("InstanceNormalization", ["x", "one", "zero"], ["n"]),
        helper.make_node("GlobalLpPool", ["n"], ["p"]),
        helper.make_node("Det", ["p"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", 1, X.shape)]
    constants = [helper.make_tensor("one", 1, [1], [1.0]), helper.make_tensor("zero", 1, [1], [0.0])]
    graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", 1, None)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    normal = (X - X.mean()) / np.sqrt(X.var() + 1e-5)
    found = tp.run_model(model, {"x": X})["y"]
    np.testing.assert_allclose(found.reshape(-1), [np.sqrt((normal**2).sum())], rtol=1e-5)


@pytest.mark.parametrize("opset", [11, 12, 19, 22])
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
def test_no_window_begins_in_the_padding_after_the_data(tp: Client, op_type: str, opset: int) -> None:
    """What MaxPool-22 says, ONNX Runtime does in all versions; onnx 1.16's case, and one with padding."""
    square = np.array([[[[1, 2], [3, 4]]]], np.float32)
    corner = tp.onnx(op_type, square, opset=opset, kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)
    assert corner.tolist() == [[[[1]]]]
    settings = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    (wanted,) = runtime(op_type, opset, [X], 1, **settings)
    found = tp.onnx(op_type, X, opset=opset, **settings)
    assert found.shape == (1, 1, 2, 2)
    np.testing.assert_array_equal(found, wanted)


def test_the_last_window_counts_where_it_has_data(tp: Client) -> None:
    found = tp.onnx("MaxPool", X, opset=12, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    assert found.shape == (1, 1, 2, 2)
    assert found[0, 0, 1, 1] == X[0, 0, 2:, 2:].max()


def test_positions_of_largest_elements_have_their_shape(tp: Client) -> None:
    values, places = tp.onnx("MaxPool", X, opset=12, kernel_shape=[1, 1], strides=[5, 5], ceil_mode=1, outputs=2)
    assert (values.tolist(), places.tolist()) == ([[[[X[0, 0, 0, 0]]]]], [[[[0]]]])


def test_bfloat16_is_refused_by_name(tp: Client) -> None:
    x = X.astype(ml_dtypes.bfloat16)
    with pytest.raises(NoBackend, match="ONNX Runtime computes GlobalLpPool-22, and takes no arrays of bfloat16"):
        tp.onnx("GlobalLpPool", x, opset=22)
