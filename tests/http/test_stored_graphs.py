"""Graphs and models that the server keeps: stored, called by name, described, replaced, deleted, dropped when idle."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    assert_problem,
    eventually,
    frame_bytes,
    http_app,
    split_frame,
)
from tests.support.live_server import live_process

from tensorpost import Client
from tensorpost.problems import InvalidParameter
from tensorpost_server import commands

SCALE: dict[str, Any] = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", 3]}, "w": {"data_type": "FLOAT32", "sizes": [3]}},
    "nodes": [
        {"name": "scaled", "op_type": "Mul", "inputs": ["x", "w"]},
        {"name": "y", "op_type": "Neg", "inputs": ["scaled"]},
    ],
    "outputs": {"y": "y"},
}
NEG: dict[str, Any] = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", 3]}},
    "nodes": [{"name": "y", "op_type": "Neg", "inputs": ["x"]}],
    "outputs": {"y": "y"},
}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([1, 10, 100], np.float32)
SVG = {"accept": "image/svg+xml"}


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


_NAMES = {"float32": "F32", "int64": "I64"}


def encoded(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """A frame, by hand."""
    parts = {name: (_NAMES[x.dtype.name], x.shape, x.tobytes()) for name, x in tensors.items()}
    return frame_bytes(parts, metadata or {})


def decoded(answer: bytes) -> dict[str, Any]:
    head, buffers = split_frame(answer)
    return {name: np.frombuffer(data, np.float32).reshape(head[name]["shape"]) for name, data in buffers.items()}


def store(app: AppClient, name: str, graph: Any, headers: Any = JSON) -> Any:
    content = graph if isinstance(graph, bytes) else json.dumps(graph).encode()
    return app.request("PUT", f"/v1/graphs/{name}", content=content, headers=headers)


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def call(app: AppClient, name: str, array: Any = X, query: str = "") -> Any:
    return app.post(f"/v1/graphs/{name}{query}", saved(array), NPY)


def result(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content))


def weighted() -> bytes:
    return encoded({"w": W}, {"graph": json.dumps(SCALE)})


def test_a_graph_is_stored_called_listed_and_deleted(app: AppClient) -> None:
    stored = store(app, "neg", NEG)
    assert stored.status_code == 201
    assert stored.headers["location"] == "/v1/graphs/neg"
    said = stored.json()
    assert said["inputs"] == [{"name": "x", "data_type": "float32", "sizes": ["n", 3]}]
    assert said["outputs"] == [{"name": "y", "data_type": "float32", "sizes": [None, 3]}]

    np.testing.assert_array_equal(result(call(app, "neg")), -X)
    np.testing.assert_array_equal(result(call(app, "neg", X[:1])), -X[:1])
    assert [(each["name"], each["calls"]) for each in app.get("/v1/graphs").json()["graphs"]] == [("neg", 2)]

    assert app.request("DELETE", "/v1/graphs/neg").status_code == 204
    assert_problem(call(app, "neg"), 404, "graph-not-found")
    assert app.get("/v1/graphs").json() == {"graphs": []}


def test_weights_stay_with_the_graph(app: AppClient) -> None:
    assert store(app, "scale", weighted(), FRAME).status_code == 201
    np.testing.assert_array_equal(result(call(app, "scale")), -(X * W))
    both = app.post("/v1/graphs/scale", encoded({"x": X, "w": W}), FRAME)
    problem = assert_problem(both, 400, "tensor-mismatch")
    assert (
        "'w' is a constant of the graph 'scale', which is stored with it; send only its inputs: 'x'"
        in problem["detail"]
    )


def test_without_a_content_type_the_first_bytes_decide(app: AppClient) -> None:
    assert store(app, "a", NEG, {}).status_code == 201
    assert store(app, "b", weighted(), {}).json()["kind"] == "graph"
    assert_problem(store(app, "c", b"neither", {}), 422, "invalid-descriptor")


def test_without_a_name_the_digest_is_the_name(app: AppClient) -> None:
    said = app.request("PUT", "/v1/graphs", content=json.dumps(NEG).encode(), headers=JSON).json()
    assert said["digest"] == f"sha256:{said['name']}"
    np.testing.assert_array_equal(result(call(app, said["name"])), -X)


def test_sizes_that_exporters_write_for_free_ones_are_free(app: AppClient) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, h, w] x) => (float[n, h, w] y) { y = Neg(x) }"""
    model = onnx.parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):  # as Paddle2ONNX writes them
        first, *others = value.type.tensor_type.shape.dim
        first.dim_value = -1
        for size in others:
            size.dim_param = "?"
    said = store(app, "model", model.SerializeToString(), {"content-type": "application/onnx"}).json()
    assert said["inputs"] == [{"name": "x", "data_type": "float32", "sizes": [None, None, None]}]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(result(call(app, "model", x)), -x)
    assert app.get("/v2/models/model").json()["inputs"][0]["shape"] == [-1, -1, -1]


