"""A request of HTTP/2 and its response, as the application sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from .call_slots import CallSlots
from .frames import LARGEST_WINDOW, WINDOW_BYTES, window_frame
from .timeouts import ConnectionLimits


class SharedLimits(Protocol):
    """What the connections of a server share, as far as a stream needs it.

    Attributes:
        limits: times and rates.
        idle_seconds: how long a request may wait for its body, or for the next part of it.
        loop: the event loop.
    """

    limits: ConnectionLimits
    idle_seconds: float
    loop: asyncio.AbstractEventLoop


class StreamConnection(Protocol):
    """The connection of a stream, as far as the stream and the application need it.

    Attributes:
        peer: the address and port of the peer; None for a Unix socket.
        health_only: whether it may ask for health only.
        streams: its requests by their numbers.
        slots: the places of calls that compute.
    """

    peer: tuple[str, int] | None
    health_only: bool
    streams: dict[int, Stream]
    slots: CallSlots

    @property
    def shared(self) -> SharedLimits:
        """What all connections of the server share."""
        ...

    def write(self, data: bytes) -> None:
        """Write frames."""
        ...

    def respond(
        self, stream: Stream, number: int, head: bytes | None, parts: Sequence[bytes | memoryview],
        trailers: bytes | None,
    ) -> None:  # fmt: skip
        """Send what `Stream.respond` is given."""
        ...

    async def progress(self) -> None:
        """Wait until something was sent."""
        ...


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

    def check(self, now: float, shared: SharedLimits) -> None:
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
