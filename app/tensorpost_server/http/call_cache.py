"""The call cache: identical small calls are neither parsed nor planned again, and are answered before ASGI.

Callers send the same small call over and over with other numbers in it. There are two steps:

1. Everything that is decided about a call follows from the bytes before its tensors: operator, query, three header
   fields, Content-Length and the head of its body. They are the key of a `PreparedCall`. What depends on the moment
   (the choice of a device, the memory budget) is never part of it, and refusals are not cached.
2. With a small response, the application hands a `Replay` to the server. A server that receives the same HTTP head
   again, byte for byte, calls the `Replay` with the body: no parsing of HTTP, no scope, no task, no messages, which
   together take longer than the operator.

The server's side is the ASGI extension `tensorpost.whole_messages` (ASGI 3.0, "Extensions"): `receive` returns a body
that has arrived without waiting for it, and `send` takes a response in one call. ASGI's own `send` takes it in two
messages, and servers write each to the socket: two system calls, and two packets for the caller to wake up for. A
server offers it as `scope["extensions"]["tensorpost.whole_messages"] = {"whole_messages": WholeMessages(...)}`;
`connection/whole_responses.py` makes it. Where it is absent or declines, ASGI's channels do the same. Middleware that
wants to see messages removes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from starlette.types import Scope

from tensorpost.onnx.strings import StringCall
from tensorpost.operation import Operation
from tensorpost.problems import TensorpostError

from ..engine import Stages, Worker
from ..planning import Plan
from .caller_address import FORWARDED_FOR
from .headers import header_fields, request_id
from .media_types import MOST_KEY_BYTES
from .observability.request_record import RequestRecord
from .parse_call import Dialect, RunOptions

if TYPE_CHECKING:
    from .service import Service

__all__ = [
    "MOST_KEY_BYTES",
    "WHOLE_MESSAGES",
    "BoundedCache",
    "CallFormat",
    "CallKey",
    "PreparedCall",
    "PreparedHead",
    "Replay",
    "ReplayFunction",
    "RequestKey",
    "SendWhole",
    "WholeMessages",
    "changing_field_lines",
    "field_lines",
    "received_tensors",
    "whole_messages",
]

WHOLE_MESSAGES = "tensorpost.whole_messages"
"""The extension's name in `scope["extensions"]`."""

