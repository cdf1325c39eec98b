"""Our sockets for callers who bring their own httpx client: `httpx.Client(transport=tensorpost.HttpxTransport())`.

A body is received by the megabyte instead of through three buffers, `read_into(response, memory)` receives it straight
into the caller's memory, and a refusal that comes while a large body is being sent is seen at once. Errors are httpx's.

What these sockets do not do (https, an upgrade of the protocol, CONNECT, trio, the `trace` extension) goes through
`fallback`, which is httpx's own transport unless another is given; `response.extensions["tensorpost"]` says which way a
response came. httpx reads no proxies from the environment for a client with a transport: pass
`fallback=httpx.HTTPTransport(proxy=...)` and mount it where it is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias, cast

import h11
import httpx
import numpy as np
from numpy.typing import NDArray

from ._async_sockets import AsyncPool, AsyncSocketAnswer, AsyncSocketTransport
from ._http1 import HttpExchange
from ._options import LONGEST_SECONDS, Limits, Timeout
from ._origin import CLOSED, Origin
from ._pool import Pool
from ._sockets import SMALL_PIECE_BYTES, SocketAnswer, SocketTransport
from .problems import ConnectFailed, ConnectionProblem, InvalidParameter, RequestTimeout

__all__ = ["AsyncHttpxTransport", "HttpxTransport", "aread_into", "read_into"]

Memory: TypeAlias = NDArray[Any] | bytearray | memoryview
"""Anything writeable and contiguous."""

PART_BYTES = 1 << 20  # the smallest part at which receiving reaches full speed
_WAY, _READ = "tensorpost", "tensorpost.read_into"  # our entries in a response's extensions
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)  # what httpx's own transports have


# ---- reading into memory ---------------------------------------------------------------------------------------------


def read_into(response: httpx.Response, memory: Memory) -> int:
    """Receive the body of a streamed response into this memory, until either ends.

    Args:
        response: from `client.stream(...)`, of which nothing has been read yet but by this function. The bytes are
            those of `iter_raw()`, which a Content-Encoding leaves as they are. If the response came through another
            transport than ours its whole body must fit, and is copied.
        memory: writeable and C-contiguous.

    Returns:
        How many bytes were received; fewer than there is room for only at the end of the body.

    Raises:
        InvalidParameter: memory that cannot be written as bytes, or a body of another transport that does not fit.
        httpx.TransportError: the body broke off.
        httpx.StreamClosed: the response was closed.
    """
    room = _writeable(memory)
    some: Callable[[memoryview], int] | None = response.extensions.get(_READ)
    if some is None:
        return _copied(b"".join(response.iter_raw()), room)
    if response.is_closed:
        raise httpx.StreamClosed
    got = 0
    while got < len(room) and (count := some(room[got : got + PART_BYTES])):
        got += count
    return got


async def aread_into(response: httpx.Response, memory: Memory) -> int:
    """`read_into` for a response of an `httpx.AsyncClient`."""
    room = _writeable(memory)
    some: Callable[[memoryview], Awaitable[int]] | None = response.extensions.get(_READ)
    if some is None:
        return _copied(b"".join([part async for part in response.aiter_raw()]), room)
    if response.is_closed:
        raise httpx.StreamClosed
    got = 0
    while got < len(room) and (count := await some(room[got : got + PART_BYTES])):
        got += count
    return got


def _copied(body: bytes, room: memoryview) -> int:
    if len(body) > len(room):
        raise InvalidParameter(
            f"the body has {len(body)} bytes and the memory {len(room)}; only a response that came through "
            "tensorpost's transport can be received in parts"
        )
    room[: len(body)] = body
    return len(body)


def _writeable(memory: Memory) -> memoryview:
    buffer: Any = memory
    if isinstance(memory, np.ndarray) and memory.flags.c_contiguous:
        buffer = memory.reshape(-1).view(np.uint8).data  # by way of uint8, since memoryview knows no bfloat16
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise InvalidParameter("memory to receive into must be writeable and C-contiguous")
    return view.cast("B")


# ---- from httpx to ours ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A request of httpx as our sockets want it."""

    origin: Origin
    exchange: HttpExchange
    chunked: bool
    length: int | None


def _is_ours(request: httpx.Request) -> bool:
    """Whether our sockets can carry a request; everything else is left to httpx."""
    return (
        request.url.scheme == "http"
        and request.method != "CONNECT"
        and "upgrade" not in request.headers
        and "trace" not in request.extensions
    )


def _outgoing(request: httpx.Request, uds: str | None) -> _Outgoing:
    url = request.url
    waits: Mapping[str, float | None] = request.extensions.get("timeout", {})
    timeout = Timeout(**{phase: _our_wait(waits.get(phase)) for phase in ("connect", "read", "write", "pool")})
    origin = Origin("http", url.raw_host.decode("ascii"), url.port or 80, "", {}, timeout, False, uds)
    target = request.extensions.get("target", url.raw_path)
    try:
        head = h11.Request(method=request.method, target=target, headers=request.headers.raw)
        exchange = HttpExchange(origin, head)
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error), request=request) from error
    length = request.headers.get("content-length")
    chunked = request.headers.get("transfer-encoding", "").lower() == "chunked"
    return _Outgoing(origin, exchange, chunked, int(length) if length else None if chunked else 0)


