"""`/v2` on the wire: golden bytes, who may send what, and that every refusal has the one member its clients show."""

from __future__ import annotations

import gzip
import json
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.http_app import (
    PATIENCE,
    Answer,
    Controlled,
    Serving,
    eventually,
    http_app,
    request_bytes,
    serving,
    use_backend,
)
from tests.support.replays import count_replays

from tensorpost.values.problems import InvalidParameter
from tensorpost_server import commands
from tensorpost_server.forms.base import go_on
from tensorpost_server.http.open_inference.models import ModelCatalogue
from tensorpost_server.main import create_app
from tensorpost_server.settings import Preset, Settings

# The bytes that tritonclient 2.73 sent and that a server answered, written down in the protocol's notes.
GOLDEN_JSON = (
    b'{"id":"7","inputs":[{"name":"input","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}},'
    b'{"name":"repeats","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}}],'
    b'"outputs":[{"name":"output","parameters":{"binary_data":true}}]}'
)
GOLDEN_BODY = GOLDEN_JSON + struct.pack("<4f2q", 1, 2, 3, 4, 1, 2)
GOLDEN_ANSWER = (
    b'{"id":"7","model_name":"tile","model_version":"1","outputs":[{"name":"output","datatype":"FP32","shape":[2,4],'
    b'"parameters":{"binary_data_size":32}}]}' + b" " * 43 + struct.pack("<8f", 1, 2, 1, 2, 3, 4, 3, 4)
)
HEADER = "Inference-Header-Content-Length"
PRESETS = {
    "tile.2x2": {"operator": "tile", "attributes": {"repeats": [2, 2]}, "shape": [2, 3]},
    "row": {"operator": "tile", "attributes": {"repeats": "2"}, "shape": [-1], "datatype": "INT16"},
    "word": {"operator": "onnx.tile", "attributes": {"repeats": [2]}, "shape": [1], "datatype": "BYTES"},
    "words": {"operator": "onnx.tile", "attributes": {"repeats": [2]}, "shape": [2], "datatype": "BYTES"},
    "cut": {"operator": "onnx.slice", "attributes": {"starts": [1], "ends": [3]}, "shape": [4]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(presets=PRESETS, max_json_elements=1000) as found:
        yield found


def infer(
    server: Serving, model: str, document: Any, data: bytes = b"", headers: Mapping[str, Any] | None = None
) -> Answer:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = {HEADER: len(text)} if data else {}
    return server.ask(request_bytes("POST", f"/v2/models/{model}/infer", text + data, {**fields, **(headers or {})}))


def tensor(name: str, datatype: str, array: Any, **parameters: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "shape": list(np.shape(array)), "datatype": datatype}
    return entry | ({"parameters": parameters} if parameters else {"data": array})


def refused(answer: Answer, status: int) -> str:
    """What a client of the protocol shows of a refusal."""
    assert (status, "application/json") == (answer.status, answer.headers["content-type"]), answer.body
    document = answer.json()
    assert document["status"] == status
    assert answer.headers["x-request-id"] == document["request_id"]
    return document["error"]


def test_the_golden_bytes_both_ways(server: Serving):
    request = request_bytes("POST", "/v2/models/tile/infer", GOLDEN_BODY, {HEADER: 258, "x-request-id": "a"})

    answer = server.ask(request)

    assert answer.body == GOLDEN_ANSWER
    assert tuple(answer.headers[name] for name in ("content-type", HEADER.lower(), "content-length")) == (
        "application/octet-stream",
        "192",
        "224",
    )
    with server.wire() as wire:
        for byte in request:
            wire.send(bytes([byte]))
        assert wire.answer().body == GOLDEN_ANSWER


def test_a_call_that_comes_again_is_replayed_with_its_own_elements_and_counted(
    server: Serving, monkeypatch: pytest.MonkeyPatch
):
    replayed = count_replays(monkeypatch)
    text = (
        b'{"inputs":[{"name":"input","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],'
        b'"parameters":{"repeats":"[2,1]","binary_data_output":true}}'
    )
    before = server.ask(request_bytes("GET", "/v2/models/tile/stats")).json()["model_stats"][0]["inference_count"]
    for spaces in (0, 1, 4, 8):  # a JSON part has any length, so the elements after it lie at any address
        head = text + b" " * spaces
        with server.wire() as wire:
            for index in range(4):
                body = head + struct.pack("<2f", index, -index)
                wire.send(request_bytes("POST", "/v2/models/tile/infer", body, {HEADER: len(head)}))
                answer = wire.answer()
                assert struct.pack("<4f", *[index, -index] * 2) == answer.body[int(answer.headers[HEADER.lower()]) :]
    found = server.ask(request_bytes("GET", "/v2/models/tile/stats")).json()["model_stats"][0]
    assert found["inference_count"] - before == 16
    assert replayed == [True] * len(replayed)
    assert len(replayed) >= 8, "the first of a head is not replayed, nor one that is computed for the first time"


@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "application/x-www-form-urlencoded"])
def test_content_type_is_never_looked_at(server: Serving, content_type: str | None):
    headers = {"content-type": content_type}
    answer = infer(server, "tile", {"inputs": [tensor("input", "FP32", [1])], "parameters": {"repeats": [2]}}, b"",
                   headers)  # fmt: skip

    assert answer.json()["outputs"][0]["data"] == [1.0, 1.0]
    assert "parameters" not in answer.json()["outputs"][0], "C++ clients read binary_data_size of any parameters"
    assert server.ask(request_bytes("POST", "/v2/repository/index", b"", headers)).status == 200


