"""Fusion: element-wise steps one after the other become one step, whose intermediate results stay in registers.

A fused step gives the bytes that its parts give one after another, on every backend. So only what all backends compute
in float32 is fused, function by function with a result of float32 after each: expressions of functions that have
compiled loops, and conversions of float16 and 8-bit integers before them, or before a filter that sums many elements
(a photograph made smaller). What is read by several steps is computed once, and is not fused.

An expression in float32 and the reduction that reads it are one step, whose lines are reduced while they are in the
cache. A step that reads a tensor twice, such as `x * x`, reads it once.

Copies of copies are one step, unless the second repeats elements: they would be taken apart for every repeat. A copy
that only gives a tensor other sizes, as Reshape does, is no step: its readers read what it reads.

An element-wise step that follows copies which repeat elements, as Tile does, comes before them: it has fewer elements
then, and the copies are sent while they are made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensorpost.values.graph import NodeOutput, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

from ..forms import Copies, FusedLines, Lines, Pointwise, SqueezedLines
from ..forms.expression import FUNCTIONS, Expression, FunctionCall, NumbaLoop, Operand, is_boolean
from ..forms.onnx_resize import OnnxResize
from ..forms.separable import Rounding, Separable
from .step import PlanStep

MOST_OPERANDS = 8  # of a kernel of CUDA
MOST_FUNCTIONS = 40
MOST_VALUES = 64
"""Functions, and those together with operands and constants, of a fused expression: a register of the numba backend for
each. What stands several times in it counts each time."""
MOST_BLENDED = 4
"""Taps of an axis that CUDA's blending kernels sum, both axes at once."""
_READ = frozenset({"float32", "float16", "uint8", "int8"})


def fused(
    steps: Sequence[PlanStep], outputs: Sequence[NodeOutput]
) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The steps, fused where they can be, and where the graph's outputs come from then.

    Args:
        steps: the steps, in the order in which they are computed.
        outputs: where the outputs come from.
    """
    steps, outputs = _without_reshapes(steps, outputs)
    steps = [_reading_once(step) for step in steps]
    readers = Counter([source.node for step in steps for source in step.sources if isinstance(source, NodeOutput)])
    readers.update([ref.node for ref in outputs for _ in range(2)])  # what is sent is never an intermediate result
    made, gone = list(steps), set[int]()
    readers.update([node for step in steps for node in _seen_otherwise(step, steps)])  # by strides, or as another type
    for number, step in enumerate(made):
        for place, source in enumerate(step.sources):
            if isinstance(source, NodeOutput) and readers[source.node] == 1:
                swapped = _swapped(source.node, made[source.node], step, place)
                if swapped is not None:
                    made[source.node], made[number] = swapped
                    break
    for number, step in enumerate([*made]):
        joined: PlanStep | None = step
        while joined is not None:
            made[number] = joined
            joined = None
            for place, source in enumerate(made[number].sources):
                if isinstance(source, NodeOutput) and readers[source.node] == 1:
                    first, second = made[source.node], made[number]
                    joined = _joined(first, second, place) or _summed(first, second) or _composed(first, second, place)
                    if joined is not None:
                        gone.add(source.node)
                        break
    for number, step in enumerate([*made]):
        for source in step.sources:
            if number not in gone and isinstance(source, NodeOutput) and readers[source.node] == 1:
                joined = _reduced(made[source.node], step)
                if joined is not None:
                    made[number] = joined
                    gone.add(source.node)
    return _without(gone, made, outputs)


def _without(
    gone: Container[int], steps: Sequence[PlanStep], outputs: Sequence[NodeOutput]
) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The other steps, and where the outputs come from then."""
    kept = [number for number in range(len(steps)) if number not in gone]
    places = {number: place for place, number in enumerate(kept)}

    def moved(ref: NodeOutput) -> NodeOutput:
        return NodeOutput(places[ref.node], ref.index)

    found: list[PlanStep] = []
    for number in kept:
        step = steps[number]
        sources = tuple([moved(source) if isinstance(source, NodeOutput) else source for source in step.sources])
        found.append(step if sources == step.sources else replace(step, sources=sources))
    return tuple(found), tuple([moved(ref) for ref in outputs])


