"""A complete backend that computes nothing: every output byte is zero.

It shows what everything but the computation costs, and lets the layers above be tested without one. It is never chosen
by `auto`; a caller has to ask for it by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..planning import Plan
from .base import HostBackend, RunWithoutStages


@dataclass(frozen=True, slots=True)
class NullBackend(HostBackend):
    """A backend for measuring everything but the computation: its outputs are zeros."""

    threads: int = 1
    name: str = "null"
    device: str = "none (returns zeros)"

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> NullRun:
        """Remember the plan."""
        return NullRun(plan)


@dataclass(frozen=True, slots=True)
class NullRun(RunWithoutStages):
    """A plan without its inputs."""

    plan: Plan

    def compute(self, index: int) -> memoryview:
        """A slice's bytes, all of them 0."""
        return np.zeros(self.plan.slices.piece(index).computed, np.uint8).data

    def close(self) -> None:
        """Nothing is held."""
