"""HTTP/1.1 over our own sockets: the fast way, received straight into its memory.

While a large body is being sent this module also listens. A server may refuse it after its head (413, 429) and read no
further, or close the connection; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from ..network.connection import Connection, awaited, broken, connect, tls_context
from ..network.connection_pool import ConnectionPool
from ..network.deadline import Deadline
from ..network.options import Limits
from ..network.origin import Origin
from ..network.runtime import READ, WRITE
from ..values.problems import ConnectionProblem
from . import http1
from .response import Response

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

_RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be received straight into their memory
A = TypeVar("A")
R = TypeVar("R")


class SocketSender:
    """Sends requests to one server."""

    def __init__(self, origin: Origin, limits: Limits) -> None:
        self._origin, self._pool = origin, ConnectionPool(limits)

    def __str__(self) -> str:
        return "own sockets, " + ("TLS" if self._origin.scheme == "https" else "Unix" if self._origin.uds else "TCP")

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return tls_context(self._origin.tls) if self._origin.scheme == "https" else None

    async def send(self, request: http1.Request, deadline: Deadline) -> SocketResponse:
        """Send a request and wait for the head of its response.

        Raises:
            ConnectFailed: no server listens there, or its certificate is not trusted.
            RequestTimeout: silence for longer than the timeout, no free connection, or the end of the call's time.
            ConnectionProblem: the connection broke before there was an answer, or what came is not HTTP.
        """
        head = request.head(self._origin)
        connection = await self._pool.acquire(deadline)
        try:
            if connection is None:
                connection = await connect(deadline, self._tls)
            response = SocketResponse(request, self._pool, connection, deadline)
            await response.exchange(head)
        except BaseException:
            self._pool.release(connection)
            raise
        return response

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        self._pool.close()


class SocketResponse(Response):
    """An exchange on a connection: the request while it is sent, then the response while its body is received.

    Bytes of a body that were not received together with what is before them go from the socket straight into the
    memory of `read_into`, so that those of a tensor are copied once.
    """

    def __init__(
        self, request: http1.Request, pool: ConnectionPool, connection: Connection, deadline: Deadline
    ) -> None:
        super().__init__(request)
        self._pool, self._connection, self._deadline = pool, connection, deadline
        self._buffer = b""  # what was received, and not yet used
        self._left: int = 0  # bytes of the body, or of the current chunk
        self._is_chunked = self._until_close = self._keep_alive = self._sent_whole = False

    # ---- the request, and the head of the response -------------------------------------------------------------------

    async def exchange(self, head: bytes) -> None:
        """Send the request, as much of it as the server takes, and receive the head of the response."""
        # What the caller's progress function raises comes out of `pieces`, and is not an error of the connection.
        for piece in self._request.pieces(head):
            self._sent_whole = await self._send(piece)
            if not self._sent_whole:
                break
        if not self.status and not self._connection.is_tls:  # it cannot be there yet; TLS may hold a part of it
            await self._deadline.wait(self._connection.sock, READ, "read")
        while not self.status:
            self._use_head(await self._receive(self._connection.sock.recv, _RECEIVE_BYTES))

    async def _send(self, piece: memoryview) -> bool:
        """Send a piece; False if the server answered, or closed the connection, before it was sent."""
        if len(piece) > http1.SMALL_BODY_BYTES and self._has_answer():
            return False
        while piece:
            if len(piece) > http1.SMALL_BODY_BYTES:
                await self._deadline.runtime.give_turn()
            try:
                piece = piece[self._connection.sock.send(piece) :]
                continue  # TLS takes a record of 16 KiB at a time
            except (BrokenPipeError, ConnectionResetError):
                return False  # the server may have said why before: reading the answer will show
            except OSError as error:
                events = awaited(error, WRITE)
                if not events:
                    raise broken(self._deadline, "write", error) from error
            ready = await self._deadline.wait(self._connection.sock, events | READ, "write")
            if ready & READ and self._has_answer():
                return False
        return True

    def _has_answer(self) -> bool:
        """Whether the head of the answer came while the request is being sent."""
        try:
            self._use_head(self._connection.sock.recv(_RECEIVE_BYTES))
        except OSError as error:
            if not awaited(error, READ):
                raise broken(self._deadline, "read", error) from error
        return self.status > 0

    def _use_head(self, data: bytes) -> None:
        """Parse received bytes as a part of the response's head."""
        self._buffer += data
        head = http1.read_head(self._buffer, self._deadline.origin)
        if head is not None:
            self.status, self.headers, self._keep_alive = head.status, head.headers, head.keep_alive
            self._until_close, self._is_chunked = head.body_bytes == http1.UNTIL_CLOSE, head.body_bytes is None
            self._left = head.body_bytes or 0
            # Before the first chunk as before the others there is the end of a line.
            self._buffer = (b"\r\n" if self._is_chunked else b"") + self._buffer[head.head_bytes :]
        elif not data:
            raise self._ended()

    # ---- the body ----------------------------------------------------------------------------------------------------

    async def read_into(self, target: memoryview) -> int:
        if self._connection.is_inherited:
            raise RuntimeError(
                "this answer is of the process that asked for it, and this one was forked from that; ask again here"
            )
        self._deadline.check()
        if self._is_chunked and not self._left:
            await self._begin_chunk()
        target = target[: self._left]
        if not target:
            return 0
        if count := min(len(self._buffer), len(target)):
            target[:count] = self._buffer[:count]
            self._buffer = self._buffer[count:]
        else:
            await self._deadline.runtime.give_turn()
            count = await self._receive(self._connection.sock.recv_into, target)
            if self._connection.is_tls and count:
                count += self._more_records(target[count:])
            if not count and not self._until_close:
                raise self._ended()
        self._left = self._left - count if count else 0
        return count

    def _more_records(self, target: memoryview) -> int:
        """What TLS has beyond its first record, of at most 16 KiB; the next call meets what is wrong."""
        count = 0
        with contextlib.suppress(OSError):
            while count < len(target) and (more := self._connection.sock.recv_into(target[count:])):
                count += more
        return count

    async def _begin_chunk(self) -> None:
        """Read to the data of the next chunk, or to the end of the body."""
        origin = self._deadline.origin
        if await self._line():
            raise http1.no_http(origin, "its answer has a chunk longer than it says")
        size = http1.CHUNK_LINE.fullmatch(await self._line())
        if size is None:
            raise http1.no_http(origin, "its answer has a malformed chunk")
        self._left, trailers = int(size[1], 16), 0
        while not self._left and (line := await self._line()):
            trailers += len(line)
            if trailers > http1.MOST_HEAD_BYTES or not http1.TRAILER.fullmatch(line):
                raise http1.no_http(origin, "its answer has malformed trailers")
        self._is_chunked = self._left > 0

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > http1.MOST_HEAD_BYTES:
                raise http1.no_http(self._deadline.origin, "its answer has a chunk with too long a line")
            await self._deadline.runtime.give_turn()
            data = await self._receive(self._connection.sock.recv, _RECEIVE_BYTES)
            if not data:
                raise self._ended()
            self._buffer += data
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _ended(self) -> ConnectionProblem:
        if not self.status:
            return http1.no_answer(self._deadline.origin)
        return ConnectionProblem(f"{self._deadline.origin} closed the connection before the end of its answer")

    async def close(self) -> None:
        if self._connection.is_inherited:
            self._connection.sock.close()  # this process' descriptor; the call is the other process'
            return
        read_whole = not (self._left or self._is_chunked or self._buffer)
        self._pool.release(self._connection, reusable=self._keep_alive and self._sent_whole and read_whole)

    async def _receive(self, operation: Callable[[A], R], argument: A) -> R:
        """Wait until the socket is readable; return what `recv` or `recv_into` returns."""
        while True:
            try:
                return operation(argument)
            except OSError as error:
                events = awaited(error, READ)
                if not events:
                    raise broken(self._deadline, "read", error) from error
            await self._deadline.wait(self._connection.sock, events, "read")