def _without_reshapes(
    steps: Sequence[PlanStep], outputs: Sequence[NodeOutput]
) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The steps without copies in the same order, such as Reshape: their readers read what they read."""
    instead: dict[NodeOutput, Ref] = {}
    found: list[PlanStep] = []
    for number, step in enumerate(steps):
        sources = tuple([instead.get(ref, ref) if isinstance(ref, NodeOutput) else ref for ref in step.sources])
        found.append(step if sources == step.sources else replace(step, sources=sources))
        if isinstance(step.form, Copies) and len(step.inputs) == len(step.outputs) == 1:
            read, made = step.inputs[0].layout, step.outputs[0].layout
            if read.packed and made.packed and read.sizes == made.sizes and step.form.keeps_order(read.sizes):
                instead[NodeOutput(number, 0)] = sources[0]

    def sent_instead(ref: NodeOutput) -> NodeOutput:
        other = instead.get(ref)
        if not isinstance(other, NodeOutput):
            return ref
        layout = steps[other.node].outputs[other.index].layout
        return other if layout == steps[ref.node].outputs[0].layout else ref

    sent = [sent_instead(ref) for ref in outputs]
    return _without({ref.node for ref in instead if ref not in sent}, found, sent)


def _reading_once(step: PlanStep) -> PlanStep:
    """The step, where an expression that reads a tensor as several operands, as `x * x` does, has one for them."""
    if not isinstance(step.form, Pointwise):
        return step
    operands = [*zip(step.sources, step.inputs, step.form.types, strict=True)]
    keys = [(source, slot.layout, name) for source, slot, name in operands]
    kept = [place for place, key in enumerate(keys) if key not in keys[:place]]
    if len(kept) == len(keys):
        return step
    places = [kept.index(keys.index(key)) for key in keys]
    form = replace(
        step.form,
        expression=_with_operands(step.form.expression, places),
        types=tuple([step.form.types[place] for place in kept]),
        input_sizes=(),
    )
    sources, inputs = [tuple([side[place] for place in kept]) for side in (step.sources, step.inputs)]
    return replace(step, form=form, sources=sources, inputs=inputs)


def _seen_otherwise(step: PlanStep, steps: Sequence[PlanStep]) -> Iterator[int]:
    """The steps whose outputs this one reads by a layout of its own, not by theirs."""
    for source, slot in zip(step.sources, step.inputs, strict=True):
        if isinstance(source, NodeOutput):
            made = steps[source.node].outputs[source.index].layout
            if not slot.layout.packed or slot.layout.data_type is not made.data_type:
                yield source.node


def _swapped(number: int, copies: PlanStep, second: PlanStep, place: int) -> tuple[PlanStep, PlanStep] | None:
    """Both in the other order, the element-wise step first; None if that is another result, or no gain.

    Args:
        number: the place of the copies among the steps.
        copies: the step whose only reader is the second one.
        second: reads it once.
        place: which input of the second step it is.
    """
    a, b = copies.form, second.form
    if not isinstance(a, Copies) or not isinstance(b, Pointwise) or len(copies.inputs) != 1 or len(copies.outputs) != 1:
        return None
    source, made = copies.inputs[0].layout, copies.outputs[0].layout
    others = [
        (slot.layout.sizes, ref)
        for at, (slot, ref) in enumerate(zip(second.inputs, second.sources, strict=True))
        if at != place
    ]
    is_one = all(math.prod(sizes) == 1 and not _comes_after(ref, number) for sizes, ref in others)
    same = made.sizes == second.inputs[place].layout.sizes == second.outputs[0].layout.sizes
    if a.fill_value is not None or not is_one or not same or math.prod(source.sizes) > math.prod(made.sizes):
        return None
    between = Slot("output", Layout.row_major(second.outputs[0].layout.data_type, source.sizes))
    ones = (1,) * len(source.sizes)
    inputs = [
        copies.inputs[0] if at == place else Slot(slot.name, Layout.row_major(slot.layout.data_type, ones))
        for at, slot in enumerate(second.inputs)
    ]
    sources = (*second.sources[:place], copies.sources[0], *second.sources[place + 1 :])
    first = replace(second, sources=sources, inputs=tuple(inputs), outputs=(between,))
    return first, replace(
        copies, sources=(NodeOutput(number, 0),), inputs=(between,), outputs=second.outputs, name=second.name
    )


def _comes_after(ref: Ref, number: int) -> bool:
    return isinstance(ref, NodeOutput) and ref.node > number


def _joined(first: PlanStep, second: PlanStep, place: int) -> PlanStep | None:
    """Both as one step; None if they cannot be.

    Args:
        first: the step whose only reader is the second one.
        second: reads it once.
        place: which input of the second step it is.
    """
    a, b = first.form, second.form
    if not isinstance(a, Pointwise) or not isinstance(b, Pointwise) or not _in_float32(second):
        return None
    made = first.outputs[0].layout
    read = second.inputs[place].layout.sizes
    if made.data_type.numpy_name != "float32" or not made.sizes == read == second.outputs[0].layout.sizes:
        return None
    if not _is_conversion(first) and not _in_float32(first):
        return None
    narrow = second.outputs[0].layout.data_type.numpy_name != "float32"
    if narrow and "erf" in a.expression.functions():
        return None  # where CUDA's erf is as exact as 16 bits need
    operands = len(a.types) + len(b.types) - 1
    expression = _substituted(
        b.expression, place, _with_operands(a.expression, range(place, place + len(a.types))), len(a.types)
    )
    values = [*_parts(expression)]
    functions = sum([isinstance(part, FunctionCall) for part in values])
    if operands > MOST_OPERANDS or functions > MOST_FUNCTIONS or len(values) + operands > MOST_VALUES:
        return None
    repeats = a.repeats or b.repeats or sum([part == Operand(place) for part in _parts(b.expression)]) > 1
    return replace(
        second,
        form=Pointwise(expression, ("float32",) * operands, "float32", repeats=repeats),
        sources=(*second.sources[:place], *first.sources, *second.sources[place + 1 :]),
        inputs=(*second.inputs[:place], *first.inputs, *second.inputs[place + 1 :]),
    )


def _summed(first: PlanStep, second: PlanStep) -> PlanStep | None:
    """A conversion to float32, and the filter that sums its elements, as one step; None if they cannot be.

    Only filters of which all backends sum the elements of both types in the same order: on CUDA those of more than
    `MOST_BLENDED` taps.
    """
    form = second.form
    if not _is_conversion(first) or first.outputs[0].layout.sizes != second.inputs[0].layout.sizes:
        return None
    if not isinstance(form, (Separable, OnnxResize)) or second.outputs[0].layout.data_type.numpy_name != "float32":
        return None
    if isinstance(form, Separable) and (form.accumulate != "float32" or form.rounding is not Rounding.NONE):
        return None
    middles = [(axis, axis.output_size // 2) for axis in form.axes if axis is not None and axis.output_size]
    weights = [axis.taps(at, at + 1)[1] for axis, at in middles]
    if not any(weight is not None and np.count_nonzero(weight) > MOST_BLENDED for weight in weights):
        return None
    return replace(second, sources=first.sources, inputs=first.inputs)


def _composed(first: PlanStep, second: PlanStep, place: int) -> PlanStep | None:
    """Copies of copies as one step; None if they cannot be."""
    a, b, made = first.form, second.form, first.outputs[0].layout
    if not isinstance(a, Copies) or not isinstance(b, Copies) or len(first.outputs) != 1 or not made.packed:
        return None
    if len(a.ranks) != len(first.inputs) or len(b.ranks) != len(second.inputs):
        return None
    form = b.after(a, place, made.sizes, second.inputs[place].layout.sizes)
    if form is None:
        return None
    return replace(
        second,
        form=form,
        sources=(*second.sources[:place], *first.sources, *second.sources[place + 1 :]),
        inputs=(*second.inputs[:place], *first.inputs, *second.inputs[place + 1 :]),
    )


def _reduced(first: PlanStep, second: PlanStep) -> PlanStep | None:
    """An expression, and the reduction that reads what it makes, as one step; None if they cannot be."""
    a, made = first.form, first.outputs[0].layout
    b = second.form.lines if isinstance(second.form, SqueezedLines) else second.form
    if not isinstance(a, Pointwise) or not isinstance(b, Lines) or not b.takes_prologue:
        return None
    if not made.packed or made.data_type.numpy_name != "float32" or made.sizes != b.sizes:
        return None
    if not _is_conversion(first) and not _in_float32(first):
        return None
    pairs = zip(first.inputs, first.operands, strict=True)
    inputs = tuple([replace(slot, layout=layout) for slot, layout in pairs])
    fused_lines = FusedLines(a, b)
    form = SqueezedLines(fused_lines) if isinstance(second.form, SqueezedLines) else fused_lines
    return replace(second, form=form, sources=first.sources, inputs=inputs)


def _is_conversion(step: PlanStep) -> bool:
    """Whether the step makes float32 of narrower numbers."""
    form = step.form
    return (
        isinstance(form, Pointwise)
        and form.expression == Operand(0)
        and step.inputs[0].layout.data_type.numpy_name in _READ
        and step.outputs[0].layout.data_type.numpy_name == "float32"
        and step.inputs[0].layout.sizes == step.outputs[0].layout.sizes
    )


def _in_float32(step: PlanStep) -> bool:
    """Whether every backend computes the step in float32 alone, by the same functions."""
    form, output = step.form, step.outputs[0].layout.data_type.numpy_name
    if not isinstance(form, Pointwise) or form.of_bits or is_boolean(form.expression):
        return False
    read = {slot.layout.data_type.numpy_name for slot in step.inputs}
    functions = [FUNCTIONS[name] for name in form.expression.functions()]
    return (
        {form.computed_in, *form.types} == {"float32"}
        and output in ("float32", "float16")
        and read <= _READ
        and all(function.loop is not NumbaLoop.NONE for function in functions)
    )


def _parts(expression: Expression) -> Iterator[Expression]:
    """An expression and everything in it."""
    yield expression
    if isinstance(expression, FunctionCall):
        for argument in expression.arguments:
            yield from _parts(argument)


def _substituted(expression: Expression, place: int, inner: Expression, count: int) -> Expression:
    """The expression with another one, of `count` operands, in the place of an operand; the same object each time."""
    match expression:
        case Operand(index) if index == place:
            return inner
        case Operand(index):
            return Operand(index + count - 1 if index > place else index)
        case FunctionCall(name, arguments):
            return FunctionCall(name, tuple([_substituted(each, place, inner, count) for each in arguments]))
        case _:
            return expression


def _with_operands(expression: Expression, places: Sequence[int]) -> Expression:
    """The expression with other operands, of which the new number of each is told."""
    match expression:
        case Operand(index):
            return Operand(places[index])
        case FunctionCall(name, arguments):
            return FunctionCall(name, tuple([_with_operands(argument, places) for argument in arguments]))
        case _:
            return expression
