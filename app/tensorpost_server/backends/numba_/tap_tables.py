"""The taps of an axis as the kernels read them: tables of int32 indices and float32 weights, and what is regular there.

Indices and weights are those of `AxisMap.taps`, which the numpy backend computes with, rounded to float32 as it does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms.axes import AxisMap
from ...forms.resample_axes import AdjointAxis

MOST_ENTRIES = 1 << 20  # of a table that covers a whole axis and is kept; 8 bytes each
KEPT_BYTES = 32 << 20
WIDE = 4096  # columns of a block: its rows of float32 stay in the first-level cache, or close to it
MOST_READ = 2 * WIDE  # input entries under a block, which are scratch memory; only an uneven axis has more, and is cut
NEAR, WIDE_NEAR, LANES = 3, 3, 8
SHORTEST_REGION = 16  # a regular part that is shorter is not worth its own loop
MOST_REPEATS = 4


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Some neighbouring outputs of the last axis.

    Attributes:
        start: first output, counted from the table's `start`.
        stop: one past the last.
        low: first input index that they read.
        high: one past the last.
        phases: 2 where, from `first` to `last`, each input step makes two outputs; 1 where two steps make one;
            `NEAR`, or `WIDE_NEAR` and the number of channels, where each `LANES` outputs read neighbours that lie
            within `LANES`, or two times `LANES`, inputs; else 0.
        first: beginning of that part, counted from `start`.
        last: its end.
    """

    start: int
    stop: int
    low: int
    high: int
    phases: int = 0
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class TapTable:
    """The taps of outputs start to stop - 1.

    Attributes:
        start: first output.
        index: input indices, one row per tap, contiguous int32. An absent tap, of weight 0, comes after the others and
            repeats the first one's index.
        weight: float32, of the same shape; None to copy a single tap.
        span: the most input indices from the first tap to the last one of any output, both counted.
        blocks: the outputs cut for the loops along rows; none for a gather.
        channels: elements that lie side by side at each place of the axis, and are outputs of their own.
        regular: regularity of a gather: how often each input is repeated, or the step between inputs, and where:
            (repeat, step, first, last). (0, 0, n, n) if nothing is regular.
    """

    start: int
    index: NDArray[np.int32]
    weight: NDArray[np.float32] | None
    span: int
    blocks: tuple[ColumnBlock, ...]
    channels: int
    regular: tuple[int, int, int, int]

    @property
    def taps(self) -> int:
        """Rows of the table."""
        return len(self.index)

    @property
    def pitch(self) -> int:
        """Row stride of the table, in elements: the number of outputs."""
        return self.index.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.index.nbytes + (0 if self.weight is None else self.weight.nbytes)

    def blocks_of(self, start: int, stop: int) -> Sequence[ColumnBlock]:
        """The blocks that cover outputs start to stop - 1, counted like all of them from the table's `start`."""
        first, last = start - self.start, stop - self.start
        if (first, last) == (0, self.pitch):
            return self.blocks
        assert self.weight is not None
        return _blocks(self.index[:, first:last], self.weight[:, first:last], self.channels, first)

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """The range of input indices that outputs start to stop - 1 read."""
        part = self.index[:, start - self.start : stop - self.start]
        return int(part.min()), int(part.max()) + 1


TableKey = tuple[AxisMap, int, int, int]


class _Tables:
    """The tables made last. Slices of one output, and requests of one shape, need the same ones again."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[TableKey, TapTable] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def table(self, mapping: AxisMap, start: int, stop: int, channels: int) -> TapTable:
        key = (mapping, start, stop, channels)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # now the newest
                return found
        made = _make(mapping, start, stop, channels)
        if made.nbytes <= self.budget // 4:
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = made
                    self._bytes += made.nbytes
                while self._bytes > self.budget:
                    self._bytes -= self._kept.pop(next(iter(self._kept))).nbytes
        return made


_TABLES = _Tables(KEPT_BYTES)


@lru_cache(maxsize=1024)
def most_taps(mapping: AxisMap) -> int:
    """An upper bound of the taps of any output of the axis, found without looking at all of them."""
    if not isinstance(mapping, AdjointAxis):
        return mapping.most_taps(0, mapping.output_size)
    # Of a gradient's elements only the two at the ends can have more readers than the scale and the rounding explain:
    # all outputs past an end read it.
    ends = (mapping.most_taps(0, 1), mapping.most_taps(mapping.output_size - 1, mapping.output_size))
    return max(*ends, math.floor(2 * mapping.forward.scale + mapping.forward.slack) + 1)


def table_of(mapping: AxisMap, start: int, stop: int, channels: int = 1) -> TapTable:
    """The table that covers outputs start to stop - 1: the whole axis' if that is not too large.

    Args:
        mapping: the axis.
        start: first output.
        stop: one past the last.
        channels: elements that lie side by side at each place of the axis; with more than one, each is an output of its
            own, and start and stop of the table count them all.
    """
    size = mapping.output_size
    if most_taps(mapping) * size * channels <= MOST_ENTRIES:
        return _TABLES.table(mapping, 0, size, channels)
    return _TABLES.table(mapping, start, stop, channels)


def _make(mapping: AxisMap, start: int, stop: int, channels: int) -> TapTable:
    index, weight = mapping.taps(start, stop)
    if weight is not None:
        index, weight = _absent_last(index, weight.astype(np.float32))
    if channels > 1:
        index = (index[:, :, np.newaxis] * channels + np.arange(channels)).reshape(len(index), -1)
        weight = None if weight is None else np.repeat(weight, channels, axis=1)
    span = int((index.max(axis=0) - index.min(axis=0)).max()) + 1
    index = np.ascontiguousarray(index, np.int32)
    weight = None if weight is None else np.ascontiguousarray(weight)
    blocks, regular = (), (0, 0, index.shape[1], index.shape[1])
    if weight is None:
        regular = _regular_gather(index[0])
    else:
        blocks = tuple(_blocks(index, weight, channels))
    return TapTable(start * channels, index, weight, span, blocks, channels, regular)


def _absent_last(index: NDArray[np.int64], weight: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The same taps, those of weight 0 after the others, whose order stays."""
    present = weight != 0
    if (~present[:-1] & present[1:]).any():
        order = np.argsort(~present, axis=0, kind="stable")
        index, weight = np.take_along_axis(index, order, 0), np.take_along_axis(weight, order, 0)
    return np.where(weight != 0, index, index[:1]), weight


