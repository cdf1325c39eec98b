"""Bodies in and out, piece by piece: head first, tensors straight into memory made for them, slices as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from starlette.types import Message, Receive, Send

from tensorpost.frame import BodyWriter
from tensorpost.problems import BodyMismatch, LimitExceeded, ReceiveTimeout

from ..engine import Stages
from .receiving import ReceiveInto
from .waiting import within

__all__ = ["Body", "CallerGone", "send_last", "send_stream"]

_HEAD_BLOCK = 4096  # bytes; heads of a frame are a few hundred


class CallerGone(Exception):
    """The caller hung up; there is nobody to answer."""


class Reader(Protocol):
    """Takes the bytes of a head; `feed` says how many of them it took. `head` is None until it is complete."""

    head: Any

    def feed(self, data: memoryview) -> int: ...  # said by the class


_NOTHING = memoryview(b"")


class Body:
    """A request body of known length.

    Args:
        receive: the ASGI channel.
        length: Content-Length in bytes.
        timeout: longest pause between two pieces, seconds.
        receive_into: the server's way to receive straight into memory; None if it has none.
    """

    def __init__(self, receive: Receive, length: int, timeout: float, receive_into: ReceiveInto | None = None) -> None:
        self._receive = receive
        self._receive_into = receive_into
        self._timeout = timeout
        self._rest = _NOTHING
        self._more = True
        self.length = length
        self.received = 0

    async def piece(self) -> memoryview:
        """The next bytes, in whatever size they arrive; empty at the end.

        Raises:
            CallerGone: the connection closed before the end.
            ReceiveTimeout: nothing came for too long.
        """
        if not self._rest:
            await self._next()
        piece, self._rest = self._rest, _NOTHING
        return piece

    async def peek(self) -> memoryview:
        """As `piece`, but what it returns is left here to be read.

        From a server that receives into memory it is small, so that little of what follows a head is copied again.
        """
        if self._receive_into is None or self._rest or self.received == self.length:
            await self._next()
        else:
            block = memoryview(bytearray(min(_HEAD_BLOCK, self.length - self.received)))
            self._rest = block[: await self._straight_into([block], 1)]
            self._more = self.received < self.length
        return self._rest

    async def _next(self) -> None:
        while self._more and not self._rest:
            try:
                message = await within(self._receive(), self._timeout)
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] == "http.disconnect":
                raise CallerGone
            self._more = message.get("more_body", False)
            if data := message.get("body", b""):
                self.received += len(data)
                self._rest = memoryview(data)

    def skip(self, count: int) -> None:
        """Count so many of the bytes that `peek` saw as read."""
        self._rest = self._rest[count:]

    @property
    def arrived(self) -> memoryview | None:
        """All bytes that are left to be read, if nothing more will come; else None."""
        return None if self._more else self._rest

    def _too_slow(self) -> ReceiveTimeout:
        return ReceiveTimeout(
            f"nothing arrived for {self._timeout:g} s; {self.received:,} of {self.length:,} bytes had "
            "(setting TENSORPOST_RECEIVE_TIMEOUT_SECONDS)"
        )

    async def _straight_into(self, views: Sequence[memoryview], least: int) -> int:
        """Wait for `least` bytes of those that are to come, in memory of ours; how many came.

        Raises:
            CallerGone: the connection closed before.
            ReceiveTimeout: nothing came for too long.
        """
        assert self._receive_into is not None
        try:
            count = await self._receive_into(views, least, self._timeout)
        except ConnectionResetError:
            raise CallerGone from None
        self.received += count
        if count < least:  # the body has more, or we would not have asked
            raise self._too_slow()
        return count

    async def head(self, reader: Reader) -> None:
        """Feed a head reader until it has its head; what follows stays here, and is not waited for."""
        while reader.head is None and (piece := await self.peek()):
            self._rest = piece[reader.feed(piece) :]

    async def into(self, views: Sequence[memoryview]) -> None:
        """Receive the rest straight into memory.

        Raises:
            BodyMismatch: a byte too many or too few.
            CallerGone: the connection closed before the end.
            ReceiveTimeout: nothing came for too long.
        """
        writer = BodyWriter(views)
        missing = self.length - self.received
        if self._receive_into is not None and missing and len(self._rest) + missing == writer.expected:
            writer.feed(self._rest)
            self._rest = memoryview(b"")
            await self._straight_into(writer.left(), missing)
            return
        while piece := await self.piece():
            writer.feed(piece)
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
        while piece := await self.piece():
            data += piece
        if len(data) != self.length:
            raise BodyMismatch(f"Content-Length is {self.length} but the body has {len(data)} bytes")
        return bytes(data)


async def send_stream(
    send: Send, receive: Receive, headers: list[tuple[bytes, bytes]], head: bytes, slices: AsyncGenerator[memoryview],
    stages: Stages, timeout: float,
) -> None:  # fmt: skip
    """Answer 200 with these headers, Server-Timing, and a body of a head and slices.

    The first slice is computed before the status line is sent, so a failure until then still gets an honest status.
    When the caller hangs up, no further slice is begun.

    Args:
        send: the ASGI channel out.
        receive: the ASGI channel in, watched for a hang-up.
        headers: complete, with Content-Length.
        head: bytes before the slices.
        slices: the output.
        stages: timings; `compute` is added here.
        timeout: longest wait for the caller to take one slice, seconds.

    Raises:
        CallerGone: it took longer.
    """
    async with aclosing(slices):
        block = await anext(slices, None)
        stages.done("compute")
        await send(_start(headers, stages))
        gone = asyncio.ensure_future(_hang_up(receive))
        try:
            await _send_part(send, head, timeout)
            while block is not None and not gone.done():
                await _send_part(send, block, timeout)
                block = await anext(slices, None)
            if not gone.done():
                await send_last(send, b"", timeout)
        finally:
            gone.cancel()


async def send_last(send: Send, part: bytes, timeout: float) -> None:
    """Send the last part of a body.

    Raises:
        CallerGone: it took longer than `timeout` seconds.
    """
    try:
        await within(send({"type": "http.response.body", "body": part, "more_body": False}), timeout)
    except TimeoutError:
        raise CallerGone from None


async def _send_part(send: Send, part: bytes | memoryview, timeout: float) -> None:
    try:
        await within(send({"type": "http.response.body", "body": part, "more_body": True}), timeout)
    except TimeoutError:
        raise CallerGone from None  # an answer that is not complete makes the server hang up


def _start(headers: list[tuple[bytes, bytes]], stages: Stages) -> Message:
    headers = [*headers, (b"server-timing", str(stages).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