def test_a_picture_that_a_model_does_not_take_is_explained(app: AppClient) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Neg(x) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    store(app, "model", model, {"content-type": "application/onnx"})
    file = io.BytesIO()
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    Image.fromarray(pixels).save(file, "PNG")
    hint = "Content-Type image/png; layout=NCHW; dtype=float32"
    calls: list[Callable[[str], Any]] = [
        lambda kind: app.post(
            "/v1/graphs/model", file.getvalue(), {"content-type": kind, "accept": NPY["content-type"]}
        ),
        lambda kind: app.request("POST", "/v1/graphs/model", files={"x": ("x.png", file.getvalue(), kind)}),
        lambda kind: app.request(
            "POST", "/v1/onnx", files={"model": ("m.onnx", model), "x": ("x.png", file.getvalue(), kind)}
        ),
    ]
    for call_with in calls:
        problem = assert_problem(call_with("image/png"), 400, "invalid-parameter")
        assert "uint8 of shape [1, 2, 4, 3] was sent" in problem["detail"]
        assert hint in problem["detail"]
        found = result(call_with("image/png; layout=NCHW; dtype=float32"))
        np.testing.assert_allclose(found[0], np.moveaxis(pixels, -1, 0) / np.float32(-255), rtol=1e-6)


def test_a_model_above_the_limit_of_nodes_names_the_setting() -> None:
    with http_app(backend="numpy", max_graph_nodes=1) as app:
        problem = assert_problem(store(app, "scale", SCALE), 422, "invalid-descriptor")
        assert "TENSORPOST_MAX_GRAPH_NODES" in problem["detail"]


