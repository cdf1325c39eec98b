"""`POST /v1/graphs`: several nodes in one request, in every form of a body, within the limits."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.graph_cases import BREAKS, drawn_graph, layouts_of
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    assert_problem,
    http_app,
    npy_array,
    npy_bytes,
    split_frame,
)

from tensorpost.bodies.frame import encode_head
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost_server.planning import make_plan

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
GRAPH: dict[str, Any] = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", 3]}},
    "constants": {"two": {"dtype": "F32", "shape": [], "data": [2]}},
    "nodes": [
        {"name": "y", "type": "TILE", "inputs": {"InputTensor": "z"}, "desc": {"Repeats": [1, 2]}},
        {"name": "z", "op_type": "Mul", "opset": 14, "inputs": ["x", "two"]},
    ],
    "outputs": {"tiled": "y"},
}
TILED = np.tile(X * 2, (1, 2))


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(max_graph_nodes=40) as client:
        yield client


def frame_of(document: Any, arrays: Mapping[str, NDArray[Any]], **metadata: str) -> bytes:
    entries = [(name, data_type(array.dtype), array.shape) for name, array in arrays.items()]
    head = encode_head(entries, {"graph": json.dumps(document), **metadata})
    return head + b"".join(array.tobytes() for array in arrays.values())


def changed(**members: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GRAPH), **members}


def in_query(document: Any) -> str:
    return f"/v1/graphs?graph={quote(json.dumps(document))}"


def test_a_frame_has_the_graph_in_its_metadata(app: AppClient):
    answer = app.post("/v1/graphs", frame_of(GRAPH, {"x": X}, id="7"), FRAME)

    head, tensors = split_frame(answer.content)
    assert answer.status_code == 200
    assert (head["tiled"]["shape"], tensors["tiled"]) == ([2, 6], TILED.tobytes())
    assert head["__metadata__"]["id"] == "7"
    assert answer.headers["tensorpost-backend"] == head["__metadata__"]["backend"]


def test_json_has_it_beside_the_tensors(app: AppClient):
    body = {"graph": GRAPH, "tensors": {"x": {"dtype": "F32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}}}

    answer = app.post("/v1/graphs", json.dumps(body), JSON)

    assert answer.json()["tensors"]["tiled"] == {"dtype": "F32", "shape": [2, 6], "data": TILED.reshape(-1).tolist()}


def test_other_bodies_have_it_in_the_query(app: AppClient):
    npy = app.post(in_query(GRAPH), npy_bytes(X), NPY)
    raw = app.post(
        in_query(GRAPH),
        X.tobytes(),
        {"content-type": "application/octet-stream", "tensorpost-shape": "2,3", "tensorpost-dtype": "float32"},
    )
    archive = io.BytesIO()
    np.savez(archive, x=X)
    npz = app.post(in_query(GRAPH), archive.getvalue(), {"content-type": "application/x-npz"})

    np.testing.assert_array_equal(npy_array(npy.content), TILED)
    assert npz.status_code == 200, npz.text
    np.testing.assert_array_equal(np.load(io.BytesIO(npz.content))["tiled"], TILED)
    assert raw.content == TILED.tobytes()


def test_several_outputs_come_back_by_their_names(app: AppClient):
    nodes = [*GRAPH["nodes"], {"name": "parts", "op_type": "Split", "opset": 18, "inputs": "y", "outputs": 2,
                               "attributes": {"axis": 1, "num_outputs": 2}}]  # fmt: skip
    document = changed(nodes=nodes, outputs={"b": "parts.outputs_1", "z": "z", "a": "parts.outputs_0"})

    answer = app.post("/v1/graphs", frame_of(document, {"x": X}), FRAME)

    _, tensors = split_frame(answer.content)
    assert list(tensors) == ["b", "z", "a"]
    assert tensors == {name: (X * 2).tobytes() for name in ("a", "b", "z")}


def test_a_graph_of_one_node_is_that_operator(app: AppClient):
    document = changed(nodes=[{"name": "y", "type": "TILE", "inputs": "x", "desc": {"Repeats": [2, 1]}}], constants={})

    answer = app.post(in_query(document), npy_bytes(X), NPY)

    np.testing.assert_array_equal(npy_array(answer.content), np.tile(X, (2, 1)))


def test_the_same_graph_again_has_other_numbers(app: AppClient):
    for factor in (1, 10, 100):
        answer = app.post("/v1/graphs", frame_of(GRAPH, {"x": X * factor}), FRAME)

        assert split_frame(answer.content)[1]["tiled"] == (TILED * factor).tobytes()


@pytest.mark.parametrize(("reads", "sends"), [("x", "a"), ("a", "a"), ("x", "b"), ("a", "b")])
def test_graphs_that_differ_in_their_edges_only_are_different(app: AppClient, reads: str, sends: str):
    nodes = [{"name": "a", "op_type": "Neg", "inputs": "x"}, {"name": "b", "op_type": "Exp", "inputs": reads}]
    other = "b" if sends == "a" else "a"
    document = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"first": sends, "second": other}}

    _, tensors = split_frame(app.post("/v1/graphs", frame_of(document, {"x": X}), FRAME).content)

    found = {name: np.frombuffer(tensors[place], np.float32) for name, place in ((sends, "first"), (other, "second"))}
    np.testing.assert_array_equal(found["a"], -X.reshape(-1))
    np.testing.assert_allclose(found["b"], np.exp(X if reads == "x" else -X).reshape(-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"outputs": {"y": "why"}}, "$.graph.outputs.y", "no input, constant or node 'why'"),
        (
            {"inputs": {"x": {"sizes": ["n", 4]}}},
            "$.graph.inputs.x.sizes[1]",
            "size 4 in the graph, and 3 as it was sent",
        ),
        ({"nodes": []}, "$.graph.nodes", "at least one node"),
        ({"nodes": [{"name": f"n{at}"} for at in range(41)]}, "$.graph.nodes", "at most 40 are computed"),
    ],
)
@pytest.mark.parametrize("form", ["frame", "json", "query"])
def test_what_is_wrong_is_named_with_its_node(app: AppClient, form: str, change: Any, place: str, words: str):
    document = changed(**change)
    tensors = {"x": {"dtype": "F32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}}
    answer = {
        "frame": lambda: app.post("/v1/graphs", frame_of(document, {"x": X}), FRAME),
        "json": lambda: app.post("/v1/graphs", json.dumps({"graph": document, "tensors": tensors}), JSON),
        "query": lambda: app.post(in_query(document), npy_bytes(X), NPY),
    }[form]()

    assert_problem(answer, 422, "invalid-descriptor")
    found = {each["path"]: each["message"] for each in answer.json()["violations"]}
    assert words in found[place]


def test_a_graph_that_is_missing_or_sent_twice_is_refused(app: AppClient):
    assert "the graph is missing" in app.post("/v1/graphs", npy_bytes(X), NPY).json()["detail"]
    assert "the graph is missing" in app.post("/v1/graphs", json.dumps({"tensors": {}}), JSON).json()["detail"]
    assert "send it once" in app.post(in_query(GRAPH), frame_of(GRAPH, {"x": X}), FRAME).json()["detail"]
    assert "$.graph" in app.post("/v1/graphs?graph=%7B", npy_bytes(X), NPY).json()["detail"]
    assert app.post("/v1/graphs?opset=3", frame_of(GRAPH, {"x": X}), FRAME).status_code == 400
    assert app.request("DELETE", "/v1/graphs").status_code == 405


def test_an_index_that_a_node_computes_is_held_against_its_axis(app: AppClient):
    nodes = [
        {"name": "far", "op_type": "Cast", "inputs": "x", "attributes": {"to": "int64"}},
        {"name": "y", "op_type": "Gather", "inputs": ["x", "far"]},
    ]
    document = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "y"}}

    answer = app.post("/v1/graphs", frame_of(document, {"x": X}), FRAME)

    assert_problem(answer, 422, "invalid-descriptor")
    assert "node 'y': indices[0, 1] is 2, but axis 0 of data has 2 elements" in answer.json()["detail"]


def test_intermediate_results_are_held_against_the_budget_before_the_body_is_read():
    nodes = [
        {"name": "large", "type": "TILE", "inputs": "x", "desc": {"Repeats": [1, 1 << 22]}},
        {"name": "small", "op_type": "ReduceSum", "inputs": {"data": "large", "axes": [1]}},
    ]
    document = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "small"}}
    head = encode_head([("x", data_type("float32"), (1, 4))], {"graph": json.dumps(document)})
    with http_app(memory_bytes=64 << 20) as app:
        answer = app.post("/v1/graphs", head, {**FRAME, "content-length": str(len(head) + 16)})

        assert answer.status_code == 413, answer.text
        assert "TENSORPOST_MEMORY_BYTES" in answer.text
        assert app.in_use()["bytes_in_flight"] == 0


def test_validation_has_the_tensors_of_each_node(app: AppClient):
    document = changed(inputs={"x": {"data_type": "FLOAT32", "sizes": [2, 3]}})

    found = app.post("/v1/validate", json.dumps(document), JSON).json()

    assert found["valid"]
    assert [(name, *[each["shape"] for each in made]) for name, made in found["nodes"].items()] == [
        ("z", [2, 3]), ("y", [2, 6]),
    ]  # fmt: skip
    assert (found["input_bytes"], found["output_bytes"], found["lowest_feature_level"]) == (24, 48, "3_1")
    assert found["cost"]["memory_bytes"] >= 24 + 24 + 48
    refused = app.post("/v1/validate", json.dumps(GRAPH), JSON).json()
    assert not refused["valid"]
    assert refused["violations"][0]["path"] == "$.inputs.x"


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_graph_is_a_refusal_and_nothing_stays(app: AppClient, name: str):
    for seed in range(5):
        chance = random.Random(f"{name} {seed}")
        case = drawn_graph(chance, 6)
        document = copy.deepcopy(case.document)
        BREAKS[name](document, chance)

        answer = app.post("/v1/graphs", frame_of(document, case.inputs), FRAME)

        assert answer.status_code == 422, answer.text
    assert app.in_use()["bytes_in_flight"] == 0


def test_many_small_steps_are_not_computed_on_the_event_loop(app: AppClient):
    def graph(count: int) -> Graph:
        nodes = [
            {"name": f"n{at}", "op_type": "CumSum", "inputs": {"x": f"n{at - 1}" if at else "x", "axis": [0]}}
            for at in range(count)
        ]
        return read_graph(
            {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": f"n{count - 1}"}}, layouts_of({"x": X})
        )

    worker = app.service.workers().choose(make_plan(graph(1), 1 << 20))

    assert worker.is_small(make_plan(graph(4), 1 << 20))
    assert not worker.is_small(make_plan(graph(5), 1 << 20))


def test_metrics_call_it_a_graph(app: AppClient):
    app.post("/v1/graphs", frame_of(GRAPH, {"x": X}), FRAME)

    assert 'operator="graph"' in app.get("/metrics").text
