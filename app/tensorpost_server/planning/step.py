"""`PlanStep`: a node of the graph as it is computed, or several that were fused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tensorpost.values.graph import Node, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot
from tensorpost.values.problems import InvalidDescriptor

from ..forms import Form
from ..operators import form_of


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One node of the graph, as it is computed.

    Attributes:
        form: computes the outputs.
        sources: where each input comes from.
        inputs: the inputs, as the form reads them.
        outputs: the outputs.
        name: the node's name; empty in the graph of one node.
        operands: how the form reads each input: as it lies, or broadcast to the output's sizes.
    """

    form: Form
    sources: tuple[Ref, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    name: str = ""
    operands: tuple[Layout, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = self.outputs[0].layout.sizes
        operands = tuple([self.form.operand(slot.layout, sizes) for slot in self.inputs])
        object.__setattr__(self, "operands", operands)

    @classmethod
    def of(cls, node: Node, form: Form | None = None) -> PlanStep:
        """The step of a node, without inputs that the form does not read, such as the shape of Reshape.

        Args:
            node: the node.
            form: computes it; default the form of its operation.
        """
        form, inputs = form or form_of(node.operation), node.operation.inputs
        if form.input_sizes:
            inputs = tuple([
                Slot(slot.name, Layout.row_major(slot.layout.data_type, sizes))
                for slot, sizes in zip(inputs, form.input_sizes, strict=False)
            ])  # fmt: skip
        return cls(form, node.inputs[: len(inputs)], inputs, node.operation.outputs, node.name)

    def check_indices(self, indices: Any) -> None:
        """Refuse indices outside of their axis.

        Args:
            indices: the array of the input that holds them.

        Raises:
            InvalidDescriptor: one is outside.
        """
        assert self.form.index_range is not None
        try:
            self.form.index_range.check(indices)
        except InvalidDescriptor as error:
            if not self.name:
                raise
            found = [replace(each, message=f"node {self.name!r}: {each.message}") for each in error.violations]
            raise InvalidDescriptor.of(found) from None
