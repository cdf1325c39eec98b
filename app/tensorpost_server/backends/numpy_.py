"""The CPU, through NumPy: always there, and the meaning every other backend is held against."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.layout import Layout

from .base import HostBackend, Plan

__all__ = ["NumpyBackend"]


@dataclass(frozen=True, slots=True)
class NumpyBackend(HostBackend):
    """Runs any plan on the CPU.

    Attributes:
        threads: slices computed at the same time; NumPy lets go of the interpreter lock inside its loops.
    """

    threads: int = 1
    name: str = "numpy"
    device: str = f"cpu ({platform.machine()})"

    def refuses(self, plan: Plan) -> str | None:
        """None: NumPy runs every operator there is."""
        del plan
        return None

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> NumpyRun:
        """Views of the inputs; nothing is copied."""
        views = [slot.layout.view(memory) for slot, memory in zip(plan.inputs, inputs, strict=True)]
        return NumpyRun(plan, views)


@dataclass(slots=True)
class NumpyRun:
    """A plan with its inputs as arrays."""

    plan: Plan
    inputs: list[Any]

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`."""
        plan = self.plan
        whole, piece = plan.output.layout, plan.slices.whole
        if piece is not None and whole.packed:
            out = np.empty(whole.sizes, whole.data_type.dtype)
            plan.kernel.fill(np, self.inputs, piece.box, out)
            return out.reshape(-1).view(np.uint8).data
        piece = plan.slices.piece(index)
        make = np.zeros if plan.slices.has_gaps else np.empty
        block = make(piece.computed, np.uint8)
        sizes = tuple([stop - start for start, stop in piece.box])
        part = Layout(whole.data_type, sizes, whole.strides, piece.computed, packed=whole.packed)
        plan.kernel.fill(np, self.inputs, piece.box, part.view(block))
        return block.data

    def close(self) -> None:
        """Forget the inputs, so that their memory is free as soon as its owner lets go."""
        self.inputs = []
