"""Threads for parsing and writing what would hold the event loop's thread for longer than a few milliseconds.

Two threads, however many requests wait: Python runs one thread at a time, so more of them would only make the event
loop wait longer for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["INLINE_JSON_ELEMENTS", "INLINE_QUERY_BYTES", "INLINE_TEXT_BYTES", "ParseThreads"]

P = ParamSpec("P")
T = TypeVar("T")

INLINE_TEXT_BYTES = 4096
"""Longest JSON document or head that is parsed on the event loop's thread. The worst one takes 2 ms, ours 0.1 ms."""

INLINE_QUERY_BYTES = 1024
"""Longest query that is parsed there. The worst one, of names and commas, takes 4 ms."""

INLINE_JSON_ELEMENTS = 1024
"""Largest output, in elements, that is written as JSON there; 1 ms."""

_THREADS = 2


class ParseThreads:
    """Runs calls on threads of its own; the threads start with the first call."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tensorpost-parse")

    async def run(self, large: bool, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of the call, which is made on a thread if it is large, and else at once.

        If the task is cancelled meanwhile, a call that waits for a thread is dropped, and one that has begun ends by
        itself.
        """
        if not large:
            return call(*args, **options)
        return await asyncio.wrap_future(self._threads.submit(call, *args, **options))
