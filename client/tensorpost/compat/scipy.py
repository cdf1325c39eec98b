"""SciPy: `zoom` of order 0 as a RESAMPLE2, of order 1 as an ONNX Resize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ..calls.resize_nodes import resize_node
from ..descriptors import OperatorDesc
from ..onnx import OnnxNode, ResizeAxis
from ..values.problems import InvalidParameter
from .arguments import Described, no_such, read_numbers, read_tensor
from .sent_resize import Coordinates, axis_of, nearest_resize

__all__ = ["scipy_zoom"]

_SCIPY_EDGES = ("nearest", "reflect", "grid-mirror")
_SCIPY_MODES = (*_SCIPY_EDGES, "constant", "grid-constant", "mirror", "wrap", "grid-wrap")


def scipy_zoom(
    x: Described, zoom: float | Sequence[float], *, order: int, mode: str = "constant", grid_mode: bool = False
) -> OperatorDesc | OnnxNode:
    """`scipy.ndimage.zoom`.

    What is sent, with sizes of `round(size * zoom)`, halves to even:

    * order 0: RESAMPLE2, rounding halves up, with corners aligned (Scale = (size - 1) / (input size - 1), offsets 0) or
      with `grid_mode` pixel centres; InputPixelOffset may be lowered a little, see `tensorpost.resampling`. For types
      that DirectML lacks, or more than 4 dimensions, ONNX Resize.
    * order 1: ONNX Resize, linear, with align_corners or with `grid_mode` half_pixel. Integer results are truncated,
      where SciPy rounds.

    With SciPy's default `mode="constant"` its own rounding can put the last coordinate beyond the last element, and the
    last element of an axis then becomes 0. What is sent keeps the last element.

    Args:
        x: any shape.
        zoom: factors along every axis; a single number holds for all.
        order: 0 or 1. SciPy's own default is 3.
        mode: how SciPy goes on beyond the edges. Without `grid_mode` nothing lies there, so any will do. With it
            `nearest`, `reflect` or `grid-mirror`, which agree within the half pixel that is needed.
        grid_mode: pixel centres instead of corners.

    Raises:
        InvalidParameter: SciPy refuses the arguments, or does what cannot be expressed: orders above 1, and with
            `grid_mode` other edges, which mix in other values.
    """
    tensor = read_tensor(x)
    if order not in (0, 1):
        raise InvalidParameter(
            f"order is {order!r}; a spline above order 1 weighs all elements, which neither DirectML nor ONNX Resize "
            "does. Use order 0 or 1"
        )
    if mode not in _SCIPY_MODES:
        raise InvalidParameter(no_such("mode", mode, _SCIPY_MODES))
    if grid_mode and mode not in _SCIPY_EDGES:
        raise InvalidParameter(
            f"with grid_mode the outermost coordinates lie up to half a pixel outside, where mode={mode!r} does not "
            f"repeat the edge; use one of {', '.join(_SCIPY_EDGES)}"
        )
    if tensor.data_type in ("float16", "bfloat16", "str"):
        raise InvalidParameter(f"SciPy does not zoom {tensor.data_type}; convert x first")
    coordinates: Coordinates = "half_pixel" if grid_mode else "align_corners"
    axes: list[ResizeAxis] = []
    for index, (n, factor) in enumerate(zip(tensor.shape, read_numbers("zoom", zoom, len(tensor.shape)), strict=True)):
        length = round(n * factor) if math.isfinite(factor) else 0
        if length < 1:
            raise InvalidParameter(f"zoom[{index}] is {factor:g}, which leaves nothing of {n} elements")
        axes.append(axis_of(n, length, Fraction(length, n), coordinates))
    if order == 0:
        return nearest_resize(tensor, axes, coordinates, "round_prefer_ceil")
    if tensor.data_type == "bool":
        raise InvalidParameter("order 1 of bool is not a weighted average in SciPy; use order 0, or convert x first")
    return resize_node(tensor, axes, mode="linear", coordinate_transformation_mode=coordinates)
