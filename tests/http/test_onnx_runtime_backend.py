"""Models and graphs that ONNX Runtime computes as a whole: `backend=onnxruntime`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save
from tests.client.test_models import classifier
from tests.http.test_multipart import post
from tests.support.http_app import AppClient, assert_problem, http_app, npy_array, npy_bytes

from tensorpost.onnx import schemas
from tensorpost_server.child_processes.libraries import ONNX, ONNX_RUNTIME
from tensorpost_server.child_processes.process_pool import ProcessPool

onnx: Any = pytest.importorskip("onnx", reason="models for these tests are made by the package onnx")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python"
)

IMAGE = np.random.default_rng(4).standard_normal((2, 3, 16, 16)).astype(np.float32)
FRAME = {"content-type": "application/vnd.safetensors"}
MODEL = {"content-type": "application/onnx"}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
RELU = {"name": "y", "op_type": "Relu", "opset": 14, "inputs": ["x"]}


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


def graph(app: AppClient, query: str, nodes: list[dict[str, Any]], tensors: Mapping[str, NDArray[Any]]) -> Any:
    document = {"inputs": {name: {} for name in tensors}, "nodes": nodes, "outputs": {"y": nodes[-1]["name"]}}
    body = save({**tensors}, {"graph": json.dumps(document)})
    return app.post(f"/v1/graphs?{query}", body, FRAME)


def test_a_model_is_computed_as_onnx_runtime_computes_it_without_optimizations(app: AppClient):
    model = classifier().SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    (expected,) = session.run(["output.1"], {"image": IMAGE})

    answer = post(app, "/v1/onnx?outputs=output.1&backend=onnxruntime", {"model": model, "image": npy_bytes(IMAGE)})

    assert answer.headers["tensorpost-backend"] == "numpy+onnxruntime"
    np.testing.assert_allclose(npy_array(answer.content), expected, rtol=1e-6, atol=1e-7)


def test_a_graph_whose_operators_have_forms_of_their_own(app: AppClient):
    answer = graph(app, "backend=onnxruntime", [RELU], {"x": X - 3})

    assert answer.headers["tensorpost-backend"] == "numpy+onnxruntime"
    np.testing.assert_array_equal(load(answer.content)["y"], np.maximum(X - 3, 0))
    assert "onnxruntime" not in graph(app, "backend=auto", [RELU], {"x": X}).headers["tensorpost-backend"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/operators/tile?repeats=1,2&backend=onnxruntime", "computes models and graphs"),
        ("/v1/onnx/Relu?opset=14&backend=onnxruntime", "computes models and graphs"),
        ("/v1/onnx/Det?opset=11&backend=onnxruntime", "computes models and graphs"),
    ],
)
def test_single_operators_are_refused(app: AppClient, path: str, words: str):
    assert words in assert_problem(app.post(path, npy_bytes(X[:, :2])), 400, "invalid-parameter")["detail"]


def test_what_is_not_onnx_is_refused(app: AppClient):
    tile = {"name": "tile", "type": "TILE", "inputs": ["x"], "desc": {"Repeats": [1, 2]}}
    answer = graph(app, "backend=onnxruntime", [tile], {"x": X})
    assert "'tile' is DirectML's TILE" in assert_problem(answer, 400, "invalid-parameter")["detail"]

    answer = graph(app, "backend=onnxruntime&device=0", [RELU], {"x": X})
    assert "computes on the processor" in assert_problem(answer, 400, "invalid-parameter")["detail"]


def test_without_the_extra_it_says_how_to_install_it(app: AppClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ONNX_RUNTIME, "installed", False)

    answer = graph(app, "backend=onnxruntime", [RELU], {"x": X[:1]})

    detail = assert_problem(answer, 501, "no-backend")["detail"]
    assert detail == (
        "this server lacks ONNX Runtime, which computes Relu-14; install the extra onnx there (pip install '.[onnx]' "
        "in a clone of tensorpost) and restart it"
    )


@pytest.mark.parametrize("libraries", [[ONNX_RUNTIME], [ONNX, ONNX_RUNTIME]])
def test_models_that_need_the_extra_say_so_when_they_are_stored(
    app: AppClient, monkeypatch: pytest.MonkeyPatch, libraries: list[ProcessPool]
):
    for library in libraries:
        monkeypatch.setattr(library, "installed", False)
    schemas._of_package.cache_clear()  # pyright: ignore[reportPrivateUsage] # what it remembers is of the package
    text = """<ir_version: 8, opset_import: ["": 18]>
        m (float[1, 1, n, n] x) => (float[1, 1, p, q] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}> {%s}"""
    convolution = onnx.parser.parse_model(text % "h = Dropout (x) y = Conv (h, w)").SerializeToString()
    image = npy_bytes(np.ones((1, 1, 3, 3), np.float32))

    for answer in (
        app.request("PUT", "/v1/graphs/convolution", content=convolution, headers=MODEL),
        post(app, "/v1/onnx", {"model": convolution, "x": image}),
        *([app.get("/v1/onnx/Conv"), app.post("/v1/onnx/Conv", image)] if libraries[1:] else []),
    ):
        document = assert_problem(answer, 501, "no-backend")
        assert "this server lacks ONNX Runtime, which computes Conv" in document["detail"]
        assert document["title"] == "No device here can run this"
    without = onnx.parser.parse_model(text % "unread = Conv (x, w) h = Dropout (x) y = Relu (h)").SerializeToString()
    assert app.request("PUT", "/v1/graphs/without", content=without, headers=MODEL).status_code == 201
    app.request("DELETE", "/v1/graphs/without")


def test_what_onnx_runtime_refuses_names_the_node(app: AppClient):
    """A Gather whose index is outside: the second of three nodes."""
    nodes = [
        RELU,
        {"name": "picked", "op_type": "Gather", "opset": 13, "inputs": ["y", "index"]},
        {"name": "last", "op_type": "Neg", "opset": 13, "inputs": ["picked"]},
    ]
    answer = graph(app, "backend=onnxruntime", nodes, {"x": X, "index": np.array([7])})

    assert (
        "node 'picked': ONNX Runtime refuses these inputs"
        in assert_problem(answer, 422, "invalid-descriptor")["detail"]
    )
