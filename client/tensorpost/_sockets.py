"""Plain HTTP over TCP or Unix sockets, blocking and for asyncio: the fast way. TLS and proxies are httpx's business.

While a large body is being sent these transports also listen. A server may refuse it after its head (413, 429) and read
no further, or hang up; its answer is then taken at once, and not lost to a failed or endless send.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Awaitable, Generator, Iterator
from typing import TypeVar

from ._exchange import AnswerHead, Request
from ._http1 import HttpExchange
from ._origin import CLOSED, Origin
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

__all__ = ["AsyncSocketTransport", "SocketTransport"]

T = TypeVar("T")
_RECEIVE_BYTES = 1 << 16  # of heads, and of bodies that cannot be read straight into their memory
_SMALL_PIECE_BYTES = 1 << 16  # goes out in one send together with the head
_MOST_IDLE = 16  # connections kept for reuse; who has more calls at the same time opens some anew

# Neither takes a file descriptor of its own, as epoll would. select() is the only one on Windows, where it has no
# highest descriptor.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


# ---- shared ----------------------------------------------------------------------------------------------------------


class _IdleConnections:
    """Connections on which nothing is outstanding. May be used by several threads at once."""

    def __init__(self) -> None:
        self._sockets: deque[socket.socket] = deque()
        self._closed = False

    def take(self) -> socket.socket | None:
        """A connection that the server has not closed; None if there is none.

        Raises:
            RuntimeError: the client was closed.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        while True:
            try:
                sock = self._sockets.pop()  # the one used last is the least likely to have been closed
            except IndexError:
                return None
            with _Selector() as selector:
                selector.register(sock, selectors.EVENT_READ)
                if not selector.select(0):
                    return sock
            sock.close()  # readable without a request: the server has hung up

    def keep(self, sock: socket.socket) -> None:
        """Take a connection back."""
        if self._closed or len(self._sockets) >= _MOST_IDLE:
            sock.close()
        else:
            self._sockets.append(sock)

    def close(self) -> None:
        self._closed = True
        while self._sockets:
            self._sockets.pop().close()


def _pieces(head: bytes, request: Request) -> Iterator[memoryview]:
    """The head, joined to a first piece that is small, and the other pieces."""
    pieces = request.pieces()
    first = next(pieces, memoryview(b""))
    if len(first) <= _SMALL_PIECE_BYTES:
        yield memoryview(head + first)
    else:
        yield memoryview(head)
        yield first
    yield from pieces


@contextlib.contextmanager
def _connecting(origin: Origin) -> Generator[None]:
    try:
        yield
    except OSError as error:  # timeouts and names that do not resolve included
        said = str(error) or "no answer in time"
        raise ConnectFailed(
            f"no connection to {origin}: {said}; is the server running, and is this its address?"
        ) from error


@contextlib.contextmanager
def _talking(origin: Origin) -> Generator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeout(f"{origin} {origin.silence}") from error
    except OSError as error:
        raise ConnectionProblem(f"the connection to {origin} failed: {error or type(error).__name__}") from error


# ---- blocking --------------------------------------------------------------------------------------------------------


