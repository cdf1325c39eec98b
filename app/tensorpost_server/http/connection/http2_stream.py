"""Requests of HTTP/2 and their responses, as the application sees them, and what a connection sends for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast

from ...shared.counts import ProcessCounts
from .call_slots import CallSlots
from .connection_budget import ConnectionBudget
from .frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    LARGEST_WINDOW,
    SMALLEST_FRAME_BYTES,
    WINDOW_BYTES,
    ErrorCode,
    frame,
    frame_head,
    reset_frame,
    window_frame,
)
from .request_turns import RequestTurns
from .timeouts import ConnectionLimits, ConnectionMonitor

MOST_STREAMS = 128
"""Requests of one connection at a time; RFC 9113 advises 100 or more."""
MOST_EMPTY_FRAMES = 1000.0
"""Frames that carry nothing which a connection may send at once."""
MOST_WRITTEN = 256 << 10
"""Bytes that are written before it is seen whether the caller reads."""


class Http2Shared:
    """What the connections of one server share.

    Args:
        limits: times and rates, and the number of connections.
        keep_alive_seconds: how long a connection without requests stays open.
        idle_seconds: how long a request may wait for its body, or for the next part of it.
        handle: answers a request; called in a task of its own.
        loop: the event loop.
        counts: the connections of other processes of this server; None if there are none.
    """

    def __init__(
        self, limits: ConnectionLimits, keep_alive_seconds: float, idle_seconds: float,
        handle: Callable[[Stream], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop,
        counts: ProcessCounts | None = None,
    ) -> None:  # fmt: skip
        self.limits, self.handle, self.loop = limits, handle, loop
        self.keep_alive_seconds, self.idle_seconds = keep_alive_seconds, idle_seconds
        self.connections = set[Any]()
        self.budget = ConnectionBudget(limits.connections, limits.connections_per_address, counts)
        self.monitor = ConnectionMonitor(self.connections, self.budget, loop, limits.interval)
        self.turns = RequestTurns(loop)
        self.draining = False


class StreamEnded(Exception):
    """The server ended a request whose body it waited for.

    Args:
        reason: `slow`: the body came too slowly; `idle`: none came for too long; `room`: another request got its place.
    """

    def __init__(self, reason: Literal["slow", "idle", "room"]) -> None:
        super().__init__(reason)
        self.reason = reason


class Stream:
    """A request, and its response.

    Attributes:
        connection: the connection of the stream.
        fields: header fields by name, those of the pseudo-header among them; equal names joined by commas.
        buffer: bytes of the body that have arrived and were not taken.
        ended: whether the body is complete.
        in_body: whether the application waits for the rest of something, whose rate is then looked at.
    """

    __slots__ = (
        "_arrived", "_id", "_loop", "_moved", "_since", "_target", "_waiter", "buffer", "connection", "ended",
        "failure", "fields", "in_body", "out", "send_window", "task", "trailers", "window",
    )  # fmt: skip

    def __init__(self, connection: StreamConnection, id_: int, fields: Mapping[bytes, bytes], send_window: int) -> None:
        self.connection, self._id, self.fields, self._loop = connection, id_, fields, connection.shared.loop
        self.buffer, self.ended, self.in_body = bytearray(), False, False
        self.window, self.send_window = WINDOW_BYTES, send_window
        self.out, self.trailers = deque[memoryview](), None
        self.task: asyncio.Task[None] | None = None
        self.failure: Literal["slow", "idle", "room"] | None = None
        self._target: memoryview | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._arrived = self._moved = 0
        self._since = 0.0

    trailers: bytes | None

    @property
    def arrived(self) -> int:
        """Bytes of the body that have arrived."""
        return self._arrived

    @property
    def waits(self) -> bool:
        """Whether the application waits for a part of the body."""
        return self._waiter is not None

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def more(self) -> None:
        """Wait until more of the body has arrived, or its end.

        Raises:
            StreamEnded: the server does not wait any longer.
        """
        self._waiter = self._loop.create_future()
        self._since, self._moved = self._loop.time(), self._arrived
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self.failure is not None:
            raise StreamEnded(self.failure)

    async def receive_into(self, memory: memoryview) -> bool:
        """Fill the memory with the next bytes of the body; False if it ends before.

        Raises:
            StreamEnded: the bytes came too slowly.
        """
        have = min(len(self.buffer), len(memory))
        memory[:have] = self.buffer[:have]
        del self.buffer[:have]
        self._target = memory[have:]
        try:
            self.allow(len(self._target))
            self.in_body = True
            while len(self._target) and not self.ended:
                await self.more()
            return not len(self._target)
        finally:
            self._target, self.in_body = None, False

    def allow(self, count: int) -> None:
        """Let the caller send so many bytes of the body from now on."""
        if not self.ended and self.window < count:
            more = min(count, LARGEST_WINDOW) - self.window
            self.window += more
            self.connection.write(window_frame(self._id, more))

    def take(self, data: memoryview) -> None:
        """Bytes of the body have arrived."""
        self._arrived += len(data)
        target = self._target
        if target is not None:
            count = min(len(target), len(data))
            target[:count] = data[:count]
            self._target, data = target[count:], data[count:]
            if count < len(target):
                return
        self.buffer += data
        self._wake()

    def end_body(self) -> None:
        """The body is complete."""
        self.ended = True
        self._wake()

    def fail(self, reason: Literal["slow", "idle", "room"]) -> None:
        """Do not wait for the body any longer."""
        if self.failure is None:
            self.failure = reason
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def check(self, now: float, shared: Http2Shared) -> None:
        """Fail if the body comes too slowly."""
        if self._waiter is None:
            return
        limits = shared.limits
        window = 2 * limits.receive_seconds
        if not self.in_body:
            if now - self._since >= shared.idle_seconds:
                self.fail("idle")
        elif now - self._since >= window:
            if self._arrived - self._moved < max(1, limits.bytes_per_second * window):
                self.fail("slow")
            self._since, self._moved = now, self._arrived

    # ---- sending -----------------------------------------------------------------------------------------------------

    def respond(self, head: bytes | None, parts: Sequence[bytes | memoryview], trailers: bytes | None) -> None:
        """Send a head, bytes of the body, and the trailers, each if there is any; with trailers the response ends."""
        self.connection.respond(self, self._id, head, parts, trailers)

    async def sent(self) -> None:
        """Wait until the caller has taken what was sent, but for what the system and the transport hold."""
        while self.out and self._id in self.connection.streams:
            await self.connection.progress()


class StreamConnection:
    """What a connection sends, and what its streams know of it: frames go as far as windows and the transport let them.

    Attributes:
        shared: what all connections share.
        peer: the caller's address and port; None on a Unix socket.
        health_only: whether there was no room for it, so that it may ask for health only.
        streams: its requests that are not answered, by number.
        slots: which of them are computed.
    """

    def __init__(self, shared: Http2Shared) -> None:
        self.shared = shared
        self.peer: tuple[str, int] | None = None
        self.health_only = False
        self.streams = dict[int, Stream]()
        self.slots = CallSlots(shared.loop, MOST_STREAMS)
        self.transport = cast("asyncio.Transport", None)
        self._send_window = self._initial_window = WINDOW_BYTES
        self._largest_frame = SMALLEST_FRAME_BYTES
        self._credit = MOST_EMPTY_FRAMES
        self._writable = True
        self._written = 0
        self._idle_since = shared.loop.time()
        self._progress: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Send frames that are not held back by windows."""
        if not self.transport.is_closing():
            self._written += len(data)
            self.transport.write(data)

    def respond(
        self, stream: Stream, number: int, head: bytes | None, parts: Sequence[bytes | memoryview],
        trailers: bytes | None,
    ) -> None:  # fmt: skip
        if self.streams.get(number) is not stream:
            return
        stream.out.extend([memoryview(part) for part in parts if len(part)])
        stream.trailers = trailers
        self._flush(stream, number, b"" if head is None else frame(HEADERS, END_HEADERS, number, head))
        self.slots.adapt(is_sent=not stream.out)

    def _flush(self, stream: Stream, number: int, begin: bytes = b"") -> None:
        """Send what the windows and the transport let through."""
        frames, size = [begin], len(begin)
        while stream.out and (room := min(self._send_window, stream.send_window, self._largest_frame)) > 0:
            if not self._writable:
                break
            part = stream.out[0]
            count = min(len(part), room)
            frames += [frame_head(count, DATA, 0, number), part[:count]]
            size += HEAD_BYTES + count
            self._send_window -= count
            stream.send_window -= count
            self._credit += 2  # for the windows that it opens, its own and the connection's
            if count == len(part):
                stream.out.popleft()
            else:
                stream.out[0] = part[count:]
            if size >= MOST_WRITTEN:
                self._write_all(frames, size)
                frames, size = list[Any](), 0
        if not stream.out and stream.trailers is not None:
            end = frame(HEADERS, END_HEADERS | END_STREAM, number, stream.trailers)
            if not stream.ended:  # the rest of the request is not wanted (section 8.1)
                end += reset_frame(number, ErrorCode.NO_ERROR)
            self._write_all([*frames, end], size + len(end))
            self._forget(number)
        elif size:
            self._write_all(frames, size)

    def _write_all(self, frames: list[Any], size: int) -> None:
        if self.transport.is_closing():
            return
        self._written += size
        if size <= WINDOW_BYTES:
            self.transport.write(b"".join(frames))
        else:
            self.transport.writelines(frames)
        self._make_progress()

    def _flush_all(self) -> None:
        for number, stream in [*self.streams.items()]:
            if stream.out:
                self._flush(stream, number)
        self._make_progress()

    def _forget(self, number: int) -> Stream | None:
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.out.clear()
        if not self.streams:
            self._idle_since = self.shared.loop.time()
            if self.shared.draining:
                self.transport.close()
        self._make_progress()
        return stream

    async def progress(self) -> None:
        """Wait until something was sent, or a request has ended."""
        if self._progress is None:
            self._progress = self.shared.loop.create_future()
        await asyncio.shield(self._progress)

    def _make_progress(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None
