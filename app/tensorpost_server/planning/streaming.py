"""Which steps of a graph are streamed: computed box by box, as the slices of the step that reads them need it.

A streamed result never exists as a whole, so that a small tensor becomes a huge one in little memory, and what is read
from it is still in a processor's cache. It has the bytes that the step gives by itself: only forms are streamed of
which a box has the same bytes however the output is cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace

from tensorpost.values.graph import NodeOutput
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

from ..forms import Copies, Pointwise, whole_box
from ..forms.base import Box, Form, extents
from ..forms.onnx_resize import OnnxResize
from ..forms.separable import Separable
from .slices import cut
from .step import PlanStep

_SAME_IN_BOXES = (Copies, OnnxResize, Pointwise, Separable)


def streamed(steps: Sequence[PlanStep], outputs: Sequence[NodeOutput], slice_bytes: int) -> frozenset[int]:
    """The places of the steps that are streamed.

    Each is larger than a slice, and one step alone reads it, once: one that is streamed itself, or that computes slices
    of an output.

    Args:
        steps: the plan's steps.
        outputs: where the graph's outputs come from.
        slice_bytes: the most bytes of a slice.
    """
    readers = Counter([source.node for step in steps for source in step.sources if isinstance(source, NodeOutput)])
    sent, found = Counter([ref.node for ref in outputs]), set[int]()
    for number in reversed(range(len(steps))):
        step = steps[number]
        if number not in found and (sent[number] != 1 or readers[number] or len(step.outputs) != 1):
            continue
        reads = _boxes_read(step, slice_bytes)
        for place, source in enumerate(step.sources):
            if not isinstance(source, NodeOutput) or readers[source.node] != 1 or sent[source.node]:
                continue
            made, read = steps[source.node], step.inputs[place].layout
            is_same = made.outputs[0].layout == read and read.packed and len(made.outputs) == 1
            is_large = read.size_in_bytes > slice_bytes
            if place in reads and is_same and is_large and isinstance(made.form, _SAME_IN_BOXES):
                found.add(source.node)
    return frozenset(found)


def streams_of(steps: Sequence[PlanStep], number: int, streamed: Container[int]) -> list[PlanStep]:
    """The streamed steps that a step reads, and that those read.

    Args:
        steps: the plan's steps.
        number: the place of the step.
        streamed: what `streamed` returned.
    """
    found: list[PlanStep] = []
    waiting = [number]
    while waiting:
        for source in steps[waiting.pop()].sources:
            if isinstance(source, NodeOutput) and source.node in streamed:
                found.append(steps[source.node])
                waiting.append(source.node)
    return found


def _boxes_read(step: PlanStep, slice_bytes: int) -> frozenset[int]:
    """The inputs of which slices of the step read boxes, no element more than about once."""
    layout, form = step.outputs[0].layout, step.form
    if form.localized(whole_box(layout.sizes)) is None or not math.prod(layout.sizes):
        return frozenset()
    if isinstance(form, Pointwise):
        return frozenset([place for place, slot in enumerate(step.inputs) if slot.layout.sizes == layout.sizes])
    if math.prod(layout.sizes) > sum([math.prod(slot.layout.sizes) for slot in step.inputs]):
        return frozenset()  # it repeats elements
    slices = cut(layout, slice_bytes)
    for index in {0, len(slices) // 2, len(slices) - 1}:
        box = slices.piece(index).box
        if sum([math.prod(extents(read)) for read in form.reads(box) if read is not None]) > math.prod(extents(box)):
            return frozenset()
    return frozenset(range(len(step.inputs)))


def local_step(step: PlanStep, form: Form, box: Box, reads: Sequence[Box], streamed_inputs: Sequence[bool]) -> PlanStep:
    """A step that computes one box of another one's output, as a tensor by itself.

    Args:
        step: the other one.
        form: its form for the box (`Form.localized`).
        box: a box that is one run of the output's bytes.
        reads: the box of each input.
        streamed_inputs: which inputs are the box by themselves, packed; others are views of whole tensors.
    """
    inputs = [
        Slot(slot.name, _part(operand, read, packed=alone))
        for slot, operand, read, alone in zip(step.inputs, step.operands, reads, streamed_inputs, strict=True)
    ]
    (output,) = step.outputs
    made = Slot(output.name, _part(output.layout, box, packed=output.layout.packed))
    return replace(step, form=form, inputs=tuple(inputs), outputs=(made,))


def _part(layout: Layout, box: Box, *, packed: bool) -> Layout:
    """The layout of a box: packed by itself, or with the strides of the whole."""
    if packed:
        return Layout.row_major(layout.data_type, extents(box))
    return replace(layout, sizes=tuple(extents(box)), packed=False)
