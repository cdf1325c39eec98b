"""The operations that may have to wait, for threads and for asyncio, and the end of a call's time.

The network code of the SDK is written once, as coroutines over a `Runtime`. `ThreadRuntime` blocks inside its
operations, so a coroutine over it never suspends, and `run_blocking` executes it like a function. `AsyncioRuntime`
suspends the task instead.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Any, TypeAlias, TypeVar

from .problems import RequestTimeout

__all__ = ["READ", "WRITE", "AsyncioRuntime", "Deadline", "Runtime", "ThreadRuntime", "iterate_blocking"]
__all__ += ["run_blocking"]

READ, WRITE = 1, 2  # as in `selectors`
_TURN_SECONDS = 0.001  # other tasks wait for at most about as long while a body is sent or received
_THREAD_WAIT_SECONDS = 0.05  # a wait in a thread ends by then, also for a task that was cancelled
_SLACK_SECONDS = 0.002  # timers may fire this much before their time

T = TypeVar("T")


def run_blocking(awaitable: Awaitable[T]) -> T:
    """Run a coroutine over `ThreadRuntime` to its end."""
    try:
        next(awaitable.__await__())
    except StopIteration as done:
        return done.value
    raise AssertionError("an operation of ThreadRuntime suspended")


def iterate_blocking(items: AsyncGenerator[T]) -> Generator[T]:
    """The items of an asynchronous generator over `ThreadRuntime`."""
    try:
        while (item := run_blocking(anext(items, None))) is not None:
            yield item
    finally:
        run_blocking(items.aclose())


class Deadline:
    """The end of a call's time, `total` seconds from now; None for no end."""

    def __init__(self, total: float | None) -> None:
        self._total = total
        self._end = math.inf if total is None else time.monotonic() + total

    def clip(self, seconds: float | None) -> float | None:
        """The shorter one of a wait and what is left of the call's time.

        Raises:
            RequestTimeout: nothing is left; `extra["phase"]` is `total`.
        """
        if self._total is None:
            return seconds
        left = self._end - time.monotonic()
        if left <= _SLACK_SECONDS:
            said = f"the call did not end within the {self._total:g} seconds of the timeout's total"
            raise RequestTimeout(said, extra={"phase": "total"})
        return left if seconds is None else min(seconds, left)

    def wait_field(self) -> tuple[tuple[str, str], ...]:
        """The header field that tells the server how long it is waited for, in whole seconds; none without an end.

        Source: RFC 7240, section 4.3.
        """
        if self._total is None:
            return ()
        return (("prefer", f"wait={max(0, math.ceil(self._end - time.monotonic() - _SLACK_SECONDS))}"),)

    def allows(self, seconds: float) -> bool:
        """Whether a wait of so many seconds ends before the call's time does."""
        return time.monotonic() + seconds < self._end


def _poll(sock: socket.socket, events: int, seconds: float | None) -> int:
    """The events for which a socket is ready; an error counts as both, since the next operation shows it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, (select.POLLIN if events & READ else 0) | (select.POLLOUT if events & WRITE else 0))
        found = poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        ready = found[0][1] if found else 0
        return events & ((READ if ready & ~select.POLLOUT else 0) | (WRITE if ready & ~select.POLLIN else 0))
    # Windows, where select() has no highest descriptor, and says that connecting failed in its third list.
    to_read, to_write = [sock] if events & READ else [], [sock] if events & WRITE else []
    reading, writing, failed = select.select(to_read, to_write, to_write, seconds)
    return (READ if reading else 0) | (WRITE if writing or failed else 0)


class ThreadRuntime:
    """Waits that block their thread."""

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        """Wait until a socket can be read or written; the events for which it is ready, 0 if time ran out."""
        return _poll(sock, events, seconds)

    async def addresses(self, host: str, port: int, seconds: float | None) -> list[Any]:  # noqa: ARG002 # the other's
        """What `socket.getaddrinfo` gives, which no thread can interrupt."""
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def event(self) -> threading.Event:
        """What another call sets once."""
        return threading.Event()

    async def wait_for(self, event: Any, seconds: float | None) -> bool:
        """Whether an event was set in time."""
        return event.wait(seconds)

    async def give_turn(self) -> None:
        """Let other tasks run if this one has not suspended for a while: operations on ready sockets never do."""


class AsyncioRuntime:
    """Waits that suspend their task. Each method does what `ThreadRuntime`'s does."""

    def __init__(self) -> None:
        import asyncio  # here, because it takes longer to load than everything that a blocking client needs

        self._asyncio = asyncio
        self._suspended_at = 0.0
        self.sleep, self.event = asyncio.sleep, asyncio.Event

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        loop, number = self._asyncio.get_running_loop(), sock.fileno()
        ready = loop.create_future()

        def settle(event: int) -> None:
            if not ready.done():
                ready.set_result(event)

        timer = None if seconds is None else loop.call_later(seconds, settle, 0)
        try:
            if events & READ:
                loop.add_reader(number, settle, READ)
            if events & WRITE:
                loop.add_writer(number, settle, WRITE)
            return await ready
        except NotImplementedError:  # the loop of Windows
            return await self._wait_in_thread(sock, events, math.inf if seconds is None else seconds)
        finally:
            self._suspended_at = time.monotonic()
            if timer is not None:
                timer.cancel()
            if ready.done():
                if events & READ:
                    loop.remove_reader(number)
                if events & WRITE:
                    loop.remove_writer(number)

    async def _wait_in_thread(self, sock: socket.socket, events: int, seconds: float) -> int:
        end, ready = time.monotonic() + seconds, 0
        while not ready and (left := end - time.monotonic()) > 0:
            wait = min(left, _THREAD_WAIT_SECONDS)
            ready = await self._asyncio.get_running_loop().run_in_executor(None, _poll, sock, events, wait)
        return ready

    async def addresses(self, host: str, port: int, seconds: float | None) -> list[Any]:
        async with self._asyncio.timeout(seconds):
            return await self._asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def wait_for(self, event: Any, seconds: float | None) -> bool:
        try:
            async with self._asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            return False

    async def give_turn(self) -> None:
        if time.monotonic() - self._suspended_at > _TURN_SECONDS:
            await self._asyncio.sleep(0)
            self._suspended_at = time.monotonic()


Runtime: TypeAlias = ThreadRuntime | AsyncioRuntime
