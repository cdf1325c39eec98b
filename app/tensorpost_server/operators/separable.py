"""Separable resampling on arrays: every output axis reads its input axis through a few taps, one axis after the other.

DML Resample, its gradients and ONNX Resize all are of this form; they differ in their `AxisMap`s only. A kernel fills
any box of the output, reads only the part of the input that the box needs, and gives every element the same bits
whatever the box: the order of axes depends on the maps alone, and the arithmetic of one output on its own taps alone.

How it is computed: the box is cut into blocks that stay in cache. In a block each axis becomes a list of pieces:
outputs that have the same number of taps and, where possible, read the input at a constant stride. A constant stride
needs no gather, only a slice: nearest and linear scaling by 2, 3, 1/2 or 3/2 are nothing else.
"""

from __future__ import annotations

import enum
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .base import Box
from .float16 import narrow, widen

__all__ = ["AxisMap", "Rounding", "SeparableKernel", "Taps", "work_along"]

Taps = tuple[NDArray[np.int64], NDArray[np.floating[Any]] | None]

BLOCK = 1 << 18  # elements of a block's largest array: 1 MiB of float32
COPIED_BLOCK = 1 << 20  # the same where elements are only copied: long calls count for more there than the cache does
MOST_TAPS = 1 << 20  # taps of one axis planned at once; they take 12 to 16 bytes each
LONG_SUM = 64  # from this many taps on they are gathered and summed at once, not added one by one
LARGE = 1 << 15  # elements of a block from which on several slices cost less than one gather
LONGEST_PERIOD = 4  # at scale p/q the outputs o, o + p, o + 2p read at stride q
GLANCE = 32  # outputs looked at before a whole axis is searched for a period
SHORTEST_RUN = 8  # fewer outputs at a constant stride are not worth a piece of their own; more than a period


class AxisMap(Protocol):
    """How one output axis reads its input axis: a frozen, hashable, picklable value."""

    @property
    def input_size(self) -> int:
        """Entries of the input axis."""
        ...

    @property
    def output_size(self) -> int:
        """Entries of the output axis."""
        ...

    def most_taps(self, start: int, stop: int) -> int:
        """At least the k that `taps(start, stop)` would return, found without making the arrays."""
        ...

    def taps(self, start: int, stop: int) -> Taps:
        """The taps of outputs start to stop - 1, as NumPy arrays.

        Returns:
            Indices of shape (k, stop - start), each in [0, input_size), and weights of that shape. Weights of None mean
            a pure gather with k = 1. A tap of weight 0 is absent: its sample is not read, be it infinite or NaN. But
            for absent ones, the taps of an output must not depend on start and stop.
        """
        ...


@runtime_checkable
class CountsReads(Protocol):
    """An axis map whose outputs differ much in their taps, so that the most of one says little about all."""

    @property
    def most_reads(self) -> int:
        """At least the taps of all outputs together, without looking at any."""
        ...


class Rounding(enum.Enum):
    """How sums become elements of the output's type."""

    NONE = "none"
    """Cast once, to nearest even: for floating-point outputs."""
    TRUNCATE = "truncate"
    """Toward zero, then saturate: for integer outputs. The weights of every output must sum to 1."""


