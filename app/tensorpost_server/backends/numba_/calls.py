"""From a box of the output to calls of the compiled kernels: which axes make a row, and where everything lies.

A filler turns a box into a `Program` once. It holds no address of the tensors, only offsets into them, so the same
program serves every request of the same shape.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms import Box
from ...forms.axes import AxisMap
from .tables import MOST_ENTRIES, WIDE, ColumnBlock, Table, most_taps, table_of

__all__ = ["KINDS", "Blend", "Filler", "Gather", "Kernels", "Place", "Program", "Tile"]

Kernels = Mapping[str, Callable[[int], None]]
Axis = tuple[int, int, int, int]
"""An axis outside a row: extent, bytes per step of the output and of the input, address of the input's offsets or 0."""

HEAD = 40  # parameters before the axes; they and their order are those of kernels.py
AT_DST, AT_SRC, AT_SCRATCH = 1, 2, 3
FEW_CHANNELS = 16  # so many elements side by side are resampled as if each were a column
MOST_BETWEEN = 1 << 20  # elements between two passes, 4 MiB; a box that needs more is cut
MOST_KEPT = 2 * 4 * MOST_BETWEEN  # bytes of scratch memory that a thread keeps, in no budget; more is given back
SHORT_ITEM = 64  # bytes; a longer item is a row of its own
LINE = 64  # bytes of a cache line
_STEP_BYTES = 200  # of the objects of a call
KINDS = {"<f4": 0, "<f2": 1, "|u1": 2, "|i1": 3}  # element types of the kernels that sum


@dataclass(frozen=True, slots=True)
class Place:
    """How a tensor lies in a block of memory.

    Attributes:
        strides: bytes to the next entry of each dimension.
        item: bytes of an element.
        kind: number of the element's type in the kernels that sum; 0, float32, where it does not matter.
        offset: bytes from the block's beginning to the element of coordinates 0.
        between: whether the block is the thread's scratch memory: sums between two passes.
    """

    strides: tuple[int, ...]
    item: int
    kind: int = 0
    offset: int = 0
    between: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a kernel: its parameters with offsets, and to what these are added."""

    kernel: Callable[[int], None]
    parameters: array[int]
    into_between: bool
    of_between: bool


class _Scratch(threading.local):
    """A block of bytes per thread, as large as it ever had to be there, up to `MOST_KEPT`."""

    memory: NDArray[np.uint8] | None = None

    def block(self, size: int) -> NDArray[np.uint8]:
        """At least so many bytes, which the thread's next program may be given too."""
        memory = self.memory
        if memory is None or memory.size < size:
            memory = np.empty(size, np.uint8)
            if size <= MOST_KEPT:
                self.memory = memory
        return memory


_SCRATCH = _Scratch()


