"""From a box of the output to calls of the compiled kernels: which axes make a row, and where everything lies."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...operators.base import Box
from ...operators.separable import AxisMap
from .tables import WIDE, ColumnBlock, Table, table_of

__all__ = ["Blend", "Gather", "Place", "Tile"]

Kernels = Mapping[str, Callable[[int], None]]

HEAD = 40  # parameters before the axes; the numbers below are those of kernels.py
FEW_CHANNELS = 16  # so many elements side by side are resampled as if each were a column
MOST_BETWEEN = 1 << 20  # elements between two passes; a box that needs more is cut
SHORT_ITEM = 64  # bytes; from here on an item is a row of its own
KINDS = {"<f4": 0, "<f2": 1, "|u1": 2, "|i1": 3}
FLOAT32 = 0
LINE = 64  # bytes; a cache line


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's memory.

    Attributes:
        address: where the element of coordinates 0 is, or would be.
        strides: bytes to the next entry of each dimension.
        item: bytes of an element.
        kind: number of the element's type in the blending kernels; 0, float32, where none is needed.
    """

    address: int
    strides: tuple[int, ...]
    item: int
    kind: int = FLOAT32


Axis = tuple[int, int, int, int]
"""An axis outside a row: extent, bytes per step of the output and of the input, address of the input's offsets or 0."""


def _call(kernel: Callable[[int], None], dst: int, src: int, axes: Sequence[Axis], head: Sequence[int]) -> None:
    parameters = array("q", (len(axes), dst, src, 0, *head))
    parameters.extend([0] * (HEAD - len(parameters)))
    for axis in axes:
        parameters.extend(axis)
    kernel(parameters.buffer_info()[0])


def _merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same walk with as few axes as possible, one at least."""
    found: list[Axis] = []
    for extent, dst, src, table in axes:
        if extent == 1 and not table:
            continue
        if found and not table and not found[-1][3] and found[-1][1:3] == (extent * dst, extent * src):
            found[-1] = (found[-1][0] * extent, dst, src, 0)
        else:
            found.append((extent, dst, src, table))
    return found or [(1, 0, 0, 0)]


# ---- Tile ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """Copies of an input of these sizes, side by side.

    Attributes:
        kernels: the compiled ones.
        sizes: the input's sizes, each at least 1.
    """

    kernels: Kernels
    sizes: tuple[int, ...]

    def fill(self, source: Place, target: Place, box: Box) -> None:
        """Compute a box; `target` is where the box begins."""
        size = source.item
        dims = list(zip(box, self.sizes, target.strides, source.strides, strict=True))
        while dims:  # whole axes, one behind the other on both sides, are one run of bytes
            (start, stop), extent, step, of = dims[-1]
            if start % extent or stop - start != extent or (extent > 1 and (step, of) != (size, size)):
                break
            size *= extent
            dims.pop()
        copies, head, tail, src = 1, 0, 0, source.address
        if dims:
            (start, stop), extent, step, of = dims[-1]
            first, count = start % extent, stop - start
            if (step == size or count == 1) and (of == size or extent == 1):
                dims.pop()
                if first + count <= extent:
                    src, size = src + first * size, count * size
                else:
                    head = (extent - first) % extent
                    copies, tail = divmod(count - head, extent)
                    size, head, tail = extent * size, head * size, tail * size
        pieces = [list(_runs(*dim)) for dim in dims]
        for grid in itertools.product(*pieces):
            axes = [axis for run in grid for axis in run.axes]
            at = target.address + sum(run.dst for run in grid)
            of = src + sum(run.src for run in grid)
            _call(self.kernels["tile"], at, of, _merged(axes), (size, copies, head, tail))


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of one axis that needs no table: where it begins, in bytes, and its loops."""

    dst: int
    src: int
    axes: tuple[Axis, ...]


