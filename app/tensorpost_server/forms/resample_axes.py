"""Axis maps of DirectML's Resample family: what each output reads, for every version and for the gradients.

All coordinates come from one formula, `x = (o - OutputPixelOffset) / Scale - InputPixelOffset` (the page of
DML_RESAMPLE2_OPERATOR_DESC, solved for the input), evaluated in IEEE float32 in this order with a true division, as a
shader would. An axis longer than 2^24 has indices that float32 cannot hold, and is evaluated in float64.
"""

from __future__ import annotations

import enum
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .axes import Taps

LARGEST_FLOAT32_AXIS = 1 << 24  # beyond it float32 skips whole numbers

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
class ScaledAxis:
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
        """The x of these outputs, limited to what can still matter."""
        real = self._real
        with np.errstate(over="ignore"):  # a tiny scale sends x to infinity; the limits below take it back
            x = (outputs.astype(real) - real(self.output_offset)) / real(self.scale) - real(self.input_offset)
            return np.clip(x, real(-1), real(self.input_size))

    @property
    def _real(self) -> type[np.float32] | type[np.float64]:
        """What coordinates are computed in."""
        return np.float32 if max(self.input_size, self.output_size) <= LARGEST_FLOAT32_AXIS else np.float64

    @property
    def slack(self) -> float:
        """How many more outputs than in exact arithmetic may have their x in a range of the input.

        Far from 0, floating-point numbers are far apart: with an OutputPixelOffset of 2^33, `o - OutputPixelOffset` is
        a multiple of 1024 in float32, so 1024 outputs in a row have the same x. Each of the three operations of x is
        off by at most half of the distance between the numbers around its result. So each end of a range is off by half
        of their sum; the scale turns the distances that are in input entries into outputs.
        """
        farthest = max(abs(self.output_offset), abs(self.output_size - 1 - self.output_offset))
        place = self.input_size + 1
        results = (farthest, abs(self.input_offset) + place, place)
        first, second, third = [float(np.spacing(self._real(result))) for result in results]
        return first + self.scale * (second + third)

    def most_taps(self, start: int, stop: int) -> int:  # the same for every range
        return 1

    def taps(self, start: int, stop: int) -> Taps:
        return self.taps_of(np.arange(start, stop))

    def taps_of(self, outputs: Indices) -> Taps:
        """The taps of any array of outputs, along a new first axis; indices grow with the output."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NearestAxis(ScaledAxis):
    """Nearest neighbour: one tap, a copy.

    Attributes:
        rule: how the version rounds.
    """

    rule: Nearest

    def taps_of(self, outputs: Indices) -> Taps:
        """The index by the version's rule, then clamped into the input."""
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
class LinearAxis(ScaledAxis):
    """Linear: with `f = floor(x)`, taps f and f + 1 of weights `1 - (x - f)` and `x - f`, clamped into the input."""

    def most_taps(self, start: int, stop: int) -> int:  # the same for every range
        return 2

    def taps_of(self, outputs: Indices) -> Taps:
        """The two neighbours; past the ends, where both are one element, the first alone with weight 1."""
        x = self.coordinates(outputs)
        floor = np.floor(x)
        first = floor.astype(np.int64)
        index = np.clip(np.stack([first, first + 1]), 0, self.input_size - 1)
        weight = np.where(index[0] == index[1], x.dtype.type(0), x - floor)
        return index, np.stack([1 - weight, weight])


@dataclass(frozen=True, slots=True)
class OffsetLinearAxis(LinearAxis):
    """Linear where InputPixelOffset is not from 0 to 1, as DirectML answers it: weights go beyond 0 and 1.

    With `y = (o - output_offset) / scale` the taps are `floor(y)` and its neighbour on the side of `x = y -
    input_offset`, however far x lies from both. Where scale and offsets leave `x = o`, only the lower one is read.

    Attributes:
        alone: whether the tensor has no other dimension; then the two are `floor(y)` and the next one, and both count.
    """

    alone: bool = False

    def taps_of(self, outputs: Indices) -> Taps:
        """The two neighbours; past the ends, where both are one element, the first alone with weight 1."""
        real = self._real
        with np.errstate(over="ignore"):
            y = np.clip((outputs.astype(real) - real(self.output_offset)) / real(self.scale), -2, self.input_size + 1)
        floor, x = np.floor(y), y - real(self.input_offset)
        lower = floor - (x < floor) * (not self.alone)
        first = lower.astype(np.int64)
        index = np.clip(np.stack([first, first + 1]), 0, self.input_size - 1)
        copies = self.scale == 1 and self.input_offset + self.output_offset == 0 and not self.alone
        weight = np.where((index[0] == index[1]) | copies, real(0), x - lower)
        return index, np.stack([1 - weight, weight])


