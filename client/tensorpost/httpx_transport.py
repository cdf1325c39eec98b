"""Our sockets for callers who bring their own httpx client: `httpx.Client(transport=tensorpost.HttpxTransport())`.

A body is received by the megabyte instead of through three buffers, `read_into(response, memory)` receives it straight
into the caller's memory, and a refusal that comes while a large body is being sent is seen at once. Errors are httpx's.

What these sockets do not do (https, chunked requests, an upgrade of the protocol, CONNECT, trio, the `trace` extension)
goes through `fallback`, which is httpx's own transport unless another is given; `response.extensions["tensorpost"]`
says which way a response came. httpx reads no proxies from the environment for a client with a transport: pass
`fallback=httpx.HTTPTransport(proxy=...)` and mount it where it is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray

from ._connection_pool import ConnectionPool
from ._http1 import PIECE_BYTES, encode_head
from ._options import LONGEST_SECONDS, Limits, Timeout
from ._origin import Origin
from ._runtime import AsyncioRuntime, Deadline, ThreadRuntime, run_blocking
from ._socket_sender import SocketResponse, SocketSender
from .problems import ConnectFailed, ConnectionProblem, InvalidParameter, RequestTimeout

__all__ = ["AsyncHttpxTransport", "HttpxTransport", "aread_into", "read_into"]

Memory: TypeAlias = NDArray[Any] | bytearray | memoryview
"""Anything writeable and contiguous."""

_WAY, _READ = "tensorpost", "tensorpost.read_into"  # our entries in a response's extensions
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)  # what httpx's own transports have
_NO_TIME = 1e-6  # seconds; for httpx 0 and less is no time at all


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
    target = _writeable(memory)
    read = _straight(response)
    return _copied(b"".join(response.iter_raw()), target) if read is None else run_blocking(_filled(read, target))


async def aread_into(response: httpx.Response, memory: Memory) -> int:
    """`read_into` for a response of an `httpx.AsyncClient`."""
    target = _writeable(memory)
    read = _straight(response)
    if read is None:
        return _copied(b"".join([part async for part in response.aiter_raw()]), target)
    return await _filled(read, target)


def _straight(response: httpx.Response) -> Callable[[memoryview], Awaitable[int]] | None:
    read = response.extensions.get(_READ)
    if read is not None and response.is_closed:
        raise httpx.StreamClosed
    return read


async def _filled(read: Callable[[memoryview], Awaitable[int]], target: memoryview) -> int:
    got = 0
    while got < len(target) and (count := await read(target[got : got + PIECE_BYTES])):
        got += count
    return got


def _copied(body: bytes, target: memoryview) -> int:
    if len(body) > len(target):
        raise InvalidParameter(
            f"the body has {len(body)} bytes and the memory {len(target)}; only a response that came through "
            "tensorpost's transport can be received in parts"
        )
    target[: len(body)] = body
    return len(body)


def _writeable(memory: Memory) -> memoryview:
    buffer: Any = memory
    if isinstance(memory, np.ndarray) and memory.flags.c_contiguous:
        buffer = memory.reshape(-1).view(np.uint8).data  # by way of uint8, since memoryview knows no bfloat16
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise InvalidParameter("memory to receive into must be writeable and C-contiguous")
    return view.cast("B")


_ERRORS: Mapping[str, tuple[type[httpx.TimeoutException], type[httpx.TransportError]]] = {
    "connect": (httpx.ConnectTimeout, httpx.ConnectError),
    "read": (httpx.ReadTimeout, httpx.ReadError),
    "write": (httpx.WriteTimeout, httpx.WriteError),
    "pool": (httpx.PoolTimeout, httpx.PoolTimeout),
}


def as_httpx_error(problem: ConnectionProblem) -> httpx.TransportError:
    """The error by which httpx calls a problem of ours."""
    phase = "connect" if isinstance(problem, ConnectFailed) else problem.extra.get("phase")
    if not isinstance(phase, str):  # the bytes came, and were no HTTP, or ended too early
        return httpx.RemoteProtocolError(problem.detail)
    late = isinstance(problem, RequestTimeout) or isinstance(problem.__cause__, TimeoutError)
    return _ERRORS[phase][0 if late else 1](problem.detail)


@contextmanager
def _httpx_errors() -> Generator[None]:
    try:
        yield
    except ConnectionProblem as problem:
        raise as_httpx_error(problem) from problem


def _is_ours(request: httpx.Request) -> bool:
    """Whether our sockets can carry a request; everything else is left to httpx."""
    return (
        request.url.scheme == "http"
        and request.method != "CONNECT"
        and not {"upgrade", "transfer-encoding"} & request.headers.keys()
        and "trace" not in request.extensions
    )


def _origin(request: httpx.Request, uds: str | None) -> Origin:
    waits: dict[str, float | None] = dict(request.extensions.get("timeout", {}))
    for phase, seconds in waits.items():  # httpx takes any number
        waits[phase] = None if seconds is None or seconds > LONGEST_SECONDS else max(seconds, _NO_TIME)
    host, port = request.url.raw_host.decode("ascii"), request.url.port or 80
    return Origin("http", host, port, "", {}, Timeout(**waits), False, uds)


async def _pieces(request: httpx.Request) -> AsyncIterator[memoryview]:
    """A request's body, counted: one byte more or less would be read as part of another request."""
    left = int(request.headers.get("content-length", "0"))
    stream: Any = request.stream
    is_sync = isinstance(stream, httpx.SyncByteStream)
    parts: Any = iter(stream) if is_sync else aiter(stream)
    while True:
        part = next(parts, None) if is_sync else await anext(parts, None)
        if part is None:
            break
        left -= memoryview(part).nbytes
        if left < 0:
            raise httpx.LocalProtocolError("Too much data for declared Content-Length")
        yield memoryview(part).cast("B")
    if left:
        raise httpx.LocalProtocolError("Too little data for declared Content-Length")


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response that is still in its socket."""

    def __init__(self, response: SocketResponse) -> None:
        self._response = response

    async def read_into(self, target: memoryview) -> int:
        with _httpx_errors():
            return await self._response.read_into(target)

    async def _read(self) -> bytes:
        with _httpx_errors():
            return await self._response.read(PIECE_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        while part := run_blocking(self._read()):
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self._read():
            yield part

    def close(self) -> None:
        run_blocking(self._response.close())

    async def aclose(self) -> None:
        await self._response.close()


class _OverOurSockets:
    """What both transports are made of."""

    _runtime: type[ThreadRuntime] | type[AsyncioRuntime]
    _other: type[httpx.HTTPTransport] | type[httpx.AsyncHTTPTransport]

    def __init__(self, *, uds: str | None = None, limits: httpx.Limits = _LIMITS, fallback: Any = None) -> None:
        self._uds, self._limits = uds, limits
        self._fallback: Any = fallback
        expiry = limits.keepalive_expiry
        ours = Limits(
            max_connections=limits.max_connections,
            # httpx closes at once what would expire at once
            max_keepalive_connections=0 if expiry == 0 else limits.max_keepalive_connections,
            keepalive_expiry=None if expiry is None or expiry > LONGEST_SECONDS else expiry or None,
        )
        self._pool = ConnectionPool(self._runtime(), ours)
        self._lock = Lock()  # two threads make one fallback

    def _fall_back(self) -> Any:
        with self._lock:
            self._pool.require_open()
            if self._fallback is None:
                self._fallback = self._other(limits=self._limits, uds=self._uds)
            return self._fallback

    async def _send(self, request: httpx.Request) -> httpx.Response:
        target = request.extensions.get("target", request.url.raw_path).decode("latin-1")
        fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw)
        try:
            head = encode_head(request.method, target, fields)
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from error
        sender = SocketSender(_origin(request, self._uds), self._pool)
        with _httpx_errors():
            response = await sender.exchange(request.method, head, _pieces(request), Deadline(None))
        status, body = response.parser.status_line.encode("latin-1"), _Body(response)
        extensions: dict[str, Any] = {"http_version": status[:8], "reason_phrase": status[13:], _WAY: "own sockets"}
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.parser.fields]
        extensions[_READ] = body.read_into
        return httpx.Response(response.head.status, headers=headers, stream=body, extensions=extensions)


def _other_way(response: httpx.Response) -> httpx.Response:
    response.extensions.setdefault(_WAY, "httpx")
    return response


class HttpxTransport(_OverOurSockets, httpx.BaseTransport):
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

    _runtime, _other = ThreadRuntime, httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the head of its answer.

        Raises:
            httpx.TransportError: no connection, silence for longer than the timeout, or what came is no HTTP.
        """
        if _is_ours(request):
            return run_blocking(self._send(request))
        return _other_way(self._fall_back().handle_request(request))

    def close(self) -> None:
        """Close all idle connections, and the fallback."""
        self._pool.close()
        if self._fallback is not None:
            self._fallback.close()


class AsyncHttpxTransport(_OverOurSockets, httpx.AsyncBaseTransport):
    """`HttpxTransport` for an `httpx.AsyncClient` on asyncio; under trio every request takes the fallback.

    Args:
        uds: as for `HttpxTransport`, and so are all others.
        limits: as for `HttpxTransport`.
        fallback: as for `HttpxTransport`; default a new `httpx.AsyncHTTPTransport`.
    """

    _runtime, _other = AsyncioRuntime, httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As `HttpxTransport.handle_request`."""
        if _is_ours(request) and _on_asyncio():
            return await self._send(request)
        return _other_way(await self._fall_back().handle_async_request(request))

    async def aclose(self) -> None:
        """Close all idle connections, and the fallback."""
        self._pool.close()
        if self._fallback is not None:
            await self._fallback.aclose()


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
