"""Calls of gRPC over HTTP/2: metadata, messages in, messages out, and the status at the end.

Nothing of a message is looked at before `GrpcCall.read`, so that the metadata, with the key in it, can be judged first.
A message begins with its length: memory for it is reserved before more of it than the first window may arrive.

Source: "gRPC over HTTP2" (PROTOCOL-HTTP2.md of grpc/grpc).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice

from tensorpost.values.problems import InvalidRequest, LimitExceeded, ReceiveTimeout, TensorpostError, TooBusy

from ...engine import Admission, Ticket
from ...settings import setting_variable
from ..background_threads import CallerThreads
from ..connection.hpack import literal
from ..connection.http2_stream import Stream, StreamEnded
from ..error_responses import status_of
from ..open_inference.content_coding import Coding, decompressed

_PREFIX = 5  # bytes before a message: whether it is compressed, and its length
_UNASKED_BYTES = 16_384
"""Longest message that is received before memory is reserved; requests with small bodies are admitted then, too."""
_MOST_SEARCHED = 1024  # oldest calls that are searched for one that waits

_STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 411: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_NUMBERS = {
    "OK": 0, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "UNAUTHENTICATED": 16,
}  # fmt: skip
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_CODINGS: dict[bytes, Coding] = {b"gzip": "gzip", b"deflate": "deflate"}

_HEAD = (
    b"\x88"  # :status: 200, the eighth entry of HPACK's static table
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
)
_DONE = literal(b"grpc-status", b"0")
_NO_GRPC = literal(b":status", b"415")
_LONGEST_TEXT = 2048


class Refused(Exception):
    """A call that ends with a status of gRPC.

    Attributes:
        id: the caller's id of the request that it refuses; empty if it has none.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.text, self.id = status, text, ""

    @classmethod
    def of(cls, error: TensorpostError) -> Refused:
        """The refusal that an error is over gRPC."""
        return cls.of_http(status_of(error), str(error))

    @classmethod
    def of_http(cls, status: int, text: str) -> Refused:
        """The refusal that a status of HTTP is over gRPC."""
        return cls(_STATUS.get(status, "INTERNAL"), text)


class GrpcCall:
    """A call. Its caller is known only when its key has been checked.

    Attributes:
        fields: its metadata and header fields, by name.
        peer: the address and port of the connection's peer; None for a Unix socket.
        caller: whose call it is, for the budget.
    """

    __slots__ = ("_admission", "_begun", "_has_slot", "_stream", "_ticket", "caller", "fields", "peer")

    def __init__(self, stream: Stream, admission: Admission) -> None:
        self._stream, self._admission = stream, admission
        self.fields, self.peer = stream.fields, stream.connection.peer
        self.caller = ""
        self._begun = self._has_slot = False
        self._ticket: Ticket | None = None

    @property
    def is_grpc(self) -> bool:
        """Whether the request says that it is a call of gRPC."""
        return self.fields[b":method"] == b"POST" and self.fields.get(b"content-type", b"").startswith(
            b"application/grpc"
        )

    @property
    def seconds(self) -> float | None:
        """The time that the caller gives it; None for any.

        Raises:
            Refused: grpc-timeout is malformed.
        """
        text = self.fields.get(b"grpc-timeout")
        if text is None:
            return None
        timeout = _TIMEOUT.fullmatch(text)
        if timeout is None:
            raise Refused("INVALID_ARGUMENT", "grpc-timeout must be up to 8 digits and one of H, M, S, m, u and n")
        return int(timeout[1]) * _SECONDS[timeout[2]]

    # ---- messages in -------------------------------------------------------------------------------------------------

    async def read(self, most: int, setting: str, threads: CallerThreads) -> bytes | memoryview | None:
        """The next message, plain; None after the last one. The slot and the memory of the one before are given back.

        A message with tensors arrives, but for the first window, when its connection has a slot for it (`CallSlots`).

        Args:
            most: largest message, compressed and plain, bytes.
            setting: the variable of the setting that says so; empty for a request without tensors.
            threads: the threads that decompress.

        Raises:
            Refused: it is too large, malformed, or came too slowly.
            TooBusy: there is no memory for it now.
        """
        self.release()
        stream = self._stream
        try:
            while len(stream.buffer) < _PREFIX and not stream.ended:
                await stream.more()
            if not stream.buffer:
                return None
            if len(stream.buffer) < _PREFIX:
                raise Refused("INTERNAL", "the request ends within the five bytes before a message")
            flag, length = stream.buffer[0], int.from_bytes(stream.buffer[1:_PREFIX], "big")
            del stream.buffer[:_PREFIX]
            if flag > 1:
                raise Refused("INTERNAL", "the bytes before a message are not gRPC's")
            if length > most:
                raise _too_large(length, most, setting)
            if setting:
                await stream.connection.slots.take()
                self._has_slot = True
            data = await self._receive(length)
            return data if not flag else await self._plain(data, most, setting, threads)
        except StreamEnded as ended:
            raise self._refusal(ended) from None

    async def _receive(self, length: int) -> bytes | memoryview:
        stream = self._stream
        if length <= min(_UNASKED_BYTES, len(stream.buffer)):
            data = bytes(stream.buffer[:length])
            del stream.buffer[:length]
        else:
            data = memoryview(bytearray(length)) if length <= _UNASKED_BYTES else self._reserved(length)
            if not await stream.receive_into(data):
                raise Refused("INTERNAL", "the request ends within a message")
            if self._ticket is not None:
                self._ticket.uploaded()
        stream.allow(_UNASKED_BYTES + _PREFIX)  # for the next message
        return data

    def _reserved(self, length: int) -> memoryview:
        """Memory for a message that may be ended if it comes too slowly and others need the memory."""
        stream, before = self._stream, self._stream.arrived - len(self._stream.buffer)
        ticket = self.reserve(length)
        ticket.uploading(length, lambda: stream.arrived - before, lambda: stream.fail("room"))
        return ticket.memory(length)

    async def _plain(
        self, data: bytes | memoryview, most: int, setting: str, threads: CallerThreads
    ) -> bytes:  # fmt: skip
        coding = _CODINGS.get(self.fields.get(b"grpc-encoding", b""))
        if coding is None:
            raise Refused("UNIMPLEMENTED", "the message is compressed, and grpc-encoding is neither gzip nor deflate")
        try:
            return await decompressed(data, coding, most, self.reserve, threads, setting)
        except LimitExceeded as error:
            raise Refused.of(error) if setting else _too_large(int(error.extra["actual"]), most, setting) from None
        except InvalidRequest as error:
            raise Refused.of(error) from None

    def reserve(self, size_in_bytes: int) -> Ticket:
        """Admit the call with so much memory, or reserve more of it, until the next message or the call's end.

        Raises:
            LimitExceeded: it is more than the whole budget.
            TooBusy: it is not free now.
        """
        if self._ticket is None:
            self._ticket = self._admission.admit(size_in_bytes, self.caller)
        else:
            self._ticket.grow(size_in_bytes)
        return self._ticket

    def release(self) -> None:
        """Give back the slot, and what was reserved."""
        if self._has_slot:
            self._has_slot = False
            self._stream.connection.slots.give_back()
        if self._ticket is not None:
            self._ticket.release()
            self._ticket = None

    def _refusal(self, ended: StreamEnded) -> Refused:
        if ended.reason == "room":
            return Refused("RESOURCE_EXHAUSTED", "others needed the place of this call, which sent nothing, or slowest")
        if ended.reason == "slow":
            text = f"the message came too slowly (settings {setting_variable('min_bytes_per_second')} and "
            return Refused.of(ReceiveTimeout(text + f"{setting_variable('receive_timeout_seconds')})"))
        return Refused.of(
            ReceiveTimeout(f"no message came for too long (setting {setting_variable('grpc_idle_seconds')})")
        )

    # ---- messages out ------------------------------------------------------------------------------------------------

    def answer(self, parts: Sequence[bytes | memoryview], *, last: bool = True) -> None:
        """Send a message, and if it is the last one the status OK."""
        prefix = b"\0" + sum(map(len, parts)).to_bytes(4, "big")
        self._respond([prefix, *parts], _DONE if last else None)

    def _respond(self, parts: Sequence[bytes | memoryview], trailers: bytes | None) -> None:
        head = None if self._begun else _HEAD
        self._begun = True
        self._stream.respond(head, parts, trailers)

    async def sent(self) -> None:
        """Wait until the caller has taken the messages."""
        await self._stream.sent()

    def end(self, refused: Refused | None = None) -> None:
        """End it with the status OK, or a refusal's."""
        if refused is None:
            self._respond([], _DONE)
            return
        number = str(_NUMBERS.get(refused.status, 2)).encode()
        trailers = literal(b"grpc-status", number) + literal(b"grpc-message", _percent_encoded(refused.text))
        self._stream.respond(None, [], trailers if self._begun else _HEAD + trailers)

    def end_as_no_grpc(self) -> None:
        """End a request that is no call of gRPC."""
        self._stream.respond(None, [], _NO_GRPC)