def _our_wait(seconds: float | None) -> float | None:
    """Httpx takes any number: 0 and less is no time at all, and what is very long is for ever."""
    if seconds is None or seconds > LONGEST_SECONDS:
        return None
    return max(seconds, _NO_TIME)


def _framed(piece: memoryview, *, chunked: bool) -> Iterable[memoryview]:
    """A piece as it stands on the wire (RFC 9112 section 7.1)."""
    if not piece:  # an empty chunk would be the last one
        return ()
    if not chunked:
        return (piece,)
    size = b"%x\r\n" % len(piece)
    if len(piece) <= SMALL_PIECE_BYTES:
        return (memoryview(b"".join((size, piece, b"\r\n"))),)
    return (memoryview(size), piece, memoryview(b"\r\n"))


_NO_TIME = 1e-6  # seconds; a socket with a timeout of 0 does not wait for anything, not even for itself
_LAST_CHUNK = memoryview(b"0\r\n\r\n")


class _Length:
    """Counts a body against its Content-Length: one byte more or less would be read as part of another request."""

    def __init__(self, outgoing: _Outgoing) -> None:
        self._left = outgoing.length

    def take(self, piece: object) -> memoryview:
        view = memoryview(cast("bytes", piece)).cast("B")
        if self._left is not None:
            self._left -= len(view)
            if self._left < 0:
                raise httpx.LocalProtocolError("Too much data for declared Content-Length")
        return view

    def finish(self) -> None:
        if self._left:
            raise httpx.LocalProtocolError("Too little data for declared Content-Length")


def _pieces(stream: httpx.SyncByteStream, outgoing: _Outgoing) -> Iterator[memoryview]:
    length = _Length(outgoing)
    for piece in stream:
        yield from _framed(length.take(piece), chunked=outgoing.chunked)
    length.finish()
    if outgoing.chunked:
        yield _LAST_CHUNK


async def _async_pieces(stream: httpx.AsyncByteStream, outgoing: _Outgoing) -> AsyncIterator[memoryview]:
    length = _Length(outgoing)
    async for piece in stream:
        for part in _framed(length.take(piece), chunked=outgoing.chunked):
            yield part
    length.finish()
    if outgoing.chunked:
        yield _LAST_CHUNK


# ---- and back --------------------------------------------------------------------------------------------------------


def _response(exchange: HttpExchange, body: _Body | _AsyncBody) -> httpx.Response:
    head = exchange.response
    assert head is not None
    extensions: dict[str, Any] = {
        "http_version": b"HTTP/" + head.http_version,
        "reason_phrase": head.reason,
        _WAY: "own sockets",
        _READ: body.read_into,
    }
    return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=body, extensions=extensions)


def _other_way(response: httpx.Response) -> httpx.Response:
    response.extensions.setdefault(_WAY, "httpx")
    return response


_ERRORS: Mapping[str, tuple[type[httpx.TimeoutException], type[httpx.TransportError]]] = {
    "connect": (httpx.ConnectTimeout, httpx.ConnectError),
    "read": (httpx.ReadTimeout, httpx.ReadError),
    "write": (httpx.WriteTimeout, httpx.WriteError),
    "pool": (httpx.PoolTimeout, httpx.PoolTimeout),
}


def as_httpx_error(problem: ConnectionProblem) -> httpx.TransportError:
    """The error by which httpx calls a problem of ours."""
    if isinstance(problem, ConnectFailed):
        late, failed = _ERRORS["connect"]
        return (late if isinstance(problem.__cause__, TimeoutError) else failed)(problem.detail)
    phase = problem.extra.get("phase")
    if not isinstance(phase, str):  # the bytes came, and were no HTTP, or ended too early
        return httpx.RemoteProtocolError(problem.detail)
    late, failed = _ERRORS[phase]
    return (late if isinstance(problem, RequestTimeout) else failed)(problem.detail)


@contextmanager
def _httpx_errors() -> Generator[None]:
    try:
        yield
    except ConnectionProblem as problem:
        raise as_httpx_error(problem) from problem


def _require_whole(exchange: HttpExchange) -> None:
    if not exchange.complete:
        raise httpx.RemoteProtocolError("the server closed the connection before the end of the body")


class _Body(httpx.SyncByteStream):
    """A response's body in the socket."""

    def __init__(self, answer: SocketAnswer) -> None:
        self._answer = answer

    def read_into(self, into: memoryview) -> int:
        with _httpx_errors():
            count = self._answer.read_into(into)
        if count == 0:
            _require_whole(self._answer.exchange)
        return count

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with _httpx_errors():
                part = self._answer.read(PART_BYTES)
            if not part:
                break
            yield part
        _require_whole(self._answer.exchange)

    def close(self) -> None:
        self._answer.close()


