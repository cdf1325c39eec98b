"""What is sent: a RESAMPLE2 descriptor or an ONNX Resize node, made of axes in exact numbers.

Nothing is sent whose sizes are not those of the axes, and in nearest nothing that picks another element at any index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from ..calls.resampling import DML_TYPES, build_descriptor
from ..calls.resize_nodes import resize_nodes, uneven
from ..descriptors import BufferTensorDesc, OperatorDesc
from ..onnx import OnnxNode, OnnxTensor, ResizeAxis, Resizing
from ..values.problems import InvalidParameter

Coordinates = Literal["half_pixel", "asymmetric", "align_corners"]
NearestRounding = Literal["round_prefer_ceil", "round_prefer_floor", "floor"]

MOST_DML_DIMENSIONS = 4
"""RESAMPLE2 takes no more."""
ONNX_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.75}
"""The cubic of ONNX, PyTorch and OpenCV."""
PILLOW_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.5}
"""The cubic of Pillow, and of PyTorch with antialias."""


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
