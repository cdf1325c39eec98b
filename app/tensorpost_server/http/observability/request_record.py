"""What is known of a request when it has ended: for the access log and the metrics, by one call for every path.

Replayed calls, calls, other requests, and heads that the protocol class refuses all end in `Service.records`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from starlette.types import Scope

from tensorpost.descriptors import OPERATORS
from tensorpost.onnx import ONNX_OPERATORS
from tensorpost.values.problems import InvalidRequest, LimitExceeded, ReceiveTimeout

from ...backends.timeline import Timeline
from ...engine import GraphRecord, StepTimes

CLIENT_DISCONNECTED = "client-disconnected"
"""The reason of a request whose caller closed the connection before its response was complete."""

OBSERVE_REFUSAL = "tensorpost.observe_refusal"
"""Key of the lifespan state (ASGI) with the function that the protocol class calls with the status and id of each
request that it refuses itself, and the address of the connection's peer (None on a Unix socket)."""

BATCH_SECONDS = 0.1
MOST_RECORDS = 256
"""Records of a batch; about a millisecond of the event loop's time with metrics and access log."""

_log = logging.getLogger(__name__)

_SCOPE_KEY = "tensorpost.observation"
_CALLER = "tensorpost.caller"


class RequestRecord(NamedTuple):
    """One request that has ended.

    Attributes:
        ended: time at which it ended, seconds since 1970.
        caller: name of the key that it was called with, without a known one the caller's address; `local` on a
            Unix socket.
        method: the HTTP method as it was sent; "-" if the head was not read.
        path: decoded, as it was sent, with any characters; "-" if its head was not read.
        operator: `TILE`, `Tile` of ONNX, without a version; None if it was no call of an operator that there is.
        backend: name of the backend that computed it, as the header `Tensorpost-Backend` has it (`numba+numpy`); None
            if none was chosen.
        status: status of the response; None if no response was begun.
        reason: code of the problem that it was refused with, or `client-disconnected`; None if all went well.
        received_bytes: length of its body as far as it arrived, bytes.
        sent_bytes: length of the response's body as far as it was sent, bytes.
        slices: how many slices of the output were sent; 1 for a response that was sent whole.
        stages: milliseconds by stage, as in `Server-Timing`.
        seconds: time from its head to the end of its response.
        trace: what its spans need beside that; None where traces are off, and for a replayed call.
        opset_version: see `Operation.opset_version`; None too if the call was refused before it was planned.
        graph: the nodes of a graph, and how long its steps took; None if it was no graph, or not planned.
        is_joined: whether it was computed in a batch with an earlier call of the same caller by the same door.
        model_version: the version of the stored graph that it called; None if it called none.
        server_timing: `stages` as the header field `Server-Timing` has them, if they were written so for the record.
    """

    ended: float
    id: str
    caller: str | None
    method: str
    path: str
    operator: str | None
    backend: str | None
    status: int | None
    reason: str | None
    received_bytes: int
    sent_bytes: int
    slices: int
    stages: Mapping[str, float]
    seconds: float
    trace: RequestTrace | None = None
    opset_version: int | None = None
    graph: GraphRecord | None = None
    is_joined: bool = False
    model_version: int | None = None
    server_timing: str | None = None


class RequestTrace(NamedTuple):
    """What only the spans of a request need.

    Attributes:
        context: the fields `traceparent` and `tracestate` that the caller sent (W3C Trace Context, section 3).
        timeline: the phases of its run on a device.
    """

    context: Mapping[str, str]
    timeline: Timeline

    @staticmethod
    def from_headers(fields: Mapping[bytes, bytes]) -> RequestTrace:
        """Begin to trace a request with these header fields."""
        sent = {name: fields[name.encode()] for name in _CONTEXT if name.encode() in fields}
        return RequestTrace({name: value.decode("latin-1") for name, value in sent.items()}, Timeline())


_CONTEXT = ("traceparent", "tracestate")
_REASONS = {408: ReceiveTimeout.code, 431: LimitExceeded.code}
_NO_STAGES: Mapping[str, float] = {}
_DIRECTML_NAMES = frozenset([cls.operator_type for cls in OPERATORS])
_ONNX_NAMES = frozenset([schema.op_type for schema in ONNX_OPERATORS])


def operator_name(dialect: str, sent: str) -> str | None:
    """The operator's own name for the name in a path, so that no caller makes up a new one; None if there is none."""
    if dialect == "/v1/onnx":
        return sent if sent in _ONNX_NAMES else None
    short = sent[:100].upper().removeprefix("DML_OPERATOR_")
    return short if short in _DIRECTML_NAMES else None


class Observation:
    """What is known so far of a request that the application answers.

    Attributes are the members of `RequestRecord` that become known one after the other, and `steps`, which takes the
    times of a graph that was planned.
    """

    __slots__ = (
        "_begin", "_id", "backend", "is_joined", "model_version", "operator", "opset_version", "reason",
        "received_bytes", "sent_bytes", "slices", "stages", "status", "steps", "trace",
    )  # fmt: skip

    def __init__(self, scope: Scope, id_: str) -> None:
        self._begin = time.perf_counter()
        self._id = id_
        scope[_SCOPE_KEY] = self  # which is not known here in turn: that cycle would wait for the garbage collector
        self.operator: str | None = None
        self.opset_version: int | None = None
        self.backend: str | None = None
        self.status: int | None = None
        self.reason: str | None = None
        self.received_bytes = self.sent_bytes = self.slices = 0
        self.stages = _NO_STAGES
        self.trace: RequestTrace | None = None
        self.steps: StepTimes | None = None
        self.is_joined = False
        self.model_version: int | None = None

    def sending(self, message: MutableMapping[str, Any]) -> None:
        """Take note of an ASGI message that is about to be sent."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))

    def record(self, scope: Scope) -> RequestRecord:
        """What is known when the request of this scope has ended."""
        reason = CLIENT_DISCONNECTED if self.status is None and self.reason is None else self.reason
        return RequestRecord(
            time.time(), self._id, scope.get(_CALLER), scope["method"], scope["path"], self.operator, self.backend,
            self.status, reason, self.received_bytes, self.sent_bytes, self.slices, self.stages,
            time.perf_counter() - self._begin, self.trace, self.opset_version,
            None if self.steps is None else self.steps.record(every_step=self.trace is not None), self.is_joined,
            self.model_version,
        )  # fmt: skip


def refused_record(status: int, id_: str, address: str | None) -> RequestRecord:
    """The record of a request that the protocol class refused, because its head was wrong, too long or too slow."""
    reason = _REASONS.get(status, InvalidRequest.code)
    return RequestRecord(
        time.time(), id_, address or "local", "-", "-", None, None, status, reason, 0, 0, 0, _NO_STAGES, 0.0
    )  # fmt: skip


class RecordBatch:
    """Collects records, and hands them on some times a second: one after the other would take four times as long.

    Used on the event loop's thread only.
    """

    def __init__(self, consumers: Sequence[Callable[[Sequence[RequestRecord]], None]]) -> None:
        self._consumers = consumers
        self._records: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RequestRecord) -> None:
        """Add the record of a request that has ended."""
        self._records.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self.flush)
        elif len(self._records) >= MOST_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Hand on what was collected; may be repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        if records:
            for consume in self._consumers:
                try:
                    consume(records)
                except Exception:  # noqa: BLE001 # whatever one consumer lacks, the others are called
                    _log.exception("%d records of requests were lost to one of their consumers", len(records))


def observation_of(scope: Scope) -> Observation | None:
    """The observation of this request; None if nothing observes it."""
    return scope.get(_SCOPE_KEY)
