"""A graph for `IDMLDevice1::CompileGraph`: its nodes' descriptors, its edges, and the structs in memory.

The inputs of the graph are numbered first; its constants follow as further inputs, which are OWNED_BY_DML where
every operator that reads them allows it: they are bound once, when the graph is initialized. Outputs of nodes that
nobody reads become outputs of the graph behind those that are wanted, since DirectML wants every output connected.

Source: DML_GRAPH_DESC, DML_GRAPH_NODE_DESC, DML_GRAPH_EDGE_DESC and IDMLDevice1::CompileGraph in DirectML's reference.
"""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from ctypes import c_char_p, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, TensorFlags
from tensorpost.graphs.dml_graph import positions
from tensorpost.values.graph import Graph, GraphConstant, GraphInput, NodeOutput

from .c_structs import Struct, array_of
from .com import ComObject
from .index_data import has_indices, limited

NODE_OPERATOR = 1  # DML_GRAPH_NODE_TYPE
EDGE_INPUT, EDGE_OUTPUT, EDGE_INTERMEDIATE = 1, 2, 3  # DML_GRAPH_EDGE_TYPE
_MOVES = ("ELEMENT_WISE_IDENTITY", "SLICE", "SLICE1", "SPLIT")
"""Operators whose outputs may lie in the memory of their inputs."""
_NO_OWNED = ("RNN", "LSTM", "GRU")
"""Operators whose pages refuse tensors that are OWNED_BY_DML."""


class GraphDescStruct(Struct):
    """`DML_GRAPH_DESC` as a ctypes structure."""

    _fields_ = (
        ("InputCount", c_uint32), ("OutputCount", c_uint32), ("NodeCount", c_uint32), ("Nodes", c_void_p),
        ("InputEdgeCount", c_uint32), ("InputEdges", c_void_p), ("OutputEdgeCount", c_uint32),
        ("OutputEdges", c_void_p), ("IntermediateEdgeCount", c_uint32), ("IntermediateEdges", c_void_p),
    )  # fmt: skip


class TypedGraphDesc(Struct):
    """DML_GRAPH_NODE_DESC and DML_GRAPH_EDGE_DESC: a number and a pointer."""

    _fields_ = (("Type", c_int32), ("Desc", c_void_p))


class OperatorNodeStruct(Struct):
    """`DML_OPERATOR_GRAPH_NODE_DESC` as a ctypes structure."""

    _fields_ = (("Operator", c_void_p), ("Name", c_char_p))


class EdgeStruct(Struct):
    """`DML_INPUT_GRAPH_EDGE_DESC` and `DML_OUTPUT_GRAPH_EDGE_DESC`: three numbers in their order, and a name."""

    _fields_ = (("First", c_uint32), ("Second", c_uint32), ("Third", c_uint32), ("Name", c_char_p))


class IntermediateEdgeStruct(Struct):
    """`DML_INTERMEDIATE_GRAPH_EDGE_DESC` as a ctypes structure."""

    _fields_ = (("FromNodeIndex", c_uint32), ("FromNodeOutputIndex", c_uint32), ("ToNodeIndex", c_uint32),
                ("ToNodeInputIndex", c_uint32), ("Name", c_char_p))  # fmt: skip


class GraphConstantData(NamedTuple):
    """A constant of a compiled graph.

    Attributes:
        data: its bytes, indices in it limited to their axes.
        owned: whether it is bound when the graph is initialized.
    """

    data: memoryview
    owned: bool


@dataclass(frozen=True, slots=True, eq=False)
class GraphDesc:
    """A graph in DirectML's words.

    Attributes:
        key: what decides what is compiled: descriptors, edges, and digests of constants.
        nodes: the descriptors, with OWNED_BY_DML on the tensors that constants are bound to.
        input_edges: GraphInputIndex, ToNodeIndex and ToNodeInputIndex of each.
        output_edges: FromNodeIndex, FromNodeOutputIndex and GraphOutputIndex of each.
        between: FromNodeIndex, FromNodeOutputIndex, ToNodeIndex and ToNodeInputIndex of each.
        inputs: bytes of each input of the graph; None of one that no node reads.
        outputs: bytes of each output, those that nobody wants last.
        constants: the further inputs.
        checked: what limits the indices among the inputs: a node's descriptor, and where its inputs come from.
    """

    key: str
    nodes: tuple[OperatorDesc, ...]
    input_edges: tuple[tuple[int, int, int], ...]
    output_edges: tuple[tuple[int, int, int], ...]
    between: tuple[tuple[int, int, int, int], ...]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    constants: tuple[GraphConstantData, ...]
    checked: tuple[tuple[OperatorDesc, tuple[int | None, ...]], ...]

    def limited(self, inputs: Sequence[memoryview]) -> list[memoryview]:
        """The inputs, with indices that lie inside of their axes.

        Raises:
            InvalidDescriptor: an index is outside, and elements are written.
        """
        found = [*inputs]
        for desc, places in self.checked:
            blocks = [_NOTHING if place is None else found[place] for place in places]
            for place, block in zip(places, limited(desc, blocks), strict=True):
                if place is not None:
                    found[place] = block
        return found


