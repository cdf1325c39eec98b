"""Tensors that the server holds: sent once, read in parts, referred to by calls, replaced, deleted, freed when idle."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    assert_problem,
    frame_bytes,
    http_app,
    serving,
    split_frame,
)
from tests.support.request_records import Records

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server import commands
from tensorpost_server.http.wires.kept_answer import KeptAnswer
from tensorpost_server.http.wires.tensor_index import MOST_GONE

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SUM: dict[str, Any] = {
    "inputs": {"a": {}, "b": {}},
    "nodes": [{"name": "sum", "op_type": "Add", "inputs": ["a", "b"]}],
    "outputs": {"sum": "sum"},
}
_NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def pass_time(app: AppClient, **seconds: int) -> None:
    """Let so many seconds pass since tensors were used, or made."""
    with app.service.group.database.change() as database:
        for column, passed in seconds.items():
            database.execute(f"UPDATE tensors SET {column} = {column} - ?", (passed,))  # a column of ours


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def encoded(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    parts = {name: (_NAMES[x.dtype.name], x.shape, x.tobytes()) for name, x in tensors.items()}
    return frame_bytes(parts, metadata or {})


def hold(app: AppClient, name: str, array: Any = X, query: str = "", **headers: str) -> Any:
    return app.request("PUT", f"/v1/tensors/{name}{query}", content=saved(array), headers=NPY | headers)


def result(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content))


def read(app: AppClient, name: str, box: str | None = None) -> Any:
    return result(app.get(f"/v1/tensors/{name}" + ("" if box is None else f"?box={box}")))


# ---- sending ---------------------------------------------------------------------------------------------------------


RAW = "application/octet-stream"


@pytest.mark.parametrize(
    ("content", "content_type", "query", "expected"),
    [
        (saved(X), "application/x-npy", "", X),
        (saved(np.float64(3)), "application/x-npy", "", np.float64(3)),
        (saved(np.zeros((0, 4), np.int64)), "application/x-npy", "", np.zeros((0, 4), np.int64)),
        (encoded({"anything": X}), "application/vnd.safetensors", "", X),
        (zipped(anything=X), "application/x-npz", "", X),
        (json.dumps({"dtype": "F32", "shape": [2, 2], "data": [1, 2, 3, 4]}).encode(), "application/json", "",
         np.array([[1, 2], [3, 4]], np.float32)),
        (X.tobytes(), RAW, "?data_type=FLOAT32&sizes=2,3,4", X),
        (X.tobytes(), RAW, "?data_type=int64&sizes=12", X.reshape(-1).view(np.int64)),
    ],
)  # fmt: skip
def test_a_tensor_comes_in_any_form_that_an_input_has(
    app: AppClient, content: bytes, content_type: str, query: str, expected: Any
) -> None:
    answer = app.request("PUT", f"/v1/tensors/x{query}", content=content, headers={"content-type": content_type})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/v1/tensors/x"
    described = answer.json()
    assert described["dtype"] == expected.dtype.name
    assert described["sizes"] == list(expected.shape)
    assert described["size_in_bytes"] == expected.nbytes == app.service.admission.bytes_in_flight
    assert described["device"] == "host memory"
    np.testing.assert_array_equal(read(app, "x"), expected)


def test_the_bytes_that_arrived_are_recorded(app: AppClient) -> None:
    app.service.records = records = Records()
    sent = saved(X)

    async def pieces() -> AsyncIterator[bytes]:
        yield sent[:50]
        yield sent[50:]

    assert hold(app, "x").status_code == 201
    assert app.request("PUT", "/v1/tensors/y", content=pieces(), headers=NPY).status_code == 201
    assert hold(app, "x").status_code == 409
    assert [(record.status, record.received_bytes) for record in records.found] == [
        (201, len(sent)), (201, len(sent)), (409, 0)
    ]  # fmt: skip


def test_a_picture_is_held_as_its_pixels(app: AppClient) -> None:
    picture = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    picture.fromarray(pixels).save(file, "PNG")
    answer = app.request("PUT", "/v1/tensors/photo", content=file.getvalue(), headers={"content-type": "image/png"})
    assert answer.json()["sizes"] == [1, 5, 7, 3]
    np.testing.assert_array_equal(read(app, "photo", "0"), pixels)
    answer = app.get("/v1/tensors/photo?box=0", headers={"accept": "image/png"})
    np.testing.assert_array_equal(np.asarray(picture.open(io.BytesIO(answer.content))), pixels)


def test_the_server_makes_a_name(app: AppClient) -> None:
    answers = [app.post("/v1/tensors", saved(X * number), NPY) for number in (1, 2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    one, two = (answer.headers["location"] for answer in answers)
    assert one != two
    np.testing.assert_array_equal(result(app.get(two)), X * 2)


@pytest.mark.parametrize(
    ("content", "content_type", "query", "status", "code"),
    [
        (b"", "application/x-npy", "", 400, "body-length-mismatch"),
        (saved(X)[:-1], "application/x-npy", "", 400, "body-length-mismatch"),
        (saved(X), "text/plain", "", 415, "unsupported-media-type"),
        (encoded({"a": X, "b": X}), "application/vnd.safetensors", "", 400, "tensor-mismatch"),
        (encoded({}), "application/vnd.safetensors", "", 400, "tensor-mismatch"),
        (zipped(a=X, b=X), "application/x-npz", "", 400, "tensor-mismatch"),
        (b'{"dtype": "string", "shape": [1], "data": ["a"]}', "application/json", "", 400, "tensor-mismatch"),
        (X.tobytes(), RAW, "", 400, "invalid-parameter"),
        (X.tobytes(), RAW, "?data_type=FLOAT32", 400, "invalid-parameter"),
        (X.tobytes(), RAW, "?data_type=FLOAT32&sizes=5", 400, "body-length-mismatch"),
        (X.tobytes(), RAW, "?data_type=FLOAT33&sizes=24", 400, "invalid-parameter"),
        (saved(X), "application/x-npy", "?data_type=FLOAT32&sizes=24", 400, "invalid-parameter"),
        (saved(X), "application/x-npy", "?replace=yes", 400, "invalid-parameter"),
        (saved(X), "application/x-npy", "?box=1", 400, "invalid-parameter"),
    ],
)
def test_what_cannot_be_held_is_refused_and_takes_nothing(
    app: AppClient, content: bytes, content_type: str, query: str, status: int, code: str
) -> None:
    answer = app.request("PUT", f"/v1/tensors/x{query}", content=content, headers={"content-type": content_type})
    assert_problem(answer, status, code)
    assert app.get("/v1/tensors").json() == {"tensors": []}
    assert app.service.admission.bytes_in_flight == app.service.tensors.size_in_bytes == 0


@pytest.mark.parametrize("name", ["-x", "a b", "a" * 101, "%2e"])
def test_a_name_is_letters_and_digits(app: AppClient, name: str) -> None:
    assert_problem(hold(app, name), 400, "invalid-parameter")


def test_a_tensor_is_replaced_only_if_that_is_asked_for(app: AppClient) -> None:
    assert hold(app, "x").status_code == 201
    assert assert_problem(hold(app, "x", -X), 409, "tensor-exists")["tensor"] == "x"
    assert_problem(hold(app, "x", -X, **{"if-none-match": "*"}), 409, "tensor-exists")
    assert_problem(hold(app, "x", -X, "?replace=true", **{"if-none-match": "*"}), 400, "invalid-parameter")
    np.testing.assert_array_equal(read(app, "x"), X)
    assert hold(app, "x", -X, "?replace=1").status_code == 200
    assert_problem(hold(app, "x", -X, "?replace=0"), 409, "tensor-exists")
    assert hold(app, "x", -X, "?replace=true").status_code == 200
    np.testing.assert_array_equal(read(app, "x"), -X)
    assert app.service.admission.bytes_in_flight == X.nbytes


# ---- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "box",
    [
        "",
        "::999999999999999999",
        "1::999999999999999999,:,1:3",
        "0",
        "1,2,3",
        ":,0:2,::2",
        "...,-1",
        "-1:,1:,:3",
        "5:",
        ":,1:1,0",
    ],
)
def test_a_box_is_what_numpy_slices(app: AppClient, box: str) -> None:
    hold(app, "x")
    expected = eval(f"X[{box}]") if box else X  # text of this test
    np.testing.assert_array_equal(read(app, "x", box), expected)


@pytest.mark.parametrize("query", ["keep=y", "ke%65p=y", "keep", "rows=0:1", "backend=numpy", "a=@x", "replace=true"])
def test_an_inference_takes_no_parameters_of_v1(app: AppClient, query: str) -> None:
    hold(app, "x")
    app.request("PUT", "/v1/graphs/sum", content=json.dumps(SUM), headers=JSON)
    inputs = [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2]} for name in "ab"]
    body = json.dumps({"inputs": inputs}).encode()
    refused = app.post(f"/v2/models/sum/infer?{query}", body, JSON)
    name = query.partition("=")[0].replace("%65", "e")
    assert refused.status_code == 400, refused.text
    assert f"no query parameter {name!r}" in refused.json()["error"]
    assert app.service.tensors.count == 1
    assert app.post("/v2/models/sum/infer?trace=1", body, JSON).status_code == 200


def test_a_box_in_every_form(app: AppClient) -> None:
    hold(app, "x")
    expected = X[:, 1, ::2]

    def get(accept: str) -> Any:
        return app.get("/v1/tensors/x?box=:,1,::2", headers={"accept": accept})

    answer = get("application/json").json()["tensors"]["tensor"]
    assert answer == {"dtype": "F32", "shape": [2, 2], "data": expected.reshape(-1).tolist()}
    head, buffers = split_frame(get("application/vnd.safetensors").content)
    assert head["tensor"]["shape"] == [2, 2]
    assert buffers["tensor"] == expected.tobytes()
    raw = get(RAW)
    assert raw.content == expected.tobytes()
    assert raw.headers["tensorpost-shape"] == "2,2"
    np.testing.assert_array_equal(np.load(io.BytesIO(get("application/x-npz").content))["tensor"], expected)
    assert_problem(get("text/plain"), 406, "not-acceptable")


@pytest.mark.parametrize("query", ["box=9", "box=a", "box=::-1", "boxes=1", "box=1&box=2"])
def test_a_part_that_there_is_not(app: AppClient, query: str) -> None:
    hold(app, "x")
    assert_problem(app.get(f"/v1/tensors/x?{query}"), 400, "invalid-parameter")


def test_a_long_tensor_is_streamed_in_slices() -> None:
    x = np.random.default_rng(2).integers(0, 256, (64, 1000, 3), np.uint8)
    with http_app(backend="numpy", slice_bytes=5000) as app:
        hold(app, "x", x)
        np.testing.assert_array_equal(read(app, "x"), x)
        np.testing.assert_array_equal(read(app, "x", ":,::3,1"), x[:, ::3, 1])


def test_head_says_what_get_would_send(app: AppClient) -> None:
    hold(app, "x")
    for accept in ("application/x-npy", RAW, "application/vnd.safetensors"):
        head = app.request("HEAD", "/v1/tensors/x?box=0", headers={"accept": accept})
        body = app.get("/v1/tensors/x?box=0", headers={"accept": accept})
        assert head.content == b""
        for name in ("content-length", "content-type"):
            assert head.headers[name] == body.headers[name]
    assert app.request("HEAD", "/v1/tensors/y").status_code == 404
    answer = app.request("HEAD", "/v1/tensors/x", headers={"accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


def test_a_listing(app: AppClient) -> None:
    hold(app, "b")
    hold(app, "a", np.zeros(3, np.uint8))
    a, b = app.get("/v1/tensors").json()["tensors"]
    assert (a["name"], a["data_type"], a["sizes"], a["size_in_bytes"]) == ("a", "UINT8", [3], 3)
    assert b["name"] == "b"
    assert 0 <= b["idle_seconds"] <= b["age_seconds"] < 60


def test_a_deleted_tensor_is_gone_and_says_when(app: AppClient) -> None:
    hold(app, "x")
    assert app.request("DELETE", "/v1/tensors/x").status_code == 204
    for method in ("GET", "DELETE"):
        problem = assert_problem(app.request(method, "/v1/tensors/x"), 410, "tensor-gone")
        assert (problem["tensor"], problem["reason"]) == ("x", "deleted")
        assert time.strftime("%Y-%m-%dT", time.gmtime()) in problem["detail"]
    assert assert_problem(app.post("/v1/onnx/Neg?X=@x", b"", {}), 410, "tensor-gone")["tensor"] == "x"
    assert app.service.admission.bytes_in_flight == 0
    assert hold(app, "x").status_code == 201  # the name may be used again
    hold(app, "mask")
    assert assert_problem(app.get("/v1/tensors/msk"), 404, "tensor-not-found")["nearest"] == "mask"


# ---- in calls --------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(app: AppClient) -> AppClient:
    hold(app, "x")
    hold(app, "ones", np.ones((3, 4), np.float32))
    return app


def test_an_input_in_the_query(held: AppClient) -> None:
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Neg?X=@x", b"", {})), -X)
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Neg?X=%40x[1,:,::2]", b"", {})), -X[1, :, ::2])
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Sub?B=@x", saved(3 * X), NPY)), 2 * X)
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Sub?A=@x", saved(3 * X), NPY)), -2 * X)
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Concat?axis=0&inputs_0=@x&inputs_1=@x[0:1]", b"", {})),
                                  np.concatenate([X, X[:1]]))  # fmt: skip
    np.testing.assert_array_equal(result(held.post("/v1/operators/tile?input=@x&repeats=1,2,1", b"", {})),
                                  np.tile(X, (1, 2, 1)))  # fmt: skip
    graph = "/v1/graphs?graph=" + json.dumps(SUM)
    np.testing.assert_array_equal(
        np.frombuffer(split_frame(held.post(f"{graph}&a=@x[0]", saved(X[1]), {**NPY, "accept": FRAME["content-type"]})
                                  .content)[1]["sum"], np.float32), (X[0] + X[1]).reshape(-1))  # fmt: skip


def test_an_input_that_is_part_of_the_operation(held: AppClient) -> None:
    hold(held, "shape", np.array([4, 6], np.int64))
    np.testing.assert_array_equal(result(held.post("/v1/onnx/Reshape?shape=@shape", saved(X), NPY)), X.reshape(4, 6))
    hold(held, "long", np.zeros(2000, np.int64))
    assert_problem(held.post("/v1/onnx/Reshape?shape=@long", saved(X), NPY), 400, "tensor-mismatch")


def test_an_input_in_json(held: AppClient) -> None:
    def call(tensors: Any, query: str = "") -> Any:
        return held.post(f"/v1/onnx/Add{query}", json.dumps({"tensors": tensors}).encode(), JSON)

    one = {"dtype": "F32", "shape": [1], "data": [1]}
    answer = call({"A": {"tensor": "x", "box": "0,0"}, "B": one}).json()
    assert answer["tensors"]["output"]["data"] == [1, 2, 3, 4]
    answer = call({"A": {"tensor": "x", "sizes": [24]}, "B": one}).json()
    assert answer["tensors"]["output"]["data"] == [*range(1, 25)]
    assert call({"A": {"tensor": "x", "box": "0,0"}}, "?B=@ones[0]").json()["tensors"]["output"]["data"] == [1, 2, 3, 4]
    for wrong in ({"boxes": ""}, {"sizes": [-1]}, {"box": 1}, {"sizes": [5]}, {"box": "7"}, {"tensor": 1}):
        problem = assert_problem(call({"A": {"tensor": "x", **wrong}, "B": one}), 422, "invalid-descriptor")
        assert problem["violations"][0]["path"].startswith("$.tensors.A.")
    assert_problem(call({"A": {"tensor": "y"}, "B": one}), 404, "tensor-not-found")
    assert_problem(call({"A": {"tensor": "x"}, "B": one}, "?A=@x"), 400, "invalid-parameter")


def test_too_many_references_are_refused_before_any_is_read(held: AppClient) -> None:
    body = json.dumps({"tensors": {f"inputs_{number}": {"tensor": "x", "box": ":,0"} for number in range(5000)}})
    before = held.service.admission.bytes_in_flight
    assert_problem(held.post("/v1/onnx/Concat?axis=0", body.encode(), JSON), 400, "invalid-parameter")
    assert held.service.admission.bytes_in_flight == before


def test_an_input_in_a_frame(held: AppClient) -> None:
    def call(metadata: str, path: str = "/v1/onnx/Add", **tensors: Any) -> Any:
        return held.post(path, encoded(tensors, {"tensors": metadata, "graph": json.dumps(SUM)}), FRAME)

    answer = call('{"A": {"tensor": "x", "box": "1"}}', B=X[0])
    assert (
        np.frombuffer(split_frame(answer.content)[1]["output"], np.float32).tolist() == (X[0] + X[1]).ravel().tolist()
    )
    answer = call('{"a": {"tensor": "x"}, "b": {"tensor": "ones"}}', "/v1/graphs")
    assert split_frame(answer.content)[1]["sum"] == (X + 1).tobytes()
    assert_problem(call('{"A": {"tensor": "x"}}', A=X, B=X), 400, "invalid-parameter")
    assert_problem(call('{"A": {"tensor": "x"}', B=X), 400, "invalid-json")
    assert_problem(call("[1]", A=X, B=X), 422, "invalid-descriptor")
    assert_problem(call('{"C": {"tensor": "x"}}', A=X, B=X), 400, "tensor-mismatch")


def test_a_descriptor_sees_other_strides_and_sizes(held: AppClient) -> None:
    def call(sizes: list[int], strides: list[int]) -> Any:
        desc = {"InputTensor": {"DataType": "FLOAT32", "Sizes": sizes, "Strides": strides}, "Repeats": [1] * len(sizes)}
        body = {"op": {"type": "TILE", "desc": desc}, "tensors": {"input": {"tensor": "x"}}}
        return held.post("/v1/operators/tile", json.dumps(body).encode(), JSON)

    answer = call([3, 2], [2, 12]).json()["tensors"]["output"]
    expected = np.lib.stride_tricks.as_strided(X, (3, 2), (8, 48))
    assert (answer["shape"], answer["data"]) == ([3, 2], expected.ravel().tolist())
    assert_problem(call([3, 3], [2, 12]), 400, "tensor-mismatch")  # which reaches beyond the tensor


def test_a_stored_graph_and_a_model_of_v2(held: AppClient) -> None:
    held.request("PUT", "/v1/graphs/sum", content=json.dumps(SUM).encode(), headers=JSON)
    np.testing.assert_array_equal(result(held.post("/v1/graphs/sum?b=@ones", saved(X), NPY)), X + 1)
    np.testing.assert_array_equal(result(held.post("/v1/graphs/sum?b=@ones&a=@x", b"", {})), X + 1)

    def infer(shape: list[int], datatype: str = "FP32", **parameters: Any) -> Any:
        inputs = [{"name": "A", "shape": shape, "datatype": datatype, "parameters": parameters},
                  {"name": "B", "shape": [1], "datatype": "FP32", "data": [1]}]  # fmt: skip
        return held.post("/v2/models/onnx.add/infer", json.dumps({"inputs": inputs}).encode(), JSON)

    assert infer([2, 3, 4], tensor="x").json()["outputs"][0]["data"] == [*range(1, 25)]
    assert infer([2, 4], tensor="x", box=":,0").json()["outputs"][0]["data"] == [1, 2, 3, 4, 13, 14, 15, 16]
    assert infer([2], tensor="x").status_code == 400
    assert infer([24], "INT32", tensor="x").status_code == 400
    assert infer([24], tensor="y").status_code == 404


def test_a_call_that_is_repeated_sees_the_new_tensor(held: AppClient) -> None:
    """The call cache knows no held tensors: each call looks them up."""
    for factor in (1, 2, 3):
        hold(held, "x", X * factor, "?replace=true")
        np.testing.assert_array_equal(result(held.post("/v1/onnx/Sub?B=@x", saved(X), NPY)), X - X * factor)
    hold(held, "x", X[0], "?replace=true")
    assert result(held.post("/v1/onnx/Sub?B=@x", saved(X), NPY)).shape == X.shape
    held.request("DELETE", "/v1/tensors/x")
    assert_problem(held.post("/v1/onnx/Sub?B=@x", saved(X), NPY), 410, "tensor-gone")


def test_what_refers_to_no_tensor(held: AppClient) -> None:
    for path in ("/v1/onnx/Neg?X=@", "/v1/onnx/Neg?X=@x[0", "/v1/onnx/Neg?X=@x[7]", "/v1/onnx/Neg?Y=@x"):
        problem = held.post(path, b"", {})
        assert problem.status_code in (400, 422), problem.text
    assert_problem(held.post("/v1/onnx/Neg?X=@y", b"", {}), 404, "tensor-not-found")
    assert_problem(held.post("/v1/onnx/Neg?X=@x", saved(X), NPY), 400, "body-length-mismatch")


def test_rows_of_an_answer_belong_to_the_tensors_that_it_was_made_of(held: AppClient) -> None:
    def rows(tag: str | None = None) -> Any:
        fields = {} if tag is None else {"if-range": tag}
        return held.post("/v1/onnx/Neg?X=@x&rows=1:", b"", fields)

    first = rows()
    np.testing.assert_array_equal(result(first), -X.reshape(6, 4)[1:])
    assert rows(first.headers["etag"]).status_code == 200
    hold(held, "x", X + 1, "?replace=true")
    assert_problem(rows(first.headers["etag"]), 412, "call-changed")


# ---- outputs that are kept -------------------------------------------------------------------------------------------


def test_an_output_is_kept_instead_of_sent(held: AppClient) -> None:
    before = held.service.admission.bytes_in_flight
    answer = held.post("/v1/onnx/Neg?X=@x&keep=y", b"", {})
    described = answer.json()
    assert answer.status_code == 200
    assert described["backend"] == "numpy"
    assert described["tensors"]["output"]["name"] == "y"
    assert described["tensors"]["output"]["sizes"] == [2, 3, 4]
    np.testing.assert_array_equal(read(held, "y"), -X)
    assert held.service.admission.bytes_in_flight == before + X.nbytes
    assert_problem(held.post("/v1/onnx/Neg?X=@x&keep=y", b"", {}), 409, "tensor-exists")
    assert held.post("/v1/onnx/Abs?X=@y&keep=y&replace=true", b"", {}).status_code == 200
    np.testing.assert_array_equal(read(held, "y"), X)


def test_several_outputs_have_a_name_each(held: AppClient) -> None:
    answer = held.post("/v1/onnx/Split?input=@x&axis=0&num_outputs=2&keep=one,", b"", {})
    one, two = answer.json()["tensors"].values()
    assert one["name"] == "one"
    np.testing.assert_array_equal(read(held, "one"), X[:1])
    np.testing.assert_array_equal(read(held, two["name"]), X[1:])
    for keep in ("new", "a,b,c", "a,a"):
        assert_problem(
            held.post(f"/v1/onnx/Split?input=@x&axis=0&num_outputs=2&keep={keep}", b"", {}), 400, "invalid-parameter"
        )
    assert_problem(held.post("/v1/onnx/Neg?X=@x&keep=a&replace=yes", b"", {}), 400, "invalid-parameter")
    assert_problem(held.post("/v1/onnx/Neg?X=@x&replace=true", b"", {}), 400, "invalid-parameter")
    assert_problem(held.post("/v1/onnx/Neg?X=@x&keep=-", b"", {}), 400, "invalid-parameter")


def test_what_fails_keeps_nothing(held: AppClient) -> None:
    hold(held, "index", np.array([7], np.int64))
    before = held.service.admission.bytes_in_flight
    answer = held.post("/v1/onnx/Gather?data=@x&indices=@index&keep=y", b"", {})
    assert_problem(answer, 422, "invalid-descriptor")
    assert held.service.admission.bytes_in_flight == before
    assert_problem(held.get("/v1/tensors/y"), 404, "tensor-not-found")


def test_of_several_outputs_all_are_kept_or_none(held: AppClient, monkeypatch: pytest.MonkeyPatch) -> None:
    store = held.service.tensors
    path, finish = "/v1/onnx/Split?input=@x&axis=0&num_outputs=2&keep=new,taken", KeptAnswer.finish

    async def taken_meanwhile(self: KeptAnswer) -> None:
        place = await store.place("", "taken", Layout.row_major(data_type("float32"), (1,)))
        await place.finish()
        await finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(KeptAnswer, "finish", taken_meanwhile)
        assert_problem(held.post(path, b"", {}), 409, "tensor-exists")
    assert_problem(held.get("/v1/tensors/new"), 404, "tensor-not-found")
    listed = asyncio.run(store.listed(""))
    assert held.service.admission.bytes_in_flight == sum(tensor.layout.size_in_bytes for tensor in listed)
    assert held.post(f"{path}&replace=true", b"", {}).status_code == 200


def test_outputs_of_a_stored_graph_are_kept(held: AppClient) -> None:
    held.request("PUT", "/v1/graphs/sum", content=json.dumps(SUM).encode(), headers=JSON)
    answer = held.post("/v1/graphs/sum?b=@ones&a=@x&keep=total", b"", {})
    assert [*answer.json()["tensors"]] == ["sum"]
    np.testing.assert_array_equal(read(held, "total"), X + 1)


# ---- whose, how long, how much ---------------------------------------------------------------------------------------


def test_a_tensor_belongs_to_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        name: {"x-api-key": commands.add_key(file, name, scopes=scopes)}
        for name, scopes in {"alice": ("run", "tensors"), "bob": ("run", "tensors"), "carl": ("run",)}.items()
    }
    with http_app(backend="numpy", keys_file=file) as app:
        assert hold(app, "x", X, **keys["alice"]).status_code == 201
        assert hold(app, "x", -X, **keys["bob"]).status_code == 201
        np.testing.assert_array_equal(result(app.get("/v1/tensors/x", headers=keys["alice"])), X)
        np.testing.assert_array_equal(result(app.get("/v1/tensors/x", headers=keys["bob"])), -X)
        hold(app, "secret", X, **keys["alice"])
        app.request("DELETE", "/v1/tensors/x", headers=keys["alice"])
        there, nowhere = (app.get(f"/v1/tensors/{name}", headers=keys["bob"]).json() for name in ("secret", "nothing"))
        assert {**there, "request_id": "", "tensor": "", "detail": there["detail"].replace("secret", "nothing")} == {
            **nowhere, "request_id": "", "tensor": ""
        }  # fmt: skip
        assert_problem(app.post("/v1/onnx/Neg?X=@secret", b"", keys["bob"]), 404, "tensor-not-found")
        assert [each["name"] for each in app.get("/v1/tensors", headers=keys["bob"]).json()["tensors"]] == ["x"]

        assert hold(app, "x", X, **keys["carl"]).status_code == 403
        answer = app.post("/v1/onnx/Neg?keep=y", saved(X), NPY | keys["carl"])
        assert_problem(answer, 403, "forbidden")
        for query in (
            "ke%65p=y",
            "%6b%65%65%70=y",
            "keep",
            "keep=",
            "ke%65p",
            "alpha=1&kee%70=y",
            "kee%70=y&replace=true",
        ):
            answer = app.post(f"/v1/onnx/Neg?{query}", saved(X), NPY | keys["carl"])
            assert_problem(answer, 403, "forbidden")
        assert app.service.tensors.count == 2
        assert app.request("DELETE", "/v1/tensors/x", headers=keys["carl"]).status_code == 403
        assert app.get("/v1/tensors", headers=keys["carl"]).json() == {"tensors": []}


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"max_held_tensors": 2}, "TENSORPOST_MAX_HELD_TENSORS"),
        ({"max_held_tensor_bytes": 2 * X.nbytes + 1}, "TENSORPOST_MAX_HELD_TENSOR_BYTES"),
    ],
)
def test_what_a_caller_may_hold_is_limited(settings: Mapping[str, int], setting: str) -> None:
    with http_app(backend="numpy", **settings) as app:
        assert [hold(app, name).status_code for name in ("a", "b")] == [201, 201]
        for answer in (hold(app, "c"), app.post("/v1/onnx/Neg?X=@a&keep=c", b"", {})):
            assert assert_problem(answer, 507, "insufficient-storage")["setting"] == setting
        assert app.service.admission.bytes_in_flight == 2 * X.nbytes
        app.request("DELETE", "/v1/tensors/a")
        assert hold(app, "c").status_code == 201


def test_a_tensor_that_is_still_read_counts_without_its_name() -> None:
    with http_app(backend="numpy", max_held_tensor_bytes=2 * X.nbytes + 1) as app:
        assert [hold(app, name).status_code for name in ("a", "b")] == [201, 201]
        tensor = asyncio.run(app.service.tensors.use("", "a"))
        assert app.request("DELETE", "/v1/tensors/a").status_code == 204
        assert_problem(hold(app, "c"), 507, "insufficient-storage")
        assert app.request("DELETE", "/v1/tensors/b").status_code == 204
        assert hold(app, "c").status_code == 201
        assert_problem(hold(app, "c", X, "?replace=true"), 507, "insufficient-storage")
        tensor.release()
        assert hold(app, "d").status_code == 201
        for name in ("c", "d"):
            app.request("DELETE", f"/v1/tensors/{name}")
        assert app.service.tensors.size_in_bytes == app.service.admission.bytes_in_flight == 0
        assert [hold(app, name).status_code for name in ("e", "f")] == [201, 201]


def test_a_graph_finds_no_room_beside_held_tensors() -> None:
    x = np.zeros(3 << 18, np.float32)
    limits = {"memory_bytes": 32 << 20, "caller_share": 1, "max_held_tensor_bytes": 1 << 30}
    constant = {"dtype": "F32", "shape": [1 << 14], "data": [0] * (1 << 14)}
    nodes = [{"name": "sum", "op_type": "Add", "inputs": ["a", "c"]}]
    graph = {"inputs": {"a": {}}, "constants": {"c": constant}, "nodes": nodes, "outputs": {"sum": "sum"}}
    with http_app(backend="numpy", **limits) as app:
        assert [hold(app, f"x{number}", x).status_code for number in range(5)] == [201] * 5
        assert hold(app, "rest", np.zeros(1000 << 10, np.uint8)).status_code == 201
        answer = app.request("PUT", "/v1/graphs/sum", content=json.dumps(graph), headers=JSON)
        problem = assert_problem(answer, 507, "insufficient-storage")
        assert problem["setting"] == "TENSORPOST_MEMORY_BYTES, half of it"
        assert app.request("DELETE", "/v1/tensors/x0").status_code == 204
        assert app.request("PUT", "/v1/graphs/sum", content=json.dumps(graph), headers=JSON).status_code == 201


def test_held_tensors_leave_half_of_the_memory_to_requests() -> None:
    x = np.zeros(3 << 18, np.float32)
    limits = {"memory_bytes": 32 << 20, "caller_share": 1, "max_held_tensor_bytes": 1 << 30}
    with http_app(backend="numpy", **limits) as app:
        answers = [hold(app, f"x{number}", x) for number in range(6)]
        assert [answer.status_code for answer in answers] == [201] * 5 + [507]  # of 3 MiB each, 16 MiB may stay
        assert "TENSORPOST_MEMORY_BYTES, half of it" in answers[5].json()["detail"]
        answer = result(app.post("/v1/onnx/Neg?X=@x0[:10]", b"", {}))
        assert math.isclose(answer.sum(), 0)


def test_what_nobody_uses_is_freed_and_says_so(app: AppClient) -> None:
    hold(app, "x")
    pass_time(app, used=3600)
    problem = assert_problem(app.get("/v1/tensors/x"), 410, "tensor-gone")
    assert problem["reason"] == "idle"
    assert "TENSORPOST_HELD_TENSOR_IDLE_SECONDS" in problem["detail"]
    assert app.service.admission.bytes_in_flight == 0
    hold(app, "y")
    pass_time(app, used=3600)
    app.service.sweep()
    assert app.service.tensors.count == 0


def test_a_use_renews_the_time() -> None:
    with http_app(backend="numpy", held_tensor_idle_seconds=100, held_tensor_seconds=1000) as app:
        hold(app, "x")
        pass_time(app, used=99)
        app.post("/v1/onnx/Neg?X=@x", b"", {})
        (held,) = asyncio.run(app.service.tensors.listed(""))
        assert time.monotonic() - held.used < 50
        tensor = asyncio.run(app.service.tensors.use("", "x"))  # by a request that reads it, however long
        pass_time(app, used=101)
        app.service.sweep()
        assert app.service.tensors.count == 1
        pass_time(app, began=1000)
        problem = assert_problem(app.get("/v1/tensors/x"), 410, "tensor-gone")
        assert problem["reason"] == "expired"
        assert "TENSORPOST_HELD_TENSOR_SECONDS" in problem["detail"]
        assert app.service.admission.bytes_in_flight == X.nbytes  # until that request has ended
        assert bytes(tensor.data) == X.tobytes()
        tensor.release()
        assert app.service.admission.bytes_in_flight == 0


def test_what_is_known_of_tensors_that_are_gone_is_bounded(app: AppClient) -> None:
    hold(app, "first")
    app.request("DELETE", "/v1/tensors/first")
    hold(app, "second")
    with app.service.group.database.change() as database:
        rows = [("", str(number), "deleted", 0.0) for number in range(MOST_GONE - 1)]
        database.executemany("INSERT INTO tensors_gone (owner, name, reason, at) VALUES (?, ?, ?, ?)", rows)
    assert_problem(app.get("/v1/tensors/first"), 410, "tensor-gone")
    app.request("DELETE", "/v1/tensors/second")
    assert_problem(app.get("/v1/tensors/first"), 404, "tensor-not-found")
    assert_problem(app.get("/v1/tensors/second"), 410, "tensor-gone")


def test_metrics_count_held_tensors(app: AppClient) -> None:
    hold(app, "x")
    hold(app, "x", X, "?replace=true")
    hold(app, "y")
    app.request("DELETE", "/v1/tensors/y")
    text = app.get("/metrics").text
    assert "tensorpost_held_tensors 1.0" in text
    assert f"tensorpost_held_tensor_bytes {float(X.nbytes)}" in text
    assert 'tensorpost_held_tensors_dropped_total{reason="deleted"} 1.0' in text
    assert 'tensorpost_held_tensors_dropped_total{reason="replaced"} 1.0' in text


def test_a_header_field_frees_tensors(app: AppClient) -> None:
    for name in ("a", "b", "c"):
        hold(app, name)
    answer = app.post("/v1/onnx/Neg?X=@c", b"", {"tensorpost-free": "a,b,never"})
    np.testing.assert_array_equal(result(answer), -X)
    assert [each["name"] for each in app.get("/v1/tensors").json()["tensors"]] == ["c"]
    assert app.get("/v2/health/live", headers={"tensorpost-free": "c"}).status_code == 200
    assert app.get("/v1/tensors").json() == {"tensors": []}


def test_a_body_that_breaks_off_takes_nothing() -> None:
    with serving(backend="numpy") as server, server.wire() as wire:
        target, kind = "/v1/tensors/x?data_type=uint8&sizes=1000000", "application/octet-stream"
        head = f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: 1000000\r\n\r\n"
        wire.send(head.encode() + b"1234")
        service = server.app.state.service
        deadline = time.monotonic() + 10
        while not service.tensors.size_in_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert service.tensors.size_in_bytes == 1_000_000
        wire.close()
        while service.tensors.size_in_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert service.tensors.size_in_bytes == service.admission.bytes_in_flight == service.tensors.count == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content-length": None},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json"},
        {"content-type": "application/vnd.safetensors"},
        {"content-type": "text/plain", "content-length": None},
    ],
    ids=str,
)
def test_where_all_inputs_are_held_no_body_is_needed(app: AppClient, fields: dict[str, str | None]) -> None:
    """As `curl -X POST` sends it, which has no Content-Length, and `curl -d ''`."""
    hold(app, "x")
    app.request("PUT", "/v1/graphs/sum", content=json.dumps(SUM).encode(), headers=JSON)
    for path, expected in (
        ("/v1/onnx/Neg?X=@x", -X),
        ("/v1/operators/tile?input=%40x&repeats=1,1,2", np.tile(X, 2)),
        ("/v1/graphs/sum?a=@x&b=@x", X + X),
    ):
        request = app.client.build_request("POST", path, content=b"", headers={k: v for k, v in fields.items() if v})
        if "content-length" in fields:
            del request.headers["content-length"]
        answer = app.run(app.client.send(request))
        np.testing.assert_array_equal(result(answer), expected)


def test_where_an_input_is_missing_beside_a_held_one_it_is_named(app: AppClient) -> None:
    hold(app, "x")
    problem = assert_problem(app.post("/v1/onnx/Add?A=@x&opset=14", b"", {}), 400, "tensor-mismatch")
    assert "takes the tensors 'A', 'B'; the body has 'A'" in problem["detail"]
