"""Separable resampling on arrays: every output axis reads its input axis through a few taps, one axis after the other.

DML Resample, its gradients and ONNX Resize all are of this form; they differ in their `AxisMap`s only. A kernel fills
any box of the output, reads only the part of the input that the box needs, and gives every element the same bits
whatever the box: the order of axes depends on the maps alone, and the arithmetic of one output on its own taps alone.

How it is computed: the box is cut into blocks that stay in cache. In a block each axis is a list of pieces
(`axis_plans.py`), and each piece a few calls of the array library.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from .axes import AxesForm, AxisMap, Windowed
from .axis_plans import LONG_SUM, MOST_TAPS, PLANS, AxisPlan, plan_taps, with_few_taps
from .axis_sums import BLOCK, along, converted, gather, weighted_sums
from .base import Box, blocks, go_on
from .float16 import narrow

COPIED_BLOCK = 1 << 20  # the same where elements are only copied: long calls count for more there than the cache does
BETWEEN = 1 << 18  # elements between two axes for one output: wider windows are summed a part at a time
MOST_BETWEEN = 1 << 19  # elements between two axes for a block: it is cut where its windows reach farther
COPIED_BETWEEN = 1 << 23  # bytes of the same, where nothing is summed: no weights and no sums lie beside them
MOST_CONVERTED = 1 << 21  # elements of the input converted at once; where there are more, each tap is converted
LARGE = 1 << 15  # elements of a block from which on several slices cost less than one gather


class Rounding(enum.Enum):
    """How sums become elements of the output's type."""

    NONE = "none"
    """Cast once, to nearest even: for floating-point outputs."""
    TRUNCATE = "truncate"
    """Toward zero, then saturate: for integer outputs. The weights of every output must sum to 1."""


