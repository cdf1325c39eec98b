"""Connections between calls, and how many there may be."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ._options import Limits
from ._origin import CLOSED, Address
from .problems import RequestTimeout

__all__ = ["IdleConnections", "Pool"]


def _is_readable(sock: socket.socket) -> bool:
    """Whether something came: bytes, or the end."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])  # Windows, where it has no highest descriptor


@dataclass(frozen=True, slots=True)
class _Idle:
    """A connection on which nothing is outstanding."""

    address: Address
    socket: socket.socket
    since: float


class IdleConnections:
    """The idle ones, oldest first: what the pools for threads and for asyncio share. Several threads may use one.

    A process that was forked begins without any: two processes that use one connection would get each other's answers.

    Attributes:
        generation: grows in a process that was forked; what was begun under another one is not of this process.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._busy = 0
        self._closed = False
        self.generation = 0
        _POOLS.add(self)

    def begin_anew(self) -> None:
        """In a process that was forked: leave the connections, and the places in use, to the one they belong to."""
        self._lock = threading.Lock()  # a thread that is not here may have held the old one
        self.generation += 1
        self._busy = 0
        while self._idle:
            self._idle.pop().socket.close()  # closes our descriptor, and not the connection

    def take(self, address: Address) -> socket.socket | None:
        """An idle connection that the server has not closed; None if one must be made. For who was admitted.

        Raises:
            RuntimeError: the pool was closed.
        """
        while True:
            with self._lock:
                self.require_open()
                self._close_expired()
                # The one used last is the least likely to have been closed.
                found = next((idle for idle in reversed(self._idle) if idle.address == address), None)
                if found is None:
                    self._make_room()
                    return None
                self._idle.remove(found)
            if not _is_readable(found.socket):
                return found.socket
            found.socket.close()  # readable without a request: the server has hung up

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().socket.close()

    def require_open(self) -> None:
        """Refuse to go on once the pool was closed."""
        if self._closed:
            raise RuntimeError(CLOSED)

    def admitted(self) -> None:
        """One more call has begun."""
        with self._lock:
            self._busy += 1

    def gone(self, address: Address, reusable: socket.socket | None) -> None:
        """A call has ended; its connection is kept if it can be used again and there is room."""
        with self._lock:
            self._busy -= 1
            if reusable is None:
                return
            self._close_expired()
            most = self._limits.max_keepalive_connections
            if self._closed or most == 0:
                reusable.close()
                return
            self._idle.append(_Idle(address, reusable, self._clock()))
            if most is not None and len(self._idle) > most:
                self._idle.pop(0).socket.close()

    def _close_expired(self) -> None:
        expiry = self._limits.keepalive_expiry
        if expiry is not None:
            oldest_allowed = self._clock() - expiry
            while self._idle and self._idle[0].since < oldest_allowed:
                self._idle.pop(0).socket.close()

    def _make_room(self) -> None:
        """Idle connections to other servers give way to a new one."""
        most = self._limits.max_connections
        while most is not None and self._idle and self._busy + len(self._idle) > most:
            self._idle.pop(0).socket.close()

    def all_in_use(self, seconds: float | None) -> RequestTimeout:
        """What to raise when no place became free."""
        return RequestTimeout(
            f"all {self._limits.max_connections} connections were in use for {seconds:g} seconds; "
            "raise max_connections or the timeout's pool, or close streams that are not read to their end",
            extra={"phase": "pool"},
        )


_POOLS: weakref.WeakSet[IdleConnections] = weakref.WeakSet()


def _begin_anew() -> None:
    for pool in list(_POOLS):
        pool.begin_anew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew)


class Pool(IdleConnections):
    """For threads."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(limits, clock)
        self._places = self._all_places()

    def _all_places(self) -> threading.BoundedSemaphore | None:
        most = self._limits.max_connections
        return None if most is None else threading.BoundedSemaphore(most)

    def begin_anew(self) -> None:
        """See `IdleConnections.begin_anew`."""
        super().begin_anew()
        self._places = self._all_places()

    def admit(self, seconds: float | None) -> None:
        """Wait until there may be one more connection. Each call of this is followed by one of `release`.

        Raises:
            RequestTimeout: not within so many seconds.
            RuntimeError: the pool was closed.
        """
        self.require_open()
        if self._places is not None and not self._places.acquire(timeout=seconds):
            raise self.all_in_use(seconds)
        self.admitted()

    def release(self, address: Address, reusable: socket.socket | None = None) -> None:
        """Make room for another call; this connection can serve it."""
        self.gone(address, reusable)
        if self._places is not None:
            self._places.release()
