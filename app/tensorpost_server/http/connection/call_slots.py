"""How many calls of one HTTP/2 connection are computed, and sent, at a time.

A connection may have 128 calls open. If all of them were computed at once, a caller that reads no answer would keep the
workers busy, and memory, for nothing. So there are a few slots at first, and one more for each answer that could be
sent at once, as TCP opens its window (RFC 5681); an answer that has to wait for its caller takes that back.
"""

from __future__ import annotations

import asyncio
from collections import deque

FEWEST_SLOTS = 2
"""Calls of a connection at a time while an answer waits: one is computed while another one is sent."""


class CallSlots:
    """The slots of one connection, given in the order in which they were asked for."""

    __slots__ = ("_count", "_loop", "_most", "_taken", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop, self._most = loop, most
        self._count, self._taken = FEWEST_SLOTS, 0
        self._waiting = deque[asyncio.Future[None]]()

    async def take(self) -> None:
        """Wait for a slot, and take it."""
        if self._taken < self._count and not self._waiting:
            self._taken += 1
            return
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():  # it was given to a call that has ended
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        self._give()

    def adapt(self, *, is_sent: bool) -> None:
        """An answer was sent at once, or has to wait for its caller."""
        if not is_sent:
            self._count = min(self._count, FEWEST_SLOTS)
        elif 0 < self._count < self._most:
            self._count += 1
            self._give()

    def close(self) -> None:
        """Give no more: the connection is closed, and its calls are cancelled one after the other."""
        self._count = 0

    def _give(self) -> None:
        while self._waiting and self._taken < self._count:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._taken += 1
                waiting.set_result(None)
