"""Biases of convolutions as steps of their own, which then are fused with the element-wise steps that follow.

On a device a bias, a batch normalisation and an activation are one pass over what a convolution made, instead of one
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorpost.values.graph import NodeOutput, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

from ..forms.convolutions import Convolution, convolution_of
from ..operators import bias_form
from .step import PlanStep


def with_biases_apart(
    steps: Sequence[PlanStep], outputs: Sequence[NodeOutput]
) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The steps with each bias of a convolution after it, and where the graph's outputs come from then.

    Args:
        steps: a step for each node.
        outputs: where the outputs come from.
    """
    places: dict[int, int] = {}  # of what the steps made, in the new order
    found: list[PlanStep] = []

    def moved(ref: Ref) -> Ref:
        return NodeOutput(places[ref.node], ref.index) if isinstance(ref, NodeOutput) else ref

    for number, step in enumerate(steps):
        sources = tuple([moved(ref) for ref in step.sources])
        form, made = convolution_of(step.form), step.outputs[0]
        kind = made.layout.data_type
        if form is None or isinstance(step.form, Convolution):
            found.append(PlanStep(step.form, sources, step.inputs, step.outputs, step.name))
        else:
            found.append(PlanStep(form, sources[:2], step.inputs[:2], step.outputs, step.name))
            added = bias_form(form.sizes, kind.numpy_name)
            slots = [Slot(made.name, Layout.row_major(kind, sizes)) for sizes in added.input_sizes]
            product = NodeOutput(len(found) - 1, 0)
            found.append(PlanStep(added, (product, sources[2]), tuple(slots), step.outputs, step.name))
        places[number] = len(found) - 1
    return tuple(found), tuple([replace(ref, node=places[ref.node]) for ref in outputs])
