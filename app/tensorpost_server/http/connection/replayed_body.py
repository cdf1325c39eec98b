"""A body that arrives in parts after a known head: it is received into memory of its call, then its replay answers."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from uvicorn.protocols.http.flow_control import FlowControl

from .timeouts import CallerPace
from .whole_messages import Reception


class ReplayingConnection(Protocol):
    """The protocol of a connection, as far as a body needs it that is received for a replay."""

    transport: asyncio.Transport
    pace: CallerPace

    @property
    def flow(self) -> FlowControl: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def body_replayable(self) -> None: ...
    def give_up_replay(self) -> None: ...


class ReplayedBody(asyncio.BufferedProtocol):
    """Receives such a body, in the place of its connection's protocol; nothing but its bytes is asked for.

    Whatever else happens before its last byte (the caller leaves or is slow, the server stops) ends this: the
    connection parses the request from its beginning, as if what has arrived had come then.

    Attributes:
        reception: the call's memory, and what answers it.
    """

    def __init__(self, connection: ReplayingConnection, head: bytes, reception: Reception) -> None:
        self._connection, self._head, self.reception = connection, head, reception
        self._left = reception.memory
        self._next = memoryview(b"")  # bytes after the body
        self._is_installed = False
        self.pause_writing, self.resume_writing = connection.pause_writing, connection.resume_writing

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""
        return not self._left

    def begin(self, first: memoryview) -> None:
        """Take the bytes that came with the head, and receive the others from now on."""
        self._left[: len(first)] = first
        self._left = self._left[len(first) :]
        # uvloop looks at the kind of protocol when reading starts, not when the protocol is set.
        self._connection.flow.pause_reading()
        self._connection.transport.set_protocol(self)
        self._is_installed = True
        self._connection.flow.resume_reading()

    def end(self) -> tuple[bytes, bytes]:
        """Give the connection's protocol its place back.

        Reading is paused afterwards, unless the connection is closed.

        Returns:
            The request's head, and what has arrived of its body.
        """
        arrived = self._head, bytes(self.reception.memory[: len(self.reception.memory) - len(self._left)])
        self._uninstall()
        self._left = memoryview(b"")
        self.reception.end()
        return arrived

    def _uninstall(self) -> None:
        transport = self._connection.transport
        if self._is_installed and not transport.is_closing():
            self._connection.flow.pause_reading()
            transport.set_protocol(cast("asyncio.BaseProtocol", self._connection))
        self._is_installed = False

    # ---- the transport's callbacks -----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are written.

        asyncio's transport on Windows reads first and asks for memory then, also past the end of the body: those bytes
        are the next request's.
        """
        if not self._left:
            self._next = memoryview(bytearray(max(1, sizehint)))
            return self._next
        return self._left

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were written there."""
        connection = self._connection
        if not self._left:
            connection.data_received(bytes(self._next[:nbytes]))
            return
        self._left = self._left[nbytes:]
        connection.pace.arrived_bytes += nbytes
        if not self._left:
            self._uninstall()
            connection.body_replayable()

    def eof_received(self) -> bool | None:
        """The caller sends no more, before the end of the body."""
        self._connection.give_up_replay()
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed before the end of the body."""
        self._connection.give_up_replay()
        self._connection.connection_lost(exc)
