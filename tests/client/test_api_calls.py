"""Calls without a network: what they say, and what they make of every answer."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save as write_safetensors
from tests.support.batches import each

from tensorpost import BufferTensorDesc, Progress, TensorBlock, TileOperatorDesc, Timeout, problems
from tensorpost.bodies.frame import encode_head
from tensorpost.calls import api_calls as api
from tensorpost.calls.api_calls import RequestOptions
from tensorpost.network.deadline import Deadline
from tensorpost.network.options import DEFAULT_LIMITS
from tensorpost.network.runtime import ThreadRuntime, iterate_blocking, run_blocking
from tensorpost.transport.http1 import Request
from tensorpost.transport.one_server import Transport
from tensorpost.transport.response import Response
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.array([[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]], np.float32)
RETRIES = 2


@pytest.fixture(autouse=True)
def least_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)


@dataclass
class Scripted:
    """An answer as a peer would give it, and how many bytes of it come at once."""

    status: int = 200
    headers: Mapping[str, str] | None = None
    body: bytes = b""
    chunk: int = 1 << 20
    breaks: problems.ConnectionProblem | None = None  # at the end of the body

    def all_headers(self) -> dict[str, str]:
        given = {"content-type": "application/vnd.safetensors", "content-length": str(len(self.body))}
        return {**given, **(self.headers or {})}


@dataclass
class Played:
    """What a call did."""

    result: Any
    requests: list[tuple[Request, bytes]]
    waits: list[float]
    blocks: list[Any]


class Peer:
    """What a transport sends with: it gives these answers, in order."""

    def __init__(self, answers: Iterable[Scripted | problems.ConnectionProblem]) -> None:
        self.left = list(answers)
        self.played = Played(None, [], [], [])
        self.open = 0

    async def send(self, request: Request, deadline: Deadline) -> PeersResponse:
        list(request.pieces())
        self.played.requests.append((request, b"".join(request.body)))
        taken = self.left.pop(0)
        if isinstance(taken, problems.ConnectionProblem):
            raise taken
        self.open += 1
        return PeersResponse(request, self, taken)

    async def close(self) -> None:
        pass


class PeersResponse(Response):
    def __init__(self, request: Request, peer: Peer, answer: Scripted) -> None:
        super().__init__(request)
        self.status, self.headers = answer.status, answer.all_headers()
        self._peer, self._answer, self._at = peer, answer, 0

    async def read_into(self, target: memoryview) -> int:
        answer = self._answer
        part = answer.body[self._at : self._at + min(len(target), answer.chunk)]
        target[: len(part)] = part
        self._at += len(part)
        if not part and answer.breaks:
            raise answer.breaks
        return len(part)

    async def close(self) -> None:
        self._peer.open -= 1


class Waits(ThreadRuntime):
    """Notes how long it should sleep."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    async def sleep(self, seconds: float) -> None:
        self._waits.append(seconds)


def play(
    call: Callable[[Transport], Any],
    answers: Iterable[Scripted | problems.ConnectionProblem],
    retries: int = 0,
    timeout: Timeout | None = None,
) -> Played:
    """Make a call, or read a stream, with these answers."""
    peer = Peer(answers)
    transport = Transport(
        Waits(peer.played.waits),
        "http://peer",
        timeout or Timeout(),
        DEFAULT_LIMITS,
        retries,
        None,
        {},
        True,
        None,
        None,
    )
    transport._senders[os.getpid()] = peer
    called = call(transport)
    if isinstance(called, AsyncGenerator):
        for block in iterate_blocking(called):
            peer.played.blocks.append(block if isinstance(block, TensorBlock) else bytes(block))
    else:
        peer.played.result = run_blocking(called)
    assert peer.left == []
    assert peer.open == 0
    return peer.played


def frame(tensors: Mapping[str, np.ndarray] | None = None, metadata: Mapping[str, str] | None = None) -> bytes:
    """An answer's frame, written by the safetensors library."""
    return write_safetensors(
        {"output": Y} if tensors is None else dict(tensors), dict(metadata or {"backend": "numpy"})
    )


