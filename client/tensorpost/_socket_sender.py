"""HTTP/1.1 over TCP, TLS and Unix sockets: the fast way, received straight into its memory.

While a large body is being sent this module also listens. A server may refuse it after its head (413, 429) and read no
further, or hang up; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from ._connection_pool import Connection, ConnectionPool
from ._http1 import SMALL_BODY_BYTES, Request, ResponseHead, ResponseParser, encode_head
from ._origin import Origin
from ._runtime import READ, WRITE, Deadline, connect
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["Response", "Sender", "SocketResponse", "SocketSender"]
__all__ += ["broken", "certificate_refused", "connect_failed", "timed_out"]

_RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be received straight into their memory
_SSL_WANTS = {2: READ, 3: WRITE}  # errno of ssl.SSLWantReadError and ssl.SSLWantWriteError
Phase = Literal["read", "write"]
A = TypeVar("A")
R = TypeVar("R")


class Response(Protocol):
    """A response whose body is being received."""

    @property
    def head(self) -> ResponseHead: ...
    async def read_into(self, target: memoryview) -> int: ...
    async def close(self) -> None: ...


class Sender(Protocol):
    """A way to one server. Its network errors are `ConnectionProblem`s."""

    async def send(self, request: Request, deadline: Deadline) -> Response: ...
    async def close(self) -> None: ...


def timed_out(origin: Origin, phase: Phase) -> RequestTimeout:
    """The error of too long a wait; `extra["phase"]` says in which direction."""
    seconds = origin.timeout.read if phase == "read" else origin.timeout.write
    # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
    long = "too long" if seconds is None else f"{seconds:g} seconds"
    more = "" if phase == "read" else " and took no more of the request"
    return RequestTimeout(f"{origin} was silent for {long}{more}", extra={"phase": phase})


def broken(origin: Origin, phase: Phase, error: Exception) -> ConnectionProblem:
    """The error of a connection that failed; `extra["phase"]` says in which direction."""
    if isinstance(error, TimeoutError):
        return timed_out(origin, phase)
    said = str(error) or type(error).__name__
    return ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": phase})


def connect_failed(origin: Origin, said: str) -> ConnectFailed:
    """The error when no connection can be made."""
    return ConnectFailed(f"no connection to {origin}: {said}; is the server running, and is this its address?")


def certificate_refused(origin: Origin, error: ssl.SSLCertVerificationError) -> ConnectFailed:
    """The error of a certificate that is not trusted; a call with it is not repeated."""
    return ConnectFailed(
        f"the certificate of {origin} is not trusted: {error.verify_message}; if it should be, pass "
        "tls=ssl.create_default_context(cafile=...) with the certificate of who signed it",
        extra={"certificate": error.verify_message},
    )


class SocketSender:
    """Sockets to one server; the pool may be shared with senders to other servers."""

    def __init__(self, origin: Origin, pool: ConnectionPool) -> None:
        self._origin = origin
        self._pool = pool
        self._tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return "own sockets, " + ("TLS" if self._origin.scheme == "https" else "Unix" if self._origin.uds else "TCP")

    async def send(self, request: Request, deadline: Deadline) -> SocketResponse:
        """Send a request and wait for the head of its response.

        Raises:
            ConnectFailed: nobody listens there, or its certificate is not trusted.
            RequestTimeout: silence for longer than the timeout, no free connection, or the end of the call's time.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        origin, length = self._origin, request.content_length
        fields = (("content-length", str(length)),) if request.body else ()
        head = encode_head(request.method, origin.prefix + request.target, origin.fields, request.fields, fields)
        if length > SMALL_BODY_BYTES or request.report:
            return await self.exchange(request.method, head, _each(request.pieces()), deadline)
        return await self.exchange(request.method, b"".join((head, *request.body)), None, deadline)

    async def exchange(
        self, method: str, first: bytes, rest: AsyncIterable[memoryview] | None, deadline: Deadline
    ) -> SocketResponse:
        """Send the bytes of a request, and wait for the head of the response. Raises what `send` raises."""
        origin, pool = self._origin, self._pool
        connection = await pool.acquire(origin.address, origin.timeout.pool, deadline, tls=origin.scheme == "https")
        try:
            if connection is None:
                connection = await self._connect(deadline)
            response = SocketResponse(origin, pool, connection, method, deadline)
            await response.exchange(first, rest)
        except BaseException:
            if connection is not None:
                connection.sock.close()
            pool.release()
            raise
        return response

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        self._pool.close()

    async def _connect(self, deadline: Deadline) -> Connection:
        origin = self._origin
        try:
            sock = await connect(self._pool.runtime, origin.address, deadline.clip(origin.timeout.connect))
            try:
                if origin.uds is None:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return (
                    await self._secured(sock, deadline)
                    if origin.scheme == "https"
                    else Connection(origin.address, False, sock)
                )
            except BaseException:
                sock.close()
                raise
        except ConnectionProblem:
            raise  # the end of the call's time, or an untrusted certificate: they are OSErrors too
        except (OSError, UnicodeError) as error:  # timeouts, and names that do not resolve or are none, included
            deadline.clip(None)
            raise connect_failed(origin, str(error) or "no answer in time") from error

    async def _secured(self, sock: socket.socket, deadline: Deadline) -> Connection:
        import ssl

        self._tls = self._tls or _tls_context(self._origin.tls)
        blocked = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        secured = self._tls.wrap_socket(sock, server_hostname=self._origin.host, do_handshake_on_connect=False)
        try:
            while True:
                try:
                    secured.do_handshake()
                    return Connection(self._origin.address, True, secured, blocked)
                except blocked as error:
                    wait = deadline.clip(self._origin.timeout.connect)
                    if not await self._pool.runtime.wait(secured, _SSL_WANTS.get(error.errno or 0, READ), wait):
                        raise TimeoutError from None
        except BaseException as error:
            secured.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise certificate_refused(self._origin, error) from error
            raise


