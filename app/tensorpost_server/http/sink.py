"""Receiving into lent memory: what a transport writes to while a body goes straight to where it is wanted.

A transport reads into memory only for an `asyncio.BufferedProtocol`, so one takes the place of the connection's usual
protocol until the body ends. It never asks for a byte behind that end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["Owner", "Sink", "move"]

_FIRST_BYTES = 4096
_SPARE_BYTES = 256 * 1024


class Owner(Protocol):
    """The protocol that a sink stands in for."""

    loop: asyncio.AbstractEventLoop
    flow: FlowControl

    @property
    def left(self) -> int:
        """Bytes of the current body that are still to come."""
        ...

    def body_came(self, count: int) -> None:
        """So many bytes of the body went into lent memory."""
        ...

    def data_received(self, data: bytes) -> None:
        """Bytes came while no memory was lent for them."""
        ...

    def eof_received(self) -> None:
        """The caller sends no more."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        ...

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write."""
        ...

    def resume_writing(self) -> None:
        """It has read."""
        ...


class Sink(asyncio.BufferedProtocol):
    """Stands in for its owner while a body may be received into lent memory.

    While none is lent, which is when the application reads by `receive` or has answered already, what comes goes the
    usual way by a buffer of its own.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._views: deque[memoryview] = deque()
        self._at = 0  # bytes of the first view that are filled
        self._filled = 0
        self._least = 0
        self._waiter: asyncio.Future[None] | None = None
        self._spare: memoryview | None = None
        self._last = 0.0
        self._room = 0
        self.timer: asyncio.TimerHandle | None = None
        self.installed = False

    def begin(self) -> None:
        """Stand in for the protocol from now on, for one body."""
        self.installed = True
        # Who reads by `receive` first wants to see the head of the body; the rest may then go straight.
        self._room = _FIRST_BYTES

    def end(self) -> None:
        """The body is complete."""
        self.installed = False
        self._spare = None

    def lend(self, views: Sequence[memoryview], least: int, waiter: asyncio.Future[None]) -> None:
        """Receive into these views, and tell the waiter when `least` bytes are in."""
        self._views.extend(views)
        self._at = self._filled = 0
        self._least, self._waiter = least, waiter
        self._last = self._owner.loop.time()

    def take_back(self) -> int:
        """Forget the views; how many bytes are in them."""
        self._views.clear()
        self._waiter = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        return self._filled

    def wake(self) -> None:
        """Let the waiter go on, with what there is."""
        self._views.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def look(self, timeout: float) -> None:
        """Wake the waiter if nothing came for `timeout` seconds; else look again later."""
        loop = self._owner.loop
        left = self._last + timeout - loop.time()
        if left <= 0:
            self.wake()
        else:
            self.timer = loop.call_later(left, self.look, timeout)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: never beyond the body."""
        del sizehint
        left = self._owner.left
        if self._views:
            return self._views[0][self._at : self._at + left]
        if self._spare is None or len(self._spare) < self._room:
            self._spare = memoryview(bytearray(self._room))
        return self._spare[: min(left, self._room)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes are there."""
        if not self._views:
            assert self._spare is not None
            data = bytes(self._spare[:nbytes])
            self._room = _SPARE_BYTES
            self._owner.data_received(data)
            return
        self._last = self._owner.loop.time()
        self._filled += nbytes
        self._at += nbytes
        if self._at == len(self._views[0]):
            self._views.popleft()
            self._at = 0
        self._owner.body_came(nbytes)
        if not self._views or self._filled >= self._least or not self._owner.left:
            if self._owner.left:
                self._owner.flow.pause_reading()
            self.wake()

    def eof_received(self) -> None:
        """The caller sends no more; the transport closes itself."""
        self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """It has read."""
        self._owner.resume_writing()


def move(body: bytearray, views: Sequence[memoryview]) -> tuple[int, list[memoryview]]:
    """Move bytes from the front of the body into the views; their number, and what is left of the views."""
    moved, rest = 0, [view for view in views if view.nbytes]
    with memoryview(body) as source:
        while rest and moved < len(source):
            count = min(len(source) - moved, len(rest[0]))
            rest[0][:count] = source[moved : moved + count]
            moved += count
            rest[0] = rest[0][count:]
            if not rest[0]:
                rest.pop(0)
    del body[:moved]
    return moved, rest
