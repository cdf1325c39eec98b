"""Limits on what a connection may cost, and the monitor that looks for connections which are too slow.

Each limit is a setting. A timer for every connection would cost every request, so one timer per server looks at all of
them; what is too slow is found a moment later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ... import machine
from ...settings import Settings
from ..caller_address import TrustedProxies
from .connection_budget import ConnectionBudget

if TYPE_CHECKING:  # httptools may not be installed
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_GRPC_PART = 4


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may cost; the settings give the reasons.

    Attributes:
        head_bytes: largest head of a request: target, header fields, and trailer fields.
        head_seconds: longest time for a head, and for a new connection to send its first one.
        receive_seconds: the rate of a body is measured over twice this time.
        send_seconds: the rate of a response is measured over twice this time.
        bytes_per_second: lowest rate of a body and of a response; 0 asks for one byte in that time.
        drain_bytes: most bytes of a body that are read and discarded after its request was answered.
        connections: connections that may be open in all.
        connections_per_address: connections that may be open from one address; None for half of all.
        proxies: peers that forward the addresses of their callers; None if there are none.
    """

    head_bytes: int = 65_536
    head_seconds: float = 30.0
    receive_seconds: float = 60.0
    send_seconds: float = 60.0
    bytes_per_second: int = 16_384
    drain_bytes: int = 64 << 20
    connections: int = field(default_factory=machine.connections)
    connections_per_address: int | None = None
    proxies: TrustedProxies | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> ConnectionLimits:
        """The limits in the settings; where there is gRPC, a quarter of the connections is its."""
        connections = settings.max_connections
        if settings.grpc_port is not None:
            connections = max(1, connections - connections // _GRPC_PART)
        return cls(
            settings.max_http_head_bytes, settings.head_timeout_seconds, settings.receive_timeout_seconds,
            settings.send_timeout_seconds, settings.min_bytes_per_second, settings.max_drain_bytes,
            connections, settings.max_connections_per_address, TrustedProxies.from_settings(settings),
        )  # fmt: skip

    @classmethod
    def of_grpc(cls, settings: Settings) -> ConnectionLimits:
        """The limits of the port of gRPC."""
        connections = max(1, settings.max_connections // _GRPC_PART)
        return replace(cls.from_settings(settings), connections=connections)

    @property
    def interval(self) -> float:
        """Seconds between two checks of all connections."""
        least = min(self.head_seconds, self.receive_seconds, self.send_seconds)
        return min(1.0, max(0.01, least / 4))


class ConnectionMonitor:
    """Checks all connections of a server once per interval, as long as there are any.

    Args:
        connections: the connections of a server. WebSockets among them, which have no `check(now)`, are passed over.
        budget: the budget of connections; its log is written at the same times.
        loop: the event loop of the server.
        interval: the time between two checks, seconds.
    """

    def __init__(
        self, connections: set[Any], budget: ConnectionBudget, loop: asyncio.AbstractEventLoop, interval: float
    ) -> None:
        self._connections, self._budget, self._loop, self._interval = connections, budget, loop, interval
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check from now on; called for every new connection."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._check)

    def _check(self) -> None:
        self._timer = None
        self._budget.log()
        now = self._loop.time()
        for connection in [*self._connections]:
            if hasattr(connection, "check"):
                connection.check(now)
        if self._connections:
            self.start()


class CallerPace:
    """How fast the caller of a connection moves bytes while it is the caller's turn.

    Attributes:
        arrived_bytes: all bytes that the caller has sent.
        write_pauses: the number of times that the transport's buffer was full.
    """

    __slots__ = ("_limits", "_moved", "_phase", "_since", "arrived_bytes", "write_pauses")

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._phase: tuple[str, object] | None = None
        self._since, self._moved = 0.0, 0  # of the phase, when its measurement began
        self.arrived_bytes = self.write_pauses = 0

    def slow_phase(
        self, now: float, transport: asyncio.Transport, cycle: RequestResponseCycle | None, *,
        writes: bool, reads: bool, expects_head: bool,
    ) -> str | None:  # fmt: skip
        """What the caller does too slowly: "head", "body" or "response"; None for nothing.

        Args:
            now: the loop's time, seconds.
            transport: the transport of the connection.
            cycle: the request whose bytes arrive, or arrived last.
            writes: whether more can be written.
            reads: whether bytes of requests are read.
            expects_head: whether a head must come once that request is answered.
        """
        phase, moved, window, limits = None, 0, 0.0, self._limits
        is_answered, closing = cycle is None or cycle.response_complete, transport.is_closing()
        if closing or not writes:
            unsent = transport.get_write_buffer_size()
            if closing and unsent and not is_answered:
                transport.abort()  # the response will never be complete
            else:
                phase, moved, window = ("response", self.write_pauses), -unsent, 2 * limits.send_seconds
        elif reads and cycle is not None and cycle.more_body:
            phase, moved, window = ("body", cycle), self.arrived_bytes, 2 * limits.receive_seconds
        elif reads and is_answered and expects_head:
            phase, window = ("head", cycle), limits.head_seconds
        if phase is not None and phase == self._phase and now - self._since < window:
            return None
        too_slow = phase == self._phase and moved - self._moved < max(1, limits.bytes_per_second * window)
        self._phase, self._since, self._moved = phase, now, moved
        return phase[0] if phase is not None and too_slow else None
