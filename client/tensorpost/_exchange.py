"""What a call says and hears, without a socket: the one core under `Client` and `AsyncClient`.

A call is a generator, a `Flow`. It yields steps: send this request, read into this memory, wait, hand this block to the
caller. Whoever drives it performs each step over a blocking or an asyncio transport and sends back what came of it, or
throws in the `ConnectionProblem` that came instead.

The rules of this file:

1. Nothing here blocks, sleeps, opens or knows the time.
2. A request's body is a tuple of views of the caller's memory, never joined; it can be read again, and so repeated.
3. An answer is believed only after its head agreed with the descriptor and with Content-Length.
4. Output memory is taken after that, and the answer's bytes are written there and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ._answers import Progress, Result, Validation
from ._arrays import (
    Subject,
    Tensor,
    TensorData,
    check_out,
    input_tensors,
    output_memory,
    output_tensor,
    wire_form,
    wire_inputs,
)
from ._retries import RetryPolicy
from .descriptors import FeatureLevel, OperatorDesc, parse_operator
from .frame import ALSO_READ, MEDIA_TYPE, FrameHead, HeadReader, encode_head
from .onnx import OnnxNode
from .problems import (
    ConnectionProblem,
    IncompleteBody,
    InvalidDescriptor,
    InvalidParameter,
    InvalidRequest,
    RequestTimeout,
    ServerFault,
    TensorpostError,
    Unavailable,
    UnsupportedAtLevel,
    Violation,
    from_problem,
)
from .strict_json import read_json

__all__ = [
    "PIECE_BYTES",
    "AnswerHead",
    "Flow",
    "HandOut",
    "Read",
    "Report",
    "Request",
    "Send",
    "Step",
    "Wait",
    "compute",
    "document",
    "health",
    "resume",
    "stream",
    "validate",
]

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
_SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined into one piece: one packet train instead of two
_HEAD_READ_BYTES = 1 << 14  # enough for the head of a frame with one tensor, and little to copy if data follows it
_MOST_JSON_BYTES = 1 << 24  # of an answer that is a document
_MOST_PROBLEM_BYTES = 1 << 20  # of an error
_LONGEST_QUOTE = 200  # characters of an unreadable error that are shown

T = TypeVar("T")
Report: TypeAlias = Callable[[Progress], None]


# ---- values ----------------------------------------------------------------------------------------------------------


class Meter:
    """Counts a call's bytes and tells the caller's `progress` function."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._sent = self._to_send = 0

    def sending(self, sent: int, to_send: int) -> None:
        self._sent, self._to_send = sent, to_send
        if self._report:
            self._report(Progress(sent, to_send))

    def receiving(self, received: int, to_receive: int | None) -> None:
        if self._report:
            self._report(Progress(self._sent, self._to_send, received, to_receive))


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: `GET` or `POST`.
        target: path and query below the server's base URL.
        headers: names in lower case; without Host and Content-Length.
        body: flat views of the bytes, in order.
        meter: told what was sent.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: tuple[memoryview, ...] = ()
    meter: Meter = field(default_factory=lambda: Meter(None))

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return sum(view.nbytes for view in self.body)

    def pieces(self) -> Iterator[memoryview]:
        """The body in views of at most `PIECE_BYTES`, from the start each time; resumed when a piece has been sent."""
        total, sent = self.content_length, 0
        self.meter.sending(0, total)
        views = self.body if total > _SMALL_BODY_BYTES else (memoryview(b"".join(self.body)),)
        for view in views:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                yield piece
                sent += piece.nbytes
                self.meter.sending(sent, total)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers (names in lower case, repeated ones joined by commas) of an answer."""

    status: int
    headers: Mapping[str, str]

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; comes back with its `AnswerHead`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the answer's next bytes into this memory; comes back with how many, 0 only at the answer's end."""

    into: memoryview


