"""DirectML's Resample family on arrays: what each axis reads, for every version and for the gradients.

All coordinates come from one formula, `x = (o - OutputPixelOffset) / Scale - InputPixelOffset` (DML_RESAMPLE2_OPERATOR_DESC
page, solved for the input), evaluated in IEEE float32 in this order with a true division, as a shader would. An axis
longer than 2^24 has indices that float32 cannot hold; it is evaluated in float64.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import (
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGrad1OperatorDesc,
    ResampleGradOperatorDesc,
    ResampleOperatorDesc,
    Upsample2DOperatorDesc,
)

from .separable import Taps

__all__ = [
    "AdjointAxis",
    "LinearAxis",
    "Nearest",
    "NearestAxis",
    "ResampleDesc",
    "TriangleAxis",
    "kernel_for_resample",
]

ResampleDesc = (
    Upsample2DOperatorDesc
    | ResampleOperatorDesc
    | Resample1OperatorDesc
    | Resample2OperatorDesc
    | Resample3OperatorDesc
    | ResampleGradOperatorDesc
    | ResampleGrad1OperatorDesc
)

LARGEST_FLOAT32_AXIS = 1 << 24  # beyond it float32 skips whole numbers
LONG_SUM = 256  # from this many addends per axis on, a gradient is summed in float64

Indices = NDArray[np.int64]


class Nearest(enum.Enum):
    """How a nearest-neighbour version makes an index of a coordinate."""

    HALF_UP = "half-up"
    """floor(x + 0.5): UPSAMPLE_2D, RESAMPLE and RESAMPLE1."""
    FLOOR = "floor"
    """RESAMPLE2 and RESAMPLE3 with DECREASING."""
    CEIL = "ceil"
    """RESAMPLE2 and RESAMPLE3 with INCREASING."""


@dataclass(frozen=True, slots=True)
class _ScaledAxis:
    """An axis read at `x = (o - output_offset) / scale - input_offset`.

    Attributes:
        input_size: entries of the input axis.
        output_size: entries of the output axis.
        scale: factor, a float32 value above 0.
        input_offset: InputPixelOffset, a float32 value.
        output_offset: OutputPixelOffset, a float32 value.
    """

    input_size: int
    output_size: int
    scale: float
    input_offset: float
    output_offset: float

    def coordinates(self, outputs: Indices) -> NDArray[np.floating[Any]]:
        """X of these outputs, limited to [-1, input size]: past an end every coordinate reads the end anyway."""
        longest = max(self.input_size, self.output_size)
        real = np.float32 if longest <= LARGEST_FLOAT32_AXIS else np.float64
        with np.errstate(over="ignore"):  # a tiny scale sends x to infinity; the limit below takes it back
            x = (outputs.astype(real) - real(self.output_offset)) / real(self.scale) - real(self.input_offset)
        return np.clip(x, real(-1), real(self.input_size))

    def taps(self, start: int, stop: int) -> Taps:
        """See `AxisMap.taps`."""
        return self.taps_of(np.arange(start, stop))

    def taps_of(self, outputs: Indices) -> Taps:
        """The taps of any outputs, in the form of `AxisMap.taps`; indices grow with the tap and with the output."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NearestAxis(_ScaledAxis):
    """Nearest neighbour: one tap, a copy."""

    rule: Nearest

    @property
    def max_taps(self) -> int:
        """One."""
        return 1

    def taps_of(self, outputs: Indices) -> Taps:
        """The nearest index by the version's rule, then clamped into the input."""
        x = self.coordinates(outputs)
        match self.rule:
            case Nearest.HALF_UP:
                x = np.floor(x + x.dtype.type(0.5))
            case Nearest.FLOOR:
                x = np.floor(x)
            case Nearest.CEIL:
                x = np.ceil(x)
        return np.clip(x.astype(np.int64), 0, self.input_size - 1)[np.newaxis], None


@dataclass(frozen=True, slots=True)
class LinearAxis(_ScaledAxis):
    """Linear: `f = floor(x)`, `w = x - f`, taps f and f + 1 with weights 1 - w and w, both clamped into the input."""

    @property
    def max_taps(self) -> int:
        """Two."""
        return 2

    def taps_of(self, outputs: Indices) -> Taps:
        """The two neighbours; where both are the same element, the first one alone with weight 1."""
        x = self.coordinates(outputs)
        floor = np.floor(x)
        first = floor.astype(np.int64)
        indices = np.clip(np.stack([first, first + 1]), 0, self.input_size - 1)
        weight = np.where(indices[0] == indices[1], x.dtype.type(0), x - floor)
        return indices, np.stack([1 - weight, weight])


@dataclass(frozen=True, slots=True)
class TriangleAxis(_ScaledAxis):
    """Antialiased shrinking: taps i with |i - x| < 1 / scale, weights `1 - |i - x| * scale` normalized, clamped.

    The taps past an end all read the end element, so they are one tap here, with the sum of their weights. Weights are
    computed in float64 from the coordinate x.
    """

    @property
    def max_taps(self) -> int:
        """About twice the half-width, or the whole input."""
        return min(self.input_size, math.ceil(2 / self.scale) + 1)

    def taps_of(self, outputs: Indices) -> Taps:
        """The window around x, its parts past the ends folded into the end elements."""
        x = self._unlimited(outputs)