@dataclass(frozen=True, slots=True)
class Separable(AxesForm):
    """Resample every axis through its map.

    Sums are `w0 * x0 + w1 * x1 + ...`, in the order of the taps. With `TRUNCATE` they are the same sum written as
    `x0 + w1 * (x1 - x0) + ...`, since rounding in the first form could turn a constant 255 into 254.

    Attributes:
        accumulate: dtype of sums and weights, `float32` or `float64`.
        rounding: how sums become elements; has no effect where every axis is a pure gather, which copies bit for bit.
        round_axis: makes elements of the input's type of the sums along one axis, `(xp, sums, out)`. If given, it is
            called after every axis, and the last axis comes first; otherwise the cheapest does.
    """

    accumulate: str = "float32"
    rounding: Rounding = Rounding.NONE
    round_axis: Callable[[ModuleType, Any, Any], None] | None = None
    _order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _parts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _copies: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        order = _cheapest_order(self.axes)
        if self.round_axis is not None:
            order = tuple(sorted(order, reverse=True))
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_parts", _parts(self.axes, order))
        mapped = [axis for axis in self.axes if axis is not None and axis.output_size]
        # Many taps are not looked at: a filter of any width may still be refused.
        copies = all(axis.most_taps(0, 1) == 1 and axis.taps(0, 1)[1] is None for axis in mapped)
        object.__setattr__(self, "_copies", copies)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`. Temporaries take some 10 MiB, however wide the windows are."""
        (x,) = inputs
        block = COPIED_BLOCK if self._copies else BLOCK
        most = max(1, int(block / self._widest(x.dtype != self.accumulate)))
        with np.errstate(over="ignore", invalid="ignore"):  # infinite inputs give infinite or NaN outputs
            for block in blocks(box, most):
                self._fill_block(xp, x, block, box, out)

    def _fill_block(self, xp: ModuleType, x: Any, block: Box, box: Box, out: Any) -> None:
        large = math.prod([stop - start for start, stop in block]) >= LARGE
        plans: list[AxisPlan] = []
        cut: int | None = None
        for axis, span in enumerate(block):
            plan = self._plan(axis, span, large)
            if plan is None:
                cut = axis
                break
            plans.append(plan)
        else:
            cut = self._too_wide(plans, COPIED_BETWEEN // x.dtype.itemsize if self._copies else MOST_BETWEEN)
        if cut is not None:
            start, stop = block[cut]
            middle = (start + stop) // 2
            for half in ((start, middle), (middle, stop)):
                self._fill_block(xp, x, (*block[:cut], half, *block[cut + 1 :]), box, out)
            return
        go_on()
        target = out[
            tuple([slice(start - low, stop - low) for (start, stop), (low, _) in zip(block, box, strict=True)])
        ]
        made = self._resampled(xp, x, plans, len(self._order), target)
        if made is not target:
            _store(xp, made, self.rounding, target)

    def _plan(self, axis: int, span: tuple[int, int], large: bool) -> AxisPlan | None:
        mapping, (start, stop) = self.axes[axis], span
        if mapping is None:
            return AxisPlan(start, stop, start, stop, stop - start, False, None, None, ())
        if self._parts[axis]:
            assert isinstance(mapping, Windowed)
            return AxisPlan(start, stop, *mapping.reach(start, stop), 0, True, None, None, ())
        return PLANS.plan(mapping, start, stop, self.accumulate, large)

    def _too_wide(self, plans: Sequence[AxisPlan], room: int) -> int | None:
        """The axis to cut in halves, if more elements than this would lie between two axes for the plans' outputs."""
        if math.prod([max(plan.high - plan.low, plan.stop - plan.start) for plan in plans]) <= room:
            return None
        extents = [plan.high - plan.low for plan in plans]
        for axis in self._order:
            extents[axis] = min(extents[axis], self._parts[axis] or extents[axis])
        most, done = 0, 0
        for place, axis in enumerate(self._order[:-1]):
            extents[axis] = plans[axis].stop - plans[axis].start
            if math.prod(extents) > most:
                most, done = math.prod(extents), place
        outputs = [plan.stop - plan.start for plan in plans]
        if most <= room or max(outputs) <= 1:
            return None
        # Halves share nothing of an axis that is done by then, or copied; of another one they read the same in part.
        waiting = self._order[done + 1 :]
        return max(range(len(plans)), key=lambda axis: (outputs[axis] > 1, axis not in waiting, outputs[axis]))

    def _widest(self, converts: bool) -> float:
        """Elements of a block's largest temporary per output element: between two axes, or the converted input."""
        widest = elements = 1.0
        for axis in reversed(self._order):
            mapping = self.axes[axis]
            assert mapping is not None
            elements *= mapping.input_size / mapping.output_size
            if axis != self._order[0]:
                widest = max(widest, elements)
            elif converts and not self._parts[axis]:  # weights of parts are made anew for every block
                widest = max(widest, elements / 4)  # measured: blocks that are smaller still gain nothing
        return widest

    def _resampled(self, xp: ModuleType, x: Any, plans: Sequence[AxisPlan], level: int, out: Any = None) -> Any:
        """What the plans read, after the first `level` axes of the order; `out` itself if it could be written to."""
        if not level:
            return x[tuple([slice(plan.low, plan.high) for plan in plans])]
        axis = self._order[level - 1]
        plan = plans[axis]
        if self._parts[axis]:
            return self._rounded(xp, self._sum_parts(xp, x, plans, level), x, out)
        current = self._resampled(xp, x, plans, level - 1)
        shape = list(current.shape)
        shape[axis] = plan.stop - plan.start
        if not plan.weighted and self.round_axis is None:
            if plan.view is not None:
                return current[along(axis, plan.view)]
            target = out if out is not None and current.dtype == out.dtype else xp.empty(shape, current.dtype)
            gather(xp, current, axis, plan, target)
            return target
        if current.dtype != self.accumulate and current.shape[axis] <= plan.reads and current.size <= MOST_CONVERTED:
            current = converted(xp, current, self.accumulate)
        into_out = out is not None and out.dtype == self.accumulate
        target = out if into_out else xp.empty(shape, self.accumulate)
        weighted_sums(xp, current, axis, plan, target, self.rounding is Rounding.TRUNCATE)
        return self._rounded(xp, target, x, out)

    def _rounded(self, xp: ModuleType, sums: Any, x: Any, out: Any) -> Any:
        if self.round_axis is None:
            return sums
        target = xp.empty(sums.shape, x.dtype) if out is None else out
        self.round_axis(xp, sums, target)
        return target

    def _sum_parts(self, xp: ModuleType, x: Any, plans: Sequence[AxisPlan], level: int) -> Any:
        """`weighted_sums` where windows are too wide to be held: a part at a time, and the parts' sums in float64.

        The parts begin at multiples of their length, so an output's are the same in every box.
        """
        axis = self._order[level - 1]
        plan, mapping, length = plans[axis], self.axes[axis], self._parts[axis]
        assert isinstance(mapping, Windowed)
        anchored = self.rounding is Rounding.TRUNCATE
        waiting = self._order[level:]
        shape = [p.high - p.low if other in waiting else p.stop - p.start for other, p in enumerate(plans)]
        total = xp.empty(shape, "float64")
        total[...] = 0
        seen = np.zeros(plan.stop - plan.start)  # the weights of each output so far
        for at in range(plan.low - plan.low % length, plan.high, length):
            low, high = max(at, plan.low), min(at + length, plan.high)
            first, last = mapping.readers(low, high)
            first, last = max(first, plan.start), min(last, plan.stop)
            if first >= last:
                continue
            part = replace(plan, low=low, high=high)
            current = self._resampled(xp, x, (*plans[:axis], part, *plans[axis + 1 :]), level - 1)
            for start, stop in with_few_taps(mapping, first, last, length):
                go_on()
                index, weight = mapping.taps_within(start, stop, low, high)
                assert weight is not None
                if not weight.any():
                    continue
                span = slice(start - plan.start, stop - plan.start)
                own = weight.sum(axis=0)
                seen[span] += own
                if anchored:
                    weight = weight / np.where(own == 0, 1, own)
                taken = plan_taps((index, weight), start, stop, self.accumulate, large=False)
                shape[axis] = stop - start
                sums = xp.empty(shape, self.accumulate)
                source = current[along(axis, slice(taken.low - low, taken.high - low))]
                weighted_sums(xp, source, axis, taken, sums, anchored)
                goal = total[along(axis, span)]
                if anchored:
                    # Weighted by each part's share of the weights; equal means stay the same, bit for bit.
                    share = xp.asarray(own / np.where(seen[span] == 0, 1, seen[span]))
                    goal += (sums - goal) * share.reshape((-1, *(1,) * (len(shape) - axis - 1)))
                else:
                    goal += sums
        return total.astype(self.accumulate, copy=False)


def _parts(axes: Sequence[AxisMap | None], order: Sequence[int]) -> tuple[int, ...]:
    """How many inputs at a time an output's window is summed of, per dimension; 0 where it is taken as a whole.

    It depends on the maps alone, as the order does, and never parts a sum of fewer than `LONG_SUM` taps.
    """
    parts = [0] * len(axes)
    mapped = [(axis, mapping) for axis in order if (mapping := axes[axis]) is not None]
    sizes = [mapping.input_size for _, mapping in mapped]
    if max(sizes, default=0) <= MOST_TAPS and math.prod(sizes[1:]) <= BETWEEN:
        return tuple(parts)
    room = BETWEEN  # what the window of the axis done last may be wide, then that of the axis before it, and so on
    for axis, mapping in reversed(mapped):
        most = MOST_TAPS if axis == order[0] else min(MOST_TAPS, room)
        widest = 2  # as linear, which is the widest of those that have no windows
        if isinstance(mapping, Windowed) and mapping.output_size:
            widest = max(1, mapping.widest())
            parts[axis] = most if widest > max(most, LONG_SUM - 1) else 0
        room = max(1, room // (parts[axis] or widest))
    return tuple(parts)


def _cheapest_order(axes: Sequence[AxisMap | None]) -> tuple[int, ...]:
    """The mapped axes in the order of least work: shrinking ones first, and of growing ones the last axis first.

    For work c_i per element and ratios r_i = output / input, axis i before j is better where (1 / r_i - 1) / c_i is
    larger; it holds for any number of axes. Elements are gathered one by one only along the last mapped axis, or few
    at a time where channels lie behind it, which takes about four times as long as whole rows along another one.
    """
    mapped = [(axis, mapping) for axis, mapping in enumerate(axes) if mapping is not None]

    def worth(axis: int, mapping: AxisMap) -> float:
        return (mapping.input_size / mapping.output_size - 1) / (4 if axis == mapped[-1][0] else 1)

    return tuple(axis for axis, _ in sorted(mapped, key=lambda pair: -worth(*pair)))


def _store(xp: ModuleType, values: Any, rounding: Rounding, out: Any) -> None:
    """Cast the sums once to the output's type."""
    if values.dtype == np.float32 and out.dtype == np.float16:
        narrow(xp, values, out)
    elif rounding is Rounding.NONE or values.dtype == out.dtype:
        out[...] = values
    else:
        limits, real = np.iinfo(out.dtype), np.dtype(values.dtype).type
        # The type's largest value, as a float, may be rounded up to one that must not be cast.
        high = real(limits.max) if int(real(limits.max)) <= limits.max else np.nextafter(real(limits.max), real(0))
        out[...] = xp.clip(values, real(limits.min), high)  # the cast truncates
        if int(high) < limits.max:
            out[values > high] = limits.max