@dataclass(slots=True)
class Program:
    """The calls that compute a box.

    Attributes:
        steps: the calls.
        parts: make programs for other parts of the box, whose tables are too large to be there at the same time.
        scratch: bytes of scratch memory that they need.
        kept: tables whose addresses stand in the parameters.
    """

    steps: list[_Step] = field(default_factory=list[_Step])
    parts: list[Callable[[], Program]] = field(default_factory=list[Callable[[], "Program"]])
    scratch: int = 0
    kept: list[Any] = field(default_factory=list[Any])

    @property
    def nbytes(self) -> int:
        """About what the calls hold in memory, bytes; without the tables."""
        parts = _STEP_BYTES * len(self.parts)
        return parts + sum(_STEP_BYTES + 8 * len(step.parameters) for step in self.steps)

    def run(self, target: int, source: int) -> None:
        """Compute, given the addresses of the output's block and of the input's. Any number of threads at once."""
        block = _SCRATCH.block(self.scratch) if self.scratch else None
        scratch = 0 if block is None else block.ctypes.data
        for step in self.steps:
            parameters = step.parameters[:]
            parameters[AT_DST] += scratch if step.into_between else target
            parameters[AT_SRC] += scratch if step.of_between else source
            parameters[AT_SCRATCH] = scratch
            step.kernel(parameters.buffer_info()[0])
        for part in self.parts:
            part().run(target, source)

    def add(
        self, kernel: Callable[[int], None], target: Place, dst: int, source: Place, src: int,
        axes: Sequence[Axis], head: Sequence[int],
    ) -> None:  # fmt: skip
        """Append a call; `dst` and `src` are where its first row is, as offsets."""
        parameters = array("q", (len(axes), dst, src, 0, *head))
        parameters.extend([0] * (HEAD - len(parameters)))
        for axis in axes:
            parameters.extend(axis)
        self.steps.append(_Step(kernel, parameters, target.between, source.between))


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

    def program(self, source: Place, target: Place, box: Box) -> Program:
        """The calls for a box that begins where `target` does."""
        program = Program()
        size, src = source.item, source.offset
        dims = list(zip(box, self.sizes, target.strides, source.strides, strict=True))
        while dims:  # whole axes, one behind the other on both sides, are one run of bytes
            (start, stop), extent, step, of = dims[-1]
            if start % extent or stop - start != extent or (extent > 1 and (step, of) != (size, size)):
                break
            size *= extent
            dims.pop()
        copies, head, tail = 1, 0, 0
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
        for grid in itertools.product(*[list(_runs(*dim)) for dim in dims]):
            axes = _merged([axis for run in grid for axis in run.axes])
            dst = target.offset + sum(run.dst for run in grid)
            of = src + sum(run.src for run in grid)
            program.add(self.kernels["tile"], target, dst, source, of, axes, (size, copies, head, tail))
        return program


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
        yield _Run((at - start) * step, 0, ((copies, size * step, 0, 0), (size, step, source_step, 0)))
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

    def program(self, source: Place, target: Place, box: Box) -> Program:
        """The calls for a box that begins where `target` does."""
        program = Program()
        item, src = source.item, source.offset
        dims = list(zip(self.maps, box, target.strides, source.strides, strict=True))
        while dims:  # copied axes at the end, one behind the other on both sides, are one item
            mapping, (start, stop), step, of = dims[-1]
            if mapping is not None or (stop - start > 1 and (step, of) != (item, item)):
                break
            src, item = src + start * of, item * (stop - start)
            dims.pop()
        if not dims or (item > SHORT_ITEM and item > source.item):
            axes, src = self._axes(dims, src, program.kept)
            program.add(self.kernels["tile"], target, target.offset, source, src, axes, (item, 1, 0, 0))
            return program
        mapping, (start, stop), step, of = dims.pop()
        count = stop - start
        if mapping is None:
            src += start * of
            index, regular = np.arange(count, dtype=np.int32), (1, 1, 0, count)
            program.kept.append(index)
            address = index.ctypes.data
        else:
            table = table_of(mapping, start, stop)
            program.kept.append(table)
            regular = table.regular if table.pitch == count else (0, 0, count, count)
            address = table.index.ctypes.data + 4 * (start - table.start)
        axes, src = self._axes(dims, src, program.kept)
        head = (count, item, step, of, address, *regular)
        program.add(self.kernels["gather"], target, target.offset, source, src, axes, head)
        return program

    @staticmethod
    def _axes(dims: Sequence[Any], src: int, kept: list[Any]) -> tuple[list[Axis], int]:
        axes: list[Axis] = []
        for mapping, (start, stop), step, of in dims:
            if mapping is None:
                src += start * of
                axes.append((stop - start, step, of, 0))
            else:
                table = table_of(mapping, start, stop)
                offsets = table.index[0, start - table.start : stop - table.start].astype(np.int64)
                offsets *= of
                kept.append(offsets)
                axes.append((stop - start, step, 0, offsets.ctypes.data))
        return _merged(axes), src