def _runs(span: tuple[int, int], size: int, step: int, source_step: int) -> Iterator[_Run]:
    """Cut a range at multiples of size: the rest of a copy, whole copies, the beginning of a copy."""
    start, stop = span
    first, at = start % size, start
    if first:
        length = min(size - first, stop - start)
        yield _Run(0, first * source_step, ((length, step, source_step, 0),))
        at += length
    copies = (stop - at) // size
    if copies:
        loops = ((copies, size * step, 0, 0), (size, step, source_step, 0))
        yield _Run((at - start) * step, 0, loops)
        at += copies * size
    if at < stop:
        yield _Run((at - start) * step, 0, ((stop - at, step, source_step, 0),))


# ---- nearest ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gather:
    """Every axis picks its inputs by index, or is copied.

    Attributes:
        kernels: the compiled ones.
        maps: one per dimension; None copies that axis.
    """

    kernels: Kernels
    maps: tuple[AxisMap | None, ...]

    def fill(self, source: Place, target: Place, box: Box) -> None:
        """Compute a box; `target` is where the box begins."""
        item, src, keep = source.item, source.address, []
        dims = list(zip(self.maps, box, target.strides, source.strides, strict=True))
        together = True
        while dims:  # copied axes at the end, one behind the other on both sides, are one item
            mapping, (start, stop), step, of = dims[-1]
            together = stop - start == 1 or (step, of) == (item, item)
            if mapping is not None or not together:
                break
            src, item = src + start * of, item * (stop - start)
            dims.pop()
        if not dims or (item >= SHORT_ITEM and item > source.item):
            axes, src = self._axes(dims, src, keep)
            _call(self.kernels["tile"], target.address, src, axes, (item, 1, 0, 0))
            return
        mapping, (start, stop), step, of = dims.pop()
        count = stop - start
        if mapping is None:
            src += start * of
            index, regular = np.arange(count, dtype=np.int32), (1, 1, 0, count)
            address = index.ctypes.data
            keep.append(index)
        else:
            table = table_of(mapping, start, stop)
            regular = table.regular if table.pitch == count else (0, 0, count, count)
            address = table.index.ctypes.data + 4 * (start - table.start)
            keep.append(table)
        axes, src = self._axes(dims, src, keep)
        head = (count, item, step, of, address, *regular)
        _call(self.kernels["gather"], target.address, src, axes, head)

    @staticmethod
    def _axes(dims: Sequence[Any], src: int, keep: list[Any]) -> tuple[list[Axis], int]:
        axes: list[Axis] = []
        for mapping, (start, stop), step, of in dims:
            if mapping is None:
                src += start * of
                axes.append((stop - start, step, of, 0))
            else:
                table = table_of(mapping, start, stop)
                offsets = table.index[0, start - table.start : stop - table.start].astype(np.int64)
                offsets *= of
                keep.append(offsets)
                axes.append((stop - start, step, 0, offsets.ctypes.data))
        return _merged(axes), src


# ---- linear, cubic, antialiased, gradients ---------------------------------------------------------------------------


class _Scratch(threading.local):
    """A block of bytes per thread, as large as it ever had to be there."""

    memory: NDArray[np.uint8] | None = None

    def address(self, size: int) -> int:
        if self.memory is None or self.memory.size < size:
            self.memory = np.empty(size, np.uint8)
        return self.memory.ctypes.data


_SCRATCH = _Scratch()


@dataclass(frozen=True, slots=True)
class _Pass:
    """One or two axes that one kernel takes at once.

    Attributes:
        rows: dimension whose rows are summed; None if there is none.
        columns: the last dimension, if its elements are summed in this pass.
        columns_first: which of the two comes first.
    """

    rows: int | None
    columns: int | None
    columns_first: bool = False


