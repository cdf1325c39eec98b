"""ONNX operators along lines: softmax, reductions, selections, scans."""

from __future__ import annotations

from typing import Any

from tensorpost.onnx import OnnxNode

from ..forms import Lines
from .registry import form_of_node
from .softmax import hardmax_lines, softmax_lines

__all__ = ["softmax_form"]


def _parameters(node: OnnxNode) -> dict[str, Any]:
    """What the node means."""
    assert isinstance(node.meaning, tuple)
    return dict(node.meaning)


@form_of_node("Softmax", "LogSoftmax")
def softmax_form(node: OnnxNode) -> Lines:
    """Along the axes together."""
    return softmax_lines(node.input.shape, _parameters(node)["axes"], logarithm=node.op_type == "LogSoftmax")


@form_of_node("Hardmax")
def hardmax_form(node: OnnxNode) -> Lines:
    """1 at the first of the largest elements."""
    return hardmax_lines(node.input.shape, _parameters(node)["axes"])