class SocketTransport:
    """Blocking sockets. May be used by several threads at once."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.idle = _IdleConnections()

    def send(self, request: Request) -> SocketAnswer:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectFailed: nobody listens there.
            RequestTimeout: silence for longer than the timeout.
            ConnectionProblem: the connection broke before there was an answer, or what came is no HTTP.
        """
        exchange = HttpExchange(self.origin, request)
        sock = self.idle.take() or self._connect()
        try:
            sent_whole = self._write(sock, _pieces(exchange.request_head, request))
            while exchange.head is None:
                with _talking(self.origin):
                    data = sock.recv(_RECEIVE_BYTES)
                exchange.feed(data)
        except BaseException:
            sock.close()
            raise
        return SocketAnswer(self, sock, exchange, exchange.head, sent_whole=sent_whole)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        self.idle.close()

    def _connect(self) -> socket.socket:
        origin = self.origin
        with _connecting(origin):
            if origin.uds is None:
                sock = socket.create_connection((origin.host, origin.port), origin.connect_timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    sock.settimeout(origin.connect_timeout)
                    sock.connect(origin.uds)
                except BaseException:
                    sock.close()
                    raise
        sock.settimeout(origin.timeout)
        return sock

    def _write(self, sock: socket.socket, pieces: Iterator[memoryview]) -> bool:
        """Send; False if the server answered or hung up before everything was sent."""
        with _Selector() as selector:
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            # What the caller's progress function raises comes out of `pieces`, and is no error of the connection.
            return all(self._write_piece(sock, selector, piece) for piece in pieces)

    def _write_piece(self, sock: socket.socket, selector: selectors.BaseSelector, piece: memoryview) -> bool:
        with _talking(self.origin):
            while piece:
                ready = selector.select(self.origin.timeout)
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
        self._transport = transport
        self._sock = sock
        self._exchange = exchange
        self._sent_whole = sent_whole

    def read_into(self, into: memoryview) -> int:
        """Receive some bytes into this memory; 0 at the end of the body, or of the connection."""
        while (count := self._exchange.take(into)) is None:
            target = self._exchange.straight(into)
            with _talking(self._transport.origin):
                if target is not None:
                    count = self._sock.recv_into(target)
                    self._exchange.received_straight(count)
                    return count
                data = self._sock.recv(_RECEIVE_BYTES)
            self._exchange.feed(data)
        return count

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, drop it otherwise."""
        if self._exchange.reusable and self._sent_whole:
            self._transport.idle.keep(self._sock)
        else:
            self._sock.close()


# ---- asyncio ---------------------------------------------------------------------------------------------------------


class AsyncSocketTransport:
    """Sockets of an asyncio event loop."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.idle = _IdleConnections()

    async def send(self, request: Request) -> AsyncSocketAnswer:
        """Send a request and wait for the head of its answer. Raises what `SocketTransport.send` raises."""
        exchange = HttpExchange(self.origin, request)
        sock = self.idle.take() or await self._connect()
        try:
            pieces = _pieces(exchange.request_head, request)
            if request.content_length <= _SMALL_PIECE_BYTES:
                sent_whole = await self._write(sock, pieces)
            else:
                sent_whole = await self._write_listening(sock, pieces, exchange)
            while exchange.head is None:
                exchange.feed(await self.receive(sock))
        except BaseException:
            sock.close()
            raise
        return AsyncSocketAnswer(self, sock, exchange, exchange.head, sent_whole=sent_whole)

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        self.idle.close()

    async def receive(self, sock: socket.socket) -> bytes:
        """Some bytes, b"" at the end of the connection."""
        with _talking(self.origin):
            return await self.in_time(asyncio.get_running_loop().sock_recv(sock, _RECEIVE_BYTES))

    async def in_time(self, operation: Awaitable[T]) -> T:
        """What an operation gives, unless it takes longer than the timeout."""
        async with asyncio.timeout(self.origin.timeout):
            return await operation

    async def _connect(self) -> socket.socket:
        origin, loop = self.origin, asyncio.get_running_loop()
        with _connecting(origin):
            async with asyncio.timeout(origin.connect_timeout):
                if origin.uds is not None:
                    return await _connected(socket.AF_UNIX, origin.uds)
                addresses = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                for family, _, _, _, address in addresses[:-1]:
                    with contextlib.suppress(OSError):  # the next address is tried; the last one's error is raised
                        return await _connected(family, address)
                return await _connected(addresses[-1][0], addresses[-1][4])

    async def _write(self, sock: socket.socket, pieces: Iterator[memoryview]) -> bool:
        """Send; False if the server hung up before everything was sent."""
        loop = asyncio.get_running_loop()
        for piece in pieces:
            with _talking(self.origin):
                try:
                    await self.in_time(loop.sock_sendall(sock, piece))
                except (BrokenPipeError, ConnectionResetError):
                    return False  # it may have said why before it hung up; who reads the answer will see
        return True

    async def _write_listening(self, sock: socket.socket, pieces: Iterator[memoryview], exchange: HttpExchange) -> bool:
        """Send until the first bytes of the answer come; False if that was before everything was sent."""
        listening = asyncio.ensure_future(self._listen(sock))
        writing = asyncio.ensure_future(self._write(sock, pieces))
        try:
            await asyncio.wait((listening, writing), return_when=asyncio.FIRST_COMPLETED)
            # Writing ends by itself: it is done, or it failed, or it took too long. Then the answer's time begins.
            sent_whole = writing.done() and writing.result()
            with _talking(self.origin):
                exchange.feed(await self.in_time(listening))
            return sent_whole
        finally:
            # Both must have let go of the socket before it is closed, or its number could be another socket's by then.
            listening.cancel()
            writing.cancel()
            await asyncio.gather(listening, writing, return_exceptions=True)

    async def _listen(self, sock: socket.socket) -> bytes:
        return await asyncio.get_running_loop().sock_recv(sock, _RECEIVE_BYTES)


async def _connected(family: int, address: object) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # the socket module's own signature
        await asyncio.get_running_loop().sock_connect(sock, address)  # pyright: ignore[reportArgumentType] # any family's
        if family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


class AsyncSocketAnswer:
    """`SocketAnswer` for asyncio."""

    def __init__(
        self,
        transport: AsyncSocketTransport,
        sock: socket.socket,
        exchange: HttpExchange,
        head: AnswerHead,
        *,
        sent_whole: bool,
    ) -> None:
        self.head = head
        self._transport = transport
        self._sock = sock
        self._exchange = exchange
        self._sent_whole = sent_whole

    async def read_into(self, into: memoryview) -> int:
        """Receive some bytes into this memory; 0 at the end of the body, or of the connection."""
        loop = asyncio.get_running_loop()
        while (count := self._exchange.take(into)) is None:
            target = self._exchange.straight(into)
            if target is not None:
                with _talking(self._transport.origin):
                    count = await self._transport.in_time(loop.sock_recv_into(self._sock, target))
                self._exchange.received_straight(count)
                return count
            self._exchange.feed(await self._transport.receive(self._sock))
        return count

    async def close(self) -> None:
        """Keep the connection if the answer was read to its end, drop it otherwise."""
        if self._exchange.reusable and self._sent_whole:
            self._transport.idle.keep(self._sock)
        else:
            self._sock.close()
