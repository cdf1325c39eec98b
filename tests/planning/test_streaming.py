"""Which steps are computed in boxes with their reader; drawn graphs are in tests/conformance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.test_graphs import outputs_of
from tests.planning.test_fusion import HALF, onnx
from tests.support.graph_cases import layouts_of

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.graph import Graph
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan, make_plan

SLICE = 4096
X = np.arange(2 * 64 * 48, dtype=np.float32).reshape(2, 64, 48)


def graph_of(nodes: list[dict[str, Any]], *outputs: str, x: NDArray[Any] = X) -> Graph:
    used = {
        name for node in nodes for name in ([node["inputs"]] if isinstance(node["inputs"], str) else node["inputs"])
    }
    constants = HALF if "half" in used else {}
    named = {name: name for name in outputs or (nodes[-1]["name"],)}
    return read_graph(
        {"inputs": {"x": {}}, "constants": constants, "nodes": nodes, "outputs": named}, layouts_of({"x": x})
    )


def streamed(plan: Plan) -> list[str]:
    return [plan.steps[number].name for number in sorted(plan.streamed)]


def test_an_element_wise_step_is_computed_with_the_boxes_that_it_reads():
    nodes = [
        {"name": "big", "type": "RESAMPLE2", "inputs": "x", "desc": {
            "InterpolationMode": "LINEAR", "RoundingDirection": "INCREASING", "Scales": [1, 2, 2]}},
        onnx("wide", "Cast", ["big"], to="float64"),
    ]  # fmt: skip
    graph = graph_of(nodes)

    plan = make_plan(graph, SLICE)

    assert (streamed(plan), plan.stages, plan.held_bytes) == (["big"], (), 0)
    assert 0 < plan.scratch_bytes <= SLICE
    # Linear by two: corners stay, and a middle is a quarter of the way from its neighbours.
    (made,) = outputs_of(NumpyBackend(), graph, [X.tobytes()], SLICE)
    found = np.frombuffer(made, np.float64).reshape(2, 128, 96)
    assert found[0, 0, 0] == X[0, 0, 0]
    assert found[1, 127, 95] == X[1, 63, 47]
    assert found[0, 0, 1] == 0.75 * X[0, 0, 0] + 0.25 * X[0, 0, 1]


def test_copies_are_computed_with_the_boxes_that_they_read():
    nodes = [onnx("f", "Sqrt", ["x"]), onnx("t", "Transpose", ["f"], perm=[2, 0, 1]), onnx("d", "Cast", ["t"], to=11)]
    graph = graph_of(nodes)

    plan = make_plan(graph, SLICE)

    assert (streamed(plan), plan.held_bytes) == (["f", "d"], 0)  # the conversion comes before the copies
    (made,) = outputs_of(NumpyBackend(), graph, [X.tobytes()], SLICE)
    assert made == np.sqrt(X).transpose(2, 0, 1).astype(np.float64).tobytes()


def test_joined_results_are_computed_as_they_are_sent():
    nodes = [
        onnx("a", "Sqrt", ["x"]), onnx("b", "Exp", ["half"]), onnx("c", "Tile", {"input": "b", "repeats": [2, 64, 48]}),
        onnx("both", "Concat", ["a", "c"], axis=1),
    ]  # fmt: skip
    constants = {"half": {"dtype": "F32", "shape": [1, 1, 1], "data": [0.5]}}
    document = {"inputs": {"x": {}}, "constants": constants, "nodes": nodes, "outputs": {"both": "both"}}
    graph = read_graph(document, layouts_of({"x": X}))

    plan = make_plan(graph, SLICE)

    assert streamed(plan) == ["a", "c"]
    (made,) = outputs_of(NumpyBackend(), graph, [X.tobytes()], SLICE)
    joined = np.concatenate([np.sqrt(X), np.full_like(X, np.exp(np.float32(0.5)))], axis=1)
    assert made == joined.tobytes()


@pytest.mark.parametrize(
    ("why", "nodes", "outputs"),
    [
        ("two read it", [onnx("f", "Sqrt", ["x"]), onnx("y", "Concat", ["f", "f"], axis=0)], ["y"]),
        ("it is sent", [onnx("f", "Sqrt", ["x"]), onnx("y", "Transpose", ["f"], perm=[2, 1, 0])], ["f", "y"]),
        ("its sums depend on the box", [
            onnx("f", "ReduceSum", {"data": "x", "axes": [0]}, keepdims=1),
            onnx("y", "Cast", ["f"], to="float64"),
        ], ["y"]),
        ("its reader repeats it", [
            onnx("f", "Sqrt", ["x"]), onnx("y", "Tile", {"input": "f", "repeats": [1, 3, 1]}),
        ], ["y"]),
    ],
)  # fmt: skip
def test_others_are_computed_in_full(why: str, nodes: list[dict[str, Any]], outputs: list[str]):
    plan = make_plan(graph_of(nodes, *outputs), SLICE)

    assert not plan.streamed, why


def test_what_fits_into_a_slice_is_computed_in_full():
    nodes = [onnx("f", "Sqrt", ["x"]), onnx("y", "Transpose", ["f"], perm=[2, 1, 0])]

    assert not make_plan(graph_of(nodes), X.nbytes).streamed
    assert make_plan(graph_of(nodes), X.nbytes - 1).streamed


def test_a_small_volume_becomes_a_huge_one_in_little_memory():
    x = np.zeros((1, 64, 64, 64), np.float32)
    nodes = [
        {"name": "r", "type": "RESAMPLE2", "inputs": "x", "desc": {
            "InterpolationMode": "LINEAR", "RoundingDirection": "INCREASING", "Scales": [1, 20, 20, 20]}},
        onnx("m", "Mul", ["r", "half"]), onnx("h", "Cast", ["m"], to="float16"),
    ]  # fmt: skip

    plan = make_plan(graph_of(nodes, x=x), 2 << 20)

    assert (plan.output_bytes, plan.held_bytes) == (2 * (64 * 20) ** 3, 0)
    assert plan.scratch_bytes < 8 << 20
