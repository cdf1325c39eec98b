"""ONNX operators that move elements."""

from __future__ import annotations

from tensorpost.onnx import OnnxNode

from ..forms import Copies
from .registry import form_of_node

__all__ = ["identity_form"]


@form_of_node("Identity")
def identity_form(node: OnnxNode) -> Copies:
    """The elements as they are."""
    return _packed_copy(node)


def _packed_copy(node: OnnxNode) -> Copies:
    """All elements in their order, whatever the shapes."""
    shape = node.output.shape
    return Copies((len(shape),), ((),)) if 0 in shape else Copies.of_box(shape, seen=(shape,))
