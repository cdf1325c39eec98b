"""The operations that may have to wait, for threads and for asyncio, and the end of a call's time.

The network code of the SDK is written once, as coroutines over a `Runtime`. `ThreadRuntime` blocks inside its
operations, so a coroutine over it never suspends and `run_blocking` executes it like a function. `AsyncioRuntime`
suspends the task instead.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .problems import RequestTimeout

if TYPE_CHECKING:
    import asyncio

__all__ = ["READ", "WRITE", "Address", "AsyncioRuntime", "Deadline", "Runtime", "ThreadRuntime", "run_blocking"]

READ, WRITE = 1, 2  # as in `selectors`
Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

_TURN_SECONDS = 0.001  # other tasks wait for at most about as long while a body is sent or received
_THREAD_WAIT_SECONDS = 0.05  # a wait in a thread ends by then, also for a task that was cancelled
_SLACK_SECONDS = 0.002  # timers may fire this much before their time

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over `ThreadRuntime` to its end."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise AssertionError("an operation of ThreadRuntime suspended")


class Deadline:
    """The end of a call's time.

    Args:
        total: seconds from now; None for no end.
    """

    __slots__ = ("_end", "_total")

    def __init__(self, total: float | None) -> None:
        self._total = total
        self._end = None if total is None else time.monotonic() + total

    def clip(self, seconds: float | None) -> float | None:
        """The shorter one of a wait and what is left of the call's time.

        Raises:
            RequestTimeout: nothing is left; `extra["phase"]` is `total`.
        """
        if self._end is None:
            return seconds
        left = self._end - time.monotonic()
        if left <= _SLACK_SECONDS:
            raise RequestTimeout(
                f"the call did not end within the {self._total:g} seconds of the timeout's total",
                extra={"phase": "total"},
            )
        return left if seconds is None else min(seconds, left)

    def allows(self, seconds: float) -> bool:
        """Whether a wait of so many seconds ends before the call's time does."""
        return self._end is None or time.monotonic() + seconds < self._end


class Wakeup(Protocol):
    """Something to wait for that another thread or task sets once."""

    def set(self) -> None: ...


class Runtime(Protocol):
    """What may have to wait."""

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        """Wait until the socket can be read or written; returns the events (`READ`, `WRITE`), 0 if time ran out."""
        ...

    async def connect(self, address: Address, seconds: float | None) -> socket.socket:
        """A connected socket that does not block. A host's addresses have so many seconds each.

        Raises:
            OSError: no connection; the error of the last address.
        """
        ...

    async def sleep(self, seconds: float) -> None: ...

    def wakeup(self) -> Wakeup: ...

    async def wait_for(self, wakeup: Any, seconds: float | None) -> bool:
        """Whether it was set in time."""
        ...

    async def give_turn(self) -> None:
        """Let other tasks run if this one has not suspended for a while: operations on ready sockets never do."""
        ...


def _poll(sock: socket.socket, events: int, seconds: float | None) -> int:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, (select.POLLIN if events & READ else 0) | (select.POLLOUT if events & WRITE else 0))
        found = poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        if not found:
            return 0
        ready = found[0][1]  # errors and hang-ups count as both: the next operation shows which it is
        return events & ((READ if ready & ~select.POLLOUT else 0) | (WRITE if ready & ~select.POLLIN else 0))
    # Windows, where select() has no highest descriptor.
    reading, writing, _ = select.select([sock] if events & READ else [], [sock] if events & WRITE else [], [], seconds)
    return (READ if reading else 0) | (WRITE if writing else 0)


class ThreadRuntime:
    """Waits that block their thread."""

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        return _poll(sock, events, seconds)

    async def connect(self, address: Address, seconds: float | None) -> socket.socket:
        if not isinstance(address, str):
            sock = socket.create_connection(address, seconds)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(seconds)
                sock.connect(address)
            except BaseException:
                sock.close()
                raise
        sock.setblocking(False)
        return sock

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wakeup(self) -> threading.Event:
        return threading.Event()

    async def wait_for(self, wakeup: threading.Event, seconds: float | None) -> bool:
        return wakeup.wait(seconds)

    async def give_turn(self) -> None:
        pass


class AsyncioRuntime:
    """Waits that suspend their task."""

    def __init__(self) -> None:
        import asyncio  # here, because it takes longer to load than everything that a blocking client needs

        self._asyncio = asyncio
        self._suspended_at = 0.0

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        loop, number = self._asyncio.get_running_loop(), sock.fileno()
        ready: asyncio.Future[int] = loop.create_future()

        def settle(event: int) -> None:
            if not ready.done():
                ready.set_result(event)

        try:
            if events & READ:
                loop.add_reader(number, settle, READ)
            if events & WRITE:
                loop.add_writer(number, settle, WRITE)
        except NotImplementedError:  # the loop of Windows
            return await self._wait_in_thread(sock, events, seconds)
        timer = None if seconds is None else loop.call_later(seconds, settle, 0)
        try:
            return await ready
        finally:
            self._suspended_at = time.monotonic()
            if timer is not None:
                timer.cancel()
            if events & READ:
                loop.remove_reader(number)
            if events & WRITE:
                loop.remove_writer(number)

    async def _wait_in_thread(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        loop = self._asyncio.get_running_loop()
        left = math.inf if seconds is None else seconds
        while left > 0:
            begin = loop.time()
            if ready := await loop.run_in_executor(None, _poll, sock, events, min(left, _THREAD_WAIT_SECONDS)):
                return ready
            left -= loop.time() - begin
        return 0

    async def connect(self, address: Address, seconds: float | None) -> socket.socket:
        if isinstance(address, str):
            return await self._connected(socket.AF_UNIX, address, seconds)
        async with self._asyncio.timeout(seconds):
            found = await self._asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
        for family, _, _, _, place in found[:-1]:
            try:
                return await self._connected(family, place, seconds)
            except OSError:
                continue  # the next address is tried; the error of the last one is raised
        return await self._connected(found[-1][0], found[-1][4], seconds)

    async def _connected(self, family: int, address: Any, seconds: float | None) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with self._asyncio.timeout(seconds):
                await self._asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock

    async def sleep(self, seconds: float) -> None:
        await self._asyncio.sleep(seconds)

    def wakeup(self) -> asyncio.Event:
        return self._asyncio.Event()

    async def wait_for(self, wakeup: asyncio.Event, seconds: float | None) -> bool:
        try:
            async with self._asyncio.timeout(seconds):
                return await wakeup.wait()
        except TimeoutError:
            return False

    async def give_turn(self) -> None:
        if time.monotonic() - self._suspended_at > _TURN_SECONDS:
            await self._asyncio.sleep(0)
            self._suspended_at = time.monotonic()