@dataclass(frozen=True, slots=True)
class SeparableKernel:
    """Resample every axis through its map.

    Sums are `w0 * x0 + w1 * x1 + ...`, in the order of the taps. With `TRUNCATE` they are the same sum written as
    `x0 + w1 * (x1 - x0) + ...`, since rounding in the first form could turn a constant 255 into 254.

    Attributes:
        axes: one map per dimension; None copies that axis, index by index.
        accumulate: dtype of sums and weights, `float32` or `float64`.
        rounding: how sums become elements; has no effect where every axis is a pure gather, which copies bit for bit.
    """

    axes: tuple[AxisMap | None, ...]
    accumulate: str = "float32"
    rounding: Rounding = Rounding.NONE
    _order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _copies: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", _cheapest_order(self.axes))
        mapped = [axis for axis in self.axes if axis is not None and axis.output_size]
        # Many taps are not looked at: a filter of any width may still be refused.
        copies = all(axis.most_taps(0, 1) == 1 and axis.taps(0, 1)[1] is None for axis in mapped)
        object.__setattr__(self, "_copies", copies)

    def work(self, sizes: Sequence[int]) -> int:
        """See `Kernel.work`."""
        return work_along(self.axes, sizes)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any) -> None:
        """See `Kernel.fill`. Temporaries are of the order of a block and of the input it reads."""
        (x,) = inputs
        block = COPIED_BLOCK if self._copies else BLOCK
        most = max(1, int(block / self._widest(x.dtype != self.accumulate)))
        with np.errstate(over="ignore", invalid="ignore"):  # infinities in are infinities or NaN out
            for block in _blocks(box, most):
                large = math.prod([stop - start for start, stop in block]) >= LARGE
                spans = [self._spans(mapping, span, large) for mapping, span in zip(self.axes, block, strict=True)]
                for plans in itertools.product(*spans):
                    inside = [slice(p.start - low, p.stop - low) for p, (low, _) in zip(plans, box, strict=True)]
                    self._fill_block(xp, x, plans, out[tuple(inside)])

    def _spans(self, mapping: AxisMap | None, span: tuple[int, int], large: bool) -> tuple[_Plan, ...]:
        start, stop = span
        if mapping is None:
            return (_Plan(start, stop, start, stop, stop - start, False, None, None, ()),)
        return _PLANS.of(mapping, start, stop, self.accumulate, large)

    def _widest(self, converts: bool) -> float:
        """Elements of the largest array of a block per output element: between two axes, or the converted input."""
        widest = elements = 1.0
        for axis in reversed(self._order):
            mapping = self.axes[axis]
            assert mapping is not None
            elements *= mapping.input_size / mapping.output_size
            if axis != self._order[0]:
                widest = max(widest, elements)
            elif converts:
                widest = max(widest, elements / 4)  # measured: blocks that are smaller still gain nothing
        return widest

    def _fill_block(self, xp: ModuleType, x: Any, plans: Sequence[_Plan], out: Any) -> None:
        current = x[tuple([slice(plan.low, plan.high) for plan in plans])]
        shape = list(current.shape)
        for axis in self._order:
            plan = plans[axis]
            shape[axis] = plan.stop - plan.start
            last = axis == self._order[-1]
            if plan.view is not None:
                current = current[_at(axis, plan.view)]
                continue
            if not plan.weighted:
                into_out = last and current.dtype == out.dtype
                target = out if into_out else xp.empty(shape, current.dtype)
                _gather(xp, current, axis, plan, target)
            else:
                if current.dtype != self.accumulate and current.shape[axis] <= plan.reads:
                    current = _convert(xp, current, self.accumulate)
                into_out = last and out.dtype == self.accumulate
                target = out if into_out else xp.empty(shape, self.accumulate)
                _blend(xp, current, axis, plan, target, self.rounding is Rounding.TRUNCATE)
            current = target
        if current is not out:
            _store(xp, current, self.rounding, out)


def _cheapest_order(axes: Sequence[AxisMap | None]) -> tuple[int, ...]:
    """The mapped axes in the order of least work: shrinking ones first, and of growing ones the last axis first.

    For work c_i per element and ratios r_i = output / input, axis i before j is better where (1 / r_i - 1) / c_i is
    larger; it holds for any number of axes.
    """

    def worth(axis: int, mapping: AxisMap) -> float:
        work = 4 if axis == len(axes) - 1 else 1  # elements are gathered one by one only along the last axis
        return (mapping.input_size / mapping.output_size - 1) / work

    mapped = [(axis, mapping) for axis, mapping in enumerate(axes) if mapping is not None]
    return tuple(axis for axis, _ in sorted(mapped, key=lambda pair: -worth(*pair)))


