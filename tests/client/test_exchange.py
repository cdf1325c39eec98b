"""Calls without a network: what they say, and what they make of every answer."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save as write_safetensors

from tensorpost import BufferTensorDesc, Progress, TileOperatorDesc, problems
from tensorpost import _exchange as exchange
from tensorpost import _steps as steps
from tensorpost._retries import RetryPolicy

DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.array([[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]], np.float32)
NO_RETRIES = RetryPolicy(0)
RETRIES = RetryPolicy(2, spread=lambda: 0.0)


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
    requests: list[tuple[steps.Request, bytes]]
    waits: list[float]
    blocks: list[bytes]


def play(flow: steps.Flow[Any], answers: Iterable[Scripted | problems.ConnectionProblem]) -> Played:
    """Drive a call with these answers, in order."""
    left = list(answers)
    played = Played(None, [], [], [])
    answer, at = Scripted(), 0
    try:
        step = next(flow)
        while True:
            outcome: object = None
            match step:
                case steps.Send(request):
                    played.requests.append((request, b"".join(request.pieces())))
                    taken = left.pop(0)
                    if isinstance(taken, problems.ConnectionProblem):
                        outcome = taken
                    else:
                        answer, at = taken, 0
                        outcome = steps.AnswerHead(answer.status, answer.all_headers())
                case steps.Read(into):
                    part = answer.body[at : at + min(len(into), answer.chunk)]
                    into[: len(part)] = part
                    at += len(part)
                    outcome = answer.breaks if not part and answer.breaks else len(part)
                case steps.Wait(seconds):
                    played.waits.append(seconds)
                case steps.HandOut(block):
                    played.blocks.append(bytes(block))
            step = steps.resume(flow, outcome)
    except StopIteration as done:
        played.result = done.value
    assert left == []
    return played


def frame(tensors: Mapping[str, np.ndarray] | None = None, metadata: Mapping[str, str] | None = None) -> bytes:
    """An answer's frame, written by the safetensors library."""
    return write_safetensors(
        {"output": Y} if tensors is None else dict(tensors), dict(metadata or {"backend": "numpy"})
    )


def compute(
    answers: Iterable[Scripted | problems.ConnectionProblem], policy: RetryPolicy = NO_RETRIES, **options: Any
) -> Played:
    return play(exchange.compute(policy, options.pop("desc", DESC), options.pop("x", X), **options), answers)


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_the_request_is_a_frame_that_safetensors_reads() -> None:
    ((request, body),) = compute([Scripted(body=frame())]).requests

    assert (request.method, request.target) == ("POST", "/v1/operators/tile")
    assert request.headers["content-type"] == "application/vnd.safetensors"
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
        exchange.compute(NO_RETRIES, DESC, X, feature_level="9_9")


def test_a_large_body_is_cut_into_views_and_a_small_one_is_one_piece() -> None:
    array = np.arange(3 << 20, dtype=np.uint8)
    large = steps.Request("POST", "/", {}, (memoryview(b"head"), array.data))
    small = steps.Request("POST", "/", {}, (memoryview(b"head"), memoryview(b"tail")))

    pieces = list(large.pieces())

    assert [len(piece) for piece in pieces] == [4, 1 << 20, 1 << 20, 1 << 20]
    assert all(np.shares_memory(array, np.frombuffer(piece, np.uint8)) for piece in pieces[1:])
    assert [bytes(piece) for piece in small.pieces()] == [b"headtail"]
    assert list(steps.Request("GET", "/", {}).pieces()) == []


