"""Whatever is wrong: one shape, the right status, the place of the mistake; and the server serves on."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import strategies as ours
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    Controlled,
    assert_problem,
    frame_bytes,
    http_app,
    npy_bytes,
    use_backend,
)

from tensorpost import problems
from tensorpost.values.problems import ConnectionProblem, TensorpostError
from tensorpost_server.http.error_responses import STATUS, status_of

TILE = "/v1/operators/tile"
X = np.arange(6, dtype="<f4").reshape(2, 3)


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(
        max_head_bytes=4096, max_json_bytes=20_000, max_json_elements=100, max_body_bytes=1_000_000,
        max_output_bytes=10_000_000, memory_bytes=8_000_000,
    ) as client:  # fmt: skip
        yield client


@pytest.fixture(autouse=True)
def nothing_is_lent_out_afterwards(app: AppClient) -> Iterator[None]:
    yield
    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}
    assert app.post(TILE + "?repeats=1,2", npy_bytes(X)).status_code == 200, "the server does not serve on"


# ---- bodies that are wrong on purpose --------------------------------------------------------------------------------


def npy_text(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An npy file with this header text."""
    text = header.encode("latin-1") + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def npz_of(**arrays: Any) -> bytes:
    """An archive as NumPy saves it."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy_of(descr: str = "<f4", fortran: bool = False, shape: str = "(2, 3)", data: bytes = bytes(24)) -> bytes:
    return npy_text(f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}", data)


def op(desc: dict[str, Any], kind: Any = "TILE") -> dict[str, str]:
    return {"op": json.dumps({"type": kind, "desc": desc})}


def framed(
    desc: dict[str, Any], data: bytes = X.tobytes(), shape: tuple[int, ...] = (2, 3), dtype: str = "F32"
) -> bytes:
    return frame_bytes({"input": (dtype, shape, data)}, op(desc))


def call(desc: dict[str, Any] | None = None, **tensor: Any) -> bytes:
    content = {"dtype": "F32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6], **tensor}
    document: dict[str, Any] = {"tensors": {"input": content}}
    if desc is not None:
        document["op"] = {"type": "TILE", "desc": desc}
    return json.dumps(document).encode()


def tensor(sizes: list[int], data_type: str = "FLOAT32", **fields: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": sizes, **fields}


F64, OBJECT = npy_bytes(np.zeros((2, 3))), npy_bytes(np.array([None, 1], object))
FORTRAN = npy_bytes(np.asfortranarray(X))
U64_HEAD = (2**64 - 1).to_bytes(8, "little") + b"{}"
DEEP = b'{"op":' * 100_000

Q = TILE + "?repeats=1,2"
R = {"Repeats": [1, 2]}
# name: (path, body, headers, status, code of the problem, code of a violation and its path, words of the detail)
BAD: dict[str, tuple[str, bytes, dict[str, str], int, str, tuple[str, str] | None, str]] = {
    # the path and the query
    "unknown operator": (
        "/v1/operators/tyle", npy_bytes(X), NPY, 404, "unknown-operator", None, "did you mean 'TILE'?"
    ),
    "operator of nothing we know": ("/v1/operators/%F0%9F%98%80", b"", NPY, 404, "unknown-operator", None, "lists"),
    "an endless operator": ("/v1/operators/" + "t" * 5000, b"", NPY, 404, "unknown-operator", None, "there is no"),
    "nothing there": ("/v1/operator/tile", npy_bytes(X), NPY, 404, "not-found", None, "/v1/operator/tile"),
    "unknown parameter": (TILE + "?repeat=1,2", npy_bytes(X), NPY, 400, "invalid-parameter", None, "mean 'repeats'"),
    "parameter twice": (Q + "&repeats=1,2", npy_bytes(X), NPY, 400, "invalid-parameter", None, "twice"),
    "unknown backend": (Q + "&backend=nunpy", npy_bytes(X), NPY, 400, "invalid-parameter", None, "mean 'numpy'"),
    "empty backend": (Q + "&backend=", npy_bytes(X), NPY, 400, "invalid-parameter", None, "there is no backend"),
    "unknown level": (Q + "&feature_level=9_9", npy_bytes(X), NPY, 400, "invalid-parameter", None, "6_4"),
    "empty level": (Q + "&feature_level=", npy_bytes(X), NPY, 400, "invalid-parameter", None, "6_4"),
    # forms
    "no Content-Type": (Q, npy_bytes(X), {}, 415, "unsupported-media-type", None, "application/x-npy"),
    "unknown Content-Type": (
        Q, npy_bytes(X), {"content-type": "image/tiff"}, 415, "unsupported-media-type", None, "tiff"
    ),
    "Content-Encoding": (
        Q, npy_bytes(X), NPY | {"content-encoding": "gzip"}, 415, "unsupported-media-type", None, "gzip"
    ),
    "Accept that is none": (Q, npy_bytes(X), NPY | {"accept": "text/csv"}, 406, "not-acceptable", None, "x-npy"),
    "Accept with a bad weight": (
        Q, npy_bytes(X), NPY | {"accept": "*/*;q=x"}, 400, "invalid-parameter", None, "quality"
    ),
    "npy sent as a frame": (Q, npy_bytes(X), FRAME, 400, "invalid-frame", None, "an npy file"),
    "the name of an npy file": (Q, b"x.npy", NPY, 400, "invalid-frame", None, "before its name: --data-binary @x.npy"),
    "a plain JSON array": (
        Q, b"[[1, 2], [3, 4]]", JSON, 422, "invalid-descriptor", ("document", "$"),
        r'must be {\"tensors\": {\"input\": {\"dtype\": \"F32\", \"shape\": [2, 2], \"data\": [1, 2, 3, 4]}}}',
    ),
    "a frame sent as npy": (Q, framed(R), NPY, 400, "invalid-frame", None, "npy file begins with"),
    "JSON sent as a frame": (Q, call(R), FRAME, 400, "invalid-frame", None, "JSON text"),
    "npy sent as JSON": (Q, npy_bytes(X), JSON, 400, "invalid-json", None, "UTF-8"),
    # npy
    "empty npy": (Q, b"", NPY, 400, "body-length-mismatch", None, "the body is empty"),
    "npy cut in its head": (Q, npy_bytes(X)[:50], NPY, 400, "body-length-mismatch", None, "128"),
    "npy cut in its data": (Q, npy_bytes(X)[:-1], NPY, 400, "body-length-mismatch", None, "151"),
    "npy with a byte too many": (Q, npy_bytes(X) + b"x", NPY, 400, "body-length-mismatch", None, "153"),
    "npy of objects": (Q, OBJECT, NPY, 400, "invalid-frame", ("data-type-unknown", "$.descr"), "Python objects"),
    "npy in Fortran's order": (
        Q, FORTRAN, NPY, 400, "invalid-frame", ("fortran-order", "$.fortran_order"), "row-major"
    ),
    "npy of version 4": (Q, npy_text("{}", b"", (4, 0)), NPY, 400, "invalid-frame", None, "version 4.0"),
    "npy of a structure": (
        Q, npy_text("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", bytes(8)), NPY,
        400, "invalid-frame", ("data-type-unknown", "$.descr"), "structured",
    ),
    "npy big-endian": (Q, npy_of(">f4"), NPY, 400, "invalid-frame", ("byte-order", "$.descr"), "big-endian"),
    "npy of text": (Q, npy_of("<U4"), NPY, 400, "invalid-frame", ("data-type-unknown", "$.descr"), "text"),
    "npy with code in it": (
        Q, npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }"), NPY,
        400, "invalid-frame", None, "nothing is evaluated",
    ),
    "npy with a negative size": (
        Q, npy_of(shape="(2, -3)"), NPY, 400, "invalid-frame", ("shape-size", "$.shape[1]"), ""
    ),
    "npy with an absurd size": (
        Q, npy_of(shape=f"({2**62}, {2**62})"), NPY, 400, "invalid-frame", ("shape-too-large", "$.shape"), "64-bit",
    ),
    "npy with a size that is a lie": (
        Q, npy_of(shape=f"({2**40},)"), NPY, 400, "body-length-mismatch", None, "describes"
    ),
    "npy with a long head": (
        Q, npy_text("{" + " " * 5000 + "}"), NPY, 413, "limit-exceeded", None, "TENSORPOST_MAX_HEAD_BYTES"
    ),
    # frames
    "npy that curl's -d cut at its first zero byte": (
        Q, npy_bytes(X)[:7], NPY, 400, "body-length-mismatch", None, "with curl use --data-binary"
    ),
    "empty frame": (TILE, b"", FRAME, 400, "body-length-mismatch", None, "the body is empty"),
    "frame with a head of 2^64 bytes": (TILE, U64_HEAD, FRAME, 413, "limit-exceeded", None, "MAX_HEAD_BYTES"),
    "frame whose head is longer than it": (
        TILE, (500).to_bytes(8, "little") + b"{}", FRAME, 400, "body-length-mismatch", None, "508"
    ),
    "frame with a byte too many": (TILE, framed(R) + b"x", FRAME, 400, "body-length-mismatch", None, "in all"),
    "frame cut": (TILE, framed(R)[:-1], FRAME, 400, "body-length-mismatch", None, "in all"),
    "frame of a lie": (
        TILE, framed(R, shape=(2, 4)), FRAME, 400, "invalid-frame", ("offsets-span", "$.input.data_offsets"), "32"
    ),
    "frame without the tensor": (TILE, frame_bytes({}, op(R)), FRAME, 400, "tensor-mismatch", None, "body has none"),
    "frame with another tensor": (
        TILE, frame_bytes({"x": ("F32", (2, 3), X.tobytes())}, op(R)), FRAME, 400, "tensor-mismatch", None, "'input'"
    ),
    "frame with one tensor more": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes()), "y": ("U8", (1,), b"x")}, op(R)), FRAME,
        400, "tensor-mismatch", None, "'y'",
    ),
    "frame whose operator is no JSON": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": "{'type'"}), FRAME, 400, "invalid-json", None,
        "$.op",
    ),
    "frame whose operator is no object": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": "[]"}), FRAME,
        400, "invalid-json", None, "$.op"
    ),
    "frame whose operator is empty": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": "{}"}), FRAME,
        422, "invalid-descriptor", ("document", "$.type"), "",
    ),
    "frame whose operator has no type": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": '{"desc": {"Repeats": [1, 2]}}'}), FRAME,
        422, "invalid-descriptor", ("document", "$.type"), "",
    ),
    "frame for another operator": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, op(R, "RESAMPLE")), FRAME,
        400, "invalid-parameter", None, "the path names TILE",
    ),
    "frame for an unknown operator": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, op(R, "TIEL")), FRAME, 404, "unknown-operator", None,
        "'TILE'",
    ),
    "JSON with a tensor of another name": (
        Q, json.dumps({"tensors": {"x": {"dtype": "F32", "shape": [1], "data": [1]}}}).encode(), JSON,
        400, "tensor-mismatch", None, "takes the tensors 'input'; the body has 'x'",
    ),
    "npz with arrays of other names": (
        "/v1/operators/element_wise_add", npz_of(p=X, q=X), {"content-type": "application/x-npz"},
        400, "tensor-mismatch", None, "the body has 'p', 'q'; an npz archive's arrays have these names",
    ),
    "npy to an operator of two inputs": (
        "/v1/operators/element_wise_add", npy_bytes(X), NPY, 400, "tensor-mismatch", None, "a, b are taken; several"
    ),
    "document and query": (Q, framed(R), FRAME, 400, "invalid-parameter", None, "remove repeats"),
    "tensor that is not what the document says": (
        TILE, framed({"InputTensor": tensor([3, 2]), **R}), FRAME, 400, "tensor-mismatch", None, "[3, 2]"
    ),
    "a typed tensor for a strided description": (
        TILE, framed({"InputTensor": tensor([2, 3], Strides=[4, 1]), **R}), FRAME,
        400, "tensor-mismatch", None, "InputTensor has Strides: send the tensor's whole buffer as U8 of 28 bytes",
    ),
    # JSON
    "empty JSON": (TILE, b"", JSON, 400, "invalid-json", None, "the JSON text is empty"),
    "no object": (TILE, b"[]", JSON, 422, "invalid-descriptor", ("document", "$"), "the body must be"),
    "duplicate keys": (
        TILE, b'{"tensors": {}, "tensors": {}}', JSON, 400, "invalid-json", None, "'tensors' occurs twice"
    ),
    "duplicate keys in a frame's head": (
        TILE, (16).to_bytes(8, "little") + b'{"a":1,"a":2}   ', FRAME, 400, "invalid-frame", None, "occurs twice"
    ),
    "duplicate keys in a frame's operator": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": '{"type":"TILE","type":"TILE"}'}), FRAME,
        400, "invalid-json", None, "occurs twice",
    ),
    "deep JSON": (TILE, DEEP[:19_000], JSON, 400, "invalid-json", None, "deeper"),
    "deep JSON in a frame's operator": (
        TILE, frame_bytes({"input": ("F32", (2, 3), X.tobytes())}, {"op": "[" * 1000}), FRAME,
        400, "invalid-json", None, "deeper",
    ),
    "deep JSON in the query": (TILE + "?repeats=" + "[" * 2000, npy_bytes(X), NPY, 422, "invalid-descriptor", None, ""),
    "long JSON": (TILE, b" " * 20_001, JSON, 413, "limit-exceeded", None, "TENSORPOST_MAX_JSON_BYTES"),
    "JSON that is not UTF-8": (TILE, b'{"\xff": 1}', JSON, 400, "invalid-json", None, "UTF-8"),
    "NaN": (TILE, call(R, data=[float("nan")] * 6), JSON, 400, "invalid-json", None, "NaN is not a JSON number"),
    "NaN in integers": (TILE, call(R, dtype="I32", data=[float("nan")] * 6), JSON, 400, "invalid-json", None, "NaN"),
    "a fraction in integers": (
        TILE, call(R, dtype="I32", data=[1, 2, 3, 4, 5, 6.5]), JSON,
        422, "invalid-descriptor", ("element-type", "$.tensors.input.data[5]"), "whole number",
    ),
    "null in integers": (
        TILE, call(R, dtype="I32", data=[1, None, 3, 4, 5, 6]), JSON,
        422, "invalid-descriptor", ("element-type", "$.tensors.input.data[1]"), "",
    ),
    "an integer too large": (
        TILE, call(R, dtype="I8", data=[1, 2, 3, 4, 5, 128]), JSON,
        422, "invalid-descriptor", ("element-range", "$.tensors.input.data[5]"), "127",
    ),
    "elements too few": (
        TILE, call(R, data=[1, 2]), JSON, 422, "invalid-descriptor", ("data-count", "$.tensors.input.data"), "needs 6"
    ),
    "an unknown member": (
        TILE, b'{"tensors": {}, "operator": 1}', JSON, 422, "invalid-descriptor", ("document", "$.operator"), ""
    ),
    "an id that is no text": (
        TILE, b'{"tensors": {}, "id": 7}', JSON, 422, "invalid-descriptor", ("document", "$.id"), "text"
    ),
    "JSON answer too long": (
        TILE + "?repeats=100,1", npy_bytes(X), NPY | {"accept": "application/json"}, 413, "limit-exceeded", None,
        "TENSORPOST_MAX_JSON_ELEMENTS",
    ),
    # what DirectML forbids
    "wrong type": (
        Q + "&feature_level=4_1", F64, NPY,
        422, "unsupported-at-feature-level", ("data-type-unsupported", "$.desc.InputTensor.DataType"), "FLOAT64"
    ),
    "a type DirectML has not": (
        TILE, framed(R, bytes(6), (2, 3), "BOOL"), FRAME,
        422, "invalid-descriptor", ("data-type-unsupported", "$.input.dtype"),
        "bool",
    ),
    "types that differ": (
        TILE, framed({"OutputTensor": tensor([2, 6], "INT32"), **R}), FRAME,
        422, "invalid-descriptor", ("data-types-differ", "$.desc.OutputTensor.DataType"), "",
    ),
    "rank 0": (
        Q, npy_of(shape="()", data=bytes(4)), NPY,
        422, "invalid-descriptor", ("dimension-count", "$.desc.InputTensor.Sizes"), ""
    ),
    "rank 9": (
        TILE + "?repeats=" + ",".join("1" * 9), npy_of(shape="(" + "1," * 9 + ")", data=bytes(4)), NPY,
        422, "invalid-descriptor", ("dimension-count", "$.desc.InputTensor.Sizes"), "",
    ),
    "ranks that differ": (
        TILE, framed({"OutputTensor": tensor([2, 3, 2]), **R}), FRAME,
        422, "invalid-descriptor", ("dimension-counts-differ", "$.desc.OutputTensor.Sizes"), "",
    ),
    "too few repeats": (
        TILE + "?repeats=2", npy_bytes(X), NPY,
        422, "invalid-descriptor", ("array-length", "$.desc.Repeats"), "2 dimensions"
    ),
    "no repeats": (TILE, npy_bytes(X), NPY, 422, "invalid-descriptor", ("field-missing", "$.desc.Repeats"), ""),
    "empty repeats": (
        TILE + "?repeats=", npy_bytes(X), NPY, 422, "invalid-descriptor", ("not-an-integer", "$.desc.Repeats[0]"), ""
    ),
    "a repeat that is a fraction": (
        TILE + "?repeats=1,1.5", npy_bytes(X), NPY,
        422, "invalid-descriptor", ("not-an-integer", "$.desc.Repeats[1]"), ""
    ),
    "a negative repeat": (
        TILE + "?repeats=1,-1", npy_bytes(X), NPY, 422, "invalid-descriptor", ("out-of-range", "$.desc.Repeats[1]"), ""
    ),
    "a repeat of 0": (
        TILE + "?repeats=1,0", npy_bytes(X), NPY, 422, "invalid-descriptor", ("repeat-zero", "$.desc.Repeats[1]"), ""
    ),
    "a count that disagrees": (
        TILE, framed({"RepeatsCount": 3, **R}), FRAME,
        422, "invalid-descriptor", ("count-disagrees", "$.desc.RepeatsCount"), ""
    ),
    "an output size that does not follow": (
        TILE, framed({"OutputTensor": tensor([2, 5]), **R}), FRAME,
        422, "invalid-descriptor", ("output-sizes", "$.desc.OutputTensor.Sizes"), "[2, 6]",
    ),
    "a size of 0": (
        Q, npy_of(shape="(0, 3)", data=b""), NPY,
        422, "invalid-descriptor", ("size-zero", "$.desc.InputTensor.Sizes[0]"), ""
    ),
    "strides that reach outside the buffer": (
        TILE,
        framed({"InputTensor": tensor([2, 3], Strides=[9, 1], TotalTensorSizeInBytes=44), **R}, bytes(44), (44,), "U8"),
        FRAME, 422, "invalid-descriptor", ("total-size-too-small", "$.desc.InputTensor.TotalTensorSizeInBytes"), "48",
    ),
    "a stride that wraps 32 bits": (
        TILE,
        framed(
            {"InputTensor": tensor([65536, 2], Strides=[65537, 1], TotalTensorSizeInBytes=4), **R}, bytes(4), (4,), "U8"
        ),
        FRAME, 422, "invalid-descriptor", ("too-many-elements", "$.desc.InputTensor.Strides"), "4294967297",
    ),
    "a buffer shorter than described": (
        TILE, framed({"InputTensor": tensor([2, 3], Strides=[9, 1]), **R}, bytes(44), (44,), "U8"), FRAME,
        400, "tensor-mismatch", None, "U8 with shape [48]",
    ),
    "an output that overlaps": (
        TILE, framed({"OutputTensor": tensor([2, 6], Strides=[5, 1]), **R}), FRAME,
        422, "invalid-descriptor", ("strides-overlap", "$.desc.OutputTensor.Strides"), "",
    ),
    "an output of one element for all": (
        TILE, framed({"OutputTensor": tensor([2, 6], Strides=[0, 0]), **R}), FRAME,
        422, "invalid-descriptor", ("strides-overlap", "$.desc.OutputTensor.Strides"), "",
    ),
    "an output of 2^32 elements": (
        TILE + "?repeats=65536,32768", npy_bytes(np.zeros((1, 2), "u1")), NPY,
        422, "invalid-descriptor", ("too-many-elements", "$.desc.OutputTensor.Sizes"), "4294967295",
    ),
    "a product beyond 64 bits": (
        TILE + "?repeats=4294967295,4294967295", npy_bytes(X), NPY,
        422, "invalid-descriptor", ("out-of-range", "$.desc.OutputTensor.Sizes[0]"), "",
    ),
    "an unknown field": (
        TILE, framed({"Repeat": [1, 2]}), FRAME,
        422, "invalid-descriptor", ("field-unknown", "$.desc.Repeat"), "'Repeats'"
    ),
    "an option that is none of the document's": (
        TILE, framed({"output_sizes": [2, 6], **R}), FRAME,
        422, "invalid-descriptor", ("field-unknown", "$.desc.output_sizes"), "",
    ),
    # limits
    "an output beyond the limit": (
        TILE + "?repeats=100000,10", npy_bytes(X), NPY, 413, "limit-exceeded", None, "TENSORPOST_MAX_OUTPUT_BYTES"
    ),
    "a body beyond the limit": (Q, bytes(1_000_001), NPY, 413, "limit-exceeded", None, "TENSORPOST_MAX_BODY_BYTES"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_a_precise_problem(app: AppClient, name: str):
    path, body, headers, status, code, violation, words = BAD[name]

    problem = assert_problem(app.post(path, body, headers), status, code)

    if violation is not None:
        assert violation in [(found["code"], found["path"]) for found in problem["violations"]], problem
    assert words in json.dumps(problem, ensure_ascii=False)


def test_a_limit_is_named_with_its_value_and_what_was_asked(app: AppClient):
    problem = assert_problem(app.post(TILE + "?repeats=100000,10", npy_bytes(X)), 413, "limit-exceeded")

    expected = {"limit": 10_000_000, "actual": 24_000_000, "setting": "TENSORPOST_MAX_OUTPUT_BYTES", "unit": "bytes"}
    assert expected == {key: problem[key] for key in expected}


@pytest.mark.parametrize(
    ("value", "status", "code"),
    [("abc", 400, "invalid-parameter"), ("-1", 400, "invalid-parameter"), ("9" * 30, 400, "invalid-parameter"),
     ("1.0", 400, "invalid-parameter"), ("+5", 400, "invalid-parameter"), ("0x9", 400, "invalid-parameter"),
     ("\u0663", 400, "invalid-parameter"), ("", 400, "invalid-parameter"), ("99999999999", 413, "limit-exceeded")],
)  # fmt: skip
def test_absurd_content_lengths(app: AppClient, value: str, status: int, code: str):
    # uvicorn refuses most of these itself; other servers may not.
    for path, content_type in ((Q, NPY), ("/v1/validate", JSON)):
        answer = app.post(path, b"x", content_type | {"content-length": value.encode()})
        assert_problem(answer, status, code)


def test_no_content_length(app: AppClient):
    for path, content_type in ((Q, NPY), ("/v1/validate", JSON)):
        request = app.client.build_request("POST", path, headers=content_type)
        del request.headers["content-length"]
        problem = assert_problem(app.run(app.client.send(request)), 411, "length-required")
        assert "chunked" in problem["detail"]


@pytest.mark.parametrize("declared", [0, 151, 153])
def test_a_body_that_is_not_as_long_as_its_content_length(app: AppClient, declared: int):
    # A server that lets this through is broken; we still notice.
    answer = app.post(Q, npy_bytes(X), NPY | {"content-length": str(declared)})

    assert_problem(answer, 400, "body-length-mismatch")


@pytest.mark.parametrize("body", [npy_bytes(X)[:-1], npy_bytes(X)[:130], npy_bytes(X) + b"x"])
def test_a_tensor_that_is_not_as_long_as_head_and_content_length_say(app: AppClient, body: bytes):
    # Without this, memory that was never written would be computed with, and sent.
    answer = app.post(Q, body, NPY | {"content-length": "152"})

    problem = assert_problem(answer, 400, "body-length-mismatch")
    assert problem["expected"] == 24


@pytest.mark.parametrize("declared", [-1, 1])
def test_json_that_is_not_as_long_as_its_content_length(app: AppClient, declared: int):
    body = call(R)

    answer = app.post(TILE, body, JSON | {"content-length": str(len(body) + declared)})

    assert_problem(answer, 400, "body-length-mismatch")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/operators/tile", "GET, HEAD, OPTIONS, POST"), ("PUT", "/v1/operators", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/limits", "GET, HEAD, OPTIONS"), ("GET", "/v1/validate", "OPTIONS, POST"),
        ("POST", "/v1/devices", "GET, HEAD, OPTIONS"), ("POST", "/metrics", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/examples/tile.npy", "GET, HEAD, OPTIONS"),
    ],
)  # fmt: skip
def test_a_method_that_is_not_allowed_names_those_that_are(app: AppClient, method: str, path: str, allow: str):
    answer = app.request(method, path)

    problem = assert_problem(answer, 405, "method-not-allowed")
    assert allow == ", ".join(sorted(answer.headers["allow"].replace(" ", "").split(",")))
    assert method in problem["detail"]


@pytest.mark.parametrize("path", ["/v1", "/v1/operators/tile/", "/v3/x", "/v1/examples/x", "/%00"])
def test_nothing_there(app: AppClient, path: str):
    for method in ("GET", "POST"):
        assert_problem(app.request(method, path), 404, "not-found")


def test_a_refused_media_type_says_what_is_read(app: AppClient):
    answer = app.post(Q, npy_bytes(X), {"content-type": "text/plain"})

    assert_problem(answer, 415, "unsupported-media-type")
    pictures = {f"image/{kind}" for kind in ("png", "jpeg", "webp", "avif")}
    tensors = {f"application/{kind}" for kind in ("x-npy", "x-npz", "vnd.safetensors", "octet-stream", "json")}
    assert pictures | tensors | {"multipart/form-data"} == {*answer.headers["accept"].replace(" ", "").split(",")}


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_refuses_is_not_replaced(app: AppClient):
    with use_backend(app.service, Controlled(refusal="no float64 units")):
        for path in (Q, Q + "&backend=numpy", Q + "&backend=auto"):
            answer = app.post(path, npy_bytes(X))
            problem = assert_problem(answer, 501, "no-backend")
            assert problem["refused"]["numpy"] == "no float64 units"
            assert "null" not in problem["refused"], "a backend that was not asked for was tried"
        assert app.post(Q + "&backend=null", npy_bytes(X)).status_code == 200


def fail(index: int) -> None:
    raise RuntimeError("secret of the device")


@pytest.mark.parametrize("repeats", ["1,2", "1,60000"], ids=["small", "long"])
@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_failure_of_the_first_slice_is_a_problem(
    app: AppClient, repeats: str, accept: str, caplog: pytest.LogCaptureFixture
):
    if repeats == "1,60000" and accept == "application/json":
        accept = "application/vnd.safetensors"  # as JSON it is too long
    backend = Controlled(before=fail)

    with use_backend(app.service, backend):
        problem = assert_problem(
            app.post(f"{TILE}?repeats={repeats}", npy_bytes(X), NPY | {"accept": accept}), 500, "internal-error"
        )

    assert "secret" not in json.dumps(problem), "what failed is in the log, not on the wire"
    assert (backend.started, backend.closed_runs) == (1, 1)


def test_nan_in_a_json_answer_says_what_to_do(app: AppClient):
    x = npy_bytes([[1, float("nan")]])

    problem = assert_problem(app.post(Q, x, NPY | {"accept": "application/json"}), 406, "not-acceptable")

    assert "not finite" in problem["detail"]
    assert "Accept: application/x-npy or" in problem["detail"]


# ---- the table -------------------------------------------------------------------------------------------------------


def every_class() -> list[type[TensorpostError]]:
    found = [*problems.problem_classes().values()]
    return [cls for cls in found if not issubclass(cls, ConnectionProblem) and cls is not TensorpostError]


@pytest.mark.parametrize("cls", every_class(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_of_its_own_row(cls: type[TensorpostError]):
    assert STATUS[cls] == status_of(cls("x"))
    assert (400 <= STATUS[cls] < 500) is (issubclass(cls, problems.InvalidRequest) or STATUS[cls] in (408, 429))


def test_the_table_has_no_rows_of_errors_that_only_clients_raise():
    assert {*every_class()} == STATUS.keys()


def test_an_error_without_a_row_has_that_of_its_family():
    class Narrower(problems.TooBusy):
        code = "too-busy"  # the same on the wire

    assert (status_of(Narrower("x")), status_of(TensorpostError("x"))) == (429, 500)


# ---- anything at all -------------------------------------------------------------------------------------------------


@given(document=ours.json_values(), operator=st.sampled_from(["tile", "resample"]), wrapped=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_answered_or_refused_but_no_fault(app: AppClient, document: Any, operator: str, wrapped: bool):
    if wrapped:
        document = {
            "op": {"type": operator, "desc": document},
            "tensors": {"input": {"dtype": "F32", "shape": [1], "data": [1]}},
        }
    try:
        body = json.dumps(document).encode()
    except ValueError:  # json.dumps writes no integers of more than 4300 digits
        return

    answer = app.post(f"/v1/operators/{operator}", body, JSON)

    if answer.status_code != 200:
        assert answer.status_code < 500, answer.text
        assert_problem(answer, answer.status_code, answer.json()["type"].rpartition(":")[2])


@given(data=st.binary(max_size=200), cut=st.integers(0, 160), headers=st.sampled_from([NPY, FRAME, JSON]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_answered_or_refused_but_no_fault(app: AppClient, data: bytes, cut: int, headers: dict[str, str]):
    valid = {NPY["content-type"]: npy_bytes(X), FRAME["content-type"]: framed(R), JSON["content-type"]: call(R)}
    body = valid[headers["content-type"]][:cut] + data

    answer = app.post(TILE, body, headers)

    if answer.status_code != 200:
        assert answer.status_code < 500, answer.text
        assert_problem(answer, answer.status_code, answer.json()["type"].rpartition(":")[2])


@given(
    query=st.dictionaries(
        st.sampled_from(["repeats", "backend", "output_sizes", "feature_level", "x"]), st.text(max_size=20)
    )
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_query_is_answered_or_refused_but_no_fault(app: AppClient, query: dict[str, str]):
    try:
        answer = app.post(TILE, npy_bytes(X), params=query)
    except UnicodeEncodeError:  # httpx writes no lone surrogates
        return

    if answer.status_code != 200:
        assert answer.status_code < 500, answer.text
        assert_problem(answer, answer.status_code, answer.json()["type"].rpartition(":")[2])


def test_a_caller_that_hangs_up_while_sending_is_no_fault(app: AppClient, caplog: pytest.LogCaptureFixture):
    # Straight through ASGI: the caller is gone after the head, or in the middle of the tensor.
    for path, query, cut in ((TILE, b"repeats=1,2", 140), (TILE, b"repeats=1,2", 20), ("/v1/validate", b"", 3)):
        sent: list[Any] = []
        messages = iter(
            [{"type": "http.request", "body": npy_bytes(X)[:cut], "more_body": True}, {"type": "http.disconnect"}]
        )

        async def receive() -> Any:
            return next(messages)  # noqa: B023 # called before the loop goes on

        async def send(message: Any) -> None:
            sent.append(message)  # noqa: B023 # called before the loop goes on

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": query,
            "headers": [
                (b"host", b"test"), (b"content-length", b"152"),
                (b"content-type", b"application/json" if "validate" in path else b"application/x-npy"),
            ],
            "root_path": "",
            "scheme": "http", "server": ("test", 80), "client": ("127.0.0.1", 1), "http_version": "1.1",
        }  # fmt: skip

        async def run() -> None:
            await app.app(scope, receive, send)  # noqa: B023 # called before the loop goes on

        app.run(run())
        assert sent == []
    assert not caplog.records


def test_what_a_terminal_shows_ends_with_a_line_feed(app: AppClient):
    x = npy_bytes(X)
    answers = [app.get(path) for path in ("/v1/devices", "/v1/operators/tile", "/v2/health/ready", "/nowhere")]
    answers.append(app.post(f"{TILE}?repeats=0", x))
    answers.append(app.post(f"{TILE}?repeats=1,2", x, NPY | {"accept": "application/json"}))
    for answer in answers:
        assert answer.json()
        assert answer.text.endswith("}\n")
        assert answer.text.count("\n") == 1


def test_a_body_that_curl_calls_a_form_gets_the_option_to_write(app: AppClient):
    form = {"content-type": "application/x-www-form-urlencoded"}
    problem = assert_problem(app.post(f"{TILE}?repeats=1,2", npy_bytes(X), form), 415, "unsupported-media-type")
    assert problem["detail"].endswith(
        ", with curl by -H 'content-type: application/json' for JSON and -H 'content-type: application/x-npy' for an "
        "npy file"
    )
