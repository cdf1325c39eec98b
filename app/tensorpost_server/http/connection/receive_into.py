"""An ASGI extension: the application names memory, and the server receives the body straight into it.

ASGI's `receive` returns bytes that have already been copied. A server that can do better offers
`scope["extensions"]["tensorpost.receive_into"] = {"receive_into": callable}` in the scope of a request (ASGI 3.0,
"Extensions"), and may add `"arrived_bytes": callable`; `protocol.py` is one. Where it is absent, `receive` does the
same with more copies. Both may be used on one request, in any order: each byte of the body is delivered once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import Scope

if TYPE_CHECKING:  # other ASGI servers do without uvicorn
    from .protocol import DirectProtocol

__all__ = ["RECEIVE_INTO", "MemoryReceiver", "ReceiveInto", "arrived_bytes", "move_bytes", "receive_into"]

RECEIVE_INTO = "tensorpost.receive_into"
"""The extension's name in `scope["extensions"]`."""

_FIRST_BYTES = 4096
_BUFFER_BYTES = 256 * 1024


class ReceiveInto(Protocol):
    """Receives the next bytes of a body into memory."""

    async def __call__(self, views: Sequence[memoryview], least: int, timeout: float) -> int:
        """Wait for bytes and write them into the views, in order.

        Nothing is written to the views after this has returned or was cancelled.

        Args:
            views: writable, contiguous memory of bytes.
            least: how many bytes to wait for; more are written if they have arrived and the views have room.
            timeout: longest pause between two parts, seconds.

        Returns:
            Bytes written. Fewer than `least` if the body ended, or if nothing came for `timeout` seconds; bytes that
            came before are in the views.

        Raises:
            ConnectionResetError: the caller closed the connection.
        """
        ...


def receive_into(scope: Scope) -> ReceiveInto | None:
    """The extension of this request; None if its server has none, or sees no gain for this body."""
    extensions: dict[str, dict[str, Any]] = scope.get("extensions") or {}
    return extensions.get(RECEIVE_INTO, {}).get("receive_into")


def arrived_bytes(scope: Scope) -> Callable[[], int] | None:
    """What says how many bytes of this body have arrived; None without the extension."""
    extensions: dict[str, dict[str, Any]] = scope.get("extensions") or {}
    return extensions.get(RECEIVE_INTO, {}).get("arrived_bytes")


class MemoryReceiver(asyncio.BufferedProtocol):
    """Stands in the place of a connection's protocol while a body may be received into the application's memory.

    A transport reads into memory only for an `asyncio.BufferedProtocol`. While the application waits for nothing in its
    memory (it reads by `receive`, or has answered already), bytes go to the usual protocol by way of a buffer here. No
    byte after the end of the body is asked for.
    """

    def __init__(self, protocol: DirectProtocol) -> None:
        self._protocol = protocol
        self._views: deque[memoryview] = deque()
        self._filled_of_first = 0  # bytes of the first view
        self._filled = 0
        self._least = 0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self._buffer = memoryview(b"")
        self._buffer_bytes = 0
        self.installed = False

    def install(self) -> None:
        """Stand in the protocol's place from now on, for one body."""
        self.installed = True
        # An application that reads by `receive` reads the head of the body first; the rest may then go to its memory.
        self._buffer_bytes = _FIRST_BYTES

    def uninstall(self) -> None:
        """The body is complete."""
        self.installed = False
        self._buffer = memoryview(b"")

    async def receive(self, views: Sequence[memoryview], least: int, timeout: float) -> int:
        """See `ReceiveInto`; the views have room, and the body has more bytes.

        Returns:
            Bytes written.
        """
        loop = self._protocol.loop
        self._views.extend(views)
        self._filled_of_first = self._filled = 0
        self._least, self._waiter = least, loop.create_future()
        self._last_arrival = loop.time()
        self._protocol.flow.resume_reading()
        self._timer = loop.call_later(timeout, self._check_timeout, timeout)
        try:
            await self._waiter
        finally:
            self._views.clear()
            self._waiter = None
            self._timer.cancel()
        return self._filled

    def wake(self) -> None:
        """Let the application continue, with the bytes there are."""
        self._views.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_timeout(self, timeout: float) -> None:
        loop = self._protocol.loop
        left = self._last_arrival + timeout - loop.time()
        if left <= 0:
            self.wake()
        else:
            self._timer = loop.call_later(left, self._check_timeout, timeout)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are written; never more than the body has, except for bytes that were read already.

        asyncio's transport on Windows reads first and asks for memory then, also past the end of the body: those bytes
        are the next request's.
        """
        unread = self._protocol.unread
        if not unread:
            self._buffer = memoryview(bytearray(max(1, sizehint)))
            return self._buffer
        if self._views:
            return self._views[0][self._filled_of_first : self._filled_of_first + unread]
        if len(self._buffer) < self._buffer_bytes:
            self._buffer = memoryview(bytearray(self._buffer_bytes))
        return self._buffer[: min(unread, self._buffer_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were written there."""
        protocol = self._protocol
        if not self._views:
            data = bytes(self._buffer[:nbytes])
            self._buffer_bytes = _BUFFER_BYTES
            if not self.installed:
                self._buffer = memoryview(b"")
            protocol.data_received(data)
            return
        self._last_arrival = protocol.loop.time()
        self._filled += nbytes
        self._filled_of_first += nbytes
        if self._filled_of_first == len(self._views[0]):
            self._views.popleft()
            self._filled_of_first = 0
        protocol.body_received(nbytes)
        if not self._views or self._filled >= self._least or not protocol.unread:
            if protocol.unread:
                protocol.flow.pause_reading()
            self.wake()

    def eof_received(self) -> bool:
        """The caller sends no more; whether the transport stays open for responses."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._protocol.resume_writing()


def move_bytes(source: bytearray, targets: Sequence[memoryview]) -> tuple[int, list[memoryview]]:
    """Move bytes from the front of the source into the targets; their number, and the room left in the targets."""
    moved, room = 0, [view for view in targets if view.nbytes]
    with memoryview(source) as data:
        while room and moved < len(data):
            count = min(len(data) - moved, len(room[0]))
            room[0][:count] = data[moved : moved + count]
            moved += count
            room[0] = room[0][count:]
            if not room[0]:
                room.pop(0)
    del source[:moved]
    return moved, room
