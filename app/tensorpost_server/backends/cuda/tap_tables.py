"""Taps as the kernels read them, made of what `AxisMap.taps` returns and of nothing else.

Indices and weights are therefore those that NumPy computes with, bit for bit. A `KernelTable` describes one array; it
is a value, so that arrays can be cached by it where they were made: here on the host, in compute.py on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...forms.axes import AxisMap, CountsReads, Windowed

TAP = np.dtype([("index", "<i4"), ("weight", "<f4")])
"""`Tap` of resample.cu."""

WHOLE_AXIS = 1 << 16  # outputs; an axis of at most this length has one table, however its outputs are sliced
MOST_TAPS = 1 << 23  # of one table: 64 MiB on the device
AT_ONCE = 1 << 20  # taps that are asked for at once, each 16 bytes of host memory before they are compacted

WIDEST = 1 << 20  # taps of one output; its kernel takes fewer, but how many there are is known only when they are made

T = TypeVar("T")


class ByteCache(Generic[T]):
    """The values made last, up to a budget of bytes; the oldest go first. For any number of threads."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: dict[Hashable, tuple[int, T]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], tuple[int, T]]) -> T:
        """The value of a key, made if it is not cached; `make` returns its size in bytes and the value."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # now the newest
                return found[1]
        size, value = make()
        with self._lock:
            if key not in self._kept and size <= self.budget:
                self._kept[key] = (size, value)
                self._bytes += size
                while self._bytes > self.budget:
                    self._bytes -= self._kept.pop(next(iter(self._kept)))[0]
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Outputs of one axis that share a table.

    Attributes:
        mapping: the axis.
        start: first output.
        stop: one past the last.
    """

    mapping: AxisMap
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class SpanTaps:
    """The taps of a span with a weight other than 0, output after output.

    Attributes:
        starts: where each output's begin, and where the last one's end; one more than there are outputs.
        index: input indices.
        weight: float32 weights, none of them 0.
        least: taps of the output that has fewest.
        most: taps of the output that has most.
        copies: whether every output has one tap of weight 1.
    """

    starts: NDArray[np.int32]
    index: NDArray[np.int32]
    weight: NDArray[np.float32]
    least: int
    most: int
    copies: bool

    def reads(self, first: int, last: int) -> tuple[int, int]:
        """The half-open range of input indices that outputs first to last - 1 of the span read; never empty."""
        index = self.index[self.starts[first] : self.starts[last]]
        return (int(index.min()), int(index.max()) + 1) if index.size else (0, 1)


def span_of(mapping: AxisMap, start: int, stop: int) -> Span:
    """The outputs whose taps are made together with these: all of a short axis, so that slices share a table."""
    return Span(mapping, 0, mapping.output_size) if mapping.output_size <= WHOLE_AXIS else Span(mapping, start, stop)


_TAPS: ByteCache[SpanTaps | None] = ByteCache(budget=32 << 20)


def taps_of(span: Span) -> SpanTaps | None:
    """The span's taps; None if they are more than `MOST_TAPS`, or one output's more than `WIDEST`."""

    def make() -> tuple[int, SpanTaps | None]:
        taps = _taps_of(span)
        return (64 if taps is None else taps.starts.nbytes + taps.index.nbytes + taps.weight.nbytes), taps

    return _TAPS.get(span, make)


def _taps_of(span: Span) -> SpanTaps | None:
    mapping, count = span.mapping, span.stop - span.start
    if count > MOST_TAPS:
        return None
    reads = mapping.most_reads if isinstance(mapping, CountsReads) else mapping.most_taps(span.start, span.stop) * count
    if reads > MOST_TAPS or (isinstance(mapping, Windowed) and mapping.widest() > WIDEST):
        return None
    counts: list[NDArray[np.int64]] = []
    indices: list[NDArray[np.int32]] = []
    weights: list[NDArray[np.float32]] = []
    for start, stop in _parts(mapping, span.start, span.stop):
        index, weight = mapping.taps(start, stop)
        weight = np.ones(index.shape, np.float32) if weight is None else weight.astype(np.float32)
        weighted = weight != 0
        counts.append(np.count_nonzero(weighted, axis=0))
        # Transposed, since an output's taps follow each other.
        indices.append(index.T[weighted.T].astype(np.int32))
        weights.append(weight.T[weighted.T])
    every = np.concatenate(counts)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(every, out=starts[1:])
    weight = np.concatenate(weights)
    least, most = int(every.min()), int(every.max())
    copies = least == most == 1 and bool((weight == 1).all())
    return SpanTaps(starts, np.concatenate(indices), weight, least, most, copies)