def compute(
    answers: Iterable[Scripted | problems.ConnectionProblem],
    retries: int = 0,
    desc: Any = DESC,
    x: Any = X,
    out: Any = None,
    timeout: Timeout | None = None,
    **options: Any,
) -> Played:
    return play(
        lambda transport: api.compute(transport, desc, x, out, RequestOptions(**options)), answers, retries, timeout
    )  # fmt: skip


def stream(
    answers: Iterable[Scripted | problems.ConnectionProblem],
    retries: int = 0,
    desc: Any = DESC,
    x: Any = X,
    block_bytes: int = 16,
) -> Played:
    return play(lambda transport: api.stream(transport, desc, x, block_bytes, RequestOptions()), answers, retries)


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_the_request_is_a_frame_that_safetensors_reads() -> None:
    ((request, body),) = compute([Scripted(body=frame())]).requests

    assert (request.method, request.target) == ("POST", "/v1/operators/tile")
    assert dict(request.fields)["content-type"] == "application/vnd.safetensors"
    assert request.content_length == len(body)
    assert read_safetensors(body)["input"].tobytes() == X.tobytes()
    head = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    assert json.loads(head["__metadata__"]["op"]) == {
        "type": "DML_OPERATOR_TILE",
        "desc": {
            "InputTensor": {
                "DataType": "FLOAT32", "Flags": "NONE", "Sizes": [2, 3], "DimensionCount": 2,
                "TotalTensorSizeInBytes": 24, "GuaranteedBaseOffsetAlignment": 0,
            },
            "OutputTensor": {
                "DataType": "FLOAT32", "Flags": "NONE", "Sizes": [2, 6], "DimensionCount": 2,
                "TotalTensorSizeInBytes": 48, "GuaranteedBaseOffsetAlignment": 0,
            },
            "Repeats": [1, 2],
            "RepeatsCount": 2,
        },
    }  # fmt: skip


def test_backend_device_and_level_travel_in_the_query() -> None:
    played = compute([Scripted(body=frame())], backend="a&b", device=0, feature_level="DML_FEATURE_LEVEL_2_1")

    assert played.requests[0][0].target == "/v1/operators/tile?backend=a%26b&device=0&feature_level=2_1"


def test_a_negative_device_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(problems.InvalidParameter, match="device is -1; it must be a whole number of at least 0"):
        compute([], backend="cuda", device=-1)


def test_a_level_that_does_not_exist_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(problems.InvalidParameter, match="9_9"):
        compute([], feature_level="9_9")


def test_a_large_body_is_cut_into_views() -> None:
    array = np.arange(3 << 20, dtype=np.uint8)
    large = Request("POST", "/", (), (memoryview(b"head"), array.data))

    pieces = list(large.pieces())

    assert [len(piece) for piece in pieces] == [4, 1 << 20, 1 << 20, 1 << 20]
    assert all(np.shares_memory(array, np.frombuffer(piece, np.uint8)) for piece in pieces[1:])
    assert list(Request("GET", "/", ()).pieces()) == []


def test_a_name_in_a_path_cannot_leave_its_segment() -> None:
    played = play(
        lambda transport: api.document(transport, "/v1/operators", "../x?y#z"),
        [Scripted(headers={"content-type": "application/json"}, body=b"{}")],
    )

    assert played.requests[0][0].target == "/v1/operators/..%2Fx%3Fy%23z"


# ---- answers that are right ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("length", [True, False], ids=["Content-Length", "chunked"])
def test_an_answer_is_read_whatever_pieces_it_comes_in(chunk: int, length: bool) -> None:
    headers = {} if length else {"content-length": ""}

    played = compute([Scripted(headers=headers, body=frame(), chunk=chunk)])

    assert played.result.array.dtype == np.float32
    np.testing.assert_array_equal(played.result.array, Y)


