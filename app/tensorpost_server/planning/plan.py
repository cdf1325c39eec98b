"""Make the plan of an operation: layouts, byte counts, slices and the form. Pure and cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tensorpost.layout import Layout, last_index
from tensorpost.operation import Operation, Slot

from ..forms import Array, AxesForm, BoxFunction, Copies, Form, IndexRange, Lines, Pointwise, whole_box
from ..operators import form_of
from .slices import OutputSlices, Slices, cut

__all__ = ["Plan", "make_plan"]

SLICE_WORK = 1 << 26
"""Work of one slice, beyond which slices are cut smaller, so that several threads have some.

In elements that are added up, of which a core adds one in 0.1 to 2 ns. Nobody waits for a slice to end: on processors
it is computed in turns of `TURN_SECONDS`, by the clock, and the cut depends on no measurement, since sums and so the
last bits depend on it. One element of an output is never cut, however much it reads, up to `TENSORPOST_MAX_WORK`.
"""

WEIGHTED_WORK = 8
"""Factor of an element's work where its weight is computed too, for wide filters and gradients: 4 to 40 ns each."""

REDUCED_AT_ONCE = 1 << 21
"""Elements that a slice of a reduction reads: with its small output in one slice, only one core would compute."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided about one operation before any tensor byte is read. It holds no arrays and no device handles.

    Attributes:
        operation: the descriptor or node that the plan was made of.
        form: computes the outputs.
        inputs: tensors to receive, in binding order, as the form reads them.
        outputs: tensors to send, in binding order.
        slices: how the outputs are cut, in the order of the answer's bytes.
        work: estimate of the elements that are read and combined, all slices together.
        held_bytes: memory that a run holds beside its inputs and the slices: whole outputs, where they are computed
            together.
        scratch_bytes: memory that the CPU takes beside them for each slice that is being computed.
        operands: how the form reads each input: as it lies, or broadcast to the output's sizes.
        input_bytes: bytes of all inputs together.
        output_bytes: bytes of all outputs together.
    """

    operation: Operation
    form: Form
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    slices: Slices | OutputSlices
    work: int
    held_bytes: int = 0
    scratch_bytes: int = 0
    operands: tuple[Layout, ...] = field(init=False)
    input_bytes: int = field(init=False)
    output_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        operands = tuple([slot.layout for slot in self.inputs])
        if isinstance(self.form, Pointwise):
            operands = tuple([layout.broadcast(self.outputs[0].layout.sizes) for layout in operands])
        object.__setattr__(self, "operands", operands)
        object.__setattr__(self, "input_bytes", sum([slot.layout.size_in_bytes for slot in self.inputs]))
        object.__setattr__(self, "output_bytes", sum([slot.layout.size_in_bytes for slot in self.outputs]))

    @property
    def index_range(self) -> IndexRange | None:
        """What the elements of an input must lie in (ONNX's indices); None if any are allowed."""
        return self.form.index_range if isinstance(self.form, (Array, BoxFunction)) else None

    def check_indices(self, inputs: Sequence[memoryview]) -> None:
        """Refuse indices outside of their axis; called once, before the plan is run on these inputs.

        Args:
            inputs: bytes of the plan's inputs, in binding order; only those of the indices are read.

        Raises:
            InvalidDescriptor: an index is outside.
        """
        if (found := self.index_range) is not None:
            found.check(self.operands[found.input].view(inputs[found.input]))

    @property
    def library(self) -> str:
        """The library that computes the plan on every backend, as ONNX Runtime; empty if the backend computes it."""
        return self.form.library if isinstance(self.form, Array) else ""

    @property
    def operator(self) -> str:
        """The operator's short name, for instance `TILE`."""
        return self.operation.name


class _PlanKey:
    """Cache key of an operation: its document, in which 0.0 and -0.0 differ, because their results do."""

    __slots__ = ("document", "operation")

    def __init__(self, operation: Operation) -> None:
        self.operation, self.document = operation, operation.to_document_text()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlanKey) and self.document == other.document

    def __hash__(self) -> int:
        return hash(self.document)


def make_plan(operation: Operation, slice_bytes: int) -> Plan:
    """Decide everything about one operator call.

    Args:
        operation: a descriptor or a node; its own rules hold already.
        slice_bytes: the most bytes of output made at a time.
    """
    return _make_plan(_PlanKey(operation), slice_bytes)


@lru_cache(maxsize=1024)
def _make_plan(key: _PlanKey, slice_bytes: int) -> Plan:
    operation = key.operation
    form, outputs = form_of(operation), operation.outputs
    inputs = _read_inputs(form, operation.inputs)
    cuts: list[Slices] = []
    work = held = scratch = 0
    weight = WEIGHTED_WORK if isinstance(form, AxesForm) else 1
    for index, slot in enumerate(outputs):
        layout = slot.layout
        read = form.work(whole_box(layout.sizes), index)
        if form.computed_whole:
            slices = cut(layout, slice_bytes, index)
            held += math.prod(layout.sizes) * layout.data_type.item_size
        else:
            cut_weight = SLICE_WORK // REDUCED_AT_ONCE if _reduces(form) else weight
            slices = _cut(layout, slice_bytes, cut_weight * read, index)
        if count := slices.count:
            first = slices.piece(0).box
            scratch = max(scratch, form.scratch_bytes(first, index))
            # What lines and products read is read again for every slice.
            work += count * form.work(first, index) if isinstance(form, (Lines, BoxFunction)) else read
        cuts.append(slices)
    all_slices = cuts[0] if len(cuts) == 1 else OutputSlices(tuple(cuts))
    return Plan(operation, form, inputs, outputs, all_slices, work, held, scratch)


def _reduces(form: Form) -> bool:
    """Whether every input element is read for one output element only, so that smaller slices read no more."""
    return isinstance(form, Lines) and all(sizes[axis] == 1 for sizes in form.outputs for axis in form.axes)


def _read_inputs(form: Form, inputs: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """The inputs with the sizes that the form reads them with; see `Pointwise.input_sizes` and `Copies.input_sizes`.

    The sizes have no entry for an input that the form does not read, such as the shape of Reshape; nor has the plan.
    """
    if not isinstance(form, (Pointwise, Copies)) or not form.input_sizes:
        return inputs
    layouts = [
        Layout.row_major(slot.layout.data_type, sizes) for slot, sizes in zip(inputs, form.input_sizes, strict=False)
    ]
    return tuple([Slot(slot.name, layout) for slot, layout in zip(inputs, layouts, strict=False)])


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
