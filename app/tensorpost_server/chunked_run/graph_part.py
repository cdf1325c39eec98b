"""Computes boxes of the outputs of a plan: what is element-wise box by box, what others need as a whole in full.

An input may be there in part. Which part a box of an output needs is known before anything is computed (`parts_read`).
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidParameter

from ..backends.device_run import RunDevice, as_operand
from ..forms import Box, Pointwise, extents, whole_box
from ..planning import Plan, PlanStep
from .chunks import dtype_of, indices, piece_of
from .part_forms import PartForm, part_form

_MAP_NORESERVE = 0x4000  # of Linux; Python 3.11 has no name for it


def _reads_same_box(step: PlanStep, source: Layout) -> bool:
    """Whether a box of the step's output depends on the same box of what it reads, and on nothing else."""
    return isinstance(step.form, Pointwise) and source.sizes == step.outputs[0].layout.sizes


def _layout_of(plan: Plan, source: Ref) -> Layout:
    match source:
        case GraphInput(index):
            return plan.graph.inputs[index].layout
        case GraphConstant(index):
            return plan.graph.constants[index][0].layout
        case NodeOutput(step, index):
            return plan.steps[step].outputs[index].layout


def _needed_whole(plan: Plan) -> Mapping[int, str]:
    """The steps whose outputs every task needs as a whole, each with the name of a node that needs them."""
    found: dict[int, str] = {}
    for number, step in reversed([*enumerate(plan.steps)]):
        if step.form.computed_whole:
            found.setdefault(number, step.name)
        for source in step.sources:
            if isinstance(source, NodeOutput):
                made = plan.steps[source.node].outputs[source.index].layout
                if number in found or not _reads_same_box(step, made):
                    found[source.node] = step.name
    return found


def check_packed(plan: Plan) -> None:
    """Refuse steps that read by strides or as another type.

    Raises:
        InvalidParameter: there is one; the message names it.
    """
    for step in plan.steps:
        for source, slot in zip(step.sources, step.inputs, strict=True):
            if not slot.layout.packed or slot.layout.data_type is not _layout_of(plan, source).data_type:
                raise InvalidParameter(
                    f"{step_name(plan, step)} reads {slot.name} by strides or as another type, which is not computed "
                    "in boxes; give it a tensor that lies as it is read"
                )


def check_whole(plan: Plan, chunk_bytes: int) -> None:
    """Refuse a graph of which every task would hold more than a chunk beside those that it computes.

    Raises:
        InvalidParameter: see above; the message names two nodes.
    """
    check_packed(plan)
    needed = _needed_whole(plan)
    sizes = {number: sum([slot.layout.size_in_bytes for slot in plan.steps[number].outputs]) for number in needed}
    if (total := sum(sizes.values())) > chunk_bytes:
        largest = max(sizes, key=lambda number: sizes[number])
        name = plan.steps[largest].name
        raise InvalidParameter(
            f"node {needed[largest]!r} needs all of {name!r} at once, and results that are needed so take {total:,} "
            f"bytes, more than a chunk ({chunk_bytes:,} bytes): raise chunk_bytes, or run the graph up to {name!r} "
            "first, and what follows with its result as an input"
        )


def step_name(plan: Plan, step: PlanStep) -> str:
    """What messages call a step."""
    return f"node {step.name!r}" if plan.is_graph else plan.operator


# ---- what is read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartRead:
    """The part of an input that a box of an output depends on.

    Attributes:
        box: the smallest box around all that is read.
        reader: the first step that reads it.
    """

    box: Box
    reader: PlanStep


def parts_read(
    plan: Plan, wanted: NodeOutput, box: Box, inputs: Collection[int], *, sparse: bool = False
) -> dict[int, PartRead]:
    """The parts of some inputs that a box of an output depends on; those that it does not read are left out.

    Args:
        plan: the plan, with packed inputs.
        wanted: the output of a step.
        box: coordinates that are one run of the output's bytes.
        inputs: the places of the inputs.
        sparse: see `part_form`.
    """
    found: dict[int, PartRead] = {}
    in_full = _needed_whole(plan)
    for ref in _reached(plan, wanted)[0]:
        step = plan.steps[ref.node]
        part = None if ref.node in in_full else part_form(step, box, ref.index, sparse=sparse)
        for place, source in enumerate(step.sources):
            if not isinstance(source, GraphInput) or source.index not in inputs:
                continue
            layout = plan.graph.inputs[source.index].layout
            read = whole_box(layout.sizes)
            if part is not None and _is_read_as_it_lies(step, place, layout):
                read = part.reads[place]
            if math.prod(extents(read)) or not math.prod(layout.sizes):
                before = found.get(source.index)
                found[source.index] = PartRead(_around(before.box, read) if before else read, step)
    return found


