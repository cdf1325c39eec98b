"""Which ONNX nodes DirectML can express, and how. It is done only where a caller asks for it.

Sources: the DML_TILE_OPERATOR_DESC and DML_RESAMPLE pages with their support tables. Coordinates become
`x = (o - OutputPixelOffset) / Scale - InputPixelOffset`. DirectML's Scale is a float32, so a coordinate that ONNX
defines exactly may be off by a rounding; for nearest that is decided by evaluating both at every output index.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..descriptors import BufferTensorDesc, FeatureLevel, OperatorDesc, TileOperatorDesc
from ..descriptors.feature_levels import NEWEST
from ..descriptors.resample import (
    AxisDirection,
    InterpolationMode,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    ResampleOperatorDesc,
)
from ..values.datatypes import TensorDataType
from ..values.problems import InvalidDescriptor
from .directml_twins import MOST_DIMENSIONS, NotExpressible
from .node import OnnxNode
from .operator_lowering import lower_operator
from .resize import NearestMode, ResizeAxis, Resizing
from .tile import Tiling

__all__ = ["Lowering", "Verdict", "lower"]

_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_EVALUATED_AT_ONCE = 1 << 16
_MOST_COMPARED = 1 << 18  # entries of an axis; comparing takes about a microsecond each
_EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32


class Verdict(enum.Enum):
    """How well a DirectML operator expresses a node."""

    EXACT = "exact"
    """The same bytes: the same element, or the same coordinate, at every index; every index was compared."""
    EXACT_EXCEPT_TIES = "exact except ties"
    """The same formula, but float32 rounds some coordinates. Nearest: those on or next to a rounding boundary fall to
    its other side. Linear: results differ in their last bits. The reason counts them."""
    NOT_EXPRESSIBLE = "not expressible"


@dataclass(frozen=True, slots=True)
class Lowering:
    """How a node is expressed.

    Attributes:
        verdict: how well.
        reason: a sentence with the reason, or with what to consider.
        descriptor: the operator; None if there is none. Its packed input and output bytes are those of the node's
            tensors, even where its sizes or data type differ from theirs.
    """

    verdict: Verdict
    reason: str
    descriptor: OperatorDesc | None = None


def lower(node: OnnxNode, feature_level: str | int | FeatureLevel = NEWEST) -> Lowering:
    """Express a node as one DirectML operator of this feature level, or say why that is not possible.

    Examples:
        >>> from tensorpost.onnx import OnnxTensor
        >>> x = OnnxTensor("float", (2, 3, 4))
        >>> lower(OnnxNode.of("Tile", {"input": x, "repeats": [5, 1, 1]}, opset=13), "1_0").descriptor.repeats
        (1, 5, 1, 1)

    Raises:
        InvalidParameter: there is no such feature level.
    """
    level = FeatureLevel.parse(feature_level)
    if any(0 in tensor.shape for _, tensor in (*node.tensors, *node.results)):
        return Lowering(Verdict.NOT_EXPRESSIBLE, "DirectML has no empty tensors; the answer is the empty tensor")
    try:
        if not isinstance(node.meaning, (Tiling, Resizing)):
            desc = lower_operator(node, level)
            reason = f"{desc.name} is the same function; its results are rounded as the backend rounds them"
            return _checked(Lowering(Verdict.EXACT, reason, desc), level)
        if isinstance(node.meaning, Tiling):
            return _checked(_lower_tile(node, node.meaning, level), level)
        return _checked(_lower_resize(node, node.meaning, level), level)
    except NotExpressible as reason:
        return Lowering(Verdict.NOT_EXPRESSIBLE, str(reason))
    except InvalidDescriptor as error:
        return Lowering(Verdict.NOT_EXPRESSIBLE, f"it exceeds a limit of DirectML: {error.detail}")


def _checked(lowering: Lowering, level: FeatureLevel) -> Lowering:
    """The descriptor must be legal at the level; its own table has the last word."""
    if lowering.descriptor is not None:
        lowering.descriptor.validate_for(level)
    return lowering


# -- Tile --


def _lower_tile(node: OnnxNode, meaning: Tiling, level: FeatureLevel) -> Lowering:
    if node.input.data_type == "str":
        raise NotExpressible("DirectML has no strings")
    refused: InvalidDescriptor | None = None
    for data_type, items, note in _bit_carriers(node.input.data_type):
        sizes, repeats = [*node.input.shape], [*meaning.repeats]
        if items > 1:
            sizes, repeats = [*sizes, items], [*repeats, 1]
        try:
            sizes, repeats = _fitted(sizes or [1], repeats or [1], level)
            descriptor = TileOperatorDesc.of(BufferTensorDesc.packed(data_type, sizes), repeats)
            descriptor.validate_for(level)
        except InvalidDescriptor as error:
            refused = refused or error
            continue
        reason = "a copy" if set(repeats) == {1} else "Tile copies elements bit for bit"
        return Lowering(Verdict.EXACT, reason + note, descriptor)
    assert refused is not None  # every type has at least one carrier
    raise refused


def _bit_carriers(data_type: str) -> Sequence[tuple[TensorDataType, int, str]]:
    """DirectML types that can carry the elements' bits, how many make an element, and what to say about it."""
    t = TensorDataType
    match data_type:
        case "bool":
            return ((t.UINT8, 1, "; bool travels as UINT8"),)
        case "bfloat16":
            return ((t.UINT16, 1, "; bfloat16 travels as UINT16"),)
        case "float64" | "complex64":
            return (
                (t.UINT32, 2, f"; {data_type} travels as pairs of UINT32"),
                (t.UINT64, 1, f"; {data_type} travels as UINT64"),
            )
        case "complex128":
            return (
                (t.UINT32, 4, "; complex128 travels as four UINT32"),
                (t.UINT64, 2, "; complex128 travels as pairs of UINT64"),
            )
        case name:
            return ((t[name.upper()], 1, ""),)