# ---- linear, cubic, antialiased, gradients ---------------------------------------------------------------------------


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

    table: Table | None
    blocks: Sequence[ColumnBlock]
    step: int
    source_step: int


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
        """The order is the numpy backend's, so that sums come out the same: see `Separable`.

        Shrinking axes come first, then growing ones, of these the last one first; among equals the earlier one.
        """

        def gain(dim: int) -> float:
            mapping = maps[dim]
            assert mapping is not None
            return (mapping.input_size / mapping.output_size - 1) / (4 if dim == len(maps) - 1 else 1)

        order = sorted((dim for dim, mapping in enumerate(maps) if mapping is not None), key=gain, reverse=True)
        return cls(kernels, maps, anchored, tuple(order))

    @property
    def last(self) -> int:
        """The mapped dimension that can be the columns: the one with the fewest behind it."""
        return max(self.order)

    def program(self, source: Place, target: Place, box: Box) -> Program:
        """The calls for a box that begins where `target` does."""
        origin = target.offset - sum(start * step for (start, _), step in zip(box, target.strides, strict=True))
        return self._part(source, Place(target.strides, target.item, target.kind, origin), box)

    def _part(self, source: Place, target: Place, box: Box) -> Program:
        program = Program()
        self._add(program, source, target, box)
        return program

    def _add(self, program: Program, source: Place, target: Place, box: Box) -> None:
        """Here `target` is where the whole output would begin."""
        channels = self._channels(source, target, box)
        wide = self._wide(box, channels)
        if wide is not None:
            program.parts.extend([partial(self._part, source, target, half) for half in _halves(box, wide)])
            return
        passes = self._passes(channels)
        tables = {dim: self._table(dim, box, channels) for dim in self.order}
        program.kept.extend(tables.values())
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
                self._add(program, source, target, half)
            return
        used = 0  # bytes of scratch memory taken by what lies between passes
        for each, region in zip(passes, reversed(regions), strict=True):
            into = target
            if region is not box:
                extents = [stop - start for start, stop in region]
                strides = tuple(4 * int(np.prod(extents[dim + 1 :], dtype=object)) for dim in range(len(extents)))
                begin = used - sum(start * step for (start, _), step in zip(region, strides, strict=True))
                into = Place(strides, 4, offset=begin, between=True)
                used += -(-4 * int(np.prod(extents, dtype=object)) // LINE) * LINE
            self._add_pass(program, each, source, into, region, tables, channels, used)
            source = into

    def _channels(self, source: Place, target: Place, box: Box) -> int:
        """Elements side by side that can be taken as columns together with the dimension before them; else 1."""
        behind = len(box) - 1
        if self.last != behind - 1:
            return 1
        start, stop = box[behind]
        count = stop - start
        side_by_side = all(
            place.strides[behind] == place.item and place.strides[behind - 1] == place.item * count
            for place in (source, target)
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

    def _table(self, dim: int, box: Box, channels: int) -> Table:
        mapping = self.maps[dim]
        assert mapping is not None
        return table_of(mapping, *box[dim], channels if dim == self.last else 1)

    def _add_pass(
        self, program: Program, each: _Pass, source: Place, target: Place, region: Box,
        tables: Mapping[int, Table], channels: int, used: int,
    ) -> None:  # fmt: skip
        dst, src = target.offset, source.offset
        outside: list[tuple[int, int, int]] = []
        inside = len(region) - (2 if channels > 1 and each.columns is not None else 1)
        for dim, (start, stop) in enumerate(region):
            if dim not in (each.rows, each.columns) and dim <= inside:
                dst += start * target.strides[dim]
                src += start * source.strides[dim]
                outside.append((stop - start, target.strides[dim], source.strides[dim]))
        if each.columns is None:
            columns = _plain_columns(outside, target, source)
        else:
            table = tables[each.columns]
            start, stop = (end * channels for end in region[each.columns])
            columns = _Columns(table, table.blocks_of(start, stop), target.strides[-1], source.strides[-1])
            dst += table.start * columns.step  # the blocks count from there
        if each.rows is None:
            # No rows are summed: the innermost axis outside is walked as rows, each a copy of one.
            count, row_step, source_row = outside.pop() if outside else (1, 0, 0)
            index = np.arange(count, dtype=np.int32)
            program.kept.append(index)
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
            program.scratch = max(program.scratch, keys + 8 * ring_rows)
            head = (
                source.kind, target.kind, columns.source_step, columns.step, int(self.anchored), *rows, *taps,
                block.low, read, block.phases, block.first, block.last,
                ring, ring_rows, line, loaded, sums, cells, keys,
            )  # fmt: skip
            program.add(kernel, target, dst + block.start * columns.step, source, src, axes, head)


def _plain_columns(outside: list[tuple[int, int, int]], target: Place, source: Place) -> _Columns:
    """Nothing happens along the innermost axes, so as many as lie behind each other are one row. Takes them away."""
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


Filler = Tile | Gather | Blend
