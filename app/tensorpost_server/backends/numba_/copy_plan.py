"""Launch plans of forms that move elements: `Copies`, and `Separable` with one tap per axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...forms import Box, Copies
from ...forms.axes import AxisMap
from ...forms.copy_loops import ByteLoops, byte_loops, uncovered
from .launch_plan import CONSTANT, Axis, Kernels, LaunchPlan, StridedBuffer, merged
from .tap_tables import table_of

SHORT_ITEM = 64  # bytes; a longer item is a row of its own
WORDS = (1, 2, 4, 8)  # bytes of an item that the transposing kernel moves


@dataclass(frozen=True, slots=True)
class CopyPlanner:
    """Plans of `Copies`.

    Attributes:
        kernels: the compiled ones.
        form: what is copied.
        fill: the fill value as an array of one element; None if every element is copied.
    """

    group: ClassVar[str] = "copies"
    part_bytes = 0
    kernels: Kernels
    form: Copies
    fill: Any

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        plan = LaunchPlan()
        found = list(self.form.within(box, output))
        if self.fill is not None:  # first: some of what is filled may be copied over
            plan.kept.append(self.fill)
            element = StridedBuffer((), target.item, offset=self.fill.ctypes.data, block=CONSTANT)
            for part in uncovered(box, found):
                loops = [(b - a, step, 0, 0) for (a, b), step in zip(part, target.strides, strict=True) if b - a > 1]
                loops.sort(key=lambda loop: -loop[1])
                at = sum([start * step for (start, _), step in zip(part, target.strides, strict=True)])
                walk = tuple([axis[:3] for axis in merged(loops) if axis[0] > 1])
                self._copy(plan, element, target, (0, at, walk))
        for move in found:
            source = sources[move.input]
            self._copy(plan, source, target, byte_loops(move, source.strides, target.strides))
        return plan

    def _copy(self, plan: LaunchPlan, source: StridedBuffer, target: StridedBuffer, found: ByteLoops) -> None:
        source_at, target_at, loops = found
        first, out = (source.block, source.offset + source_at), (target.block, target.offset + target_at)
        axes: list[Axis] = [(*loop, 0) for loop in loops]
        size = target.item
        if axes and axes[-1][1:3] == (size, size):
            size *= axes.pop()[0]
        if axes and size in WORDS and not (axes[-1][1] == size and axes[-1][2] == 0):
            # Along the columns the target lies together, if anywhere; along the rows the source does.
            columns = axes.pop()
            apart = [abs(axis[2] - size) for axis in axes]
            rows = axes.pop(apart.index(min(apart))) if axes else (1, 0, 0, 0)
            head = (size, rows[0], columns[0], rows[1], columns[1], rows[2], columns[2])
            plan.launch_rows(self.kernels["transpose"], out, first, axes, head)
            return
        copies = axes.pop()[0] if axes and axes[-1][1:3] == (size, 0) else 1
        plan.launch_rows(self.kernels["runs"], out, first, axes or [(1, 0, 0, 0)], (size, copies))


@dataclass(frozen=True, slots=True)
class GatherPlanner:
    """Plans where every axis picks its inputs by index, or is copied.

    Attributes:
        kernels: the compiled ones.
        maps: one per dimension; None copies that axis.
    """

    group: ClassVar[str] = "copies"
    part_bytes = 0
    kernels: Kernels
    maps: tuple[AxisMap | None, ...]

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        (source,) = sources
        plan = LaunchPlan()
        item, first = source.item, source.offset
        out = (target.block, target.offset)
        dims = list(zip(self.maps, box, target.strides, source.strides, strict=True))
        while dims:  # copied axes at the end, one after the other on both sides, are one item
            mapping, (start, stop), step, source_step = dims[-1]
            if mapping is not None or (stop - start > 1 and (step, source_step) != (item, item)):
                break
            first, item = first + start * source_step, item * (stop - start)
            dims.pop()
        if not dims or (item > SHORT_ITEM and item > source.item):
            axes, first = self._axes(dims, first, plan.kept)
            plan.launch_rows(self.kernels["runs"], out, (source.block, first), axes, (item, 1))
            return plan
        mapping, (start, stop), step, source_step = dims.pop()
        count = stop - start
        if mapping is None:
            first += start * source_step
            index, regular = np.arange(count, dtype=np.int32), (1, 1, 0, count)
            plan.kept.append(index)
            address = index.ctypes.data
        else:
            table = table_of(mapping, start, stop)
            plan.kept.append(table)
            regular = table.regular if table.pitch == count else (0, 0, count, count)
            address = table.index.ctypes.data + 4 * (start - table.start)
        axes, first = self._axes(dims, first, plan.kept)
        head = (count, item, step, source_step, address, *regular)
        plan.launch_rows(self.kernels["gather"], out, (source.block, first), axes, head)
        return plan

    @staticmethod
    def _axes(dims: Sequence[Any], first: int, kept: list[Any]) -> tuple[list[Axis], int]:
        axes: list[Axis] = []
        for mapping, (start, stop), step, source_step in dims:
            if mapping is None:
                first += start * source_step
                axes.append((stop - start, step, source_step, 0))
            else:
                table = table_of(mapping, start, stop)
                offsets = table.index[0, start - table.start : stop - table.start].astype(np.int64)
                offsets *= source_step
                kept.append(offsets)
                axes.append((stop - start, step, 0, offsets.ctypes.data))
        return merged(axes), first
