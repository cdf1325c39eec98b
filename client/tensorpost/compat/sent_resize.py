"""What is sent: a RESAMPLE2 descriptor or an ONNX Resize node, made of axes in exact numbers.

Nothing is sent whose sizes are not those of the axes, and in nearest nothing that picks another element at any index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ..calls.resampling import DML_TYPES, build_descriptor
from ..descriptors import BufferTensorDesc, OperatorDesc
from ..onnx import OnnxNode, OnnxTensor, ResizeAxis, Resizing
from ..values.problems import InvalidParameter

Coordinates = Literal["half_pixel", "asymmetric", "align_corners"]
NearestRounding = Literal["round_prefer_ceil", "round_prefer_floor", "floor"]

_OPSET = 19
MOST_DML_DIMENSIONS = 4
"""RESAMPLE2 takes no more."""
ONNX_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.75}
"""The cubic of ONNX, PyTorch and OpenCV."""
PILLOW_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.5}
"""The cubic of Pillow, and of PyTorch with antialias."""
FILTERED: Mapping[str, Any] = {"antialias": 1, "exclude_outside": 1}
"""A filter that widens where an axis shrinks, as Pillow's does; no weight is given to what lies outside."""


def untouched(n: int) -> ResizeAxis:
    """An axis that stays as it is."""
    return ResizeAxis(n, n, Fraction(1))


def axis_of(
    n: int, length: int, ratio: Fraction, coordinates: Coordinates, rounding: NearestRounding = "round_prefer_ceil"
) -> ResizeAxis:
    """The axis in exact numbers, by ONNX's formulas."""
    if coordinates == "align_corners":
        step = Fraction(n - 1, length - 1) if length > 1 else Fraction(0)
        return ResizeAxis(n, length, ratio, step, nearest_mode=rounding)
    step = 1 / ratio
    offset = (step - 1) / 2 if coordinates == "half_pixel" else Fraction(0)
    return ResizeAxis(n, length, ratio, step, offset, rounding)


def packed(tensor: OnnxTensor) -> BufferTensorDesc:
    """The tensor as DirectML has it, without gaps."""
    return BufferTensorDesc.packed(tensor.row.dtype, tensor.shape)


def nearest_resize(
    tensor: OnnxTensor, axes: Sequence[ResizeAxis], coordinates: Coordinates, rounding: NearestRounding
) -> OperatorDesc | OnnxNode:
    """A descriptor if it picks the right element at every index, otherwise an ONNX node, which always does."""
    if tensor.data_type in DML_TYPES and len(axes) <= MOST_DML_DIMENSIONS:
        desc, misses = build_descriptor(packed(tensor), axes, "nearest")
        if not misses:
            return desc
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    for node in resize_nodes(tensor, axes, **attributes):
        if isinstance(node.meaning, Resizing) and all(map(_picks_the_same, node.meaning.axes, axes)):
            return node
    raise InvalidParameter(uneven(tensor))


def _picks_the_same(one: ResizeAxis, other: ResizeAxis) -> bool:
    return np.array_equal(one.nearest(0, one.output_length), other.nearest(0, other.output_length))


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

    ONNX takes a float32 scale at its word, so that one a little below 7/10 makes 6 of 10 elements. The next float32
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
