"""A thread that takes batches of what was observed, so that the event loop waits for nobody who writes or sends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["MOST_BATCHES", "BatchThread"]

MOST_BATCHES = 80
"""Batches that wait, of at most 256 records; as lines of the access log about 8 MB."""

Item = TypeVar("Item")


class BatchThread(Generic[Item]):
    """Hands batches to a function, one after the other, on a thread of its own.

    Args:
        name: the thread's name.
        consume: takes a batch; it may block. A batch for which it raises `OSError` or `ValueError` is lost.

    Attributes:
        dropped: items that were lost, because too many batches waited or nobody takes them.
    """

    def __init__(self, name: str, consume: Callable[[Sequence[Item]], object]) -> None:
        self.dropped = 0
        self._consume = consume
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
        self._thread.join(patience)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._consume(batch)
            except (OSError, ValueError):  # the reader is gone, or standard error is closed: nobody can be told
                self.dropped += len(batch)
