"""What a graph takes and may take: constants, memory as validation tells it, what lies between nodes if it is sent."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import (
    FRAME,
    JSON,
    PATIENCE,
    assert_problem,
    eventually,
    http_app,
    request_bytes,
    serving,
    split_frame,
    use_backend,
)
from tests.support.watched_steps import WatchedBackend, chain, tensor_in_json

from tensorpost.bodies.frame import encode_head
from tensorpost.values.datatypes import data_type

DECLARED = {"x": {"data_type": "FLOAT32", "sizes": [2, 1]}}


def with_constants(**sizes: int) -> dict[str, Any]:
    """A graph with constants of so many float32 each."""
    constants = {name: {"dtype": "F32", "shape": [size], "data": [0.5] * size} for name, size in sizes.items()}
    return {**chain("sum"), "constants": constants}


@pytest.mark.parametrize(("sizes", "status"), [((6, 4), 200), ((6, 5), 413), ((11,), 413)])
def test_the_bytes_of_constants_have_a_limit(sizes: tuple[int, ...], status: int):
    graph = with_constants(**{f"c{at}": size for at, size in enumerate(sizes)})
    body = json.dumps({"graph": graph, "tensors": {"x": tensor_in_json(1)}})
    declared = json.dumps({**graph, "inputs": {"x": {"data_type": "FLOAT32", "sizes": [1]}}})
    with http_app(max_graph_constant_bytes=40) as app:
        ran, validated = app.post("/v1/graphs", body, JSON), app.post("/v1/validate", declared, JSON)
        shown = {limit["name"]: limit["value"] for limit in app.get("/v1/limits").json()["limits"]}
        idle = app.in_use()["bytes_in_flight"]

    assert (ran.status_code, validated.status_code, idle) == (status, status, 0), ran.text
    assert shown["max_graph_constant_bytes"] == 40
    if status == 413:
        for answer in (ran, validated):
            problem = assert_problem(answer, 413, "limit-exceeded")
            assert problem["actual"] == 4 * sum(sizes)
            assert "TENSORPOST_MAX_GRAPH_CONSTANT_BYTES" in problem["detail"]


def test_validation_tells_the_memory_that_the_call_reserves():
    nodes = [
        {"name": "wide", "op_type": "Tile", "inputs": {"input": "x", "repeats": [1, 1024]}},
        {"name": "sums", "op_type": "CumSum", "inputs": {"x": "wide", "axis": [1]}},
        {"name": "more", "op_type": "CumSum", "inputs": {"x": "sums", "axis": [1]}},
        {"name": "scaled", "op_type": "ReduceSum", "inputs": {"data": "more", "axes": [1]}},
        {"name": "y", "op_type": "Mul", "inputs": ["scaled", "half"]},
    ]
    constants = {"half": {"dtype": "F32", "shape": [], "data": [0.5]}}
    graph = {"inputs": DECLARED, "constants": constants, "nodes": nodes, "outputs": {"y": "y"}}
    head = encode_head([("x", data_type("float32"), (2, 1))], {"graph": json.dumps(graph)})
    go = threading.Event()
    backend = WatchedBackend(lambda name: name == "more" and go.wait(PATIENCE))
    with serving() as server, use_backend(server.service, backend), server.wire() as wire:
        verdict = server.ask(request_bytes("POST", "/v1/validate", json.dumps(graph).encode(), JSON)).json()
        wire.send(request_bytes("POST", "/v1/graphs", head + np.ones((2, 1), np.float32).tobytes(), FRAME))
        eventually(lambda: "more" in backend.begun, "it is computed")
        reserved = server.service.admission.bytes_in_flight
        go.set()
        answer = wire.answer()

    cost, row = verdict["cost"], 2 * 1024 * 4
    assert split_frame(answer.body)[1]["y"] == np.array([1024 * 1025 * 1026 / 12] * 2, np.float32).tobytes()
    assert cost["memory_bytes"] == reserved
    assert cost["held_bytes"] == 2 * row  # of wide, sums, more and scaled no more than two are needed at a time
    assert reserved >= 8 + 4 + 2 * row + 8  # input, constant, output
    assert {name: made[0]["size_in_bytes"] for name, made in verdict["nodes"].items()} == {
        "wide": row, "sums": row, "more": row, "scaled": 8, "y": 8,
    }  # fmt: skip
    assert cost["work"] >= 3 * row // 4
    assert cost["seconds"] > 0


def test_what_another_node_reads_may_be_an_output_too_under_several_names():
    graph = chain("a", "b", "c")
    graph["outputs"] = {"first": "a", "again": "a", "last": "c"}
    with http_app() as app:
        body = json.dumps({"graph": graph, "tensors": {"x": tensor_in_json(1, 2, 3)}})
        tensors = app.post("/v1/graphs", body, JSON).json()["tensors"]

    found = {name: tensor["data"] for name, tensor in tensors.items()}
    assert found == {"first": [1, 3, 6], "again": [1, 3, 6], "last": [1, 5, 15]}
