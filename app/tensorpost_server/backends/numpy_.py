"""The CPU, through NumPy: always available, and the reference that every other backend is compared with."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorpost.values.layout import Layout

from ..forms.base import extents
from ..planning import OutputSlice, Plan
from .base import HostBackend


@dataclass(frozen=True, slots=True)
class NumpyBackend(HostBackend):
    """Runs any plan on the CPU.

    Attributes:
        threads: slices computed at the same time; NumPy releases the interpreter lock inside its loops.
    """

    threads: int = 1
    name: str = "numpy"
    device: str = f"cpu ({platform.machine()})"

    def refusal_reason(self, plan: Plan) -> str | None:
        """Always None: NumPy runs every operator."""
        return None

    def library(self, plan: Plan) -> str:
        """ONNX Runtime, for operators that NumPy does not compute here."""
        return "" if plan.form.library == self.name else plan.form.library

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> NumpyRun:
        """Views of the inputs; nothing is copied."""
        views = [layout.view(memory) for layout, memory in zip(plan.operands, inputs, strict=True)]
        return NumpyRun(plan, views)


@dataclass(slots=True)
class NumpyRun:
    """A plan with its inputs as arrays.

    Attributes:
        plan: what is computed.
        inputs: an array for each input of the plan.
    """

    plan: Plan
    inputs: list[Any]
    _outputs: list[Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compute(self, index: int) -> memoryview:
        plan, form = self.plan, self.plan.form
        piece = plan.slices.whole or plan.slices.piece(index)
        layout = plan.outputs[piece.output].layout
        if form.computed_whole:
            made = self._made()[piece.output][tuple([slice(*span) for span in piece.box])]
            if layout.packed and made.flags.c_contiguous:
                return made.reshape(-1).view(np.uint8).data
            block, out = new_block(layout, piece)
            out[...] = made
            return block.data
        if layout.packed:
            out = np.empty(extents(piece.box), layout.data_type.dtype)
            form.fill(np, self.inputs, piece.box, out, piece.output)
            return out.reshape(-1).view(np.uint8).data
        block, out = new_block(layout, piece)
        form.fill(np, self.inputs, piece.box, out, piece.output)
        return block.data

    def _made(self) -> list[Any]:
        """All outputs in full, computed once; further slices of the run wait for the result."""
        with self._lock:
            if self._outputs is None:
                made = self.plan.form.compute(np, self.inputs)
                self._outputs = [
                    np.asarray(array).astype(slot.layout.data_type.dtype, copy=False).reshape(slot.layout.sizes)
                    for array, slot in zip(made, self.plan.outputs, strict=True)
                ]
            return self._outputs

    def close(self) -> None:
        """Drop the references to the inputs, so that their memory can be freed."""
        self.inputs, self._outputs = [], None


def new_block(layout: Layout, piece: OutputSlice) -> tuple[Any, Any]:
    """Fresh memory for a slice, with zeros where it has gaps, as bytes and as an array of the box's shape.

    Args:
        layout: the whole output's.
        piece: one of its slices.
    """
    block = (np.empty if layout.packed else np.zeros)(piece.computed, np.uint8)
    sizes = tuple(extents(piece.box))
    part = Layout(layout.data_type, sizes, layout.strides, piece.computed, packed=layout.packed)
    return block, part.view(block)