def _blocks(box: Box, most: int) -> Iterator[Box]:
    """Cut the box into parts of at most `most` elements, in memory order."""
    if math.prod([stop - start for start, stop in box]) <= most:
        return iter((box,))
    ranges: list[list[tuple[int, int]]] = []
    room = most
    for start, stop in reversed(box):
        extent = min(stop - start, max(1, room))
        ranges.append([(low, min(low + extent, stop)) for low in range(start, stop, extent)])
        room //= extent
    return itertools.product(*reversed(ranges))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Outputs of one axis that are computed alike.

    Attributes:
        out: where they are on the axis of the block.
        index: input indices, one row per tap, one column per output; relative to the plan's `low`.
        weight: of the shape of `index`, (taps, 1) if the outputs have equal weights; None to copy a single tap.
        slices: the rows of `index` as slices, if each grows evenly; otherwise empty.
    """

    out: slice | NDArray[np.int64]
    index: NDArray[np.int64]
    weight: NDArray[Any] | None
    slices: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
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
    pieces: tuple[_Piece, ...]


class _Plans:
    """The plans made last, since slices of one output and requests of one shape need the same ones again.

    Attributes:
        budget: bytes of index and weight arrays to keep.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[tuple[AxisMap, int, int, str, bool], tuple[int, tuple[_Plan, ...]]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, mapping: AxisMap, start: int, stop: int, accumulate: str, large: bool) -> tuple[_Plan, ...]:
        """The plans that cover outputs start to stop - 1: one, or several where they have very many taps."""
        key = (mapping, start, stop, accumulate, large)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # now the newest
                return found[1]
        parts = tuple(_plan(mapping, *part, accumulate, large) for part in _with_few_taps(mapping, start, stop))
        arrays = [array for part in parts for piece in part.pieces for array in (piece.index, piece.weight)]
        size = sum(array.nbytes for array in arrays if array is not None)
        if size * 16 <= self.budget:
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = (size, parts)
                    self._bytes += size
                while self._bytes > self.budget:
                    self._bytes -= self._kept.pop(next(iter(self._kept)))[0]
        return parts


_PLANS = _Plans(budget=16 << 20)


def work_along(axes: Sequence[AxisMap | None], sizes: Sequence[int]) -> int:
    """At most so many taps are read, axis after axis in any order, for an output of these sizes."""
    if 0 in sizes:
        return 0
    larger = [max(size, axis.input_size) if axis else size for axis, size in zip(axes, sizes, strict=True)]
    whole = math.prod(larger)
    work = math.prod(sizes)
    for axis, size, large in zip(axes, sizes, larger, strict=True):
        if axis is not None:
            reads = axis.most_reads if isinstance(axis, CountsReads) else axis.most_taps(0, size) * size
            work += reads * (whole // large)
    return work


def _with_few_taps(mapping: AxisMap, start: int, stop: int) -> Iterator[tuple[int, int]]:
    if stop - start > 1 and mapping.most_taps(start, stop) * (stop - start) > MOST_TAPS:
        middle = (start + stop) // 2
        yield from _with_few_taps(mapping, start, middle)
        yield from _with_few_taps(mapping, middle, stop)
    else:
        yield start, stop


def _plan(mapping: AxisMap, start: int, stop: int, accumulate: str, large: bool) -> _Plan:
    """Group the outputs of a range. Slices are looked for only if arrays are large; results are the same without."""
    index, weight = mapping.taps(start, stop)
    groups: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any] | None]] = []
    if weight is None:
        groups.append((np.arange(stop - start), index, None))
    else:
        index, weight = _absent_last(index, weight.astype(accumulate))
        count = np.count_nonzero(weight, axis=0)
        sizes = np.bincount(count)
        for taps in np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]:
            where: NDArray[np.int64] = np.flatnonzero(count == taps)
            if not groups and not _evenly_spaced(where):
                # The largest group takes the others' places too, so that it is one run; they overwrite theirs later.
                where = np.arange(int(where[0]), int(where[-1]) + 1)
            run = slice(where[0], where[-1] + 1) if where[-1] - where[0] + 1 == where.size else where
            i, w = index[:taps, run], weight[:taps, run]
            groups.append((where, np.where(w != 0, i, i[:1]), w))
    read = [i for _, i, _ in groups if i.size]
    low = min((int(i.min()) for i in read), default=0)
    high = max((int(i.max()) + 1 for i in read), default=low)
    pieces = tuple(piece for out, i, w in groups for piece in _pieces(out, i - low, w, large))
    weighted = any(piece.weight is not None for piece in pieces)
    view = pieces[0].slices[0] if len(pieces) == 1 and pieces[0].slices and not weighted else None
    copies = large and weight is None and stop > start
    repeats = _repeats(index[0]) if copies else None
    return _Plan(start, stop, low, high, sum(i.size for i in read), weighted, view, repeats, pieces)