def test_what_the_server_says_beside_the_output_is_kept() -> None:
    headers = {
        "x-request-id": "r1",
        "server-timing": 'queue;dur=0.2, h2d;desc="to the device";dur=3, cache, bad;dur=x, kernel;dur="1.5"',
    }
    body = frame(metadata={"backend": "cuda", "device": "NVIDIA H100"})

    result = compute([Scripted(headers=headers, body=body)]).result

    assert (result.backend, result.device, result.request_id) == ("cuda", "NVIDIA H100", "r1")
    assert result.server_timing == {"queue": 0.2, "h2d": 3.0, "kernel": 1.5}


@pytest.mark.parametrize("again", [lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy, replace])
def test_a_result_can_be_kept_and_passed_on(again: Callable[[Any], Any]) -> None:
    result = compute([Scripted(headers={"server-timing": "kernel;dur=1.5"}, body=frame())]).result

    other = again(result)

    assert asdict(other).keys() == {field.name for field in fields(result)}
    np.testing.assert_array_equal(other.array, Y)
    assert asdict(other)["server_timing"] == {"kernel": 1.5}


def test_the_output_is_received_into_out() -> None:
    out = np.zeros((2, 6), np.float32)

    result = compute([Scripted(body=frame())], out=out).result

    assert result.array is out
    np.testing.assert_array_equal(out, Y)


@pytest.mark.parametrize("block_bytes", [1, 5, 16, 47, 48, 49, 1 << 20])
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_a_stream_hands_out_blocks_of_the_size_asked_for(block_bytes: int, chunk: int) -> None:
    blocks = stream([Scripted(body=frame(), chunk=chunk)], block_bytes=block_bytes).blocks

    assert b"".join(blocks) == Y.tobytes()
    assert {len(block) for block in blocks[:-1]} <= {block_bytes}
    assert 0 < len(blocks[-1]) <= block_bytes


def test_progress_counts_both_directions_once() -> None:
    seen: list[Progress] = []
    body = frame()

    played = compute([Scripted(body=body, chunk=100)], progress=seen.append)

    sent = len(played.requests[0][1])
    assert seen[0] == Progress(0, sent)
    assert seen[1] == Progress(sent, sent)
    received = [p.received for p in seen[2:]]
    assert received == sorted({*received, len(body)})
    assert max(later - before for before, later in pairwise([0, *received])) <= 100
    assert {(p.sent, p.to_send, p.to_receive) for p in seen[2:]} == {(sent, sent, len(body))}


# ---- answers that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Scripted(headers={"content-type": "text/html"}, body=b"<html>"), "text/html"),
        (Scripted(headers={"content-type": ""}, body=b""), "no type"),
        (Scripted(headers={"content-encoding": "gzip"}, body=frame()), "gzip"),
        (Scripted(body=b""), "not a readable frame"),
        (Scripted(body=b"rubbish, and enough of it to be a head"), "not a readable frame"),
        (Scripted(body=frame() + b"\0"), "not a readable frame"),
        (Scripted(headers={"content-length": ""}, body=frame() + b"\0"), "longer than its head says"),
        (Scripted(body=frame({"output": Y.astype(np.float64)})), "float64"),
        (Scripted(body=frame({"output": Y.reshape(6, 2)})), r"\(6, 2\)"),
        (Scripted(body=frame({"output": Y, "more": Y})), r"\('float32', \(2, 6\)\), \('float32', \(2, 6\)\)"),
        (Scripted(body=frame({})), r"holds \[\]"),
    ],
)
def test_a_success_that_is_none_is_the_server_s_fault(answer: Scripted, said: str) -> None:
    with pytest.raises(problems.ServerFault, match=said) as caught:
        compute([answer])
    assert caught.value.status == 200


@each("kept", range(len(frame())))
def test_an_answer_that_breaks_off_anywhere_is_incomplete(kept: int) -> None:
    body = frame()
    headers = {"content-length": str(len(body)), "x-request-id": "r1"}

    with pytest.raises(problems.IncompleteBody, match=f"after {kept} of {len(body)} bytes") as caught:
        compute([Scripted(headers=headers, body=body[:kept])])

    assert caught.value.extra == {"received": kept, "expected": len(body)}
    assert caught.value.request_id == "r1"


