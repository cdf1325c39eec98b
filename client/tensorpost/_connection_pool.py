"""Open connections between calls, and how many there may be."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._options import Limits
from ._runtime import Address, Deadline, Runtime
from .problems import RequestTimeout

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = ["CLOSED", "Connection", "ConnectionPool", "all_in_use"]

CLOSED = "the client has been closed; make a new one"


def all_in_use(seconds: float | None, most: int | None = None) -> RequestTimeout:
    """The error when no connection became free."""
    return RequestTimeout(
        f"all{f' {most}' if most else ''} connections were in use for {seconds} seconds; raise max_connections or the "
        "timeout's pool, or close streams that are not read to their end",
        extra={"phase": "pool"},
    )


@dataclass(frozen=True, slots=True)
class Connection:
    """An open socket that does not block; `blocked` are its errors for that, of which TLS has two of its own."""

    address: Address
    tls: bool
    sock: socket.socket | ssl.SSLSocket
    blocked: tuple[type[OSError], ...] = (BlockingIOError,)

    def is_silent(self) -> bool:
        """Whether nothing came, neither bytes nor the end. TLS may have sent records of its own."""
        try:
            self.sock.recv(1)
        except OSError as error:
            return isinstance(error, self.blocked)
        return False


class ConnectionPool:
    """The connections of a client. May be used by several threads, or by the tasks of one event loop.

    A process that was forked begins without any: two processes that use one connection would get each other's answers.

    Attributes:
        generation: grows in a process that was forked; what was begun under another one is not of this process.
    """

    def __init__(self, runtime: Runtime, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.runtime = runtime
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()  # events of the calls that wait, oldest first
        self._idle: list[tuple[Connection, float]] = []  # with the time of its last use, oldest first
        self._busy = 0
        self._closed = False
        self.generation = 0
        _POOLS.add(self)

    def begin_anew(self) -> None:
        """In a process that was forked: leave the connections, and the calls, to the process they belong to."""
        self._lock = threading.Lock()  # a thread that is not here may have held the old one
        self._waiting.clear()
        self._busy = 0
        self.generation += 1
        self._close_idle(0)  # closes this process' descriptors, and not the connections

    async def acquire(
        self, address: Address, seconds: float | None, deadline: Deadline, *, tls: bool = False
    ) -> Connection | None:
        """Wait until there may be one more connection. Each call of this is followed by one of `release`.

        Returns:
            An idle connection that the server has not closed; None if one must be made.

        Raises:
            RequestTimeout: all were in use for so many seconds.
            RuntimeError: the pool was closed.
        """
        most, event = self._limits.max_connections, None
        with self._lock:
            self.require_open()
            if most is None or self._busy < most:
                self._busy += 1
            else:
                event = self.runtime.event()
                self._waiting.append(event)
        if event is not None:
            await self._wait(event, seconds, deadline)
        while (connection := self._take(address, tls)) is not None and not connection.is_silent():
            connection.sock.close()
        return connection

    async def _wait(self, event: Any, seconds: float | None, deadline: Deadline) -> None:
        """Wait for a call that ends and passes its place on."""
        granted = False
        try:
            granted = await self.runtime.wait_for(event, deadline.clip(seconds))
        finally:
            with self._lock:
                passed_on = event not in self._waiting
                if not passed_on:
                    self._waiting.remove(event)
            if passed_on and (self._closed or not granted):  # a place that came too late goes to the next one
                self.release()
        self.require_open()
        if not granted:
            deadline.clip(None)
            raise all_in_use(seconds, self._limits.max_connections)

    def require_open(self) -> None:
        """Refuse to go on once the pool was closed."""
        if self._closed:
            raise RuntimeError(CLOSED)

    def _take(self, address: Address, tls: bool) -> Connection | None:
        with self._lock:
            expiry = self._limits.keepalive_expiry
            while expiry is not None and self._idle and self._idle[0][1] < self._clock() - expiry:
                self._idle.pop(0)[0].sock.close()
            for index in range(len(self._idle) - 1, -1, -1):  # the one used last is the least likely to be closed
                connection = self._idle[index][0]
                if connection.tls is tls and connection.address == address:
                    del self._idle[index]
                    return connection
            if self._limits.max_connections is not None:  # idle connections to other servers give way to a new one
                self._close_idle(self._limits.max_connections - self._busy)
            return None

    def release(self, reusable: Connection | None = None) -> None:
        """A call has ended. Keep its connection if it can serve another one and there is room."""
        with self._lock:
            if reusable is not None:
                self._idle.append((reusable, self._clock()))
                most = 0 if self._closed else self._limits.max_keepalive_connections
                if most is not None:
                    self._close_idle(most)
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._busy -= 1

    def _close_idle(self, most: int) -> None:
        while len(self._idle) > max(most, 0):
            self._idle.pop(0)[0].sock.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        with self._lock:
            self._closed = True
            self._close_idle(0)


_POOLS: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _begin_anew() -> None:
    for pool in list(_POOLS):
        pool.begin_anew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew)
