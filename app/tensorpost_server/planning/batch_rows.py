"""Whether the rows of a graph's outputs depend on the same rows of its inputs alone.

Then calls can be joined: their inputs one after the other along the first axis are one call, whose outputs are theirs
one after the other. Rows are equal parts of a packed tensor, as many as the batch has, whatever shape the tensor has in
between: 2 rows of [2, 12] are those of [6, 4].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.proto_node import OnnxProtoNode
from tensorpost.values.graph import Graph, GraphConstant, GraphInput, Node, NodeOutput
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Operation
from tensorpost.values.problems import TensorpostError

from ..forms.arrays import BoxFunction
from ..operators.onnx_runtime import LIBRARY, OPTIMIZED_LIBRARY
from .library_rows import library_mixes
from .step import PlanStep

_BATCHES = (2, 3, 1)
"""Counts of rows that are compared, beside the most that calls are joined to; two rows are the first to tell most."""
_SIZES = frozenset({"ends", "input", "limit", "repeats", "shape", "sizes", "split", "tiles"})
"""Small inputs that decide nothing but sizes, which may depend on the number of rows."""


def why_rows_mix(graph_of: Callable[[int], Graph], most_rows: int) -> str | None:
    """Why calls of a graph cannot be joined; None if they can.

    Forms say what they read (`Form.reads`), and some operators are known. Of a node that ONNX Runtime computes, the
    sizes and what is known of its operator (`library_mixes`) are looked at: whoever stores the graph answers for it.

    Args:
        graph_of: makes the graph for a batch of so many rows.
        most_rows: the most rows that calls are joined to.
    """
    batches = [*dict.fromkeys((*_BATCHES, most_rows))]
    graphs: list[Graph] = []
    for rows in batches:
        try:
            graphs.append(graph_of(rows))
        except TensorpostError as error:
            return f"it cannot be computed for a batch of {rows:,} rows: {error.detail}"
    for graph, rows in zip(graphs, batches, strict=True):
        for slot in (*graph.inputs, *graph.output_slots):
            if not slot.layout.sizes or slot.layout.sizes[0] != rows:
                return f"the first size of {slot.name!r} is not that of the batch"
    walked = [_walk(graph, rows) for graph, rows in zip(graphs, batches, strict=True)]
    for found in walked:
        if isinstance(found, str):
            return found
    if any(found != walked[0] for found in walked[1:]):
        return "the size of a row in it, or a constant, depends on the number of rows"
    return None


class _ConstantBytes:
    """A constant, equal to one of the same bytes; those of a stored graph lie at the same place in all its graphs."""

    __slots__ = ("_array", "_layout")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, layout: Layout, data: bytes | memoryview) -> None:
        self._layout, self._array = layout, np.frombuffer(data, np.uint8)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ConstantBytes) or self._layout != other._layout:
            return False
        one, two = self._array, other._array
        return (one.ctypes.data == two.ctypes.data and one.size == two.size) or np.array_equal(one, two)


def _walk(graph: Graph, rows: int) -> list[object] | str:
    """What rows of a batch are computed from: their sizes, and constants; or why a node may mix rows."""
    found: list[object] = []
    varying: set[NodeOutput] = set()
    for number, node in enumerate(graph.nodes):
        step = PlanStep.of(node)
        inputs = [isinstance(source, GraphInput) or source in varying for source in step.sources]
        for source in step.sources:
            constant = isinstance(source, GraphConstant)
            found.append(_constant(graph, source) if constant else source)
        if not any(inputs):
            found.append(node.operation)
            continue
        found.append(_fixed_part(node.operation))
        if _mixes_by_library(graph, node, step, inputs):
            return f"the node {node.name!r} ({node.operation.op_type}) computes rows together, or draws numbers"
        for index, slot in enumerate(step.outputs):
            if not _is_cut(slot.layout, rows) or not _reads_rows(step, node.operation.op_type, inputs, index, rows):
                return (
                    f"the node {node.name!r} ({node.operation.op_type}) may compute a row from other rows, or its "
                    "output has no rows"
                )
            first, *others = slot.layout.sizes
            found.append((first // rows, *others))
            varying.add(NodeOutput(number, index))
    for ref, name in zip(graph.outputs, graph.output_names, strict=True):
        if ref not in varying:
            return f"the output {name!r} does not depend on the inputs"
    return found


def _constant(graph: Graph, source: GraphConstant) -> _ConstantBytes:
    slot, data = graph.constants[source.index]
    return _ConstantBytes(slot.layout, data)


def _fixed_part(operation: Operation) -> object:
    """What an operation computes beside the sizes of its tensors."""
    if not isinstance(operation, OnnxNode):
        return operation.op_type
    values = [(name, value) for name, value in operation.values if name not in _SIZES]
    model = operation.model if isinstance(operation, OnnxProtoNode) else b""
    return operation.op_type, operation.attributes, values, model


def _mixes_by_library(graph: Graph, node: Node, step: PlanStep, varying: Sequence[bool]) -> bool:
    """Whether ONNX Runtime computes the node, and its rows are known not to stay apart."""

    def constant(place: int) -> bytes | None:
        source = step.sources[place]
        return bytes(graph.constants[source.index][1]) if isinstance(source, GraphConstant) else None

    operation = node.operation
    return _is_by_library(step) and isinstance(operation, OnnxNode) and library_mixes(operation, varying, constant)


def _is_by_library(step: PlanStep) -> bool:
    return step.form.library in (LIBRARY, OPTIMIZED_LIBRARY)


def _is_cut(layout: Layout, rows: int) -> bool:
    """Whether the tensor has so many rows, each of whole entries of its first axis."""
    return bool(layout.sizes) and layout.packed and layout.sizes[0] % rows == 0


def _reads_rows(step: PlanStep, operator: str, varying: Sequence[bool], output: int, rows: int) -> bool:
    """Whether each row of an output is computed from the same rows of those inputs that vary."""
    form = step.form
    if _is_by_library(step):
        return all(_is_cut(slot.layout, rows) for slot, varies in zip(step.inputs, varying, strict=True) if varies)
    if form.computed_whole:
        return False
    if isinstance(form, BoxFunction):
        cut = all(_is_cut(slot.layout, rows) for slot, varies in zip(step.inputs, varying, strict=True) if varies)
        return operator in _RULES and cut and _RULES[operator](dict(form.parameters), step, varying)
    sizes = step.outputs[output].layout.sizes
    each = sizes[0] // rows
    for row in sorted({0, 1 % rows, rows // 2, rows - 1}):
        box = ((row * each, (row + 1) * each), *[(0, size) for size in sizes[1:]])
        for place, read in enumerate(form.reads(box, output)):
            if not varying[place]:
                continue
            layout, operand = step.inputs[place].layout, step.operands[place]
            if read is None or not _is_cut(layout, rows) or operand.sizes[:1] != layout.sizes[:1]:
                return False
            if operand.strides[:1] != layout.strides[:1]:  # broadcast: the first axis is another one
                return False
            whole = layout.sizes[0] // rows
            begin, end = read[0]
            if begin < end and not row * whole <= begin < end <= (row + 1) * whole:
                return False
    return True


def _gathers(parameters: Mapping[str, Any], _step: PlanStep, varying: Sequence[bool]) -> bool:
    """Whether elements are picked within each row, or from a table by the indices of each row."""
    data, indices = varying
    return (parameters["axis"] > 0 and not indices) if data else parameters["axis"] == 0


def _matmul(_parameters: Mapping[str, Any], step: PlanStep, varying: Sequence[bool]) -> bool:
    """Whether the rows are rows of the first factor, or of stacks of matrices."""
    left, right = [slot.layout.sizes for slot in step.inputs[:2]]
    rank, most = len(step.outputs[0].layout.sizes), 2
    by_left = not varying[0] or (len(left) >= most and (len(left) == rank or len(right) == 1))
    by_right = not varying[1] or (len(right) > most and len(right) == rank)
    first = step.outputs[0].layout.sizes[0]
    same = [sizes[0] == first for sizes, varies in zip((left, right), varying, strict=False) if varies]
    return by_left and by_right and all(same) and not any(varying[2:])


def _gemm(parameters: Mapping[str, Any], step: PlanStep, varying: Sequence[bool]) -> bool:
    """Whether the rows are those of the first factor, and of the summand if it varies."""
    first = step.outputs[0].layout.sizes[0]
    summands = [
        len(slot.layout.sizes) > 1 and slot.layout.sizes[0] == first
        for slot, varies in zip(step.inputs[2:], varying[2:], strict=True)
        if varies
    ]
    return varying[0] and not varying[1] and not parameters["transposed"][0] and all(summands)


_RULES: Mapping[str, Callable[[Mapping[str, Any], PlanStep, Sequence[bool]], bool]] = {
    "Gather": _gathers, "MatMul": _matmul, "MatMulInteger": _matmul, "Gemm": _gemm,
}  # fmt: skip
"""ONNX operators whose forms do not say what they read: whether their rows stay apart."""