@dataclass(frozen=True, slots=True)
class Wait:
    """Let go of the answer, and wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give this block to the caller."""

    block: memoryview


Step: TypeAlias = Send | Read | Wait | HandOut
Flow: TypeAlias = Generator[Step, Any, T]


def resume(flow: Flow[Any], outcome: object) -> Step:
    """Tell a flow what came of its last step, a `ConnectionProblem` included; returns the next one.

    Raises:
        StopIteration: the flow has ended; `value` is its result.
    """
    return flow.throw(outcome) if isinstance(outcome, ConnectionProblem) else flow.send(outcome)


# ---- calls -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An operator call whose arguments have been found right."""

    request: Request
    output: Tensor


def _prepare(
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    backend: str | None,
    device: int | None,
    feature_level: str | int | FeatureLevel | None,
    report: Report | None,
) -> _Prepared:
    head = _frame_head(subject)  # pyright: ignore[reportArgumentType] # frozen models are hashable; Pydantic does not say so
    tensors = wire_inputs(subject, inputs)
    query: dict[str, str] = {}
    if backend is not None:
        query["backend"] = backend
    if device is not None:
        if device < 0:
            raise InvalidParameter(f"device is {device}; devices are counted from 0")
        query["device"] = str(int(device))
    if isinstance(subject, OnnxNode):
        if feature_level is not None:
            raise InvalidParameter("feature levels are DirectML's; an ONNX node has an opset instead")
        path = f"/v1/onnx/{subject.op_type}"
    else:
        path = f"/v1/operators/{subject.operator_type.lower()}"
        if feature_level is not None:
            query["feature_level"] = str(FeatureLevel.parse(feature_level))
    target = path + (f"?{urlencode(query)}" if query else "")
    request = Request(
        "POST",
        target,
        {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE},
        (memoryview(head), *tensors),
        Meter(report),
    )
    return _Prepared(request, output_tensor(subject))


@lru_cache(maxsize=256)  # a caller with the next array of the same shape is the common one
def _frame_head(subject: Subject) -> bytes:
    if isinstance(subject, OnnxNode):
        for tensor in (subject.input, subject.output):
            tensor.require_carriable("frame")
    tensors = [(name, *wire_form(tensor)) for name, tensor in input_tensors(subject).items()]
    text = subject.to_json_text() if isinstance(subject, OnnxNode) else subject.to_document_text()
    return encode_head(tensors, {"op": text})


def compute(
    policy: RetryPolicy,
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    *,
    out: NDArray[Any] | None = None,
    backend: str | None = None,
    device: int | None = None,
    feature_level: str | int | FeatureLevel | None = None,
    progress: Report | None = None,
) -> Flow[Result[Any]]:
    """Run an operator and receive its output whole. Arguments are checked now, the rest happens when it is driven."""
    call = _prepare(subject, inputs, backend, device, feature_level, progress)
    check_out(call.output, out)

    def attempt() -> Flow[Result[Any]]:
        answer = yield from _ask(call.request)
        frame = yield from answer.frame_head(call.output)
        memory, array = output_memory(call.output, out)
        yield from answer.fill(memory)
        yield from answer.finish()
        timing = _server_timing(answer.head.headers.get("server-timing", ""))
        named = frame.metadata.get("backend", ""), frame.metadata.get("device", "")
        return Result(array, *named, timing, answer.head.request_id)

    return _with_retries(policy, attempt)


