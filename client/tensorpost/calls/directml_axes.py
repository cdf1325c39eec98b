"""Exact axes in DirectML's terms: scales and offsets in float32, as a RESAMPLE2 or RESAMPLE3 descriptor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from .. import descriptors as dml
from ..onnx import ResizeAxis

__all__ = ["ResamplingMode", "build_descriptor"]

ResamplingMode = Literal["linear", "nearest"]

_HALF = Fraction(1, 2)
_FLOAT32_INDICES = 1 << 24  # float32 holds every whole number up to here
_COMPARED_AT_ONCE = 1 << 20


def build_descriptor(
    tensor: dml.BufferTensorDesc, axes: Sequence[ResizeAxis], mode: ResamplingMode, *, antialias: bool = False
) -> tuple[dml.Resample2OperatorDesc | dml.Resample3OperatorDesc, int]:
    """Write exact axes down as DirectML's `x = (o - OutputPixelOffset) / Scale - InputPixelOffset`.

    Args:
        tensor: the input, of 1 to 4 dimensions.
        axes: what each dimension reads; all that are resized round in the same way. Steps are not negative, and one of
            0 is for an axis whose input or output has a single element.
        mode: linear or nearest.
        antialias: RESAMPLE3 in place of RESAMPLE2.

    Returns:
        The descriptor, and at how many output indices its float32 coordinates pick another element than `axes` do;
        always 0 for linear.

    Raises:
        InvalidDescriptor: the result exceeds a limit of DirectML.
    """
    rounds_up = mode == "nearest" and any(
        axis.nearest_mode in ("round_prefer_floor", "ceil") for axis in axes if not axis.is_copied
    )
    placed = [_place(axis, mode) for axis in axes]
    modes = dml.InterpolationMode
    fields: dict[str, Any] = {
        "input_tensor": tensor,
        "output_tensor": dml.BufferTensorDesc.packed(tensor.data_type, [axis.output_length for axis in axes]),
        "interpolation_mode": modes.LINEAR if mode == "linear" else modes.NEAREST_NEIGHBOR,
        "rounding_direction": dml.AxisDirection.INCREASING if rounds_up else dml.AxisDirection.DECREASING,
        "scales": [place.scale for place in placed],
        "input_pixel_offsets": [place.input_offset for place in placed],
        "output_pixel_offsets": [place.output_offset for place in placed],
    }
    misses = sum(place.misses for place in placed)
    if antialias:
        return dml.Resample3OperatorDesc(**fields, antialiased=True), misses
    return dml.Resample2OperatorDesc(**fields), misses


@dataclass(frozen=True, slots=True)
class _DirectMLAxis:
    """An axis in DirectML's terms."""

    scale: float
    input_offset: float
    output_offset: float
    misses: int = 0


def _place(axis: ResizeAxis, mode: ResamplingMode) -> _DirectMLAxis:
    if axis.is_copied:
        return _DirectMLAxis(1.0, 0.5, -0.5)  # x = o
    scale = _float32(1 / axis.step) if axis.step else 1.0  # a step of 0: any scale gives the same answer
    centred = axis.offset == (axis.step - 1) / 2
    output_offset, input_offset = (-0.5, _HALF) if centred else (0.0, -axis.offset)
    if mode == "linear":
        if not 0 <= input_offset <= 1:  # where DirectML's neighbours are not those of x
            input_offset, output_offset = Fraction(0), _float32(input_offset * Fraction(scale))
        return _DirectMLAxis(scale, _float32(input_offset), output_offset)
    added, up = {
        "round_prefer_ceil": (-_HALF, False),
        "floor": (Fraction(0), False),
        "round_prefer_floor": (_HALF, True),
        "ceil": (Fraction(0), True),
    }[axis.nearest_mode]
    input_offset += added
    plain = _counted(axis, _DirectMLAxis(scale, _float32(input_offset), output_offset), up)
    if not plain.misses:
        return plain
    # All coordinates, the half of the rounding included, are multiples of 1 / grid.
    grid = math.lcm(axis.step.denominator, (axis.offset - added).denominator)
    away = Fraction(1, 2 * grid) if up else Fraction(-1, 2 * grid)
    moved = _counted(axis, _DirectMLAxis(scale, _float32(input_offset + away), output_offset), up)
    return min(plain, moved, key=lambda place: place.misses)


def _counted(axis: ResizeAxis, place: _DirectMLAxis, up: bool) -> _DirectMLAxis:
    """The same, with the indices counted at which float32 coordinates pick another element."""
    if max(axis.length, axis.output_length) > _FLOAT32_INDICES:
        return _DirectMLAxis(place.scale, place.input_offset, place.output_offset, axis.output_length)
    f, misses = np.float32, 0
    for start in range(0, axis.output_length, _COMPARED_AT_ONCE):
        stop = min(start + _COMPARED_AT_ONCE, axis.output_length)
        with np.errstate(over="ignore"):
            x = (np.arange(start, stop).astype(f) - f(place.output_offset)) / f(place.scale) - f(place.input_offset)
        picked = np.clip(np.ceil(x) if up else np.floor(x), 0, axis.length - 1).astype(np.int64)
        misses += int(np.count_nonzero(picked != axis.nearest(start, stop)))
    return _DirectMLAxis(place.scale, place.input_offset, place.output_offset, misses)


def _float32(value: Fraction) -> float:
    return float(np.float32(float(value)))
