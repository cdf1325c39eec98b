"""Cast and CastLike between strings and numbers, from the SDK, over `/v1` and over `/v2`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.http_app import JSON, Serving, assert_problem, request_bytes, serving

from tensorpost import Client
from tensorpost.onnx.string_casts import number_of_text, number_texts
from tensorpost.values.problems import InvalidDescriptor

TEXTS = np.array(["1", "-2.5", " 1e3 ", "+INF", "-inf", "nan", ".5", "007"], object)
SAID = [1, -2.5, 1000, np.inf, -np.inf, np.nan, 0.5, 7]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as found:
        yield found


@pytest.mark.parametrize("to", ["float", "double", "float16", "bfloat16", "float8_e5m2"])
def test_texts_become_floats(server: Serving, to: str) -> None:
    with Client(server.url) as tp:
        found = tp.onnx("Cast", TEXTS, opset=21, to=to, saturate=0)
        assert found.shape == TEXTS.shape
        np.testing.assert_array_equal(found.astype(np.float64), np.array(SAID).astype(found.dtype).astype(np.float64))
        like = tp.onnx("CastLike", TEXTS.reshape(2, 4), np.zeros(0, found.dtype), opset=21, saturate=0)
        assert (like.dtype, like.shape, like.tobytes()) == (found.dtype, (2, 4), found.tobytes())


@pytest.mark.parametrize(
    ("to", "texts", "wanted"),
    [
        ("int64", ["-9223372036854775808", "9223372036854775807", "+5", "100.5", "-1e3"],
         [-(1 << 63), (1 << 63) - 1, 5, 100, -1000]),
        ("uint64", ["18446744073709551615", "0"], [(1 << 64) - 1, 0]),
        ("int8", ["200", "-128", "3"], [-56, -128, 3]),
        ("uint4", ["15", "17"], [15, 1]),
        ("bool", ["0", "-0.0", "0.5", "nan"], [False, False, True, True]),
    ],
)  # fmt: skip
def test_texts_become_whole_numbers_and_truth_values(server: Serving, to: str, texts: list[str], wanted: Any) -> None:
    with Client(server.url) as tp:
        found = tp.onnx("Cast", np.array(texts, object), opset=21, to=to)
    assert found.dtype.name == to
    assert [*map(int, found)] == [*map(int, wanted)]


@pytest.mark.parametrize(
    ("text", "to", "says"),
    [
        ("abc", "float", "'abc' is not a number"), ("", "double", "'' is not a number"),
        ("0x10", "float", "is not a number"), ("1_0", "float", "is not a number"), ("\u0661", "float", "not a number"),
        ("inf", "int32", "is not a number of int64"), ("9223372036854775808", "int64", "is not a number of int64"),
        ("-1", "uint64", "is not a number of uint64"), ("1" * 41, "int64", "is not a number of int64"),
    ],
)  # fmt: skip
def test_texts_that_say_no_number_are_refused(server: Serving, text: str, to: str, says: str) -> None:
    with Client(server.url) as tp, pytest.raises(InvalidDescriptor, match=says):
        tp.onnx("Cast", np.array(["1", text], object), opset=21, to=to)
    call = {"op": {"opset": 21, "attributes": {"to": to}},
            "tensors": {"input": {"dtype": "string", "shape": [1], "data": [text]}}}  # fmt: skip
    answer = server.ask(request_bytes("POST", "/v1/onnx/Cast", json.dumps(call).encode(), JSON))
    assert says in assert_problem(answer, 422, "invalid-descriptor")["detail"]


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        (np.array([1, 0.1, 1e20, -2.5, np.nan, np.inf, -np.inf, -0.0], np.float32),
         ["1", "0.1", "1e+20", "-2.5", "NaN", "INF", "-INF", "-0"]),
        (np.array([1 / 3, 314.15926, 5e-324]), ["0.3333333333333333", "314.15926", "5e-324"]),
        (np.array([0.1, 65504], np.float16), ["0.099975586", "65504"]),
        (np.array([[-128, 7]], np.int8), ["-128", "7"]),
        (np.array([(1 << 64) - 1], np.uint64), ["18446744073709551615"]),
        (np.array([True, False]), ["1", "0"]),
        (np.array([0.1015625, 3], ml_dtypes.float8_e4m3fn), ["0.1015625", "3"]),
        (np.array([1.5], ml_dtypes.bfloat16), ["1.5"]),
        (np.array([-8, 7]).astype(ml_dtypes.int4), ["-8", "7"]),
    ],
)  # fmt: skip
def test_numbers_become_texts(server: Serving, numbers: Any, texts: list[str]) -> None:
    with Client(server.url) as tp:
        found = tp.onnx("Cast", numbers, opset=21, to="string")
        like = tp.onnx("CastLike", numbers, np.array(["x"], object), opset=21)
    assert (found.dtype, found.shape, found.reshape(-1).tolist()) == (np.dtype(object), numbers.shape, texts)
    assert like.tolist() == found.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_texts_read_back_to_the_same_numbers(dtype: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 63, 500, np.uint64)
    numbers = bits.view(dtype)
    again = np.array([number_of_text(text, "float64") for text in number_texts(numbers)]).astype(dtype)
    np.testing.assert_array_equal(again, numbers)


def test_over_http(server: Serving) -> None:
    call: Any = {"op": {"opset": 19, "attributes": {"to": "string"}},
                 "tensors": {"input": {"dtype": "F32", "shape": [2], "data": [0.5, 3]}}}  # fmt: skip
    answer = server.ask(request_bytes("POST", "/v1/onnx/Cast", json.dumps(call).encode(), JSON))
    assert answer.json()["tensors"]["output"] == {"dtype": "string", "shape": [2], "data": ["0.5", "3"]}
    call = {"op": {"opset": 19, "attributes": {"to": "float"}},
            "tensors": {"input": {"dtype": "string", "shape": [2], "data": ["0.5", "3"]}}}  # fmt: skip
    answer = server.ask(request_bytes("POST", "/v1/onnx/Cast", json.dumps(call).encode(), JSON))
    assert answer.json()["tensors"]["output"] == {"dtype": "F32", "shape": [2], "data": [0.5, 3]}

    raw = np.array([0.5, 3], np.float32).tobytes()
    types = {"content-type": "application/octet-stream", "tensorpost-shape": "2", "tensorpost-dtype": "F32"}
    types["accept"] = "application/json"
    answer = server.ask(request_bytes("POST", "/v1/onnx/Cast?opset=19&to=string", raw, types))
    assert answer.json()["tensors"]["output"]["data"] == ["0.5", "3"], answer.body


def test_over_v2(server: Serving) -> None:
    data = b"".join([struct.pack("<I", len(text)) + text for text in (b"1.5", b"-2")])
    document: Any = {
        "inputs": [{"name": "input", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}],
        "parameters": {"to": "float", "opset": 19},
    }
    head = json.dumps(document).encode()
    lengths = {"Inference-Header-Content-Length": len(head)}
    answer = server.ask(request_bytes("POST", "/v2/models/onnx.cast/infer", head + data, lengths))
    assert answer.json()["outputs"][0]["data"] == [1.5, -2]
    document = {
        "inputs": [{"name": "input", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}],
        "parameters": {"to": "string", "opset": 19},
    }
    answer = server.ask(request_bytes("POST", "/v2/models/onnx.cast/infer", json.dumps(document).encode()))
    assert answer.json()["outputs"][0]["data"] == ["1.5", "-2"]
    assert answer.json()["outputs"][0]["datatype"] == "BYTES"


def test_other_operators_of_strings(server: Serving) -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    with Client(server.url) as tp:
        assert tp.onnx("Shape", words, opset=21).tolist() == [2, 2]
        assert int(tp.onnx("Size", words, opset=21)) == 4
        assert tp.onnx("Trilu", words, opset=14, upper=0).tolist() == [["a", ""], ["c", "d"]]
        assert tp.onnx("Cast", words, opset=19, to="string").tolist() == words.tolist()
        with pytest.raises(InvalidDescriptor, match="ScatterND with this reduction computes with strings"):
            tp.onnx("ScatterND", words, np.array([[0, 0]]), words[0, :1], opset=16, reduction="add")