@pytest.mark.parametrize(
    "parameters", [{"repeats": "[2,1]"}, {"repeats": [2, 1]}, {"repeats": "2,1", "backend": "numpy"}]
)
def test_attributes_as_parameters(server: Serving, parameters: dict[str, Any]):
    document = {"inputs": [tensor("input", "INT8", [[1, -2]])], "parameters": parameters}

    (output,) = infer(server, "tile", document).json()["outputs"]

    assert output == {"name": "output", "datatype": "INT8", "shape": [2, 2], "data": [1, -2, 1, -2]}


def test_attributes_as_tensors_options_and_descriptions(server: Serving):
    x = [[1.0, 2.0], [3.0, 4.0]]
    sized = {"inputs": [tensor("input", "FP32", [[x]]), tensor("output_sizes", "INT64", [1, 1, 4, 4])],
             "parameters": {"interpolation_mode": "NEAREST_NEIGHBOR", "scales": "[1,1,2,2]",
                            "rounding_direction": "DECREASING",
                            "input_pixel_offsets": [0.0] * 4, "output_pixel_offsets": "[0,0,0,0]"}}  # fmt: skip
    strided = {"inputs": [tensor("input", "UINT8", [1, 2, 3, 4])],
               "parameters": {"input_desc": '{"DataType": "UINT8", "Sizes": [2, 2], "Strides": [1, 2]}',
                              "repeats": [1, 2]}}  # fmt: skip
    objects = {"inputs": [tensor("input", "FP32", [[x]])], "parameters": {"scale_size": '{"Width": 2, "Height": 2}',
               "interpolation_mode": "NEAREST_NEIGHBOR"}}  # fmt: skip
    onnx = {"inputs": [tensor("X", "FP32", [[x]]), tensor("scales", "FP32", [1, 1, 2, 2])],
            "parameters": {"mode": "nearest", "opset": 19}}  # fmt: skip
    permuted = {"inputs": [tensor("data", "FP32", x), tensor("perm", "INT64", [1, 0])]}

    enlarged = np.kron(x, np.ones((2, 2))).reshape(-1).tolist()
    assert enlarged == infer(server, "upsample_2d", objects).json()["outputs"][0]["data"]
    assert enlarged == infer(server, "resample2", sized).json()["outputs"][0]["data"]
    assert enlarged == infer(server, "onnx.resize", onnx).json()["outputs"][0]["data"]
    assert infer(server, "onnx.transpose", permuted).json()["outputs"][0]["data"] == [1, 3, 2, 4]
    assert infer(server, "tile", strided).json()["outputs"][0]["data"] == [1, 3, 1, 3, 2, 4, 2, 4]


