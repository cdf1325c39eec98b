"""Limits on what a connection may cost, and the monitor that looks for connections which are too slow.

Each limit is a setting. A timer for every connection would cost every request, so one timer per server looks at all of
them; what is too slow is found a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ... import machine
from ...settings import Settings
from .connection_budget import ConnectionBudget

__all__ = ["CallerPace", "ConnectionLimits", "ConnectionMonitor", "Phase"]


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
        connections: that may be open in all.
        connections_per_address: that may be open from one address; None for half of all.
    """

    head_bytes: int = 65_536
    head_seconds: float = 30.0
    receive_seconds: float = 60.0
    send_seconds: float = 60.0
    bytes_per_second: int = 16_384
    drain_bytes: int = 64 << 20
    connections: int = field(default_factory=machine.connections)
    connections_per_address: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """The limits in the settings."""
        return cls(
            settings.max_http_head_bytes,
            settings.head_timeout_seconds,
            settings.receive_timeout_seconds,
            settings.send_timeout_seconds,
            settings.min_bytes_per_second,
            settings.max_drain_bytes,
            settings.max_connections,
            settings.max_connections_per_address,
        )

    @property
    def interval(self) -> float:
        """Seconds between two checks of all connections."""
        least = min(self.head_seconds, self.receive_seconds, self.send_seconds)
        return min(1.0, max(0.01, least / 4))


class ConnectionMonitor:
    """Checks all connections of a server once per interval, as long as there are any.

    Args:
        connections: of the server. Each has `check(now)`, except WebSockets, which are passed over.
        budget: of the server; its log is written at the same times.
        loop: of the server.
        interval: seconds between two checks.
    """

    def __init__(
        self, connections: set[Any], budget: ConnectionBudget, loop: asyncio.AbstractEventLoop, interval: float
    ) -> None:
        self._connections = connections
        self._budget = budget
        self._schedule: Callable[[], asyncio.TimerHandle] = lambda: loop.call_later(interval, self._check)
        self._now = loop.time
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check from now on; called for every new connection."""
        if self._timer is None:
            self._timer = self._schedule()

    def _check(self) -> None:
        self._timer = None
        self._budget.log()
        now = self._now()
        for connection in [*self._connections]:
            if hasattr(connection, "check"):
                connection.check(now)
        if self._connections:
            self._timer = self._schedule()


class Phase(NamedTuple):
    """What the caller of a connection has to do now.

    Attributes:
        name: "head", "body" or "response".
        identity: another value begins another measurement.
        moved: the bytes that have moved until now, from any origin.
        window: the time that their rate is measured over, seconds.
    """

    name: str
    identity: object
    moved: int
    window: float


class CallerPace:
    """How fast the caller of a connection moves bytes while it is the caller's turn.

    Args:
        limits: the limits of the connection.

    Attributes:
        arrived_bytes: all bytes that the caller has sent.
        write_pauses: how often the transport's buffer was full.
    """

    __slots__ = ("_before", "_limits", "_since", "arrived_bytes", "write_pauses")

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._before: Phase | None = None
        self._since = 0.0
        self.arrived_bytes = self.write_pauses = 0

    def head(self, cycle: object) -> Phase:
        """The caller sends the head of the request after this one."""
        return Phase("head", cycle, 0, self._limits.head_seconds)

    def body(self, cycle: object) -> Phase:
        """The caller sends the body of this request."""
        return Phase("body", cycle, self.arrived_bytes, 2 * self._limits.receive_seconds)

    def response(self, unsent: int) -> Phase:
        """The caller reads a response, of which so many bytes wait here."""
        return Phase("response", self.write_pauses, -unsent, 2 * self._limits.send_seconds)

    def is_too_slow(self, phase: Phase | None, now: float) -> bool:
        """Whether fewer bytes moved than the limits ask for, over a whole window of the same phase.

        Args:
            phase: None if it is not the caller's turn.
            now: the loop's time, seconds.
        """
        before = self._before
        if phase is not None and before is not None and phase[:2] == before[:2]:
            if now - self._since < phase.window:
                return False
            if phase.moved - before.moved < max(1, self._limits.bytes_per_second * phase.window):
                self._before = None
                return True
        self._before, self._since = phase, now
        return False
