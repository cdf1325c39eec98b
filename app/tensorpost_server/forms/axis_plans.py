"""Plans of an axis: its taps, grouped so that few calls of the array library, on long arrays, read them.

Outputs that have the same number of taps and, where possible, read the input at a constant stride are one piece. A
constant stride needs no gather, only a slice: nearest and linear scaling by 2, 3, 1/2 or 3/2 are nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .axes import AxisMap, Taps

MOST_TAPS = 1 << 17  # taps of one axis in one plan; while they are computed they take about 100 bytes each
SMALLEST_PLAN = 500  # bytes that a plan takes beside its arrays, about
LONG_SUM = 64  # from this many taps on they are gathered and summed in one call, not added one by one
LONGEST_PERIOD = 4  # at scale p/q the outputs o, o + p, o + 2p read at stride q
GLANCE = 32  # outputs looked at before a whole axis is searched for a period
SHORTEST_RUN = 8  # fewer outputs at a constant stride are not worth a piece of their own; more than a period


@dataclass(frozen=True, slots=True)
class Piece:
    """Outputs of one axis that are computed alike.

    Attributes:
        out: where they are on the axis of the block.
        index: input indices, one row per tap, one column per output; relative to the plan's `low`.
        weight: weights in the shape of `index`, (taps, 1) if the outputs have equal weights; None to copy a single tap.
        slices: the rows of `index` as slices, if each grows evenly; otherwise empty.
    """

    out: slice | NDArray[np.int64]
    index: NDArray[np.int64]
    weight: NDArray[Any] | None
    slices: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """What some outputs of one axis read.

    Attributes:
        start: first output.
        stop: one past the last output.
        low: first input index read.
        high: one past the last input index read.
        reads: taps of all outputs together.
        weighted: whether any output is more than a copy of one input.
        view: the input indices as a slice, counted from `low`, if all outputs are copies at a constant stride.
        repeats: if the outputs are every input from `low` on, copied equally often: how often the first one is, or 0 if
            not less often, and how often the others are, but for the last.
        pieces: cover every output, counted from `start`, a later piece overwriting an earlier one; none for an axis
            that is copied.
    """

    start: int
    stop: int
    low: int
    high: int
    reads: int
    weighted: bool
    view: slice | None
    repeats: tuple[int, int] | None
    pieces: tuple[Piece, ...]


class _Plans:
    """A cache of plans: slices of one output and requests of one shape need the same ones again.

    Attributes:
        budget: bytes of index and weight arrays to keep.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[tuple[AxisMap, int, int, str, bool], tuple[int, AxisPlan | None]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def plan(self, mapping: AxisMap, start: int, stop: int, accumulate: str, large: bool) -> AxisPlan | None:
        """The plan of outputs start to stop - 1; None where `has_many_taps`, as each half needs a plan then."""
        key = (mapping, start, stop, accumulate, large)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # now the newest
                return found[1]
        plan, size = None, SMALLEST_PLAN
        if not has_many_taps(mapping, start, stop):
            plan = _plan(mapping, start, stop, accumulate, large)
            arrays = [array for piece in plan.pieces for array in (piece.index, piece.weight)]
            size += sum(array.nbytes for array in arrays if array is not None)
        if size * 7 <= self.budget:  # the largest there are, and one thread's are not all that others have
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = (size, plan)
                    self._bytes += size
                while self._bytes > self.budget:
                    self._bytes -= self._kept.pop(next(iter(self._kept)))[0]
        return plan


PLANS = _Plans(budget=16 << 20)
"""The plans of all kernels of this process."""


def has_many_taps(mapping: AxisMap, start: int, stop: int, most: int | None = None) -> bool:
    """Whether outputs start to stop - 1 are several, with more than `MOST_TAPS` taps together, and must be cut.

    Args:
        mapping: the axis.
        start: first output.
        stop: one past the last.
        most: how many taps of an output are wanted at most, if not all.
    """
    if stop - start <= 1:
        return False
    taps = mapping.most_taps(start, stop)
    return (taps if most is None else min(taps, most)) * (stop - start) > MOST_TAPS


def with_few_taps(mapping: AxisMap, start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    """Outputs start to stop - 1 in ranges that need not be cut; see `has_many_taps`."""
    if has_many_taps(mapping, start, stop, most):
        middle = (start + stop) // 2
        yield from with_few_taps(mapping, start, middle, most)
        yield from with_few_taps(mapping, middle, stop, most)
    else:
        yield start, stop


def _plan(mapping: AxisMap, start: int, stop: int, accumulate: str, large: bool) -> AxisPlan:
    return plan_taps(mapping.taps(start, stop), start, stop, accumulate, large)


def plan_taps(taps: Taps, start: int, stop: int, accumulate: str, large: bool) -> AxisPlan:
    """Group the outputs of a range. Slices are looked for only if arrays are large; results are the same without."""
    index, weight = taps
    groups: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]] = []
    if weight is None:
        groups.append((np.arange(stop - start), index, None))
    else:
        index, weight = _absent_last(index, weight.astype(accumulate))
        count = np.count_nonzero(weight, axis=0)
        sizes = np.bincount(count)
        for present in np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]:
            where: NDArray[np.int64] = np.flatnonzero(count == present)
            if not groups and not _evenly_spaced(where):
                # The largest group takes the others' places too, so that it is one run; they overwrite theirs later.
                where = np.arange(int(where[0]), int(where[-1]) + 1)
            run = slice(where[0], where[-1] + 1) if where[-1] - where[0] + 1 == where.size else where
            i, w = index[:present, run], weight[:present, run]
            groups.append((where, np.where(w != 0, i, i[:1]), w))
    read = [i for _, i, _ in groups if i.size]
    low = min((int(i.min()) for i in read), default=0)
    high = max((int(i.max()) + 1 for i in read), default=low)
    pieces = tuple(piece for out, i, w in groups for piece in _pieces(out, i - low, w, large))
    weighted = any(piece.weight is not None for piece in pieces)
    view = pieces[0].slices[0] if len(pieces) == 1 and pieces[0].slices and not weighted else None
    copies = large and weight is None and stop > start
    repeats = _repeats(index[0]) if copies else None
    return AxisPlan(start, stop, low, high, sum(i.size for i in read), weighted, view, repeats, pieces)


