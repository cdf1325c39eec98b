"""`OnnxResize`: ONNX's Resize and Upsample on arrays of every type.

Sources: ONNX Resize-10 to -19, Upsample-7 and -9. Where the text is silent, tensorpost's choices, beside the exact
coordinates of `onnx_axes.py`:

* float16, bfloat16, float32 and complex64 are summed in float32 and rounded once; all other types in float64.
* Integers: the sum is truncated toward zero and saturated. A sum that falls short of a whole number by less than
  float64 arithmetic can tell (2^-32; beyond 2^16, 2^-48 of it) counts as that number, so a constant image stays
  constant (ONNX Runtime's float32 sums turn some 7 into 6).
* Integers with antialias: each axis is rounded to the type before the next one, the last axis first, ties away from
  zero. That is what ONNX Runtime's CPU provider does with uint8 and int32.
* Complex numbers are resampled part by part. A tap of weight 0 is not read, so an infinity beside a grid point stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from .axes import AxesForm
from .base import Box, blocks
from .byte_filters import MOST_TAPS, filter_axis
from .onnx_axes import FilterMap
from .separable import Rounding, Separable

# float64 arithmetic cannot tell a sum from a whole number nearer than this. A few taps err by less than 16 steps of the
# sum; a small sum may be the difference of terms of up to 2^16.
_NEAR_RELATIVE = 2.0**-48
_NEAR = 2.0**16 * _NEAR_RELATIVE
_EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32
_FEWEST = 1 << 19  # elements read from which on products of matrices take less time,
_SHRINKS = 4  # and how many times as many as outputs they are then
_MOST = 1 << 23  # elements read at a time, which may be copied: 8 MiB
_BLOCK = 1 << 18  # elements whose sums are made at a time: 2 MiB of float64, which stay in a CPU's cache


@dataclass(frozen=True, slots=True)
class OnnxResize(AxesForm):
    """ONNX's Resize and Upsample: `Separable` with the rounding and the extrapolation that ONNX adds.

    Attributes:
        inside: span of the outputs along each dimension that do not get the extrapolation value.
        extrapolation_value: what elements outside get; None if there are none.
        round_each_axis: integers only: round after every axis, not once at the end.
    """

    inside: tuple[tuple[int, int], ...] = ()
    extrapolation_value: float | None = None
    round_each_axis: bool = False

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
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
            if xp is np and out.dtype.itemsize == 1 and self._filter_bytes(x, box, out):
                return
            Separable(self.axes, "float64", round_axis=_round).fill(xp, [x], box, out)
            return
        if xp is not np:
            self._round_once(xp, x, box, out)
            return
        for part in blocks(box, _BLOCK):
            inside = tuple([slice(a - low, b - low) for (a, b), (low, _) in zip(part, box, strict=True)])
            self._round_once(xp, x, part, out[inside])

    def _filter_bytes(self, x: Any, box: Box, out: Any) -> bool:
        """Integers of 8 bits, each axis rounded, by `filter_axis`; False, with nothing written, where it is no gain."""
        filters = [(axis, each) for axis, each in reversed([*enumerate(self.axes)]) if each is not None]
        reads = [*box]
        for axis, each in filters:
            if not isinstance(each, FilterMap) or each.widest() > MOST_TAPS:
                return False
            reads[axis] = each.reach(*box[axis])
        elements = math.prod([stop - start for start, stop in reads])
        if elements < max(_FEWEST, _SHRINKS * math.prod([stop - start for start, stop in box])):
            return False
        axis = max(range(len(box)), key=lambda axis: box[axis][1] - box[axis][0])
        start, stop = box[axis]
        if elements > _MOST and stop - start > 1:
            middle = (start + stop) // 2
            whole = [slice(None)] * len(box)
            for low, high in ((start, middle), (middle, stop)):
                half = (*box[:axis], (low, high), *box[axis + 1 :])
                inside = (*whole[:axis], slice(low - start, high - start), *whole[axis + 1 :])
                if not self._filter_bytes(x, half, out[inside]):
                    self._fill_integers(np, x, half, out[inside])
            return True
        current = x[tuple([slice(start, stop) for start, stop in reads])]
        for axis, each in filters:
            current = filter_axis(current, axis, each, box[axis], reads[axis][0])
        out[...] = current
        return True

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
            low = min(max(first, start), stop) - start
            high = min(max(end, start), stop) - start
            out[(*at, slice(0, low))] = element
            out[(*at, slice(max(low, high), None))] = element


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
    """`_store` for 64-bit integers: a sum may be so large that all its neighbours are whole, and must not be moved."""
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