class _AsyncBody(httpx.AsyncByteStream):
    """`_Body` for asyncio."""

    def __init__(self, answer: AsyncSocketAnswer) -> None:
        self._answer = answer

    async def read_into(self, into: memoryview) -> int:
        with _httpx_errors():
            count = await self._answer.read_into(into)
        if count == 0:
            _require_whole(self._answer.exchange)
        return count

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            with _httpx_errors():
                part = await self._answer.read(PART_BYTES)
            if not part:
                break
            yield part
        _require_whole(self._answer.exchange)

    async def aclose(self) -> None:
        await self._answer.close()


def _our_limits(limits: httpx.Limits) -> Limits:
    expiry = limits.keepalive_expiry
    return Limits(
        max_connections=limits.max_connections,
        # httpx closes at once what would expire at once
        max_keepalive_connections=0 if expiry == 0 else limits.max_keepalive_connections,
        keepalive_expiry=None if expiry is None or expiry > LONGEST_SECONDS else expiry or None,
    )


# ---- the transports --------------------------------------------------------------------------------------------------


class HttpxTransport(httpx.BaseTransport):
    """An httpx transport over our own sockets. May be used by several threads at once.

    Example:
        >>> url, start = "http://127.0.0.1:8000/v1/operators", bytearray(14)
        >>> with httpx.Client(transport=HttpxTransport()) as http, http.stream("GET", url) as response:
        ...     read_into(response, start), response.extensions["tensorpost"], bytes(start)
        (14, 'own sockets', b'{"operators":[')

    Args:
        uds: path of a Unix socket to connect to, whatever the URL's host.
        limits: as of `httpx.HTTPTransport`; the default is httpx's.
        fallback: what carries the requests that our sockets do not. Default: a new `httpx.HTTPTransport` with these
            limits, made when it is first needed.
    """

    def __init__(
        self,
        *,
        uds: str | None = None,
        limits: httpx.Limits = _LIMITS,
        fallback: httpx.BaseTransport | None = None,
    ) -> None:
        self._uds = uds
        self._pool = Pool(_our_limits(limits))
        self._limits = limits
        self._fallback = fallback
        self._lock = Lock()  # two threads make one fallback
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its answer.

        Raises:
            httpx.TransportError: no connection, silence for longer than the timeout, or what came is no HTTP.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        if not _is_ours(request):
            return _other_way(self._other().handle_request(request))
        outgoing = _outgoing(request, self._uds)
        pieces = _pieces(cast("httpx.SyncByteStream", request.stream), outgoing)
        with _httpx_errors():
            answer = SocketTransport(outgoing.origin, self._pool).exchange(outgoing.exchange, pieces)
        return _response(answer.exchange, _Body(answer))

    def _other(self) -> httpx.BaseTransport:
        with self._lock:
            if self._fallback is None:
                self._fallback = httpx.HTTPTransport(limits=self._limits, uds=self._uds)
            return self._fallback

    def close(self) -> None:
        """Close all idle connections, and the fallback."""
        self._closed = True
        self._pool.close()
        if self._fallback is not None:
            self._fallback.close()


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """`HttpxTransport` for an `httpx.AsyncClient` on asyncio; under trio every request takes the fallback.

    Args:
        uds: as for `HttpxTransport`, and so are all others.
        limits: as for `HttpxTransport`.
        fallback: as for `HttpxTransport`; default a new `httpx.AsyncHTTPTransport`.
    """

    def __init__(
        self,
        *,
        uds: str | None = None,
        limits: httpx.Limits = _LIMITS,
        fallback: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._uds = uds
        self._pool = AsyncPool(_our_limits(limits))
        self._limits = limits
        self._fallback = fallback
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As `HttpxTransport.handle_request`."""
        if self._closed:
            raise RuntimeError(CLOSED)
        if not _is_ours(request) or not _on_asyncio():
            if self._fallback is None:
                self._fallback = httpx.AsyncHTTPTransport(limits=self._limits, uds=self._uds)
            return _other_way(await self._fallback.handle_async_request(request))
        outgoing = _outgoing(request, self._uds)
        pieces = _async_pieces(cast("httpx.AsyncByteStream", request.stream), outgoing)
        small = outgoing.length is not None and outgoing.length <= SMALL_PIECE_BYTES
        transport = AsyncSocketTransport(outgoing.origin, self._pool)
        with _httpx_errors():
            answer = await transport.exchange(outgoing.exchange, pieces, listen=not small)
        return _response(answer.exchange, _AsyncBody(answer))

    async def aclose(self) -> None:
        """Close all idle connections, and the fallback."""
        self._closed = True
        self._pool.close()
        if self._fallback is not None:
            await self._fallback.aclose()


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