def test_which_outputs_come_back_and_how(server: Serving):
    document = {"inputs": [tensor("input", "FP32", [[3, 1, 2]])], "parameters": {"axis": 1, "k": 2}}
    values = {"name": "output_value", "parameters": {"binary_data": True}}

    every = infer(server, "top_k", document).json()["outputs"]
    one = infer(server, "top_k", document | {"outputs": [values]})
    mixed = infer(server, "top_k", document | {"outputs": [{"name": "output_index"}, values]})

    assert [[each["name"], each["data"]] for each in every] == [["output_value", [3.0, 2.0]], ["output_index", [0, 2]]]
    assert struct.pack("<2f", 3, 2) == one.body[int(one.headers[HEADER.lower()]) :]
    end = int(mixed.headers[HEADER.lower()])
    assert end % 64 == 0
    assert (len(mixed.body) - end, json.loads(mixed.body[:end])["outputs"][1]["data"]) == (8, [0, 2])


def test_numbers_that_json_has_no_words_for(server: Serving):
    text = b'{"inputs":[{"name":"input","datatype":"FP32","shape":[3],"data":[NaN,-Infinity,0.1]}]'
    text += b',"parameters":{"repeats":[1]}}'
    half = {"inputs": [tensor("input", "FP16", [0.5])], "parameters": {"repeats": [1]}}

    assert b'"data":[NaN,-Infinity,0.1]' in infer(server, "tile", text).body
    assert "binary" in refused(infer(server, "tile", half), 400)
    answer = infer(server, "tile", half | {"parameters": {"repeats": [2], "binary_data_output": True}})
    assert answer.body[-4:] == b"\x00\x38\x00\x38"


def test_booleans_and_bfloat16(server: Serving):
    flags = {"inputs": [tensor("input", "BOOL", [True, False])], "parameters": {"repeats": [2]}}
    text = json.dumps({"inputs": [{"name": "input", "datatype": "BF16", "shape": [2],
                                   "parameters": {"binary_data_size": 4}}],
                       "parameters": {"repeats": "2", "binary_data_output": True}}).encode()  # fmt: skip

    for model in ("tile", "onnx.tile"):
        (output,) = infer(server, model, flags).json()["outputs"]
        assert (output["datatype"], output["data"]) == ("BOOL", [True, False, True, False])
    assert infer(server, "onnx.tile", text, b"\x80\x3f\x00\xbf").body[-8:] == b"\x80\x3f\x00\xbf" * 2
    assert "bfloat16" in refused(infer(server, "tile", text, b"\x80\x3f\x00\xbf"), 400)


