"""What a DirectML descriptor and an ONNX node have in common: named input tensors, named output tensors, a document.

Everything behind the two dialects (HTTP, the engine, the backends, both clients) knows operations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .layout import Layout

__all__ = ["Operation", "Slot"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one tensor in a request or in an answer.

    Attributes:
        name: the tensor's name in a frame, for instance `input`, or `input_0` in an array of tensors.
        layout: type, sizes, strides and bytes.
    """

    name: str
    layout: Layout


class Operation(Protocol):
    """One operator with its attributes and the layouts of its tensors: frozen, hashable, validated."""

    @property
    def name(self) -> str:
        """The operator's short name: `TILE`, `Resize-19`."""
        ...

    @property
    def op_type(self) -> str:
        """The operator without its version: `TILE` of DirectML, `Resize` of ONNX."""
        ...

    @property
    def opset_version(self) -> int | None:
        """The version of an ONNX operator, which is the opset that introduced it; None of DirectML's operators."""
        ...

    @property
    def endpoint(self) -> str:
        """The path that the operation is posted to: `/v1/operators/tile`, `/v1/onnx/Resize`."""
        ...

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """The tensors that are sent, in binding order; optional tensors that are absent have no slot."""
        ...

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """The tensors that come back, in binding order; at least one."""
        ...

    def to_document_text(self) -> str:
        """The canonical document as compact JSON text, as it travels in a frame's head."""
        ...
