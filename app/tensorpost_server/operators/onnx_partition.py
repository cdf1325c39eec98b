"""Several nodes of a graph that ONNX Runtime computes in one call, as one model.

What goes between two nodes of a partition never leaves ONNX Runtime's process. Nodes that are computed here by
themselves may be part of one, if ONNX Runtime gives the same bytes (`gives_same_bytes`): those that move elements, and
those of float32 with one rounding for each operation, which IEEE 754 leaves no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.onnx.package import ONLY_BFLOAT16

from ..forms import Array, Form, whole_box
from .onnx_model_writer import WrittenNode, model_bytes
from .onnx_runtime import LEAST_OPSET, LIBRARY, array_form, require_runtime
from .onnx_runtime_cost import extra_bytes
from .onnx_weights import fits_session, weights_of_session

__all__ = [
    "LEAST_OPSET",
    "SAME_FROM",
    "PartitionNode",
    "fits_session",
    "gives_near_bytes",
    "gives_same_bytes",
    "may_join",
    "partition_form",
]

SAME_FROM: Mapping[str, int] = {
    "Abs": 6, "Add": 7, "Ceil": 6, "Clip": 6, "Concat": 4, "DepthToSpace": 1, "Div": 7, "Flatten": 1, "Floor": 6,
    "Identity": 1, "LeakyRelu": 6, "Max": 8, "Min": 8, "Mul": 7, "Neg": 6, "PRelu": 7, "Pad": 2, "Relu": 6,
    "Reshape": 5, "Slice": 1, "SpaceToDepth": 1, "Split": 2, "Sqrt": 6, "Squeeze": 1, "Sub": 7, "Sum": 8,
    "Transpose": 1, "Unsqueeze": 1,
}  # fmt: skip
"""The first version of each operator that ONNX Runtime computes, and to the same bytes."""
NEAR_FROM: Mapping[str, int] = {
    "Elu": 6, "Erf": 9, "Exp": 6, "Gemm": 7, "HardSigmoid": 6, "HardSwish": 14, "Log": 6, "LogSoftmax": 1, "MatMul": 1,
    "Pow": 7, "Reciprocal": 6, "ReduceMax": 1, "ReduceMean": 1, "ReduceSum": 1, "Selu": 6, "Sigmoid": 6, "Softmax": 1,
    "Softplus": 1, "Tanh": 6,
}  # fmt: skip
"""The same of operators whose last bits differ; they are part of partitions whose weights ONNX Runtime holds."""


class _Typed(NamedTuple):
    """The first version of an operator, and the types of each input with which ONNX Runtime makes our bytes."""

    since: int
    types: tuple[frozenset[str], ...]


_FLOAT, _WHOLE = frozenset({"float32"}), frozenset({"int32", "int64"})
TYPED_FROM: Mapping[str, _Typed] = {
    "Cast": _Typed(6, (_FLOAT | _WHOLE | {"bool"},)),
    "Gather": _Typed(1, (_FLOAT, _WHOLE)),
}
"""Operators with inputs of other types that are part of such partitions; Gather only with constants as indices."""
_NEWEST = 21
"""The newest version of those. The oldest ONNX Runtime that the extra takes (1.20) has no later ones, and refuses a
model of such an opset, which its own nodes do not need."""
_MOST_MADE_BYTES = 16 << 20
_NO_WEIGHTS: Mapping[int, bytes | memoryview] = {}
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
    return _is_float_from(SAME_FROM, node)


def gives_near_bytes(node: OnnxNode) -> bool:
    """Whether it gives what the node's own form gives but for last bits, and in few more bytes than it reads."""
    read, made = (sum([tensor.size_in_bytes for _, tensor in tensors]) for tensors in (node.tensors, node.results))
    is_near = _is_float_from(NEAR_FROM, node) or gives_same_bytes(node) or _is_typed_from(node)
    return is_near and made <= read + _MOST_MADE_BYTES  # larger results are streamed


def _is_typed_from(node: OnnxNode) -> bool:
    """Whether it is a Cast to float32, or a Gather of float32, of versions that ONNX Runtime computes."""
    kinds = [tensor.row.numpy_name for _, tensor in node.tensors]
    is_made = all(tensor.row.numpy_name == "float32" and 0 not in tensor.shape for _, tensor in node.results)
    taken = TYPED_FROM.get(node.op_type)
    if taken is None or not is_made or not taken.since <= node.schema.since_version <= _NEWEST:
        return False
    return len(kinds) == len(taken.types) and all(kind in types for kind, types in zip(kinds, taken.types, strict=True))


def _is_float_from(versions: Mapping[str, int], node: OnnxNode) -> bool:
    since = node.schema.since_version
    is_float = all(tensor.row.numpy_name == "float32" for _, tensor in (*node.tensors, *node.results))
    has_elements = all(0 not in tensor.shape for _, tensor in (*node.tensors, *node.results))
    return is_float and has_elements and versions.get(node.op_type, _NEWEST + 1) <= since <= _NEWEST


def may_join(node: OnnxNode, form: Form) -> bool:
    """Whether ONNX Runtime computes the node anyway, at the graph's opset and with the sizes that ONNX infers."""
    older = node.op_type in ONLY_BFLOAT16 and node.schema.since_version == 22
    return form.library == LIBRARY and node.op_type not in _ALONE and not older and not node.is_bounded


def partition_form(
    nodes: Sequence[PartitionNode], inputs: Sequence[int], outputs: Sequence[int], opsets: Mapping[str, int], *,
    as_ours: bool, weights: Mapping[int, bytes | memoryview] = _NO_WEIGHTS,
) -> Array:  # fmt: skip
    """The form of all these nodes together.

    Args:
        nodes: the nodes, each after those whose outputs it reads.
        inputs: the tensors that no node makes.
        outputs: the tensors that are read outside.
        opsets: the version of each domain's operators that all nodes are read at.
        as_ours: whether nodes that are not ONNX Runtime's alone give the bytes of our forms.
        weights: constants that its session holds, by number; none of `inputs`. ONNX Runtime then optimizes the nodes
            with them, so that they give other last bits.

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
    given = [(_named(number), tensors[number]) for number in inputs if number not in weights]
    made = [(_named(number), tensors[number]) for number in outputs]
    work = 0
    for node in nodes:
        boxes = [whole_box(tensor.shape) for _, tensor in node.operation.results]
        work += sum([node.form.work(box, output) for output, box in enumerate(boxes)])
    sizes = {number: 0 if number in weights else tensor.size_in_bytes for number, tensor in tensors.items()}
    held = _most_held(nodes, inputs, outputs, sizes)
    beside = max([extra_bytes(node.operation) for node in nodes])
    newest = max([node.operation for node in nodes], key=lambda each: each.schema.since_version)
    what = f"{len(nodes)} nodes from {nodes[0].name!r} to {nodes[-1].name!r}"
    named = tuple([(node.name, node.operation.name) for node in nodes])
    model = model_bytes(written, given, made, opsets, any_sizes=bool(weights))
    kept = None
    if weights:
        kept = weights_of_session(model, [(_named(number), tensors[number], data) for number, data in weights.items()])
    results = [tensor for _, tensor in made]
    return array_form(model, given, results, work, held, beside, what, newest.name, named, kept)


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
