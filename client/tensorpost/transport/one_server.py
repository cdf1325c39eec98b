"""A client's way to its server: over our own sockets or over httpx, with retries."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..network.connection_pool import CLOSED
from ..network.deadline import Deadline
from ..network.options import DEFAULT_LIMITS, DEFAULT_URL, Limits, Timeout
from ..network.origin import Origin
from ..network.runtime import Runtime
from ..values import problems
from ..values.checks import headers_of, shown, text, whole_number
from ..values.problems import InvalidParameter, TensorpostError
from .api_key import find_api_key
from .held_names import HeldNames, free_field
from .http1 import Request
from .response import Response
from .socket_sender import SocketSender
from .tracing import CallSpan, begin_span

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

_OURS: Mapping[str, str] = {"accept-encoding": "identity", "user-agent": "tensorpost"}
_FIRST_BACKOFF_SECONDS = 0.1  # doubled with every retry; a refusal for want of memory usually clears in one request
_MOST_WAITED_SECONDS = 30.0  # between the attempts of one call, all together


class Sender(Protocol):
    """Sends requests to one server. Its network errors are `ConnectionProblem`s."""

    async def send(self, request: Request, deadline: Deadline) -> Response: ...
    async def close(self) -> None: ...


class Transport:
    """A client's way to its server, made from the arguments of `Client`.

    Attributes:
        origin: the server.
        runtime: how its waits wait.
        retries: how often a call is repeated.

    Raises:
        InvalidParameter: an argument is malformed.
    """

    def __init__(
        self,
        runtime: Runtime,
        base_url: str,
        timeout: float | Timeout | None,
        limits: Limits,
        retries: int,
        api_key: str | Path | None,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | bool,
        uds: str | None,
        http_client: Any,
        address: str | None = None,
    ) -> None:
        text("base_url", base_url, f"a URL, for instance {DEFAULT_URL!r}")
        self.retries = whole_number("retries", retries, 0)
        if not isinstance(cast("object", limits), Limits):
            raise InvalidParameter(
                f"limits is {shown(limits)}; it must be tensorpost.Limits, for instance Limits(max_connections=10)"
            )
        if uds is not None:
            text("uds", uds, "the path of a Unix socket as a text, or None")
        if not isinstance(cast("object", tls), bool):
            import ssl

            if not isinstance(tls, ssl.SSLContext):
                raise InvalidParameter(f"tls is {shown(tls)}; it must be an ssl.SSLContext, True or False")
        if http_client is not None and (uds is not None or tls is not True or limits is not DEFAULT_LIMITS):
            raise InvalidParameter("limits, tls and uds are settings of the httpx client that is given as http_client")
        every = {**_OURS, **headers_of(headers)}
        if "authorization" not in every:
            if (key := find_api_key(api_key, base_url)) is not None:
                every["authorization"] = f"Bearer {key}"
        elif api_key:
            raise InvalidParameter("there are an api_key and a header Authorization; give one of the two")
        self.origin = Origin.parse(base_url, headers=every, timeout=Timeout.from_value(timeout), tls=tls, uds=uds)
        if address is not None:
            self.origin = replace(self.origin, address=address)
        self.runtime, self._limits, self._http_client = runtime, limits, http_client
        self._senders: dict[int, Sender] = {os.getpid(): self._new_sender()}
        self._closed = False
        self.held = HeldNames()

    @property
    def sender(self) -> Sender:
        """Our own sockets, or httpx for a proxy and for a caller's own httpx client.

        Each process has its own: two that use one connection would get each other's answers. Those of the process that
        this one was forked from stay open.
        """
        if os.getpid() not in self._senders:
            self._senders[os.getpid()] = self._new_sender()
        return self._senders[os.getpid()]

    def _new_sender(self) -> Sender:
        proxy = None if self._http_client is not None else self.origin.proxy()
        if self._http_client is None and proxy is None:
            return SocketSender(self.origin, self._limits)
        from .httpx_sender import HttpxSender  # httpx takes long to load

        return HttpxSender(self.origin, self._limits, self.runtime, proxy, self._http_client)

    async def close(self) -> None:
        """Close all connections; a caller's own httpx client stays open."""
        self._closed = True
        if os.getpid() in self._senders:
            await self.sender.close()

    def deadline(self) -> Deadline:
        """The waits of a call that begins now."""
        return Deadline(self.runtime, self.origin)

    async def ask(self, request: Request, *, repeat: bool = True, deadline: Deadline | None = None) -> Response:
        """Send a request until the head of a successful response came; it is repeated while its errors may pass.

        Args:
            request: what to send.
            repeat: whether it is repeated.
            deadline: the waits of a call with several requests; default those of this request alone.

        Raises:
            TensorpostError: what the server refused, or `ConnectionProblem`s: the error of the last attempt.
        """
        deadline = deadline or self.deadline()
        span = begin_span(self.origin, request)
        if span is None:
            return await self._ask(request, repeat, None, deadline)
        request.fields += span.fields
        try:
            response = await self._ask(request, repeat, span, deadline)
        except BaseException as error:
            span.end(error.status if isinstance(error, TensorpostError) else None, error)
            raise
        response.span = span
        return response

    async def attempt(self, request: Request, deadline: Deadline) -> Response:
        """Send a request once, within the time of a call that may have several attempts.

        Raises:
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        is_open = request.target.startswith("/v2/health/")  # which asks for no key, and so knows no owner
        fields, freed = request.fields, self.held.take() if self.held.freed and not is_open else []
        request.fields = fields + deadline.wait_field() + free_field(freed)
        try:
            response = await self.sender.send(request, deadline)
        except BaseException:
            self.held.freed.extend(freed)
            raise
        finally:
            request.fields = fields
        if 200 <= response.status < 300:
            return response
        async with response:
            raise self.held.gone(await response.error())

    async def _ask(self, request: Request, repeat: bool, span: CallSpan | None, deadline: Deadline) -> Response:
        """`ask`, which tells the span of the call."""
        retry, waited = 1, 0.0
        while True:
            try:
                return await self.attempt(request, deadline)
            except TensorpostError as error:
                wait = wait_before_retry(retry, error, waited) if repeat and retry <= self.retries else None
                if wait is None or wait >= deadline.left:
                    raise
                if span is not None:
                    span.repeats(retry, error)
            await self.runtime.sleep(wait)
            retry, waited = retry + 1, waited + wait


def wait_before_retry(retry: int, error: TensorpostError, waited: float) -> float | None:
    """Seconds to wait before a retry, counted from 1, after `waited` seconds of earlier waits; None to give up.

    The wait is what the server asked for with `Retry-After` plus up to one backoff, or between a half and a whole
    backoff if it asked for nothing, at random, so that many clients do not come back at once. A server that asks for
    more than may be waited ends the call.
    """
    backoff = _FIRST_BACKOFF_SECONDS * 2 ** (retry - 1)
    asked = error.extra.get("retry_after_seconds")
    was_asked = isinstance(asked, (int, float)) and asked > 0
    wait = asked + backoff * random.random() if was_asked else backoff * (1 + random.random()) / 2  # noqa: S311 # no secret
    return wait if worth_retrying(error) and waited + wait <= _MOST_WAITED_SECONDS else None


def worth_retrying(error: TensorpostError) -> bool:
    """Whether the same request may succeed a little later. Every request of this SDK may be repeated: none has effects.

    Not repeated: what the server refused for good, a certificate that is not trusted, what broke off after the first
    byte of the answer, and timeouts, since a server that is too slow is not helped by more work.
    """
    if "certificate" in error.extra:
        return False
    passing = (
        problems.ConnectFailed, problems.TooBusy, problems.QuotaExceeded, problems.NotReady,
        problems.OutOfDeviceMemory, problems.DeviceLost,
    )  # fmt: skip
    # The exact base classes are what unnamed cases become: a connection closed before any answer, and a 429 or 503
    # from something in front of the server. Their subclasses are decided one by one.
    return isinstance(error, passing) or type(error) in (problems.ConnectionProblem, problems.Unavailable)
