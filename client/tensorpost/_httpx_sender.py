"""Proxies, and callers who bring their own httpx client with its auth, hooks and mocks. Loaded only for these."""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from typing import Any, cast

import httpx

from ._connection_pool import CLOSED, all_in_use
from ._http1 import Request, ResponseHead
from ._options import Limits
from ._origin import Origin
from ._runtime import Deadline, Runtime, ThreadRuntime
from ._socket_sender import broken, certificate_refused, connect_failed, timed_out
from .problems import ConnectionProblem, InvalidParameter

__all__ = ["HttpxSender", "as_problem"]


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body in pieces. As one `bytes` object it would be copied over and over while it is being sent."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return cast("Iterator[bytes]", self._request.pieces())  # httpx passes memoryviews on as they are

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._request.pieces():
            yield cast("bytes", piece)


async def _result(value: Any) -> Any:
    """What a method of httpx gives: at once, or when it is awaited."""
    return await value if inspect.isawaitable(value) else value


class HttpxSender:
    """Sends through a proxy, or through a caller's own `httpx.Client` (on asyncio `httpx.AsyncClient`)."""

    def __init__(
        self, origin: Origin, limits: Limits, runtime: Runtime, proxy: str | None, http_client: Any = None
    ) -> None:
        kind = httpx.Client if isinstance(runtime, ThreadRuntime) else httpx.AsyncClient
        if http_client is not None and not isinstance(http_client, kind):
            raise InvalidParameter(
                f"http_client is a {type(http_client).__name__}; it must be an httpx.{kind.__name__}, or None"
            )
        self._origin = origin
        self._closed = False
        self._process = os.getpid()
        self._make: Callable[[], Any] | None = None
        if http_client is None:
            settings = _settings(origin, limits, proxy)
            self._make = lambda: kind(trust_env=False, **settings)
        self._http: Any = self._make() if self._make else http_client

    def __str__(self) -> str:
        return "httpx, for a proxy" if self._make else "httpx, the caller's own"

    async def send(self, request: Request, deadline: Deadline) -> HttpxResponse:
        """Send a request and wait for the head of its response."""
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._make and self._process != os.getpid():  # forked: the connections belong to the other process
            self._http, self._process = self._make(), os.getpid()
        origin = self._origin
        headers = dict((*origin.fields, *request.fields))
        if request.body:
            headers["content-length"] = str(request.content_length)
        url = httpx.URL(scheme=origin.scheme, host=origin.host, port=origin.port)
        url = url.copy_with(raw_path=(origin.prefix + request.target).encode("ascii"))
        waits = {phase: deadline.clip(getattr(origin.timeout, phase)) for phase in ("connect", "read", "write", "pool")}
        sent = self._http.build_request(request.method, url, headers=headers, extensions={"timeout": waits})
        sent.stream = _Body(request)
        try:
            return HttpxResponse(origin, await _result(self._http.send(sent, stream=True)), deadline)
        except httpx.TransportError as error:
            raise as_problem(error, origin, deadline) from error

    async def close(self) -> None:
        """Close all connections; a caller's own client stays open."""
        self._closed = True
        if self._make:
            await _result(self._http.close() if isinstance(self._http, httpx.Client) else self._http.aclose())


def _settings(origin: Origin, limits: Limits, proxy: str | None) -> dict[str, Any]:
    try:
        url = httpx.URL(proxy or "")
    except httpx.InvalidURL as error:
        raise InvalidParameter(f"the proxy from the environment is no URL: {error}; see NO_PROXY") from None
    if url.scheme not in ("http", "https"):
        shown = f"{url.scheme}://{url.host}"  # nothing else of it: credentials may stand there
        raise InvalidParameter(f"the proxy {shown[:100]!r} from the environment is not http or https; see NO_PROXY")
    return {"verify": origin.tls, "proxy": proxy, "limits": httpx.Limits(**asdict(limits))}


class HttpxResponse:
    """A response whose body httpx receives. It decides how much comes at once; our readers, how much they take."""

    def __init__(self, origin: Origin, response: httpx.Response, deadline: Deadline) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        self.head = ResponseHead(response.status_code, headers)
        self._origin, self._response, self._deadline = origin, response, deadline
        self._is_sync = isinstance(response.stream, httpx.SyncByteStream)
        self._part = memoryview(b"")
        self._parts: Any = None
        self._left = int(headers.get("content-length", "-1"))
        if response.is_stream_consumed:  # by a hook of the caller, or a mock
            self._part = memoryview(response.content)
        else:
            self._parts = response.iter_raw() if self._is_sync else response.aiter_raw()

    async def read_into(self, target: memoryview) -> int:
        """See `SocketResponse.read_into`."""
        self._deadline.clip(None)
        while not self._part and self._parts is not None:
            await self._next_part()
        count = min(len(target), len(self._part))
        target[:count] = self._part[:count]
        self._part = self._part[count:]
        self._left -= count
        return count

    async def _next_part(self) -> None:
        try:
            data = next(self._parts, None) if self._is_sync else await anext(self._parts, None)
        except httpx.TransportError as error:
            raise as_problem(error, self._origin, self._deadline) from error
        self._part = memoryview(data or b"")
        if data is None:
            self._parts = None

    async def close(self) -> None:
        """See `SocketResponse.close`."""
        if self._left == 0 and self._parts is not None:
            await self._next_part()  # the end of the body, which sets the connection free
        if self._is_sync:
            self._response.close()
            return
        if self._parts is not None:
            await self._parts.aclose()
        await self._response.aclose()


def as_problem(error: httpx.TransportError, origin: Origin, deadline: Deadline) -> ConnectionProblem:
    """The problem by which this SDK calls a transport error of httpx."""
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.LocalProtocolError):
        raise error  # a request that is no HTTP is a mistake in this file, not a problem of the connection
    if isinstance(error, httpx.TimeoutException):
        deadline.clip(None)
    if isinstance(error, httpx.PoolTimeout):
        return all_in_use(origin.timeout.pool)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)):
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        return connect_failed(origin, said) if cause is None else certificate_refused(origin, cause)
    if isinstance(error, httpx.TimeoutException):
        return timed_out(origin, "write" if isinstance(error, httpx.WriteTimeout) else "read")
    if isinstance(error, httpx.RemoteProtocolError):
        said = "closed the connection without an answer" if "disconnected" in said else f"speaks no HTTP/1.1 ({said})"
        return ConnectionProblem(f"{origin} {said}")
    return broken(origin, "write" if isinstance(error, httpx.WriteError) else "read", error)
