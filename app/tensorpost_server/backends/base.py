"""What a backend is given (a plan) and what it must do with it.

A plan is a frozen, picklable value: layouts, byte counts, how the output is cut into slices, and the kernel. It holds
no arrays and no handles. The engine makes it; backends only read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tensorpost.descriptors import OperatorDesc
from tensorpost.layout import Layout
from tensorpost.onnx import OnnxNode

from ..operators.base import Kernel
from .slices import Slices

__all__ = ["Backend", "Plan", "Run", "Slot"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in a request or an answer.

    Attributes:
        name: its name in a frame, for instance `input`.
        layout: type, sizes, strides and bytes.
    """

    name: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided about one operator call before any tensor byte is read.

    Attributes:
        operator: the operator's short name, for instance `TILE`.
        inputs: tensors to receive, in the order of their bytes on the wire.
        output: tensor to send.
        kernel: fills any box of the output.
        slices: how the output is cut.
        work: about how many elements are read and added up, all slices together.
        approximate: why the result may differ from DirectML's in more than rounding; None if it does not.
        subject: the descriptor or node that the plan was made of, for a backend that needs its words.
    """

    operator: str
    inputs: tuple[Slot, ...]
    output: Slot
    kernel: Kernel
    slices: Slices
    work: int
    approximate: str | None = None
    subject: OperatorDesc | OnnxNode | None = None

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs together."""
        return sum(slot.layout.size_in_bytes for slot in self.inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.output.layout.size_in_bytes


class Run(Protocol):
    """One plan with its inputs, on one device."""

    def compute(self, index: int) -> memoryview:
        """Slice `index` of the output in host memory, computed now; `Slices.piece(index).computed` bytes.

        Slices are asked for in order, but up to `Backend.threads` of them at the same time. The memory belongs to the
        caller; nothing writes to it again.
        """
        ...

    def close(self) -> None:
        """Let go of everything the run holds. Called once, after the last `compute` has returned."""
        ...


class Backend(Protocol):
    """A device that runs plans."""

    @property
    def name(self) -> str:
        """The backend's name in requests and answers: `numpy`, `null`."""
        ...

    @property
    def device(self) -> str:
        """Which device it is, in printable ASCII; it travels in a header."""
        ...

    @property
    def threads(self) -> int:
        """How many slices it may compute at the same time."""
        ...

    def refuses(self, plan: Plan) -> str | None:
        """Why this backend cannot run the plan exactly; None if it can. Pure and cheap."""
        ...

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> Run:
        """Make the inputs, which stay valid and unchanged until the run is closed, ready to be computed on."""
        ...

    def close(self) -> None:
        """Give the device back."""
        ...