_NOTHING = memoryview(b"")
_digests: dict[int, str] = {}  # of constants of stored graphs, by the identity of their memory


def graph_desc(graph: Graph, desc_of: Callable[[Any], OperatorDesc | str]) -> GraphDesc | str:
    """The graph in DirectML's words, or a sentence why DirectML does not compute it.

    Args:
        graph: the graph.
        desc_of: the descriptor of an operation, or why there is none.
    """
    descs: list[OperatorDesc] = []
    for node in graph.nodes:
        desc = desc_of(node.operation)
        if isinstance(desc, str):
            return f"node {node.name!r}: {desc}"
        descs.append(desc)
    count = len(graph.inputs)
    sizes: dict[int, int] = {}  # of graph inputs, constants included
    input_edges: list[tuple[int, int, int]] = []
    between: list[tuple[int, int, int, int]] = []
    readers: dict[int, list[tuple[int, int]]] = {}  # of constants: node and position
    read: set[NodeOutput] = set(graph.outputs)
    checked: list[tuple[OperatorDesc, tuple[int | None, ...]]] = []
    constants = [memoryview(data) for _, data in graph.constants]
    for number, (node, desc) in enumerate(zip(graph.nodes, descs, strict=True)):
        there = [(at, each.tensor) for at, each in enumerate(positions(desc, "input")) if each.tensor is not None]
        if len(there) != len(node.inputs):
            return f"node {node.name!r} reads other tensors in DirectML than it is given"
        for source, (at, tensor) in zip(node.inputs, there, strict=True):
            size = tensor.total_tensor_size_in_bytes
            if isinstance(source, NodeOutput):
                read.add(source)
                made = _outputs(descs[source.node])[source.index]
                if made[1].total_tensor_size_in_bytes != size:
                    return f"node {node.name!r} reads another number of bytes than node {source.node} makes"
                between.append((source.node, made[0], number, at))
                continue
            place = source.index if isinstance(source, GraphInput) else count + source.index
            if sizes.setdefault(place, size) != size:
                return f"two nodes read {place} with another number of bytes each"
            input_edges.append((place, number, at))
            if isinstance(source, GraphConstant):
                readers.setdefault(source.index, []).append((number, at))
        if has_indices(desc):
            reason = _limit(node.inputs, desc, constants, checked)
            if reason is not None:
                return f"node {node.name!r}: {reason}"
    joined = _joined_output(graph, descs)
    if joined is not None:
        return (
            f"node {joined!r}: DirectML 1.15.4 may write over an output of the graph that a JOIN reads; leave it out "
            "of the outputs"
        )
    outputs = [*graph.outputs]
    outputs += [
        NodeOutput(number, index)
        for number, desc in enumerate(descs)
        for index in range(len(_outputs(desc)))
        if NodeOutput(number, index) not in read
    ]
    found: list[GraphConstantData] = []
    positions_owned: dict[int, set[int]] = {}
    for index, data in enumerate(constants):
        places = readers.get(index, [])
        owned = bool(places) and all(descs[number].operator_type not in _NO_OWNED for number, _ in places)
        found.append(GraphConstantData(data, owned))
        for number, at in places if owned else ():
            positions_owned.setdefault(number, set()).add(at)
    nodes = [_flagged(desc, positions_owned.get(number, ())) for number, desc in enumerate(descs)]
    output_edges = [(ref.node, _outputs(descs[ref.node])[ref.index][0], place) for place, ref in enumerate(outputs)]
    made_sizes = [_outputs(descs[ref.node])[ref.index][1].total_tensor_size_in_bytes for ref in outputs]
    texts = [desc.to_document_text() for desc in nodes]
    digests = [_digest(each) for each in found]
    key = repr((texts, input_edges, output_edges, between, count, digests))
    every = [sizes.get(place) for place in range(count + len(constants))]
    return GraphDesc(
        key, tuple(nodes), tuple(input_edges), tuple(output_edges), tuple(between), tuple(every), tuple(made_sizes),
        tuple(found), tuple(checked),
    )  # fmt: skip


