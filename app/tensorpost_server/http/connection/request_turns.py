"""When requests begin: a few in each turn of the event loop, those of different addresses in turn.

A request keeps the event loop's thread for some tenths of a millisecond. In the order of arrival, one that comes beside
fifty pipelines of another caller waits for a request of each: 14 ms of processor time instead of 2. The same is done
with the ends of requests whose connections are closed, since hundreds may be closed at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["MOST_IN_A_TURN", "RequestTurns"]

MOST_IN_A_TURN = 2
"""Requests that begin or end in a turn of the loop. With one, each would cost a question of the system for events."""


class RequestTurns:
    """Begins requests, and ends them; used on the event loop's thread only.

    Args:
        loop: the event loop of the server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str | None, deque[Callable[[], object]]] = {}  # the address whose turn is next comes first
        self._count = 0  # in this turn of the loop
        self._is_scheduled = False  # the next turn; it is as long as there is a count or anybody waits

    def begin(self, address: str | None, call: Callable[[], object]) -> None:
        """Make a call: at once if none waits and this turn of the loop has room, else in a later turn.

        Args:
            address: the address of the caller; None for a Unix socket.
            call: the function that begins or ends a request; a call that returns False does not count.
        """
        self._schedule()
        if self._count < MOST_IN_A_TURN and not self._waiting:
            self._count += 1
            call()
        else:
            self._waiting.setdefault(address, deque()).append(call)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled, self._count = False, 0
        if self._waiting:
            self._schedule()
        while self._waiting and self._count < MOST_IN_A_TURN:
            address, queue = next(iter(self._waiting.items()))
            del self._waiting[address]
            call = queue.popleft()
            if queue:
                self._waiting[address] = queue
            self._count += call() is not False
