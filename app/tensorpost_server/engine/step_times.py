"""When the steps of a graph are computed, for the records of its request. Nothing is timed for a single operator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ..backends import Run, RunWithoutStages
from ..backends.timeline import Phase
from ..forms.base import ComputedSeconds, go_on
from ..planning import Plan

T = TypeVar("T")


class StepTime(NamedTuple):
    """A step of a graph that was computed, or some of it.

    Attributes:
        node: name of its node; of several that were fused, that of the last.
        operator: the operator of that node, without a version.
        phase: when its parts were computed. `busy` is without their pauses.
    """

    node: str
    operator: str
    phase: Phase


class GraphRecord(NamedTuple):
    """What is recorded of a graph.

    Attributes:
        nodes: how many it has, before any are fused.
        slowest: the step whose parts took longest together; None if none was computed.
        steps: every step that was computed, in the order of the plan; empty if that was not asked for.
    """

    nodes: int
    slowest: StepTime | None
    steps: tuple[StepTime, ...]


class StepTimes:
    """The times of the steps of one run of a graph; its parts may be computed on any threads.

    Args:
        plan: the graph's.
    """

    __slots__ = ("_lock", "_offset", "_phases", "_plan")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._phases: dict[int, Phase] = {}
        self._offset = time.time_ns() - time.perf_counter_ns()  # the system's clock may be set meanwhile
        self._lock = threading.Lock()

    def timed(self, step: int, call: Callable[..., T], *args: int) -> T:
        """Call what computes a part of a step, and record how long it takes, also if it raises."""
        begin, computed = time.perf_counter_ns(), ComputedSeconds(_check_nothing)
        try:
            return call(*args)
        finally:
            busy = round(computed.seconds * 1e9)
            self.add(step, begin, time.perf_counter_ns(), busy)

    def add_ended(self, steps: Sequence[tuple[int, float]]) -> None:
        """Record steps that were computed one after the other until now, each with its seconds."""
        end = time.perf_counter_ns()
        for step, seconds in reversed(steps):
            begin = end - round(seconds * 1e9)
            self.add(step, begin, end, end - begin)
            end = begin

    def add(self, step: int, begin: int, end: int, busy: int) -> None:
        """Record a part of a step; times in nanoseconds of `time.perf_counter_ns`, `busy` those without pauses."""
        with self._lock:
            phase = self._phases.setdefault(step, Phase(begin + self._offset, 0))
            phase.begin = min(phase.begin, begin + self._offset)
            phase.end = max(phase.end, end + self._offset)
            phase.busy += busy
            phase.parts += 1

    def record(self, *, every_step: bool) -> GraphRecord:
        """The record of the run, which has ended.

        Args:
            every_step: whether to list the steps, which only spans need.
        """
        slowest = max(self._phases, key=lambda step: self._phases[step].busy, default=None)
        wanted = sorted(self._phases) if every_step else [] if slowest is None else [slowest]
        names = {self._plan.steps[step].name for step in wanted}
        nodes = self._plan.graph.nodes
        operators = {node.name: node.operation.op_type for node in nodes if node.name in names}
        steps: dict[int, StepTime] = {}
        for step in wanted:
            name = self._plan.steps[step].name
            steps[step] = StepTime(name, operators[name], self._phases[step])
        return GraphRecord(
            len(nodes), None if slowest is None else steps[slowest], tuple(steps.values()) if every_step else ()
        )


class TimedRun:
    """A run of a graph whose steps are timed, unless its device computes several of them in one go. See `Run`.

    Args:
        run: computes them.
        plan: the plan that it runs.
        times: takes the times.
    """

    __slots__ = ("_ended", "_in_full", "_is_joined", "_plan", "_run", "_times", "close", "parts")

    def __init__(self, run: Run, plan: Plan, times: StepTimes) -> None:
        self._run, self._plan, self._times = run, plan, times
        self.parts, self.close = run.parts, run.close
        self._in_full = {stage.step for stage in plan.stages}
        self._ended = 0  # stages
        self._is_joined = isinstance(run, RunWithoutStages) and len(plan.steps) > 1

    def prepare(self, stage: int, part: int) -> Sequence[tuple[int, float]]:
        """See `Run.prepare`. Of steps that are computed together, the device has taken the time."""
        begin, computed = time.perf_counter_ns(), ComputedSeconds(_check_nothing)
        together: Sequence[tuple[int, float]] = ()
        try:
            together = self._run.prepare(stage, part)
        finally:
            busy = round(computed.seconds * 1e9)
            if together:
                self._times.add_ended(together)
            else:
                self._times.add(self._plan.stages[stage].step, begin, time.perf_counter_ns(), busy)
        return together

    def finish(self, stage: int) -> None:
        """See `Run.finish`."""
        self._run.finish(stage)
        self._ended = stage + 1

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`. A slice of a stage is a copy, which is no time of its step."""
        for stage in range(self._ended, len(self._plan.stages)):  # of a small plan, on one thread
            go_on()
            for part in range(self.parts(stage)):
                self.prepare(stage, part)
            self.finish(stage)
        step = self._plan.output_sources[self._plan.slices.piece(index).output].node
        if step in self._in_full or self._is_joined:
            return self._run.compute(index)
        return self._times.timed(step, self._run.compute, index)


def _check_nothing(_seconds: float) -> None:
    """Check nothing: how long a request may compute, others check."""
