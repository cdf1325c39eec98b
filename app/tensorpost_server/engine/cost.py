"""How long a plan takes on a device: seconds per element of each kind of plan, learnt from slices computed before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tensorpost.values.problems import LimitExceeded

from ..forms.base import ComputedSeconds
from ..planning import Plan
from ..planning.plan import BY_LIBRARY

T = TypeVar("T")

CHEAP_WORK = 1 << 26
"""Elements up to which a plan's time is not estimated: some tenths of a second at most."""

_FIRST_ON_PROCESSOR = 5e-9  # seconds per element; 10^12 elements of wide antialiasing windows took 87 minutes
_FIRST_ON_DEVICE = 1e-10
_FIRST_BY_LIBRARY = 2e-10  # ONNX Runtime: a convolution takes 1e-11, what goes element by element 1e-9
_LEAST_WORK = 1 << 16  # of a slice that is timed; below, starting it is most of the time
_MOST_CHANGE = 16  # how far from the first guess a rate may move: a busy machine must not make every call too long
_WEIGHT = 0.25  # of a new time


class CostMeter:
    """Learns what an element of each kind of plan costs on one device. May be used from any thread.

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
        """What was learnt, by `Plan.cost_kind`; `*` is the guess for all others."""
        with self._lock:
            return {"*": self._first, **self._rates}

    def seconds(self, plan: Plan) -> float:
        """Estimate of the time that the plan takes on this device if it is alone there."""
        return self.part_seconds(plan, plan.work) / self._threads_of(plan)

    def part_seconds(self, plan: Plan, work: int) -> float:
        """Estimate of the time that a part of the plan takes here that reads and combines so many elements."""
        return work * self._rates.get(plan.cost_kind, self._first_of(plan.cost_kind))

    def _first_of(self, kind: str) -> float:
        """The guess before anything was learnt of plans of this kind."""
        return _FIRST_BY_LIBRARY if BY_LIBRARY in kind else self._first

    def _threads_of(self, plan: Plan) -> int:
        """How many threads the plan keeps at work."""
        return max(1, min(self._threads, plan.most_parts))

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

    def timer(self, plan: Plan) -> RunTimer:
        """What records the times of one run."""
        return RunTimer(self, plan, self._threads_of(plan))

    def learn(self, kind: str, rate: float) -> None:
        """Take note of the seconds that an element of a plan of this kind has taken."""
        first = self._first_of(kind)
        rate = min(max(rate, first / _MOST_CHANGE), first * _MOST_CHANGE)
        with self._lock:
            before = self._rates.get(kind, rate)
            self._rates[kind] = before + _WEIGHT * (rate - before)


class RunTimer:
    """Records how long the parts of one run take.

    Args:
        meter: learns from them.
        plan: what runs.
        threads: how many of them run at the same time.
    """

    __slots__ = ("_kind", "_meter", "_taken", "_threads")

    def __init__(self, meter: CostMeter, plan: Plan, threads: int) -> None:
        self._meter, self._kind, self._threads = meter, plan.cost_kind, threads
        self._taken = 0.0

    def timed(self, work: int, compute: Callable[..., T]) -> Callable[..., T]:
        """Wrap the function that computes a part of this much work, so that its time is recorded.

        It raises `LimitExceeded` when the parts have taken longer than `max_seconds`: before a part, and within one
        that is computed in turns.
        """

        def compute_timed(*args: Any) -> T:
            self._check(0.0)
            with ComputedSeconds(self._check) as computed:
                made = compute(*args)
            seconds = computed.seconds
            self._taken += seconds
            if work >= _LEAST_WORK:
                self._meter.learn(self._kind, seconds / work)
            return made

        return compute_timed

    def _check(self, seconds: float) -> None:
        most = self._meter.max_seconds
        if self._taken + seconds > most * self._threads:
            raise LimitExceeded.of(
                "the time of this request", round((self._taken + seconds) / self._threads), round(most),
                "TENSORPOST_MAX_SECONDS", "seconds",
            )  # fmt: skip
