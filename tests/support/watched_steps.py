"""The NumPy backend, which says what it is about to compute of a graph; and a graph of steps that are not fused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorpost_server.backends import HostBackend, Run
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan

__all__ = ["WatchedBackend", "chain", "tensor_in_json"]


def chain(*names: str) -> dict[str, Any]:
    """A graph of sums along the only axis, each of the one before: input `x`, output `y`."""
    nodes = [
        {"name": name, "op_type": "CumSum", "inputs": {"x": names[at - 1] if at else "x", "axis": [0]}}
        for at, name in enumerate(names)
    ]
    return {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": names[-1]}}


def tensor_in_json(*numbers: float) -> dict[str, Any]:
    """A tensor of one axis in a JSON body."""
    return {"dtype": "F32", "shape": [len(numbers)], "data": [*numbers]}


@dataclass
class WatchedBackend(HostBackend):
    """Computes as NumPy does, and calls back before each part of a step.

    Attributes:
        before: called with the name of the step's node, on the thread that computes it; it may block, or raise.
        begun: the names, as the parts began.
        closed_runs: runs that were closed.
    """

    before: Callable[[str], object] = lambda _name: None
    threads: int = 1
    name: str = "numpy"
    device: str = "a test's"
    begun: list[str] = field(default_factory=list)
    closed_runs: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> WatchedRun:
        return WatchedRun(self, plan, NumpyBackend().start(plan, inputs))

    def begin(self, name: str) -> None:
        """Take note of a part, and call back."""
        with self.lock:
            self.begun.append(name)
        self.before(name)


@dataclass
class WatchedRun:
    """A run of `WatchedBackend`."""

    backend: WatchedBackend
    plan: Plan
    run: Run

    def parts(self, stage: int) -> int:
        return self.run.parts(stage)

    def prepare(self, stage: int, part: int) -> Sequence[tuple[int, float]]:
        self.backend.begin(self.plan.steps[self.plan.stages[stage].step].name)
        return self.run.prepare(stage, part)

    def finish(self, stage: int) -> None:
        self.run.finish(stage)

    def compute(self, index: int) -> memoryview:
        source = self.plan.output_sources[self.plan.slices.piece(index).output]
        self.backend.begin(self.plan.steps[source.node].name)
        return self.run.compute(index)

    def close(self) -> None:
        self.backend.closed_runs += 1
        self.run.close()
