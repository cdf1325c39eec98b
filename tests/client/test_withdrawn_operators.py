"""Models of operators that ONNX has withdrawn, and of Scan-8: the formulas of their texts, by NumPy or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.live_server import default_server

from onnx import TensorProto, helper
from tensorpost import Client
from tensorpost.problems import InvalidDescriptor, UnknownOperator


def floats(values: Any) -> NDArray[Any]:
    return np.array(values, np.float32)


X = np.random.default_rng(5).uniform(-2, 2, (2, 4, 5, 6)).astype(np.float32)
ROWS = X.reshape(2, 4, -1)
EPSILON = 1e-9  # MeanVarianceNormalization-9's


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


def model(op_type: str, opset: int, inputs: list[NDArray[Any]], **attributes: Any) -> Any:
    """A model of one node, which the package need not know."""
    names = [f"x{place}" for place in range(len(inputs))]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    graph = helper.make_graph([node], "graph", given, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def computed(tp: Client, op_type: str, opset: int, inputs: list[NDArray[Any]], **attributes: Any) -> NDArray[Any]:
    made = model(op_type, opset, inputs, **attributes)
    return tp.run_model(made, {f"x{place}": each for place, each in enumerate(inputs)})["y"]


def normalized(x: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return centred / (np.sqrt(np.square(centred).mean(axes, keepdims=True)) + EPSILON)


GROUPS = X.astype(np.float64).reshape(2, 2, 2, 5, 6)
"""Two groups of two channels."""
GROUPED = (GROUPS - GROUPS.mean((2, 3, 4), keepdims=True)) / np.sqrt(GROUPS.var((2, 3, 4), keepdims=True) + 1e-2)
SCALE, BIAS = floats([2, -1]), floats([0.5, 3])
SQUARES = np.ascontiguousarray(X[..., :5])
WEIGHTS, B = SQUARES[0, :3], floats([1, 2, 3])
CASES: list[tuple[str, int, list[Any], dict[str, Any], NDArray[Any]]] = [
    ("Affine", 1, [X], {"alpha": 3.0, "beta": -1.0}, 3 * X - 1),
    ("Affine", 8, [X], {}, X),
    ("Crop", 7, [X], {"border": [1, 2, 3, 0]}, X[:, :, 2:, 1:3]),
    ("Crop", 7, [X], {"border": [1, 2, 0, 0], "scale": [2, 4]}, X[:, :, 2:4, 1:5]),
    ("DynamicSlice", 9, [X, np.array([1, -2]), np.array([9, -1]), np.array([1, 3])], {}, X[:, 1:, :, 4:5]),
    ("DynamicSlice", 9, [X, np.array([1]), np.array([2])], {}, X[1:2]),
    ("FC", 1, [ROWS[:, 0], ROWS[0, :3], B], {}, ROWS[:, 0] @ ROWS[0, :3].T + B),
    ("FC", 1, [SQUARES, WEIGHTS, B], {"axis": 2}, SQUARES.reshape(8, 25) @ WEIGHTS.reshape(3, 25).T + B),
    ("GroupNormalization", 18, [X, SCALE, BIAS], {"num_groups": 2, "epsilon": 1e-2},
     (GROUPED * SCALE.reshape(2, 1, 1, 1) + BIAS.reshape(2, 1, 1, 1)).reshape(X.shape)),
    ("ImageScaler", 1, [X], {"scale": 2.0, "bias": [1.0, 2.0, 3.0, 4.0]}, 2 * X + np.reshape([1, 2, 3, 4], (4, 1, 1))),
    ("ImageScaler", 1, [X], {"scale": 0.5}, X / 2),
    ("MeanVarianceNormalization", 1, [X], {}, normalized(X, (0, 2, 3))),
    ("MeanVarianceNormalization", 8, [X], {"across_channels": 1}, normalized(X, (0, 1, 2, 3))),
    ("MeanVarianceNormalization", 8, [X], {"axes": [2, 3]}, normalized(X, (2, 3))),
    ("MeanVarianceNormalization", 7, [X], {"normalize_variance": 0}, X - X.mean((0, 2, 3), keepdims=True)),
    ("ParametricSoftplus", 1, [X], {"alpha": 2.0, "beta": 3.0}, 2 * np.log(np.exp(3 * X.astype(float)) + 1)),
    ("Scale", 1, [X], {"scale": 2.5}, 2.5 * X),
    ("ScaledTanh", 1, [X], {"alpha": 2.0, "beta": 3.0}, 2 * np.tanh(3 * X.astype(float))),
    ("ThresholdedRelu", 6, [X], {"alpha": 0.25}, np.where(X > 0.25, X, 0)),
    ("ThresholdedRelu", 9, [X], {}, np.where(X > 1, X, 0)),
    ("Upsample", 1, [X], {"height_scale": 2.0, "width_scale": 3.0}, X.repeat(2, 2).repeat(3, 3)),
    ("Upsample", 6, [floats([[[[0, 4]]]])], {"height_scale": 1.0, "width_scale": 2.0, "mode": "bilinear"},
     floats([[[[0, 2, 4, 4]]]])),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "opset", "inputs", "attributes", "wanted"), CASES)
def test_a_withdrawn_operator(
    tp: Client, op_type: str, opset: int, inputs: list[Any], attributes: dict[str, Any], wanted: NDArray[Any]
) -> None:
    found = computed(tp, op_type, opset, inputs, **attributes)
    assert (found.dtype, found.shape) == (np.float32, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_numbers_have_the_type_of_the_input(tp: Client, kind: type[Any]) -> None:
    x = X.astype(kind)
    found = computed(tp, "Affine", 5, [x], alpha=3.0, beta=-1.0)
    assert found.dtype == kind
    np.testing.assert_allclose(found, 3 * x.astype(float) - 1, rtol=1e-3 if kind is np.float16 else 1e-12, atol=1e-2)


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs", "attributes", "words"),
    [
        ("Crop", 1, [X], {"border": [1, 2]}, "left, top, right, bottom"),
        ("Crop", 1, [X], {"border": [0, 3, 0, 0], "scale": [3, 6]}, "do not lie in"),
        ("Crop", 1, [X], {"border": [3, 0, 3, 0]}, "do not lie in"),
        ("Crop", 1, [ROWS], {"border": [0, 0, 0, 0]}, "N, C, H, W"),
        ("FC", 1, [ROWS[0]], {}, "X, W and B"),
        ("GroupNormalization", 18, [X, SCALE, BIAS], {"num_groups": 3}, "a divisor of the channels"),
        ("ImageScaler", 1, [X], {"bias": [1.0]}, "one for each channel"),
        ("Upsample", 1, [X], {"height_scale": 2.0}, "two numbers of at least 1"),
        ("Affine", 10, [X], {}, "no ONNX operator 'Affine'"),
    ],
)
def test_what_breaks_its_text_is_refused(
    tp: Client, op_type: str, opset: int, inputs: list[Any], attributes: dict[str, Any], words: str
) -> None:
    with pytest.raises((InvalidDescriptor, UnknownOperator)) as caught:
        computed(tp, op_type, opset, inputs, **attributes)
    assert words in f"{caught.value} {getattr(caught.value, 'violations', '')}"


def scan_8(inputs: list[NDArray[Any]], **attributes: Any) -> Any:
    """A running sum: state + next, which is also the scanned result."""
    kind = TensorProto.FLOAT
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "next"], ["sum"]), helper.make_node("Identity", ["sum"], ["row"])],
        "body",
        [value("state", kind, [1]), value("next", kind, [1])],
        [value("sum", kind, [1]), value("row", kind, [1])],
    )  # fmt: skip
    names = ["lengths", "start", "x"] if len(inputs) == 3 else ["", "start", "x"]
    node = helper.make_node("Scan", names, ["end", "rows"], body=body, num_scan_inputs=1, **attributes)
    given = [
        value(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(filter(None, names), inputs, strict=True)
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("end", "rows")]
    graph = helper.make_graph([node], "graph", given, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)


START, STEPS = floats([[10], [20]]), floats([[[1], [2], [3]], [[4], [5], [6]]])


def test_scan_8_has_batches(tp: Client) -> None:
    found = tp.run_model(scan_8([START, STEPS]), {"start": START, "x": STEPS})
    assert found["end"].tolist() == [[16], [35]]
    assert found["rows"].tolist() == [[[11], [13], [16]], [[24], [29], [35]]]


def test_scan_8_from_the_end(tp: Client) -> None:
    found = tp.run_model(scan_8([START, STEPS], directions=[1]), {"start": START, "x": STEPS})
    assert found["rows"].tolist() == [[[13], [15], [16]], [[26], [31], [35]]]


def test_scan_8_of_shorter_sequences(tp: Client) -> None:
    lengths = np.array([3, 2])
    found = tp.run_model(scan_8([lengths, START, STEPS]), {"lengths": lengths, "start": START, "x": STEPS})
    assert found["end"].tolist() == [[16], [29]]
    assert found["rows"][0].tolist() == [[11], [13], [16]]
    assert found["rows"][1, :2].tolist() == [[24], [29]]


def test_scan_8_of_other_batches_is_refused(tp: Client) -> None:
    with pytest.raises(InvalidDescriptor, match="the batch as their first axis"):
        tp.run_model(scan_8([START[:1], STEPS]), {"start": START[:1], "x": STEPS})
