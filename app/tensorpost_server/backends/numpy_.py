"""The CPU, through NumPy: always available, and the reference that every other backend is compared with."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.values.layout import Layout

from ..forms.base import extents
from ..planning import OutputSlice, Plan, PlanStep
from .base import HostBackend
from .device_run import DeviceRun, RunMemory, bytes_of, elements_of, outputs_of


@dataclass(frozen=True, slots=True)
class NumpyBackend(HostBackend):
    """Runs any plan on the CPU; as the `RunDevice` of its runs, it computes on the caller's memory.

    Attributes:
        threads: slices computed at the same time; NumPy releases the interpreter lock inside its loops.
    """

    threads: int = 1
    name: str = "numpy"
    device: str = f"cpu ({platform.machine()})"

    def library(self, plan: Plan) -> str:
        """ONNX Runtime, for operators that NumPy does not compute here."""
        return "" if plan.form.library == self.name else plan.form.library

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DeviceRun:
        """Views of the inputs; nothing is copied."""
        return DeviceRun(self, plan, inputs)

    # ---- for the runs ------------------------------------------------------------------------------------------------

    def put(self, layouts: Sequence[Layout], blocks: Sequence[RunMemory]) -> tuple[list[Any], None]:
        """Views of the blocks."""
        return [layout.view(block) for layout, block in zip(layouts, blocks, strict=True)], None

    def compute(self, step: PlanStep, inputs: Sequence[Any], uploaded: None) -> list[Any]:
        return outputs_of(np, step, inputs)

    def compute_slice(
        self, step: PlanStep, inputs: Sequence[Any], uploaded: None, piece: OutputSlice, target: RunMemory | None
    ) -> memoryview:
        """Computed into new memory: there is none of another kind."""
        layout, box = step.outputs[piece.output].layout, piece.box
        block = (np.empty if layout.packed else np.zeros)(piece.computed, np.uint8)
        step.form.fill(np, inputs, box, elements_of(np, block, layout, extents(box)), piece.output)
        return block.data

    def take(self, part: Any, layout: Layout, piece: OutputSlice, target: RunMemory | None) -> memoryview:
        return bytes_of(np, part, layout, piece).data

    def release(self, uploaded: None) -> None:
        """Nothing was begun."""