def stream(
    policy: RetryPolicy,
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    *,
    block_bytes: int,
    backend: str | None = None,
    device: int | None = None,
    feature_level: str | int | FeatureLevel | None = None,
    progress: Report | None = None,
) -> Flow[None]:
    """Run an operator and hand out its output's bytes block by block. Arguments are checked now, as in `compute`."""
    if block_bytes < 1:
        raise InvalidParameter(f"block_bytes is {block_bytes}; a block has at least 1 byte")
    call = _prepare(subject, inputs, backend, device, feature_level, progress)

    def attempt() -> Flow[None]:
        answer = yield from _ask(call.request)
        frame = yield from answer.frame_head(call.output)
        if frame.body_bytes == 0:
            yield from answer.finish()
        for start in range(0, frame.body_bytes, block_bytes):
            # Fresh memory for each block: a caller may keep one while the next arrives.
            block = np.empty(min(block_bytes, frame.body_bytes - start), np.uint8).data
            yield from answer.fill(block)
            if start + len(block) == frame.body_bytes:
                yield from answer.finish()
            yield HandOut(block)

    return _with_retries(policy, attempt)


def document(policy: RetryPolicy, path: str, *segments: str) -> Flow[Any]:
    """GET a JSON document. `segments` are appended to the path, percent-encoded."""
    target = "/".join([path, *(quote(segment, safe="") for segment in segments)])
    request = Request("GET", target, {"accept": "application/json"})

    def attempt() -> Flow[Any]:
        answer = yield from _ask(request)
        return (yield from answer.json())

    return _with_retries(policy, attempt)


def health(path: str) -> Flow[bool]:
    """Whether a health page answers with success. No server, a busy one and one that is draining are a plain no."""

    def attempt() -> Flow[bool]:
        try:
            answer = yield from _ask(Request("GET", path, {"accept": "application/json"}))
            yield from answer.drain()
        except (ConnectionProblem, Unavailable):
            return False
        return True

    return attempt()


def validate(
    policy: RetryPolicy,
    operator: Subject | Mapping[str, Any],
    *,
    feature_level: str | int | FeatureLevel | None = None,
) -> Flow[Validation]:
    """Ask a server whether it would accept a descriptor."""
    if isinstance(operator, OperatorDesc):
        text = operator.to_document_text()
    else:
        text = operator.to_json_text() if isinstance(operator, OnnxNode) else _json_text(operator)
    level = "" if feature_level is None else f"?feature_level={FeatureLevel.parse(feature_level)}"
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = Request("POST", "/v1/validate" + level, headers, (memoryview(text.encode()),))

    def attempt() -> Flow[Validation]:
        answer = yield from _ask(request)
        said = yield from answer.json()
        try:
            return _validation(said, answer.head.request_id)
        except (KeyError, TypeError, AttributeError, InvalidParameter) as error:
            raise answer.fault(f"the answer to a validation cannot be understood ({error!r})") from error

    return _with_retries(policy, attempt)


def _json_text(operator: Mapping[str, Any]) -> str:
    try:
        return json.dumps(operator, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"the operator document cannot be written as JSON: {error}") from None


def _validation(said: Any, request_id: str | None) -> Validation:
    lowest = said["lowest_feature_level"]
    if not said["valid"]:
        violations = tuple(Violation.from_json(v) for v in said["violations"])
        # With a canonical document the descriptor is well formed, so that only the level can be at fault.
        cls = UnsupportedAtLevel if said["op"] is not None else InvalidDescriptor
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        detail = f"{first.path[0]}: {first.message}{more}"
        raise cls(detail, violations, {"lowest_feature_level": lowest}, request_id=request_id)
    return Validation(
        operator=OnnxNode.from_json(said["op"]) if "op_type" in said["op"] else parse_operator(said["op"]),
        feature_level=FeatureLevel.parse(said["feature_level"]),
        lowest_feature_level=None if lowest is None else FeatureLevel.parse(lowest),
        input_bytes=int(said["input_bytes"]),
        output_bytes=int(said["output_bytes"]),
        document=said,
    )


def _with_retries(policy: RetryPolicy, attempt: Callable[[], Flow[T]]) -> Flow[T]:
    retry, waited = 1, 0.0
    while True:
        try:
            return (yield from attempt())
        except TensorpostError as error:
            wait = policy.wait_before(retry, error, waited)
            if wait is None:
                raise
        yield Wait(wait)
        retry, waited = retry + 1, waited + wait