def _fitted(sizes: list[int], repeats: list[int], level: FeatureLevel) -> tuple[list[int], list[int]]:
    """Sizes and repeats with as many dimensions as the level takes: 4, or 1 to 8 from 3_1 on."""
    most = MOST_DIMENSIONS if level >= FeatureLevel.L3_1 else 4
    if len(sizes) > most:
        sizes, repeats = _merged(sizes, repeats)
        if len(sizes) > most:
            raise NotExpressible(
                f"{len(sizes)} dimensions are left after merging those that can be; feature level {level} takes {most}"
            )
    if level < FeatureLevel.L3_1:
        ones = [1] * (4 - len(sizes))
        sizes, repeats = ones + sizes, ones + repeats
    return sizes, repeats


def _merged(sizes: Sequence[int], repeats: Sequence[int]) -> tuple[list[int], list[int]]:
    """The fewest dimensions: one is merged with the next if that repeats once, or if it has size 1 itself."""
    groups: list[tuple[int, int]] = []  # innermost first
    for size, repeat in zip(reversed(sizes), reversed(repeats), strict=True):
        if groups and (groups[-1][1] == 1 or size == 1):
            groups[-1] = (groups[-1][0] * size, groups[-1][1] * repeat)
        else:
            groups.append((size, repeat))
    return [size for size, _ in reversed(groups)], [repeat for _, repeat in reversed(groups)]


# -- Resize --


@dataclass(frozen=True, slots=True)
class _LoweredAxis:
    """An axis with the scale and offsets that DirectML gets for it."""

    axis: ResizeAxis
    scale: float
    input_offset: float
    output_offset: float


