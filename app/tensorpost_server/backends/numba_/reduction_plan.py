"""Launch plans of `Lines` that are sums or largest elements: one kernel for each type and function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...forms import Box, Lines
from .launch_plan import PART_BYTES, Kernels, LaunchPlan, StridedBuffer, merged

COLUMNS = 1024  # outputs side by side: what accumulates them stays in the first-level cache
SHORT = 16  # elements from which on neighbours are better than a longer walk
LINE = 64  # bytes that accumulators are aligned to
ACCUMULATOR = 8  # bytes, of the largest
SIGN_16, SIGN_32 = 1 << 15, 1 << 31
KERNELS = {
    ("SUM", "float32"): ("sum_f32", 0),
    ("SUM", "float16"): ("sum_f16", 0),
    ("SUM", "int32"): ("sum_u32", 0),
    ("SUM", "uint32"): ("sum_u32", 0),
    ("AVERAGE", "float32"): ("sum_f32", 0),
    ("AVERAGE", "float16"): ("sum_f16", 0),
    ("MAX", "float32"): ("largest_f32", 0),
    ("MAX", "float16"): ("largest_f16", 0),
    ("MAX", "uint8"): ("largest_u8", 0),
    ("MAX", "int8"): ("largest_u8", 0x80),
    ("MIN", "float32"): ("largest_f32", SIGN_32),
    ("MIN", "float16"): ("largest_f16", SIGN_16),
    ("MIN", "uint8"): ("largest_u8", 0xFF),
    ("MIN", "int8"): ("largest_u8", 0x7F),
}
"""Kernels by reduction and type, each with the bits of an element that are flipped for it."""


@dataclass(frozen=True, slots=True)
class ReductionPlanner:
    """Plans of one reduction.

    Attributes:
        kernels: the compiled ones.
        form: what is reduced.
        kernel: the name of the kernel.
        flipped: bits of an element that are flipped before and after.
    """

    group: ClassVar[str] = "reductions"
    part_bytes = PART_BYTES
    kernels: Kernels
    form: Lines
    kernel: str
    flipped: int

    @classmethod
    def for_form(cls, form: Lines, type_name: str) -> Callable[[Kernels], ReductionPlanner] | str:
        """Makes planners of a form of elements of a type, or says why NumPy computes it."""
        if not form.reduction:
            return "of the form Lines it computes reductions only"
        found = KERNELS.get((form.reduction, type_name))
        if found is None:
            return f"it has no {form.reduction} of {type_name}"
        return lambda kernels: cls(kernels, form, *found)

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        (source,) = sources
        item, at = source.item, source.offset
        kept: list[tuple[int, int, int, int]] = []
        inside: list[tuple[int, int, int, int]] = []
        elements = 1
        for axis, (size, step) in enumerate(zip(self.form.sizes, source.strides, strict=True)):
            if axis in self.form.axes:
                inside.append((size, 0, step, 0))
                elements *= size
            else:
                start, stop = box[axis]
                at += start * step
                kept.append((stop - start, target.strides[axis], step, 0))
        outside, planes = (merged(sorted(axes, key=lambda axis: -axis[2])) for axes in (kept, inside))
        columns = next((axis for axis in outside if axis[2] == item), (1, 0, item, 0))
        if columns in outside:
            outside.remove(columns)
        count, target_step, *_ = columns
        rows = max(planes, key=lambda axis: (axis[2] == item and axis[0] >= SHORT, axis[0]))
        planes.remove(rows)
        plan = LaunchPlan(scratch=LINE + ACCUMULATOR * min(count, COLUMNS))
        divisor = elements if self.form.reduction == "AVERAGE" else 1
        for first, width, times in _blocks(count):
            axes = [*outside, (times, width * target_step, width * item, 0), *planes]
            head = (width, target_step, rows[0], rows[2], len(planes), self.flipped, divisor)
            start = (target.block, target.offset + first * target_step)
            plan.launch_rows(self.kernels[self.kernel], start, (source.block, at + first * item), axes, head)
        return plan


def _blocks(columns: int) -> list[tuple[int, int, int]]:
    """Columns in blocks of equal width: the first one, the width, and how many blocks."""
    times, rest = divmod(columns, COLUMNS)
    found = [(0, COLUMNS, times)] if times else []
    return [*found, (times * COLUMNS, rest, 1)] if rest else found