def test_without_content_length_a_frame_that_breaks_off_is_incomplete_too() -> None:
    with pytest.raises(problems.IncompleteBody):
        compute([Scripted(headers={"content-length": ""}, body=frame()[:-1])])


def test_a_reset_in_the_middle_is_an_incomplete_answer_with_its_cause() -> None:
    reset = problems.ConnectionProblem("reset by peer")

    with pytest.raises(problems.IncompleteBody) as caught:
        compute([Scripted(headers={"content-length": "9999"}, body=frame()[:100], breaks=reset)], RETRIES)

    assert caught.value.__cause__ is reset


def test_silence_in_the_middle_is_a_timeout_that_says_how_far_it_came() -> None:
    silence = problems.RequestTimeout("silent")

    with pytest.raises(problems.RequestTimeout, match="silent, after 100 of 9,999 bytes") as caught:
        compute([Scripted(headers={"content-length": "9999"}, body=frame()[:100], breaks=silence)], RETRIES)

    assert caught.value.extra == {"received": 100, "expected": 9999}


# ---- errors ----------------------------------------------------------------------------------------------------------


def problem(error: problems.TensorpostError, status: int, **headers: str) -> Scripted:
    body = json.dumps({**error.to_problem(status), "request_id": "r7"}).encode()
    return Scripted(status, {"content-type": "application/problem+json", **headers}, body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (problems.InvalidDescriptor.of([problems.Violation("c", ("desc", "Sizes", 0), "m", 0, "e", "s")]), 422),
        (problems.UnsupportedAtLevel.of([problems.Violation("c", ("desc",), "m")]), 422),
        (problems.LimitExceeded.of("the body", 2, 1, "TENSORPOST_MAX_BODY_BYTES"), 413),
        (problems.TooBusy("full"), 429),
        (problems.NoBackend("none", extra={"refused": {"cuda": "no device"}}), 501),
        (problems.ServerFault("ours"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_problem_document_becomes_its_exception(error: problems.TensorpostError, status: int) -> None:
    with pytest.raises(type(error)) as caught:
        compute([problem(error, status)])

    found = caught.value
    assert type(found) is type(error)
    assert (found.detail, found.status, found.request_id) == (error.detail, status, "r7")
    assert error.extra.items() <= found.extra.items()
    assert [v.message for v in found.violations] == [v.message for v in error.violations]


@pytest.mark.parametrize(
    ("answer", "cls", "said"),
    [
        (
            Scripted(502, {"content-type": "text/html"}, b"<h1>Bad\n gateway</h1>"),
            problems.ServerFault,
            "another web server at this URL, or a proxy.* answered: Bad gateway$",
        ),
        (Scripted(503, {"content-type": "text/plain"}, b""), problems.Unavailable, "503"),
        (Scripted(404, {"content-type": "text/plain"}, b"x" * 10_000), problems.InvalidRequest, "x{200}$"),
        (Scripted(400, {"content-type": "application/problem+json"}, b"{broken"), problems.InvalidRequest, "{broken"),
        (Scripted(400, {"content-type": "application/problem+json"}, b"[1]"), problems.InvalidRequest, r"\[1\]"),
        (
            Scripted(404, {"content-type": "application/json"}, b'{"detail":"other"}'),
            problems.InvalidRequest,
            "^other$",
        ),
        (Scripted(307, {"location": "https://x/"}, b""), problems.InvalidRequest, "redirected to https://x/"),
        (Scripted(400, {"content-length": "50"}, b"broke off"), problems.InvalidRequest, "400"),
        (Scripted(500, {"content-type": "text/plain"}, b"\xff\xfe"), problems.ServerFault, "500"),
    ],
)
def test_errors_of_something_else_on_the_way_are_understood_too(answer: Scripted, cls: type, said: str) -> None:
    with pytest.raises(cls, match=said) as caught:
        compute([answer])
    assert type(caught.value) is cls
    assert caught.value.status == answer.status


def test_an_endless_error_is_read_in_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    async def flood(self: PeersResponse, target: memoryview) -> int:
        nonlocal reads
        reads += 1
        return len(target)

    monkeypatch.setattr(PeersResponse, "read_into", flood)
    with pytest.raises(problems.ServerFault):
        compute([Scripted(500, {"content-type": "text/plain", "content-length": ""})])
    assert reads <= 17  # 1 MiB in pieces of 64 KiB


# ---- repeating -------------------------------------------------------------------------------------------------------

OK = Scripted(body=frame())
BUSY = problem(problems.TooBusy("full"), 429)
DRAINING = problem(problems.NotReady("draining"), 503)
GONE = problems.ConnectFailed("no server")
HUNG_UP = problems.ConnectionProblem("closed without an answer")


@pytest.mark.parametrize(
    "first", [BUSY, DRAINING, GONE, HUNG_UP, Scripted(503, {"content-type": "text/html"}, b"proxy")]
)
def test_a_call_is_repeated_with_the_same_bytes_and_succeeds(first: Scripted | problems.ConnectionProblem) -> None:
    played = compute([first, first, OK], RETRIES)

    np.testing.assert_array_equal(played.result.array, Y)
    assert len({body for _, body in played.requests}) == 1
    assert played.waits == [pytest.approx(0.05), pytest.approx(0.1)]


@pytest.mark.parametrize(("first", "cls"), [(BUSY, problems.TooBusy), (GONE, problems.ConnectFailed)])
def test_repeating_ends(first: Scripted | problems.ConnectionProblem, cls: type[Exception]) -> None:
    with pytest.raises(cls):
        compute([first] * 3, RETRIES)


@pytest.mark.parametrize(
    "first",
    [
        problem(problems.LimitExceeded.of("x", 2, 1, "s"), 413),
        problem(problems.ServerFault("ours"), 500),
        problem(problems.NoBackend("none"), 501),
        problems.RequestTimeout("silent"),
        Scripted(headers={"content-length": "9999"}, body=frame()),
        Scripted(headers={"content-type": "text/html"}),
    ],
)
def test_what_would_not_help_is_not_repeated(first: Scripted | problems.ConnectionProblem) -> None:
    with pytest.raises(problems.TensorpostError):
        compute([first], RETRIES)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0"}, 0.05),
        ({"retry-after": "-5"}, 0.05),
        ({"retry-after": "soon"}, 0.05),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:29:00 GMT"}, 0.05),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT"}, 0.05),
    ],
)
def test_retry_after_is_honoured(headers: dict[str, str], seconds: float) -> None:
    played = compute([problem(problems.TooBusy("full"), 429, **headers), OK], RETRIES)

    assert played.waits == [pytest.approx(seconds)]


