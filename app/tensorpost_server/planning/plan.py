"""Make the plan of a graph: layouts, byte counts, stages, slices and forms. Pure and cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, cast

from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph, GraphConstant, GraphInput, NodeOutput
from tensorpost.values.layout import Layout, last_index
from tensorpost.values.operation import Operation, Slot

from ..forms import Form, whole_box
from ..forms.axes import AxesForm
from ..forms.base import extents
from ..operators import device_form
from .biases import with_biases_apart
from .fusion import fused
from .lifetimes import Lifetimes, Stage, computed_in_full
from .partitions import in_one_partition, partitioned
from .slices import OutputSlices, SliceRange, Slices, cut
from .step import PlanStep
from .streaming import streamed, streams_of

SLICE_WORK = 1 << 26
"""Work of one slice, beyond which slices are cut smaller, so that several threads have some.

In elements that are added up, of which a core adds one in 0.1 to 2 ns. Nobody waits for a slice to end: on processors
it is computed in turns of `TURN_SECONDS`, by the clock, and the cut depends on no measurement, since sums and so the
last bits depend on it. One element of an output is never cut, however much it reads, up to `TENSORPOST_MAX_WORK`.
"""

BY_LIBRARY = " by "
"""Stands between an operator and its library in the kind of a plan."""
_MOST_KEPT_BYTES = 256 * 1024  # of the documents and constants of a graph whose plan is kept for the next call


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Plan:
    """Everything decided about a call before any tensor byte is read. It holds no arrays and no device handles.

    Attributes:
        graph: what the plan was made of.
        steps: its nodes in the order in which they are computed, fused where they can be.
        slices: how the outputs are cut, in the order of the answer's bytes.
        work: estimate of the elements that are read and combined, stages and slices together.
        held_bytes: memory that a run holds beside its inputs and the slices: the most that stages' outputs take at a
            time.
        scratch_bytes: memory that the CPU takes beside them for a part that is being computed.
        split_scratch_bytes: the same of parts of which several threads compute one each.
        stages: what is computed in full before the first slice: steps whose outputs other steps read, and those that
            compute all their outputs together.
        freed: tensors that nobody reads any more when the first slice begins.
        streamed: steps that are computed in boxes, as the slices of the step that reads them need it.
        output_sources: where a graph's outputs come from, by step.
        computed_before: what computed the parts of the call before it, as answers name it.
        is_graph: whether its nodes have names, and its outputs names of their own; else it is of one node alone.
        inputs: tensors to receive, in binding order, as the only node reads them, or packed.
        input_layouts: how a run sees each of them: as the only node reads it, or packed.
        outputs: tensors to send, in binding order.
        most_parts: parts of its largest stage, or its slices if there are more.
        input_bytes: bytes of all inputs together.
        constant_bytes: bytes of all constants together.
        kept_bytes: bytes of those constants that belong to a stored graph.
        output_bytes: bytes of all outputs together.
        streamed_bytes: bytes of the results of the streamed steps, if they were computed in full.
        libraries: what computes some of it on every backend, as ONNX Runtime.
        checked_inputs: inputs that hold indices, which are checked in host memory before a run starts.
        rounds_integers: whether it resamples integers, which functions of arrays round; fused loops compute floats.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    slices: Slices | OutputSlices | SliceRange
    work: int
    held_bytes: int = 0
    scratch_bytes: int = 0
    stages: tuple[Stage, ...] = ()
    freed: tuple[NodeOutput, ...] = ()
    output_sources: tuple[NodeOutput, ...] = ()
    streamed: frozenset[int] = frozenset()
    split_scratch_bytes: int = 0
    computed_before: tuple[str, ...] = ()
    is_graph: bool = field(init=False)
    inputs: tuple[Slot, ...] = field(init=False)
    input_layouts: tuple[Layout, ...] = field(init=False)
    outputs: tuple[Slot, ...] = field(init=False)
    most_parts: int = field(init=False)
    input_bytes: int = field(init=False)
    constant_bytes: int = field(init=False)
    kept_bytes: int = field(init=False)
    output_bytes: int = field(init=False)
    streamed_bytes: int = field(init=False)
    libraries: tuple[str, ...] = field(init=False)
    checked_inputs: frozenset[int] = field(init=False)
    rounds_integers: bool = field(init=False)

    def __post_init__(self) -> None:
        is_graph = bool(self.steps[0].name)
        inputs, layouts, outputs = self.steps[0].inputs, self.steps[0].operands, self.steps[0].outputs
        if is_graph:
            inputs, outputs = self.graph.inputs, self.graph.output_slots
            layouts = tuple([slot.layout for slot in inputs])
        checked = [
            step.sources[step.form.index_range.input] for step in self.steps if step.form.index_range is not None
        ]
        constants = self.graph.constants if is_graph else ()
        rounded = any(isinstance(step.form, AxesForm) and _is_integer(step.outputs[0]) for step in self.steps)
        follows = {
            "is_graph": is_graph,
            "rounds_integers": rounded,
            "inputs": inputs,
            "input_layouts": layouts,
            "outputs": outputs,
            "most_parts": max([len(self.slices), *[len(stage.slices) for stage in self.stages]]),
            "input_bytes": sum([slot.layout.size_in_bytes for slot in inputs]),
            "constant_bytes": sum([slot.layout.size_in_bytes for slot, _ in constants]),
            "kept_bytes": sum([len(data) for _, data in constants if isinstance(data, memoryview)]),
            "output_bytes": sum([slot.layout.size_in_bytes for slot in outputs]),
            "streamed_bytes": sum([self.steps[number].outputs[0].layout.size_in_bytes for number in self.streamed]),
            "libraries": tuple(dict.fromkeys([step.form.library for step in self.steps if step.form.library])),
            "checked_inputs": frozenset([ref.index for ref in checked if isinstance(ref, GraphInput)]),
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    @property
    def operation(self) -> Operation:
        """The operation of the only node."""
        return self.graph.operation

    @property
    def op_type(self) -> str:
        """The operator without its version; `graph` for a graph."""
        return "graph" if self.is_graph else self.operation.op_type

    @property
    def opset_version(self) -> int | None:
        """The version of an ONNX operator that is called alone; None of anything else."""
        return None if self.is_graph else self.operation.opset_version

    def check_indices(self, inputs: Sequence[object]) -> None:
        """Refuse indices outside of their axis; called once, before the plan is run on these inputs.

        Args:
            inputs: bytes of the plan's inputs, in binding order; only those of the indices are read, in host memory.

        Raises:
            InvalidDescriptor: an index is outside.
        """
        for step in self.steps:
            if (found := step.form.index_range) is None:
                continue
            source, operand = step.sources[found.input], step.operands[found.input]
            if isinstance(source, GraphInput):
                step.check_indices(operand.view(cast("memoryview", inputs[source.index])))
            elif isinstance(source, GraphConstant):
                step.check_indices(operand.view(self.graph.constants[source.index][1]))

    @property
    def cost_kind(self) -> str:
        """Plans of one kind share what an element costs: those of an operator, but for resampling of integers.

        Those of which a library computes a part are a kind of their own: an element of a convolution costs it little.
        """
        kind = f"{self.operator} of integers" if self.rounds_integers else self.operator
        return f"{kind}{BY_LIBRARY}{'+'.join(self.libraries)}" if self.libraries else kind

    @property
    def operator(self) -> str:
        """The operator's short name, for instance `TILE`; `graph` for a graph."""
        return "graph" if self.is_graph else self.operation.name


def _is_integer(slot: Slot) -> bool:
    return slot.layout.data_type.dtype.kind in "iu"


class _PlanKey:
    """Cache key of a graph: its documents, in which 0.0 and -0.0 differ, because their results do, and their edges."""

    __slots__ = ("graph", "parts", "size_in_bytes")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        documents = tuple([node.operation.to_document_text() for node in graph.nodes])
        self.parts: tuple[object, ...] = documents
        self.size_in_bytes = sum([len(text) for text in documents]) + sum([len(data) for _, data in graph.constants])
        if graph.output_names:
            edges = tuple([(node.name, node.inputs) for node in graph.nodes])
            # A view of what a stored graph keeps is compared by identity: its memory may have no hash.
            constants = [(slot, data if isinstance(data, bytes) else id(data)) for slot, data in graph.constants]
            self.parts = (documents, edges, graph.inputs, graph.outputs, tuple(constants), graph.output_names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlanKey) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


def make_device_plan(graph: Graph | Operation, slice_bytes: int) -> Plan | None:
    """The plan of a device for what a library computes on processors; None if it has a node that no device computes.

    Args:
        graph: see `make_plan`.
        slice_bytes: see `make_plan`.
    """
    graph = graph if isinstance(graph, Graph) else Graph.of(graph)
    found: list[Form] = []
    for node in graph.nodes:
        form = device_form(node.operation)
        if form is None:
            return None
        found.append(form)
    steps = tuple([PlanStep.of(node, form) for node, form in zip(graph.nodes, found, strict=True)])
    sources = graph.outputs
    if len(steps) > 1:
        steps, sources = fused(*with_biases_apart(steps, sources))
    return _planned(graph, steps, sources, slice_bytes)


def make_plan(graph: Graph | Operation, slice_bytes: int, *, by_onnx_runtime: bool = False) -> Plan:
    """Decide everything about one call.

    Args:
        graph: a graph, or the operation of a graph of one node, whose own rules hold already.
        slice_bytes: the most bytes of output made at a time.
        by_onnx_runtime: whether ONNX Runtime computes all of the graph, whose nodes have names, in one step.

    Raises:
        InvalidParameter: ONNX Runtime shall compute it, and it has a node that is none of ONNX's.
        NoBackend: ONNX Runtime computes some of it, and is not installed.
    """
    key = _PlanKey(graph if isinstance(graph, Graph) else Graph.of(graph))
    # What a stored graph keeps is freed with the graph; its planned calls are in the call cache, which knows when.
    is_kept = any(isinstance(data, memoryview) for _, data in key.graph.constants)
    is_large = is_kept or key.size_in_bytes > _MOST_KEPT_BYTES
    return (_make_plan.__wrapped__ if is_large else _make_plan)(key, slice_bytes, by_onnx_runtime)


@lru_cache(maxsize=1024)
def _make_plan(key: _PlanKey, slice_bytes: int, by_onnx_runtime: bool) -> Plan:
    graph = key.graph
    steps, sources = tuple([PlanStep.of(node) for node in graph.nodes]), graph.outputs
    if by_onnx_runtime:
        steps, sources = in_one_partition(graph, steps)
    elif len(steps) > 1:
        steps, sources = fused(*partitioned(graph, steps))
    return _planned(graph, steps, sources, slice_bytes)


def _planned(graph: Graph, steps: tuple[PlanStep, ...], sources: tuple[NodeOutput, ...], slice_bytes: int) -> Plan:
    """The plan of these steps, of which those after each other are fused."""
    in_boxes = streamed(steps, sources, slice_bytes) if len(steps) > 1 else frozenset[int]()
    in_full = computed_in_full(steps, sources, in_boxes)
    lifetimes = Lifetimes(steps, sources, in_full)
    stages: list[Stage] = []
    scratch = split_scratch = 0
    for place, number in enumerate(in_full):
        step = steps[number]
        if step.form.computed_whole:
            slices: Slices | OutputSlices = _ONE_PART
            boxes = [whole_box(slot.layout.sizes) for slot in step.outputs]
            work = sum([step.form.work(box, output) for output, box in enumerate(boxes)])
            scratch = max(scratch, *[step.form.scratch_bytes(box, output) for output, box in enumerate(boxes)])
        else:
            parts = [_cut_step(step, output, slice_bytes) for output in range(len(step.outputs))]
            slices = _joined([part.slices for part in parts])
            work = sum([part.work for part in parts])
            split_scratch = max(split_scratch, *[part.scratch for part in parts])
        stages.append(Stage(number, slices, lifetimes.freed_before(place), work, lifetimes.checked(number)))
    cuts: list[Slices] = []
    work = sum([stage.work for stage in stages])
    for index, ref in enumerate(sources):
        step = steps[ref.node]
        if ref.node in in_full:
            cuts.append(cut(step.outputs[ref.index].layout, slice_bytes, index))
        else:
            part = _cut_step(step, ref.index, slice_bytes, index, streams_of(steps, ref.node, in_boxes))
            cuts.append(part.slices)
            work, split_scratch = work + part.work, max(split_scratch, part.scratch)
    freed = lifetimes.freed_before(len(in_full))
    slices, held = _joined(cuts), lifetimes.most_bytes
    scratch = max(scratch, split_scratch)
    return Plan(graph, steps, slices, work, held, scratch, tuple(stages), freed, sources, in_boxes, split_scratch)


_ONE_PART = cut(Layout.row_major(data_type("uint8"), (1,)), 1)
"""The slices of a stage of one part."""


class _CutOutput(NamedTuple):
    """An output that is computed in slices: the slices, their work, and the scratch memory of one."""

    slices: Slices
    work: int
    scratch: int


def _cut_step(
    step: PlanStep, output: int, slice_bytes: int, number: int | None = None, streams: Sequence[PlanStep] = ()
) -> _CutOutput:
    """Cut an output of a step.

    Args:
        step: the step.
        output: which output of the step.
        slice_bytes: the most bytes of a slice.
        number: the output's number in the slices; default that of the step.
        streams: the steps that are computed in boxes, as the slices need it.
    """
    layout, form = step.outputs[output].layout, step.form
    read = form.work(whole_box(layout.sizes), output)
    before = [(each.form, whole_box(each.outputs[0].layout.sizes)) for each in streams]
    weight = form.cut_weight * read + sum([other.cut_weight * other.work(box) for other, box in before])
    least = max(SLICE_WORK, form.least_slice_work)
    slices = _cut(layout, slice_bytes, weight, least, output if number is None else number)
    work = scratch = 0
    if count := slices.count:
        first = slices.piece(0).box
        scratch = form.scratch_bytes(first, output)
        work = count * form.work(first, output) if form.reads_again else read
        elements = math.prod(extents(slices.piece(count - 1).box))  # as many as any slice has; no box has more
        for each, (other, box) in zip(streams, before, strict=True):
            made = each.outputs[0].layout
            part = Layout.row_major(made.data_type, (min(elements, math.prod(made.sizes)),))
            scratch += part.size_in_bytes
            work += other.work(box)
    return _CutOutput(slices, work, scratch)


def _joined(cuts: Sequence[Slices]) -> Slices | OutputSlices:
    return cuts[0] if len(cuts) == 1 else OutputSlices(tuple(cuts))


def _cut(layout: Layout, slice_bytes: int, work: int, most: int, output: int) -> Slices:
    """The slices of an output, made smaller where one would exceed the most work."""
    slices = cut(layout, slice_bytes, output)
    elements = math.prod(layout.sizes)
    if work <= most or not elements:
        return slices
    # The last slice is as large as any.
    extents = [stop - start for start, stop in slices.piece(len(slices) - 1).box]
    span = (last_index(extents, layout.strides) + 1) * layout.data_type.item_size
    held, wanted = math.prod(extents), most * elements // work
    return slices if held <= wanted else cut(layout, max(1, span * wanted // held), output)
