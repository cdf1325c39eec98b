"""Axis maps of ONNX Resize and Upsample: where each output index looks, and with what weights.

Coordinates are exact: ratios of whole numbers, rounded once, when they become a weight. So nearest never picks a
neighbour because of rounding, and index 4 of 20 to 6 elements is exactly at 14.5.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tensorpost.onnx import ResizeAxis

from .axes import Taps
from .base import go_on

_FOLDED = 1 << 16  # taps of an output from which on those outside the input are summed, not listed


@dataclass(frozen=True, slots=True)
class ResizeMap:
    """Base of the maps of an axis that ONNX resizes.

    Attributes:
        axis: where the outputs lie.
    """

    axis: ResizeAxis

    @property
    def input_size(self) -> int:
        """Entries of the input axis."""
        return self.axis.length

    @property
    def output_size(self) -> int:
        """Entries of the output axis."""
        return self.axis.output_length


@dataclass(frozen=True, slots=True)
class NearestMap(ResizeMap):
    """Nearest: each output reads the one element that `axis.nearest_mode` picks for its x, clamped to the input."""

    def most_taps(self, start: int, stop: int) -> int:  # the protocol's; every output has as many
        """1: every output copies one element."""
        return 1

    def taps(self, start: int, stop: int) -> Taps:
        """Index of each output from start to stop - 1. See `AxisMap.taps`."""
        return self.axis.nearest(start, stop)[None], None


@dataclass(frozen=True, slots=True)
class FilterMap(ResizeMap):
    """Linear or cubic: each output is a weighted sum of the input elements around its x.

    Attributes:
        radius: reach of the filter in its own pixels: 1 for linear, 2 for cubic.
        coefficient: the cubic filter's a.
        exclude_outside: weight 0 for taps outside the input; otherwise they read the edge.
        stretch: input pixels per pixel of the filter, more than 1 only for antialiasing.
        crops: whether x outside the input will be overwritten with the extrapolation value.
    """

    radius: int
    coefficient: float
    exclude_outside: bool = False
    stretch: Fraction = Fraction(1)
    crops: bool = False

    def most_taps(self, start: int, stop: int) -> int:  # the protocol's; every output has as many
        """The whole numbers that can lie within the filter's reach."""
        return 2 * self._half

    @property
    def weight_bits(self) -> int:
        """Bits after the binary point that hold every weight exactly; 64 if there is no such number."""
        denominator = math.lcm(self.axis.step.denominator, self.axis.offset.denominator)
        plain = self.radius == 1 and self.stretch == 1 and not self.exclude_outside
        return denominator.bit_length() - 1 if plain and denominator.bit_count() == 1 else 64

    def widest(self) -> int:
        return min(self.input_size, self.most_taps(0, 1))

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """See `Windowed.reach`: the windows of the first and the last output, either of which may be the lower one."""
        ends = [int(self._floors(at, at + 1)[0][0]) for at in (start, stop - 1)]
        low, high = min(ends) + 1 - self._half, max(ends) + self._half
        last = self.axis.length - 1
        return min(max(low, 0), last), min(max(high, 0), last) + 1

    def readers(self, low: int, high: int) -> tuple[int, int]:  # windows overlap, most outputs read
        return 0, self.output_size

    def taps(self, start: int, stop: int) -> Taps:
        """Indices and weights of each output from start to stop - 1. See `AxisMap.taps`."""
        if 2 * self._half > _FOLDED:
            return self.taps_within(start, stop, *self.reach(start, stop))
        floor, fraction = self._floors(start, stop)
        steps = np.arange(1 - self._half, self._half + 1)[:, None]
        if self.radius == 1 and self.stretch == 1:
            weights = np.stack([1.0 - fraction, fraction])  # the filter below, without its rounding
        else:
            weights = self._filter(np.abs(steps - fraction) / float(self.stretch))
        indices = floor + steps
        last = self.axis.length - 1
        below, above = indices < 0, indices > last
        kept = np.where(below | above, 0.0, weights)
        if not self.exclude_outside:
            # Taps outside read the edge, so their weights are the edge's.
            kept += np.where(indices == 0, np.where(below, weights, 0.0).sum(axis=0), 0.0)
            kept += np.where(indices == last, np.where(above, weights, 0.0).sum(axis=0), 0.0)
        if self.exclude_outside or self.stretch > 1:
            total = kept.sum(axis=0)
            # A cubic filter of an odd coefficient may sum to 0, where nothing can be normalized.
            kept /= np.where(total == 0, 1.0, total)
        return indices.clip(0, last), kept

    def taps_within(self, start: int, stop: int, low: int, high: int) -> Taps:
        """See `Windowed.taps_within`. The weights are those of `taps`, summed in another order."""
        floor, fraction = self._floors(start, stop)
        last = self.axis.length - 1
        first = np.maximum((floor + 1 - self._half).clip(0, last), low)
        end = np.minimum((floor + self._half).clip(0, last) + 1, high)
        indices = first + np.arange(max(1, int((end - first).max())))[:, None]
        distance = np.abs((indices - floor) - fraction) / float(self.stretch)
        weights = np.where(distance < self.radius, self._filter(distance), 0.0)
        sums = np.array([_weight_sums(self, output) for output in range(start, stop)]).T
        below, within, above = sums
        if not self.exclude_outside:
            weights += np.where(indices == 0, below, 0.0) + np.where(indices == last, above, 0.0)
        total = within if self.exclude_outside else below + within + above
        weights /= np.where(total == 0, 1.0, total)
        return indices.clip(0, last), np.where(indices < end, weights, 0.0)

    def weight_sums(self, output: int) -> tuple[float, ...]:
        """Sums of an output's weights: of the taps below the input, of the taps inside it and of the taps above it."""
        floor, fraction = (place[0] for place in self._floors(output, output + 1))
        low, high = int(floor) + 1 - self._half, int(floor) + self._half + 1
        ends = [low, *(min(max(end, low), high) for end in (0, self.input_size)), high]
        sums: list[float] = []
        for start, stop in itertools.pairwise(ends):
            parts: list[float] = []
            for first in range(start, stop, _FOLDED):
                go_on()
                steps = np.arange(first, min(first + _FOLDED, stop)) - floor
                parts.append(float(self._filter(np.abs(steps - fraction) / float(self.stretch)).sum()))
            sums.append(math.fsum(parts))
        return tuple(sums)

    @property
    def _half(self) -> int:
        """Whole numbers on either side of x that the filter may reach."""
        return math.ceil(self.radius * self.stretch)

    def _floors(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """`floor(x)` of these outputs, and `x - floor(x)`."""
        return self.axis.places(start, stop, crops=self.crops)  # far outside, no tap would be left to weigh

    def _filter(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """The filter at distance t. The cubic's polynomials are factored so that they are exactly 0 at 1 and 2."""
        if self.radius == 1:
            return np.maximum(1.0 - t, 0.0)
        a = self.coefficient
        near = (1.0 - t) * (1.0 + t - (a + 2.0) * t * t)
        far = a * (t - 1.0) * (2.0 - t) ** 2
        return np.where(t <= 1.0, near, np.where(t < 2.0, far, 0.0))


# Each part of a window needs its output's sums, and they take as long as all parts.
_weight_sums = lru_cache(maxsize=1 << 12)(FilterMap.weight_sums)
