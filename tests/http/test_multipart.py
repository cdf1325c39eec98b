"""multipart/form-data, as `curl -F` sends it: tensors, pictures and a graph or a model, a part each."""

from __future__ import annotations

import io
import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.client.test_models import classifier, relu
from tests.support.http_app import AppClient, assert_problem, http_app, npy_array, npy_bytes, serving

GRAPHS, MODELS = "/v1/graphs", "/v1/onnx"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
DOCUMENT = {
    "inputs": {"a": {}, "b": {}},
    "nodes": [{"name": "sum", "op_type": "Add", "opset": 14, "inputs": ["a", "b"]}],
    "outputs": {"y": "sum"},
}
RELU = relu().SerializeToString()
NPY = {"accept": "application/x-npy"}


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


def parts(files: Mapping[str, bytes | str], boundary: str = "cut") -> tuple[bytes, dict[str, str]]:
    """A body written by hand, byte by byte as RFC 2046 has it, and its Content-Type."""
    body = b""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode()
        body += data + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


def post(app: AppClient, path: str, files: Mapping[str, bytes | str], accept: Mapping[str, str] = NPY) -> Any:
    body, fields = parts(files)
    return app.post(path, body, {**fields, **accept})


def test_a_graph_and_its_tensors(app: AppClient):
    answer = post(app, GRAPHS, {"graph": json.dumps(DOCUMENT), "a": npy_bytes(X), "b": npy_bytes(X)})

    np.testing.assert_array_equal(npy_array(answer.content), X + X)


def test_what_httpx_writes(app: AppClient):
    files = {"graph": ("g.json", json.dumps(DOCUMENT)), "a": ("a.npy", npy_bytes(X)), "b": ("b.npy", npy_bytes(X))}
    answer = app.run(app.client.post(GRAPHS, files=files, headers=NPY))

    np.testing.assert_array_equal(npy_array(answer.content), X + X)


def test_pictures_are_decoded(app: AppClient):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    document = DOCUMENT | {"inputs": {"a": {"sizes": [1, "h", "w", 3]}, "b": {}}}

    answer = post(app, GRAPHS, {"graph": json.dumps(document), "a": png.getvalue(), "b": png.getvalue()})

    np.testing.assert_array_equal(npy_array(answer.content), 2 * pixels[None])


def test_an_operator_takes_parts(app: AppClient):
    answer = post(app, "/v1/operators/tile?repeats=1,2", {"input": npy_bytes(X)})

    np.testing.assert_array_equal(npy_array(answer.content), np.tile(X, (1, 2)))


def test_a_model(app: AppClient):
    image = np.random.default_rng(3).standard_normal((2, 3, 16, 16)).astype(np.float32)
    files = {"model": classifier().SerializeToString(), "image": npy_bytes(image)}

    answer = post(app, f"{MODELS}?outputs=scores&backend=numpy", files)
    again = post(app, f"{MODELS}?outputs=output.1", files)

    scores = npy_array(answer.content)
    assert (scores.shape, answer.headers["tensorpost-backend"]) == ((2, 10), "numpy+onnxruntime")
    exact = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    np.testing.assert_allclose(npy_array(again.content), exact / exact.sum(1, keepdims=True), rtol=1e-4, atol=1e-12)


def test_a_model_with_an_input_that_decides_a_size(app: AppClient):
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
         helper.make_tensor_value_info("shape", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()

    answer = post(app, MODELS, {"model": model, "shape": npy_bytes(np.array([3, 2])), "x": npy_bytes(X.reshape(6))})

    np.testing.assert_array_equal(npy_array(answer.content), X.reshape(3, 2))


@pytest.mark.parametrize(
    ("path", "files", "status", "code", "words"),
    [
        (GRAPHS, {"a": npy_bytes(X)}, 400, "invalid-parameter", "the graph is missing"),
        (GRAPHS, {"graph": "{", "a": npy_bytes(X)}, 400, "invalid-json", "$.graph"),
        (GRAPHS, {"graph": b"\xff", "a": npy_bytes(X)}, 400, "invalid-json", "is not UTF-8"),
        (GRAPHS, {"graph": json.dumps(DOCUMENT), "a": b"text"}, 400, "invalid-frame", "'a' is neither an npy file"),
        (MODELS, {"x": npy_bytes(X)}, 400, "tensor-mismatch", "curl -F model=@model.onnx"),
        (MODELS, {"model": b"\x89PNG", "x": npy_bytes(X)}, 422, "invalid-descriptor", "not an ONNX model"),
        (MODELS, {"model": RELU, "X": npy_bytes(X)}, 400, "invalid-parameter", "did you mean 'x'"),
        (MODELS + "?graph=1", {"model": RELU, "x": npy_bytes(X)}, 400, "invalid-parameter", "'graph'"),
    ],
)  # fmt: skip
def test_refusals(app: AppClient, path: str, files: Any, status: int, code: str, words: str):
    assert words in assert_problem(post(app, path, files), status, code)["detail"]


def test_a_model_in_another_body_is_told_how(app: AppClient):
    for media_type in ("application/octet-stream", "application/onnx", "application/x-npy"):
        answer = app.post(MODELS, RELU, {"content-type": media_type})
        assert "curl -F model=@model.onnx" in assert_problem(answer, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "does not begin with its boundary"),
        (b"--cut", "is not followed"),
        (b'--cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n1', "cut off"),
        (b"--cut\r\nContent-Type: text/plain\r\n\r\n1\r\n--cut--", "has no name"),
        (b"--cut\r\n" + b"x" * 9000 + b"\r\n\r\n\r\n--cut--", "8 KiB"),
    ],
)
def test_broken_bodies(app: AppClient, body: bytes, words: str):
    answer = app.post(GRAPHS, body, {"content-type": "multipart/form-data; boundary=cut"})

    assert words in assert_problem(answer, 400, "invalid-frame")["detail"]


def test_any_bytes_are_answered(app: AppClient):
    body, fields = parts({"graph": json.dumps(DOCUMENT), "a": npy_bytes(X), "b": npy_bytes(X)})
    chance = random.Random(5)
    for _ in range(300):
        changed = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        assert app.post(GRAPHS, bytes(changed[: chance.randint(1, len(changed))]), fields).status_code < 500


def test_the_same_name_twice(app: AppClient):
    body, fields = parts({"a": npy_bytes(X)})
    answer = app.post(GRAPHS, body[: -len(b"--cut--\r\n")] + body, fields)

    assert "two parts with the name 'a'" in assert_problem(answer, 400, "invalid-frame")["detail"]


def test_a_page_of_another_origin_sends_none(app: AppClient):
    """A form needs no permission of CORS, so the Origin decides."""
    body, fields = parts({"graph": json.dumps(DOCUMENT), "a": npy_bytes(X), "b": npy_bytes(X)})

    assert app.post(GRAPHS, body, {**fields, "origin": "https://example.org"}).status_code == 403
    assert app.post(GRAPHS, body, {**fields, "origin": "null"}).status_code == 403


def test_curl(tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(relu().SerializeToString())
    np.save(tmp_path / "x.npy", X - 2)
    with serving() as server:
        command = ["curl", "-sS", "--fail-with-body", "-F", "model=@model.onnx", "-F", "x=@x.npy", "-o", "y.npy"]
        subprocess.run([*command, f"http://127.0.0.1:{server.port}/v1/onnx"], cwd=tmp_path, check=True, timeout=60)

    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.maximum(X - 2, 0))