def test_empty_tensors_have_no_bytes_and_no_header(server: Serving):
    document = {"inputs": [tensor("input", "FP32", [])], "parameters": {"repeats": [3], "binary_data_output": True}}

    answer = infer(server, "onnx.tile", document)

    assert answer.headers["content-type"] == "application/json"
    assert HEADER.lower() not in answer.headers
    assert (answer.json()["outputs"]) == [
        {"name": "output", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


def test_presets_have_fixed_attributes_and_take_raw_bodies(server: Serving):
    metadata = server.ask(request_bytes("GET", "/v2/models/tile.2x2")).json()
    raw = {HEADER: 0}

    def post(model: str, body: bytes) -> Answer:
        return server.ask(request_bytes("POST", f"/v2/models/{model}/infer", body, raw))

    assert (metadata["inputs"][0]["shape"], metadata["outputs"][0]["shape"]) == ([2, 3], [4, 6])
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.tile(x, (2, 2)).tobytes() == post("tile.2x2", x.tobytes()).body[-96:]
    assert post("row", b"\1\0\2\0").body[-8:] == b"\1\0\2\0\1\0\2\0"
    assert np.array([1, 2], "float32").tobytes() == post("cut", np.arange(4, dtype="float32").tobytes()).body[-8:]
    assert post("word", b"\2\0\0\0ab").body[-12:] == b"\2\0\0\0ab" * 2
    assert "ends before element 0" in refused(post("word", b"ab"), 400)
    assert "a single one" in refused(post("words", b"\0" * 8), 400)
    assert "24 bytes" in refused(post("tile.2x2", b"123"), 400)
    assert "one free size" in refused(post("tile", b"1234"), 400)
    twice = {"inputs": [tensor("input", "FP32", x.tolist())], "parameters": {"repeats": [1, 1]}}
    assert "fixed by the model" in refused(infer(server, "tile.2x2", twice), 400)
    names = server.ask(request_bytes("POST", "/v2/repository/index")).json()
    assert {"name": "tile.2x2", "version": "1", "state": "READY", "reason": ""} in names


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ({"operator": "tlie"}, "'tile'"), ({"operator": "tile", "datatype": "FP31"}, "FP31"),
        ({"operator": "tile", "shape": [2], "attributes": {"repeats": [0]}}, "repeats"),
    ],
)  # fmt: skip
def test_a_preset_that_cannot_work_is_refused_at_the_start(preset: dict[str, Any], says: str):
    with pytest.raises(InvalidParameter, match=says):
        create_app(Settings(presets={"mine": Preset(**preset)}))
    with pytest.raises(InvalidParameter, match="operator"):
        ModelCatalogue({"tile": Preset(operator="tile")})


def test_presets_come_from_their_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORPOST_PRESETS", json.dumps(PRESETS))

    assert Settings().presets["tile.2x2"].shape == (2, 3)