def _parts(mapping: AxisMap, start: int, stop: int) -> Iterator[tuple[int, int]]:
    if stop - start > 1 and mapping.most_taps(start, stop) * (stop - start) > AT_ONCE:
        middle = (start + stop) // 2
        yield from _parts(mapping, start, middle)
        yield from _parts(mapping, middle, stop)
    else:
        yield start, stop


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What the outputs of a span read, where neither end of it ever falls from one output to the next.

    Attributes:
        low: the lowest input index of each output.
        high: the highest one.
        rows: all indices that some output reads, each once and in order.
    """

    low: NDArray[np.int32]
    high: NDArray[np.int32]
    rows: NDArray[np.int32]

    @property
    def has_gaps(self) -> bool:
        """Whether `rows` are not simply 0, 1, 2 and so on."""
        return int(self.rows[-1]) != self.rows.size - 1

    @property
    def step(self) -> int:
        """How far the lowest index moves at most from one output to the next."""
        return int(np.diff(self.low).max(initial=0))


_REACHES: ByteCache[Reach | None] = ByteCache(budget=16 << 20)


def reach_of(span: Span) -> Reach | None:
    """What the outputs of a span read; None if an end falls from one output to the next, or an output reads nothing.

    The span must have taps.
    """

    def make() -> tuple[int, Reach | None]:
        taps = taps_of(span)
        assert taps is not None
        if taps.least < 1:
            return 64, None
        low = np.minimum.reduceat(taps.index, taps.starts[:-1])
        high = np.maximum.reduceat(taps.index, taps.starts[:-1])
        if (np.diff(low) < 0).any() or (np.diff(high) < 0).any():
            return 64, None
        rows = np.unique(taps.index)
        return low.nbytes + high.nbytes + rows.nbytes, Reach(low, high, rows)

    return _REACHES.get(span, make)


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One array that a kernel reads.

    Attributes:
        spans: the axes, in the array's order; more than one only in the form `indices`.
        form: `indices` (one int32 per output), `starts` and `taps` (of `SpanTaps`, for any number of taps), `padded`
            (the same number of taps for every output), `pairs` (of an element and the one behind it: its index, and
            the weight of the other; one more than there are outputs), or `rows` (of `Reach`).
        width: taps per output of a padded table.
        repeat: neighbouring elements that move together along the axis: index and output then count elements.
        ranked: indices count in the rows of `Reach`.
    """

    spans: tuple[Span, ...]
    form: str
    width: int = 1
    repeat: int = 1
    ranked: bool = False

    @property
    def item(self) -> int:
        """Bytes per output."""
        return {"padded": TAP.itemsize * self.width, "pairs": TAP.itemsize}.get(self.form, 4)


def array_of(table: KernelTable) -> NDArray[Any]:
    """The array. Its spans must have taps."""
    return np.concatenate([_array_of(table, span) for span in table.spans])


def _array_of(table: KernelTable, span: Span) -> NDArray[Any]:
    taps = taps_of(span)
    assert taps is not None
    if table.form == "rows" or table.ranked:
        reach = reach_of(span)
        assert reach is not None
        if table.form == "rows":
            return reach.rows
        taps = replace(taps, index=np.searchsorted(reach.rows, taps.index).astype(np.int32))
    match table.form:
        case "indices":
            assert taps.copies
            return _repeated(taps.index, table.repeat)
        case "starts":
            return taps.starts
        case "taps":
            made = np.empty(taps.index.size, TAP)
            made["index"], made["weight"] = taps.index, taps.weight
            return made
        case "pairs":
            both = _padded(taps, 2, 1).reshape(-1, 2)
            made = both[:, 0].copy()
            made["weight"] = np.where(both["index"][:, 0] == both["index"][:, 1], np.float32(0), both["weight"][:, 1])
            return np.concatenate([made, made[-1:]])
        case _:
            return _padded(taps, table.width, table.repeat)


def _repeated(index: NDArray[Any], repeat: int) -> NDArray[Any]:
    if repeat == 1:
        return index
    together = np.arange(repeat, dtype=np.int32)
    return (index[:, np.newaxis] * np.int32(repeat) + together).reshape(-1, *index.shape[1:])


def _padded(taps: SpanTaps, width: int, repeat: int) -> NDArray[Any]:
    """So many taps for every output.

    Where one is missing, the kernel must read something, and a weight of 0 would turn an infinity into NaN. So missing
    taps take over parts of the first one's weight: halves of powers of two, which add up to it exactly.
    """
    assert taps.least >= 1
    assert taps.most <= width
    counts = np.diff(taps.starts)
    rows = np.repeat(np.arange(counts.size), counts)
    columns = np.arange(taps.index.size) - np.repeat(taps.starts[:-1], counts)
    first = taps.index[taps.starts[:-1]]
    index = np.repeat(first[:, np.newaxis], width, axis=1)
    weight = np.zeros((counts.size, width), np.float32)
    index[rows, columns], weight[rows, columns] = taps.index, taps.weight
    for column in range(1, width):
        missing = counts <= column
        weight[missing, 0] *= np.float32(0.5)
        weight[missing, column] = weight[missing, 0]
    made = np.empty((counts.size * repeat, width), TAP)
    if repeat == 1:
        made["index"], made["weight"] = index, weight
    else:
        moved = index[:, np.newaxis, :] * np.int32(repeat) + np.arange(repeat, dtype=np.int32)[:, np.newaxis]
        made["index"] = moved.reshape(-1, width)
        made["weight"] = np.repeat(weight, repeat, axis=0)
    return made.reshape(-1)