def _repeats(index: NDArray[np.int64]) -> tuple[int, int] | None:
    """Copies of the first input, 0 if all; and of each other one but the last, if these are equal and more than one."""
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
    """The same taps with those of weight 0 behind the others, whose order stays."""
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
) -> Iterator[_Piece]:
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
    if out.size > 2 * GLANCE:  # most axes without a period show it at once
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


def _piece(out: NDArray[np.int64], index: NDArray[np.int64], weight: NDArray[Any] | None, even: bool) -> _Piece:
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
    return _Piece(where, index, weight, slices)


def _at(axis: int, where: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, where)


def _read(xp: ModuleType, source: Any, axis: int, piece: _Piece, tap: int) -> Any:
    """The samples of one tap for all outputs of a piece: a view of `source`, or a new array."""
    if piece.slices:
        return source[_at(axis, piece.slices[tap])]
    return _take(xp, source, piece.index[tap], axis)


def _take(xp: ModuleType, source: Any, index: NDArray[np.int64], axis: int) -> Any:
    where = xp.asarray(index)
    if not _takes_cheaply(source, index, axis):
        return source[_at(axis, where)]
    if xp is np:
        # No index is out of range, so nothing wraps; the loop of this mode takes two thirds of the others' time.
        return np.take(source, index, axis=axis, mode="wrap")
    return xp.take(source, where, axis=axis)


def _takes_cheaply(source: Any, index: NDArray[np.int64], axis: int) -> bool:
    """Whether `take`, the faster way, may be used: it first copies a strided source, all of it."""
    return source.flags.c_contiguous or source.shape[axis] <= 2 * index.size


def _gather(xp: ModuleType, source: Any, axis: int, plan: _Plan, target: Any) -> None:
    """Copy one input per output, bit for bit."""
    if xp is np and plan.repeats is not None and axis == target.ndim - 1 and _repeat(source, *plan.repeats, target):
        return
    for piece in plan.pieces:
        whole = len(plan.pieces) == 1 and len(piece.index) == 1 and not piece.slices and target.flags.c_contiguous
        if xp is np and whole and _takes_cheaply(source, piece.index, axis):
            np.take(source, piece.index[0], axis=axis, out=target, mode="wrap")  # see _take
        else:
            _put(xp, target, axis, piece, _read(xp, source, axis, piece, 0) if len(piece.index) else 0)


def _repeat(source: Any, lead: int, factor: int, target: Any) -> bool:
    """Write the last axis of `source` with every element `factor` times, the first one only `lead` times.

    One multiplication by 1 + 2^bits + ... repeats the bits of an integer, so several elements are written as one.

    Returns:
        False if they do not fit one integer, or lie so that NumPy would copy them first; nothing is written then.
    """
    item = source.itemsize
    if item * factor not in _INTEGERS or item not in _INTEGERS or source.strides[-1] != item:
        return False
    count = target.shape[-1]
    groups = (count - lead) // factor
    middle = target[..., lead : lead + groups * factor]
    if groups < SHORTEST_RUN or middle.strides[-1] != item:
        return False
    wide, narrow_type = _INTEGERS[item * factor], _INTEGERS[item]
    into = middle.view(wide)
    if not into.flags.aligned:
        return False
    first = 1 if lead else 0
    bits = source.view(narrow_type)
    ones = wide(sum(1 << (8 * item * i) for i in range(factor)))
    np.copyto(into, bits[..., first : first + groups])
    np.multiply(into, ones, out=into)
    if lead:
        target[..., :lead] = source[..., :1]
    if lead + groups * factor < count:
        target[..., lead + groups * factor :] = source[..., first + groups : first + groups + 1]
    return True


_INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _put(xp: ModuleType, target: Any, axis: int, piece: _Piece, values: Any) -> None:
    where = piece.out if isinstance(piece.out, slice) else xp.asarray(piece.out)
    target[_at(axis, where)] = values


def _blend(xp: ModuleType, source: Any, axis: int, plan: _Plan, target: Any, anchored: bool) -> None:
    """Sum the weighted taps of every output. `anchored` sums differences to the first tap instead."""
    for piece in plan.pieces:
        if piece.weight is None or not len(piece.index):
            _put(xp, target, axis, piece, _read(xp, source, axis, piece, 0) if len(piece.index) else 0)
            continue
        sum_taps = _sum_long if len(piece.index) >= LONG_SUM else _sum
        if isinstance(piece.out, slice):
            sum_taps(xp, source, axis, piece, target[_at(axis, piece.out)], anchored)
        else:
            shape = list(target.shape)
            shape[axis] = piece.out.size
            sums = xp.empty(shape, target.dtype)
            sum_taps(xp, source, axis, piece, sums, anchored)
            _put(xp, target, axis, piece, sums)


def _weights(xp: ModuleType, weight: NDArray[Any], tail: int) -> Any:
    """One tap's weights, shaped to lie along the axis that has `tail` axes behind it; a scalar if all are equal."""
    return weight[0] if weight.size == 1 else xp.asarray(weight).reshape((-1, *(1,) * tail))


def _sum(xp: ModuleType, source: Any, axis: int, piece: _Piece, into: Any, anchored: bool) -> None:
    weight = piece.weight
    assert weight is not None
    tail, last = into.ndim - axis - 1, len(piece.index) - 1
    anchor: Any = None
    total: Any = None
    for tap in range(last + 1):
        samples = _read(xp, source, axis, piece, tap)
        fresh = not piece.slices  # a gather made a new array, a slice is a view
        if samples.dtype != into.dtype:
            samples, fresh = _convert(xp, samples, into.dtype), True
        if tap == 0 and anchored:
            anchor = total = samples
            continue
        room = samples if fresh else xp.empty(samples.shape, samples.dtype)
        if anchored:
            samples = xp.subtract(samples, anchor, out=room)
        goal = into if tap == last else room
        scale = _weights(xp, weight[tap], tail)
        if total is None:
            total = xp.multiply(samples, scale, out=goal)
        else:
            total = xp.add(total, xp.multiply(samples, scale, out=room), out=goal)
    if last == 0 and anchored:
        into[...] = anchor


def _sum_long(xp: ModuleType, source: Any, axis: int, piece: _Piece, into: Any, anchored: bool) -> None:
    """As `_sum` for many taps: gathers them along a new last axis and lets the library sum pairwise."""
    weight = piece.weight
    assert weight is not None
    taps, outputs = piece.index.shape
    tail = into.ndim - axis - 1
    width = max(1, BLOCK // max(1, taps * into.size // outputs))
    for start in range(0, outputs, width):
        part = slice(start, min(start + width, outputs))
        index = piece.index[:, part]
        samples = _convert(xp, _take(xp, source, index.reshape(-1), axis), into.dtype)
        shape = samples.shape
        samples = samples.reshape((*shape[:axis], *index.shape, *shape[axis + 1 :]))
        scale = weight if weight.shape[1] == 1 else weight[:, part]
        scale = xp.asarray(scale).reshape((*scale.shape, *(1,) * tail))
        base: Any = samples[_at(axis, slice(0, 1))].copy() if anchored else 0
        samples -= base
        samples *= scale
        sums = xp.ascontiguousarray(xp.moveaxis(samples, axis, -1)).sum(axis=-1, dtype=into.dtype)
        into[_at(axis, part)] = sums + base[_at(axis, 0)] if anchored else sums


def _convert(xp: ModuleType, array: Any, dtype: Any) -> Any:
    """The array in the accumulation type; a new array unless it has that type."""
    if array.dtype == np.float16 and np.dtype(dtype) == np.float32:
        return widen(xp, array)
    return array.astype(dtype, copy=False)


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