def _blocks(index: NDArray[np.int32], weight: NDArray[np.float32], channels: int, offset: int = 0) -> list[ColumnBlock]:
    outputs = index.shape[1]
    inputs = int(index.max()) - int(index.min()) + 1
    width = max(64, min(WIDE, WIDE * outputs // max(1, inputs)))
    count = -(-outputs // width)
    found: list[ColumnBlock] = []
    for part in range(count):
        for start, stop, low, high in _narrowed(index, part * outputs // count, (part + 1) * outputs // count):
            i, w = index[:, start:stop], weight[:, start:stop]
            phases, first, last = _regular_taps(i, w) if len(i) == 2 else (0, 0, 0)
            if len(i) == 2 and not phases:
                phases, first, last = _near_taps(i, w, channels, low, high)
            found.append(ColumnBlock(offset + start, offset + stop, low, high, phases, first, last))
    return found


def _narrowed(index: NDArray[np.int32], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Outputs start to stop - 1, cut in halves until what lies under each part is short, and that: low and high."""
    part = index[:, start:stop]
    low, high = int(part.min()), int(part.max()) + 1
    if stop - start == 1 or high - low <= MOST_READ:
        yield start, stop, low, high
    else:
        middle = (start + stop) // 2
        yield from _narrowed(index, start, middle)
        yield from _narrowed(index, middle, stop)


def _regular_taps(index: NDArray[np.int32], weight: NDArray[np.float32]) -> tuple[int, int, int]:
    """Whether two neighbours are blended with the same weights again and again: (phases, first, last)."""
    neighbours = (index[1] == index[0] + 1) & (weight != 0).all(axis=0)
    for phases, step in ((2, 1), (1, 2)):
        if index.shape[1] < phases + SHORTEST_REGION:
            continue
        even = neighbours[:-phases] & neighbours[phases:] & (index[0, phases:] - index[0, :-phases] == step)
        even &= (weight[:, phases:] == weight[:, :-phases]).all(axis=0)
        first, end = _run_around_the_middle(even)
        last = end + phases
        if phases == 2 and end > first and index[0, first] != index[0, first + 1]:
            first += 1
        last -= (last - first) % phases
        if end > first and last - first >= SHORTEST_REGION:
            return phases, first, last
    return 0, 0, 0


def _near_taps(
    index: NDArray[np.int32], weight: NDArray[np.float32], channels: int, low: int, high: int
) -> tuple[int, int, int]:
    """Whether every `LANES` outputs blend neighbours that lie close together: (phases, first, last).

    The loop reads one or two times `LANES` inputs, and as many from the next neighbour on: all of them below `high`.
    """
    if index.shape[1] < LANES:
        return 0, 0, 0
    neighbours = (weight[0] != 0) & ((index[1] == index[0] + channels) | (weight[1] == 0))
    first_taps = np.lib.stride_tricks.sliding_window_view(index[0], LANES)
    together = np.lib.stride_tricks.sliding_window_view(neighbours, LANES).all(axis=1)
    base = first_taps[:, 0] - (channels - 1)  # the group may begin with another channel than the first
    together &= (first_taps.min(axis=1) >= base) & (base >= low)
    for phases, lanes in ((NEAR, LANES), (WIDE_NEAR + channels, 2 * LANES)):
        if phases == NEAR and channels > 1:
            continue
        near = together & (first_taps.max(axis=1) - base < lanes) & (base + channels + lanes <= high)
        first, end = _run_around_the_middle(near)
        last = first + -(-(end - first) // LANES) * LANES
        if last - first >= SHORTEST_REGION:
            return phases, first, last
    return 0, 0, 0


def _regular_gather(index: NDArray[np.int32]) -> tuple[int, int, int, int]:
    outputs = index.size
    for repeat, step in ((1, 1), (1, 2), *((repeat, 1) for repeat in range(2, MOST_REPEATS + 1))):
        if outputs < repeat + SHORTEST_REGION:
            continue
        first, end = _run_around_the_middle(index[repeat:] - index[:-repeat] == step)
        last = end + repeat
        while first < end and index[first] != index[first + repeat - 1]:
            first += 1
        last -= (last - first) % repeat
        if end > first and last - first >= SHORTEST_REGION:
            return repeat, step if repeat == 1 else 0, first, last
    return 0, 0, outputs, outputs


def _run_around_the_middle(even: NDArray[np.bool_]) -> tuple[int, int]:
    middle = even.size // 2
    if not even[middle]:
        return 0, 0
    breaks = np.flatnonzero(~even)
    after = int(np.searchsorted(breaks, middle))
    return int(breaks[after - 1]) + 1 if after else 0, int(breaks[after]) if after < breaks.size else even.size