def test_a_name_in_a_path_cannot_leave_its_segment() -> None:
    played = play(
        exchange.document(NO_RETRIES, "/v1/operators", "../x?y#z"),
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
    flow = exchange.stream(NO_RETRIES, DESC, X, block_bytes=block_bytes)

    blocks = play(flow, [Scripted(body=frame(), chunk=chunk)]).blocks

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
    assert [p.received for p in seen[2:]] == [*range(100, len(body), 100), len(body)]
    assert {(p.sent, p.to_send, p.to_receive) for p in seen[2:]} == {(sent, sent, len(body))}


# ---- answers that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Scripted(headers={"content-type": "text/html"}, body=b"<html>"), "text/html"),
        (Scripted(headers={"content-type": ""}, body=b""), "no type"),
        (Scripted(headers={"content-encoding": "gzip"}, body=frame()), "gzip"),
        (Scripted(body=b""), "no readable frame"),
        (Scripted(body=b"rubbish, and enough of it to be a head"), "no readable frame"),
        (Scripted(body=frame() + b"\0"), "no readable frame"),
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


@pytest.mark.parametrize("kept", range(len(frame())))
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
            "<h1>Bad gateway</h1>",
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


def test_an_endless_error_is_read_in_part_only() -> None:
    reads = 0

    def flood() -> Iterable[int]:
        nonlocal reads
        flow = exchange.compute(NO_RETRIES, DESC, X)
        next(flow)
        step = flow.send(steps.AnswerHead(500, {"content-type": "text/plain"}))
        while True:
            assert isinstance(step, steps.Read)
            reads += 1
            yield len(step.into)
            step = flow.send(len(step.into))

    with pytest.raises(problems.ServerFault):
        sum(flood())
    assert reads <= 17  # 1 MiB in pieces of 64 KiB


# ---- repeating -------------------------------------------------------------------------------------------------------

OK = Scripted(body=frame())
BUSY = problem(problems.TooBusy("full"), 429)
DRAINING = problem(problems.NotReady("draining"), 503)
GONE = problems.ConnectFailed("nobody")
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
    def stream(answers: Sequence[Scripted]) -> Played:
        return play(exchange.stream(RETRIES, DESC, X, block_bytes=16), answers)

    assert b"".join(stream([BUSY, OK]).blocks) == Y.tobytes()
    half = Scripted(headers={"content-length": str(len(frame()))}, body=frame()[:-24])
    with pytest.raises(problems.IncompleteBody):
        stream([half])


# ---- questions -------------------------------------------------------------------------------------------------------


def ask(flow: Callable[..., steps.Flow[Any]], *args: Any, said: bytes, kind: str = "application/json") -> Any:
    return play(flow(NO_RETRIES, *args), [Scripted(headers={"content-type": kind}, body=said)]).result


def test_a_document_is_returned_as_it_is() -> None:
    assert ask(exchange.document, "/v1/limits", said=b'{"limits": []}') == {"limits": []}


@pytest.mark.parametrize(
    ("said", "kind"), [(b"{", "application/json"), (b'{"a":1,"a":2}', "application/json"), (b"{}", "text/html")]
)
def test_a_document_that_is_none_is_the_server_s_fault(said: bytes, kind: str) -> None:
    with pytest.raises(problems.ServerFault, match="JSON"):
        ask(exchange.document, "/v1/limits", said=said, kind=kind)


@pytest.mark.parametrize("said", [b"{}", b"[]", b"null", b'{"valid": true, "lowest_feature_level": null}'])
def test_a_verdict_that_cannot_be_understood_is_the_server_s_fault(said: bytes) -> None:
    with pytest.raises(problems.ServerFault, match="cannot be understood"):
        ask(exchange.validate, DESC, said=said)


def test_a_document_that_is_no_json_cannot_be_asked_about() -> None:
    with pytest.raises(problems.InvalidParameter, match="JSON"):
        exchange.validate(NO_RETRIES, {"type": object()})


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
    assert play(exchange.health("/v2/health/ready"), [answer]).result is healthy


def test_a_health_page_that_does_not_exist_is_no_answer() -> None:
    with pytest.raises(problems.NotFound):
        play(exchange.health("/v2/health/ready"), [problem(problems.NotFound("nothing"), 404)])