# ---- answers ---------------------------------------------------------------------------------------------------------


def _ask(request: Request) -> Flow[_Answer]:
    """Send a request and open its answer; an answer that reports an error is read and raised."""
    head: AnswerHead = yield Send(request)
    if not 200 <= head.status < 300:
        raise (yield from _Answer(head, Meter(None)).error())
    return _Answer(head, request.meter)


class _Answer:
    """An answer being read: its head, how far its body has come, and what to say when it breaks off."""

    def __init__(self, head: AnswerHead, meter: Meter) -> None:
        self.head = head
        self._meter = meter
        self._received = 0
        self._pushed_back = memoryview(b"")  # read together with a frame's head, but belonging to the tensor
        length = head.headers.get("content-length", "")
        self._expected = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None

    def fault(self, detail: str) -> ServerFault:
        """An answer that a tensorpost server does not give."""
        return ServerFault(detail, status=self.head.status, request_id=self.head.request_id)

    def _some(self, into: memoryview) -> Flow[int]:
        """Read some bytes; 0 at the end of a complete body, an error at the end of an incomplete one."""
        try:
            count: int = yield Read(into)
        except RequestTimeout as error:
            error.detail = f"{error.detail}, after {self._progress()} of the answer"
            error.extra.update(received=self._received, expected=self._expected)
            error.status, error.request_id = self.head.status, self.head.request_id
            raise
        except ConnectionProblem as error:
            raise self._incomplete() from error
        if count == 0:
            if self._expected is not None and self._received < self._expected:
                raise self._incomplete()
            return 0
        self._received += count
        self._meter.receiving(self._received, self._expected)
        return count

    def _progress(self) -> str:
        known = f" of {self._expected:,}" if self._expected is not None else ""
        return f"{self._received:,}{known} bytes"

    def _incomplete(self) -> IncompleteBody:
        return IncompleteBody(
            f"the connection broke after {self._progress()} of the answer; what was received is incomplete",
            extra={"received": self._received, "expected": self._expected},
            status=self.head.status,
            request_id=self.head.request_id,
        )

    def fill(self, memory: memoryview) -> Flow[None]:
        """Read until this memory is full."""
        at = min(len(self._pushed_back), len(memory))
        memory[:at] = self._pushed_back[:at]
        self._pushed_back = self._pushed_back[at:]
        while at < len(memory):
            count = yield from self._some(memory[at : at + PIECE_BYTES])
            if count == 0:  # only without Content-Length: the frame's head announced more than came
                raise self._incomplete()
            at += count

    def finish(self) -> Flow[None]:
        """See the end of the body, which sets the connection free for the next request.

        Raises:
            ServerFault: the body goes on.
        """
        rest = len(self._pushed_back) or (yield from self._some(memoryview(bytearray(1))))
        if rest:
            raise self.fault("the answer is longer than its head says")

    def frame_head(self, tensor: Tensor) -> Flow[FrameHead]:
        """Read the head of a frame that must hold exactly this tensor.

        Raises:
            ServerFault: another media type, a malformed frame, or another tensor than the descriptor's.
        """
        encoding = self.head.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self.fault(f"the answer is compressed ({encoding[:40]}), although identity was asked for")
        if self.head.media_type not in (MEDIA_TYPE, *ALSO_READ):
            raise self.fault(
                f"the answer is {self.head.media_type[:60] or 'of no type'}, not a frame ({MEDIA_TYPE}); "
                "is there a tensorpost server at this address?"
            )
        reader = HeadReader(content_length=self._expected)
        scratch = memoryview(bytearray(_HEAD_READ_BYTES))
        try:
            while reader.head is None:
                count = yield from self._some(scratch)
                if count == 0:
                    reader.finish()
                taken = reader.feed(scratch[:count])
                self._pushed_back = scratch[taken:count]
        except InvalidRequest as error:
            # The server's mistake, not the caller's: an InvalidRequest would say the wrong thing.
            raise self.fault(f"the answer is no readable frame: {error.detail}") from error
        frame = reader.finish()
        row, shape = wire_form(tensor)
        found = [(entry.data_type, entry.shape) for entry in frame.tensors]
        if found != [(row, shape)]:
            raise self.fault(
                f"the answer holds {[(r.numpy_name, s) for r, s in found[:4]]}; the descriptor's output is "
                f"{row.numpy_name} of {shape}"
            )
        return frame

    def json(self) -> Flow[Any]:
        """The body as JSON.

        Raises:
            ServerFault: another media type, or no JSON.
        """
        if self.head.media_type != "application/json":
            raise self.fault(
                f"the answer is {self.head.media_type[:60] or 'of no type'}, not JSON; "
                "is there a tensorpost server at this address?"
            )
        raw = yield from self._bounded(_MOST_JSON_BYTES)
        try:
            return read_json(raw, max_bytes=_MOST_JSON_BYTES)
        except InvalidRequest as error:
            raise self.fault(f"the answer is no readable JSON: {error.detail}") from error

    def drain(self) -> Flow[None]:
        """Read the body and forget it, so that the connection can be used again."""
        yield from self._bounded(_MOST_PROBLEM_BYTES)

    def error(self) -> Flow[TensorpostError]:
        """The exception for an answer that is not a success."""
        try:
            raw = yield from self._bounded(_MOST_PROBLEM_BYTES)
        except (IncompleteBody, RequestTimeout):
            raw = bytearray()  # the status alone says more than how its explanation broke off
        problem = _problem_document(self.head, raw)
        request_id = self.head.request_id or problem.get("request_id")
        error = from_problem(problem, self.head.status, request_id if isinstance(request_id, str) else None)
        after = _retry_after(self.head.headers)
        if after is not None:
            error.extra["retry_after_seconds"] = after
        return error

    def _bounded(self, limit: int) -> Flow[bytearray]:
        """The whole body, or its first `limit` bytes and a little more."""
        raw = bytearray()
        scratch = memoryview(bytearray(_SMALL_BODY_BYTES))
        while len(raw) <= limit:
            count = yield from self._some(scratch)
            if count == 0:
                break
            raw += scratch[:count]
        return raw