def _lower_resize(node: OnnxNode, meaning: Resizing, level: FeatureLevel) -> Lowering:
    if meaning.mode == "cubic":
        raise NotExpressible("DirectML has no cubic interpolation")
    if meaning.extrapolation_value is not None:
        raise NotExpressible(
            "the roi reaches outside the input, where DirectML repeats the edge instead of extrapolating"
        )
    if meaning.antialias and any(axis.scale < 1 for axis in meaning.axes):
        raise NotExpressible(
            "antialias filters every axis whose scale is below 1; RESAMPLE3 filters below 0.5 only, and in another way"
        )
    data_type = _resize_type(node.input.data_type, meaning, level)
    rounded = meaning.antialias and data_type not in (TensorDataType.FLOAT32, TensorDataType.FLOAT16)
    if rounded and not all(axis.is_copied for axis in meaning.axes):
        raise NotExpressible("antialias rounds integers after each axis; DirectML truncates them once, at the end")
    axes = _merged_axes(meaning.axes, level)
    if meaning.mode == "linear" and meaning.exclude_outside:
        for axis in axes:
            ends = (axis.offset, axis.offset + axis.step * (axis.output_length - 1))
            if min(ends) <= -1 or max(ends) >= axis.length:
                raise NotExpressible("exclude_outside changes the result where x is a pixel or more outside the input")
    placed = [_place(axis, meaning.coordinates) for axis in axes]
    if level >= FeatureLevel.L2_1:
        return _to_offsets(placed, meaning, data_type, directed=level >= FeatureLevel.L5_1)
    if level >= FeatureLevel.L2_0:
        return _to_resample(placed, meaning, data_type)
    raise NotExpressible("RESAMPLE exists from feature level 2_0 on, and UPSAMPLE_2D states no coordinate rule")


def _resize_type(name: str, meaning: Resizing, level: FeatureLevel) -> TensorDataType:
    if name in ("float32", "float16"):
        return TensorDataType[name.upper()]
    if name not in ("int8", "uint8") and not (name == "bool" and meaning.mode == "nearest"):
        raise NotExpressible(f"the Resample family has no {name} for {meaning.mode}")
    if level < FeatureLevel.L6_2:
        raise NotExpressible(f"the Resample family takes 8-bit types from feature level 6_2 on, not at {level}")
    return TensorDataType.UINT8 if name == "bool" else TensorDataType[name.upper()]


def _merged_axes(axes: Sequence[ResizeAxis], level: FeatureLevel) -> list[ResizeAxis]:
    """The axes, 4 at most: copied ones that stand side by side become one. Below 5_1 exactly 4, padded in front."""
    if not axes:
        raise NotExpressible("a tensor of rank 0 has no axis to resample")
    merged: list[ResizeAxis] = list(axes)
    if len(axes) > 4:
        merged.clear()
        for axis in axes:
            if merged and axis.is_copied and merged[-1].is_copied:
                length = merged[-1].length * axis.length
                merged[-1] = ResizeAxis(length, length, Fraction(1), nearest_mode=axis.nearest_mode)
            else:
                merged.append(axis)
    if len(merged) > 4:
        raise NotExpressible(f"{len(merged)} dimensions are left after merging the untouched ones; DirectML takes 4")
    if level < FeatureLevel.L5_1:
        one = ResizeAxis(1, 1, Fraction(1), nearest_mode=merged[0].nearest_mode)
        merged = [one] * (4 - len(merged)) + merged
    return merged


def _place(axis: ResizeAxis, coordinates: str) -> _LoweredAxis:
    n, last = axis.length, axis.output_length - 1
    if axis.is_copied:
        return _LoweredAxis(axis, 1.0, 0.5, -0.5)
    scale = _float32(axis.scale)
    match coordinates:
        case "half_pixel":
            return _LoweredAxis(axis, scale, 0.5, -0.5)
        case "half_pixel_symmetric":
            half_pixel = (1 / axis.scale - 1) / 2
            return _LoweredAxis(axis, scale, _float32(Fraction(1, 2) - (axis.offset - half_pixel)), -0.5)
        case "pytorch_half_pixel":
            return _LoweredAxis(axis, scale if last else 1.0, 0.5, -0.5)
        case "align_corners":
            return _LoweredAxis(axis, _float32(Fraction(last, n - 1)) if last and n > 1 else _LARGEST_FLOAT, 0.0, 0.0)
        case "tf_half_pixel_for_nn":
            return _LoweredAxis(axis, scale, 0.0, -0.5)
        case "tf_crop_and_resize":
            if last and axis.step <= 0:
                raise NotExpressible("the roi is reversed or empty along an axis; DirectML's scales are positive")
            return _LoweredAxis(axis, _float32(1 / axis.step) if last else 1.0, _float32(-axis.offset), 0.0)
        case _:
            return _LoweredAxis(axis, scale, 0.0, 0.0)


