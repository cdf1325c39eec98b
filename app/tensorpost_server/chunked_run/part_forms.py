"""What a box of a step's output is computed from, where only a part of an input is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

from ..forms import Box, Copies, Form, FusedLines, Lines, Pointwise, Separable, SqueezedLines, extents, whole_box
from ..forms.onnx_resize import OnnxResize
from ..planning import PlanStep


@dataclass(frozen=True, slots=True)
class PartForm:
    """A form that computes a box from parts of its inputs.

    Attributes:
        form: it computes a tensor of `sizes` from tensors that are the parts.
        reads: the part of each input.
        sizes: the sizes of the only output.
        box: what is wanted of that output, one run of its bytes.
        seen: the coordinates of each input that the form is given, of which it reads no more than `reads`.
    """

    form: Form
    reads: tuple[Box, ...]
    sizes: tuple[int, ...]
    box: Box
    seen: tuple[Box, ...]

    def step(self, step: PlanStep) -> PlanStep:
        """The step that computes with this form, from packed parts."""
        inputs = [
            Slot(slot.name, Layout.row_major(slot.layout.data_type, extents(seen)))
            for slot, seen in zip(step.inputs, self.seen, strict=True)
        ]
        output = Slot(step.outputs[0].name, Layout.row_major(step.outputs[0].layout.data_type, self.sizes))
        return replace(step, form=self.form, inputs=tuple(inputs), outputs=(output,))


def part_form(step: PlanStep, box: Box, output: int = 0, *, sparse: bool = False) -> PartForm | None:
    """What computes a box of an output from parts of the inputs; None if that needs all of them.

    Elements are copied and computed as by the form of the whole. Sums along lines may be made in another order
    (`Form.fill`), those of resampling are not: its form sees the axes that are resampled whole.

    Args:
        step: the step, whose inputs and outputs are packed.
        box: coordinates that are one run of the output's bytes.
        output: which output.
        sparse: whether an input may be an array of which nothing but the part is in memory.
    """
    match form := step.form:
        case Copies() | Pointwise():
            return _of(form.localized(box, output), form.reads(box, output), box)
        case Lines() if len(form.outputs) == 1:
            (sizes,) = form.outputs
            lines = tuple([
                (0, sizes[axis]) if axis in form.axes else span for axis, span in enumerate(box)
            ])  # fmt: skip
            reads = form.reads(lines)
            inside = [(start - low, stop - low) for (start, stop), (low, _) in zip(box, lines, strict=True)]
            return _of(form.through(lines), reads, lines, tuple(inside))
        case FusedLines() if form.lines.reduction:
            return _of(replace(form, lines=form.lines.through(box)), form.reads(box), box)
        case SqueezedLines(Lines() as lines):
            return _of(SqueezedLines(lines.through(form.with_axes(box))), form.reads(box), box)
        case SqueezedLines(FusedLines() as fused):
            local = replace(fused, lines=fused.lines.through(form.with_axes(box)))
            return _of(SqueezedLines(local), form.reads(box), box)
        case Separable() | OnnxResize():
            return _resampled(form, step.inputs[0].layout.sizes, box, step.outputs[0].layout.sizes, sparse=sparse)
        case _:
            return None


def _of(form: Form, reads: Sequence[Box | None], box: Box, inside: Box | None = None) -> PartForm | None:
    parts = [read for read in reads if read is not None]
    sizes = tuple(extents(box))
    if len(parts) < len(reads):
        return None
    return PartForm(form, tuple(parts), sizes, inside or whole_box(sizes), tuple(parts))


def _resampled(
    form: Separable | OnnxResize, read: Sequence[int], box: Box, made: Sequence[int], *, sparse: bool
) -> PartForm | None:
    """Parts along the axes that are copied; along those that are resampled what is read, if the form may see more."""
    mapped = [axis is not None for axis in form.axes]
    seen = tuple([(0, size) if is_mapped else span for is_mapped, size, span in zip(mapped, read, box, strict=True)])
    spans = tuple([(0, size) if is_mapped else span for is_mapped, size, span in zip(mapped, made, box, strict=True)])
    inside = [(start - low, stop - low) for (start, stop), (low, _) in zip(box, spans, strict=True)]
    (reads,) = form.reads(box) if sparse else (seen,)
    return None if reads is None else PartForm(form, (reads,), tuple(extents(spans)), tuple(inside), (seen,))
