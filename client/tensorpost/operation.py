"""What can be run: the interface that DirectML descriptors and ONNX nodes share.

HTTP, engine, backends and both clients know operators only by this interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .layout import Layout

__all__ = ["Operation", "Slot"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in a request or an answer.

    Attributes:
        name: unique among the inputs, and among the outputs, of an operation; a tensor's name in a frame.
        layout: element type, sizes, strides and bytes.
        handle: names a tensor that stays on the device; None if the tensor's bytes travel.
    """

    name: str
    layout: Layout
    handle: Any = None


@runtime_checkable
class Operation(Protocol):
    """An operator with everything that is decided before its tensors' elements are known."""

    @property
    def name(self) -> str:
        """For messages: `TILE`, `Resize-19`."""
        ...

    @property
    def endpoint(self) -> str:
        """Path of the POST: `/v1/operators/tile`, `/v1/onnx/Resize`."""
        ...

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """Tensors that travel, in wire order; absent optional ones are left out, arrays are numbered (`input_0`)."""
        ...

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """One or more, in the descriptor's order."""
        ...

    @property
    def approximate(self) -> str | None:
        """Why results may differ from the dialect's own in more than rounding; None if they do not."""
        ...

    def to_document_text(self) -> str:
        """Canonical JSON, the `op` of a frame."""
        ...
