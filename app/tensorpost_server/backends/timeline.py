"""The times at which the phases of one run begin and end on its device; kept for traces only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")

PhaseName: TypeAlias = Literal["queue", "upload", "kernel", "download"]
"""Waiting for a thread of the worker; inputs to the device's memory; computing; outputs to the host's memory."""


@dataclass(slots=True)
class Phase:
    """A phase of a run. Its parts may overlap, and so may phases, since slices are computed at the same time.

    Attributes:
        begin: time at which its first part begins, nanoseconds since 1970.
        end: time at which its last part ends, nanoseconds since 1970.
        busy: nanoseconds of all its parts together.
        parts: how many: of kernel and download, slices.
    """

    begin: int
    end: int
    busy: int = 0
    parts: int = 0


class Timeline:
    """The phases of one run, from calls on any threads.

    Attributes:
        begin: time at which the request came to be executed, nanoseconds since 1970.
        phases: the phases so far, by name.
    """

    __slots__ = ("_lock", "_offset", "_queued", "begin", "phases")

    def __init__(self) -> None:
        self.begin = time.time_ns()
        # The system's clock may be set while the run lasts: it is read once, and the monotonic clock after that.
        self._offset = self.begin - time.monotonic_ns()
        self.phases: dict[PhaseName, Phase] = {}
        self._queued: int | None = None
        self._lock = threading.Lock()

    def now(self) -> int:
        """The time, nanoseconds since 1970; never less than before."""
        return self._offset + time.monotonic_ns()

    def timed(self, name: PhaseName, call: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function so that its calls are parts of a phase; until the first call the run is in its queue."""
        if self._queued is None:
            self._queued = self.now()

        def timed_call(*args: Any) -> T:
            part = _CURRENT.part = _PhasePart(self, name, self.now())
            try:
                return call(*args)
            finally:
                part.end()
                _CURRENT.part = None

        return timed_call

    def add(self, name: PhaseName, begin: int, end: int) -> None:
        """Count a part of a phase."""
        with self._lock:
            if self._queued is not None:  # of two parts at once, the one that began first may end last
                queue = self.phases.setdefault("queue", Phase(self._queued, begin, parts=1))
                queue.end = min(queue.end, begin)
                queue.busy = queue.end - queue.begin
            phase = self.phases.setdefault(name, Phase(begin, end))
            phase.begin, phase.end = min(phase.begin, begin), max(phase.end, end)
            phase.busy += end - begin
            phase.parts += 1


class _PhasePart:
    """The part of a phase that this thread is in."""

    __slots__ = ("_begin", "_timeline", "name")

    def __init__(self, timeline: Timeline, name: PhaseName, begin: int) -> None:
        self._timeline, self._begin = timeline, begin
        self.name: PhaseName = name

    def end(self) -> None:
        self._timeline.add(self.name, self._begin, self._timeline.now())

    def next(self, name: PhaseName) -> None:
        now = self._timeline.now()
        self._timeline.add(self.name, self._begin, now)
        self.name, self._begin = name, now


class _Current(threading.local):
    part: _PhasePart | None = None


_CURRENT = _Current()


def is_timed() -> bool:
    """Whether this thread computes for a timeline; then a device is waited for between two phases."""
    return _CURRENT.part is not None


def next_phase(name: PhaseName) -> None:
    """Begin another phase on this thread, if it computes for a timeline."""
    part = _CURRENT.part
    if part is not None and part.name != name:
        part.next(name)