def linear_axis(
    size: int, output_size: int, scale: float, input_offset: float, output_offset: float, *, alone: bool = False
) -> LinearAxis:
    """The map of DirectML's linear interpolation along one axis; `alone` as in `OffsetLinearAxis`."""
    numbers = (size, output_size, scale, input_offset, output_offset)
    if 0 <= input_offset <= 1 or (alone and input_offset > 1):
        return LinearAxis(*numbers)
    return OffsetLinearAxis(*numbers, alone)


@dataclass(frozen=True, slots=True)
class PyramidAxis(ScaledAxis):
    """Antialiased shrinking as DirectML answers it: linear steps by way of the powers of two between the sizes.

    Each step's scale is the ratio of its sizes, whatever the descriptor's is, and its offsets are the descriptor's.
    Where the output has at least half of the input's entries, a second step keeps the size. The weights of all steps
    are multiplied in float64.
    """

    def most_taps(self, start: int, stop: int) -> int:  # a bound for every range
        return self.widest()

    @property
    def steps(self) -> tuple[LinearAxis, ...]:
        """The linear steps from the input to the output; a step that changes nothing is left out."""
        size, target = self.input_size, self.output_size
        sizes = [1 << power for power in range(size.bit_length(), -1, -1) if target < 1 << power < size]
        sizes = [size, *(sizes if size > 2 * target else [target]), target]
        found: list[LinearAxis] = []
        for source, made in itertools.pairwise(sizes):
            scale = float(np.float32(made / source))
            step = linear_axis(source, made, scale, self.input_offset, self.output_offset)
            copies = source == made and self.input_offset + self.output_offset == 0
            if not copies or isinstance(step, OffsetLinearAxis):
                found.append(step)
        return tuple(found) or (LinearAxis(size, target, 1, 0, 0),)

    def widest(self) -> int:
        taps = 1
        for step in reversed(self.steps):
            taps = min(step.input_size, math.ceil((taps - 1) / step.scale) + 3)
        return taps

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """See `Windowed.reach`: from the first output's first tap to the last one's last."""
        ends = np.array([start, stop - 1])
        for step in reversed(self.steps):
            index, _ = step.taps_of(ends)
            ends = np.array([index[0, 0], index[1, 1]])
        return int(ends[0]), int(ends[1]) + 1

    def readers(self, low: int, high: int) -> tuple[int, int]:
        return self._ranges(low, high)[-1]

    def taps_of(self, outputs: Indices) -> Taps:
        """The window of all steps together."""
        return self._taps_of(outputs, 0, self.input_size)

    def taps_within(self, start: int, stop: int, low: int, high: int) -> Taps:
        return self._taps_of(np.arange(start, stop), low, high)

    def _ranges(self, low: int, high: int) -> list[tuple[int, int]]:
        """The entries of the input, and of each step's output, that can have to do with [low, high)."""
        found = [(low, high)]
        for step in self.steps:
            # One of the taps is floor(y), the other beside it.
            slack = math.ceil(step.slack) + 1
            first = math.floor((low - 2) * step.scale + step.output_offset) - slack if low else 0
            last = math.ceil((high + 2) * step.scale + step.output_offset) + slack
            last = last if high < step.input_size else step.output_size
            low, high = (min(max(0, end), step.output_size) for end in (first, last))
            found.append((low, high))
        return found

    def _taps_of(self, outputs: Indices, low: int, high: int) -> Taps:
        """Step after step, from the outputs back: windows from `first` to before `end`, and their weights."""
        first, end = outputs, outputs + 1
        weight: NDArray[np.float64] = np.ones((1, *outputs.shape))
        for step, (least, most) in zip(reversed(self.steps), reversed(self._ranges(low, high)[:-1]), strict=True):
            between = first + _upwards(len(weight), first)
            index, share = step.taps_of(np.minimum(between, step.output_size - 1))
            assert share is not None
            last = step.taps_of(np.clip(end - 1, 0, step.output_size - 1))[0][1]
            first = np.maximum(index[0, 0], least)
            end = np.maximum(np.minimum(last + 1, most), first)
            count = max(1, int((end - first).max()))
            # Sums at (tap, output) of what comes from both neighbours; what lies outside the window is not counted.
            place = np.where((index >= first) & (index < end), index - first, count)
            flat = place * outputs.size + np.arange(outputs.size).reshape(outputs.shape)
            sums = np.bincount(flat.ravel(), (share * weight).ravel(), (count + 1) * outputs.size).astype(np.float64)
            weight = sums[: count * outputs.size].reshape((count, *outputs.shape))
        index = first + _upwards(len(weight), first)
        return np.minimum(index, self.input_size - 1), weight


