"""ONNX nodes as forms: Tile, Resize and Upsample, each for every type and shape that ONNX gives it.

Unlike DirectML's operators, these take empty tensors, rank 0, and more than 8 dimensions.
"""

from __future__ import annotations

from tensorpost.onnx import OnnxNode, Tiling

from ..forms import Form
from .onnx_resize import resize_form
from .registry import form_of_class
from .tile import tile

__all__ = ["onnx_form"]


@form_of_class(OnnxNode)
def onnx_form(node: OnnxNode) -> Form:
    """The form of a node, by what it means at its opset."""
    if isinstance(node.meaning, Tiling):
        return tile(node.input.shape, node.meaning.repeats)
    return resize_form(node.meaning)