def test_the_page_s_preset_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs" / "open-inference.md").read_text("utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "tensorpost.toml"
    file.write_text(text)
    monkeypatch.setenv("TENSORPOST_CONFIG_FILE", str(file))
    x = np.random.default_rng(14).normal(size=(1, 3, 448, 448)).astype("float32")

    with serving(presets=Settings().presets) as server:
        metadata = server.ask(request_bytes("GET", "/v2/models/thumb_224")).json()
        answer = server.ask(request_bytes("POST", "/v2/models/thumb_224/infer", x.tobytes(), {HEADER: 0}))

    sizes = (metadata["inputs"][0]["shape"], metadata["outputs"][0]["shape"])
    assert sizes == ([1, 3, 448, 448], [1, 3, 224, 224])
    found = np.frombuffer(answer.body[-4 * 3 * 224 * 224 :], "float32").reshape(1, 3, 224, 224)
    # At half of the size, each element lies in the middle between four.
    np.testing.assert_allclose(found, x.reshape(1, 3, 224, 2, 224, 2).mean((3, 5)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_both_codings_both_ways(server: Serving, coding: str):
    body = gzip.compress(GOLDEN_BODY) if coding == "gzip" else zlib.compress(GOLDEN_BODY)
    headers = {HEADER: 258, "content-encoding": coding, "accept-encoding": coding}
    target = "/v2/models/tile/versions/1/infer"

    answer = server.ask(request_bytes("POST", target, body, headers))

    assert (200, coding, "192") == (answer.status, answer.headers["content-encoding"], answer.headers[HEADER.lower()])
    assert (gzip.decompress if coding == "gzip" else zlib.decompress)(answer.body) == GOLDEN_ANSWER
    several = server.ask(
        request_bytes("POST", target, GOLDEN_BODY, {HEADER: 258, "accept-encoding": "gzip, deflate, br, zstd"})
    )
    assert "content-encoding" not in several.headers
    assert several.body == GOLDEN_ANSWER


def test_compressed_bodies_are_bounded_and_whole(server: Serving):
    settings = server.service.settings
    bomb = zlib.compress(bytes(20 << 20))
    target = "/v2/models/tile/infer"
    with serving(max_body_bytes=1 << 20) as small:
        answer = small.ask(request_bytes("POST", target, bomb, {HEADER: 10, "content-encoding": "deflate"}))
        assert "TENSORPOST_MAX_BODY_BYTES" in refused(answer, 413)
        small.assert_serves_on()
    assert settings.max_body_bytes > 1 << 20
    cut = gzip.compress(GOLDEN_BODY)[:-20]
    assert "incomplete" in refused(
        server.ask(request_bytes("POST", target, cut, {HEADER: 258, "content-encoding": "gzip"})), 400
    )
    assert "gzip" in refused(
        server.ask(request_bytes("POST", target, b"abc", {HEADER: 1, "content-encoding": "gzip"})), 400
    )
    brotli = server.ask(request_bytes("POST", target, b"abc", {"content-encoding": "br"}))
    assert "br" in refused(brotli, 415)
    assert brotli.headers["accept-encoding"] == "gzip, deflate"


INPUT = {"name": "input", "shape": [2], "datatype": "FP32"}


@pytest.mark.parametrize(
    ("document", "data", "says"),
    [
        (b"{", b"", "JSON"), ([], b"", "object"), ({}, b"", "inputs"),
        ({"inputs": [INPUT]}, b"", "no elements"),
        ({"inputs": [INPUT | {"data": [1, 2], "parameters": {"binary_data_size": 8}}]}, b"", "2 places"),
        ({"inputs": [INPUT | {"data": [1, 2, 3]}]}, b"", "3 elements"),
        ({"inputs": [INPUT | {"datatype": "fp32", "data": [1, 2]}]}, b"", "datatype"),
        ({"inputs": [INPUT | {"shape": [-1], "data": [1]}]}, b"", "whole number"),
        ({"inputs": [INPUT | {"parameters": {"binary_data_size": 7}}]}, b"1234567", "announces 7 bytes"),
        ({"inputs": [INPUT | {"parameters": {"binary_data_size": 8}}]}, b"123456789", "the body has 9"),
        ({"inputs": [INPUT | {"data": [1, 2]}, INPUT | {"data": [1, 2]}]}, b"", "same name"),
        ({"inputs": [INPUT | {"data": [1, 2]}], "parameters": {"repeats": [2], "colour": 1}}, b"", "colour"),
        ({"inputs": [INPUT | {"data": [1]}], "parameters": {"repeats": [2]}}, b"", "1 elem"),
        ({"inputs": [INPUT | {"data": [[1], 2]}], "outputs": [{"name": "y"}], "parameters": {"repeats": 2}}, b"", "y"),
        ({"inputs": [INPUT | {"name": "x", "data": [1, 2]}], "parameters": {"repeats": [2]}}, b"", "'x'"),
        ({"inputs": [INPUT | {"data": [1, 2]}], "parameters": {"op": 5}}, b"", "$.op must be a JSON object"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(server: Serving, document: Any, data: bytes, says: str):
    assert says in refused(infer(server, "tile", document, data), 400)
    assert server.idle()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v2/models/tlie", 404), ("GET", "/v2/models/tile/versions/2", 404), ("GET", "/v2/nothing", 404),
        ("POST", "/v2/models/tlie/infer", 404), ("POST", "/v2/models/tile/versions/x/infer", 404),
        ("GET", "/v2/models/tile/infer", 405), ("POST", "/v2/health/live", 405), ("GET", "/v2/trace/setting", 501),
        ("POST", "/v2/logging", 501), ("POST", "/v2/repository/models/tile/unload", 501),
        ("POST", "/v2/repository/models/tlie/load", 404), ("GET", "/v2/models/tile/", 404),
    ],
)  # fmt: skip
def test_every_refusal_has_the_member_that_clients_show(server: Serving, method: str, target: str, status: int):
    answer = server.ask(request_bytes(method, target, b"{}" if method == "POST" else b""))

    assert len(refused(answer, status)) > 15


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST /v2/models/tile/infer HTTP/1.1\r\nno field\r\n\r\n", 400),
        ("POST /v2/models/tile/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n", 400),
        ("POST /v2/models/tile/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (f"GET /v2/models/{'a' * 100_000} HTTP/1.1\r\nhost: a\r\n\r\n", 431),
        ("GET /v2 HTTP/1.1\r\nhost: a\r\n" + "x: 1\r\n" * 101 + "\r\n", 431),
        ("GET http://test/v2?x HTTP/1.1\r\n: \r\n\r\n", 400),
    ],
)  # fmt: skip
def test_what_is_refused_before_the_application_has_it_too(server: Serving, head: str, status: int):
    with server.wire() as wire:
        wire.send(head.encode())
        assert len(refused(wire.answer(), status)) > 15
    page = server.ask(request_bytes("GET", "/v2/nothing", b"", {"accept": "text/html"}))
    assert "nothing" in refused(page, 404)
    with server.wire() as wire:  # and nobody else
        wire.send(head.replace("/v2", "/v1").encode())
        answer = wire.answer()
    assert ("error" in answer.json(), answer.headers["content-type"]) == (False, "application/problem+json")


def test_more_than_a_limit_is_413_with_the_setting(server: Serving):
    large = {"inputs": [tensor("input", "FP32", [1.0])], "parameters": {"repeats": [2000]}}
    text = b'{"inputs":' + b" " * (2 << 20)

    assert "MAX_JSON_ELEMENTS" in refused(infer(server, "tile", large), 413)
    assert "MAX_JSON_BYTES" in refused(infer(server, "tile", text), 413)
    limit = {"content-length": server.service.settings.max_body_bytes + 1}
    assert "MAX_BODY_BYTES" in refused(infer(server, "tile", b"", b"", limit), 413)


def test_a_fault_is_a_500_that_clients_can_read(server: Serving):
    def fail(_index: int) -> None:
        raise RuntimeError("broken")

    with use_backend(server.service, Controlled(before=fail, inline=False)):
        document = {"inputs": [tensor("input", "FP32", [1.0])], "parameters": {"repeats": [2]}}
        assert "log" in refused(infer(server, "tile", document), 500)


def test_timeout_ends_the_wait_in_the_queue_and_not_an_answer_that_has_begun(server: Serving):
    x = np.zeros(3 << 20, "float32")
    text = json.dumps({"inputs": [{"name": "input", "shape": [x.size], "datatype": "FP32",
                                   "parameters": {"binary_data_size": x.nbytes}}],
                       "parameters": {"repeats": "1", "binary_data_output": True, "timeout": 300_000}})  # fmt: skip
    text = text.encode()
    released = threading.Event()

    def wait_in_turns(_index: int) -> None:
        for _ in range(100 * int(PATIENCE)):
            if released.wait(0.01):
                return
            go_on()  # others get their turns, and what is not wanted any more ends

    slow = Controlled(before=wait_in_turns)
    with use_backend(server.service, slow), server.wire() as first:
        try:
            first.send(request_bytes("POST", "/v2/models/tile/infer", text.replace(b"300000", b"0     ") + x.tobytes(),
                                     {HEADER: len(text)}))  # fmt: skip
            eventually(lambda: slow.computing == 1, "the first one computes")
            assert "did not begin within" in refused(infer(server, "tile", text, x.tobytes()), 503)
        finally:
            released.set()
        assert first.answer().status == 200
    late = Controlled(before=lambda index: time.sleep(0.2 if index else 0))
    with use_backend(server.service, late, slices_ahead=0):
        assert infer(server, "tile", text, x.tobytes()).status == 200


def test_an_output_is_boolean_only_if_every_input_is(server: Serving):
    """DirectML has UINT8 in its place; what comes back has the type of what came."""
    pairs = {("BOOL", "BOOL"): "BOOL", ("BOOL", "UINT8"): "UINT8", ("UINT8", "UINT8"): "UINT8"}
    for (first, second), expected in pairs.items():
        inputs = [tensor("input_0", first, [True, False]), tensor("input_1", second, [True, False])]
        for entry in inputs:
            entry["data"] = entry["data"] if entry["datatype"] == "BOOL" else [1, 0]
        answer = infer(server, "join", {"inputs": inputs, "parameters": {"axis": 0}})
        assert answer.status == 200, answer.body
        (output,) = answer.json()["outputs"]
        assert (output["datatype"], output["data"]) == (expected, [1, 0, 1, 0])


def test_statistics_add_up(server: Serving):
    document = {"inputs": [tensor("data", "INT8", [2])], "parameters": {"axes": "[0]"}}
    for _ in range(3):
        assert infer(server, "onnx.unsqueeze", document).status == 200
    refused(infer(server, "onnx.unsqueeze", {"inputs": []}), 400)

    for target in ("onnx.unsqueeze/stats", "onnx.unsqueeze/versions/1/stats", "stats"):
        stats = server.ask(request_bytes("GET", f"/v2/models/{target}")).json()["model_stats"]
        (found,) = [entry for entry in stats if entry["name"] == "onnx.unsqueeze"]
        counts = {name: entry["count"] for name, entry in found["inference_stats"].items()}
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        assert counts == {"success": 3, "fail": 1, "cache_hit": 0, "cache_miss": 0, **dict.fromkeys(parts, 3)}
        times = {name: entry["ns"] for name, entry in found["inference_stats"].items()}
        assert all(type(ns) is int and ns >= 0 for ns in times.values())
        assert 0 < sum(times[name] for name in parts) <= times["success"]
        assert (found["version"], found["inference_count"], found["execution_count"]) == ("1", 3, 3)


def test_every_operator_is_a_model_whose_tensors_are_its_own():
    models = ModelCatalogue({})

    for name in models.names:
        model = models.find(name)
        metadata, config = model.to_metadata(), model.to_config()
        for ours, theirs in (("inputs", "input"), ("outputs", "output")):
            assert [each["name"] for each in metadata[ours]] == [each["name"] for each in config[theirs]]
        assert "/" not in name
        assert metadata["outputs"], name
    assert {"tile", "resample", "resample2", "onnx.tile", "onnx.resize", "onnx.gather"} <= {*models.names}
    assert models.find("tile.uint8").to_metadata()["inputs"][0]["datatype"] == "UINT8"


def test_the_tree_works_under_a_mount():
    transport = httpx.ASGITransport(create_app(Settings()), root_path="/ops")

    async def calls() -> tuple[Any, Any]:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            document = {"inputs": [tensor("input", "FP32", [1.0])], "parameters": {"repeats": [2]}}
            called = await client.post("/ops/v2/models/tile/infer", json=document)
            return called.json(), (await client.get("/ops/v2/models/tlie")).json()

    with http_app() as app:
        transport.app = app.app
        called, unknown = app.run(calls())
        assert called["outputs"][0]["data"] == [1.0, 1.0]
        assert "error" in unknown
        assert app.service.model_statistics.of_model("", "tile", [1])["model_stats"][0]["inference_count"] <= 1


def test_keys_are_wanted_at_every_path_but_health(tmp_path: Path):
    file = tmp_path / "keys"
    key = commands.add_key(file, "anna")
    call = json.dumps({"inputs": [tensor("input", "FP32", [1.0])], "parameters": {"repeats": [2]}}).encode()
    with http_app(keys_file=file) as app:
        for answer in (app.get("/v2"), app.get("/v2/models/tile"), app.post("/v2/models/tile/infer", call, {})):
            assert (answer.status_code, answer.headers["content-type"]) == (401, "application/json")
            assert "API key" in answer.json()["error"]
        let_in = app.post("/v2/models/tile/infer", call, {"authorization": f"Bearer {key}"})
        assert let_in.json()["outputs"][0]["data"] == [1.0, 1.0]
        assert app.get("/v2/health/ready").status_code == 200
