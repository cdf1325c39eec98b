"""Proxies, and callers who bring their own httpx client with its auth, hooks and mocks. Loaded only for these."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any, cast, get_args

import httpx

from ..network.connection import broken, connect_failed
from ..network.deadline import Deadline, WaitPhase
from ..network.options import Limits
from ..network.origin import Origin
from ..network.runtime import Runtime, ThreadRuntime
from ..values.problems import ConnectionProblem, InvalidParameter
from .http1 import Request, no_answer
from .response import Response


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body in pieces. As one `bytes` object it would be copied over and over while it is being sent."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return cast("Iterator[bytes]", self._request.pieces())  # httpx passes memoryviews on as they are

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


async def _result(value: Any) -> Any:
    """What a method of httpx gives: at once, or when it is awaited."""
    return await value if inspect.isawaitable(value) else value


class HttpxSender:
    """Sends through a proxy, or through a caller's own `httpx.Client` (on asyncio `httpx.AsyncClient`)."""

    def __init__(
        self, origin: Origin, limits: Limits, runtime: Runtime, proxy: str | None, http_client: Any = None
    ) -> None:
        kind = httpx.Client if isinstance(runtime, ThreadRuntime) else httpx.AsyncClient
        self._origin, self._is_ours = origin, http_client is None
        if http_client is None:
            most = httpx.Limits(**asdict(limits))
            http_client = kind(trust_env=False, verify=origin.tls, proxy=_checked(proxy), limits=most)
        elif not isinstance(http_client, kind):
            raise InvalidParameter(
                f"http_client is a {type(http_client).__name__}; it must be an httpx.{kind.__name__}, or None"
            )
        self._http: Any = http_client

    def __str__(self) -> str:
        return "httpx, for a proxy" if self._is_ours else "httpx, the caller's own"

    async def send(self, request: Request, deadline: Deadline) -> HttpxResponse:
        origin = self._origin
        headers = dict((*origin.fields, *request.fields))
        if request.body:
            headers["content-length"] = str(request.content_length)
        url = httpx.URL(scheme=origin.scheme, host=origin.host, port=origin.port)
        url = url.copy_with(raw_path=(origin.prefix + request.target).encode("ascii"))
        waits = {phase: deadline.seconds(phase) for phase in get_args(WaitPhase)}
        sent = self._http.build_request(request.method, url, headers=headers, extensions={"timeout": waits})
        sent.stream = _Body(request)
        try:
            return HttpxResponse(request, await _result(self._http.send(sent, stream=True)), deadline)
        except httpx.TransportError as error:
            raise as_problem(error, deadline) from error

    async def close(self) -> None:
        """Close all connections; a caller's own client stays open."""
        if self._is_ours:
            await _result(self._http.close() if isinstance(self._http, httpx.Client) else self._http.aclose())


def _checked(proxy: str | None) -> str | None:
    try:
        url = httpx.URL(proxy or "")
    except httpx.InvalidURL as error:
        raise InvalidParameter(f"the proxy from the environment is not a URL: {error}; see NO_PROXY") from None
    if url.scheme not in ("http", "https"):
        shown = f"{url.scheme}://{url.host}"  # nothing else of it: it may hold credentials
        raise InvalidParameter(f"the proxy {shown[:100]!r} from the environment is not http or https; see NO_PROXY")
    return proxy


class HttpxResponse(Response):
    """A response whose body httpx receives. It decides how much comes at once; our readers, how much they take."""

    def __init__(self, request: Request, response: httpx.Response, deadline: Deadline) -> None:
        super().__init__(request)
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._response, self._deadline = response, deadline
        self._parts = _parts(response)
        self._part: memoryview | None = memoryview(b"")  # None at the end of the body

    async def read_into(self, target: memoryview) -> int:
        self._deadline.check()
        try:
            while self._part is not None and not self._part:
                part = await anext(self._parts, None)
                self._part = None if part is None else memoryview(part)
        except httpx.TransportError as error:
            raise as_problem(error, self._deadline) from error
        if self._part is None:
            return 0
        count = min(len(target), len(self._part))
        target[:count] = self._part[:count]
        self._part = self._part[count:]
        return count

    async def close(self) -> None:
        await self._parts.aclose()
        is_sync = isinstance(self._response.stream, httpx.SyncByteStream)
        await _result(self._response.close() if is_sync else self._response.aclose())


async def _parts(response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body's bytes as httpx receives them, or as a hook of the caller or a mock has read them."""
    if response.is_stream_consumed:
        yield response.content
    elif isinstance(response.stream, httpx.SyncByteStream):
        for part in response.iter_raw():
            yield part
    else:
        async for part in response.aiter_raw():
            yield part


def as_problem(error: httpx.TransportError, deadline: Deadline) -> ConnectionProblem:
    """The problem by which this SDK calls a transport error of httpx."""
    phase: WaitPhase = "write" if isinstance(error, (httpx.WriteTimeout, httpx.WriteError)) else "read"
    match error:
        case httpx.LocalProtocolError():
            raise error  # a request that is not HTTP is a mistake in this file, not a problem of the connection
        case httpx.ConnectTimeout() | httpx.ConnectError() | httpx.ProxyError() | httpx.UnsupportedProtocol():
            deadline.check()
            return connect_failed(deadline, error)
        case httpx.TimeoutException():
            return deadline.timed_out("pool" if isinstance(error, httpx.PoolTimeout) else phase)
        case httpx.RemoteProtocolError():
            said = str(error)
            if "disconnected" in said:
                return no_answer(deadline.origin)
            return ConnectionProblem(f"{deadline.origin} speaks no HTTP/1.1 ({said})")
        case _:
            return broken(deadline, phase, error)