def test_a_stream_is_repeated_only_before_its_first_block() -> None:
    assert b"".join(stream([BUSY, OK], RETRIES).blocks) == Y.tobytes()
    half = Scripted(headers={"content-length": str(len(frame()))}, body=frame()[:-24])
    with pytest.raises(problems.IncompleteBody):
        stream([half], RETRIES)


# ---- the end of a call's time ----------------------------------------------------------------------------------------


def test_a_wait_that_would_outlast_the_call_is_not_begun() -> None:
    asked = problem(problems.TooBusy("full"), 429, **{"retry-after": "5"})

    with pytest.raises(problems.TooBusy):
        compute([asked], RETRIES, timeout=Timeout(total=4))
    assert compute([asked, OK], RETRIES, timeout=Timeout(total=6)).waits == [pytest.approx(5)]


# ---- several tensors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """An operation with any number of tensors."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    name: str = "MADE"
    endpoint: str = "/v1/operators/made"

    def to_document_text(self) -> str:
        return '{"type":"DML_OPERATOR_MADE"}'


def slot(name: str, dtype: str, *sizes: int) -> Slot:
    return Slot(name, Layout.row_major(data_type(dtype), sizes))


A, B, C = np.arange(3, dtype=np.uint8), np.arange(4, dtype=np.float32).reshape(2, 2), np.array([7], np.int64)
MANY = Made((slot("a", "uint8", 3), slot("b", "float32", 2, 2)), (slot("b", "float32", 2, 2), slot("c", "int64", 1)))
MANY_FRAME = bytes(
    encode_head(
        [("b", data_type("float32"), (2, 2)), ("c", data_type("int64"), (1,))], {"backend": "n", "device": "d"}
    )
    + B.tobytes()
    + C.tobytes()
)  # fmt: skip


