"""Requests that are long to read or to write: the event loop's thread does a bounded number of steps for each.

Steps are counted, not timed: every call of a Python function on that thread while the request is served.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    Answer,
    Controlled,
    Serving,
    eventually,
    frame_bytes,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)  # fmt: skip

from tensorpost import frame
from tensorpost.bodies.json_tensor import tensor_to_json
from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.values.datatypes import data_type
from tensorpost.values.problems import InvalidFrame, InvalidJson
from tensorpost_server.http.background_threads import background_threads
from tensorpost_server.http.json_numbers import json_numbers
from tensorpost_server.http.wires.operator_answer import tensor_json

LOOP = "uvicorn"  # the name of the thread that `serving` runs the server on
MOST_STEPS = 6_000
"""Calls of Python functions on the loop's thread for one request; at a tenth of a microsecond to one each, some ms."""
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(memory_bytes=1 << 30, numpy_threads=1) as found:
        yield found


def counted(server: Serving, data: bytes) -> tuple[Answer, Counter[str], Counter[str]]:
    """The answer to a request, and the calls of each function on the loop's thread and on all other threads."""
    on_loop, elsewhere = Counter[str](), Counter[str]()

    def count(code_frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call":
            name = threading.current_thread().name
            (on_loop if name == LOOP else elsewhere)[code_frame.f_code.co_name] += 1

    loop = server.server.servers[0].get_loop()
    server.service.parsing = background_threads()  # whose threads have not started yet
    threading.setprofile(count)
    loop.call_soon_threadsafe(sys.setprofile, count)
    try:
        answer = server.ask(data)
    finally:
        loop.call_soon_threadsafe(sys.setprofile, None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] # typeshed leaves None out
    server.assert_serves_on()
    return answer, on_loop, elsewhere


def json_call(path: str, text: str) -> bytes:
    return request_bytes("POST", path, text.encode(), JSON)


def nest(depth: int, size: int) -> str:
    return ",".join(["[" * depth + "]" * depth] * (size // (2 * depth + 1)))


def frame_head(entries: int) -> bytes:
    head = ",".join(f'"{index}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for index in range(entries))
    text = f"{{{head}}}".encode()
    return len(text).to_bytes(8, "little") + text


LONG_TENSORS = ",".join(f'"a{index}":{{"dtype":"U8","shape":[],"data":0}}' for index in range(21_000))
LONG_REQUESTS: dict[str, Callable[[], bytes]] = {
    "nested data": lambda: json_call(
        "/v1/operators/tile?repeats=1",
        f'{{"tensors":{{"input":{{"dtype":"F32","shape":[1],"data":[{nest(58, MIB - 99)}]}}}}}}',
    ),
    "nested descriptor": lambda: json_call(
        "/v1/operators/tile", f'{{"tensors":{{}},"op":{{"type":"TILE","desc":{{"Repeats":[{nest(58, MIB - 99)}]}}}}}}'
    ),
    "21,000 tensors": lambda: json_call("/v1/operators/tile?repeats=1", f'{{"tensors":{{{LONG_TENSORS}}}}}'[: MIB]),
    "a million digits": lambda: json_call(
        "/v1/operators/tile?repeats=1",
        f'{{"tensors":{{"input":{{"dtype":"I64","shape":[500000],"data":[{",".join("0" * 500_000)}]}}}}}}',
    ),
    "validate, nested": lambda: json_call(
        "/v1/validate", f'{{"type":"TILE","desc":{{"Repeats":[{nest(58, MIB - 99)}]}}}}'
    ),
    "validate, long": lambda: json_call(
        "/v1/validate", f'{{"type":"TILE","desc":{{"Repeats":[{",".join("1" * 500_000)}]}}}}'
    ),
    "validate, many fields": lambda: json_call(
        "/v1/validate", f'{{"type":"JOIN","desc":{{{",".join(f"{chr(34)}{i}{chr(34)}:0" for i in range(90_000))}}}}}'
    ),
    "frame of 13,000 entries": lambda: request_bytes("POST", "/v1/operators/tile?repeats=1", frame_head(13_000), FRAME),
    "repeats of 30,000 numbers": lambda: request_bytes(
        "POST", "/v1/operators/tile?repeats=" + ",".join("1" * 30_000), npy_bytes([1, 2]), NPY
    ),
    "repeats of 30,000 names": lambda: request_bytes(
        "POST", "/v1/operators/tile?repeats=" + ",".join("a" * 30_000), npy_bytes([1, 2]), NPY
    ),
    "ONNX repeats of 30,000 names": lambda: request_bytes(
        "POST", "/v1/onnx/Tile?repeats=" + ",".join("a" * 30_000), npy_bytes([1, 2]), NPY
    ),
    "30,000 parameters": lambda: request_bytes(
        "POST", "/v1/operators/tile?" + "&".join("a" * 30_000), npy_bytes([1, 2]), NPY
    ),
    "30,000 media types": lambda: request_bytes(
        "POST", "/v1/operators/tile?repeats=2", npy_bytes([1, 2]), {**NPY, "accept": ",".join("a" * 30_000)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_REQUESTS)
def test_a_long_request_takes_few_steps_on_the_event_loop(server: Serving, name: str) -> None:
    request = LONG_REQUESTS[name]()

    answer, on_loop, _ = counted(server, request)

    assert answer.status in (200, 400, 406, 413, 422), answer.body[:400]
    assert len(answer.body) < 65_536 or answer.status == 200
    assert on_loop.total() < MOST_STEPS, on_loop.most_common(5)
    if JSON["content-type"].encode() in request:  # arrays that nest are built by one call
        assert not on_loop["read_json"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_a_large_output_is_written_as_json_on_a_thread(server: Serving, dtype: str) -> None:
    body = npy_bytes(np.array([1.5], dtype), dtype)
    data = request_bytes("POST", "/v1/operators/tile?repeats=65536", body, {**NPY, "accept": "application/json"})

    answer, on_loop, elsewhere = counted(server, data)

    assert answer.status == 200, answer.body
    assert answer.json()["tensors"]["output"]["data"] == [np.array([1.5], dtype).tolist()[0]] * 65_536
    assert (on_loop["json_numbers"], elsewhere["json_numbers"]) == (0, 1)
    assert on_loop.total() < MOST_STEPS


def test_small_json_is_read_and_written_without_a_change_of_threads(server: Serving) -> None:
    text = '{"op":{"type":"TILE","desc":{"Repeats":[2]}},"tensors":{"input":{"dtype":"F32","shape":[2],"data":[1,2]}}}'

    answer, on_loop, elsewhere = counted(server, json_call("/v1/operators/tile", text))

    assert answer.json()["tensors"]["output"] == {"dtype": "F32", "shape": [4], "data": [1.0, 2.0, 1.0, 2.0]}
    assert (on_loop["json_numbers"], elsewhere["json_numbers"]) == (1, 0)
    assert on_loop["read_json"] >= 1
    assert not elsewhere["read_json"]


@pytest.mark.parametrize("path", ["/v1/operators/tile", "/v1/validate"])
def test_long_json_is_admitted_with_the_memory_of_what_it_becomes(path: str) -> None:
    text = f'{{"type":"TILE","desc":{{"Repeats":[{",".join("1" * 50_000)}]}}}}'
    with serving(memory_bytes=1 << 20, numpy_threads=1) as small:
        refused, on_loop, elsewhere = counted(small, json_call(path, text))

    assert refused.status == 413
    assert refused.json()["setting"] == "TENSORPOST_MEMORY_BYTES"
    assert not on_loop["read_json"] + elsewhere["read_json"], "refused before anything is read"


def test_validate_counts_as_a_request() -> None:
    document = b'{"type":"TILE","desc":{"InputTensor":{"DataType":"FLOAT32","Sizes":[1]},"Repeats":[1]}}'
    hold = threading.Event()
    with serving(max_requests=1, numpy_threads=1) as server:
        with use_backend(server.service, Controlled(before=lambda _: hold.wait(20))), server.wire() as wire:
            wire.send(
                json_call("/v1/operators/tile?repeats=1", '{"tensors":{"input":{"dtype":"U8","shape":[1],"data":[1]}}}')
            )
            eventually(lambda: server.service.admission.requests_in_flight == 1, "a request is admitted")
            refused = server.ask(request_bytes("POST", "/v1/validate", document, JSON))
            hold.set()
            assert wire.answer().status == 200
        allowed = server.ask(request_bytes("POST", "/v1/validate", document, JSON))

    assert (refused.status, allowed.status) == (429, 200)


# ---- counts are refused before objects are built ---------------------------------------------------------------------


def test_brackets_are_counted_before_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing may be built")

    monkeypatch.setattr(json.JSONDecoder, "decode", never)

    with pytest.raises(InvalidJson, match="1,000,001 opening brackets; at most 1,000,000") as refusal:
        read_json(b"[" * 1_000_001, max_containers=1_000_000)

    assert refusal.value.extra == {"limit": 1_000_000, "actual": 1_000_001}


def test_tensors_of_a_frame_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = frame_head(MOST_TENSORS + 2)  # one object more may be the metadata
    monkeypatch.setattr(json.JSONDecoder, "decode", lambda *_: pytest.fail("nothing may be built"))

    with pytest.raises(InvalidFrame, match="1,026 entries; at most 1,024 tensors"):
        frame.HeadReader(max_tensors=MOST_TENSORS).feed(data)


def test_as_many_tensors_as_a_descriptor_may_have_are_read() -> None:
    tensors = {f"{{{index}": ("U8", [0], b"") for index in range(MOST_TENSORS)}
    reader = frame.HeadReader(max_tensors=MOST_TENSORS)

    reader.feed(frame_bytes(tensors, {"op": json.dumps({"{": [{}] * 5000})}))

    assert reader.head is not None
    assert len(reader.head.tensors) == MOST_TENSORS


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20_000])
def test_json_in_blocks_says_the_same(dtype: str, count: int) -> None:
    array = (np.arange(count) * 0.37).astype(data_type(dtype).dtype)

    assert json.loads(tensor_json(array)) == tensor_to_json(array)


def test_elements_that_have_no_short_decimals_or_none_at_all_in_blocks() -> None:
    # 7.038531e-26 is the shortest name of the first, but read as float64 first it is rounded to its neighbour.
    found = json_numbers(np.array([0x15AE43FD, 0x7FA00000, 0xFF800000, 0x3DCCCCCD], "<u4").view("<f4"))

    assert found.split(b",")[1:] == [b"NaN", b"-Infinity", b"0.1"]
    assert np.float32(float(found.split(b",")[0])).view("<u4") == 0x15AE43FD
    assert json_numbers(np.array([[np.inf, 0.1], [65504, np.nan]], "f2")) == b"Infinity,0.1,65500.0,NaN"


def test_a_scalar_in_blocks() -> None:
    array = np.array(-0.0)

    assert json.loads(tensor_json(array)) == {"dtype": "F64", "shape": [], "data": [-0.0]}
