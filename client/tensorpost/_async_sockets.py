"""`_sockets.py` for asyncio: plain HTTP over TCP or Unix sockets, with an ear open while a large body is being sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TypeVar

from ._http1 import HttpExchange, exchange_of
from ._options import Limits
from ._origin import Address, Origin
from ._pool import IdleConnections
from ._sockets import ANSWER_CLOSED, ANSWER_FORKED, RECEIVE_BYTES, SMALL_PIECE_BYTES, connecting, talking
from ._steps import AnswerHead, Request

__all__ = ["AsyncPool", "AsyncSocketAnswer", "AsyncSocketTransport"]

_TURN_SECONDS = 0.001  # a piece of a body takes half of that; other tasks wait for about as long

T = TypeVar("T")


class AsyncPool(IdleConnections):
    """For the tasks of one event loop."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(limits, clock)
        self._places = self._all_places()

    def _all_places(self) -> asyncio.BoundedSemaphore | None:
        most = self._limits.max_connections
        return None if most is None else asyncio.BoundedSemaphore(most)

    def begin_anew(self) -> None:
        """See `IdleConnections.begin_anew`."""
        super().begin_anew()
        self._places = self._all_places()

    async def admit(self, seconds: float | None) -> None:
        """As `Pool.admit`."""
        self.require_open()
        if self._places is not None:
            if self._places.locked():
                await self._wait(self._places, seconds)
            else:
                await self._places.acquire()
        self.admitted()

    async def _wait(self, places: asyncio.Semaphore, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await places.acquire()
        except TimeoutError:
            raise self.all_in_use(seconds) from None

    def release(self, address: Address, reusable: socket.socket | None = None) -> None:
        """As `Pool.release`."""
        self.gone(address, reusable)
        if self._places is not None:
            self._places.release()


class AsyncSocketTransport:
    """Sockets of an asyncio event loop to one server.

    Args:
        origin: the server.
        pool: the connections; may be shared with transports to other servers.
    """

    def __init__(self, origin: Origin, pool: AsyncPool) -> None:
        self.origin = origin
        self.pool = pool

    def __str__(self) -> str:
        return "own sockets, " + ("TCP" if self.origin.uds is None else "Unix")

    async def send(self, request: Request) -> AsyncSocketAnswer:
        """Send a request and wait for the head of its answer. Raises what `SocketTransport.send` raises."""
        small = request.content_length <= SMALL_PIECE_BYTES
        return await self.exchange(exchange_of(self.origin, request), _Each(request.pieces()), listen=not small)

    async def exchange(
        self, exchange: HttpExchange, pieces: AsyncIterable[memoryview], *, listen: bool
    ) -> AsyncSocketAnswer:
        """Send a head and the pieces of its body, and wait for the head of the answer.

        Args:
            exchange: the request and its answer.
            pieces: of the request's body.
            listen: whether to look for an early answer meanwhile; what goes out at once has no meanwhile.

        Raises:
            ConnectionProblem: as `SocketTransport.send`.
        """
        origin = self.origin
        await self.pool.admit(origin.timeout.pool)
        sock = None
        try:
            sock = self.pool.take(origin.address) or await self._connect()
            outgoing = _WithHead(exchange.request_head, pieces)
            if listen:
                sent_whole = await self._write_listening(sock, outgoing, exchange)
            else:
                sent_whole = await self._write(sock, outgoing)
            while exchange.head is None:
                exchange.feed(await self.receive(sock, RECEIVE_BYTES))
        except BaseException:
            if sock is not None:
                sock.close()
            self.pool.release(origin.address)
            raise
        return AsyncSocketAnswer(self, sock, exchange, exchange.head, sent_whole=sent_whole)

    async def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        self.pool.close()

    async def receive(self, sock: socket.socket, most: int) -> bytes:
        """Some bytes, b"" at the end of the connection."""
        with talking(self.origin, "read"):
            return await in_time(asyncio.get_running_loop().sock_recv(sock, most), self.origin.timeout.read)

    async def _connect(self) -> socket.socket:
        origin, loop = self.origin, asyncio.get_running_loop()
        with connecting(origin):
            wait = origin.timeout.connect  # for each address, as in `socket.create_connection`
            if origin.uds is not None:
                return await in_time(_connected(socket.AF_UNIX, origin.uds), wait)
            names = loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            addresses = await in_time(names, wait)
            for family, _, _, _, address in addresses[:-1]:
                with contextlib.suppress(OSError):  # the next address is tried; the last one's error is raised
                    return await in_time(_connected(family, address), wait)
            return await in_time(_connected(addresses[-1][0], addresses[-1][4]), wait)

    async def _write(self, sock: socket.socket, pieces: AsyncIterable[memoryview]) -> bool:
        """Send; False if the server hung up before everything was sent."""
        loop, turns = asyncio.get_running_loop(), _Turns()
        async for piece in pieces:
            await turns.give()
            with talking(self.origin, "write"):
                try:
                    await in_time(loop.sock_sendall(sock, piece), self.origin.timeout.write)
                except (BrokenPipeError, ConnectionResetError):
                    return False  # it may have said why before it hung up; who reads the answer will see
        return True

    async def _write_listening(
        self, sock: socket.socket, pieces: AsyncIterable[memoryview], exchange: HttpExchange
    ) -> bool:
        """Send until the first bytes of the answer come; False if that was before everything was sent."""
        listening = asyncio.ensure_future(self._listen(sock))
        writing = asyncio.ensure_future(self._write(sock, pieces))
        try:
            await asyncio.wait((listening, writing), return_when=asyncio.FIRST_COMPLETED)
            # Writing ends by itself: it is done, or it failed, or it took too long. Then the answer's time begins.
            sent_whole = writing.done() and writing.result()
            with talking(self.origin, "read"):
                exchange.feed(await in_time(listening, self.origin.timeout.read))
            return sent_whole
        finally:
            # Both must have let go of the socket before it is closed, or its number could be another socket's by then.
            listening.cancel()
            writing.cancel()
            await asyncio.gather(listening, writing, return_exceptions=True)

    async def _listen(self, sock: socket.socket) -> bytes:
        return await asyncio.get_running_loop().sock_recv(sock, RECEIVE_BYTES)


async def in_time(operation: Awaitable[T], seconds: float | None) -> T:
    """What an operation gives, unless it takes longer than this."""
    async with asyncio.timeout(seconds):
        return await operation


class _Turns:
    """Gives other tasks their turn now and then: operations on a socket that is ready never suspend by themselves."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def give(self) -> None:
        """Suspend once, if the last time was a while ago."""
        if time.monotonic() - self._since > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.monotonic()


class _Each:
    """A plain iterator for `async for`. No asynchronous generator: nothing is left over when it is not read out."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> _Each:
        return self

    async def __anext__(self) -> memoryview:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


class _WithHead:
    """The head, joined to a first piece that is small, and the other pieces."""

    def __init__(self, head: bytes, pieces: AsyncIterable[memoryview]) -> None:
        self._head: bytes | None = head
        self._first: memoryview | None = None
        self._rest = aiter(pieces)

    def __aiter__(self) -> _WithHead:
        return self

    async def __anext__(self) -> memoryview:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._head is None:
            return await anext(self._rest)
        head, self._head = self._head, None
        first = await anext(self._rest, memoryview(b""))
        if len(first) <= SMALL_PIECE_BYTES:
            return memoryview(head + first)
        self._first = first
        return memoryview(head)


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
        self.exchange = exchange
        self._transport = transport
        self._generation = transport.pool.generation
        self._turns = _Turns()
        self._sock: socket.socket | None = sock
        self._sent_whole = sent_whole

    def _open(self) -> socket.socket:
        if self._sock is None:
            raise RuntimeError(ANSWER_CLOSED)
        if self._transport.pool.generation != self._generation:
            raise RuntimeError(ANSWER_FORKED)
        return self._sock

    async def read_into(self, into: memoryview) -> int:
        """Receive some bytes into this memory; 0 at the end of the body, or of the connection.

        Raises:
            RuntimeError: as `SocketAnswer.read_into`.
        """
        sock = self._open()
        await self._turns.give()
        loop, origin = asyncio.get_running_loop(), self._transport.origin
        while (count := self.exchange.take(into)) is None:
            target = self.exchange.straight(into)
            if target is not None:
                with talking(origin, "read"):
                    count = await in_time(loop.sock_recv_into(sock, target), origin.timeout.read)
                self.exchange.received_straight(count)
                return count
            self.exchange.feed(await self._transport.receive(sock, RECEIVE_BYTES))
        return count

    async def read(self, most: int) -> bytes:
        """Receive at most so many bytes; b"" at the end of the body, or of the connection."""
        sock, left = self._open(), self.exchange.left
        if left is None or self.exchange.waiting:
            memory = memoryview(bytearray(most))
            return bytes(memory[: await self.read_into(memory)])
        if left == 0:
            return b""
        await self._turns.give()
        data = await self._transport.receive(sock, min(most, left))
        self.exchange.received_straight(len(data))
        return data

    async def close(self) -> None:
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