def _repeats(index: NDArray[np.int64]) -> tuple[int, int] | None:
    """How often the first input is copied (0 if as often as the others), and how often each other one but the last.

    None if the numbers of the others differ, or are 1.
    """
    steps = np.diff(index)
    ends = np.flatnonzero(steps) + 1  # outputs at which another input begins
    if len(ends) < 2 or steps.min() < 0 or steps.max() > 1:
        return None
    factor = int(ends[1] - ends[0])
    lead = int(ends[0])
    if factor == 1 or (np.diff(ends) != factor).any() or lead > factor or len(index) - int(ends[-1]) > factor:
        return None
    return (0 if lead == factor else lead), factor


def _absent_last(index: NDArray[np.int64], weight: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The same taps with the taps of weight 0 last; the order of the others is kept."""
    present = weight != 0
    gapped = np.flatnonzero((~present[:-1] & present[1:]).any(axis=0))
    if gapped.size:
        order = np.argsort(~present[:, gapped], axis=0, kind="stable")
        index, weight = index.copy(), weight.copy()
        index[:, gapped] = np.take_along_axis(index[:, gapped], order, 0)
        weight[:, gapped] = np.take_along_axis(weight[:, gapped], order, 0)
    return index, weight


def _evenly_spaced(positions: NDArray[np.int64]) -> bool:
    gaps = np.diff(positions)
    return not gaps.size or bool((gaps == gaps[0]).all())


def _pieces(
    out: NDArray[np.int64], index: NDArray[np.int64], weight: NDArray[Any] | None, large: bool
) -> Iterator[Piece]:
    """Split outputs with equally many taps into runs at a constant stride and the rest."""
    if large and index.shape[0] and out.size >= SHORTEST_RUN:
        for period in range(1, LONGEST_PERIOD + 1):
            first, last = _even_run(out, index, period)
            if last - first >= max(SHORTEST_RUN, out.size * 3 // 4):
                parts = [slice(0, first), *(slice(first + i, last, period) for i in range(period)), slice(last, None)]
                for part in parts:
                    if out[part].size:
                        even = part.step is not None
                        yield _piece(out[part], index[:, part], None if weight is None else weight[:, part], even)
                return
    yield _piece(out, index, weight, even=False)


def _even_run(out: NDArray[np.int64], index: NDArray[np.int64], period: int) -> tuple[int, int]:
    """The longest range around the middle where output and input indices both repeat with this period."""
    if out.size > 2 * GLANCE:  # most axes without a period are recognized in a few outputs
        near = slice(out.size // 2 - GLANCE // 2, out.size // 2 + GLANCE // 2)
        first, last = _even_run(out[near], index[:, near], period)
        if last - first < GLANCE:
            return 0, 0
    step, gap = index[:, period:] - index[:, :-period], out[period:] - out[:-period]
    middle = gap.size // 2
    even = (step == step[0, middle]).all(axis=0) & (gap == gap[middle])
    if not even[middle] or step[0, middle] <= 0:
        return 0, 0
    breaks = np.flatnonzero(~even)
    after = int(np.searchsorted(breaks, middle))
    first = int(breaks[after - 1]) + 1 if after else 0
    end = int(breaks[after]) if after < breaks.size else gap.size
    return first, end + period


def _piece(out: NDArray[np.int64], index: NDArray[np.int64], weight: NDArray[Any] | None, even: bool) -> Piece:
    if weight is not None:
        if (weight == weight[:, :1]).all():
            weight = weight[:, :1]
        if weight.shape == (1, 1) and weight[0, 0] == 1:
            weight = None
    gap = int(out[1] - out[0]) if out.size > 1 else 1
    where = slice(int(out[0]), int(out[-1]) + 1, gap) if _evenly_spaced(out) else out
    slices: tuple[slice, ...] = ()
    if even or (out.size == 1 and len(index) < LONG_SUM):
        step = int(index[0, 1] - index[0, 0]) if out.size > 1 else 1
        slices = tuple(slice(int(first), int(last) + 1, step) for first, last in index[:, [0, -1]])
    return Piece(where, index, weight, slices)
