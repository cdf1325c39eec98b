"""Plain HTTP over TCP or Unix sockets, blocking: the fast way. TLS and proxies are httpx's business.

While a large body is being sent this transport also listens. A server may refuse it after its head (413, 429) and read
no further, or hang up; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Generator, Iterable, Iterator
from typing import Literal

from ._http1 import HttpExchange, exchange_of
from ._origin import Origin
from ._pool import Pool
from ._steps import AnswerHead, Request
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

__all__ = [
    "ANSWER_CLOSED",
    "ANSWER_FORKED",
    "RECEIVE_BYTES",
    "SMALL_PIECE_BYTES",
    "SocketAnswer",
    "SocketTransport",
    "connecting",
    "talking",
    "with_head",
]

ANSWER_CLOSED = "the answer has been closed"
ANSWER_FORKED = "this answer is of the process that asked for it, and this one was forked from that; ask again here"
RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be read straight into their memory
SMALL_PIECE_BYTES = 1 << 16  # goes out in one send together with the head

# Neither takes a file descriptor of its own, as epoll would. select() is the only one on Windows, where it has no
# highest descriptor.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


# ---- shared with asyncio's side --------------------------------------------------------------------------------------


def with_head(head: bytes, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """The head, joined to a first piece that is small, and the other pieces."""
    rest = iter(pieces)
    first = next(rest, memoryview(b""))
    if len(first) <= SMALL_PIECE_BYTES:
        yield memoryview(head + first)
    else:
        yield memoryview(head)
        yield first
    yield from rest


@contextlib.contextmanager
def connecting(origin: Origin) -> Generator[None]:
    """Failures while a connection is made, as ours."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # timeouts, and names that do not resolve or are none, included
        said = str(error) or "no answer in time"
        raise ConnectFailed(
            f"no connection to {origin}: {said}; is the server running, and is this its address?"
        ) from error


@contextlib.contextmanager
def talking(origin: Origin, phase: Literal["read", "write"]) -> Generator[None]:
    """Failures of a connection, as ours; `extra["phase"]` says in which direction."""
    try:
        yield
    except TimeoutError as error:
        seconds = origin.timeout.read if phase == "read" else origin.timeout.write
        # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
        long = "too long" if seconds is None else f"{seconds:g} seconds"
        more = "" if phase == "read" else " and took no more of the request"
        raise RequestTimeout(f"{origin} was silent for {long}{more}", extra={"phase": phase}) from error
    except OSError as error:
        said = error or type(error).__name__
        raise ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": phase}) from error


# ---- blocking --------------------------------------------------------------------------------------------------------


class SocketTransport:
    """Blocking sockets to one server. May be used by several threads at once.

    Args:
        origin: the server.
        pool: the connections; may be shared with transports to other servers.
    """

    def __init__(self, origin: Origin, pool: Pool) -> None:
        self.origin = origin
        self.pool = pool

    def __str__(self) -> str:
        return "own sockets, " + ("TCP" if self.origin.uds is None else "Unix")

    def send(self, request: Request) -> SocketAnswer:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectFailed: nobody listens there.
            RequestTimeout: silence for longer than the timeout, or no free connection.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        return self.exchange(exchange_of(self.origin, request), request.pieces())

    def exchange(self, exchange: HttpExchange, pieces: Iterable[memoryview]) -> SocketAnswer:
        """Send a head and the pieces of its body, and wait for the head of the answer. Raises what `send` raises."""
        origin = self.origin
        self.pool.admit(origin.timeout.pool)
        sock = None
        try:
            sock = self.pool.take(origin.address) or self._connect()
            sock.settimeout(origin.timeout.read)
            sent_whole = self._write(sock, with_head(exchange.request_head, pieces))
            while exchange.head is None:
                with talking(origin, "read"):
                    data = sock.recv(RECEIVE_BYTES)
                exchange.feed(data)
        except BaseException:
            if sock is not None:
                sock.close()
            self.pool.release(origin.address)
            raise
        return SocketAnswer(self, sock, exchange, exchange.head, sent_whole=sent_whole)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        self.pool.close()

    def _connect(self) -> socket.socket:
        origin = self.origin
        with connecting(origin):
            if origin.uds is None:
                sock = socket.create_connection((origin.host, origin.port), origin.timeout.connect)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(origin.timeout.connect)
                sock.connect(origin.uds)
            except BaseException:
                sock.close()
                raise
            return sock

    def _write(self, sock: socket.socket, pieces: Iterator[memoryview]) -> bool:
        """Send; False if the server answered or hung up before everything was sent."""
        with _Selector() as selector:
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            # What the caller's progress function raises comes out of `pieces`, and is no error of the connection.
            return all(self._write_piece(sock, selector, piece) for piece in pieces)

    def _write_piece(self, sock: socket.socket, selector: selectors.BaseSelector, piece: memoryview) -> bool:
        with talking(self.origin, "write"):
            while piece:
                ready = selector.select(self.origin.timeout.write)
                if not ready:
                    raise TimeoutError("the server stopped reading")
                if ready[0][1] & selectors.EVENT_READ:
                    return False  # nothing but an early answer, or the end, can come from a server at this point
                try:
                    piece = piece[sock.send(piece) :]
                except (BrokenPipeError, ConnectionResetError):
                    return False  # it may have said why before it hung up; who reads the answer will see
        return True


class SocketAnswer:
    """An answer whose body is still in the socket."""

    def __init__(
        self,
        transport: SocketTransport,
        sock: socket.socket,
        exchange: HttpExchange,
        head: AnswerHead,
        *,
        sent_whole: bool,
    ) -> None:
        self.head = head
        self.exchange = exchange
        self._transport = transport
        self._generation = transport.pool.generation
        self._sock: socket.socket | None = sock
        self._sent_whole = sent_whole

    def _open(self) -> socket.socket:
        if self._sock is None:
            raise RuntimeError(ANSWER_CLOSED)
        if self._transport.pool.generation != self._generation:
            raise RuntimeError(ANSWER_FORKED)
        return self._sock

    def read_into(self, into: memoryview) -> int:
        """Receive some bytes into this memory; 0 at the end of the body, or of the connection.

        Raises:
            RuntimeError: the answer was closed, or asked for by the process that this one was forked from.
        """
        sock = self._open()
        while (count := self.exchange.take(into)) is None:
            target = self.exchange.straight(into)
            with talking(self._transport.origin, "read"):
                if target is not None:
                    count = sock.recv_into(target)
                    self.exchange.received_straight(count)
                    return count
                data = sock.recv(RECEIVE_BYTES)
            self.exchange.feed(data)
        return count

    def read(self, most: int) -> bytes:
        """Receive at most so many bytes; b"" at the end of the body, or of the connection."""
        sock, left = self._open(), self.exchange.left
        if left is None or self.exchange.waiting:
            memory = memoryview(bytearray(most))
            return bytes(memory[: self.read_into(memory)])
        if left == 0:
            return b""
        with talking(self._transport.origin, "read"):
            data = sock.recv(min(most, left))
        self.exchange.received_straight(len(data))
        return data

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, drop it otherwise."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._transport.pool.generation != self._generation:
            sock.close()  # this process' descriptor; connection and place are the other's
            return
        reusable = self.exchange.reusable and self._sent_whole
        if not reusable:
            sock.close()
        self._transport.pool.release(self._transport.origin.address, sock if reusable else None)
