"""Make the plan of an operation: layouts, byte counts, slices and the form. Pure and cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from tensorpost.values.graph import Graph, Node, Ref
from tensorpost.values.layout import Layout, last_index
from tensorpost.values.operation import Operation, Slot

from ..forms import Form, whole_box
from ..operators import form_of
from .slices import OutputSlices, Slices, cut

SLICE_WORK = 1 << 26
"""Work of one slice, beyond which slices are cut smaller, so that several threads have some.

In elements that are added up, of which a core adds one in 0.1 to 2 ns. Nobody waits for a slice to end: on processors
it is computed in turns of `TURN_SECONDS`, by the clock, and the cut depends on no measurement, since sums and so the
last bits depend on it. One element of an output is never cut, however much it reads, up to `TENSORPOST_MAX_WORK`.
"""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One node of the graph, as it is computed.

    Attributes:
        form: computes the outputs.
        sources: where each input comes from.
        inputs: the inputs, as the form reads them.
        outputs: the outputs.
    """

    form: Form
    sources: tuple[Ref, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]

    @classmethod
    def of(cls, node: Node) -> PlanStep:
        """The step of a node, without inputs that the form does not read, such as the shape of Reshape."""
        form, inputs = form_of(node.operation), node.operation.inputs
        if form.input_sizes:
            inputs = tuple([
                Slot(slot.name, Layout.row_major(slot.layout.data_type, sizes))
                for slot, sizes in zip(inputs, form.input_sizes, strict=False)
            ])  # fmt: skip
        return cls(form, node.inputs[: len(inputs)], inputs, node.operation.outputs)

    @property
    def operands(self) -> tuple[Layout, ...]:
        """How the form reads each input: as it lies, or broadcast to the output's sizes."""
        sizes = self.outputs[0].layout.sizes
        return tuple([self.form.operand(slot.layout, sizes) for slot in self.inputs])


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided about a call before any tensor byte is read. It holds no arrays and no device handles.

    Attributes:
        graph: what the plan was made of.
        steps: its nodes in the order in which they are computed.
        slices: how the outputs are cut, in the order of the answer's bytes.
        work: estimate of the elements that are read and combined, all slices together.
        held_bytes: memory that a run holds beside its inputs and the slices: whole outputs, where they are computed
            together.
        scratch_bytes: memory that the CPU takes beside them for each slice that is being computed.
        form: the form of the only step.
        inputs: tensors to receive, in binding order, as the form reads them.
        outputs: tensors to send, in binding order.
        operands: how the form reads each input: as it lies, or broadcast to the output's sizes.
        input_bytes: bytes of all inputs together.
        output_bytes: bytes of all outputs together.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    slices: Slices | OutputSlices
    work: int
    held_bytes: int = 0
    scratch_bytes: int = 0
    form: Form = field(init=False)
    inputs: tuple[Slot, ...] = field(init=False)
    outputs: tuple[Slot, ...] = field(init=False)
    operands: tuple[Layout, ...] = field(init=False)
    input_bytes: int = field(init=False)
    output_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        (step,) = self.steps
        follows = {
            "form": step.form,
            "inputs": step.inputs,
            "outputs": step.outputs,
            "operands": step.operands,
            "input_bytes": sum([slot.layout.size_in_bytes for slot in step.inputs]),
            "output_bytes": sum([slot.layout.size_in_bytes for slot in step.outputs]),
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    @property
    def operation(self) -> Operation:
        """The operation of the only node."""
        return self.graph.operation

    def check_indices(self, inputs: Sequence[object]) -> None:
        """Refuse indices outside of their axis; called once, before the plan is run on these inputs.

        Args:
            inputs: bytes of the plan's inputs, in binding order; only those of the indices are read, in host memory.

        Raises:
            InvalidDescriptor: an index is outside.
        """
        if (found := self.form.index_range) is not None:
            found.check(self.operands[found.input].view(cast("memoryview", inputs[found.input])))

    @property
    def operator(self) -> str:
        """The operator's short name, for instance `TILE`."""
        return self.operation.name


class _PlanKey:
    """Cache key of a graph: its documents, in which 0.0 and -0.0 differ, because their results do."""

    __slots__ = ("documents", "graph")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.documents = tuple([node.operation.to_document_text() for node in graph.nodes])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlanKey) and self.documents == other.documents

    def __hash__(self) -> int:
        return hash(self.documents)


def make_plan(graph: Graph | Operation, slice_bytes: int) -> Plan:
    """Decide everything about one call.

    Args:
        graph: a graph of one node, or its operation, whose own rules hold already.
        slice_bytes: the most bytes of output made at a time.
    """
    return _make_plan(_PlanKey(graph if isinstance(graph, Graph) else Graph.of(graph)), slice_bytes)


@lru_cache(maxsize=1024)
def _make_plan(key: _PlanKey, slice_bytes: int) -> Plan:
    steps = tuple([PlanStep.of(node) for node in key.graph.nodes])
    (step,) = steps  # what lies between several is not planned yet
    form = step.form
    cuts: list[Slices] = []
    work = held = scratch = 0
    for index, slot in enumerate(step.outputs):
        layout = slot.layout
        read = form.work(whole_box(layout.sizes), index)
        if form.computed_whole:
            slices = cut(layout, slice_bytes, index)
            held += math.prod(layout.sizes) * layout.data_type.item_size
        else:
            slices = _cut(layout, slice_bytes, form.cut_weight * read, index)
        if count := slices.count:
            first = slices.piece(0).box
            scratch = max(scratch, form.scratch_bytes(first, index))
            work += count * form.work(first, index) if form.reads_again else read
        cuts.append(slices)
    all_slices = cuts[0] if len(cuts) == 1 else OutputSlices(tuple(cuts))
    return Plan(key.graph, steps, all_slices, work, held, scratch)


def _cut(layout: Layout, slice_bytes: int, work: int, output: int) -> Slices:
    """The slices of an output, made smaller where one would exceed SLICE_WORK."""
    slices = cut(layout, slice_bytes, output)
    elements = math.prod(layout.sizes)
    if work <= SLICE_WORK or not elements:
        return slices
    # The last slice is as large as any.
    extents = [stop - start for start, stop in slices.piece(len(slices) - 1).box]
    span = (last_index(extents, layout.strides) + 1) * layout.data_type.item_size
    held, wanted = math.prod(extents), SLICE_WORK * elements // work
    return slices if held <= wanted else cut(layout, max(1, span * wanted // held), output)
