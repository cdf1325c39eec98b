"""When requests begin, and go on after they have waited: a few in each turn of the event loop, by address in turn.

A request keeps the event loop's thread for some tenths of a millisecond. In the order of arrival, one that comes beside
fifty pipelines of another caller waits for a request of each: 14 ms of processor time instead of 2. The same is done
with the ends of requests whose connections are closed, since hundreds may be closed at once; and with each step of a
request after the first, since the threads may be done with what fifty of them wait for. Reading a request is an eighth
of one: most of those of a thousand busy connections are replays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

MOST_IN_A_TURN = 2
"""Requests that begin, go on or end in a turn of the loop. With one, each would cost a question of the system."""

MOST_READ_IN_A_TURN = 16
"""Requests that are read in a turn of the loop if nothing else is done."""

READ_COST = MOST_IN_A_TURN / MOST_READ_IN_A_TURN
"""What reading a request, or answering it by a replay, counts."""


class RequestTurns:
    """Lets requests begin, go on and end; used on the event loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The address whose turn is next comes first; each call with what it counts.
        self._waiting: dict[str | None, deque[tuple[float, Callable[[], object]]]] = {}
        self._count = 0.0  # in this turn of the loop
        self._is_scheduled = False  # the next turn; it is as long as there is a count or anybody waits

    def begin(self, address: str | None, call: Callable[[], object], cost: float = 1) -> None:
        """Make a call: at once if none waits and this turn of the loop has room, else in a later turn.

        Args:
            address: the address of the caller; None for a Unix socket.
            call: the function that begins or ends a request; a call that returns False does not count.
            cost: what it counts, of the `MOST_IN_A_TURN` of a turn.
        """
        if self.take_room(cost):
            call()
        else:
            self._waiting.setdefault(address, deque()).append((cost, call))

    def application(self, address: str | None, app: ASGIApp) -> ASGIApp:
        """The application; a request of this address continues in its turn as well whenever it has waited."""

        async def in_turn(scope: Scope, receive: Receive, send: Send) -> None:
            await self.in_turn(address, app(scope, receive, send))  # pyright: ignore[reportArgumentType] # a coroutine

        return in_turn

    def in_turn(self, address: str | None, coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """The coroutine; each of its steps after the first waits for a turn of this address if there is no room."""
        return _TakesTurns(self, address, coroutine)

    def take_room(self, cost: float = 1) -> bool:
        """Count a step of this cost that may be made at once; False if it has to wait."""
        self._schedule()
        if self._count < MOST_IN_A_TURN and not self._waiting:
            self._count += cost
            return True
        return False

    def turn(self, address: str | None) -> asyncio.Future[None]:
        """Done when it is this address's turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(address, deque()).append((1, lambda: not turn.done() and turn.set_result(None)))
        return turn

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled, self._count = False, 0.0
        if self._waiting:
            self._schedule()
        while self._waiting and self._count < MOST_IN_A_TURN:
            address, queue = next(iter(self._waiting.items()))
            del self._waiting[address]
            cost, call = queue.popleft()
            if queue:
                self._waiting[address] = queue
            if call() is not False:
                self._count += cost


class _TakesTurns:
    """Awaits a coroutine, each of whose steps but the first waits for its turn."""

    __slots__ = ("_address", "_coroutine", "_turns")

    def __init__(self, turns: RequestTurns, address: str | None, coroutine: Coroutine[Any, Any, None]) -> None:
        self._turns, self._address, self._coroutine = turns, address, coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, turns = self._coroutine, self._turns
        error: BaseException | None = None
        while True:
            try:
                awaited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            finally:
                error = None  # it refers to this frame
            try:
                yield awaited
                if not turns.take_room():
                    yield from turns.turn(self._address)
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001 # the coroutine gets it
                error = raised
