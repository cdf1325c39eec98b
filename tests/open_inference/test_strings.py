"""Strings through ONNX nodes: over `/v2` as BYTES and JSON, over `/v1` as JSON, from the SDK; compared with NumPy."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, Serving, assert_problem, request_bytes, serving

from tensorpost import Client
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.onnx.strings import StringTable, numbers_node
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter

X = np.array([["", "å", "naïve"], ["b\0c", "å", "x" * 300]], object)
Y = np.array([["å", "b", ""], ["", "å", "q"]], object)
HEADER = "Inference-Header-Content-Length"

# op_type, inputs by name in ONNX's order, attributes, what NumPy makes of it
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("Tile", {"input": X, "repeats": np.array([2, 3])}, {}, np.tile(X, (2, 3))),
    ("Concat", {"inputs_0": X, "inputs_1": Y}, {"axis": 1}, np.concatenate([X, Y], 1)),
    ("Gather", {"data": X, "indices": np.array([2, 0, -1])}, {"axis": 1}, X[:, [2, 0, 2]]),
    ("Reshape", {"data": X, "shape": np.array([3, -1])}, {}, X.reshape(3, 2)),
    ("Slice", {"data": X, "starts": np.array([-1]), "ends": np.array([-4]), "axes": np.array([1]),
               "steps": np.array([-1])}, {}, X[:, ::-1]),
    ("Transpose", {"data": X}, {"perm": [1, 0]}, X.T),
    ("Where", {"condition": X == "å", "X": X, "Y": Y}, {}, np.where(X == "å", X, Y)),
    ("Equal", {"A": X, "B": Y}, {}, X == Y),
    ("Expand", {"input": X[:1], "shape": np.array([2, 3])}, {}, np.repeat(X[:1], 2, 0)),
    ("Unsqueeze", {"data": X, "axes": np.array([0])}, {}, X[None]),
    ("Flatten", {"input": X[None]}, {"axis": 1}, X.reshape(1, 6)),
    ("GatherElements", {"data": X, "indices": np.array([[1, 0, 1]])}, {"axis": 0},
     np.take_along_axis(X, np.array([[1, 0, 1]]), 0)),
    ("Identity", {"input": X}, {}, X),
]  # fmt: skip
IDS = [case[0] for case in CASES]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as found:
        yield found


def by_hand(array: np.ndarray[Any, Any]) -> bytes:
    """BYTES as the protocol says."""
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in array.reshape(-1))


def datatype(array: np.ndarray[Any, Any]) -> str:
    return {"O": "BYTES", "b": "BOOL", "i": "INT64"}[array.dtype.kind]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "expected"), CASES, ids=IDS)
def test_over_v2_as_bytes_and_as_json(
    server: Serving, op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], expected: Any
):
    expected = np.asarray(expected)
    entries, data = [], b""
    for name, array in inputs.items():
        part = by_hand(array) if array.dtype == object else array.tobytes()
        data += part
        entries.append({"name": name, "shape": array.shape, "datatype": datatype(array),
                        "parameters": {"binary_data_size": len(part)}})  # fmt: skip
    document = {"inputs": entries, "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
                "parameters": {name: json.dumps(value) for name, value in attributes.items()}}  # fmt: skip
    text = json.dumps(document).encode()
    target = f"/v2/models/onnx.{op_type.lower()}/infer"

    binary = server.ask(request_bytes("POST", target, text + data, {HEADER: len(text)}))
    as_json = server.ask(request_bytes("POST", target, json.dumps({
        "inputs": [{"name": name, "shape": array.shape, "datatype": datatype(array), "data": array.tolist()}
                   for name, array in inputs.items()],
        "parameters": attributes,
    }).encode()))  # fmt: skip

    end = int(binary.headers[HEADER.lower()])
    (output,) = json.loads(binary.body[:end])["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype(expected), list(expected.shape))
    assert binary.body[end:] == (by_hand(expected) if expected.dtype == object else expected.tobytes())
    assert as_json.json()["outputs"][0]["data"] == expected.reshape(-1).tolist()


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "expected"), CASES, ids=IDS)
def test_from_the_sdk(server: Serving, op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], expected: Any):
    with Client(server.url) as tp:
        given = [*inputs.values()]
        found = tp.onnx(op_type, *given, **attributes)
        assert found.dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)
        if hasattr(np.dtypes, "StringDType"):
            wide = [array.astype(np.dtypes.StringDType()) if array.dtype == object else array for array in given]
            again = tp.onnx(op_type, *wide, **attributes)
            assert again.dtype == (np.dtypes.StringDType() if found.dtype == object else found.dtype)
            np.testing.assert_array_equal(again.astype(object) if found.dtype == object else again, expected)


def test_over_our_own_json(server: Serving):
    call = {"tensors": {"input": {"dtype": "string", "shape": [2], "data": ["é", ""]}},
            "op": {"op_type": "Tile", "opset": 19, "inputs": {"repeats": [2]}}}  # fmt: skip

    answer = server.ask(request_bytes("POST", "/v1/onnx/Tile", json.dumps(call).encode(), JSON))
    document = answer.json()

    assert document["tensors"]["output"] == {"dtype": "string", "shape": [4], "data": ["é", "", "é", ""]}
    assert document["op"]["inputs"]["input"]["data_type"] == "string"
    frame = {"accept": "application/vnd.safetensors"}
    refused = server.ask(request_bytes("POST", "/v1/onnx/Tile", json.dumps(call).encode(), {**JSON, **frame}))
    assert "strings" in assert_problem(refused, 406, "not-acceptable")["detail"]
    call["tensors"]["input"]["data"] = ["a", 1]  # type: ignore[index, call-overload] # JSON, whose type says nothing
    wrong = server.ask(request_bytes("POST", "/v1/onnx/Tile", json.dumps(call).encode(), JSON))
    assert "a text" in assert_problem(wrong, 422, "invalid-descriptor")["detail"]


def test_what_is_no_string_or_computes_with_them(server: Serving):
    def refused(model: str, document: dict[str, Any], data: bytes = b"") -> str:
        text = json.dumps(document).encode()
        answer = server.ask(request_bytes("POST", f"/v2/models/{model}/infer", text + data, {HEADER: len(text)}))
        assert answer.status == 400, answer.body
        return answer.json()["error"]

    def entry(name: str = "input", **more: Any) -> dict[str, Any]:
        return {"name": name, "shape": [2], "datatype": "BYTES", **more}

    tile = {"parameters": {"repeats": [1]}}
    for data, says in ((struct.pack("<I", 9) + b"abcd", "ends within element 0"),
                       (by_hand(np.array(["a", "b", "c"], object)), "after its 2 elements")):  # fmt: skip
        binary = {"inputs": [entry(parameters={"binary_data_size": len(data)})], **tile}
        assert says in refused("onnx.tile", binary, data)
    assert "texts were expected" in refused("onnx.tile", {"inputs": [entry(data=["a", 2])], **tile})
    assert "texts were expected" in refused("onnx.tile", {"inputs": [entry(data=["a"])], **tile})
    assert "str" in refused("tile", {"inputs": [entry(data=["a", "b"])], **tile})
    assert "string" in refused("onnx.add", {"inputs": [entry("A", data=["a", "b"]), entry("B", data=["a", "b"])]})
    assert server.idle()


def test_numbers_stand_for_strings():
    table = StringTable()
    assert table.numbers([b"b", b"a", b"b", b""]).tolist() == [1, 2, 1, 0]
    assert table.total_bytes(np.array([1, 1, 0])) == 2
    node = OnnxNode.of("Tile", {"input": OnnxTensor("string", (2,)), "repeats": [2]}, opset=13)
    assert numbers_node(node).output == OnnxTensor("int64", (4,))
    x = OnnxTensor("string", (1, 2))
    updates = {"data": x, "indices": OnnxTensor("int64", (1, 2)), "updates": x}
    with pytest.raises(InvalidDescriptor, match=r"mode|reduction|strings"):
        numbers_node(OnnxNode.of("ScatterElements", updates, opset=18, reduction="max"))
    assert numbers_node(OnnxNode.of("ScatterElements", updates, opset=18)).output.data_type == "int64"
    with Client("http://127.0.0.1:9") as offline, pytest.raises(InvalidParameter, match="out cannot take strings"):
        offline.run(node, np.array(["a", "b"], object), out=np.empty(4, object))
