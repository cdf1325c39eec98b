"""The CPU, through NumPy: always available, and the reference that every other backend is compared with."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.layout import Layout

from ..forms.base import Box, Form, extents
from ..planning import OutputSlice, Plan, PlanStep
from . import blas_threads
from .base import HostBackend
from .device_run import DeviceRun, KeptArray, RunMemory, bytes_of, elements_of, outputs_of


@dataclass(frozen=True, slots=True)
class NumpyBackend(HostBackend):
    """Runs any plan on the CPU; as the `RunDevice` of its runs, it computes on the caller's memory.

    Attributes:
        threads: slices computed at the same time; NumPy releases the interpreter lock inside its loops.
    """

    threads: int = 1
    name: str = "numpy"
    device: str = f"cpu ({platform.machine()})"

    def __post_init__(self) -> None:
        blas_threads.use_one()

    def library(self, plan: Plan) -> str:
        """ONNX Runtime, for operators that NumPy does not compute here."""
        return "+".join([name for name in plan.libraries if name != self.name])

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DeviceRun:
        """Views of the inputs; nothing is copied."""
        return DeviceRun(self, plan, inputs)

    # ---- for the runs ------------------------------------------------------------------------------------------------

    @property
    def xp(self) -> Any:
        return np

    @property
    def splits_stages(self) -> bool:
        return True

    def streams(self, plan: Plan) -> bool:
        """Always: a box is read while it is in the cache."""
        return True

    def put(self, layouts: Sequence[Layout], blocks: Sequence[RunMemory]) -> tuple[list[Any], None]:
        """Views of the blocks."""
        return [layout.view(block) for layout, block in zip(layouts, blocks, strict=True)], None

    def put_kept(self, layout: Layout, data: memoryview) -> KeptArray:
        return KeptArray(layout.view(data))

    def compute(self, step: PlanStep, inputs: Sequence[Any], uploaded: None) -> list[Any]:
        return outputs_of(np, step, inputs)

    def compute_together(self, calls: Sequence[Callable[[], None]], uploaded: Any) -> list[float]:
        raise AssertionError("stages are split between threads")

    def compute_box(self, step: PlanStep, inputs: Sequence[Any], uploaded: None, box: Box) -> Any:
        out = np.empty(extents(box), step.outputs[0].layout.data_type.dtype)
        self.fill(step.form, inputs, box, out)
        return out

    def compute_slice(
        self, step: PlanStep, inputs: Sequence[Any], uploaded: None, piece: OutputSlice, target: RunMemory | None
    ) -> memoryview:
        layout, box = step.outputs[piece.output].layout, piece.box
        block = slice_block(layout, piece, target)
        self.fill(step.form, inputs, box, elements_of(np, block, layout, extents(box)), piece.output)
        return block.data

    def fill(self, form: Form, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`."""
        form.fill(np, inputs, box, out, output)

    def take(self, part: Any, layout: Layout, piece: OutputSlice, target: RunMemory | None) -> memoryview:
        return bytes_of(np, part, layout, piece).data

    def in_host_memory(self, array: Any) -> Any:
        return array

    def release(self, uploaded: None) -> None:
        """Nothing was begun."""


def slice_block(layout: Layout, piece: OutputSlice, target: RunMemory | None) -> NDArray[np.uint8]:
    """The bytes that a slice is computed into: the target's, or new ones, with zeros where gaps stay."""
    if target is not None:
        assert isinstance(target, memoryview)
        return np.frombuffer(target, np.uint8)
    return (np.empty if layout.packed else np.zeros)(piece.computed, np.uint8)
