"""Launch plans of weighted sums along axes: linear, cubic, antialiased, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ...forms import Box
from ...forms.axes import AxisMap
from .launch_plan import KINDS, SCRATCH, Kernels, LaunchPlan, StridedBuffer, merged
from .tap_tables import MOST_ENTRIES, WIDE, ColumnBlock, TapTable, most_taps, table_of

FEW_CHANNELS = 16  # up to this many adjacent elements are resampled as if each were a column
MOST_BETWEEN = 1 << 20  # elements between two passes, 4 MiB; a box that needs more is cut
LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class _Pass:
    """One or two axes that one kernel takes at once.

    Attributes:
        rows: dimension whose rows are summed; None if there is none.
        columns: the last dimension (but for channels), if its elements are summed in this pass.
        columns_first: which of the two comes first.
    """

    rows: int | None
    columns: int | None
    columns_first: bool = False


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a pass.

    Attributes:
        table: their taps; None where nothing is summed along rows.
        blocks: the columns, cut.
        step: bytes from one to the next in the output.
        source_step: the same in the input.
    """

    table: TapTable | None
    blocks: Sequence[ColumnBlock]
    step: int
    source_step: int


@dataclass(frozen=True, slots=True)
class SumPlanner:
    """Weighted taps along some axes, summed in float32; the other axes are copied.

    Attributes:
        kernels: the compiled ones.
        maps: one per dimension; None copies that axis.
        anchored: whether sums are those of `Rounding.TRUNCATE`.
        order: the mapped dimensions in the order they are summed along; it depends on the maps alone.
    """

    group: ClassVar[str] = "resampling"
    part_bytes = 0
    kernels: Kernels
    maps: tuple[AxisMap | None, ...]
    anchored: bool
    order: tuple[int, ...]

    @classmethod
    def ordered(cls, kernels: Kernels, maps: tuple[AxisMap | None, ...], *, anchored: bool) -> SumPlanner:
        """The order is the numpy backend's, so that sums come out the same: see `Separable`.

        Shrinking axes come first, then growing ones, of these the last one first; among equals the earlier one.
        """
        mapped = [dim for dim, mapping in enumerate(maps) if mapping is not None]

        def gain(dim: int) -> float:
            mapping = maps[dim]
            assert mapping is not None
            return (mapping.input_size / mapping.output_size - 1) / (4 if dim == mapped[-1] else 1)

        order = sorted(mapped, key=gain, reverse=True)
        return cls(kernels, maps, anchored, tuple(order))

    @property
    def last(self) -> int:
        """The mapped dimension that can be the columns: the innermost one."""
        return max(self.order)

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        (source,) = sources
        origin = target.offset - sum([start * step for (start, _), step in zip(box, target.strides, strict=True)])
        return self._part(source, replace(target, offset=origin), box)

    def _part(self, source: StridedBuffer, target: StridedBuffer, box: Box) -> LaunchPlan:
        plan = LaunchPlan()
        self._add(plan, source, target, box)
        return plan

    def _add(self, plan: LaunchPlan, source: StridedBuffer, target: StridedBuffer, box: Box) -> None:
        """Here `target` is where the whole output would begin."""
        channels = self._channels(source, target, box)
        wide = self._wide(box, channels)
        if wide is not None:
            plan.parts.extend([partial(self._part, source, target, half) for half in _halves(box, wide)])
            return
        passes = self._passes(channels)
        tables = {dim: self._table(dim, box, channels) for dim in self.order}
        plan.kept.extend(tables.values())
        regions = [box]  # what each pass makes, the last pass first
        for each in passes[:0:-1]:
            region = list(regions[-1])
            for dim in (each.rows, each.columns):
                if dim is not None:
                    per = channels if dim == self.last else 1
                    low, high = tables[dim].reads(box[dim][0] * per, box[dim][1] * per)
                    region[dim] = (low // per, -(-high // per))
            regions.append(tuple(region))
        sizes = [int(np.prod([stop - start for start, stop in region], dtype=object)) for region in regions[1:]]
        cut = next((dim for dim, (start, stop) in enumerate(box) if stop - start > 1), None)
        if sizes and cut is not None and max(sizes) > MOST_BETWEEN:
            for half in _halves(box, cut):
                self._add(plan, source, target, half)
            return
        used = 0  # bytes of scratch memory taken by what lies between passes
        for each, region in zip(passes, reversed(regions), strict=True):
            between = target
            if region is not box:
                extents = [stop - start for start, stop in region]
                strides = tuple(4 * int(np.prod(extents[dim + 1 :], dtype=object)) for dim in range(len(extents)))
                begin = used - sum(start * step for (start, _), step in zip(region, strides, strict=True))
                between = StridedBuffer(strides, 4, KINDS["<f4"], begin, SCRATCH)
                used += -(-4 * int(np.prod(extents, dtype=object)) // LINE) * LINE
            self._add_pass(plan, each, source, between, region, tables, channels, used)
            source = between

    def _channels(self, source: StridedBuffer, target: StridedBuffer, box: Box) -> int:
        """Elements side by side that can be taken as columns together with the dimension before them; else 1."""
        axis = len(box) - 1
        if self.last != axis - 1:
            return 1
        start, stop = box[axis]
        count = stop - start
        side_by_side = all(
            buffer.strides[axis] == buffer.item and buffer.strides[axis - 1] == buffer.item * count
            for buffer in (source, target)
        )
        return count if start == 0 and 1 < count <= FEW_CHANNELS and side_by_side else 1

    def _passes(self, channels: int) -> list[_Pass]:
        passes = [_Pass(dim, None) for dim in self.order]
        if self.last != len(self.maps) - 1 and channels == 1:
            return passes
        at = self.order.index(self.last)
        if at + 1 < len(passes):
            passes[at : at + 2] = [_Pass(self.order[at + 1], self.last, columns_first=True)]
        elif at:
            passes[at - 1 : at + 1] = [_Pass(self.order[at - 1], self.last)]
        else:
            passes[at] = _Pass(None, self.last)
        return passes

    def _wide(self, box: Box, channels: int) -> int | None:
        """An axis whose table would have too many entries at once; making one takes about 100 bytes for each."""
        for dim in self.order:
            mapping, (start, stop) = self.maps[dim], box[dim]
            assert mapping is not None
            per = channels if dim == self.last else 1
            if stop - start > 1 and most_taps(mapping) * (stop - start) * per > MOST_ENTRIES:
                return dim
        return None

    def _table(self, dim: int, box: Box, channels: int) -> TapTable:
        mapping = self.maps[dim]
        assert mapping is not None
        return table_of(mapping, *box[dim], channels if dim == self.last else 1)

    def _add_pass(
        self, plan: LaunchPlan, each: _Pass, source: StridedBuffer, target: StridedBuffer, region: Box,
        tables: Mapping[int, TapTable], channels: int, used: int,
    ) -> None:  # fmt: skip
        target_at, source_at = target.offset, source.offset
        outside: list[tuple[int, int, int]] = []
        inside = len(region) - (2 if channels > 1 and each.columns is not None else 1)
        for dim, (start, stop) in enumerate(region):
            if dim not in (each.rows, each.columns) and dim <= inside:
                target_at += start * target.strides[dim]
                source_at += start * source.strides[dim]
                outside.append((stop - start, target.strides[dim], source.strides[dim]))
        if each.columns is None:
            columns = _plain_columns(outside, target, source)
        else:
            table = tables[each.columns]
            start, stop = (end * channels for end in region[each.columns])
            columns = _Columns(table, table.blocks_of(start, stop), target.strides[-1], source.strides[-1])
            target_at += table.start * columns.step  # the blocks count from there
        if each.rows is None:
            # No rows are summed: the innermost axis outside is walked as rows, each a copy of one.
            count, row_step, source_row = outside.pop() if outside else (1, 0, 0)
            index = np.arange(count, dtype=np.int32)
            plan.kept.append(index)
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
            target_at += start * target.strides[each.rows]
            span = table.span
        axes = merged([(*axis, 0) for axis in outside])
        kernel = self.kernels["columns_first" if each.columns_first else "rows_first"]
        for block in columns.blocks:
            count, read = block.stop - block.start, block.high - block.low
            taps = (count, 0, 0, 0, 0)
            if columns.table is not None:
                table, at = columns.table, 4 * block.start
                assert table.weight is not None
                taps = (
                    count, table.taps, table.pitch, table.index.ctypes.data + at, table.weight.ctypes.data + at
                )  # fmt: skip
            ring_rows = span if each.columns_first else 1
            line = (4 * max(count, read) // LINE + 2) * LINE  # an odd line more, so that rows fall on different sets
            ring, loaded, sums, cells, keys = (used + more * line for more in (0, *range(ring_rows, ring_rows + 4)))
            plan.scratch = max(plan.scratch, keys + 8 * ring_rows)
            head = (
                source.kind, target.kind, columns.source_step, columns.step, int(self.anchored), *rows, *taps,
                block.low, read, block.phases, block.first, block.last,
                ring, ring_rows, line, loaded, sums, cells, keys,
            )  # fmt: skip
            first = (target.block, target_at + block.start * columns.step)
            plan.launch_rows(kernel, first, (source.block, source_at), axes, head)


def _plain_columns(outside: list[tuple[int, int, int]], target: StridedBuffer, source: StridedBuffer) -> _Columns:
    """Nothing happens along the innermost axes, so as many as lie one after the other are one row. Takes them away."""
    count, step, source_step = 1, target.item, source.item
    while outside and (outside[-1][0] == 1 or outside[-1][1:] == (count * step, count * source_step)):
        count *= outside.pop()[0]
    if count == 1 and outside:
        count, step, source_step = outside.pop()
    cuts = [(start, min(start + WIDE, count)) for start in range(0, count, WIDE)]
    return _Columns(None, [ColumnBlock(*cut, *cut) for cut in cuts], step, source_step)


def _halves(box: Box, axis: int) -> tuple[Box, Box]:
    """The box cut in two along an axis of more than one entry."""
    start, stop = box[axis]
    middle = (start + stop) // 2
    return (*box[:axis], (start, middle), *box[axis + 1 :]), (*box[:axis], (middle, stop), *box[axis + 1 :])