def compile_graph_structs(
    desc: GraphDesc, operators: Sequence[ComObject]
) -> tuple[GraphDescStruct, list[Any]]:  # fmt: skip
    """`DML_GRAPH_DESC`, and the memory that the pointers in it point to.

    Args:
        desc: the graph.
        operators: an `IDMLOperator` for each node.
    """
    kept: list[Any] = []

    def pointer(value: Any) -> int:
        kept.append(value)
        return ctypes.addressof(value)

    def typed(kind: int, structs: Sequence[Struct]) -> int | None:
        if not structs:
            return None
        return pointer(array_of(TypedGraphDesc, [TypedGraphDesc(kind, pointer(each)) for each in structs]))

    nodes = [OperatorNodeStruct(operator.address, None) for operator in operators]
    inputs = [EdgeStruct(*edge, None) for edge in desc.input_edges]
    outputs = [EdgeStruct(*edge, None) for edge in desc.output_edges]
    between = [IntermediateEdgeStruct(*edge, None) for edge in desc.between]
    made = GraphDescStruct(
        len(desc.inputs), len(desc.outputs), len(nodes), typed(NODE_OPERATOR, nodes), len(inputs),
        typed(EDGE_INPUT, inputs), len(outputs), typed(EDGE_OUTPUT, outputs), len(between),
        typed(EDGE_INTERMEDIATE, between),
    )  # fmt: skip
    return made, kept


def _outputs(desc: OperatorDesc) -> list[tuple[int, BufferTensorDesc]]:
    """Position and tensor of each output that there is."""
    return [(at, each.tensor) for at, each in enumerate(positions(desc, "output")) if each.tensor is not None]


def _joined_output(graph: Graph, descs: Sequence[OperatorDesc]) -> str | None:
    """The node that makes an output of the graph which a JOIN reads, maybe through nodes that only move elements.

    DirectML puts what a JOIN reads into the JOIN's own memory, and a node after it may be computed in place there:
    `tools/directml graphs` found a JOIN of a JOIN, then negated, whose first JOIN came back negated too.
    """
    left, seen = [*graph.outputs], set(graph.outputs)
    made_by = dict.fromkeys(seen, "")
    for ref in graph.outputs:
        made_by[ref] = graph.nodes[ref.node].name
    while left:
        ref = left.pop()
        for number, node in enumerate(graph.nodes):
            if ref not in node.inputs:
                continue
            if descs[number].operator_type == "JOIN":
                return made_by[ref]
            if descs[number].operator_type in _MOVES:
                for index in range(len(node.operation.outputs)):
                    further = NodeOutput(number, index)
                    if further not in seen:
                        seen.add(further)
                        made_by[further] = made_by[ref]
                        left.append(further)
    return None


def _limit(
    sources: Sequence[Any], desc: OperatorDesc, constants: list[memoryview],
    checked: list[tuple[OperatorDesc, tuple[int | None, ...]]],
) -> str | None:  # fmt: skip
    """Limit indices in constants, and note those of inputs; or why that cannot be done."""
    slot = has_indices(desc)
    place = next(at for at, each in enumerate(desc.inputs) if each.name == slot)
    source = sources[place]
    if isinstance(source, NodeOutput):
        return "its indices are computed by a node, and DirectML does not check them"
    if isinstance(source, GraphConstant):
        blocks = [constants[source.index] if at == place else _NOTHING for at in range(len(sources))]
        constants[source.index] = limited(desc, blocks)[place]
        return None
    checked.append((desc, tuple([source.index if at == place else None for at in range(len(sources))])))
    return None


def _flagged(desc: OperatorDesc, owned: Container[int]) -> OperatorDesc:
    """The descriptor with OWNED_BY_DML on these inputs, by their positions among all, and on no others."""

    def changed(tensor: BufferTensorDesc | None, position: int) -> BufferTensorDesc | None:
        flags = TensorFlags.OWNED_BY_DML if position in owned else TensorFlags(0)
        return tensor if tensor is None or tensor.flags == flags else tensor.model_copy(update={"flags": flags})

    position, update = 0, dict[str, Any]()
    for entry in desc.facts.fields_by_kind["input"]:
        value: Any = getattr(desc, entry.attribute_name)
        if entry.is_array:
            update[entry.attribute_name] = tuple([changed(each, position + at) for at, each in enumerate(value)])
            position += len(value)
        else:
            update[entry.attribute_name] = changed(value, position)
            position += 1
    return desc.model_copy(update=update)


def _digest(constant: GraphConstantData) -> str:
    """The SHA-256 of what an initialized graph has inside; that of memory that stays is computed once."""
    if not constant.owned:
        return ""
    data = constant.data
    known = _digests.get(id(data.obj))
    if known is not None:
        return known
    digest = hashlib.sha256(data).hexdigest()
    try:
        weakref.finalize(data.obj, _digests.pop, id(data.obj), None)
    except TypeError:  # bytes know of no references
        return digest
    _digests[id(data.obj)] = digest
    return digest


def constants_of(desc: GraphDesc) -> Mapping[int, memoryview]:
    """The constants that are bound when the graph is initialized, by the number of the graph's input."""
    first = len(desc.inputs) - len(desc.constants)
    return {first + at: each.data for at, each in enumerate(desc.constants) if each.owned}
