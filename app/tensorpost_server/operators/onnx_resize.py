"""Resize and Upsample on arrays: where each output index looks, and with what weights.

Sources: ONNX Resize-10 to -19, Upsample-7 and -9. Where the text is silent, tensorpost's choices:

* Coordinates are exact: ratios of whole numbers, rounded once, when they become a weight. So nearest never picks a
  neighbour because of rounding, and index 4 of 20 to 6 elements is exactly at 14.5.
* float16, bfloat16, float32 and complex64 are summed in float32 and rounded once; all other types in float64.
* Integers: the sum is truncated toward zero and saturated. A sum that falls short of a whole number by less than
  float64 arithmetic can tell (2^-32; beyond 2^16, 2^-48 of it) counts as that number, so a constant image stays
  constant (ONNX Runtime's float32 sums turn some 7 into 6).
* Integers with antialias: each axis is rounded to the type before the next one, the last axis first, ties away from
  zero. That is what ONNX Runtime's CPU provider does with uint8 and int32.
* Complex numbers are resampled part by part. A tap of weight 0 is not read, so an infinity beside a grid point stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.onnx import ResizeAxis, Resizing

from ..forms import Box
from ..forms.axes import AxisMap, Taps, read_along, work_along
from ..forms.base import BoxForm, Reads, extents, go_on
from ..forms.separable import Rounding, Separable

__all__ = ["FilterMap", "NearestMap", "OnnxResize", "resize_form"]

# float64 arithmetic cannot tell a sum from a whole number nearer than this. A few taps err by less than 16 steps of the
# sum; a small sum may be what is left of terms of up to 2^16 that cancelled.
_NEAR_RELATIVE = 2.0**-48
_NEAR = 2.0**16 * _NEAR_RELATIVE
_EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32
_FOLDED = 1 << 16  # taps of an output from which on those outside the input are summed, not listed
_BLOCK = 1 << 18  # elements whose sums are made at a time: 2 MiB of float64, which stay in a CPU's cache


@dataclass(frozen=True, slots=True)
class NearestMap:
    """Nearest: each output reads the one element that `axis.nearest_mode` picks for its x, clamped to the input."""

    axis: ResizeAxis

    @property
    def input_size(self) -> int:
        """Entries of the input axis."""
        return self.axis.length

    @property
    def output_size(self) -> int:
        """Entries of the output axis."""
        return self.axis.output_length

    def most_taps(self, start: int, stop: int) -> int:  # noqa: ARG002 # the protocol's; every output has as many
        """One."""
        return 1

    def taps(self, start: int, stop: int) -> Taps:
        """Index of each output from start to stop - 1. See `AxisMap.taps`."""
        return self.axis.nearest(start, stop)[None], None


@dataclass(frozen=True, slots=True)
class FilterMap:
    """Linear or cubic: each output is a weighted sum of the input elements around its x.

    Attributes:
        axis: where the outputs lie.
        radius: reach of the filter in its own pixels: 1 for linear, 2 for cubic.
        coefficient: the cubic filter's a.
        exclude_outside: weight 0 for taps outside the input; otherwise they read the edge.
        stretch: input pixels per pixel of the filter, more than 1 only for antialiasing.
        crops: whether x outside the input will be overwritten with the extrapolation value.
    """

    axis: ResizeAxis
    radius: int
    coefficient: float
    exclude_outside: bool = False
    stretch: Fraction = Fraction(1)
    crops: bool = False

    @property
    def input_size(self) -> int:
        """Entries of the input axis."""
        return self.axis.length

    @property
    def output_size(self) -> int:
        """Entries of the output axis."""
        return self.axis.output_length

    def most_taps(self, start: int, stop: int) -> int:  # noqa: ARG002 # the protocol's; every output has as many
        """As many whole numbers as can lie within the filter's reach."""
        return 2 * self._half

    @property
    def weight_bits(self) -> int:
        """Bits behind the binary point that hold every weight exactly; 64 if there is no such number."""
        denominator = math.lcm(self.axis.step.denominator, self.axis.offset.denominator)
        plain = self.radius == 1 and self.stretch == 1 and not self.exclude_outside
        return denominator.bit_length() - 1 if plain and denominator.bit_count() == 1 else 64

    def widest(self) -> int:
        """See `Windowed.widest`."""
        return min(self.input_size, self.most_taps(0, 1))

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """See `Windowed.reach`: the windows of the first and the last output, either of which may be the lower one."""
        ends = [int(self._places(at, at + 1)[0][0]) for at in (start, stop - 1)]
        low, high = min(ends) + 1 - self._half, max(ends) + self._half
        last = self.axis.length - 1
        return min(max(low, 0), last), min(max(high, 0), last) + 1

    def readers(self, low: int, high: int) -> tuple[int, int]:  # noqa: ARG002  # windows overlap, most outputs read
        """See `Windowed.readers`."""
        return 0, self.output_size

    def taps(self, start: int, stop: int) -> Taps:
        """Indices and weights of each output from start to stop - 1. See `AxisMap.taps`."""
        if 2 * self._half > _FOLDED:
            return self.taps_within(start, stop, *self.reach(start, stop))
        base, beyond = self._places(start, stop)
        steps = np.arange(1 - self._half, self._half + 1)[:, None]
        if self.radius == 1 and self.stretch == 1:
            weights = np.stack([1.0 - beyond, beyond])  # the filter below, without its rounding
        else:
            weights = self._filter(np.abs(steps - beyond) / float(self.stretch))
        indices = base + steps
        last = self.axis.length - 1
        before, behind = indices < 0, indices > last
        kept = np.where(before | behind, 0.0, weights)
        if not self.exclude_outside:
            # Taps outside read the edge, so their weights are the edge's.
            kept += np.where(indices == 0, np.where(before, weights, 0.0).sum(axis=0), 0.0)
            kept += np.where(indices == last, np.where(behind, weights, 0.0).sum(axis=0), 0.0)
        if self.exclude_outside or self.stretch > 1:
            total = kept.sum(axis=0)
            # A cubic filter of an odd coefficient may sum to 0, where nothing can be normalized.
            kept /= np.where(total == 0, 1.0, total)
        return indices.clip(0, last), kept

    def taps_within(self, start: int, stop: int, low: int, high: int) -> Taps:
        """See `Windowed.taps_within`. The weights are those of `taps`, summed in another order."""
        base, beyond = self._places(start, stop)
        last = self.axis.length - 1
        first = np.maximum((base + 1 - self._half).clip(0, last), low)
        end = np.minimum((base + self._half).clip(0, last) + 1, high)
        indices = first + np.arange(max(1, int((end - first).max())))[:, None]
        distance = np.abs((indices - base) - beyond) / float(self.stretch)
        weights = np.where(distance < self.radius, self._filter(distance), 0.0)
        sums = np.array([_weight_sums(self, output) for output in range(start, stop)]).T
        before, within, behind = sums
        if not self.exclude_outside:
            weights += np.where(indices == 0, before, 0.0) + np.where(indices == last, behind, 0.0)
        total = within if self.exclude_outside else before + within + behind
        weights /= np.where(total == 0, 1.0, total)
        return indices.clip(0, last), np.where(indices < end, weights, 0.0)

    def weight_sums(self, output: int) -> tuple[float, ...]:
        """Sums of an output's weights: of the taps before the input, of those inside and of those behind it."""
        base, beyond = (place[0] for place in self._places(output, output + 1))
        low, high = int(base) + 1 - self._half, int(base) + self._half + 1
        ends = [low, *(min(max(end, low), high) for end in (0, self.input_size)), high]
        sums: list[float] = []
        for start, stop in itertools.pairwise(ends):
            parts: list[float] = []
            for first in range(start, stop, _FOLDED):
                go_on()
                steps = np.arange(first, min(first + _FOLDED, stop)) - base
                parts.append(float(self._filter(np.abs(steps - beyond) / float(self.stretch)).sum()))
            sums.append(math.fsum(parts))
        return tuple(sums)

    @property
    def _half(self) -> int:
        """Whole numbers on either side of x that the filter may reach."""
        return math.ceil(self.radius * self.stretch)

    def _places(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The x of these outputs, as whole numbers and what is beyond them."""
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


@dataclass(frozen=True, slots=True)
class OnnxResize(BoxForm):
    """A resize, ready to run. Fills any box; reads only the input that the box needs.

    Attributes:
        axes: one map per dimension; None copies that axis.
        inside: per dimension, the outputs that do not get the extrapolation value.
        extrapolation_value: what elements outside get; None if there are none.
        round_each_axis: integers only: round after every axis, not once at the end.
    """

    axes: tuple[AxisMap | None, ...]
    inside: tuple[tuple[int, int], ...] = ()
    extrapolation_value: float | None = None
    round_each_axis: bool = False

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`."""
        del output
        return (read_along(self.axes, box),)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`."""
        del output
        return work_along(self.axes, extents(box))

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`."""
        del output
        if any(start == stop for start, stop in box):
            return
        weighted = any(isinstance(axis, FilterMap) for axis in self.axes)
        # Infinities and overflow are results here as in ONNX, not accidents.
        with np.errstate(over="ignore", invalid="ignore"):
            if weighted and out.dtype.kind == "c":
                part = Separable(self.axes, "float32" if out.dtype.itemsize == 8 else "float64")
                part.fill(xp, [inputs[0].real], box, out.real)
                part.fill(xp, [inputs[0].imag], box, out.imag)
            elif weighted and out.dtype.kind in "iu":
                self._fill_integers(xp, inputs[0], box, out)
            else:
                accumulate = "float64" if out.dtype.itemsize == 8 else "float32"
                Separable(self.axes, accumulate).fill(xp, inputs, box, out)
            self.extrapolate(box, out)

    def alone(self, dtype: np.dtype[Any]) -> Separable | None:
        """The kernel that by itself makes elements of this type, but for `extrapolate`; None if more must be done.

        Complex numbers take two parts. Integers are rounded by rules of their own, unless they have 8 bits and weights
        with which float32 sums are exact: those are only truncated.
        """
        weighted = [axis for axis in self.axes if isinstance(axis, FilterMap)]
        if not weighted:
            return Separable(self.axes)
        if dtype.kind in "iu":
            exact = dtype.itemsize == 1 and sum(axis.weight_bits for axis in weighted) <= _EXACT_WEIGHT_BITS
            truncated = Separable(self.axes, rounding=Rounding.TRUNCATE)
            return truncated if exact and not self.round_each_axis else None
        if dtype.kind == "c":
            return None
        return Separable(self.axes, "float64" if dtype.itemsize == 8 else "float32")

    def extrapolate(self, box: Box, out: Any) -> None:
        """Overwrite what lies outside the input, if the resize has a value for it; `box` and `out` as in `fill`."""
        if self.extrapolation_value is not None:
            self._extrapolate(box, out, self.extrapolation_value)

    def _fill_integers(self, xp: ModuleType, x: Any, box: Box, out: Any) -> None:
        if self.round_each_axis:
            Separable(self.axes, "float64", round_axis=_round).fill(xp, [x], box, out)
            return
        if xp is not np:
            self._round_once(xp, x, box, out)
            return
        for part in _blocks(box, _BLOCK):
            inside = tuple([slice(a - low, b - low) for (a, b), (low, _) in zip(part, box, strict=True)])
            self._round_once(xp, x, part, out[inside])

    def _round_once(self, xp: ModuleType, x: Any, box: Box, out: Any) -> None:
        bits = sum(axis.weight_bits for axis in self.axes if isinstance(axis, FilterMap))
        accumulate = "float32" if out.dtype.itemsize == 1 and bits <= _EXACT_WEIGHT_BITS else "float64"
        sums = xp.empty(out.shape, accumulate)
        Separable(self.axes, accumulate).fill(xp, [x], box, sums)
        _store(xp, sums, out, half=0.0)

    def _extrapolate(self, box: Box, out: Any, value: float) -> None:
        element = _element(value, out.dtype)
        for axis, ((start, stop), (first, end)) in enumerate(zip(box, self.inside, strict=True)):
            at = (slice(None),) * axis
            before = min(max(first, start), stop) - start
            behind = min(max(end, start), stop) - start
            out[(*at, slice(0, before))] = element
            out[(*at, slice(max(before, behind), None))] = element


def resize_form(meaning: Resizing) -> OnnxResize:
    """The form of a resize, for tensors of any type."""
    crops = meaning.extrapolation_value is not None
    maps: list[AxisMap | None] = []
    for axis in meaning.axes:
        # The common scale of an aspect ratio may be below 1 on an axis that keeps its length.
        filtered = meaning.antialias and axis.scale < 1
        if axis.is_copied and not filtered:
            maps.append(None)
        elif meaning.mode == "nearest":
            maps.append(NearestMap(axis))
        else:
            maps.append(
                FilterMap(
                    axis,
                    radius=1 if meaning.mode == "linear" else 2,
                    coefficient=meaning.cubic_coeff_a,
                    exclude_outside=meaning.exclude_outside,
                    stretch=max(Fraction(1), 1 / axis.scale) if meaning.antialias else Fraction(1),
                    crops=crops,
                )
            )
    return OnnxResize(
        axes=tuple(maps),
        inside=tuple(axis.inside for axis in meaning.axes),
        extrapolation_value=meaning.extrapolation_value,
        round_each_axis=meaning.antialias,
    )


def _blocks(box: Box, most: int) -> Iterator[Box]:
    """Cut the box into parts of about `most` elements: runs of one axis, whole behind it, single in front of it."""
    extents = [stop - start for start, stop in box]
    cut = next((axis for axis in range(len(box)) if math.prod(extents[axis + 1 :]) <= most), 0)
    step = max(1, most // math.prod(extents[cut + 1 :]))
    for places in itertools.product(*[range(start, stop) for start, stop in box[:cut]]):
        for first in range(*box[cut], step):
            yield (*[(place, place + 1) for place in places], (first, min(first + step, box[cut][1])), *box[cut + 1 :])


def _round(xp: ModuleType, sums: Any, out: Any) -> None:
    _store(xp, sums, out, half=0.5)


def _store(xp: ModuleType, sums: Any, out: Any, half: float) -> None:
    """Sums as integers of the output's type, saturated; a sum next to a whole number counts as that number.

    Args:
        xp: the array library.
        sums: float64, or float32 if they are exact; overwritten.
        out: where to.
        half: 0 truncates toward zero, 0.5 rounds to nearest with ties away from zero.
    """
    limits = np.iinfo(out.dtype)
    if out.dtype.itemsize == 8:
        _store_64(xp, sums, out, half, limits)
        return
    if out.dtype.itemsize == 4:
        sums *= 1 + _NEAR_RELATIVE
    xp.clip(sums, limits.min, limits.max, out=sums)
    # Away from zero by the half and the least that counts; the cast then truncates.
    sums += half + _NEAR if limits.min == 0 else xp.copysign(half + _NEAR, sums)
    out[...] = sums


def _store_64(xp: ModuleType, sums: Any, out: Any, half: float, limits: np.iinfo[Any]) -> None:
    """As `_store`; here a sum may be so large that all its neighbours are whole, and must not be moved."""
    # The type's largest number is none of float64's; what rounds up to the power of two is replaced after the cast.
    above, below = sums >= float(limits.max), sums <= float(limits.min)
    whole = xp.rint(sums)
    distance = xp.abs(sums - whole)
    near = xp.clip(_NEAR_RELATIVE * xp.abs(sums), _NEAR, 0.25)
    if half:
        tie = xp.abs(distance - half) <= near
        whole = xp.where(tie, xp.copysign(xp.floor(xp.abs(sums)) + 1, sums), whole)
    else:
        whole = xp.where(distance <= near, whole, xp.trunc(sums))
    out[...] = xp.where(above | below, 0.0, whole)
    out[above] = limits.max
    out[below] = limits.min


def _element(value: float, dtype: np.dtype[Any]) -> Any:
    """The extrapolation value as an element: integers as results are, truncated and saturated."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return dtype.type(min(max(math.trunc(value), limits.min), limits.max))
    if dtype.kind == "b":
        return value != 0
    return np.float64(value).astype(dtype)
