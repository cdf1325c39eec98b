"""Launch plans of `FusedLines`: expression and reduction of a few lines after each other, which stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...forms import Box
from ...forms.arrays import LINES_AT_ONCE
from ...forms.base import blocks, extents
from ...forms.fused_lines import FusedLines
from ...forms.squeezed_lines import SqueezedLines
from .helper_threads import HelperThreads
from .launch_plan import FIRST_INPUT, KINDS, LINE, TARGET, LaunchPlan, Planner, Scratch, StridedBuffer

_MADE = Scratch()


@dataclass(frozen=True, slots=True)
class _LineBlocks:
    """The calls for blocks of lines of equal extents.

    Attributes:
        prologue: makes the elements of a block.
        reduction: reads them.
        size_in_bytes: length of the elements, bytes.
        shifts: bytes to add to the addresses of the output and of each input, for each block.
    """

    prologue: LaunchPlan
    reduction: LaunchPlan
    size_in_bytes: int
    shifts: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    @property
    def nbytes(self) -> int:
        return self.prologue.nbytes + self.reduction.nbytes + 8 * sum(map(len, self.shifts))

    @property
    def kept(self) -> Sequence[Any]:
        return (*self.prologue.kept, *self.reduction.kept)

    def run(self, threads: HelperThreads, target: int, *inputs: int) -> None:
        memory, address = _MADE.block(self.size_in_bytes + LINE)  # kept as long as the calls run
        made = -(-address // LINE) * LINE
        for shift, *shifts in self.shifts:
            self.prologue.run(threads, made, *[at + by for at, by in zip(inputs, shifts, strict=True)])
            self.reduction.run(threads, target + shift, made)
        del memory


@dataclass(frozen=True, slots=True)
class FusedLinesPlanner:
    """Plans of a reduction of what an expression makes.

    Attributes:
        form: the reduction and the expression.
        prologue: plans the expression.
        reduction: plans the reduction.
    """

    group: ClassVar[str] = "reductions"
    form: FusedLines
    prologue: Planner
    reduction: Planner

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        lines, found = self.form.lines, dict[tuple[int, ...], tuple[Box, _LineBlocks]]()
        length = math.prod([lines.sizes[axis] for axis in lines.axes])
        for block in blocks(box, max(1, LINES_AT_ONCE // length)):
            key = tuple(extents(block))
            if key not in found:
                found[key] = block, self._blocks(sources, target, box, block)
            first, made = found[key]
            shifts = [
                sum([(at - start) * step for (at, _), (start, _), step in zip(block, first, each.strides, strict=True)])
                for each in (target, *sources)
            ]
            made.shifts.append(tuple(shifts))
        plan = LaunchPlan()
        for _, made in found.values():
            plan.blocks.append(made)
            plan.kept += made.kept
        return plan

    def _blocks(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, block: Box) -> _LineBlocks:
        """The calls for a block of a box; the target begins where the box does."""
        (read,) = self.form.lines.reads(block)
        assert read is not None
        sizes = self.form.room(block)
        strides = tuple([4 * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))])
        kind, first = KINDS["<f4"], sum([start * step for (start, _), step in zip(read, strides, strict=True)])
        prologue = self.prologue.plan(sources, StridedBuffer(strides, 4, kind, 0, TARGET), read, 0)
        begin = target.offset + sum([
            (at - start) * step for (at, _), (start, _), step in zip(block, box, target.strides, strict=True)
        ])  # fmt: skip
        made = StridedBuffer(strides, 4, kind, -first, FIRST_INPUT)
        reduction = self.reduction.plan([made], replace(target, offset=begin), block, 0)
        return _LineBlocks(prologue, reduction, 4 * math.prod(sizes))


@dataclass(frozen=True, slots=True)
class SqueezedLinesPlanner:
    """Plans of a reduction whose output lacks the axes along the lines.

    Attributes:
        form: the form.
        lines: plans the reduction with these axes.
    """

    group: ClassVar[str] = "reductions"
    form: SqueezedLines
    lines: Planner

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        """See `Planner.plan`."""
        strides = iter(target.strides)
        count = len(target.strides) + len(self.form.axes)
        with_axes = [0 if axis in self.form.axes else next(strides) for axis in range(count)]
        return self.lines.plan(sources, replace(target, strides=tuple(with_axes)), self.form.with_axes(box), output)
