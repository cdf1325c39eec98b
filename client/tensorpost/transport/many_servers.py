"""A client's way to several servers that do the same work: the one with the fewest outstanding bytes gets the call.

Outstanding are the bytes of request bodies that were given to a server and not answered, and of answers not read yet.
They say more than a number of calls where one call has 1 KiB and the next 1 GiB, and each client knows its own without
asking anybody.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from ..network.deadline import Deadline
from ..network.options import DEFAULT_URL, URL_VARIABLE
from ..network.origin import Origin
from ..network.runtime import Runtime
from ..values.checks import shown
from ..values.problems import ConnectFailed, InvalidParameter, NotReady, QuotaExceeded, TensorpostError, TooBusy
from .http1 import Request
from .one_server import Sender, Transport, wait_before_retry, worth_retrying
from .response import Response
from .tracing import CallSpan, begin_span

DNS_PREFIX = "dns+"
_LOOKUP_SECONDS = 30.0  # between two look-ups of a name; the usual time to live of a name in a cluster
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 0.5, 30.0  # of a server that failed; doubled with every failure in a row
_HEAD_BYTES = 4096  # what a call counts beside its body, so that small calls are spread too
_MOST_NAMED = 4  # servers in a message
_PROBE_BYTES = 1 << 20  # a body from which on a server that failed is asked first whether it takes requests


def new_transport(
    base_url: str | Sequence[str] | None,
    make: Callable[[str, str | None], Transport],
    uds: str | None,
    shared_memory: bool = False,
) -> Transport | ManyServers:
    """A client's way to the server of a URL, to those of several, or to every address of a `dns+http` URL's name.

    Args:
        base_url: base URL, or several, as `Client` takes them.
        make: makes the way to one server, from its URL and the address to connect to (None: look its host up).
        uds: path of a Unix domain socket, as `Client` takes it.
        shared_memory: whether tensors travel in shared memory, as `Client` takes it.

    Raises:
        InvalidParameter: there is no URL, one twice, or a Unix socket or shared memory for several servers.
    """
    if base_url is None:
        return _of_environment(make, uds, shared_memory)
    if isinstance(base_url, str) and not base_url.startswith(DNS_PREFIX):
        return make(base_url, None)
    if uds is not None:
        raise InvalidParameter("a Unix socket leads to one server; leave out uds, or give one URL")
    if shared_memory:
        raise InvalidParameter("shared memory is of one server on this host; leave out shared_memory, or give one URL")
    if isinstance(base_url, str):
        url = base_url.removeprefix(DNS_PREFIX)
        return ManyServers([], lambda address: make(url, address), make(url, None))
    given = cast("object", base_url)
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray)):
        raise InvalidParameter(f"base_url is {shown(given)}; it must be a URL, or several")
    urls = list(base_url)
    if not urls or len(set(urls)) < len(urls):
        raise InvalidParameter(f"base_url is {shown(urls)}; it must be a URL, or several that differ")
    if any(str(url).startswith(DNS_PREFIX) for url in urls):
        raise InvalidParameter(f"a {DNS_PREFIX} URL means all addresses of its host name; it must be the only URL")
    transports = [make(url, None) for url in urls]
    return ManyServers(transports, None, transports[0])


def _of_environment(
    make: Callable[[str, str | None], Transport], uds: str | None, shared_memory: bool
) -> Transport | ManyServers:
    url = os.environ.get(URL_VARIABLE)
    try:
        return new_transport(url or DEFAULT_URL, make, uds, shared_memory)
    except InvalidParameter as error:
        if url:
            error.detail += f" (the URL is the variable {URL_VARIABLE}'s)"
        raise


@dataclass(slots=True, eq=False)
class _ServerState:
    """One of the servers, as this client sees it.

    Attributes:
        outstanding: bytes given and not answered, and of answers not read.
        failures: how many calls in a row failed.
        rests_until: no call before this time of the monotonic clock, unless all rest.
        last: number of the last call that it got, to take turns where the bytes are equal.
    """

    transport: Transport
    outstanding: int = 0
    failures: int = 0
    rests_until: float = 0.0
    last: int = 0


@dataclass(slots=True)
class _Share:
    """The outstanding bytes of one call at a server, subtracted when the call has ended."""

    server: _ServerState
    lock: threading.Lock
    bytes: int = field(default=0)

    def set(self, count: int) -> None:
        with self.lock:
            self.server.outstanding += count - self.bytes
            self.bytes = count

    def end(self) -> None:
        self.set(0)


class ManyServers:
    """Several `Transport`s with the methods of one.

    A call goes to the server with the fewest outstanding bytes of those that do not rest. If it could not be answered
    there (no connection, too busy, not ready, a device lost), it goes to the next one at once, since operators have no
    effects. When all were tried it waits as a call to one server does, and begins anew, `retries` times. Not repeated
    elsewhere are timeouts, which more work does not help, and used-up quotas, which are waited for.

    A server that failed rests, for half a second at first and for 30 at most, longer with every failure in a row; one
    that was too busy for as long as it asked for. A call with a large body asks it first whether it is ready again.

    Args:
        transports: one for each server; empty if their addresses are looked up.
        at_address: makes the way to an address of the name; None if there is nothing to look up.
        first: whose settings are those of all; it is used only if it is one of `transports`.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        at_address: Callable[[str], Transport] | None,
        first: Transport,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = [_ServerState(transport) for transport in transports]
        self._at_address, self._first, self._clock = at_address, first, clock
        self._lock = threading.Lock()
        self._calls = 0
        self._next_lookup = 0.0

    @property
    def origin(self) -> str:
        """All servers, for messages."""
        if self._at_address is not None:
            return f"every address of {self._first.origin}"
        return ", ".join(str(server.transport.origin) for server in self._servers)

    @property
    def sender(self) -> Sender:
        """The sender of one of them; all are of the same kind."""
        return self._first.sender

    @property
    def runtime(self) -> Runtime:
        """How waits wait."""
        return self._first.runtime

    async def close(self) -> None:
        """Close the connections to all of them."""
        await self._first.close()
        for server in self._servers:
            await server.transport.close()

    @property
    def retries(self) -> int:
        """How often a call is repeated."""
        return self._first.retries

    def deadline(self) -> Deadline:
        """See `Transport.deadline`."""
        return Deadline(self.runtime, self._first.origin)

    async def ask(self, request: Request, *, repeat: bool = True, deadline: Deadline | None = None) -> Response:
        """Send a request, as `Transport.ask`, to the least busy server, and to the others if that cannot answer.

        Raises:
            TensorpostError: the refusal or failure of the last server that was tried; its detail has those of the
                others too.
        """
        runtime, deadline = self.runtime, deadline or self.deadline()
        await self._look_up(runtime, deadline)
        span: CallSpan | None = None
        fields, retry, waited, tried = request.fields, 1, 0.0, list[_ServerState]()
        failures = dict[str, str]()
        while True:
            server = self._least_busy(tried)
            tried.append(server)
            if span is None and (span := begin_span(server.transport.origin, request)) is not None:
                fields += span.fields
            request.fields = fields
            try:
                response = await self._attempt(server, request, deadline)
            except TensorpostError as error:
                again, origin = worth_retrying(error), str(server.transport.origin)
                failures.pop(origin, None)
                failures[origin] = error.detail
                elsewhere = again and not isinstance(error, QuotaExceeded) and self._someone_else(tried)
                wait = 0.0 if elsewhere else None
                if repeat and again and not elsewhere and retry <= self._first.retries:
                    wait = wait_before_retry(retry, error, waited)
                if wait is None or wait >= deadline.left:
                    if span is not None:
                        span.end(error.status, error)
                    if again and len(failures) > 1:
                        error.detail = _detail_of_all(failures)
                    raise
                if span is not None:
                    span.repeats(retry, error)
            except BaseException as error:
                if span is not None:
                    span.end(None, error)
                raise
            else:
                response.span = span
                return response
            if not elsewhere:
                await runtime.sleep(wait)
                retry, waited = retry + 1, waited + wait
                tried.clear()

    async def _attempt(self, server: _ServerState, request: Request, deadline: Deadline) -> Response:
        share, own_deadline = _Share(server, self._lock), deadline.for_origin(server.transport.origin)
        share.set(request.content_length + _HEAD_BYTES)
        try:
            if server.failures and request.content_length >= _PROBE_BYTES:
                probe = Request("GET", "/v2/health/ready", (("accept", "application/json"),))
                async with await server.transport.attempt(probe, own_deadline) as response:
                    await response.read()
            response = await server.transport.attempt(request, own_deadline)
        except BaseException as error:
            share.end()
            self._note(server, error)
            raise
        server.failures, server.rests_until = 0, 0.0
        share.set(_HEAD_BYTES + (response.expected or 0))
        response.when_closed = share.end
        return response

    def _note(self, server: _ServerState, error: BaseException) -> None:
        """Send no calls to a server for a while after a failure, or for as long as it asked for when too busy."""
        if not isinstance(error, TensorpostError) or isinstance(error, QuotaExceeded):
            return
        asked = error.extra.get("retry_after_seconds")
        if isinstance(error, TooBusy):
            server.rests_until = self._clock() + (asked if isinstance(asked, (int, float)) else _FIRST_REST_SECONDS)
        elif worth_retrying(error) or isinstance(error, (ConnectFailed, NotReady)):
            server.failures += 1
            rest = min(_LONGEST_REST_SECONDS, _FIRST_REST_SECONDS * 2 ** min(server.failures - 1, 10))
            server.rests_until = self._clock() + rest

    def _least_busy(self, tried: Sequence[_ServerState]) -> _ServerState:
        now = self._clock()
        with self._lock:
            left = [server for server in self._servers if server not in tried] or self._servers
            awake = [server for server in left if server.rests_until <= now]
            chosen = (
                min(awake, key=lambda server: (server.outstanding, server.last))
                if awake
                else min(left, key=lambda server: server.rests_until)
            )
            self._calls += 1
            chosen.last = self._calls
            return chosen

    def _someone_else(self, tried: Sequence[_ServerState]) -> bool:
        """Whether another server has not been tried in this round."""
        return any(server not in tried for server in self._servers)

    async def _look_up(self, runtime: Runtime, deadline: Deadline) -> None:
        """Look the name up again if its time has come. What it knew stays if that fails.

        Raises:
            ConnectFailed: the name has no address, and never had.
        """
        with self._lock:
            if self._at_address is None or self._clock() < self._next_lookup:
                return
            self._next_lookup = self._clock() + _LOOKUP_SECONDS
        origin: Origin = self._first.origin
        try:
            entries = await runtime.addresses(origin.host, origin.port, deadline.seconds("connect"))
        except (OSError, UnicodeError) as error:
            self._next_lookup = 0.0
            if self._servers:
                return
            raise ConnectFailed(f"{origin.host} has no address: {error}; is this its name?") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        known = {server.transport.origin.address: server for server in self._servers}
        added = [_ServerState(self._at_address(address)) for address in addresses if address not in known]
        with self._lock:
            self._servers = [known[address] for address in addresses if address in known] + added
        for address, server in known.items():
            if address not in addresses:
                await server.transport.close()  # calls under way keep their connection until they end


def _detail_of_all(failures: dict[str, str]) -> str:
    """What several servers said that failed, by their origins; the last one first."""
    said = [detail if origin in detail else f"{origin}: {detail}" for origin, detail in reversed(failures.items())]
    more = [f"and {len(said) - _MOST_NAMED} other servers"] if said[_MOST_NAMED:] else []
    return "; ".join([*said[:_MOST_NAMED], *more])
