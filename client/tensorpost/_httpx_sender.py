"""TLS and proxies, by httpx. Nothing else imports httpx, and this is loaded only for a server that needs it.

httpx's transports are used without its client: no redirects, cookies or decoding stand between a body and its array.
A request's body goes out as an iterator of pieces with a Content-Length; given as one `bytes` object it would be copied
over and over while it is being sent.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import asdict
from typing import Any, cast

import httpx

from ._options import Limits
from ._origin import CLOSED, Origin
from ._sockets import talking
from ._steps import AnswerHead, Request
from .problems import ConnectFailed, ConnectionProblem, InvalidParameter, RequestTimeout

__all__ = ["AsyncOverHttpx", "OverHttpx"]


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, request: Request) -> None:
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return cast("Iterator[bytes]", self._request.pieces())  # httpx passes memoryviews on as they are

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._request.pieces():
            yield cast("bytes", piece)


def _httpx_request(origin: Origin, request: Request) -> httpx.Request:
    headers = {"host": origin.authority, **origin.headers, **request.headers}
    if request.body:
        headers["content-length"] = str(request.content_length)
    url = httpx.URL(scheme=origin.scheme, host=origin.host, port=origin.port)
    url = url.copy_with(raw_path=(origin.prefix + request.target).encode("ascii"))
    extensions = {"timeout": asdict(origin.timeout)}  # the names are httpx's own
    return httpx.Request(request.method, url, headers=headers, stream=_Pieces(request), extensions=extensions)


def _answer_head(response: httpx.Response) -> AnswerHead:
    return AnswerHead(response.status_code, {name.lower(): value for name, value in response.headers.items()})


def _options(origin: Origin, limits: Limits) -> dict[str, Any]:
    proxy = origin.proxy()
    if proxy is not None:
        try:
            url = httpx.URL(proxy)
        except httpx.InvalidURL as error:
            raise InvalidParameter(f"the proxy from the environment is no URL: {error}; see NO_PROXY") from None
        if url.scheme not in ("http", "https"):
            shown = f"{url.scheme}://{url.host}"  # nothing else of it: credentials may stand there
            raise InvalidParameter(f"the proxy {shown[:100]!r} from the environment is not http or https; see NO_PROXY")
    return {"verify": origin.tls, "proxy": proxy, "limits": httpx.Limits(**asdict(limits))}


def _reason(origin: Origin) -> str:
    return "httpx, for " + ("TLS" if origin.proxy() is None else "a proxy")


class _Chunk:
    """What httpx gave and nobody has taken yet: it decides how much comes at once, our readers decide how much goes."""

    def __init__(self) -> None:
        self._view = memoryview(b"")

    def __bool__(self) -> bool:
        return bool(self._view)

    def put(self, data: bytes) -> None:
        self._view = memoryview(data)

    def take(self, into: memoryview) -> int:
        count = min(len(into), len(self._view))
        into[:count] = self._view[:count]
        self._view = self._view[count:]
        return count


class OverHttpx:
    """Blocking httpx."""

    def __init__(self, origin: Origin, limits: Limits) -> None:
        self._origin = origin
        self._make: Callable[[], httpx.HTTPTransport] = lambda: httpx.HTTPTransport(**_options(origin, limits))
        self._http, self._process = self._make(), os.getpid()
        self._closed = False

    def __str__(self) -> str:
        return _reason(self._origin)

    def send(self, request: Request) -> _HttpxAnswer:
        """Send a request and wait for the head of its answer."""
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._process != os.getpid():  # forked: the connections belong to the other process
            self._http, self._process = self._make(), os.getpid()
        with _mapped_errors(self._origin):
            return _HttpxAnswer(self._origin, self._http.handle_request(_httpx_request(self._origin, request)))

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._http.close()


class _HttpxAnswer:
    def __init__(self, origin: Origin, response: httpx.Response) -> None:
        self.head = _answer_head(response)
        self._origin = origin
        self._stream = cast("httpx.SyncByteStream", response.stream)
        self._chunks = cast("Generator[bytes, None, None]", iter(self._stream))
        self._chunk = _Chunk()

    def read_into(self, into: memoryview) -> int:
        with _mapped_errors(self._origin):
            while not self._chunk:
                data = next(self._chunks, None)
                if data is None:
                    return 0
                self._chunk.put(data)
        return self._chunk.take(into)

    def close(self) -> None:
        self._chunks.close()
        self._stream.close()


class AsyncOverHttpx:
    """asyncio's side of httpx."""

    def __init__(self, origin: Origin, limits: Limits) -> None:
        self._origin = origin
        self._make: Callable[[], httpx.AsyncHTTPTransport] = lambda: httpx.AsyncHTTPTransport(
            **_options(origin, limits)
        )
        self._http, self._process = self._make(), os.getpid()
        self._closed = False

    def __str__(self) -> str:
        return _reason(self._origin)

    async def send(self, request: Request) -> _AsyncHttpxAnswer:
        """Send a request and wait for the head of its answer."""
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._process != os.getpid():  # forked: the connections belong to the other process
            self._http, self._process = self._make(), os.getpid()
        with _mapped_errors(self._origin):
            response = await self._http.handle_async_request(_httpx_request(self._origin, request))
            return _AsyncHttpxAnswer(self._origin, response)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        await self._http.aclose()