def _with_near_offsets(placed: Sequence[_LoweredAxis]) -> list[_LoweredAxis]:
    """The same x with InputPixelOffsets from 0 to 1, where DirectML's linear neighbours are those of x."""
    near: list[_LoweredAxis] = []
    for p in placed:
        output = Fraction(p.output_offset) + Fraction(p.input_offset) * Fraction(p.scale)
        near.append(p if 0 <= p.input_offset <= 1 else _LoweredAxis(p.axis, p.scale, 0.0, _float32(output)))
    return near


def _to_offsets(
    placed: Sequence[_LoweredAxis], meaning: Resizing, data_type: TensorDataType, *, directed: bool
) -> Lowering:
    """RESAMPLE2, whose rounding has a direction, or RESAMPLE1, which rounds halves up."""
    rounding, direction = _one_rounding(placed), AxisDirection.DECREASING
    if meaning.mode == "linear":
        add, placed = 0.0, _with_near_offsets(placed)
    elif directed:
        direction, add = {
            "round_prefer_ceil": (AxisDirection.DECREASING, -0.5),
            "floor": (AxisDirection.DECREASING, 0.0),
            "round_prefer_floor": (AxisDirection.INCREASING, 0.5),
            "ceil": (AxisDirection.INCREASING, 0.0),
        }[rounding]
    else:
        add = {"round_prefer_ceil": 0.0, "round_prefer_floor": 0.0, "floor": 0.5, "ceil": -0.5}[rounding]
    moved = [_LoweredAxis(p.axis, p.scale, p.input_offset + add, p.output_offset) for p in placed]
    fields: dict[str, Any] = {
        **_tensors(placed, data_type),
        "interpolation_mode": _interpolation(meaning),
        **_arrays(moved),
    }
    if not directed:
        return _judged(moved, meaning, data_type, Resample1OperatorDesc(**fields), _half_up)
    descriptor = Resample2OperatorDesc(**fields, rounding_direction=direction)
    round_up = direction is AxisDirection.INCREASING
    return _judged(moved, meaning, data_type, descriptor, np.ceil if round_up else np.floor)


def _to_resample(placed: Sequence[_LoweredAxis], meaning: Resizing, data_type: TensorDataType) -> Lowering:
    """RESAMPLE fixes the offsets at half pixels and rounds halves up."""
    fixed = [_LoweredAxis(p.axis, p.scale, 0.5, -0.5) for p in placed]
    descriptor = ResampleOperatorDesc(
        **_tensors(placed, data_type), interpolation_mode=_interpolation(meaning), **_scales(fixed)
    )
    lowering = _judged(fixed, meaning, data_type, descriptor, _half_up)
    for p in placed:
        lone = p.axis.output_length == 1 == p.scale and p.axis.offset == 0  # x = 0 is what scale 1 gives
        half_pixel = lone or p.axis.offset == (p.axis.step - 1) / 2
        if meaning.mode == "linear" and not (half_pixel or p.axis.is_copied):
            raise NotExpressible(f"RESAMPLE has half-pixel offsets only, which {meaning.coordinates} does not have")
        rounds_up = p.axis.nearest_mode in ("round_prefer_ceil", "round_prefer_floor") and half_pixel
        if meaning.mode == "nearest" and lowering.verdict is not Verdict.EXACT and not rounds_up:
            raise NotExpressible(
                f"RESAMPLE has half-pixel offsets and rounds halves up only; {meaning.coordinates} with "
                f"{p.axis.nearest_mode} picks other elements"
            )
    return lowering


def _one_rounding(placed: Sequence[_LoweredAxis]) -> NearestMode:
    """The rounding of all axes. Resize-10 and Upsample may want two, which one operator cannot have."""
    wanted: list[NearestMode] = [p.axis.nearest_mode for p in placed if not p.axis.is_copied]
    if len(set(wanted)) > 1:
        raise NotExpressible(
            f"axes round in different ways ({', '.join(sorted(set(wanted)))}); DirectML has one way for all"
        )
    return wanted[0] if wanted else "round_prefer_ceil"


def _tensors(placed: Sequence[_LoweredAxis], data_type: TensorDataType) -> dict[str, Any]:
    return {
        "input_tensor": BufferTensorDesc.packed(data_type, [p.axis.length for p in placed]),
        "output_tensor": BufferTensorDesc.packed(data_type, [p.axis.output_length for p in placed]),
    }