@pytest.mark.parametrize("inputs", [[A, B], (A, B.tobytes()), {"b": B, "a": A}], ids=["list", "tuple", "mapping"])
def test_inputs_go_in_the_order_of_their_slots(inputs: Any) -> None:
    ((_, body),) = compute([Scripted(body=MANY_FRAME)], desc=MANY, x=inputs).requests

    assert body.endswith(A.tobytes() + B.tobytes())
    head = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    assert [name for name in head if name != "__metadata__"] == ["a", "b"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (A, "the inputs a, b; got one ndarray"),
        (None, "the inputs a, b; got none"),
        ([A], "got a list of 1"),
        ([A, B, C], "got a list of 3"),
        ({"a": A}, "got a"),
        ({"a": A, "b": B, "c": C}, "got a, b, c"),
        ([B, A], "a is float32"),
    ],
)
def test_other_inputs_are_refused(inputs: Any, said: str) -> None:
    with pytest.raises(problems.InvalidParameter, match=said):
        compute([], desc=MANY, x=inputs)


@pytest.mark.parametrize("inputs", [None, (), {}])
def test_an_operation_without_inputs_sends_a_frame_without_tensors(inputs: Any) -> None:
    ((_, body),) = compute([Scripted(body=frame())], desc=Made((), DESC.outputs), x=inputs).requests

    assert len(body) == 8 + int.from_bytes(body[:8], "little")
    with pytest.raises(problems.InvalidParameter, match="MADE takes no inputs; got one ndarray"):
        compute([], desc=Made((), DESC.outputs))


def test_an_only_input_may_stand_in_a_sequence() -> None:
    assert compute([OK], x=[X]).requests[0][1] == compute([OK], x=X).requests[0][1]


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_several_outputs_come_by_name_and_in_order(chunk: int) -> None:
    result = compute([Scripted(body=MANY_FRAME, chunk=chunk)], desc=MANY, x=[A, B]).result

    assert list(result.arrays) == ["b", "c"]
    np.testing.assert_array_equal(result.arrays["b"], B)
    np.testing.assert_array_equal(result.arrays["c"], C)
    with pytest.raises(problems.InvalidParameter, match="several outputs: b, c"):
        _ = result.array


@pytest.mark.parametrize("kind", ["mapping", "list", "part"])
def test_several_outputs_are_received_into_out(kind: str) -> None:
    b, c = np.zeros((2, 2), np.float32), np.zeros(1, np.int64)
    out: Any = {"mapping": {"c": c, "b": b}, "list": [b, c], "part": {"c": c}}[kind]

    arrays = compute([Scripted(body=MANY_FRAME)], desc=MANY, x=[A, B], out=out).result.arrays

    assert (arrays["b"] is b, arrays["c"] is c) == (kind != "part", True)
    np.testing.assert_array_equal(arrays["b"], B)
    np.testing.assert_array_equal(c, C)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.zeros((2, 2), np.float32), "for each of the outputs b, c"),
        ([np.zeros((2, 2), np.float32)], "for each of the outputs b, c"),
        ({"x": C}, "for each of the outputs b, c"),
        ([np.zeros((2, 2), np.float32), np.zeros(2, np.int64)], "out for c must be an array of int64"),
    ],
)
def test_an_out_for_other_outputs_is_refused(out: Any, said: str) -> None:
    with pytest.raises(problems.InvalidParameter, match=said):
        compute([], desc=MANY, x=[A, B], out=out)


