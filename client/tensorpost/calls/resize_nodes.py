"""ONNX Resize nodes made of axes in exact numbers, and the filter that they share with Pillow and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..onnx import OnnxNode, OnnxTensor, ResizeAxis
from ..values.problems import InvalidParameter

__all__ = ["FILTERED", "resize_node", "resize_nodes", "uneven"]

_OPSET = 19

FILTERED: Mapping[str, Any] = {"antialias": 1, "exclude_outside": 1}
"""A filter that widens where an axis shrinks, as Pillow's does; no weight is given to what lies outside.

Without `exclude_outside`, ONNX gives the weight of what lies outside to the outermost elements, so that results differ
from Pillow's near the edges."""


def resize_node(tensor: OnnxTensor, axes: Sequence[ResizeAxis], **attributes: Any) -> OnnxNode:
    """The first of `resize_nodes`.

    Raises:
        InvalidParameter: there is none.
    """
    node = next(resize_nodes(tensor, axes, **attributes), None)
    if node is None:
        raise InvalidParameter(uneven(tensor))
    return node


def resize_nodes(tensor: OnnxTensor, axes: Sequence[ResizeAxis], **attributes: Any) -> Iterator[OnnxNode]:
    """ONNX Resize with these axes: by sizes wherever the scale follows from them, otherwise by scales.

    ONNX uses the exact value of a float32 scale, so a scale a little below 7/10 makes 6 of 10 elements. The next
    float32
    below and above are tried too; what has another size is left out.
    """
    wanted = tuple(axis.output_length for axis in axes)
    if all(axis.scale * axis.length == axis.output_length for axis in axes):
        yield OnnxNode.of("Resize", {"X": tensor, "sizes": wanted}, opset=_OPSET, **attributes)
        return
    ratios = np.array([float(axis.scale) for axis in axes])
    rounded = ratios.astype(np.float32)
    below = np.where(rounded > ratios, np.nextafter(rounded, np.float32(0)), rounded)
    above = np.where(rounded < ratios, np.nextafter(rounded, np.float32(np.inf)), rounded)
    for scales in (rounded, below, above):
        node = OnnxNode.of("Resize", {"X": tensor, "scales": scales}, opset=_OPSET, **attributes)
        if node.output.shape == wanted:
            yield node


def uneven(tensor: OnnxTensor) -> str:
    """The sentence about a factor that ONNX Resize cannot take as it is."""
    return (
        f"for {tensor.data_type} of {len(tensor.shape)} dimensions this factor is sent as the float32 scale of ONNX "
        "Resize, which gives another size or other elements; give the size in place of the factor"
    )
