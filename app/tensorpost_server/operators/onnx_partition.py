"""Several nodes of a graph that ONNX Runtime computes in one call, as one model.

What goes between two nodes of a partition never leaves ONNX Runtime's process. Nodes that are computed here by
themselves may be part of one, if ONNX Runtime gives the same bytes (`gives_same_bytes`): those that move elements, and
those of float32 with one rounding for each operation, which IEEE 754 leaves no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorpost.onnx import OnnxNode, OnnxTensor

from ..forms import Array, Form, whole_box
from .onnx_model_writer import WrittenNode, model_bytes
from .onnx_runtime import LEAST_OPSET, LIBRARY, array_form, require_runtime
from .onnx_runtime_cost import extra_bytes

__all__ = ["LEAST_OPSET", "SAME_FROM", "PartitionNode", "gives_same_bytes", "may_join", "partition_form"]

SAME_FROM: Mapping[str, int] = {
    "Abs": 6, "Add": 7, "Ceil": 6, "Clip": 6, "Concat": 4, "DepthToSpace": 1, "Div": 7, "Flatten": 1, "Floor": 6,
    "Identity": 1, "LeakyRelu": 6, "Max": 8, "Min": 8, "Mul": 7, "Neg": 6, "PRelu": 7, "Pad": 2, "Relu": 6,
    "Reshape": 5, "Slice": 1, "SpaceToDepth": 1, "Split": 2, "Sqrt": 6, "Squeeze": 1, "Sub": 7, "Sum": 8,
    "Transpose": 1, "Unsqueeze": 1,
}  # fmt: skip
"""The first version of each operator that ONNX Runtime computes, and to the same bytes."""
_NEWEST = 21
"""The newest version of those. The oldest ONNX Runtime that the extra takes (1.20) has no later ones, and refuses a
model of such an opset, which its own nodes do not need."""
_ALONE = frozenset({"Det"})
"""Operators whose results have more or fewer dimensions of 1 than ONNX infers, which other nodes must not see."""


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """A node of a partition.

    Attributes:
        operation: what it computes.
        form: how it would be computed by itself; its work is that of the form.
        name: its name in the graph.
        inputs: the tensors that it reads, each by a number of its own in the partition.
        outputs: the tensors that it makes, by such numbers.
    """

    operation: OnnxNode
    form: Form
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def gives_same_bytes(node: OnnxNode) -> bool:
    """Whether ONNX Runtime gives the bytes that the node's own form gives."""
    since = node.schema.since_version
    is_float = all(tensor.row.numpy_name == "float32" for _, tensor in (*node.tensors, *node.results))
    has_elements = all(0 not in tensor.shape for _, tensor in (*node.tensors, *node.results))
    return is_float and has_elements and SAME_FROM.get(node.op_type, _NEWEST + 1) <= since <= _NEWEST


def may_join(node: OnnxNode, form: Form) -> bool:
    """Whether ONNX Runtime computes the node anyway, with the sizes that ONNX infers."""
    return form.library == LIBRARY and node.op_type not in _ALONE


def partition_form(
    nodes: Sequence[PartitionNode], inputs: Sequence[int], outputs: Sequence[int], opsets: Mapping[str, int], *,
    as_ours: bool,
) -> Array:  # fmt: skip
    """The form of all these nodes together.

    Args:
        nodes: the nodes, each after those whose outputs it reads.
        inputs: the tensors that no node makes.
        outputs: the tensors that are read outside.
        opsets: the version of each domain's operators that all nodes are read at.
        as_ours: whether nodes that are not ONNX Runtime's alone give the bytes of our forms.

    Raises:
        NoBackend: ONNX Runtime is not installed.
    """
    require_runtime(nodes[0].operation.name)
    tensors: dict[int, OnnxTensor] = {}
    for node in nodes:
        tensors |= zip(node.inputs, [tensor for _, tensor in node.operation.tensors], strict=True)
        tensors |= zip(node.outputs, [tensor for _, tensor in node.operation.results], strict=True)
    written = [
        WrittenNode(
            node.operation, f"n{place}", tuple(map(_named, node.inputs)), tuple(map(_named, node.outputs)), as_ours
        )
        for place, node in enumerate(nodes)
    ]
    given = [(_named(number), tensors[number]) for number in inputs]
    made = [(_named(number), tensors[number]) for number in outputs]
    work = 0
    for node in nodes:
        boxes = [whole_box(tensor.shape) for _, tensor in node.operation.results]
        work += sum([node.form.work(box, output) for output, box in enumerate(boxes)])
    held = _most_held(nodes, inputs, outputs, {number: tensor.size_in_bytes for number, tensor in tensors.items()})
    beside = max([extra_bytes(node.operation) for node in nodes])
    newest = max([node.operation for node in nodes], key=lambda each: each.schema.since_version)
    what = f"{len(nodes)} nodes from {nodes[0].name!r} to {nodes[-1].name!r}"
    named = tuple([(node.name, node.operation.name) for node in nodes])
    model = model_bytes(written, given, made, opsets)
    return array_form(model, given, [tensor for _, tensor in made], work, held, beside, what, newest.name, named)


def _named(number: int) -> str:
    return f"t{number}"


def _most_held(
    nodes: Sequence[PartitionNode], inputs: Sequence[int], outputs: Sequence[int], sizes: Mapping[int, int]
) -> int:
    """The most bytes that inputs, outputs and what goes between nodes take at a time."""
    kept = {*inputs, *outputs}
    last = {number: place for place, node in enumerate(nodes) for number in (*node.outputs, *node.inputs)}
    live = most = sum([sizes[number] for number in inputs])
    for place, node in enumerate(nodes):
        live += sum([sizes[number] for number in node.outputs])
        most = max(most, live)
        live -= sum([sizes[number] for number in {*node.inputs, *node.outputs} - kept if last[number] == place])
    return most