def test_an_onnx_model_keeps_its_weights(app: AppClient) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, 3] x, int64[2] shape) => (float[a, b] y, float[n, 3] z) <float[3] w = {1, 10, 100}>
    { z = Mul(x, w)  y = Reshape(z, shape) }"""
    content = onnx.parser.parse_model(text).SerializeToString()
    said = store(app, "model", content, {"content-type": "application/onnx"}).json()
    assert said["kind"] == "onnx"
    assert said["inputs"][0] == {"name": "x", "data_type": "float32", "sizes": ["n", 3]}

    tensors = {"x": X, "shape": np.array([3, 2])}
    answer = app.post("/v1/graphs/model", encoded(tensors), FRAME)
    assert answer.status_code == 200, answer.text
    found = decoded(answer.content)
    np.testing.assert_array_equal(found["z"], X * W)
    np.testing.assert_array_equal(found["y"], (X * W).reshape(3, 2))
    only = app.post(
        "/v1/graphs/model?outputs=z",
        encoded({"x": X, "shape": np.array([3, 2])}),
        {**FRAME, "accept": "application/x-npy"},
    )
    np.testing.assert_array_equal(result(only), X * W)


def test_a_replaced_graph_answers_as_the_new_one_at_once(app: AppClient) -> None:
    store(app, "g", NEG)
    for _ in range(3):
        np.testing.assert_array_equal(result(call(app, "g")), -X)
    absolute = {**NEG, "nodes": [{"name": "y", "op_type": "Abs", "inputs": ["x"]}]}
    assert store(app, "g", absolute).status_code == 200
    for _ in range(3):
        np.testing.assert_array_equal(result(call(app, "g", -X)), X)
    assert len(app.service.calls) == 1  # that of the graph before is dropped


def test_memory_is_the_budgets_and_comes_back(app: AppClient) -> None:
    before = app.service.admission.bytes_in_flight
    said = store(app, "scale", weighted(), {}).json()
    assert app.service.admission.bytes_in_flight == before + said["size_in_bytes"]
    assert said["size_in_bytes"] > W.nbytes
    store(app, "scale", NEG)
    app.request("DELETE", "/v1/graphs/scale")
    assert app.service.admission.bytes_in_flight == before


def test_a_description_has_cost_level_and_picture(app: AppClient) -> None:
    store(app, "neg", NEG)
    assert app.get("/v1/graphs/neg").json()["cost"] is None
    said = app.get("/v1/graphs/neg?sizes=n:4").json()
    assert said["document"] == NEG
    assert said["cost"]["memory_bytes"] > 2 * 4 * 3 * 4 - 1
    drawn = app.get("/v1/graphs/neg?sizes=n:4", headers=SVG)
    assert drawn.headers["content-type"].startswith("image/svg+xml")
    assert "<svg" in drawn.text
    assert "4x3" in drawn.text
    assert_problem(app.get("/v1/graphs/neg", headers=SVG), 406, "not-acceptable")
    assert_problem(app.get("/v1/graphs/neg?sizes=n"), 400, "invalid-parameter")


def test_a_graph_belongs_to_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    anna, ben = (
        {"authorization": f"Bearer {commands.add_key(file, name, scopes=('run', 'graphs'))}"}
        for name in ("anna", "ben")
    )
    reader = {"authorization": f"Bearer {commands.add_key(file, 'reader')}"}
    absolute = {**NEG, "nodes": [{"name": "y", "op_type": "Abs", "inputs": ["x"]}]}
    with http_app(backend="numpy", keys_file=file) as app:
        assert store(app, "g", NEG, JSON | anna).status_code == 201
        assert_problem(app.post("/v1/graphs/g", saved(X), NPY | ben), 404, "graph-not-found")
        assert app.get("/v1/graphs", headers=ben).json() == {"graphs": []}
        assert store(app, "g", absolute, JSON | ben).status_code == 201
        for _ in range(3):
            np.testing.assert_array_equal(result(app.post("/v1/graphs/g", saved(X), NPY | anna)), -X)
            np.testing.assert_array_equal(result(app.post("/v1/graphs/g", saved(-X), NPY | ben)), X)
        assert "g" in app.get("/v2/models", headers=ben).json()["models"]
        assert "g" not in app.get("/v2/models", headers=reader).json()["models"]
        assert app.request("DELETE", "/v1/graphs/g", headers=ben).status_code == 204
        np.testing.assert_array_equal(result(app.post("/v1/graphs/g", saved(X), NPY | anna)), -X)

        problem = assert_problem(store(app, "g", NEG, JSON | reader), 403, "forbidden")
        assert "'graphs'" in problem["detail"]
        assert app.request("POST", "/v2/repository/models/g/unload", headers=reader).status_code == 403


@pytest.mark.parametrize(
    ("name", "graph", "status", "code"),
    [
        ("bad%20name", NEG, 400, "invalid-parameter"),
        ("tile", NEG, 400, "invalid-parameter"),
        ("tile.uint8", NEG, 400, "invalid-parameter"),
        ("stats", NEG, 400, "invalid-parameter"),
        ("g", {}, 422, "invalid-descriptor"),
        ("g", {**NEG, "nodes": []}, 422, "invalid-descriptor"),
        ("g", {**NEG, "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2]}}, "outputs": {"y": "z"}}, 422,
         "invalid-descriptor"),
        ("g", b"{", 400, "invalid-json"),
        ("g", b"[]", 400, "invalid-json"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored(app: AppClient, name: str, graph: Any, status: int, code: str) -> None:
    assert_problem(store(app, name, graph), status, code)
    assert app.get("/v1/graphs").json() == {"graphs": []}
    assert app.service.admission.bytes_in_flight == 0


def test_wrong_tensors_are_refused_by_name(app: AppClient) -> None:
    store(app, "neg", NEG)
    problem = assert_problem(call(app, "neg", X.astype(np.float64)), 422, "invalid-descriptor")
    assert "float64" in problem["detail"]
    assert_problem(call(app, "neg", X, "?graph={}"), 400, "invalid-parameter")
    body = json.dumps({"graph": NEG, "tensors": {"x": {"dtype": "F32", "shape": [1, 3], "data": [1, 2, 3]}}})
    assert_problem(app.post("/v1/graphs/neg", body.encode(), JSON), 400, "invalid-parameter")
    problem = assert_problem(call(app, "meg"), 404, "graph-not-found")
    assert problem["nearest"] == "neg"


def test_limits_are_named() -> None:
    with http_app(backend="numpy", max_stored_graphs=1) as app:
        store(app, "a", NEG)
        problem = assert_problem(store(app, "b", NEG), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MAX_STORED_GRAPHS"
        assert store(app, "a", NEG).status_code == 200
    with http_app(backend="numpy", max_stored_graph_bytes=1000) as app:
        problem = assert_problem(store(app, "b", NEG), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MAX_STORED_GRAPH_BYTES"


def test_stored_graphs_leave_half_of_the_memory_to_requests() -> None:
    weights = encoded(
        {"w": np.zeros(3 << 18, np.float32)}, {"graph": json.dumps({**SCALE, "inputs": {"x": {}, "w": {}}})}
    )
    with http_app(backend="numpy", memory_bytes=32 << 20, caller_share=1) as app:
        answers = [store(app, f"g{number}", weights, FRAME) for number in range(6)]
        assert [answer.status_code for answer in answers] == [201] * 5 + [507]  # of 3 MiB each, 16 MiB may stay
        problem = assert_problem(answers[5], 507, "insufficient-storage")
        assert problem["setting"] == "TENSORPOST_MEMORY_BYTES, half of it"
        app.request("DELETE", "/v1/graphs/g0")
        assert store(app, "g5", weights, FRAME).status_code == 201
    with http_app(backend="numpy", memory_bytes=4 << 20) as app:
        problem = assert_problem(store(app, "g", weights, FRAME), 413, "limit-exceeded")


def test_a_document_above_the_limit_of_json_is_refused_unread() -> None:
    with http_app(backend="numpy", max_json_bytes=100) as app:
        for headers in (JSON, {}):
            problem = assert_problem(store(app, "g", NEG, headers), 413, "limit-exceeded")
            assert problem["setting"] == "TENSORPOST_MAX_JSON_BYTES"


def test_what_nobody_calls_is_dropped(app: AppClient) -> None:
    store(app, "neg", NEG)
    (graph,) = app.service.graphs.listed("")
    graph.used = time.monotonic() - 86_401
    assert_problem(call(app, "neg"), 404, "graph-not-found")
    assert app.service.admission.bytes_in_flight == 0


def test_a_folder_of_graphs_is_everybodys_and_nobodys_to_change(tmp_path: Path) -> None:
    (tmp_path / "neg.json").write_text(json.dumps(NEG))
    (tmp_path / "scale.safetensors").write_bytes(weighted())
    (tmp_path / "readme.txt").write_text("not a graph")
    with http_app(backend="numpy", graphs=tmp_path) as app:
        np.testing.assert_array_equal(result(call(app, "scale")), -(X * W))
        assert [each["owner"] for each in app.get("/v1/graphs").json()["graphs"]] == ["server", "server"]
        assert_problem(app.request("DELETE", "/v1/graphs/neg"), 405, "method-not-allowed")
        assert_problem(store(app, "neg", NEG), 405, "method-not-allowed")

        (tmp_path / "neg.json").unlink()
        (tmp_path / "scale.safetensors").write_bytes(encoded({"w": -W}, {"graph": json.dumps(SCALE)}))
        app.service.graphs.reload()
        np.testing.assert_array_equal(result(call(app, "scale")), X * W)
        assert_problem(call(app, "neg"), 404, "graph-not-found")

        (tmp_path / "broken.json").write_text("{")
        app.service.graphs.reload()
        np.testing.assert_array_equal(result(call(app, "scale")), X * W)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_server_reads_its_folder_again_at_sighup(tmp_path: Path) -> None:
    (tmp_path / "neg.json").write_text(json.dumps(NEG))
    with live_process(TENSORPOST_GRAPHS=tmp_path, TENSORPOST_BACKEND="numpy") as (url, pid), Client(url) as tp:
        assert [each.name for each in tp.stored_graphs()] == ["neg"]
        (tmp_path / "scale.safetensors").write_bytes(weighted())
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: [each.name for each in tp.stored_graphs()] == ["neg", "scale"], "the new file")
        np.testing.assert_array_equal(tp.run_stored(tp.stored_graph("scale"), X)["y"], -(X * W))


def test_a_folder_for_which_there_is_no_memory_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "neg.json").write_text(json.dumps(NEG))
    with http_app(backend="numpy", graphs=tmp_path, memory_bytes=1 << 20) as app:
        large = {"w": np.zeros(1 << 18, np.float32)}
        document = json.dumps({**SCALE, "inputs": {"x": {}, "w": {}}})
        (tmp_path / "large.safetensors").write_bytes(encoded(large, {"graph": document}))
        (tmp_path / "neg.json").unlink()
        app.service.graphs.reload()
        np.testing.assert_array_equal(result(call(app, "neg")), -X)


def test_arrays_without_names_are_taken_in_the_model_s_order(app: AppClient) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n] d, float[n] c, float[n] b, float[n] a) => (float[n] y)
    { s = Sub(d, c)  t = Sub(s, b)  y = Sub(t, a) }"""
    store(app, "m", onnx.parser.parse_model(text).SerializeToString(), {})
    file = io.BytesIO()
    np.savez(file, *[np.array([x], np.float32) for x in (100, 10, 2, 1)])
    headers = {"content-type": "application/x-npz", "accept": "application/x-npy"}
    assert result(app.post("/v1/graphs/m", file.getvalue(), headers)).tolist() == [87]


def test_a_folder_with_a_mistake_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "neg.json").write_text("{")
    with pytest.raises(InvalidParameter, match=r"neg\.json"), http_app(backend="numpy", graphs=tmp_path):
        pass


def test_pictures_and_parts_are_inputs_of_a_stored_graph(app: AppClient) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    photo = {
        "inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
        "nodes": [{"name": "y", "op_type": "Transpose", "inputs": ["photo"], "attributes": {"perm": [0, 3, 1, 2]}}],
        "outputs": {"y": "y"},
    }
    store(app, "chw", photo)
    pixels = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "png")
    headers = {"content-type": "image/png", "accept": "application/x-npy"}
    np.testing.assert_array_equal(
        result(app.post("/v1/graphs/chw", file.getvalue(), headers)), pixels.transpose(2, 0, 1)[None]
    )
    parts = app.request(
        "POST", "/v1/graphs/chw", files={"photo": file.getvalue()}, headers={"accept": "application/x-npy"}
    )
    np.testing.assert_array_equal(result(parts), pixels.transpose(2, 0, 1)[None])
