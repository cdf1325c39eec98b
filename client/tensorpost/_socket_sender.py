"""HTTP/1.1 over our own sockets: the fast way, received straight into its memory.

While a large body is being sent this module also listens. A server may refuse it after its head (413, 429) and read no
further, or close the connection; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from ._connection import SSL_WANTS, Connection, ConnectionPool, connect, tls_context
from ._http1 import SMALL_BODY_BYTES, Request, ResponseParser, encode_head
from ._options import Limits
from ._origin import Origin
from ._runtime import READ, WRITE, Deadline, Runtime
from .problems import ConnectionProblem, RequestTimeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["SocketResponse", "SocketSender", "broken", "timed_out"]

_RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be received straight into their memory
Direction: TypeAlias = Literal["read", "write"]
A = TypeVar("A")
R = TypeVar("R")


def timed_out(origin: Origin, direction: Direction) -> RequestTimeout:
    """The error of too long a wait."""
    seconds = origin.timeout.read if direction == "read" else origin.timeout.write
    # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
    long = "too long" if seconds is None else f"{seconds:g} seconds"
    more = "" if direction == "read" else " and took no more of the request"
    return RequestTimeout(f"{origin} was silent for {long}{more}", extra={"phase": direction})


def broken(origin: Origin, direction: Direction, error: Exception) -> ConnectionProblem:
    """The error of a connection that failed."""
    if isinstance(error, TimeoutError):
        return timed_out(origin, direction)
    said = str(error) or type(error).__name__
    return ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": direction})


class SocketSender:
    """Sends requests to one server."""

    def __init__(self, origin: Origin, limits: Limits, runtime: Runtime) -> None:
        self.origin, self.runtime = origin, runtime
        self.pool = ConnectionPool(runtime, limits)

    def __str__(self) -> str:
        return "own sockets, " + ("TLS" if self.origin.scheme == "https" else "Unix" if self.origin.uds else "TCP")

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return tls_context(self.origin.tls) if self.origin.scheme == "https" else None

    async def send(self, request: Request, deadline: Deadline) -> SocketResponse:
        """Send a request and wait for the head of its response.

        Raises:
            ConnectFailed: no server listens there, or its certificate is not trusted.
            RequestTimeout: silence for longer than the timeout, no free connection, or the end of the call's time.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        origin, length = self.origin, request.content_length
        fields = (("content-length", str(length)),) if request.body else ()
        first = encode_head(request.method, origin.prefix + request.target, origin.fields, request.fields, fields)
        rest: Iterable[memoryview] = request.pieces()
        if length <= SMALL_BODY_BYTES and not request.report:
            first, rest = b"".join((first, *request.body)), ()
        connection = await self.pool.acquire(origin.timeout.pool, deadline)
        try:
            if connection is None:
                connection = await connect(origin, self.runtime, deadline, self._tls)
            response = SocketResponse(self, connection, deadline)
            await response.exchange(first, rest)
        except BaseException:
            self.pool.release(connection)
            raise
        return response

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        self.pool.close()


class SocketResponse:
    """An exchange on a connection: the request while it is sent, then the response while its body is received."""

    def __init__(self, sender: SocketSender, connection: Connection, deadline: Deadline) -> None:
        self._origin, self._pool, self._runtime = sender.origin, sender.pool, sender.runtime
        self._parser = ResponseParser(sender.origin)
        self._connection: Connection | None = connection
        self._deadline = deadline
        self._sent_whole = False
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def exchange(self, first: bytes, rest: Iterable[memoryview]) -> None:
        """Send the request, as much of it as the server takes, and receive the head of the response."""
        connection, parser = self._open(), self._parser
        # What the caller's progress function raises comes out of `rest`, and is no error of the connection.
        for piece in chain((memoryview(first),), rest):
            self._sent_whole = await self._send(connection, piece)
            if not self._sent_whole:
                break
        if not parser.status and not connection.is_tls:  # it cannot be there yet; TLS may hold a part of it
            await self._wait(connection, READ, "read")
        while not parser.status:
            parser.feed(await self._receive(connection, connection.sock.recv, _RECEIVE_BYTES))
        self.status, self.headers = parser.status, parser.headers

    async def _send(self, connection: Connection, piece: memoryview) -> bool:
        """Send a piece; False if the server answered, or closed the connection, before it was sent."""
        if len(piece) > SMALL_BODY_BYTES:
            await self._runtime.give_turn()
            if self._has_answer(connection):
                return False
        while piece:
            events = READ | WRITE
            try:
                piece = piece[connection.sock.send(piece) :]
                if not piece:
                    break
            except connection.blocked as error:
                events = READ | SSL_WANTS.get(error.errno or 0, WRITE)
            except (BrokenPipeError, ConnectionResetError):
                return False  # the server may have said why before: reading the answer will show
            except OSError as error:
                raise broken(self._origin, "write", error) from error
            if await self._wait(connection, events, "write") & READ and self._has_answer(connection):
                return False
        return True

    def _has_answer(self, connection: Connection) -> bool:
        """Whether the head of the answer came while the request is being sent."""
        try:
            self._parser.feed(connection.sock.recv(_RECEIVE_BYTES))
        except connection.blocked:
            return False
        except OSError as error:
            raise broken(self._origin, "read", error) from error
        return self._parser.status > 0

    async def _wait(self, connection: Connection, events: int, direction: Direction) -> int:
        timeout = self._origin.timeout
        seconds = self._deadline.clip(timeout.read if direction == "read" else timeout.write)
        ready = await self._runtime.wait(connection.sock, events, seconds)
        if not ready:
            self._deadline.clip(None)
            raise timed_out(self._origin, direction)
        return ready

    async def _receive(self, connection: Connection, operation: Callable[[A], R], argument: A) -> R:
        """What `recv` or `recv_into` gives, once there is something."""
        while True:
            try:
                return operation(argument)
            except connection.blocked as error:
                events = SSL_WANTS.get(error.errno or 0, READ)
            except OSError as error:
                raise broken(self._origin, "read", error) from error
            await self._wait(connection, events, "read")

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the answer has been closed")
        if self._connection.process != os.getpid():
            raise RuntimeError(
                "this answer is of the process that asked for it, and this one was forked from that; ask again here"
            )
        return self._connection

    async def read_into(self, target: memoryview) -> int:
        """Receive some bytes of the body into this memory; 0 at its end.

        Raises:
            RequestTimeout: silence for longer than the timeout, or the end of the call's time.
            ConnectionProblem: the connection broke before the end of the body.
            RuntimeError: the response was closed, or is of the process that this one was forked from.
        """
        connection, parser = self._open(), self._parser
        self._deadline.clip(None)
        while (count := parser.take(target)) is None:
            await self._runtime.give_turn()
            if straight := parser.straight(len(target)):
                target = target[:straight]
                count = await self._receive(connection, connection.sock.recv_into, target)
                with contextlib.suppress(OSError):  # a record of TLS has 16 KiB; the next call meets what is wrong
                    while (
                        connection.is_tls
                        and 0 < count < straight
                        and (more := connection.sock.recv_into(target[count:]))
                    ):
                        count += more
                parser.received(count)
                return count
            parser.feed(await self._receive(connection, connection.sock.recv, _RECEIVE_BYTES))
        return count

    async def close(self) -> None:
        """Keep the connection if the response was read to its end, close it otherwise."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection, reusable=self._sent_whole and self._parser.reusable)
