"""A `Graph` as a document: in the names that people write, or as `DML_GRAPH_DESC`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from ..bodies.json_tensor import tensor_to_json
from ..descriptors import BufferTensorDesc, OperatorDesc
from ..onnx.lowering import lower
from ..onnx.node import OnnxNode
from ..onnx.proto_node import OnnxProtoNode
from ..values.graph import Graph, GraphConstant, GraphInput, Node, NodeOutput, Ref
from ..values.layout import Layout
from ..values.operation import Slot
from ..values.problems import InvalidDescriptor, Violation
from .dml_graph import EDGE_FIELDS, positions

__all__ = ["dml_graph_of", "document_of"]


def dml_graph_of(graph: Graph) -> dict[str, Any]:
    """The graph as `DML_GRAPH_DESC`, which `read_dml_graph` reads: operators first, then constants.

    ONNX nodes become the DirectML operator of the same function.

    Raises:
        InvalidDescriptor: an ONNX node has none, or nothing reads an output of a node; it lists them all.
    """
    found: list[Violation] = []
    descs: list[OperatorDesc] = []
    read = {*graph.outputs, *[source for node in graph.nodes for source in node.inputs]}
    for number, node in enumerate(graph.nodes):
        for index, slot in enumerate(node.operation.outputs):
            if NodeOutput(number, index) not in read:
                message = (
                    f"nothing reads {slot.name} of node {node.name!r}, and DirectML requires every output to be "
                    "connected"
                )
                expected = "a node that reads it, or its name in outputs"
                found.append(
                    Violation("graph-node", ("nodes", node.name), message, slot.name, expected, "DML_GRAPH_DESC")
                )
        desc, reason = _directml(node)
        if desc is None:
            message = f"node {node.name!r}, {node.operation.name}, has no DirectML operator of its own: {reason}"
            found.append(Violation("graph-node", ("nodes", node.name), message, node.operation.name, "", "DirectML"))
        else:
            descs.append(desc)
    if found:
        raise InvalidDescriptor.of(found)
    nodes = [
        _struct("NODE", "OPERATOR", {"Operator": desc.to_document(), "Name": node.name})
        for node, desc in zip(graph.nodes, descs, strict=True)
    ]
    for slot, data in graph.constants:
        text = base64.b64encode(data).decode()
        nodes.append(_struct("NODE", "CONSTANT", {"Data": text, "DataSize": len(data), "Name": slot.name}))
    inputs: list[Any] = []
    between: list[Any] = []
    for number, (node, desc) in enumerate(zip(graph.nodes, descs, strict=True)):
        places = [place for place, each in enumerate(positions(desc, "input")) if each.tensor is not None]
        for source, place in zip(node.inputs, places, strict=True):
            match source:
                case GraphInput(index):
                    inputs.append(_edge("INPUT", index, number, place))
                case GraphConstant(index):
                    between.append(_edge("INTERMEDIATE", len(descs) + index, 0, number, place))
                case NodeOutput(at, index):
                    between.append(_edge("INTERMEDIATE", at, _output_place(descs[at], index), number, place))
    outputs = [
        _edge("OUTPUT", ref.node, _output_place(descs[ref.node], ref.index), index)
        for index, ref in enumerate(graph.outputs)
    ]
    return {
        "InputCount": len(graph.inputs),
        "OutputCount": len(outputs),
        "NodeCount": len(nodes),
        "Nodes": nodes,
        "InputEdgeCount": len(inputs),
        "InputEdges": inputs,
        "OutputEdgeCount": len(outputs),
        "OutputEdges": outputs,
        "IntermediateEdgeCount": len(between),
        "IntermediateEdges": between,
    }


def _directml(node: Node) -> tuple[OperatorDesc | None, str]:
    """The node's descriptor, or why there is none."""
    operation = node.operation
    if isinstance(operation, OperatorDesc):
        return operation, ""
    assert isinstance(operation, OnnxNode), "there are no other operations"
    lowered = lower(operation)
    return lowered.descriptor, lowered.reason


def _output_place(desc: OperatorDesc, index: int) -> int:
    """The position of an operation's output, counted as edges count."""
    return [place for place, each in enumerate(positions(desc, "output")) if each.tensor is not None][index]


def _struct(what: str, kind: str, desc: Mapping[str, Any]) -> dict[str, Any]:
    return {"Type": f"DML_GRAPH_{what}_TYPE_{kind}", "Desc": desc}


def _edge(kind: str, *numbers: int) -> dict[str, Any]:
    return _struct("EDGE", kind, dict(zip(EDGE_FIELDS[kind], numbers, strict=True)))