def _scales(placed: Sequence[_LoweredAxis]) -> dict[str, Any]:
    return {"scales": [p.scale for p in placed]}


def _arrays(placed: Sequence[_LoweredAxis]) -> dict[str, Any]:
    return {
        **_scales(placed),
        "input_pixel_offsets": [p.input_offset for p in placed],
        "output_pixel_offsets": [p.output_offset for p in placed],
    }


def _interpolation(meaning: Resizing) -> InterpolationMode:
    return InterpolationMode.LINEAR if meaning.mode == "linear" else InterpolationMode.NEAREST_NEIGHBOR


# -- judging --


def _half_up(x: NDArray[Any]) -> NDArray[Any]:
    return np.floor(x + x.dtype.type(0.5))


def _judged(
    placed: Sequence[_LoweredAxis],
    meaning: Resizing,
    data_type: TensorDataType,
    descriptor: OperatorDesc,
    rounding: Any,
) -> Lowering:
    """Compare DirectML's coordinates, in float32, with the exact ones at every output index."""
    name = f"DML_OPERATOR_{descriptor.operator_type}"
    bits = 0
    floats = data_type in (TensorDataType.FLOAT32, TensorDataType.FLOAT16)
    different, total, first = 0, 0, ""
    for number, p in enumerate(placed):
        if p.axis.output_length > _MOST_COMPARED:
            reason = f"dimension {number} has more than {_MOST_COMPARED} entries, and not all were compared"
            return Lowering(Verdict.EXACT_EXCEPT_TIES, reason, descriptor)
        for start in range(0, p.axis.output_length, _EVALUATED_AT_ONCE):
            stop = min(start + _EVALUATED_AT_ONCE, p.axis.output_length)
            wrong = _differences(p, start, stop, None if meaning.mode == "linear" else rounding)
            if wrong.size and not first:
                first = f"first at output index {int(wrong[0])} of dimension {number}"
            different += int(wrong.size)
        total += p.axis.output_length
        bits += math.lcm(p.axis.step.denominator, p.axis.offset.denominator).bit_length() - 1
    if meaning.mode == "linear" and different and floats:
        reason = (
            f"{name} has the same formula, but {different} of {total} coordinates are rounded to float32, {first}; "
            "results differ in their last bits"
        )
        return Lowering(Verdict.EXACT_EXCEPT_TIES, reason, descriptor)
    if meaning.mode == "linear" and not floats and bits > _EXACT_WEIGHT_BITS and not different:
        reason = f"{name} sums 8-bit integers in float32, where a sum next to a whole number may be truncated below it"
        return Lowering(Verdict.EXACT_EXCEPT_TIES, reason, descriptor)
    if not different:
        what = "coordinate" if meaning.mode == "linear" else "element"
        return Lowering(Verdict.EXACT, f"{name} takes the same {what} at every index, compared one by one", descriptor)
    what = "lie beside the exact ones" if meaning.mode == "linear" else "fall to the neighbour of the exact element"
    return Lowering(Verdict.EXACT_EXCEPT_TIES, f"{different} of {total} coordinates {what}, {first}", descriptor)


def _differences(placed: _LoweredAxis, start: int, stop: int, rounding: Any) -> NDArray[np.int64]:
    """Output indices from start to stop - 1 where float32 and exact arithmetic disagree."""
    axis = placed.axis
    f = np.float32
    outputs = np.arange(start, stop)
    x = (outputs.astype(f) - f(placed.output_offset)) / f(placed.scale) - f(placed.input_offset)
    if rounding is None:
        if math.lcm(axis.step.denominator, axis.offset.denominator) >= 1 << 28:
            return outputs  # too fine for float32 to meet
        exact, denominator = axis.coordinates(start, stop)
        if max(abs(int(exact[0])), abs(int(exact[-1]))) >= 1 << 52:
            return outputs
        # 24 bits of x times 28 of the denominator are exact in float64.
        return outputs[x.astype(np.float64) * denominator != exact.astype(np.float64)]
    got = np.clip(rounding(x), 0, axis.length - 1).astype(np.int64)
    return outputs[got != axis.nearest(start, stop)]


def _float32(value: Fraction) -> float:
    """The float32 next to the number, infinite if there is none; descriptors refuse that."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(float(value)))
