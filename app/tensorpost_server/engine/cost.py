"""How long a plan takes on a device: seconds per element of each operator, learnt from slices that were computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tensorpost.values.problems import LimitExceeded

from ..forms.base import ComputedSeconds
from ..planning import Plan

CHEAP_WORK = 1 << 26
"""Elements up to which a plan's time is not estimated: some tenths of a second at most."""

_FIRST_ON_PROCESSOR = 5e-9  # seconds per element; 10^12 elements of wide antialiasing windows took 87 minutes
_FIRST_ON_DEVICE = 1e-10
_LEAST_WORK = 1 << 16  # of a slice that is timed; below, starting it is most of the time
_MOST_CHANGE = 16  # how far from the first guess a rate may move: a busy machine must not make every call too long
_WEIGHT = 0.25  # of a new time


class CostMeter:
    """Learns what an element of each operator costs on one device. May be used from any thread.

    Args:
        threads: slices that the device computes at the same time.
        processor: whether it is a processor, not a device with memory of its own.

    Attributes:
        max_seconds: the longest that all slices of one run may take, with all threads at work.
    """

    def __init__(self, threads: int, *, processor: bool) -> None:
        self.max_seconds = float("inf")
        self._threads = threads
        self._first = _FIRST_ON_PROCESSOR if processor else _FIRST_ON_DEVICE
        self._rates: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def seconds_per_element(self) -> Mapping[str, float]:
        """What was learnt, by operator; `*` is the guess for all others."""
        with self._lock:
            return {"*": self._first, **self._rates}

    def seconds(self, plan: Plan) -> float:
        """Estimate of the time that the plan takes on this device if it is alone there."""
        rate = self._rates.get(plan.operator, self._first)
        return plan.work * rate / max(1, min(self._threads, len(plan.slices)))

    def slice_seconds(self, plan: Plan) -> float:
        """Estimate of the time that a slice of the plan takes here."""
        return plan.work * self._rates.get(plan.operator, self._first) / max(1, len(plan.slices))

    def check(self, plan: Plan, setting: str) -> None:
        """Refuse a plan that would take too long.

        Args:
            plan: what to run.
            setting: the variable that sets `max_seconds`, for the message.

        Raises:
            LimitExceeded: it takes longer than `max_seconds`.
        """
        if plan.work > CHEAP_WORK and (seconds := self.seconds(plan)) > self.max_seconds:
            raise LimitExceeded.of(
                "the time that this operator would take here", round(seconds), round(self.max_seconds), setting,
                "seconds",
            )  # fmt: skip

    def timed(self, plan: Plan, compute: Callable[[int], memoryview]) -> Callable[[int], memoryview]:
        """Wrap the function that computes the slices of one run, so that the time of each slice is recorded.

        It raises `LimitExceeded` when the slices have taken longer than `max_seconds`: before a slice, and within one
        that is computed in turns.
        """
        work = plan.work // max(1, len(plan.slices))
        threads = max(1, min(self._threads, len(plan.slices)))
        taken = 0.0

        def check(seconds: float) -> None:
            if taken + seconds > self.max_seconds * threads:
                raise LimitExceeded.of(
                    "the time of this request", round((taken + seconds) / threads), round(self.max_seconds),
                    "TENSORPOST_MAX_SECONDS", "seconds",
                )  # fmt: skip

        def compute_timed(index: int) -> memoryview:
            nonlocal taken
            check(0.0)
            with ComputedSeconds(check) as computed:
                block = compute(index)
            seconds = computed.seconds
            taken += seconds
            if work >= _LEAST_WORK:
                self._learn(plan.operator, seconds / work)
            return block

        return compute_timed

    def _learn(self, operator: str, rate: float) -> None:
        rate = min(max(rate, self._first / _MOST_CHANGE), self._first * _MOST_CHANGE)
        with self._lock:
            before = self._rates.get(operator, rate)
            self._rates[operator] = before + _WEIGHT * (rate - before)
