"""Open connections between calls, and how many there may be."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .connection import Connection
from .deadline import Deadline
from .options import Limits

CLOSED = "the client has been closed; make a new one"


class ConnectionPool:
    """The connections of a client to its server. May be used by several threads, or by the tasks of one event loop."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()  # events of the calls that wait, oldest first
        self._idle: list[tuple[Connection, float]] = []  # with the time of its last use, oldest first
        self._busy = 0
        self._closed = False

    async def acquire(self, deadline: Deadline) -> Connection | None:
        """Wait until there may be one more connection. Each call of this is followed by one of `release`.

        Returns:
            An idle connection that the server has not closed; None if one must be made.
        """
        most, event = self._limits.max_connections, None
        with self._lock:
            self._require_open()
            if most is None or self._busy < most:
                self._busy += 1
            else:
                event = deadline.runtime.event()
                self._waiting.append(event)
        if event is not None:
            await self._wait(event, deadline)
        while (connection := self._take()) is not None and not connection.is_silent():
            connection.sock.close()
        return connection

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    async def _wait(self, event: Any, deadline: Deadline) -> None:
        """Wait for a call that ends and passes its place on."""
        try:
            if not await deadline.runtime.wait_for(event, deadline.seconds("pool")):
                raise deadline.timed_out("pool", self._limits.max_connections)
            self._require_open()
        except BaseException:
            with self._lock:
                waits = event in self._waiting
                if waits:
                    self._waiting.remove(event)
            if not waits:
                self.release()  # the place that came too late goes to the next one
            raise

    def _take(self) -> Connection | None:
        """The idle connection used last, which is the least likely to be closed."""
        with self._lock:
            expiry = self._limits.keepalive_expiry
            while expiry is not None and self._idle and self._idle[0][1] < self._clock() - expiry:
                self._close_idle(len(self._idle) - 1)
            return self._idle.pop()[0] if self._idle else None

    def release(self, connection: Connection | None = None, *, reusable: bool = False) -> None:
        """A call has ended. Keep its connection if it can serve another one and there is room, or close it."""
        if connection is not None and not reusable:
            connection.sock.close()
        with self._lock:
            if connection is not None and reusable:
                self._idle.append((connection, self._clock()))
                most = 0 if self._closed else self._limits.max_keepalive_connections
                self._close_idle(len(self._idle) if most is None else most)
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._busy -= 1

    def _close_idle(self, most: int) -> None:
        while len(self._idle) > most:
            self._idle.pop(0)[0].sock.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        with self._lock:
            self._closed = True
            self._close_idle(0)