@dataclass(frozen=True, slots=True)
class Blend:
    """Weighted taps along some axes, summed in float32; the other axes are copied.

    Attributes:
        kernels: the compiled ones.
        maps: one per dimension; None copies that axis.
        anchored: whether sums are those of `Rounding.TRUNCATE`.
        order: the mapped dimensions in the order they are summed along; it depends on the maps alone.
    """

    kernels: Kernels
    maps: tuple[AxisMap | None, ...]
    anchored: bool
    order: tuple[int, ...]

    @classmethod
    def of(cls, kernels: Kernels, maps: tuple[AxisMap | None, ...], *, anchored: bool) -> Blend:
        """The order is the numpy backend's, so that sums come out the same: shrinking axes, then growing ones, last first.

        Of axes that gain equally the earlier one comes first. See `SeparableKernel`.
        """

        def gain(dim: int) -> float:
            mapping = maps[dim]
            assert mapping is not None
            return (mapping.input_size / mapping.output_size - 1) / (4 if dim == len(maps) - 1 else 1)

        order = sorted((dim for dim, mapping in enumerate(maps) if mapping is not None), key=gain, reverse=True)
        return cls(kernels, maps, anchored, tuple(order))

    def fill(self, source: Place, target: Place, box: Box) -> None:
        """Compute a box; `target` is where the box begins."""
        steps = zip((start for start, _ in box), target.strides, strict=True)
        origin = target.address - sum(start * step for start, step in steps)
        self._fill(source, Place(origin, target.strides, target.item, target.kind), box)

    def _fill(self, source: Place, target: Place, box: Box) -> None:
        """As `fill`, with `target` the place of the whole output's first element."""
        channels = self._channels(source, target, box)
        passes = self._passes(channels)
        tables = self._tables(box, channels)
        regions = [box]  # what each pass makes, the last one first
        for each in reversed(passes[1:]):
            region = list(regions[-1])
            for dim in (each.rows, each.columns):
                if dim is not None:
                    low, high = tables[dim].reads(*_scaled(box[dim], dim, channels, self.columns))
                    region[dim] = (low // channels, -(-high // channels)) if dim == self.columns else (low, high)
            regions.append(tuple(region))
        sizes = [np.prod([stop - start for start, stop in region], dtype=float) for region in regions[1:]]
        if sizes and max(sizes) > MOST_BETWEEN:
            halves = _halves(box)
            if halves:
                for half in halves:
                    self._fill(source, target, half)
                return
        keep: list[NDArray[np.float32]] = []
        for each, region in zip(passes, reversed(regions), strict=True):
            if region is box:
                self._run(each, source, target, region, tables, channels)
            else:
                between = np.empty([stop - start for start, stop in region], np.float32)
                keep.append(between)
                steps = zip((start for start, _ in region), between.strides, strict=True)
                origin = between.ctypes.data - sum(start * step for start, step in steps)
                middle = Place(origin, between.strides, 4)
                self._run(each, source, middle, region, tables, channels)
                source = middle

    @property
    def columns(self) -> int:
        """The mapped dimension that can be the columns, given channels or none behind it."""
        return max(self.order)

    def _channels(self, source: Place, target: Place, box: Box) -> int:
        """Elements side by side that can be taken as columns together with the dimension before them; else 1."""
        last = len(box) - 1
        if self.columns != last - 1:
            return 1
        start, stop = box[last]
        count = stop - start
        side_by_side = all(
            place.strides[last] == place.item and place.strides[last - 1] == place.item * count
            for place in (source, target)
        )
        return count if start == 0 and 1 < count <= FEW_CHANNELS and side_by_side else 1

    def _passes(self, channels: int) -> list[_Pass]:
        last = len(self.maps) - 1
        behind = self.columns + 1
        if self.columns != last and channels == 1 and behind <= last:
            return [_Pass(dim, None) for dim in self.order]
        at = self.order.index(self.columns)
        passes = [_Pass(dim, None) for dim in self.order]
        if at + 1 < len(self.order):
            passes[at : at + 2] = [_Pass(self.order[at + 1], self.columns, columns_first=True)]
        elif at:
            passes[at - 1 : at + 1] = [_Pass(self.order[at - 1], self.columns)]
        else:
            passes[at] = _Pass(None, self.columns)
        return passes

    def _tables(self, box: Box, channels: int) -> dict[int, Table]:
        found: dict[int, Table] = {}
        for dim in self.order:
            mapping = self.maps[dim]
            assert mapping is not None
            found[dim] = table_of(mapping, *box[dim], channels if dim == self.columns else 1)
        return found

    def _run(
        self, each: _Pass, source: Place, target: Place, region: Box, tables: Mapping[int, Table], channels: int
    ) -> None:
        dst, src = target.address, source.address
        outside: list[tuple[int, int, int]] = []
        inside = len(region) - 1
        if channels > 1 and each.columns is not None:
            inside -= 1
        for dim, (start, stop) in enumerate(region):
            if dim == each.rows or dim == each.columns or dim > inside:
                continue
            dst += start * target.strides[dim]
            src += start * source.strides[dim]
            outside.append((stop - start, target.strides[dim], source.strides[dim]))
        step, source_step = target.item, source.item
        if each.columns is not None:
            taps: Table | None = tables[each.columns]
            step, source_step = target.strides[-1], source.strides[-1]
            start, stop = _scaled(region[each.columns], each.columns, channels, self.columns)
            dst += taps.start * step  # blocks count from there
            blocks = taps.blocks_of(start, stop)
        else:
            # Nothing happens along the innermost axes, so as many as lie behind each other are one row.
            taps, count = None, 1
            while outside and (outside[-1][0] == 1 or outside[-1][1:] == (count * target.item, count * source.item)):
                count *= outside.pop()[0]
            if count == 1 and outside:
                count, step, source_step = outside.pop()
            blocks = [ColumnBlock(at, min(at + WIDE, count), at, min(at + WIDE, count)) for at in range(0, count, WIDE)]
        self._blocks(each, (dst, src), (step, source_step), outside, blocks, taps, tables, region, source, target)

    def _blocks(
        self, each: _Pass, places: tuple[int, int], steps: tuple[int, int], outside: list[tuple[int, int, int]],
        blocks: Sequence[ColumnBlock], taps: Table | None, tables: Mapping[int, Table], region: Box,
        source: Place, target: Place,
    ) -> None:  # fmt: skip
        dst, src = places
        index: NDArray[np.int32] | None = None  # named, so that it lives while its address is in use
        if each.rows is None:
            # No rows are summed: the innermost axis outside is walked as rows, each a copy of one.
            count, row_step, source_row = outside.pop() if outside else (1, 0, 0)
            index = np.arange(count, dtype=np.int32)
            rows = (count, 1, count, index.ctypes.data, 0, source_row, row_step)
            span = 1
        else:
            table = tables[each.rows]
            start, stop = region[each.rows]
            at = 4 * (start - table.start)
            assert table.weight is not None
            rows = (
                stop - start, table.taps, table.pitch, table.index.ctypes.data + at, table.weight.ctypes.data + at,
                source.strides[each.rows], target.strides[each.rows],
            )  # fmt: skip
            dst += start * target.strides[each.rows]
            span = table.span
        axes = _merged([(*axis, 0) for axis in outside])
        kernel = self.kernels["columns_first" if each.columns_first else "rows_first"]
        for block in blocks:
            count, read = block.stop - block.start, block.high - block.low
            if taps is None:
                columns = (count, 0, 0, 0, 0)
            else:
                assert taps.weight is not None
                columns = (
                    count, taps.taps, taps.pitch, taps.index.ctypes.data + 4 * block.start,
                    taps.weight.ctypes.data + 4 * block.start,
                )  # fmt: skip
            ring_rows = span if each.columns_first else 1
            line = 4 * max(count, read) + LINE  # a row of float32, and then some so that rows do not fall on each other
            line -= line % LINE
            ring = _SCRATCH.address((ring_rows + 3) * line + 8 * ring_rows)
            loaded, sums, cells, keys = (ring + (ring_rows + more) * line for more in range(4))
            head = (
                source.kind, target.kind, steps[1], steps[0], int(self.anchored), *rows, *columns, block.low, read,
                block.phases, block.first, block.last, ring, ring_rows, line, loaded, sums, cells, keys,
            )  # fmt: skip
            _call(kernel, dst + block.start * steps[0], src, axes, head)


def _scaled(span: tuple[int, int], dim: int, channels: int, columns: int) -> tuple[int, int]:
    return (span[0] * channels, span[1] * channels) if dim == columns else span


def _halves(box: Box) -> tuple[Box, Box] | None:
    """The box cut in two along its first axis that can be cut."""
    for axis, (start, stop) in enumerate(box):
        if stop - start > 1:
            middle = (start + stop) // 2
            return (*box[:axis], (start, middle), *box[axis + 1 :]), (*box[:axis], (middle, stop), *box[axis + 1 :])
    return None