def document_of(graph: Graph) -> dict[str, Any]:
    """The graph as the document that `read_graph` reads, with numbers for all sizes.

    Names that a document cannot have, and names that are used twice, are replaced.
    """
    taken: set[str] = set()
    inputs = [_free(slot.name, taken) for slot in graph.inputs]
    constants = [_free(slot.name or "constant", taken) for slot, _ in graph.constants]
    nodes = [_free(node.name, taken) for node in graph.nodes]

    def named(ref: Ref) -> str:
        match ref:
            case GraphInput(index):
                return inputs[index]
            case GraphConstant(index):
                return constants[index]
            case NodeOutput(number, index):
                slots = graph.nodes[number].operation.outputs
                return nodes[number] if len(slots) == 1 else f"{nodes[number]}.{slots[index].name}"

    def seen(ref: Ref) -> Slot:
        match ref:
            case GraphInput(index):
                return graph.inputs[index]
            case GraphConstant(index):
                return held[index]
            case NodeOutput(number, index):
                return graph.nodes[number].operation.outputs[index]

    held = [_typed(graph, index) for index in range(len(graph.constants))]
    document: dict[str, Any] = {
        "inputs": {
            name: {"data_type": slot.layout.data_type.numpy_name, "sizes": [*slot.layout.sizes]}
            for name, slot in zip(inputs, graph.inputs, strict=True)
        }
    }
    if constants:
        document["constants"] = {
            name: tensor_to_json(slot.layout.view(data))
            for name, slot, (_, data) in zip(constants, held, graph.constants, strict=True)
        }
    written: list[dict[str, Any]] = []
    for name, node in zip(nodes, graph.nodes, strict=True):
        texts, sources = [named(ref) for ref in node.inputs], [seen(ref) for ref in node.inputs]
        if isinstance(node.operation, OperatorDesc):
            written.append({"name": name, **_directml_node(node.operation, texts, sources)})
        elif isinstance(node.operation, OnnxProtoNode):
            written.append({"name": name, **node.operation.to_json(), "inputs": texts})
        else:
            assert isinstance(node.operation, OnnxNode), "there are no other operations"
            by_slot = dict(zip([slot.name for slot in node.operation.inputs], texts, strict=True))
            text = node.operation.to_json()
            text["inputs"] = {key: by_slot.get(key, value) for key, value in text["inputs"].items()}
            written.append({"name": name, **text})
    document["nodes"] = written
    document["outputs"] = dict(
        zip([slot.name for slot in graph.output_slots], [named(ref) for ref in graph.outputs], strict=True)
    )
    return document


def _typed(graph: Graph, index: int) -> Slot:
    """A constant; one of bytes alone, as in `DML_GRAPH_DESC`, as numbers of the type that its readers have."""
    slot, data = graph.constants[index]
    types = {
        read.layout.data_type
        for node in graph.nodes
        for source, read in zip(node.inputs, node.operation.inputs, strict=True)
        if source == GraphConstant(index)
    }
    if slot.layout.data_type.numpy_name != "uint8" or len(types) != 1:
        return slot
    (row,) = types
    whole = row.item_size and len(data) % row.item_size == 0
    return Slot(slot.name, Layout.row_major(row, (len(data) // row.item_size,))) if whole else slot


def _directml_node(desc: OperatorDesc, texts: Sequence[str], sources: Sequence[Slot]) -> dict[str, Any]:
    """A node in DirectML's words, without what follows.

    Tensors that it reads by another type, sizes or strides than they have are described.
    """
    fields = {name: value for name, value in desc.to_json().items() if value is not None}
    outputs = [entry.name for entry in desc.facts.fields_by_kind["output"]]
    counts = [name for name in fields if name.endswith("Count")]
    for left_out in ((*outputs, *counts), counts):
        fewer = {name: value for name, value in fields.items() if name not in left_out}
        with suppress(InvalidDescriptor):
            if type(desc).completed(fewer) == desc:
                fields = fewer
                break
    inputs: dict[str, Any] = {}
    there = iter(zip(texts, sources, desc.inputs, strict=True))
    for entry in desc.facts.fields_by_kind["input"]:
        if entry.name in fields:
            read = [next(there) for _ in range(len(fields[entry.name]) if entry.is_array else 1)]
            inputs[entry.name] = [text for text, _, _ in read] if entry.is_array else read[0][0]
            if all(source.layout == slot.layout for _, source, slot in read):
                del fields[entry.name]
    return {
        "type": desc.operator_type,
        "inputs": inputs,
        "desc": {name: _short(value) for name, value in fields.items()},
    }


def _short(value: Any) -> Any:
    """A field as a person writes it: a tensor without what follows."""
    if isinstance(value, list):
        return [_short(each) for each in cast("list[Any]", value)]
    tensor = cast("dict[str, Any]", value)
    if not isinstance(value, dict) or "DataType" not in tensor:
        return cast("object", value)
    short = {name: tensor[name] for name in ("DataType", "Sizes", "Strides") if tensor.get(name) is not None}
    least = BufferTensorDesc.model_validate(short)
    if tensor["TotalTensorSizeInBytes"] != least.total_tensor_size_in_bytes:
        short["TotalTensorSizeInBytes"] = tensor["TotalTensorSizeInBytes"]
    return short if tensor["Flags"] == "NONE" else {**short, "Flags": tensor["Flags"]}


def _free(name: str, taken: set[str]) -> str:
    """A name that a document can have and nothing else has."""
    stem = name.replace(".", "_")[:90] or "node"
    found, number = stem, 1
    while found in taken:
        number += 1
        found = f"{stem}_{number}"
    taken.add(found)
    return found