def _around(one: Box, other: Box) -> Box:
    return tuple([(min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)])


def _is_read_as_it_lies(step: PlanStep, place: int, layout: Layout) -> bool:
    """Whether coordinates of an operand of a step are those of the tensor: it is neither repeated nor reshaped."""
    operand = step.operands[place]
    return operand.packed and operand.sizes == layout.sizes


# ---- computing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputPart:
    """An input, or the part of it that is there.

    Attributes:
        array: the elements.
        box: their coordinates.
        sizes: the sizes of the whole input.
    """

    array: NDArray[Any]
    box: Box
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout, block: memoryview) -> InputPart:
        """A whole input, from its bytes."""
        return cls(layout.view(block), whole_box(layout.sizes), layout.sizes)

    @property
    def is_whole(self) -> bool:
        """Whether all of the input is there."""
        return self.box == whole_box(self.sizes)

    def taken(self, box: Box) -> NDArray[Any]:
        """A box of the input, which lies in this part."""
        if not math.prod(extents(box)):
            return np.empty(extents(box), self.array.dtype)
        return self.array[indices(tuple([
            (start - low, stop - low) for (start, stop), (low, _) in zip(box, self.box, strict=True)
        ]))]  # fmt: skip


def _around_part(part: NDArray[Any], box: Box, seen: Box) -> NDArray[Any]:
    """An array of more coordinates than those of a part, of which only the pages of the part take memory."""
    size, flags = math.prod(extents(seen)) * part.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size, flags=flags | (_MAP_NORESERVE if sys.platform == "linux" else 0))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(memory, part.dtype).reshape(extents(seen))
    array[tuple([slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, seen, strict=True)])] = part
    return array


