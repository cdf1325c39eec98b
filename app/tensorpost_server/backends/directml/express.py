"""Which plans one ONNX node expresses exactly on DirectML, and why the others are refused.

Sources: ONNX Tile-13 and Resize-19; the pages of DML_TILE_OPERATOR_DESC and of the Resample family; ONNX Runtime's
DirectML provider, whose Resize becomes `x = (o - OutputPixelOffset) / Scale - InputPixelOffset` on the device.

* Tile moves bits, so elements travel as unsigned integers of their size, and every payload of a NaN arrives.
* Resize is one coordinate mode and one rounding for all axes, and its output has `floor(length * scale)` elements. An
  axis that every mode reads alike (a copy; a single element) does not count.
* An ONNX node goes the same way, through the descriptor that `lower` finds for it, and only if that is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tensorpost.datatypes import DataType, data_type
from tensorpost.descriptors import OperatorDesc
from tensorpost.layout import Layout
from tensorpost.onnx import OnnxNode, Tiling, Verdict, lower

from ...forms import Copies, Form
from ...forms.axes import AxisMap
from ...forms.separable import Separable
from ...operators import form_of
from ...operators.resample import LARGEST_FLOAT32_AXIS, LinearAxis, Nearest, NearestAxis, ScaledAxis, TriangleAxis
from ...planning import Plan
from .model import Constant, Node

__all__ = ["express"]

MOST_TILE_DIMENSIONS = 8  # DML_TENSOR_DIMENSION_COUNT_MAX1
MOST_RESIZE_DIMENSIONS = 4  # the Resample family's tables
MOST_ELEMENTS = (1 << 32) - 1  # of a buffer tensor
TILE_OPSET, RESIZE_OPSET = 13, 19

_RESIZE_TYPES = ("float32", "float16", "int8", "uint8")
_CARRIERS = {1: ("uint8", 1), 2: ("uint16", 1), 4: ("uint32", 1), 8: ("uint64", 1), 16: ("uint64", 2)}
"""Item size to the type that carries the bits, and how many of it make an element."""

_COORDINATES = {(0.5, -0.5): "half_pixel", (0.0, 0.0): "asymmetric"}
_NEAREST: dict[tuple[Nearest, float, float], tuple[str, str]] = {
    (Nearest.HALF_UP, 0.5, -0.5): ("half_pixel", "round_prefer_ceil"),
    (Nearest.HALF_UP, 0.0, 0.0): ("asymmetric", "round_prefer_ceil"),
    (Nearest.HALF_UP, 0.5, 0.0): ("asymmetric", "floor"),
    (Nearest.FLOOR, 0.5, -0.5): ("half_pixel", "floor"),
    (Nearest.FLOOR, 0.0, -0.5): ("half_pixel", "round_prefer_ceil"),
    (Nearest.FLOOR, 0.0, 0.0): ("asymmetric", "floor"),
    (Nearest.FLOOR, -0.5, 0.0): ("asymmetric", "round_prefer_ceil"),
    (Nearest.CEIL, 0.5, -0.5): ("half_pixel", "ceil"),
    (Nearest.CEIL, 1.0, -0.5): ("half_pixel", "round_prefer_floor"),
    (Nearest.CEIL, 0.0, 0.0): ("asymmetric", "ceil"),
    (Nearest.CEIL, 0.5, 0.0): ("asymmetric", "round_prefer_floor"),
}
"""Rule and offsets (input, output) to coordinate_transformation_mode and nearest_mode."""


class _Refused(Exception):  # a way out of nested functions, never seen by a caller
    pass


@lru_cache(maxsize=1024)
def express(plan: Plan) -> Node | str:
    """The node that computes the plan's packed output from its packed input, or a sentence why none does.

    The output must have elements: an empty one needs no node.
    """
    try:
        subject, kernel = plan.operation, plan.form
        source, target = plan.inputs[0].layout, plan.outputs[0].layout
        if isinstance(subject, OnnxNode) and not isinstance(subject.meaning, Tiling):
            desc = _descriptor(subject)
            kernel = form_of(desc)
            source, target = (tensor.layout for _, tensor in desc.tensors())
        for layout in (source, target):
            if math.prod(layout.sizes) > MOST_ELEMENTS:
                raise _Refused(f"DirectML's tensors have at most {MOST_ELEMENTS:,} elements")
        if isinstance(plan.form, Copies):
            return _tile(source, target)
        return _resize(kernel, source, target)
    except _Refused as reason:
        return str(reason)


def _descriptor(node: OnnxNode) -> OperatorDesc:
    lowering = lower(node)
    if lowering.verdict is not Verdict.EXACT or not isinstance(lowering.descriptor, OperatorDesc):
        raise _Refused(f"in DirectML it is {lowering.verdict.value}: {lowering.reason}")
    return lowering.descriptor


def _tile(source: Layout, target: Layout) -> Node:
    carrier = _CARRIERS.get(source.data_type.item_size)
    if carrier is None:
        raise _Refused("DirectML has no strings")
    name, count = carrier
    sizes, tiled = source.sizes or (1,), target.sizes or (1,)
    if count > 1:
        sizes, tiled = (*sizes, count), (*tiled, count)
    if len(sizes) > MOST_TILE_DIMENSIONS:
        raise _Refused(f"DirectML's Tile takes {MOST_TILE_DIMENSIONS} dimensions; this one would have {len(sizes)}")
    repeats = tuple(out // size for out, size in zip(tiled, sizes, strict=True))
    return Node("Tile", TILE_OPSET, data_type(name), sizes, tiled, (Constant.int64("repeats", repeats),))


def _resize(kernel: Form, source: Layout, target: Layout) -> Node:
    if not isinstance(kernel, Separable):
        raise _Refused(f"ONNX Runtime's DirectML provider has no {type(kernel).__name__.removesuffix('Form')} here")
    _check_type(source.data_type)
    axes = [_forward(axis) for axis in kernel.axes]
    modes = {_mode(axis) for axis in axes if axis is not None and axis.input_size > 1}
    if len(modes) > 1:
        raise _Refused("its axes read the input in different ways, and a Resize node has one way for all")
    scales: list[float] = []
    for axis, size in zip(axes, source.sizes, strict=True):
        scale = 1.0 if axis is None else float(axis.output_size) if size == 1 else axis.scale
        length = size if axis is None else axis.output_size
        _check_length(size, length, scale)
        scales.append(scale)
    sizes, output_sizes, scales = _fitted(axes, source.sizes, target.sizes, scales)
    linear = any(isinstance(axis, LinearAxis) for axis in axes)
    coordinates, nearest_mode = modes.pop() if modes else ("half_pixel", "round_prefer_ceil")
    attributes: list[tuple[str, str | int]] = [
        ("mode", "linear" if linear else "nearest"),
        ("coordinate_transformation_mode", coordinates),
    ]
    if not linear:
        attributes.append(("nearest_mode", nearest_mode))
    constants = (None, Constant.float32("scales", tuple(scales)))
    return Node("Resize", RESIZE_OPSET, source.data_type, sizes, output_sizes, constants, tuple(attributes))


def _check_type(row: DataType) -> None:
    if row.numpy_name not in _RESIZE_TYPES:
        raise _Refused(f"DirectML resamples {', '.join(_RESIZE_TYPES)}, not {row.numpy_name}")


def _forward(axis: AxisMap | None) -> NearestAxis | LinearAxis | None:
    """The axis if it is of a kind that can be expressed; None for a copy."""
    if axis is None:
        return None
    if isinstance(axis, TriangleAxis):
        raise _Refused(
            "with Antialiased TRUE DirectML's own steps are not published, and ONNX's antialias filters every scale "
            "below 1; neither is the documented filter"
        )
    if not isinstance(axis, (NearestAxis, LinearAxis)):
        raise _Refused("ONNX Runtime has no gradient of Resize")
    if max(axis.input_size, axis.output_size) > LARGEST_FLOAT32_AXIS:
        raise _Refused(f"an axis is longer than {LARGEST_FLOAT32_AXIS:,}, and a shader's float32 skips indices there")
    return None if _is_copy(axis) else axis


def _is_copy(axis: NearestAxis | LinearAxis) -> bool:
    """Whether output o reads input o in every coordinate mode and rounding."""
    if axis.scale != 1 or axis.input_size != axis.output_size or isinstance(axis, LinearAxis):
        return False
    shift = -(axis.output_offset + axis.input_offset)  # x = o + shift; it must round to o
    match axis.rule:
        case Nearest.HALF_UP:
            return -0.5 <= shift < 0.5
        case Nearest.FLOOR:
            return 0 <= shift < 1
        case Nearest.CEIL:
            return -1 < shift <= 0


def _mode(axis: NearestAxis | LinearAxis) -> tuple[str, str]:
    """Coordinate mode and rounding."""
    offsets = (axis.input_offset, axis.output_offset)
    if isinstance(axis, LinearAxis):
        coordinates = _COORDINATES.get(offsets)
        found = None if coordinates is None else (coordinates, "")
    else:
        found = _NEAREST.get((axis.rule, *offsets))
    if found is None:
        how = "linear" if isinstance(axis, LinearAxis) else f"nearest ({axis.rule.value})"
        raise _Refused(f"no ONNX coordinate mode has the pixel offsets {offsets[0]:g} and {offsets[1]:g} for {how}")
    return found


def _check_length(size: int, length: int, scale: float) -> None:
    """ONNX's own output must be as long: shape inference multiplies in double, ONNX Runtime in float32."""
    with np.errstate(over="ignore"):
        in_float32 = float(np.float32(size) * np.float32(scale))
    if not math.isfinite(in_float32) or {math.floor(size * scale), math.floor(in_float32)} != {length}:
        raise _Refused(
            f"an axis of {size} with scale {scale:.9g} has {length} elements in the output; a Resize node would make "
            f"floor(length * scale), which is {size * scale:.6g} before the floor"
        )


def _fitted(
    axes: Sequence[ScaledAxis | None], sizes: Sequence[int], output_sizes: Sequence[int], scales: Sequence[float]
) -> tuple[tuple[int, ...], tuple[int, ...], list[float]]:
    """Two to four dimensions: copied axes that stand side by side become one, and those of size 1 are dropped."""
    merged: list[tuple[int, int, float]] = []
    was_copied = False
    for axis, size, length, scale in zip(axes, sizes, output_sizes, scales, strict=True):
        copied = axis is None
        if copied and size == 1:
            continue
        if copied and was_copied:
            merged[-1] = (merged[-1][0] * size, merged[-1][1] * length, 1.0)
        else:
            merged.append((size, length, scale))
        was_copied = copied
    merged = [(1, 1, 1.0)] * (2 - len(merged)) + merged  # ONNX Runtime's CPU provider has no linear of rank 1
    if len(merged) > MOST_RESIZE_DIMENSIONS:
        raise _Refused(f"DirectML resamples {MOST_RESIZE_DIMENSIONS} dimensions; this has {len(merged)} to tell apart")
    return (
        tuple(size for size, _, _ in merged),
        tuple(length for _, length, _ in merged),
        [scale for _, _, scale in merged],
    )
