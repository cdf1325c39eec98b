"""A large body of known length: its bytes are counted, not parsed, and received into the application's memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .timeouts import CallerPace

DIRECT_BYTES = 64 * 1024
"""Bodies from this size on are counted. A smaller one often comes with its head, and switching costs more."""

_FIRST_BYTES = 4096
_BUFFER_BYTES = 256 * 1024


def is_large(length: int) -> bool:
    """Whether a body of `length` bytes is counted."""
    return length >= DIRECT_BYTES


class BodyConnection(Protocol):
    """The protocol of a connection, as far as a body needs it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    pace: CallerPace

    @property
    def flow(self) -> FlowControl: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class DirectBody(asyncio.BufferedProtocol):
    """Counts a body; stands in the place of its connection's protocol while it may be received into memory.

    A transport reads into memory only for an `asyncio.BufferedProtocol`. While the application waits for nothing in its
    memory (it reads by `receive`, or has answered already), bytes go to the usual protocol by way of a buffer here. No
    byte after the end of the body is asked for.

    Attributes:
        unread: the bytes that have not arrived.
    """

    def __init__(
        self, connection: BodyConnection, cycle: RequestResponseCycle, length: int, *, into_memory: bool
    ) -> None:
        self._connection, self._cycle, self._length, self._into_memory = connection, cycle, length, into_memory
        # The other callbacks of a transport are the connection's.
        self.connection_lost, self.eof_received = connection.connection_lost, connection.eof_received
        self.pause_writing, self.resume_writing = connection.pause_writing, connection.resume_writing
        self.unread = length
        self._is_installed = False  # in the place of the connection's protocol
        self._views: deque[memoryview] = deque()
        self._filled = self._least = 0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self._buffer = memoryview(b"")
        # An application that reads by `receive` reads the head of the body first; the rest may then go to its memory.
        self._buffer_bytes = _FIRST_BYTES

    def arrived_bytes(self) -> int:
        """Bytes that have arrived."""
        return self._length - self.unread

    async def receive_into(self, views: Sequence[memoryview], least: int, timeout: float) -> int:
        cycle, transport, loop = self._cycle, self._connection.transport, self._connection.loop
        if cycle.waiting_for_100_continue and not transport.is_closing():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        self._views.extend([view for view in views if view.nbytes])
        self._filled, self._least = 0, least
        try:
            while self._views and cycle.body:
                count = min(self._views[0].nbytes, len(cycle.body))
                with memoryview(cycle.body) as arrived:
                    self._views[0][:count] = arrived[:count]
                del cycle.body[:count]
                self._advance(count)
            if self._filled >= least or not self._views or not cycle.more_body:
                return self._filled
            if cycle.disconnected or cycle.response_complete:
                raise ConnectionResetError
            assert self._is_installed
            self._waiter, self._last_arrival = loop.create_future(), loop.time()
            self._connection.flow.resume_reading()
            self._timer = loop.call_later(timeout, self._check_timeout, timeout)
            await self._waiter
        finally:
            self._views.clear()
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
            if self.unread:
                self.pause()
        if cycle.disconnected:
            raise ConnectionResetError
        return self._filled

    def _advance(self, count: int) -> None:
        """Continue after `count` bytes were written to the first view."""
        self._filled += count
        if (room := self._views.popleft()[count:]).nbytes:
            self._views.appendleft(room)

    def wake(self) -> None:
        """Let the application continue, with the bytes there are."""
        self._views.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_timeout(self, timeout: float) -> None:
        loop = self._connection.loop
        left = self._last_arrival + timeout - loop.time()
        if left <= 0:
            self.wake()
        else:
            self._timer = loop.call_later(left, self._check_timeout, timeout)

    def pause(self) -> None:
        """Read no further until the application asks, or has answered."""
        transport, flow = self._connection.transport, self._connection.flow
        if transport.is_closing():
            return
        if not self._cycle.response_complete:
            flow.pause_reading()
        if self._into_memory and not self._is_installed:
            # uvloop looks at the kind of protocol when reading starts, not when the protocol is set.
            paused = flow.read_paused
            flow.pause_reading()
            transport.set_protocol(self)
            self._is_installed = True
            if not paused:
                flow.resume_reading()

    def count(self, arrived: int) -> None:
        """Count bytes that have arrived. After the last one, the connection's protocol has its place again."""
        connection = self._connection
        self.unread -= arrived
        if self.unread:
            return
        if self._is_installed:
            connection.flow.pause_reading()
            connection.transport.set_protocol(cast("asyncio.BaseProtocol", connection))
            self._is_installed = False
            self._buffer = memoryview(b"")
            connection.flow.resume_reading()
        connection.on_message_complete()

    # ---- the transport's callbacks, while this is installed ----------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are written; never more than the body has, except for bytes that were read already.

        asyncio's transport on Windows reads first and asks for memory then, also past the end of the body: those bytes
        are the next request's.
        """
        if not self.unread:
            self._buffer = memoryview(bytearray(max(1, sizehint)))
            return self._buffer
        if self._views:
            return self._views[0][: self.unread]
        if len(self._buffer) < self._buffer_bytes:
            self._buffer = memoryview(bytearray(self._buffer_bytes))
        return self._buffer[: min(self.unread, self._buffer_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were written there."""
        connection = self._connection
        if not self._views:
            data = bytes(self._buffer[:nbytes])
            self._buffer_bytes = _BUFFER_BYTES
            if not self._is_installed:
                self._buffer = memoryview(b"")
            connection.data_received(data)
            return
        self._last_arrival = connection.loop.time()
        self._advance(nbytes)
        connection.pace.arrived_bytes += nbytes
        self.count(nbytes)
        if not self._views or self._filled >= self._least or not self.unread:
            if self.unread:
                connection.flow.pause_reading()
            self.wake()