class GraphPart:
    """Computes boxes of a plan's outputs: element-wise steps and what they read box by box, what others read in full.

    Args:
        device: computes the steps.
        plan: the plan, of a graph or of one operator, with packed inputs.
        inputs: its inputs, or the parts of them that `parts_read` names.
        sparse: see `part_form`; only for a device that reads ordinary memory where it is.
    """

    def __init__(self, device: RunDevice, plan: Plan, inputs: Sequence[InputPart], *, sparse: bool = False) -> None:
        self._device, self._plan, self._inputs, self._sparse = device, plan, inputs, sparse
        self._constants = [slot.layout.view(memoryview(data)) for slot, data in plan.graph.constants]
        self._whole: dict[NodeOutput, NDArray[Any]] = {}
        self._parts: dict[NodeOutput, NDArray[Any]] = {}

    def compute(self, wanted: NodeOutput, box: Box) -> NDArray[Any]:
        """A box of an output of a step, which is one run of its bytes. Called once.

        Raises:
            InvalidDescriptor: an index is outside of its axis.
        """
        needed, last_readers = _reached(self._plan, wanted)
        in_full = _needed_whole(self._plan)
        for ref in needed:
            step = self._plan.steps[ref.node]
            if ref.node in in_full:
                if ref not in self._whole:
                    made = self._all_outputs(step)
                    self._whole |= {NodeOutput(ref.node, index): array for index, array in enumerate(made)}
            elif isinstance(step.form, Pointwise) or self._reads_parts(step):
                part = part_form(step, box, ref.index, sparse=self._sparse)
                assert part is not None, f"{step.name} reads whole inputs"
                self._parts[ref] = self._compute_part(step, part)
            else:
                self._parts[ref] = self._compute_box(step, ref.index, box, [*map(self._in_full, step.sources)])
            for source in [each for each in self._parts if last_readers.get(each) == ref]:
                del self._parts[source]
        return self._whole[wanted][indices(box)] if wanted.node in in_full else self._parts[wanted]

    def _reads_parts(self, step: PlanStep) -> bool:
        sources = [ref.index for ref in step.sources if isinstance(ref, GraphInput)]
        return not all(self._inputs[index].is_whole for index in sources)

    def _compute_part(self, step: PlanStep, part: PartForm) -> NDArray[Any]:
        return self._compute_box(part.step(step), 0, part.box, [*self._operands(step, part)])

    def _operands(self, step: PlanStep, part: PartForm) -> Iterator[NDArray[Any]]:
        """What a form of a part reads."""
        for source, layout, read, seen in zip(step.sources, step.operands, part.reads, part.seen, strict=True):
            if isinstance(source, NodeOutput) and source in self._parts:
                yield self._parts[source]  # which is this box
            elif isinstance(source, GraphInput) and not self._inputs[source.index].is_whole:
                taken = self._inputs[source.index].taken(read)
                yield taken if read == seen else _around_part(taken, read, seen)
            else:
                yield as_operand(np, self._in_full(source), layout)[indices(seen)]

    def _in_full(self, source: Ref) -> NDArray[Any]:
        """A tensor that is there as a whole."""
        match source:
            case GraphInput(index):
                assert self._inputs[index].is_whole, f"input {index} is there in part"
                return self._inputs[index].array
            case GraphConstant(index):
                return self._constants[index]
            case NodeOutput():
                return self._whole[source]

    def _all_outputs(self, step: PlanStep) -> list[NDArray[Any]]:
        operands = [*map(self._in_full, step.sources)]
        if step.form.computed_whole:
            given, uploaded = self._put(step, operands)
            made = [self._device.in_host_memory(each) for each in self._device.compute(step, given, uploaded)]
            self._release(uploaded)
            return made
        boxes = [whole_box(slot.layout.sizes) for slot in step.outputs]
        return [self._compute_box(step, output, box, operands) for output, box in enumerate(boxes)]

    def _compute_box(self, step: PlanStep, output: int, box: Box, operands: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """A box of an output of a step, from whole inputs."""
        if step.form.index_range is not None:
            step.check_indices(operands[step.form.index_range.input])
        layout = step.outputs[output].layout
        if not math.prod(extents(box)):
            return np.empty(extents(box), dtype_of(layout))
        given, uploaded = self._put(step, operands)
        own = replace(step)  # devices keep what they know of a step by its identity and where a slice begins
        block = self._device.compute_slice(own, given, uploaded, piece_of(layout, box, output), None)
        self._release(uploaded)
        return np.frombuffer(block, dtype_of(layout)).reshape(extents(box))

    def _put(self, step: PlanStep, operands: Sequence[NDArray[Any]]) -> tuple[list[Any], Any]:
        """The operands on the device, as the step reads them, and what `RunDevice.put` returned with them."""
        packed = [np.ascontiguousarray(each) for each in operands]
        layouts = [
            Layout.row_major(slot.layout.data_type, each.shape) for slot, each in zip(step.inputs, packed, strict=True)
        ]
        arrays, uploaded = self._device.put(layouts, [each.reshape(-1).view(np.uint8).data for each in packed])
        read = zip(arrays, step.operands, strict=True)
        return [as_operand(self._device.xp, array, layout) for array, layout in read], uploaded

    def _release(self, uploaded: Any) -> None:
        if uploaded is not None:
            self._device.release(uploaded)


def _reached(plan: Plan, wanted: NodeOutput) -> tuple[Sequence[NodeOutput], Mapping[NodeOutput, NodeOutput]]:
    """What an output depends on, and the output itself, in the order of the steps; the last that reads each of them."""
    found, waiting = set[NodeOutput](), [wanted]
    while waiting:
        if (ref := waiting.pop()) not in found:
            found.add(ref)
            waiting += [source for source in plan.steps[ref.node].sources if isinstance(source, NodeOutput)]
    in_order = sorted(found, key=lambda ref: (ref.node, ref.index))
    last = {
        source: ref for ref in in_order for source in plan.steps[ref.node].sources if isinstance(source, NodeOutput)
    }
    return in_order, last