def _upwards(count: int, like: Indices) -> Indices:
    """0, 1, 2 and so on along a new first axis."""
    return np.arange(count).reshape((-1, *(1,) * like.ndim))


@dataclass(frozen=True, slots=True)
class AdjointAxis:
    """The gradient of an axis: every weight of the forward axis applied in the opposite direction.

    The input of this map is the forward output. The forward index grows with the output, so one element's readers are
    a range of outputs; both ends are found by bisection, and sums run in the order of the outputs.

    Attributes:
        forward: the forward axis.
    """

    forward: NearestAxis | LinearAxis

    @property
    def input_size(self) -> int:
        """The forward output's entries."""
        return self.forward.output_size

    @property
    def output_size(self) -> int:
        """The forward input's entries."""
        return self.forward.input_size

    @property
    def most_reads(self) -> int:
        """See `CountsReads.most_reads`: every forward output is read once for each of its taps.

        Where rounding brings readers together, the others have absent taps instead, which are computed as well.
        """
        absent = int(self.output_size * min(self.forward.slack, self.input_size))
        return self.input_size * self.forward.most_taps(0, 1) + absent

    def widest(self) -> int:
        """See `Windowed.widest`: an element at an end has all outputs past it, another one those near it."""
        forward = self.forward
        # Neighbouring outputs are 1 / scale apart, and rounding moves an x by some units of its terms' last places.
        terms = self.input_size + abs(forward.output_offset) + abs(forward.input_offset) * forward.scale
        near = 2 * forward.scale + 2 + 8 * float(np.finfo(np.float32).eps) * terms
        ends = self.most_taps(0, 1), self.most_taps(self.output_size - 1, self.output_size)
        return min(self.input_size, max(*ends, math.ceil(min(near, self.input_size))))

    def most_taps(self, start: int, stop: int) -> int:
        first, last = self._readers(np.arange(start, stop))
        return max(1, int((last - first).max()))

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        first, last = self._readers(np.array([start, stop - 1]))
        return int(first[0]), int(last[1])

    def readers(self, low: int, high: int) -> tuple[int, int]:
        """See `Windowed.readers`: what these entries read in the forward direction."""
        index, _ = self.forward.taps_of(np.array([low, high - 1]))
        return int(index[0, 0]), int(index[-1, 1]) + 1

    def taps(self, start: int, stop: int) -> Taps:
        return self.taps_within(start, stop, 0, self.input_size)

    def taps_within(self, start: int, stop: int, low: int, high: int) -> Taps:
        elements = np.arange(start, stop)
        first, last = self._readers(elements)
        first, last = np.maximum(first, low), np.minimum(last, high)
        outputs = first + np.arange(max(1, int((last - first).max())))[:, np.newaxis]
        real = outputs < last
        outputs = np.minimum(outputs, self.input_size - 1)
        index, weight = self.forward.taps_of(outputs)
        used = np.ones(index.shape, np.float32) if weight is None else weight
        return outputs, np.where(real, np.where(index == elements, used, 0).sum(axis=0, dtype=used.dtype), 0)

    def _readers(self, elements: Indices) -> tuple[Indices, Indices]:
        """The range of outputs that read each element: their last tap has reached it, their first has not passed it."""
        return self._first_output(elements, tap=-1), self._first_output(elements + 1, tap=0)

    def _first_output(self, elements: Indices, tap: int) -> Indices:
        """The first output whose tap reads this element or a later one."""
        low, high = np.zeros_like(elements), np.full_like(elements, self.input_size)
        while (low < high).any():
            middle = (low + high) // 2
            index, _ = self.forward.taps_of(middle)
            reached = (index[tap] >= elements) | (low == high)
            low, high = np.where(reached, low, middle + 1), np.where(reached & (low < high), middle, high)
        return low
