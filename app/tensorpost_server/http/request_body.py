"""A request body: its head is fed to a reader, its tensors are received into memory made for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Receive

from tensorpost.bodies.frame import BodyWriter
from tensorpost.values.problems import BodyMismatch, LimitExceeded, ReceiveTimeout

from ..settings import Settings
from .background_threads import INLINE_TEXT_BYTES, CallerThreads
from .connection.receive_into import ReceiveInto

JSON_MEMORY_FACTOR = 24
"""Bytes that a byte of a long JSON text may become: an object takes 64 bytes and a place in an array, for `{},`."""
MOST_VALUE_BYTES = 2 * 64 * 8
"""Bytes of a tensor that is part of an operation; a roi has two float64 for each of at most 64 dimensions."""

_HEAD_BLOCK = 4096  # bytes; the head of a frame has a few hundred
_LONG_HEAD_BLOCK = 64 * 1024  # bytes; memory that is taken before they have come
_EMPTY = memoryview(b"")


class ClientDisconnected(Exception):
    """The caller closed the connection; no response can be delivered."""


class HeadCollector(Protocol):
    """Collects the head of a body from pieces, as `tensorpost.frame.HeadReader` does."""

    @property
    def head(self) -> object | None:
        """What was read; None until it is complete."""
        ...

    @property
    def wanted(self) -> int:
        """Length of the head in bytes, as far as it is known."""
        ...

    @property
    def missing(self) -> int:
        """Bytes of the head that have not been fed; at least 1 until the head is complete."""
        ...

    def feed(self, data: bytes | memoryview) -> int:
        """Take bytes from the front; returns how many were taken."""
        ...


async def receive_chunked(receive: Receive, limit: int, timeout: float, reserve: Callable[[int], object]) -> bytearray:
    """Receive a body of unknown length whole, within the limit of any body. Memory is reserved as it grows.

    Raises:
        LimitExceeded: it is longer than the limit, or than the memory budget.
        TooBusy: the memory is not there now.
        ClientDisconnected: the connection closed before the end.
        ReceiveTimeout: nothing came for too long.
    """
    body, reserved = bytearray(), 0
    source = RequestBody(receive, 0, timeout)
    while part := await source.next_part():
        if len(body) + len(part) > limit:
            raise LimitExceeded.of("the request body", len(body) + len(part), limit, "TENSORPOST_MAX_BODY_BYTES")
        if len(body) + len(part) > reserved:
            more = max(len(part), len(body), _LONG_HEAD_BLOCK)  # twice as much as before
            reserve(more)
            reserved += more
        body += part
    return body


class RequestBody:
    """A request body of known length.

    Args:
        receive: the ASGI channel.
        length: Content-Length in bytes.
        timeout: longest pause between two parts, seconds.
        extension: the server's way to receive straight into memory; None if it has none.
        arrived: says how many bytes of the body have arrived, with the extension.
    """

    def __init__(
        self, receive: Receive, length: int, timeout: float, extension: ReceiveInto | None = None,
        arrived: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self.receive = receive
        self._extension = extension
        self._timeout = timeout
        self._buffered = _EMPTY
        self._more = True
        self.length = length
        self.received = 0
        self._arrived = arrived
        self._kept: list[memoryview] | None = None

    def keep(self) -> None:
        """Keep views of all that is received, for `received_views`; before anything is received."""
        self._kept = []

    @property
    def received_views(self) -> Sequence[memoryview]:
        """The bytes of the body as far as they were received, in order, if they are kept."""
        return self._kept or ()

    def arrived(self) -> int:
        """Bytes that have arrived: those received, and those that the server is writing into memory."""
        return self.received if self._arrived is None else self._arrived()

    def supply(self, body: bytes | memoryview | None) -> None:
        """Take the whole body from the server, if it has arrived; before anything else is received."""
        if body is not None:
            self._buffered, self._more, self.received = memoryview(body), False, len(body)
            if self._kept is not None:
                self._kept.append(self._buffered)

    async def peek(self, most_bytes: int = _HEAD_BLOCK) -> memoryview:
        """Some bytes, in whatever size they arrive, which stay unread; empty at the end of the body.

        With the server's extension they are few, so that little of what follows a head is copied twice.

        Raises:
            ClientDisconnected: the connection closed before the end.
            ReceiveTimeout: nothing came for too long.
        """
        if self._extension is None or self._buffered or self.received == self.length:
            await self._receive_part()
        else:
            block = memoryview(bytearray(min(most_bytes, self.length - self.received)))
            self._buffered = block[: await self._receive_with(self._extension, [block], 1)]
            self._more = self.received < self.length
        return self._buffered

    def skip(self, count: int) -> None:
        """Mark the first `count` bytes that `peek` returned as read."""
        self._buffered = self._buffered[count:]

    @property
    def complete(self) -> memoryview | None:
        """All unread bytes, if the whole body has arrived; else None."""
        return None if self._more else self._buffered

    async def feed(self, reader: HeadCollector, threads: CallerThreads) -> None:
        """Feed a reader until it has its head, a long one on a thread; the bytes after the head stay unread."""
        while reader.head is None and (
            part := self._buffered or await self.peek(max(_HEAD_BLOCK, min(reader.missing, _LONG_HEAD_BLOCK)))
        ):
            # The first bytes of a head tell how long it is; a long one is parsed when its last byte is fed.
            large = reader.wanted > INLINE_TEXT_BYTES
            part = part[: reader.missing if large else INLINE_TEXT_BYTES]
            fed = await threads.run(large and len(part) == reader.missing, reader.feed, part)
            self._buffered = self._buffered[fed:]

    async def receive_into(self, views: Sequence[memoryview]) -> None:
        """Receive the rest of the body into memory.

        Raises:
            BodyMismatch: a byte too many or too few.
            ClientDisconnected: the connection closed before the end.
            ReceiveTimeout: nothing came for too long.
        """
        writer = BodyWriter(views)
        missing = self.length - self.received
        if self._extension is not None and missing and len(self._buffered) + missing == writer.expected:
            writer.feed(self._buffered)
            self._buffered = _EMPTY
            await self._receive_with(self._extension, writer.left(), missing)
            return
        while part := await self.next_part():
            writer.feed(part)
        writer.finish()

    async def whole(self, limit: int, setting: str) -> bytes:
        """The whole body, for JSON; it is small.

        Raises:
            LimitExceeded: longer than the limit.
            BodyMismatch: not as long as Content-Length said.
        """
        if self.length > limit:
            raise LimitExceeded.of("the JSON body", self.length, limit, setting)
        data = bytearray()
        while part := await self.next_part():
            data += part
        if len(data) != self.length:
            raise BodyMismatch(f"Content-Length is {self.length} but the body has {len(data)} bytes")
        return bytes(data)

    async def next_part(self) -> memoryview:
        """The next bytes, which are read then; empty at the end of the body."""
        if not self._buffered:
            await self._receive_part()
        part, self._buffered = self._buffered, _EMPTY
        return part

    async def _receive_part(self) -> None:
        while self._more and not self._buffered:
            try:
                async with asyncio.timeout(self._timeout):
                    message = await self.receive()
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            self._more = message.get("more_body", False)
            if data := message.get("body", b""):
                self.received += len(data)
                self._buffered = memoryview(data)
                if self._kept is not None:
                    self._kept.append(self._buffered)

    async def _receive_with(self, extension: ReceiveInto, views: Sequence[memoryview], least: int) -> int:
        """Wait until `least` bytes are in the views; how many came. The body has that many."""
        try:
            count = await extension(views, least, self._timeout)
        except ConnectionResetError:
            raise ClientDisconnected from None
        self.received += count
        left = 0 if self._kept is None else count
        for view in views if left else ():
            assert self._kept is not None
            self._kept.append(view[:left])
            left -= len(self._kept[-1])
        if count < least:
            raise self._too_slow()
        return count

    def _too_slow(self) -> ReceiveTimeout:
        return ReceiveTimeout(
            f"nothing arrived for {self._timeout:g} s; {self.received:,} of {self.length:,} bytes had "
            "(setting TENSORPOST_RECEIVE_TIMEOUT_SECONDS)"
        )


async def whole_json(body: RequestBody, settings: Settings, reserve: Callable[[int], object]) -> bytes:
    """The text of a JSON body. Memory is reserved for it before it is received, and then for the values made of it.

    Raises:
        LimitExceeded: it is longer than the limit, or than the memory budget.
        TooBusy: the memory is not there now.
    """
    limit, setting = settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"
    if body.length > limit:
        raise LimitExceeded.of("the JSON body", body.length, limit, setting)
    reserve(body.length)
    text = await body.whole(limit, setting)
    if body.length > INLINE_TEXT_BYTES:
        reserve(body.length * (JSON_MEMORY_FACTOR - 1))
    return text
