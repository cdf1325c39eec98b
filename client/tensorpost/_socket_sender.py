"""HTTP/1.1 over TCP, TLS and Unix sockets: the fast way, received straight into its memory.

While a large body is being sent this module also listens. A server may refuse it after its head (413, 429) and read no
further, or hang up; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from ._connection_pool import Connection, ConnectionPool
from ._http1 import Request, ResponseHead, ResponseParser, encode_request_head
from ._origin import Origin
from ._runtime import READ, WRITE, Deadline
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["Response", "Sender", "SocketResponse", "SocketSender", "broken", "certificate_refused", "timed_out"]

_RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be received straight into their memory
_SSL_WANTS = {2: READ, 3: WRITE}  # errno of ssl.SSLWantReadError and ssl.SSLWantWriteError


class Response(Protocol):
    """A response whose body is being received."""

    @property
    def head(self) -> ResponseHead: ...

    async def read_into(self, target: memoryview) -> int:
        """Receive some bytes into this memory; 0 at the end of the body."""
        ...

    async def close(self) -> None:
        """Let go of the connection; it is used again only if the body was read to its end."""
        ...


class Sender(Protocol):
    """A way to one server. Its network errors are `ConnectionProblem`s."""

    async def send(self, request: Request, deadline: Deadline) -> Response:
        """Send a request and wait for the head of its response."""
        ...

    async def close(self) -> None: ...


# ---- errors ----------------------------------------------------------------------------------------------------------


def timed_out(origin: Origin, phase: Literal["read", "write"]) -> RequestTimeout:
    """The error of a wait that was too long; `extra["phase"]` says in which direction."""
    seconds = origin.timeout.read if phase == "read" else origin.timeout.write
    # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
    long = "too long" if seconds is None else f"{seconds:g} seconds"
    more = "" if phase == "read" else " and took no more of the request"
    return RequestTimeout(f"{origin} was silent for {long}{more}", extra={"phase": phase})


def certificate_refused(origin: Origin, error: ssl.SSLCertVerificationError) -> ConnectFailed:
    """The error of a certificate that is not trusted; a call with it is not repeated."""
    return ConnectFailed(
        f"the certificate of {origin} is not trusted: {error.verify_message}; if it should be, pass "
        "tls=ssl.create_default_context(cafile=...) with the certificate of who signed it",
        extra={"certificate": error.verify_message},
    )


def broken(origin: Origin, phase: Literal["read", "write"], error: OSError) -> ConnectionProblem:
    """The error of a connection that failed; `extra["phase"]` says in which direction."""
    if isinstance(error, TimeoutError):
        return timed_out(origin, phase)
    said = error or type(error).__name__
    return ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": phase})


# ---- sending ---------------------------------------------------------------------------------------------------------


class SocketSender:
    """Sockets to one server.

    Args:
        origin: the server.
        pool: the connections; may be shared with senders to other servers.
    """

    def __init__(self, origin: Origin, pool: ConnectionPool) -> None:
        self.origin = origin
        self.pool = pool
        self._runtime = pool.runtime
        self._tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return "own sockets, " + ("TLS" if self.origin.scheme == "https" else "Unix" if self.origin.uds else "TCP")

    async def send(self, request: Request, deadline: Deadline) -> SocketResponse:
        """Send a request and wait for the head of its response.

        Raises:
            ConnectFailed: nobody listens there, or its certificate is not trusted.
            RequestTimeout: silence for longer than the timeout, no free connection, or the end of the call's time.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        fields = self.origin.fields
        if request.body:
            fields = (*fields, ("content-length", str(request.content_length)))
        target = self.origin.prefix + request.target
        head = encode_request_head(request.method, target, (*fields, *request.headers.items()))
        return await self.exchange(request.method, request.pieces(head), deadline)

    async def exchange(
        self, method: str, pieces: Iterable[memoryview] | AsyncIterable[memoryview], deadline: Deadline
    ) -> SocketResponse:
        """Send a head and a body, and wait for the head of the response. Raises what `send` raises."""
        origin, pool = self.origin, self.pool
        tls = origin.scheme == "https"
        connection = await pool.acquire(origin.address, origin.timeout.pool, deadline, tls=tls)
        try:
            if connection is None:
                connection = await self._connect(deadline)
            response = SocketResponse(origin, pool, connection, method, deadline)
            await response.exchange(pieces)
        except BaseException:
            if connection is not None:
                connection.sock.close()
            pool.release()
            raise
        return response

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        self.pool.close()

    # ---- connecting --------------------------------------------------------------------------------------------------

    async def _connect(self, deadline: Deadline) -> Connection:
        origin = self.origin
        try:
            sock = await self._runtime.connect(origin.address, deadline.clip(origin.timeout.connect))
            try:
                if origin.uds is None:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if origin.scheme == "https":
                    return await self._handshake(sock, deadline)
            except BaseException:
                sock.close()
                raise
            return Connection(origin.address, False, sock)
        except ConnectionProblem:
            raise  # the end of the call's time, or an untrusted certificate: they are OSErrors too
        except (OSError, UnicodeError) as error:  # timeouts, and names that do not resolve or are none, included
            if isinstance(error, TimeoutError):
                deadline.clip(None)
            said = str(error) or "no answer in time"
            raise ConnectFailed(
                f"no connection to {origin}: {said}; is the server running, and is this its address?"
            ) from error

    async def _handshake(self, sock: socket.socket, deadline: Deadline) -> Connection:
        import ssl

        if self._tls is None:
            self._tls = _tls_context(self.origin.tls)
        blocked = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        secured = self._tls.wrap_socket(sock, server_hostname=self.origin.host, do_handshake_on_connect=False)
        try:
            while True:
                try:
                    secured.do_handshake()
                    return Connection(self.origin.address, True, secured, blocked)
                except blocked as error:
                    wait = deadline.clip(self.origin.timeout.connect)
                    if not await self._runtime.wait(secured, _SSL_WANTS.get(error.errno or 0, READ), wait):
                        raise TimeoutError from None
        except ssl.SSLCertVerificationError as error:
            secured.close()
            raise certificate_refused(self.origin, error) from error
        except BaseException:
            secured.close()
            raise


