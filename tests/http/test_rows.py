"""`rows=begin:end` and `If-Range`: parts of an output are bytes of the whole; parts of another call are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    assert_problem,
    frame_bytes,
    http_app,
    npy_array,
    npy_bytes,
    serving,
    split_frame,
)

X = np.random.default_rng(0).random((2, 3, 5, 7)).astype(np.float32)
TILE = "/v1/operators/tile?repeats=1,1,40,3&backend=numpy"
WHOLE = np.tile(X, (1, 1, 40, 3))
ROWS = WHOLE.reshape(-1, 21)


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(slice_bytes=4096, numpy_threads=2) as client:  # a slice has some 48 rows of 84 bytes
        yield client


def tag_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["etag"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_are_those_of_the_whole(app: AppClient, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(ROWS) - 1))
    end = data.draw(st.integers(begin + 1, len(ROWS)))
    answer = app.post(f"{TILE}&rows={begin}:{end}", npy_bytes(X))
    assert answer.status_code == 200, answer.text
    np.testing.assert_array_equal(npy_array(answer.content), ROWS[begin:end])
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    ("rows", "begin", "end"), [("7:", 7, None), (":9", None, 9), (":", None, None), ("0:1200", 0, 1200)]
)
def test_either_end_may_be_left_out(app: AppClient, rows: str, begin: int | None, end: int | None) -> None:
    np.testing.assert_array_equal(npy_array(app.post(f"{TILE}&rows={rows}", npy_bytes(X)).content), ROWS[begin:end])


def test_a_frame_says_which_rows_it_has(app: AppClient) -> None:
    document = json.dumps({"type": "TILE", "desc": {"Repeats": [1, 1, 40, 3]}})
    body = frame_bytes({"input": ("F32", list(X.shape), X.tobytes())}, {"op": document})
    head, buffers = split_frame(app.post("/v1/operators/tile?rows=5:8", body, FRAME).content)
    assert head["output"]["shape"] == [3, 21]
    assert head["__metadata__"]["rows"] == "5:8/1200"
    assert buffers["output"] == ROWS[5:8].tobytes()


def test_raw_bytes_have_the_shape_of_the_rows(app: AppClient) -> None:
    fields = {"content-type": "application/octet-stream", "tensorpost-shape": "2,3,5,7", "tensorpost-dtype": "float32"}
    answer = app.post(f"{TILE}&rows=5:8", X.tobytes(), fields)
    assert answer.headers["tensorpost-shape"] == "3,21"
    assert answer.content == ROWS[5:8].tobytes()


@pytest.mark.parametrize(
    ("path", "x", "expected"),
    [
        ("/v1/operators/cumulative_summation?axis=0&rows=3:6", np.arange(9.0, dtype=np.float32), [6, 10, 15]),
        ("/v1/onnx/Tile?repeats=3&rows=3:6", np.arange(4, dtype=np.int8), [3, 0, 1]),
        ("/v1/onnx/Transpose?perm=1,0&rows=1:2", np.arange(6.0).reshape(2, 3), [[1, 4]]),
    ],
)
def test_rows_of_a_line_are_elements(app: AppClient, path: str, x: Any, expected: Any) -> None:
    answer = app.post(path, npy_bytes(x))
    assert answer.status_code == 200, answer.text
    np.testing.assert_array_equal(npy_array(answer.content), expected)


def test_rows_of_a_graph(app: AppClient) -> None:
    nodes = [{"name": "a", "op_type": "Softmax", "inputs": "x", "attributes": {"axis": 0}},
             {"name": "b", "op_type": "Neg", "inputs": "a"}]  # fmt: skip
    document = {"inputs": {"x": {"data_type": "FLOAT32", "sizes": [300, 4]}}, "nodes": nodes, "outputs": {"y": "b"}}
    x = np.random.default_rng(1).random((300, 4)).astype(np.float32)
    body = frame_bytes({"x": ("F32", [300, 4], x.tobytes())}, {"graph": json.dumps(document)})
    _, whole = split_frame(app.post("/v1/graphs", body, FRAME).content)
    _, part = split_frame(app.post("/v1/graphs?rows=100:300", body, FRAME).content)
    assert part["y"] == whole["y"][100 * 16 :]


# ---- the tag ---------------------------------------------------------------------------------------------------------


def test_the_tag_is_the_digest_that_the_wire_defines_and_the_backend(app: AppClient) -> None:
    body = npy_bytes(X)
    lines = b"/v1/operators/tile\nrepeats=1,1,40,3\napplication/x-npy\n\n\n"
    assert tag_of(app.post(f"{TILE}&rows=0:1", body)) == f'"{hashlib.sha256(lines + body).hexdigest()}-numpy"'


@pytest.mark.parametrize("name", ["rows", "r%6fws", "%72%6F%77%73"])
def test_the_tag_tells_tensors_apart_however_the_name_is_encoded(app: AppClient, name: str) -> None:
    tags = [tag_of(app.post(f"{TILE}&{name}=7:", npy_bytes(X + add))) for add in (0, 1, 0)]
    assert tags[0] == tags[2] != tags[1]


def test_the_rest_is_sent_to_a_caller_with_the_tag(app: AppClient) -> None:
    first = app.post(f"{TILE}&rows=:50", npy_bytes(X))
    rest = app.post(f"{TILE}&rows=50:", npy_bytes(X), {**NPY, "if-range": tag_of(first)})
    assert tag_of(rest) == tag_of(first)
    np.testing.assert_array_equal(np.vstack([npy_array(first.content), npy_array(rest.content)]), ROWS)


@pytest.mark.parametrize("large", [False, True])
def test_another_input_is_refused(app: AppClient, large: bool) -> None:
    x = np.tile(X, (1, 1, 40, 4)) if large else X  # the digest of a large body is computed on a thread
    tag = tag_of(app.post(f"{TILE}&rows=:50", npy_bytes(x)))
    other = x.copy()
    other[-1, -1, -1, -1] += 1
    answer = app.post(f"{TILE}&rows=50:", npy_bytes(other), {**NPY, "if-range": tag})
    assert "belongs to another call" in assert_problem(answer, 412, "call-changed")["detail"]


def test_another_operation_is_refused(app: AppClient) -> None:
    tag = tag_of(app.post(f"{TILE}&rows=:50", npy_bytes(X)))
    other = "/v1/operators/tile?repeats=1,1,3,4&backend=numpy&rows=50:"
    assert_problem(app.post(other, npy_bytes(X), {**NPY, "if-range": tag}), 412, "call-changed")
    assert_problem(app.post(f"{TILE}&rows=50:", npy_bytes(X), {**NPY, "if-range": '"x"'}), 412, "call-changed")


def test_another_backend_is_refused(app: AppClient) -> None:
    tag = tag_of(app.post(f"{TILE}&rows=:50", npy_bytes(X))).replace("-numpy", "-cuda")
    answer = app.post(f"{TILE}&rows=50:", npy_bytes(X), {**NPY, "if-range": tag})
    detail = assert_problem(answer, 412, "call-changed")["detail"]
    assert "that cuda computed" in detail
    assert "send backend=cuda" in detail


def test_without_rows_there_is_no_tag_and_if_range_means_nothing(app: AppClient) -> None:
    answer = app.post(TILE, npy_bytes(X), {**NPY, "if-range": '"x"'})
    assert "etag" not in answer.headers
    np.testing.assert_array_equal(npy_array(answer.content), WHOLE)


def test_the_tag_of_a_body_over_a_socket_is_the_same(app: AppClient) -> None:
    """There the server receives straight into memory, and heads are found in the call cache the second time."""
    document = json.dumps({"type": "TILE", "desc": {"Repeats": [1, 1, 40, 3]}})
    body = frame_bytes({"input": ("F32", list(X.shape), X.tobytes())}, {"op": document})
    large = np.tile(X, (1, 1, 400, 4))
    with serving(numpy_threads=1) as server, httpx.Client(base_url=server.url) as http:
        for content, fields in ((body, FRAME), (npy_bytes(large), NPY), (npy_bytes(X), NPY)):
            path = "/v1/operators/tile?rows=2:5&backend=numpy"
            path += "" if fields is FRAME else "&repeats=1,1,2,1"
            tags = {tag_of(http.post(path, content=content, headers=fields)) for _ in range(3)}
            chunked = iter([content[:100], content[100:]])
            tags.add(tag_of(http.post(path, content=chunked, headers=fields)))
            assert tags == {tag_of(app.post(path, content, fields))}


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("5", "must be begin:end, as in 128:256"),
        ("a:b", "must be begin:end"),
        ("-1:4", "must be begin:end"),
        ("", "must be begin:end"),
        ("5:5", "0 <= begin < end <= 1200"),
        ("7:5", "0 <= begin < end <= 1200"),
        ("5:1201", "rows is 5:1201; it must be begin:end with 0 <= begin < end <= 1200"),
        ("1200:", "rows is 1200:; it must be"),
    ],
)
def test_what_is_wrong_is_named(app: AppClient, rows: str, said: str) -> None:
    problem = assert_problem(app.post(f"{TILE}&rows={rows}", npy_bytes(X)), 400, "invalid-parameter")
    assert said in problem["detail"]
    assert problem["parameter"] == "rows"


def test_rows_twice(app: AppClient) -> None:
    assert_problem(app.post(f"{TILE}&rows=1:2&rows=1:2", npy_bytes(X)), 400, "invalid-parameter")


def test_forms_that_do_not_stream_have_no_rows(app: AppClient) -> None:
    for accept in ("application/json", "application/x-npz", "image/png"):
        answer = app.post(f"{TILE}&rows=1:2", npy_bytes(np.zeros((1, 1, 5, 7), np.uint8)), {**NPY, "accept": accept})
        assert answer.status_code == 406, answer.text
    call = json.dumps({"tensors": {"input": {"dtype": "F32", "shape": [2], "data": [1, 2]}}}).encode()
    path = "/v1/operators/tile?repeats=2&rows=1:2"
    answer = app.post(path, call, {**JSON, "accept": "application/json"})
    assert "rows are sent as npy" in assert_problem(answer, 406, "not-acceptable")["detail"]
    assert npy_array(app.post(path, call, JSON).content).tolist() == [2]


def test_several_outputs_have_no_rows(app: AppClient) -> None:
    answer = app.post(
        "/v1/onnx/Split?axis=0&num_outputs=2&rows=0:1", npy_bytes(X), {**NPY, "accept": FRAME["content-type"]}
    )
    assert "rows select from a single output" in assert_problem(answer, 400, "invalid-parameter")["detail"]


def test_outputs_with_gaps_or_without_elements_have_no_rows(app: AppClient) -> None:
    strided = {"DataType": "FLOAT32", "Sizes": [2, 2], "Strides": [4, 1]}
    document = {"type": "TILE", "desc": {"Repeats": [1, 1], "OutputTensor": strided}}
    body = frame_bytes({"input": ("F32", [2, 2], bytes(16))}, {"op": json.dumps(document)})
    answer = app.post("/v1/operators/tile?rows=0:1", body, FRAME)
    assert "strides or padding" in assert_problem(answer, 400, "invalid-parameter")["detail"]
    answer = app.post("/v1/onnx/Tile?repeats=0&rows=0:1", npy_bytes(np.zeros(4, np.int8)))
    assert "this output has none" in assert_problem(answer, 400, "invalid-parameter")["detail"]
