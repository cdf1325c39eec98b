"""`ProcessPool`: child processes of one kind, each of which does one call at a time."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .process import CHECK_SECONDS, ChildEnded, ChildProcess, ChildTimedOut

__all__ = ["ProcessPool"]

MOST_FAILURES = 2
REFUSED_SECONDS = 600.0
_MOST_REMEMBERED = 1024


def _nothing() -> None:
    """Do nothing: a call that is always wanted."""


class ProcessPool:
    """Processes that are started ahead, and started again when they end. May be used from any thread.

    Args:
        libraries: modules that a process imports before its first call.
        count: how many processes there are at most.

    Attributes:
        seconds: the longest that one call may take.
        restarts: how many processes ended during a call.
    """

    def __init__(self, libraries: Sequence[str], count: int = 1) -> None:
        self._libraries, self._count = tuple(libraries), count
        self._idle: list[ChildProcess] = []
        self._started = 0
        self._closed = False
        self._changed = threading.Condition()
        self._failures: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self.seconds = 600.0
        self.restarts = 0

    def open(self, count: int, seconds: float) -> None:
        """Start the processes; returns before they are ready.

        Args:
            count: how many.
            seconds: the longest that one call may take.

        Raises:
            OSError: a process cannot be started.
        """
        self._count, self.seconds, self._closed = count, seconds, False
        with self._changed:
            while self._started < self._count:
                self._idle.append(ChildProcess(self._libraries))
                self._started += 1

    def close(self) -> None:
        """End the processes that do nothing; those that compute end with their call. A later call starts another one."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._started -= len(idle)
            self._closed = True
        for process in idle:
            process.close()

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes that do nothing now."""
        with self._changed:
            return [process.pid for process in self._idle]

    def refused_seconds(self, key: bytes) -> float:
        """For how many seconds more calls of this key are refused, because they ended a process twice; 0 if not."""
        with self._changed:
            failures, until = self._failures.get(_digest(key), (0, 0.0))
        return max(0.0, until - time.monotonic()) if failures >= MOST_FAILURES else 0.0

    def call(
        self, function: str, arguments: Mapping[str, Any], arrays: Sequence[Any], *, memory_bytes: int,
        output_bytes: int = 0, key: bytes = b"", seconds: float | None = None, check: Callable[[], object] = _nothing,
    ) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
        """Call a function in a process; waits for one that does nothing.

        Args:
            function: name of a function of `child.FUNCTIONS`.
            arguments: JSON values for it.
            arrays: packed arrays for it.
            memory_bytes: memory that the call may take in the process (Linux).
            output_bytes: bytes of the arrays that come back, at most.
            key: what is refused for a while after it ended a process twice; empty for nothing.
            seconds: the longest that it may take; None for the pool's.
            check: called many times a second; what it raises ends the call, and its process.

        Raises:
            ChildFailed: see `ChildProcess.call`.
            OSError: no process can be started, or no memory be shared.
        """
        head = {
            **arguments, "function": function, "memory_bytes": memory_bytes,
            "seconds": self.seconds if seconds is None else seconds,
        }  # fmt: skip
        process = self._take(check)
        try:
            return process.call(head, arrays, output_bytes, check)
        except (ChildEnded, ChildTimedOut) as error:
            if key and (isinstance(error, ChildTimedOut) or error.by_signal):
                self._note_failure(_digest(key))
            raise
        finally:
            self._put_back(process)

    def _take(self, check: Callable[[], object]) -> ChildProcess:
        while True:
            with self._changed:
                if self._idle:
                    process = self._idle.pop()
                elif self._started < self._count:
                    process = ChildProcess(self._libraries)
                    self._started += 1
                else:
                    self._changed.wait(CHECK_SECONDS)
                    process = None
                if process is not None and not process.ended:
                    return process
                if process is not None:
                    self._started -= 1
            if process is not None:
                process.close()
            check()

    def _put_back(self, process: ChildProcess) -> None:
        """Make the process available again, or start another one if it has ended."""
        ended = process.ended
        if self._closed and not ended:
            process.close()
            ended = True
        with self._changed:
            if ended:
                self.restarts += 1
                self._started -= 1
                if self._started < self._count and not self._closed:
                    process = ChildProcess(self._libraries)
                    self._started += 1
                    ended = False
            if not ended:
                self._idle.append(process)
            self._changed.notify()

    def _note_failure(self, digest: bytes) -> None:
        with self._changed:
            failures, _ = self._failures.pop(digest, (0, 0.0))
            self._failures[digest] = (failures + 1, time.monotonic() + REFUSED_SECONDS)
            if len(self._failures) > _MOST_REMEMBERED:
                self._failures.popitem(last=False)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
