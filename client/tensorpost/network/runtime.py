"""The operations that may have to wait, for threads and for asyncio.

The network code of the SDK is written once, as coroutines over a `Runtime`. `ThreadRuntime` blocks inside its
operations, so a coroutine over it never suspends, and `run_blocking` executes it like a function. `AsyncioRuntime`
suspends the task instead.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

READ, WRITE = 1, 4  # POLLIN and POLLOUT
_TURN_SECONDS = 0.001  # other tasks wait for at most about as long while a body is sent or received
_THREAD_WAIT_SECONDS = 0.05  # a wait in a thread ends by then, also for a task that was cancelled

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


def _poll(sock: socket.socket, events: int, seconds: float | None) -> int:
    """The events for which a socket is ready; an error counts as each of them, since the next operation shows it."""
    if hasattr(select, "poll"):  # a tenth of the time that `selectors` takes for the same
        poll = select.poll()
        poll.register(sock, events)
        ready = poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        return ready[0][1] & events or events if ready else 0
    # Windows, where select() has no highest descriptor, and says that connecting failed in its third list.
    to_read, to_write = [sock] if events & READ else [], [sock] if events & WRITE else []
    reading, writing, failed = select.select(to_read, to_write, to_write, seconds)
    return (READ if reading else 0) | (WRITE if writing or failed else 0)


class _ThreadTasks:
    """Calls that run beside their caller, each in a thread."""

    def __init__(self, most: int) -> None:
        from concurrent.futures import ThreadPoolExecutor  # few callers need it

        self._threads = ThreadPoolExecutor(most, "tensorpost-call")

    def start(self, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Start a call; what is returned waits for its result."""
        return _ThreadResult(self._threads.submit(lambda: run_blocking(call())))

    async def close(self) -> None:
        """Start no more; those that have begun end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _ThreadResult(Generic[T]):
    future: Future[T]

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()  # it never suspends
        return self.future.result()


class _AsyncioTasks:
    """See `_ThreadTasks`; each call is a task."""

    def __init__(self, asyncio: Any) -> None:
        self._asyncio = asyncio
        self._tasks: set[Any] = set()

    def start(self, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        task = self._asyncio.ensure_future(call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel those that have not ended, whose connections are closed."""
        for task in [*self._tasks]:
            task.cancel()
        await self._asyncio.gather(*self._tasks, return_exceptions=True)


class ThreadRuntime:
    """Waits that block their thread."""

    async def wait(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        """Wait until a socket can be read or written; the events for which it is ready, 0 if time ran out."""
        return _poll(sock, events, seconds)

    async def addresses(self, host: str, port: int, seconds: float | None) -> list[Any]:
        """The result of `socket.getaddrinfo`, which no other thread can interrupt."""
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def event(self) -> threading.Event:
        """An event that another call sets once."""
        return threading.Event()

    async def wait_for(self, event: Any, seconds: float | None) -> bool:
        """Whether an event was set in time."""
        return event.wait(seconds)

    def tasks(self, most: int) -> _ThreadTasks:
        """Room for calls beside the caller's own, at most so many at a time."""
        return _ThreadTasks(most)

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
            if timer is not None:
                timer.cancel()  # a future that it settles says below that the loop watches the socket
            return await self._wait_in_thread(sock, events, seconds)
        finally:
            self._suspended_at = time.monotonic()
            if timer is not None:
                timer.cancel()
            if ready.done():
                if events & READ:
                    loop.remove_reader(number)
                if events & WRITE:
                    loop.remove_writer(number)

    async def _wait_in_thread(self, sock: socket.socket, events: int, seconds: float | None) -> int:
        ready = 0
        with contextlib.suppress(TimeoutError):
            async with self._asyncio.timeout(seconds):
                while not ready:
                    ready = await self._asyncio.to_thread(_poll, sock, events, _THREAD_WAIT_SECONDS)
        return ready

    async def addresses(self, host: str, port: int, seconds: float | None) -> list[Any]:
        async with self._asyncio.timeout(seconds):
            return await self._asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def wait_for(self, event: Any, seconds: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with self._asyncio.timeout(seconds):
                await event.wait()
        return event.is_set()

    def tasks(self, most: int) -> _AsyncioTasks:
        return _AsyncioTasks(self._asyncio)

    async def give_turn(self) -> None:
        if time.monotonic() - self._suspended_at > _TURN_SECONDS:
            await self._asyncio.sleep(0)
            self._suspended_at = time.monotonic()


Runtime: TypeAlias = ThreadRuntime | AsyncioRuntime