def _tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext:
    """A caller's own context, or one with the usual certificates, or one without any verification."""
    import os
    import ssl

    if isinstance(tls, ssl.SSLContext):
        return tls
    cafile, capath = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if tls and not (cafile or capath):
        import certifi  # the usual ones: the same on every system, and those of httpx

        cafile = certifi.where()
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    if not tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# ---- an exchange -----------------------------------------------------------------------------------------------------


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

    async def exchange(self, pieces: Iterable[memoryview] | AsyncIterable[memoryview]) -> None:
        """Send the pieces and receive the head."""
        connection = self._open()
        self._sent_whole = await self._send(connection, pieces)
        if self.parser.head is None and not connection.tls:  # it cannot be there yet; TLS may hold a part of it
            await self._wait(connection, READ, "read")
        while self.parser.head is None:
            self.parser.feed(await self._receive(connection, _RECEIVE_BYTES))

    async def _send(self, connection: Connection, pieces: Iterable[memoryview] | AsyncIterable[memoryview]) -> bool:
        """Send; False if the server answered, or hung up, before everything was sent."""
        # What the caller's progress function raises comes out of `pieces`, and is no error of the connection.
        if isinstance(pieces, AsyncIterable):
            async for piece in pieces:
                if not await self._send_piece(connection, piece):
                    return False
        else:
            for piece in pieces:
                if not await self._send_piece(connection, piece):
                    return False
        return True

    async def _send_piece(self, connection: Connection, piece: memoryview) -> bool:
        if len(piece) > _RECEIVE_BYTES:
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
                events = _SSL_WANTS.get(error.errno or 0, WRITE) | READ
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

    async def _wait(self, connection: Connection, events: int, phase: Literal["read", "write"]) -> int:
        timeout = self._origin.timeout
        wait = self._deadline.clip(timeout.read if phase == "read" else timeout.write)
        ready = await self._runtime.wait(connection.sock, events, wait)
        if not ready:
            self._deadline.clip(None)
            raise timed_out(self._origin, phase)
        return ready

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def _receive(self, connection: Connection, most: int) -> bytes:
        while True:
            try:
                return connection.sock.recv(most)
            except connection.blocked as error:
                events = _SSL_WANTS.get(error.errno or 0, READ)
            except OSError as error:
                raise broken(self._origin, "read", error) from error
            await self._wait(connection, events, "read")

    async def _receive_into(self, connection: Connection, target: memoryview) -> int:
        while True:
            try:
                count = connection.sock.recv_into(target)
                break
            except connection.blocked as error:
                events = _SSL_WANTS.get(error.errno or 0, READ)
            except OSError as error:
                raise broken(self._origin, "read", error) from error
            await self._wait(connection, events, "read")
        if connection.tls:  # a record has 16 KiB at most: take all that came
            with contextlib.suppress(OSError):  # the next call meets it again
                while count < len(target) and (more := connection.sock.recv_into(target[count:])):
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
        """Receive some bytes into this memory; 0 at the end of the body.

        Raises:
            RequestTimeout: silence for longer than the timeout, or the end of the call's time.
            ConnectionProblem: the connection broke before the end of the body.
            RuntimeError: the response was closed, or is of the process that this one was forked from.
        """
        connection = self._open()
        await self._runtime.give_turn()
        self._deadline.clip(None)
        while (count := self.parser.take(target)) is None:
            straight = self.parser.straight(target)
            if straight is not None:
                count = await self._receive_into(connection, straight)
                self.parser.received(count)
                return count
            self.parser.feed(await self._receive(connection, _RECEIVE_BYTES))
        return count

    async def read(self, most: int) -> bytes:
        """Receive at most so many bytes; b"" at the end of the body. Raises what `read_into` raises."""
        memory = bytearray(most)
        count = await self.read_into(memoryview(memory))
        return bytes(memory[:count])

    async def close(self) -> None:
        """Keep the connection if the response was read to its end, close it otherwise."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pool.generation != self._generation:
            connection.sock.close()  # this process' descriptor; connection and place are the other's
            return
        reusable = self._sent_whole and self.parser.reusable
        if not reusable:
            connection.sock.close()
        self._pool.release(connection if reusable else None)
