"""Seconds of calls that are made in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Times:
    """What one of several calls took, in seconds.

    Noise only adds, and it adds to whoever has the processor at that moment; so two calls are compared by their lower
    quartiles, which a few disturbed rounds do not move.
    """

    seconds: list[float] = field(default_factory=list[float])

    @property
    def quartile(self) -> float:
        """The lower quartile."""
        return self.quantile(0.25)

    @property
    def best(self) -> float:
        """The fastest."""
        return min(self.seconds)

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the calls was done."""
        return float(np.quantile(self.seconds, share))


def in_turn(
    calls: Mapping[str, Callable[[], object]],
    *,
    least: int,
    seconds: float = 0.0,
    warm_up: int = 1,
    in_a_row: int = 1,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Time calls round by round, each round beginning with another one of them.

    Args:
        calls: the functions to time, by name.
        least: rounds at the least.
        seconds: go on until this long has passed.
        warm_up: calls that do not count; before the first round, or before every turn where there is a pause.
        in_a_row: calls that count, in each turn.
        pause: seconds before each turn, for threads of the one before that still spin.
        clock: seconds that pass; `time.thread_time` for those of this thread's processor alone.

    Returns:
        Times by name, `in_a_row` for each round.
    """
    took = {name: Times() for name in calls}
    names = list(calls)
    if not pause:
        for call in calls.values():
            for _ in range(warm_up):
                call()
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < least or time.perf_counter() < end:
        begin = rounds % len(names)
        for name in names[begin:] + names[:begin]:
            call = calls[name]
            if pause:
                time.sleep(pause)
                for _ in range(warm_up):
                    call()
            for _ in range(in_a_row):
                begun = clock()
                call()
                took[name].seconds.append(clock() - begun)
        rounds += 1
    return took