@pytest.mark.parametrize("answered", [MANY.outputs[:1], MANY.outputs[::-1]])
def test_other_outputs_are_the_server_s_fault(answered: tuple[Slot, ...]) -> None:
    with pytest.raises(problems.ServerFault, match="the operation's outputs are"):
        compute([Scripted(body=MANY_FRAME)], desc=Made(MANY.inputs, answered), x=[A, B])


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_a_stream_of_several_outputs_says_which_one_a_block_is_of(chunk: int) -> None:
    blocks: Any = stream([Scripted(body=MANY_FRAME, chunk=chunk)], desc=MANY, x=[A, B], block_bytes=10).blocks

    found = [(block.output, block.start, bytes(block.data)) for block in blocks]
    assert found == [("b", 0, B.tobytes()[:10]), ("b", 10, B.tobytes()[10:]), ("c", 0, C.tobytes())]


def test_an_empty_output_has_no_block() -> None:
    desc = Made((), (slot("a", "uint8", 0), slot("b", "uint8", 2)))
    body = encode_head([("a", data_type("uint8"), (0,)), ("b", data_type("uint8"), (2,))]) + b"xy"

    blocks: Any = stream([Scripted(body=body)], desc=desc, x=None).blocks
    assert [(block.output, bytes(block.data)) for block in blocks] == [("b", b"xy")]
    assert (
        stream(
            [Scripted(body=encode_head([("a", data_type("uint8"), (0,))]))], desc=Made((), desc.outputs[:1]), x=None
        ).blocks
        == []
    )


# ---- questions -------------------------------------------------------------------------------------------------------


def ask(call: Callable[..., Any], *args: Any, said: bytes, kind: str = "application/json") -> Any:
    return play(lambda transport: call(transport, *args), [Scripted(headers={"content-type": kind}, body=said)]).result


def test_a_document_is_returned_as_it_is() -> None:
    assert ask(api.document, "/v1/limits", said=b'{"limits": []}') == {"limits": []}


@pytest.mark.parametrize(
    ("said", "kind"), [(b"{", "application/json"), (b'{"a":1,"a":2}', "application/json"), (b"{}", "text/html")]
)
def test_a_document_that_is_none_is_the_server_s_fault(said: bytes, kind: str) -> None:
    with pytest.raises(problems.ServerFault, match="JSON"):
        ask(api.document, "/v1/limits", said=said, kind=kind)


@pytest.mark.parametrize("said", [b"{}", b"[]", b"null", b'{"valid": true, "lowest_feature_level": null}'])
def test_a_verdict_that_cannot_be_understood_is_the_server_s_fault(said: bytes) -> None:
    with pytest.raises(problems.ServerFault, match="cannot be understood"):
        ask(api.validate, DESC, None, said=said)


def test_a_document_that_is_no_json_cannot_be_asked_about() -> None:
    with pytest.raises(problems.InvalidParameter, match="JSON"):
        play(lambda transport: api.validate(transport, {"type": object()}, None), [])


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (Scripted(200, {"content-type": "application/json"}, b"{}"), True),
        (Scripted(204, {}, b""), True),
        (DRAINING, False),
        (BUSY, False),
        (GONE, False),
        (problems.RequestTimeout("silent"), False),
    ],
)
def test_health_is_a_plain_yes_or_no(answer: Scripted | problems.ConnectionProblem, healthy: bool) -> None:
    assert play(lambda transport: api.health(transport, "/v2/health/ready"), [answer]).result is healthy


def test_a_health_page_that_does_not_exist_is_no_answer() -> None:
    with pytest.raises(problems.NotFound):
        play(lambda transport: api.health(transport, "/v2/health/ready"), [problem(problems.NotFound("nothing"), 404)])