_ALIGNMENT = 16  # bytes; bytes objects of CPython have their content at such an address, and our heads fill such blocks
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that drops its oldest entry when it is full (first in, first out).

    A hit is a look-up in a dictionary; `cachetools` takes twice as long for it, because it keeps an order of use.

    Args:
        most_entries: 1 or more.
    """

    def __init__(self, most_entries: int) -> None:
        super().__init__()
        self.most_entries = most_entries

    def put(self, key: Key, value: Value) -> None:
        """Add an entry, or replace it."""
        if key not in self and len(self) >= self.most_entries:
            del self[next(iter(self))]
        self[key] = value


# ---- what is kept ----------------------------------------------------------------------------------------------------


class CallFormat(Protocol):
    """How a request is read and its response is written, as its header fields say; hashable."""

    @property
    def may_replay(self) -> bool:
        """Whether a later request with the same head may be replayed: its body begins with a head of its own."""
        ...

    def head_length(self, begin: bytes | memoryview) -> int:
        """Length of the head that a body begins with, in bytes, as far as its first bytes tell.

        Returns:
            0 if it is not worth a cache entry: the head is long, not there yet, or of a rare kind.
        """
        ...


class RequestKey(NamedTuple):
    """What the HTTP head of a request says about the call.

    Attributes:
        dialect: the dialect of the request's path.
        operator: name in the path.
        format: the media types of request and response.
        query: the query string, undecoded.
        body_bytes: Content-Length.
    """

    dialect: Dialect
    operator: str
    format: CallFormat
    query: bytes
    body_bytes: int


CallKey = tuple[RequestKey, bytes]
"""All that decides what a call means: with the bytes of the body before its tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedHead:
    """What the response to a prepared call begins with if a certain worker computes it.

    Attributes:
        headers: the header fields that are the same for each request.
        lines: the same, as they are sent.
        body_head: the bytes of the body before its tensors.
        backend: the backend's name, as in the headers.
        inline: whether that worker computes the call on the event loop's thread, except for the first time.
    """

    headers: tuple[tuple[bytes, bytes], ...]
    lines: bytes
    body_head: bytes
    backend: str
    inline: bool


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A call that is valid, planned and within the limits, whatever its tensors hold.

    Attributes:
        plan: what is computed and how.
        options: the backend and device that were asked for.
        id: the caller's id of the call.
        sizes: bytes of each tensor, in the order of the body.
        order: the index in the body of each of the plan's inputs.
        aligned: whether every tensor begins at a multiple of its item size, counted from the first.
        memory_bytes: what to reserve for it, tensors included.
        heads: heads of responses, by worker; filled when workers are chosen.
        strings: the call with strings, if it works on any; the plan is of numbers that stand for them.
    """

    plan: Plan
    options: RunOptions
    id: str | None
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    aligned: bool
    memory_bytes: int
    heads: dict[Worker, PreparedHead] = field(default_factory=dict[Worker, PreparedHead])
    strings: StringCall | None = None

    @property
    def operation(self) -> Operation:
        """What was asked for."""
        return self.plan.operation if self.strings is None else self.strings.node


def received_tensors(received: memoryview, sizes: Sequence[int]) -> list[memoryview] | None:
    """The tensors of a small body that has arrived; None if they are not all there, or not immutable.

    They are used where they are, or copied if the first is not aligned, as after a head of any length (`/v2`).

    Args:
        received: the bytes after the head of a body.
        sizes: bytes of each tensor.
    """
    if not received.readonly or len(received) != sum(sizes) or not received:
        return None
    if np.frombuffer(received, np.uint8).__array_interface__["data"][0] % _ALIGNMENT:
        received = memoryview(bytes(received))
    if len(sizes) == 1:
        return [received]
    memory: list[memoryview] = []
    for size in sizes:
        memory.append(received[:size])
        received = received[size:]
    return memory


# ---- replaying it ----------------------------------------------------------------------------------------------------


class Replay:
    """Answers requests whose HTTP head is the same, byte for byte, as that of a request that was answered.

    Args:
        service: the service of the application that answered.
        key: what the head of the answered request says.
        sent_id: the X-Request-ID in the HTTP head; None if there is none.
        scope: the ASGI scope of the answered request. Its path is that of the others too, and so is the name of its API
            key, which the head holds; an address need not be.
    """

    __slots__ = ("_forwarded", "_key", "_key_name", "_path", "_proxies", "_sent_id", "_service")

    def __init__(self, service: Service, key: RequestKey, sent_id: bytes | None, scope: Scope) -> None:
        self._service, self._key, self._sent_id = service, key, sent_id
        self._path = scope["path"]
        self._proxies = service.proxies
        self._forwarded = None if self._proxies is None else header_fields(scope["headers"]).get(FORWARDED_FOR)
        self._key_name = None if service.access.anonymous else scope.get("tensorpost.caller")

    def __call__(self, body: bytes, address: str | None) -> tuple[bytes, bytes] | None:
        """Compute the response to a request with this body.

        Args:
            body: the whole body, as long as the HTTP head says.
            address: the peer's; None on a Unix socket.

        Returns:
            The lines of the response's header fields, and its body. None if the call is not in the cache, not small, or
            cannot be answered with 200 now; nothing has changed then, and the application has the right answer.
        """
        service, key, stages = self._service, self._key, Stages()
        length = key.format.head_length(body)
        prepared = service.calls.get((key, body[:length])) if length else None
        pool = service.pool
        if prepared is None or pool is None or pool.lost is not None:
            return None
        stages.done("head")
        try:
            options = prepared.options
            worker = pool.choose(prepared.plan, options.backend, options.device)
            head = prepared.heads.get(worker)
            memory = received_tensors(memoryview(body)[length:], prepared.sizes) if prepared.aligned else None
            stages.done("plan")
            # The memory is not reserved, because nothing else runs on this thread until the response is made.
            if head is None or not head.inline or memory is None:
                return None
            if not service.admission.has_room(prepared.memory_bytes + worker.backend.held_bytes(prepared.plan)):
                return None
            stages.done("admit")
            inputs = [memory[index] for index in prepared.order]
            stages.done("receive")
            output = worker.run_now(prepared.plan, inputs, head.body_head)
        except (TensorpostError, MemoryError):
            return None  # the application meets the same error, and answers it
        stages.done("compute")
        id_, took = request_id(self._sent_id), stages.milliseconds
        if service.records is not None:
            operation = prepared.plan.operation
            if self._proxies is not None:
                address = self._proxies.caller(address, self._forwarded)
            record = RequestRecord(
                time.time(), id_, self._key_name or address or "local", "POST", self._path, operation.op_type,
                head.backend, 200, None, len(body), len(output), 1, took, sum(took.values()) / 1e3, None,
                operation.opset_version,
            )  # fmt: skip
            service.records.add(record)
        return head.lines + changing_field_lines(id_, stages), output


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as they are sent (RFC 9110, section 5).

    Raises:
        ValueError: a name or value that would end its line, or the head.
    """
    lines: list[bytes] = []
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is not a header field")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def changing_field_lines(id_: str, stages: Stages) -> bytes:
    """The header fields that differ between responses to the same call, as they are sent."""
    return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (id_.encode(), str(stages).encode())


# ---- the ASGI extension ----------------------------------------------------------------------------------------------

ReplayFunction = Callable[[bytes, str | None], tuple[bytes, bytes] | None]
"""Answers a body, from this peer's address (None on a Unix socket), with the header lines and the body of a response
200; None to let the application answer."""


class SendWhole(Protocol):
    """Sends a response 200."""

    def __call__(self, lines: bytes, body: bytes, replay: ReplayFunction | None = None) -> bool:
        """Write the whole response, if that can be done now.

        Args:
            lines: the header fields as `field_lines` writes them, Content-Length among them.
            body: the response's body, as long as Content-Length says.
            replay: answers a later request with the same HTTP head; None if there is no such function.

        Returns:
            False if nothing was done and ASGI's `send` must be used: the caller is slow or gone, or this is the
            connection's last response.
        """
        ...


class WholeMessages(NamedTuple):
    """The extension of one request.

    Attributes:
        receive: returns the body if all of it has arrived and none was received, else None.
        send: sends a response.
    """

    receive: Callable[[], bytes | None]
    send: SendWhole


def whole_messages(scope: Scope) -> WholeMessages | None:
    """The extension of this request; None if its server has none."""
    extensions: dict[str, dict[str, Any]] | None = scope.get("extensions")
    extension = extensions.get(WHOLE_MESSAGES) if extensions else None
    return None if extension is None else extension["whole_messages"]
