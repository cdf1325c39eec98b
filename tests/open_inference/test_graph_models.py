"""Stored graphs as models of `/v2`: tritonclient runs them over HTTP and gRPC, with their own inputs and outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, AppClient, Serving, assert_problem, http_app, serving

from tensorpost import Client

triton_http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
triton_grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

GRAPH: dict[str, Any] = {
    "inputs": {
        "x": {"data_type": "FLOAT32", "sizes": ["n", 3]},
        "mask": {"data_type": "BOOL", "sizes": ["n", 3]},
        "w": {"data_type": "FLOAT32", "sizes": [3]},
    },
    "nodes": [
        {"name": "scaled", "op_type": "Mul", "inputs": ["x", "w"]},
        {"name": "kept", "op_type": "Where", "inputs": ["mask", "scaled", "x"]},
        {"name": "total", "op_type": "ReduceSum", "inputs": ["kept"], "attributes": {"keepdims": 0}},
    ],
    "outputs": {"kept": "kept", "total": "total"},
}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
MASK = np.array([[True, False, True], [False, True, False]])
W = np.array([1, 10, 100], np.float32)
KEPT = np.where(MASK, X * W, X)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy", grpc_port=0) as found:
        with Client(found.url) as tp:
            tp.store(GRAPH, "masked", weights={"w": W})
        yield found


def triton_inputs(module: Any) -> list[Any]:
    inputs = [module.InferInput("x", [2, 3], "FP32"), module.InferInput("mask", [2, 3], "BOOL")]
    inputs[0].set_data_from_numpy(X)
    inputs[1].set_data_from_numpy(MASK)
    return inputs


def test_tritonclient_runs_a_stored_graph_over_http(server: Serving) -> None:
    with closing(triton_http.InferenceServerClient(f"{server.host}:{server.port}")) as client:
        assert client.is_model_ready("masked")
        said = client.get_model_metadata("masked")
        assert said["inputs"] == [
            {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "mask", "datatype": "BOOL", "shape": [-1, 3]},
        ]
        assert said["outputs"] == [
            {"name": "kept", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "total", "datatype": "FP32", "shape": []},
        ]
        assert client.get_model_config("masked")["platform"] == "tensorpost_graph"
        assert "masked" in [each["name"] for each in client.get_model_repository_index()]
        for _ in range(3):
            found = client.infer("masked", triton_inputs(triton_http))
            np.testing.assert_array_equal(found.as_numpy("kept"), KEPT)
            assert found.as_numpy("total") == KEPT.sum()
        only = client.infer("masked", triton_inputs(triton_http), outputs=[triton_http.InferRequestedOutput("total")])
        assert only.as_numpy("kept") is None
        (counts,) = client.get_inference_statistics("masked")["model_stats"]
        assert counts["inference_count"] >= 3
        with pytest.raises(Exception, match="masked"):
            client.infer("masked", triton_inputs(triton_http)[:1])


def test_tritonclient_runs_a_stored_graph_over_grpc(server: Serving) -> None:
    with closing(triton_grpc.InferenceServerClient(f"{server.host}:{server.app.state.grpc_port}")) as client:
        assert [each.name for each in client.get_model_metadata("masked").inputs] == ["x", "mask"]
        for _ in range(2):
            found = client.infer("masked", triton_inputs(triton_grpc))
            np.testing.assert_array_equal(found.as_numpy("kept"), KEPT)


def test_an_onnx_model_is_a_model() -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, 3] x) => (float[n, 3] y) <float[3] w = {1, 10, 100}> { y = Mul(x, w) }"""
    with serving(backend="numpy") as server, Client(server.url) as tp:
        tp.store(onnx.parser.parse_model(text), "net")
        with closing(triton_http.InferenceServerClient(f"{server.host}:{server.port}")) as client:
            assert client.get_model_metadata("net")["platform"] == "onnx"
            found = client.infer("net", triton_inputs(triton_http)[:1])
            np.testing.assert_array_equal(found.as_numpy("y"), X * W)
            client.unload_model("net")
            with pytest.raises(Exception, match="unknown model 'net'"):
                client.infer("net", triton_inputs(triton_http)[:1])


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def test_a_replaced_model_answers_as_the_new_one(app: AppClient) -> None:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, -2.0]}]}
    for op_type, expected in (("Neg", [-1.0, 2.0]), ("Abs", [1.0, 2.0])):
        graph = {
            "inputs": {"x": {}},
            "nodes": [{"name": "y", "op_type": op_type, "inputs": ["x"]}],
            "outputs": {"y": "y"},
        }
        assert app.request("PUT", "/v1/graphs/g", content=json.dumps(graph).encode(), headers=JSON).status_code < 300
        for _ in range(2):
            said = app.request("POST", "/v2/models/g/infer", json=request).json()
            assert said["outputs"][0]["data"] == expected
    assert app.request("DELETE", "/v1/graphs/g").status_code == 204
    assert app.request("POST", "/v2/models/g/infer", json=request).status_code == 404
    assert_problem(app.get("/v1/graphs/g"), 404, "graph-not-found")
