"""A thread for parsing and writing what would hold the event loop's thread for longer than a few milliseconds.

One thread, however many requests wait: Python runs one thread at a time, so each more of them makes the event loop wait
longer for its turn. Callers take turns, and the thread has a lower priority than the event loop's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..engine import WorkerThreads
from ..forms.base import stoppable

P = ParamSpec("P")
T = TypeVar("T")

INLINE_TEXT_BYTES = 4096
"""Longest JSON document or head that is parsed on the event loop's thread. The worst takes 2 ms, the SDK's 0.1 ms."""

INLINE_QUERY_BYTES = 1024
"""Longest query that is parsed there. The worst one, of names and commas, takes 4 ms."""

INLINE_JSON_ELEMENTS = 1024
"""Largest output, in elements, that is written as JSON there; 1 ms."""


def background_threads(count: int = 1, name: str = "tensorpost-parse") -> WorkerThreads:
    """Threads for calls of callers in turn; they start with the first call."""
    return WorkerThreads(count, name, extra_small=False, lower_priority=True)


class CallerThreads:
    """Runs calls for one request of a caller on threads that `background_threads` made."""

    __slots__ = ("_caller", "_threads")

    def __init__(self, threads: WorkerThreads, caller: str) -> None:
        self._threads, self._caller = threads, caller

    async def run(self, large: bool, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of the call, which is made on a thread if it is large, and else at once.

        If the task is cancelled meanwhile, a call that waits for a thread is dropped, and one that has begun ends by
        itself; if it waits for a child process, at once. While it does, others have its thread.
        """
        if not large:
            return call(*args, **options)
        stop = threading.Event()

        def stopped_early() -> T:
            with stoppable(stop, self._threads):
                return call(*args, **options)

        calls = self._threads.open(self._caller)
        try:
            return await asyncio.wrap_future(self._threads.submit(calls, 1, stopped_early))
        finally:
            stop.set()
            self._threads.close(calls)