def _problem_document(head: AnswerHead, raw: bytearray) -> Mapping[str, Any]:
    """The RFC 9457 document of an error, or one made up for errors from something in front of the server."""
    if head.media_type in ("application/problem+json", "application/json"):
        try:
            found: object = read_json(raw, max_bytes=_MOST_PROBLEM_BYTES)
        except InvalidRequest:
            found = None  # shown as the text that it is
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    if 300 <= head.status < 400:
        where = head.headers.get("location", "nowhere")[:_LONGEST_QUOTE]
        return {"detail": f"redirected to {where}; redirects are not followed, use the server's own URL"}
    text = " ".join(raw[: 4 * _LONGEST_QUOTE].decode("utf-8", "replace").split())[:_LONGEST_QUOTE]
    said = f": {text}" if text else ""
    return {"detail": f"HTTP status {head.status} without a problem document{said}"}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of `Retry-After` (RFC 9110 section 10.2.3). A date counts from the answer's own `Date`."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        until: datetime = parsedate_to_datetime(text)
        return max(0.0, (until - parsedate_to_datetime(headers.get("date", ""))).total_seconds())
    except (TypeError, ValueError):
        return None  # absent, or no date: as good as absent


def _server_timing(text: str) -> Mapping[str, float]:
    """`queue;dur=0.2, kernel;dur=1.5` as milliseconds by name; entries without a duration are left out."""
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        durations = [p.removeprefix("dur=").strip('"') for p in parameters if p.startswith("dur=")]
        if durations and re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", durations[0]):
            found[name] = float(durations[0])
    return MappingProxyType(found)
