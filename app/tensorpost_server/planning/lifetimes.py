"""Which steps of a plan are stages, computed in full before the first slice, and how long their outputs are needed."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

from tensorpost.values.graph import NodeOutput

from .slices import OutputSlices, Slices
from .step import PlanStep


@dataclass(frozen=True, slots=True)
class Stage:
    """A step whose outputs are computed in full, before the next stage begins.

    Attributes:
        step: the step's place in `Plan.steps`.
        slices: the parts that processors compute it in; one part if it computes its outputs together.
        freed: tensors that nobody reads any more when it begins.
        work: estimate of the elements that are read and combined, all parts together.
        checked: steps that read indices of these outputs, each with the output; they are checked at the end.
    """

    step: int
    slices: Slices | OutputSlices
    freed: tuple[NodeOutput, ...]
    work: int
    checked: tuple[tuple[int, int], ...] = ()


def computed_in_full(
    steps: Sequence[PlanStep], outputs: Sequence[NodeOutput], streamed: Container[int] = ()
) -> tuple[int, ...]:
    """The places of the steps that are stages: others read them, they are sent twice, or they compute all at once.

    Args:
        steps: the plan's steps.
        outputs: where the graph's outputs come from.
        streamed: the steps that are computed in boxes with the step that reads them.
    """
    read = {source.node for step in steps for source in step.sources if isinstance(source, NodeOutput)}
    twice = {ref.node for at, ref in enumerate(outputs) if ref in outputs[:at]}
    whole = {number for number, step in enumerate(steps) if step.form.computed_whole}
    return tuple(sorted([number for number in read | twice | whole if number not in streamed]))


class Lifetimes:
    """How long the outputs of stages are needed.

    Args:
        steps: the plan's steps.
        outputs: where the graph's outputs come from.
        in_full: the steps that are stages, in order.

    Attributes:
        most_bytes: the most bytes that they take at a time.
    """

    def __init__(self, steps: Sequence[PlanStep], outputs: Sequence[NodeOutput], in_full: Sequence[int]) -> None:
        self._steps = steps
        last: dict[NodeOutput, int] = {}  # the stage that reads it last; the number of stages for slices and outputs
        places = {number: place for place, number in enumerate(in_full)}
        for number, step in enumerate(steps):
            for source in step.sources:
                if isinstance(source, NodeOutput):
                    last[source] = max(last.get(source, -1), places.get(number, len(in_full)))
        for ref in outputs:
            last[ref] = len(in_full)
        self._freed: dict[int, list[NodeOutput]] = {}
        live = self.most_bytes = 0
        for place, number in enumerate(in_full):
            for ref in self._freed.get(place, []):
                live -= _bytes_of(steps, ref)
            for index in range(len(steps[number].outputs)):
                ref = NodeOutput(number, index)
                live += _bytes_of(steps, ref)
                self._freed.setdefault(last.get(ref, place) + 1, []).append(ref)
            self.most_bytes = max(self.most_bytes, live)

    def freed_before(self, place: int) -> tuple[NodeOutput, ...]:
        """What is freed when a stage begins, by its place; the number of stages is the place of the slices."""
        return tuple(self._freed.get(place, ()))

    def checked(self, number: int) -> tuple[tuple[int, int], ...]:
        """The steps that read indices from a step, each with the output of it."""
        found: list[tuple[int, int]] = []
        for reader, step in enumerate(self._steps):
            if step.form.index_range is not None:
                source = step.sources[step.form.index_range.input]
                if isinstance(source, NodeOutput) and source.node == number:
                    found.append((reader, source.index))
        return tuple(found)


def _bytes_of(steps: Sequence[PlanStep], ref: NodeOutput) -> int:
    layout = steps[ref.node].outputs[ref.index].layout
    return math.prod(layout.sizes) * layout.data_type.item_size
