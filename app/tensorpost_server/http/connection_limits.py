"""What a connection may cost, and who looks whether one costs more.

Each limit is a setting. A timer for every connection would cost every request, so one for all of a server looks at them
now and then; what is too slow is found a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from ..settings import Settings

__all__ = ["Limits", "Watch", "Watched"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may cost; the settings say why.

    Attributes:
        head_bytes: largest head of a request: target, header fields, and trailer fields.
        head_seconds: longest time for a head, and for a connection to send its first one.
        receive_seconds: twice this is the time over which the rate of a body is taken.
        send_seconds: the same for an answer.
        bytes_per_second: lowest rate of a body and of an answer; 0 asks for some byte in that time.
        drain_bytes: most bytes of a body that are read for nothing after its request was answered.
    """

    head_bytes: int = 65_536
    head_seconds: float = 30.0
    receive_seconds: float = 60.0
    send_seconds: float = 60.0
    bytes_per_second: int = 16_384
    drain_bytes: int = 64 << 20

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that the settings name."""
        return cls(
            settings.max_http_head_bytes,
            settings.head_timeout_seconds,
            settings.receive_timeout_seconds,
            settings.send_timeout_seconds,
            settings.min_bytes_per_second,
            settings.max_drain_bytes,
        )

    @property
    def tick(self) -> float:
        """Seconds between two looks at all connections."""
        return min(1.0, max(0.01, min(self.head_seconds, self.receive_seconds, self.send_seconds) / 4))


class Watched:
    """A connection that a `Watch` looks at; it passes over others, which are WebSockets'."""

    def check(self, now: float) -> None:
        """Called every now and then.

        Args:
            now: the loop's time, seconds.
        """
        raise NotImplementedError


class Watch:
    """Looks at all connections of a server now and then: one timer, where one for each would cost every request."""

    _all: ClassVar[WeakKeyDictionary[ServerState, Watch]] = WeakKeyDictionary()

    def __init__(self, connections: set[Any], loop: asyncio.AbstractEventLoop, tick: float) -> None:
        self._connections = connections
        self._later: Callable[[], asyncio.TimerHandle] = lambda: loop.call_later(tick, self._look)
        self._now = loop.time
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, state: ServerState, loop: asyncio.AbstractEventLoop, tick: float) -> Watch:
        """The watch of this server; made by its first connection."""
        if (found := cls._all.get(state)) is None:
            found = cls._all[state] = cls(state.connections, loop, tick)
        return found

    def wake(self) -> None:
        """There is a connection to look at."""
        if self._timer is None:
            self._timer = self._later()

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        for connection in [*self._connections]:
            if isinstance(connection, Watched):
                connection.check(now)
        if self._connections:
            self._timer = self._later()