class _AsyncHttpxAnswer:
    def __init__(self, origin: Origin, response: httpx.Response) -> None:
        self.head = _answer_head(response)
        self._origin = origin
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._chunks = cast("AsyncGenerator[bytes, None]", aiter(self._stream))
        self._chunk = _Chunk()

    async def read_into(self, into: memoryview) -> int:
        with _mapped_errors(self._origin):
            while not self._chunk:
                try:
                    self._chunk.put(await anext(self._chunks))
                except StopAsyncIteration:
                    return 0
        return self._chunk.take(into)

    async def close(self) -> None:
        await self._chunks.aclose()
        await self._stream.aclose()


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLCertVerificationError):
        found = found.__cause__ or found.__context__
    return found


@contextlib.contextmanager
def _mapped_errors(origin: Origin) -> Generator[None]:
    """Httpx's transport errors as ours; each has a counterpart, and a test walks httpx's tree to see to it."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
        if (untrusted := _certificate_error(error)) is not None:
            raise ConnectFailed(
                f"the certificate of {origin} is not trusted: {untrusted.verify_message}; if it should be, pass "
                "tls=ssl.create_default_context(cafile=...) with the certificate of who signed it",
                extra={"certificate": untrusted.verify_message},
            ) from error
        raise ConnectFailed(
            f"no connection to {origin}: {str(error) or type(error).__name__}; is the server running, and is this its "
            "address?"
        ) from error
    except httpx.PoolTimeout as error:
        raise RequestTimeout(
            f"all connections were in use for {origin.timeout.pool} seconds; raise max_connections or the timeout's "
            "pool, or close streams that are not read to their end",
            extra={"phase": "pool"},
        ) from error
    except httpx.TimeoutException as error:
        with talking(origin, "write" if isinstance(error, httpx.WriteTimeout) else "read"):
            raise TimeoutError from error
    except httpx.LocalProtocolError:
        raise  # a request that is no HTTP is a mistake in this file, not a problem of the connection
    except httpx.RemoteProtocolError as error:
        if "disconnected" in str(error):
            raise ConnectionProblem(f"{origin} closed the connection without an answer") from error
        raise ConnectionProblem(f"what answered at {origin} does not speak HTTP/1.1 ({error})") from error
    except httpx.TransportError as error:
        said = str(error) or type(error).__name__
        phase = "write" if isinstance(error, httpx.WriteError) else "read"
        raise ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": phase}) from error
