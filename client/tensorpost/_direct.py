"""Blocking HTTP/1.1 over a plain or a Unix socket, with tensor bytes copied once: between the socket and their array.

The standard library's client reads straight into memory it is given (`HTTPResponse.readinto`), which httpx cannot:
there each byte passes through three buffers first. Proxies and TLS are left to httpx (`_transport.py`).

While a body is being sent this module also listens. A server may refuse a large body after its head (413, 429) and read
no further; the answer is then taken at once, instead of when a send has failed or timed out.
"""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from ._exchange import AnswerHead, Request
from ._origin import Origin
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

__all__ = ["DirectAnswer", "DirectTransport"]

CLOSED = "the client has been closed; make a new one"
_SMALL_PIECE_BYTES = 1 << 16
_MOST_IDLE = 16  # connections kept for reuse; a client with more threads than that opens some anew

# Neither takes a file descriptor of its own, as epoll would. select() is the only one on Windows, where it has no
# highest descriptor.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class _Connection(http.client.HTTPConnection):
    """A connection that keeps a request's head until its body begins, so that a small request is one packet."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin.host, origin.port, timeout=origin.connect_timeout)
        self._uds = origin.uds
        self._head = b""

    def connect(self) -> None:
        if self._uds is None:
            super().connect()
        else:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._uds)

    def send(self, data: Any) -> None:
        """Called by the base class with the head, and by nobody else."""
        self._head += data

    def take_head(self) -> bytes:
        head, self._head = self._head, b""
        return head


class DirectAnswer:
    """An answer whose body is still in the socket."""

    def __init__(
        self,
        transport: DirectTransport,
        connection: _Connection,
        response: http.client.HTTPResponse,
        *,
        reusable: bool,
    ) -> None:
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            before = headers.get(name.lower())
            headers[name.lower()] = value if before is None else f"{before}, {value}"
        self.head = AnswerHead(response.status, headers)
        self._transport = transport
        self._connection = connection
        self._response = response
        self._reusable = reusable

    def read_into(self, into: memoryview) -> int:
        """Fill this memory, or what is left of the body if that is less; 0 at the end.

        Raises:
            RequestTimeout: silence for longer than the timeout.
            ConnectionProblem: the connection broke.
        """
        with _mapped_errors(self._transport.origin):
            return self._response.readinto(into)

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, drop it otherwise."""
        if self._response.isclosed() and self._reusable:
            self._transport.keep(self._connection)
        else:
            self._response.close()
            self._connection.close()


class DirectTransport:
    """Connections to one server, kept open between requests. May be used by several threads at once."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def send(self, request: Request) -> DirectAnswer:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectFailed: nobody listens there.
            RequestTimeout: silence for longer than the timeout.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        connection = self._reuse() or self._connect()
        try:
            whole = self._write(connection, request)
            with _mapped_errors(self.origin):
                response = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        kept_open = connection.sock is not None
        return DirectAnswer(self, connection, response, reusable=whole and kept_open)

    def keep(self, connection: _Connection) -> None:
        """Take back a connection on which nothing is outstanding."""
        if self._closed or len(self._idle) >= _MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _reuse(self) -> _Connection | None:
        while True:
            try:
                connection = self._idle.pop()  # the one used last is the least likely to have been closed
            except IndexError:
                return None
            with _Selector() as selector:
                selector.register(connection.sock, selectors.EVENT_READ)
                if not selector.select(0):
                    return connection
            connection.close()  # readable without a request: the server has hung up

    def _connect(self) -> _Connection:
        origin = self.origin
        connection = _Connection(origin)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise ConnectFailed(
                f"no connection to {origin}: {error or type(error).__name__}; is the server running, and is this its "
                "address?"
            ) from error
        connection.sock.settimeout(origin.timeout)
        return connection

    def _write(self, connection: _Connection, request: Request) -> bool:
        """Send the request; False if the server answered or hung up before all of it was sent."""
        connection.putrequest(request.method, self.origin.prefix + request.target, skip_accept_encoding=True)
        for name, value in {**self.origin.headers, **request.headers}.items():
            connection.putheader(name, value)
        if request.body:
            connection.putheader("content-length", str(request.content_length))
        connection.endheaders()
        # What the caller's progress function raises comes out of `pieces`, and is no error of the connection.
        pieces = _with_head(connection.take_head(), request.pieces())
        with _Selector() as selector:
            selector.register(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return all(self._write_piece(connection.sock, selector, piece) for piece in pieces)

    def _write_piece(self, sock: socket.socket, selector: selectors.BaseSelector, piece: memoryview) -> bool:
        with _mapped_errors(self.origin):
            while piece:
                ready = selector.select(self.origin.timeout)
                if not ready:
                    raise TimeoutError("the server stopped reading")
                if ready[0][1] & selectors.EVENT_READ:
                    return False  # nothing but an early answer, or its end, can come from a server at this point
                try:
                    piece = piece[sock.send(piece) :]
                except (BrokenPipeError, ConnectionResetError):
                    return False  # it may have said why before it hung up; the reader of the answer will see
        return True


def _with_head(head: bytes, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """The head, joined to a first piece that is small, and the pieces."""
    first = next(pieces, memoryview(b""))
    if len(first) <= _SMALL_PIECE_BYTES:
        yield memoryview(head + first)
    else:
        yield memoryview(head)
        yield first
    yield from pieces


@contextlib.contextmanager
def _mapped_errors(origin: Origin) -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeout(f"{origin} {origin.silence}") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
            detail = f"{origin} closed the connection without an answer"
        elif isinstance(error, http.client.HTTPException):
            detail = f"what answered at {origin} does not speak HTTP/1.1 ({type(error).__name__}: {str(error)[:100]})"
        else:
            detail = f"the connection to {origin} failed: {error}"
        raise ConnectionProblem(detail) from error