async def _each(pieces: Iterable[memoryview]) -> AsyncIterator[memoryview]:
    for piece in pieces:
        yield piece


def _tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext:
    """A caller's own context, or one with the usual certificates, or one without any verification."""
    import ssl

    if not isinstance(tls, bool):
        return tls
    cafile, capath = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if tls and not (cafile or capath):
        import certifi  # the usual ones: the same on every system, and those of httpx

        cafile = certifi.where()
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    if not tls:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class SocketResponse:
    """An exchange on a connection: the request while it is sent, then the response while its body is received.

    Attributes:
        parser: what is known of the response.
    """

    def __init__(
        self, origin: Origin, pool: ConnectionPool, connection: Connection, method: str, deadline: Deadline
    ) -> None:
        self.parser = ResponseParser(origin, method)
        self._origin, self._pool, self._runtime = origin, pool, pool.runtime
        self._generation = pool.generation
        self._connection: Connection | None = connection
        self._deadline = deadline
        self._sent_whole = False

    @property
    def head(self) -> ResponseHead:
        assert self.parser.head is not None
        return self.parser.head

    async def exchange(self, first: bytes, rest: AsyncIterable[memoryview] | None) -> None:
        """Send the request, as much of it as the server takes, and receive the head of the response."""
        connection, parser = self._open(), self.parser
        self._sent_whole = await self._send(connection, memoryview(first))
        if rest is not None and self._sent_whole:
            # What the caller's progress function raises comes out of `rest`, and is no error of the connection.
            async for piece in rest:
                self._sent_whole = await self._send(connection, piece)
                if not self._sent_whole:
                    break
        if parser.head is None and not connection.tls:  # it cannot be there yet; TLS may hold a part of it
            await self._wait(connection, READ, "read")
        while parser.head is None:
            parser.feed(await self._receive(connection, connection.sock.recv, _RECEIVE_BYTES))

    async def _send(self, connection: Connection, piece: memoryview) -> bool:
        """Send a piece; False if the server answered, or hung up, before it was sent."""
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
                events = READ | _SSL_WANTS.get(error.errno or 0, WRITE)
            except (BrokenPipeError, ConnectionResetError):
                return False  # it may have said why before it hung up; who reads the answer will see
            except OSError as error:
                raise broken(self._origin, "write", error) from error
            if await self._wait(connection, events, "write") & READ and self._has_answer(connection):
                return False
        return True

    def _has_answer(self, connection: Connection) -> bool:
        """Whether the head of the answer came while the request is being sent."""
        try:
            data = connection.sock.recv(_RECEIVE_BYTES)
        except connection.blocked:
            return False
        except OSError as error:
            raise broken(self._origin, "read", error) from error
        self.parser.feed(data)
        return self.parser.head is not None

    async def _wait(self, connection: Connection, events: int, phase: Phase) -> int:
        timeout = self._origin.timeout
        seconds = self._deadline.clip(timeout.read if phase == "read" else timeout.write)
        ready = await self._runtime.wait(connection.sock, events, seconds)
        if not ready:
            self._deadline.clip(None)
            raise timed_out(self._origin, phase)
        return ready

    async def _receive(self, connection: Connection, operation: Callable[[A], R], argument: A) -> R:
        """What `recv` or `recv_into` gives, once there is something."""
        while True:
            try:
                return operation(argument)
            except connection.blocked as error:
                events = _SSL_WANTS.get(error.errno or 0, READ)
            except OSError as error:
                raise broken(self._origin, "read", error) from error
            await self._wait(connection, events, "read")

    async def _receive_into(self, connection: Connection, target: memoryview) -> int:
        count = await self._receive(connection, connection.sock.recv_into, target)
        with contextlib.suppress(OSError):  # a record of TLS has 16 KiB at most; the next call meets what is wrong
            while connection.tls and 0 < count < len(target) and (more := connection.sock.recv_into(target[count:])):
                count += more
        return count

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the answer has been closed")
        if self._pool.generation != self._generation:
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
        connection, parser = self._open(), self.parser
        self._deadline.clip(None)
        while (count := parser.take(target)) is None:
            await self._runtime.give_turn()
            if straight := parser.straight(len(target)):
                count = await self._receive_into(connection, target[:straight])
                parser.received(count)
                return count
            parser.feed(await self._receive(connection, connection.sock.recv, _RECEIVE_BYTES))
        return count

    async def read(self, most: int) -> bytes:
        """Receive at most so many bytes; b"" at the end of the body. Raises what `read_into` raises."""
        connection, parser = self._open(), self.parser
        if straight := parser.straight(most):
            await self._runtime.give_turn()
            data = await self._receive(connection, connection.sock.recv, straight)
            parser.received(len(data))
            return data
        memory = memoryview(bytearray(most))
        return bytes(memory[: await self.read_into(memory)])

    async def close(self) -> None:
        """Keep the connection if the response was read to its end, close it otherwise."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        of_this_process = self._pool.generation == self._generation
        reusable = of_this_process and self._sent_whole and self.parser.reusable
        if not reusable:
            connection.sock.close()
        if of_this_process:  # otherwise the call is the other process'
            self._pool.release(connection if reusable else None)