class OpenCalls:
    """The calls that are open, whose number is bounded in all and for each caller.

    Calls that have sent no message hold nothing in the memory budget. They are the ones that make room: the oldest call
    of the caller that waits for its message ends when there are too many.

    Args:
        most: the most calls at a time.
        share: part of what the others left that one caller may have.
    """

    def __init__(self, most: int, share: float) -> None:
        self._most, self._share = most, share
        self._count = 0
        self._by_caller = dict[str, dict[Stream, None]]()

    def add(self, stream: Stream, caller: str) -> None:
        """Count a call.

        Raises:
            TooBusy: there are too many, and none of those waits.
        """
        mine = self._by_caller.get(caller, {})
        most = math.ceil(self._share * (self._most - self._count + len(mine)))
        if mine and len(mine) >= most:
            self._make_room(mine, f"{len(mine)} calls of this caller are open")
        elif self._count >= self._most:
            largest = max(self._by_caller.values(), key=len)
            self._make_room(largest, f"{self._count} calls are open")
        self._by_caller.setdefault(caller, {})[stream] = None
        self._count += 1

    def remove(self, stream: Stream, caller: str) -> None:
        """A call has ended; nothing for one that is not counted."""
        mine = self._by_caller.get(caller, {})
        if stream in mine:
            del mine[stream]
            self._count -= 1
            if not mine:
                del self._by_caller[caller]

    def _make_room(self, calls: dict[Stream, None], why: str) -> None:
        for stream in islice(calls, _MOST_SEARCHED):
            if stream.waits and not stream.in_body and stream.failure is None:
                stream.fail("room")
                return
        raise TooBusy(
            f"too busy: {why} (setting {setting_variable('max_requests')})",
            extra={"setting": "TENSORPOST_MAX_REQUESTS"},
        )


def _too_large(length: int, most: int, setting: str) -> Refused:
    if setting:
        return Refused.of(LimitExceeded.of("the message", length, most, setting))
    return Refused("RESOURCE_EXHAUSTED", f"the message has {length:,} bytes, one without tensors at most {most:,}")


def _percent_encoded(text: str) -> bytes:
    """A status message ("gRPC over HTTP2", Status-Message)."""
    data = text.encode("utf-8", "replace")[:_LONGEST_TEXT]
    return b"".join([bytes([byte]) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in data])
