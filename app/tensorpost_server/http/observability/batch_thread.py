"""A thread that takes batches of what was observed, so that the event loop waits for nobody who writes or sends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MOST_BATCHES = 80
"""Batches that wait, of at most 256 records; as lines of the access log about 8 MB."""

_PAUSE_SECONDS = 0.1
"""How long batches are collected: each time that this thread runs, the event loop's waits for Python's lock."""

Item = TypeVar("Item")


class BatchThread(Generic[Item]):
    """Hands what waits to a function, ten times a second, on a thread of its own.

    Args:
        name: the thread's name.
        consume: takes the items of all batches that wait; it may block. If it raises `OSError` or `ValueError`, they
            are lost.

    Attributes:
        dropped: items that were lost, because too many batches waited or nobody takes them.
    """

    def __init__(self, name: str, consume: Callable[[Sequence[Item]], object]) -> None:
        self.dropped = 0
        self._consume = consume
        self._closing = threading.Event()
        self._batches: queue.SimpleQueue[Sequence[Item] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the queue is full, so that one more batch would be dropped."""
        return self._batches.qsize() >= MOST_BATCHES

    def put(self, batch: Sequence[Item]) -> None:
        """Queue a batch; it is dropped if the queue is full."""
        if self.full:
            self.dropped += len(batch)
        else:
            self._batches.put(batch)

    def close(self, patience: float = 2.0) -> None:
        """Flush the queue; wait at most `patience` seconds."""
        self._batches.put(None)
        self._closing.set()
        self._thread.join(patience)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._closing.wait(_PAUSE_SECONDS)
            items = [*batch]
            for _ in range(self._batches.qsize()):
                if (batch := self._batches.get()) is None:
                    self._batches.put(None)  # for the loop around this one
                else:
                    items += batch
            try:
                self._consume(items)
            except (OSError, ValueError):  # the reader is gone, or standard error is closed: nobody can be told
                self.dropped += len(items)
