"""`DML_GRAPH_DESC` as JSON, read into a `Graph`, field by field as in DirectML.h.

    {"InputCount": 1, "OutputCount": 1,
     "Nodes": [{"Type": "OPERATOR", "Desc": {"Operator": {"type": "DML_OPERATOR_ACTIVATION_RELU", "desc": {...}}}},
               {"Type": "CONSTANT", "Desc": {"Data": "AACAPw==", "DataSize": 4}}],
     "InputEdges": [{"Type": "INPUT", "Desc": {"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": 0}}],
     "OutputEdges": [{"Type": "OUTPUT", "Desc": {"FromNodeIndex": 0, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}}],
     "IntermediateEdges": []}

An operator is a document as `parse_operator` reads it. `Data` is base64 (RFC 4648), since DirectML gives it no type.
Enum values may have their prefixes, `DML_GRAPH_NODE_TYPE_OPERATOR`. Counts of arrays may be left out. The tensors of a
request are called `input_0` and so on by GraphInputIndex, its results `output_0` by GraphOutputIndex.

Sources of the rules: DML_GRAPH_DESC and its structs in DirectML's reference and header. Tensorpost's own: what a node
makes has no strides, and a node reads no more bytes than the elements that were made, without the rounding up to 4.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..descriptors import BufferTensorDesc, FeatureLevel, OperatorDesc, TensorFlags, parse_operator
from ..descriptors.documents import operator_members
from ..onnx.report import Path, did_you_mean
from ..values.datatypes import data_type
from ..values.graph import Graph, GraphConstant, GraphInput, Node, NodeOutput, Ref
from ..values.layout import Layout
from ..values.operation import Slot
from ..values.problems import InvalidDescriptor, UnknownOperator, UnsupportedAtLevel, Violation, counted, entry_count
from .graph_node import is_list, is_object

__all__ = ["EDGE_FIELDS", "TensorPosition", "dml_input_names", "is_dml_graph", "positions", "read_dml_graph"]

EDGE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "INPUT": ("GraphInputIndex", "ToNodeIndex", "ToNodeInputIndex"),
    "OUTPUT": ("FromNodeIndex", "FromNodeOutputIndex", "GraphOutputIndex"),
    "INTERMEDIATE": ("FromNodeIndex", "FromNodeOutputIndex", "ToNodeIndex", "ToNodeInputIndex"),
}
"""The fields of each type of edge, in the header's order."""
_EDGES = {"InputEdges": "INPUT", "OutputEdges": "OUTPUT", "IntermediateEdges": "INTERMEDIATE"}
_COUNTS = {"NodeCount": "Nodes", **{f"{name.removesuffix('s')}Count": name for name in _EDGES}}
_MEMBERS = ("InputCount", "OutputCount", "NodeCount", "Nodes", "InputEdgeCount", "InputEdges", "OutputEdgeCount",
            "OutputEdges", "IntermediateEdgeCount", "IntermediateEdges")  # fmt: skip
_SOURCE = "DML_GRAPH_DESC"
_MOST_INPUTS = 1000
_U8 = data_type("uint8")


def is_dml_graph(document: Mapping[str, Any]) -> bool:
    """Whether a graph's document is in DirectML's structs."""
    return "Nodes" in document


def dml_input_names(document: Mapping[str, Any]) -> list[str]:
    """The names of the tensors that a graph in DirectML's structs reads; what is malformed is left out."""
    found: set[int] = set()
    edges: Any = document.get("InputEdges")
    listed: Sequence[Any] = edges if is_list(edges) else []
    for edge in listed:
        desc = edge.get("Desc") if is_object(edge) else None
        index = desc.get("GraphInputIndex") if is_object(desc) else None
        found |= {index} if type(index) is int else set()
    return [f"input_{index}" for index in sorted(found)]


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """A tensor field of a node, or one element of an array of tensors.

    Attributes:
        name: the field, with the element's number.
        slot: its name in the operation's slots; empty if the operator is without this tensor.
        tensor: its descriptor; None if the operator is without it.
        optional: whether it may be left unconnected.
    """

    name: str
    slot: str
    tensor: BufferTensorDesc | None
    optional: bool


def positions(desc: OperatorDesc, kind: str) -> list[TensorPosition]:
    """The tensors of a kind, `input` or `output`, at the places that edges count, absent optional ones included."""
    there = dict(desc.tensors(kind))
    slots = dict(zip(there, [slot.name for slot in (desc.inputs if kind == "input" else desc.outputs)], strict=True))
    found: list[TensorPosition] = []
    for entry in desc.facts.fields_by_kind[kind]:
        name = entry.attribute_name
        paths = [path for path in there if path[0] == name] if entry.is_array else [(name,)]
        for path in paths:
            shown = entry.name if len(path) == 1 else f"{entry.name}[{path[1]}]"
            found.append(TensorPosition(shown, slots.get(path, ""), there.get(path), entry.optional))
    return found


@dataclass(slots=True)
class _ReadNode:
    """A node of the document that could be read.

    Attributes:
        desc: its operator; None of a constant.
        data: the bytes of a constant, with zeros up to a multiple of 4.
        name: what messages call it.
        inputs: where its inputs are.
        outputs: where its outputs are.
        sources: the edge to each input that has one: a graph input, or a node with its output.
        read: the outputs that something reads.
    """

    desc: OperatorDesc | None
    name: str
    data: bytes = b""
    inputs: Sequence[TensorPosition] = ()
    outputs: Sequence[TensorPosition] = ()
    sources: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, tuple[int, int | None]])
    read: set[int] = field(default_factory=set[int])


def read_dml_graph(
    document: Mapping[str, Any], sent: Mapping[str, Layout] | None, *, level: FeatureLevel, most_nodes: int
) -> Graph:
    """Read a graph for tensors of these types and sizes; see `graph_document.read_graph`.

    Raises:
        InvalidDescriptor: rules are broken; it lists every violation, each with its place.
        UnsupportedAtLevel: the graph or one of its nodes is newer than the level.
    """
    reader = _DmlGraphReader(level)
    reader.read(document, most_nodes)
    reader.raise_violations()
    return reader.graph(sent)


class _DmlGraphReader:
    """Reads the structs one after the other, and goes on where a rule is broken."""

    def __init__(self, level: FeatureLevel) -> None:
        self._level = level
        self._violations: list[Violation] = []
        self._too_new: list[Violation] = []
        self._nodes: list[_ReadNode | None] = []
        self._input_count = self._output_count = 0
        self._outputs: dict[int, tuple[int, int]] = {}  # of the graph, by index: a node and its output

    def raise_violations(self) -> None:
        """Raise what was found so far."""
        if self._violations:
            raise InvalidDescriptor.of(self._violations)
        if self._too_new:
            raise UnsupportedAtLevel.of(self._too_new)

    def _add(self, code: str, path: Path, message: str, value: object = None, expected: str = "") -> None:
        self._violations.append(Violation(code, path, message, value, expected, _SOURCE))

    def _members(self, value: object, path: Path, known: Sequence[str], what: str) -> Mapping[str, Any] | None:
        """The members of an object; None if it is none."""
        if not is_object(value):
            self._add("document", path, f"{what} must be a JSON object", value, f"an object with {', '.join(known)}")
            return None
        for key in value:
            if key not in known:
                hint = did_you_mean(key, known) or f"; there are {', '.join(known)}"
                message = f"{what} has no member {str(key)[:60]!r}{hint}"
                self._add("document", (*path, str(key)), message, None, ", ".join(known))
        return value

    def _index(self, members: Mapping[str, Any], name: str, path: Path, count: int, what: str) -> int | None:
        """A number below a count."""
        value = members.get(name)
        if type(value) is int and 0 <= value < count:
            return value
        reach = f"0 to {count - 1}" if count else "there is none"
        self._add("graph-edge", (*path, name), f"{name} must be the index of {what}: {reach}", value, reach)
        return None

    # ---- structs -----------------------------------------------------------------------------------------------------

    def read(self, document: Mapping[str, Any], most_nodes: int) -> None:
        """Read all structs."""
        members = self._members(document, (), _MEMBERS, "DML_GRAPH_DESC") or {}
        self._input_count = self._count(members, "InputCount", 0)
        self._output_count = self._count(members, "OutputCount", 1)
        arrays: dict[str, Sequence[Any]] = {}
        for name in ("Nodes", *_EDGES):
            value = members.get(name, [])
            arrays[name] = value if is_list(value) else []
            if not is_list(value):
                self._add("document", (name,), f"{name} must be a list", value, "a list")
        for name, array in _COUNTS.items():
            if name in members and members[name] != len(arrays[array]):
                message = f"{name} is {str(members[name])[:20]}, and {array} has {entry_count(len(arrays[array]))}"
                self._add("count-disagrees", (name,), message, members[name], str(len(arrays[array])))
        nodes = arrays["Nodes"]
        if not nodes:
            self._add("document", ("Nodes",), "a graph has at least one node", 0, "at least one node")
        if len(nodes) > most_nodes:
            message = f"the graph has {len(nodes):,} nodes; at most {most_nodes:,} are computed here"
            self._add("graph-size", ("Nodes",), message, len(nodes), f"at most {most_nodes} nodes")
            return
        self._check_level(FeatureLevel.L2_1, (), "a graph")
        self._nodes += [self._node(node, ("Nodes", place)) for place, node in enumerate(nodes)]
        for name, kind in _EDGES.items():
            if len(arrays[name]) > 16 * most_nodes:
                self._add("graph-size", (name,), f"{name} has more than {16 * most_nodes:,} edges", len(arrays[name]))
                continue
            for place, edge in enumerate(arrays[name]):
                self._edge(edge, kind, (name, place))
        self._check_connections()

    def _count(self, members: Mapping[str, Any], name: str, least: int) -> int:
        value = members.get(name)
        if type(value) is int and least <= value <= _MOST_INPUTS:
            return value
        expected = f"{least} to {_MOST_INPUTS}"
        self._add("document", (name,), f"{name} must be a whole number, {expected}", value, expected)
        return 0

    def _check_level(self, needed: FeatureLevel, path: Path, what: str) -> None:
        if self._level < needed:
            message = f"{what} needs feature level {needed}, not {self._level}"
            expected = f"{needed} or above"
            self._too_new.append(
                Violation("operator-newer-than-level", path, message, str(self._level), expected, _SOURCE)
            )

    def _kind(self, value: object, prefix: str, kinds: Sequence[str], path: Path) -> str | None:
        """The name of an enum's value, without its prefix."""
        name = value.removeprefix(prefix) if isinstance(value, str) else None
        if name in kinds:
            return name
        message = f"Type must be {' or '.join(prefix + kind for kind in kinds)}"
        self._add("document", (*path, "Type"), message, value, ", ".join(kinds))
        return None

    def _node(self, node: object, path: Path) -> _ReadNode | None:
        members = self._members(node, path, ("Type", "Desc"), "DML_GRAPH_NODE_DESC")
        if members is None:
            return None
        kind = self._kind(members.get("Type"), "DML_GRAPH_NODE_TYPE_", ("OPERATOR", "CONSTANT"), path)
        if kind is None:
            return None
        path = (*path, "Desc")
        known = ("Operator", "Name") if kind == "OPERATOR" else ("Data", "DataSize", "Name")
        desc = self._members(members.get("Desc"), path, known, f"the Desc of a node of Type {kind}")
        if desc is None:
            return None
        name = desc.get("Name")
        if name is not None and not isinstance(name, str):
            self._add("document", (*path, "Name"), "Name must be a text", name, "a text")
        shown = name[:100] if isinstance(name, str) and name else f"Nodes[{path[1]}]"
        return self._constant(desc, path, shown) if kind == "CONSTANT" else self._operator(desc, path, shown)

    def _operator(self, desc: Mapping[str, Any], path: Path, name: str) -> _ReadNode | None:
        path, operator = (*path, "Operator"), desc.get("Operator", {})
        type_member, desc_member = operator_members(operator) if is_object(operator) else ("type", "desc")
        try:
            parsed = parse_operator(operator, complete=True)
        except InvalidDescriptor as error:
            self._violations += error.prefixed(*path).violations
            return None
        except UnknownOperator as error:
            self._add("operator-unknown", (*path, type_member), error.detail, None, "an operator")
            return None
        self._too_new += [each.prefixed(*path, desc_member) for each in parsed.unsupported_at(self._level)]
        outputs = positions(parsed, "output")
        for output in outputs:
            tensor = output.tensor
            if tensor is not None and not tensor.layout.packed:
                what = "Strides" if tensor.strides is not None else "TotalTensorSizeInBytes"
                message = (
                    f"{output.name} of {name!r} has {what}; tensorpost computes graphs whose nodes make packed tensors"
                )
                where: Path = (*path, desc_member, output.name.partition("[")[0], what)
                self._violations.append(
                    Violation(
                        "graph-node", where, message, None, f"no {what}", "tensorpost's own limit, not DirectML's"
                    )
                )
                return None
        return _ReadNode(parsed, name, inputs=positions(parsed, "input"), outputs=outputs)

    def _constant(self, desc: Mapping[str, Any], path: Path, name: str) -> _ReadNode | None:
        self._check_level(FeatureLevel.L6_2, path, "a node of Type CONSTANT")
        text, size = desc.get("Data"), desc.get("DataSize")
        try:
            data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        except (binascii.Error, ValueError):
            data = b""
        if not data:
            self._add(
                "document", (*path, "Data"), "Data must be at least one byte, in base64", str(text)[:40], "base64"
            )
            return None
        if "DataSize" in desc and size != len(data):
            message = f"DataSize is {str(size)[:20]}, and Data has {counted(len(data), 'byte')}"
            self._add("count-disagrees", (*path, "DataSize"), message, size, str(len(data)))
        return _ReadNode(
            None, name, data + bytes(-len(data) % 4), outputs=[TensorPosition("the constant", "", None, False)]
        )

    # ---- edges -------------------------------------------------------------------------------------------------------

    def _edge(self, edge: object, kind: str, path: Path) -> None:
        members = self._members(edge, path, ("Type", "Desc"), "DML_GRAPH_EDGE_DESC")
        if members is None or self._kind(members.get("Type"), "DML_GRAPH_EDGE_TYPE_", (kind,), path) is None:
            return
        path = (*path, "Desc")
        desc = self._members(
            members.get("Desc"), path, (*EDGE_FIELDS[kind], "Name"), f"the Desc of an edge of Type {kind}"
        )
        if desc is None:
            return
        found: dict[str, int | None] = {}
        for name in EDGE_FIELDS[kind]:
            if name == "GraphInputIndex":
                found[name] = self._index(desc, name, path, self._input_count, "an input of the graph")
            elif name == "GraphOutputIndex":
                found[name] = self._index(desc, name, path, self._output_count, "an output of the graph")
            elif name in ("FromNodeIndex", "ToNodeIndex"):
                found[name] = self._index(desc, name, path, len(self._nodes), "a node")
            else:
                node = found["ToNodeIndex" if name.startswith("To") else "FromNodeIndex"]
                found[name] = None if node is None else self._position(desc, name, node, path)
        if None not in found.values():
            self._connect(kind, cast("dict[str, int]", found), path)

    def _position(self, desc: Mapping[str, Any], name: str, number: int, path: Path) -> int | None:
        """The index of a tensor of a node that was read."""
        node = self._nodes[number]
        if node is None:
            return None
        is_input = name.startswith("To")
        places = node.inputs if is_input else node.outputs
        what = f"an {'input' if is_input else 'output'} of {node.name!r}, which has {len(places)}"
        place = self._index(desc, name, path, len(places), what)
        if place is not None and places[place].tensor is None and node.desc is not None:
            message = f"{places[place].name} of {node.name!r} is not described in its operator, and takes no edge"
            self._add("graph-edge", (*path, name), message, place, "a tensor that the operator has")
            return None
        return place

    def _connect(self, kind: str, found: Mapping[str, int], path: Path) -> None:
        if kind == "OUTPUT":
            number, place, index = found["FromNodeIndex"], found["FromNodeOutputIndex"], found["GraphOutputIndex"]
            node = self._node_at(number)
            if node.desc is None:
                message = (
                    f"the constant {node.name!r} is connected directly to an output of the graph; put an operator "
                    "between them"
                )
                self._add("graph-edge", (*path, "FromNodeIndex"), message, number, "an operator")
            elif index in self._outputs:
                message = f"output {index} of the graph has two edges; it has exactly one"
                self._add("graph-edge", (*path, "GraphOutputIndex"), message, index, "one edge")
            else:
                self._outputs[index] = (number, place)
            node.read.add(place)
            return
        target, place = self._node_at(found["ToNodeIndex"]), found["ToNodeInputIndex"]
        source = (
            (found["GraphInputIndex"], None)
            if kind == "INPUT"
            else (found["FromNodeIndex"], found["FromNodeOutputIndex"])
        )
        if kind == "INTERMEDIATE":
            self._node_at(source[0]).read.add(found["FromNodeOutputIndex"])
            tensor = target.inputs[place].tensor
            if tensor is not None and tensor.flags & TensorFlags.OWNED_BY_DML:
                message = (
                    f"{target.inputs[place].name} of {target.name!r} is OWNED_BY_DML, so only an input of the graph "
                    "may feed it"
                )
                self._add("graph-edge", path, message, None, "an input of the graph")
        if place in target.sources:
            message = f"{target.inputs[place].name} of {target.name!r} has two edges; an input has at most one"
            self._add("graph-edge", (*path, "ToNodeInputIndex"), message, place, "one edge")
            return
        target.sources[place] = source

    def _node_at(self, number: int) -> _ReadNode:
        node = self._nodes[number]
        assert node is not None, "its positions were read"
        return node

    # ---- rules of the whole ------------------------------------------------------------------------------------------

    def _check_connections(self) -> None:
        """Every tensor is connected, without a cycle, and both ends of an edge have the same size.

        Only if all structs could be read.

        Raises:
            InvalidDescriptor: the nodes form a cycle.
        """
        if self._violations:
            return
        for index in range(self._output_count):
            if index not in self._outputs:
                message = f"output {index} of the graph has no edge; it has exactly one"
                self._add("graph-edge", ("OutputEdges",), message, None, "an edge for each output")
        for number, node in enumerate(self._nodes):
            assert node is not None
            path: Path = ("Nodes", number)
            for place, position in enumerate(node.inputs):
                if position.tensor is not None and place not in node.sources:
                    message = (
                        f"the input {position.name} of {node.name!r} is not connected; no edge has ToNodeIndex "
                        f"{number} and ToNodeInputIndex {place}"
                    )
                    self._add("graph-edge", path, message, None, "an edge to it")
            for place, position in enumerate(node.outputs):
                missing = position.tensor is not None or node.desc is None
                if missing and not position.optional and place not in node.read:
                    message = (
                        f"the output {position.name} of {node.name!r} is not connected; remove the node, or read it"
                    )
                    self._add("graph-edge", path, message, None, "an edge from it")
        self._in_order()  # of a cycle, sizes say nothing
        for number, node in enumerate(self._nodes):
            self._check_sizes(cast("_ReadNode", node), ("Nodes", number))
        self._check_owned()

    def _check_sizes(self, node: _ReadNode, path: Path) -> None:
        for place, (number, output) in node.sources.items():
            tensor = node.inputs[place].tensor
            if output is None or tensor is None:
                continue
            source, total = self._node_at(number), tensor.total_tensor_size_in_bytes
            where = f"{node.inputs[place].name} of {node.name!r}"
            made = source.outputs[output].tensor
            if made is None:
                if len(source.data) != total:
                    message = f"{where} has {total} bytes, and the constant {source.name!r} {len(source.data)}"
                    self._add("graph-sizes", path, message, len(source.data), f"{total} bytes, or up to 3 fewer")
                continue
            if made.total_tensor_size_in_bytes != total:
                message = (
                    f"{where} has {total} bytes, and what {source.name!r} makes {made.total_tensor_size_in_bytes}; "
                    "both ends of an edge have the same TotalTensorSizeInBytes"
                )
                self._add("graph-sizes", path, message, total, f"{made.total_tensor_size_in_bytes} bytes")
            elif made.data_size_in_bytes < tensor.data_size_in_bytes:
                message = (
                    f"{where} reads {tensor.data_size_in_bytes} bytes, and {source.name!r} makes "
                    f"{made.data_size_in_bytes}, without the rounding up to 4"
                )
                self._add(
                    "graph-sizes", path, message, tensor.data_size_in_bytes, f"at most {made.data_size_in_bytes} bytes"
                )

    def _readers(self) -> Iterator[tuple[int, _ReadNode, TensorPosition]]:
        """The readers of the graph's inputs."""
        for node in self._nodes:
            assert node is not None
            for place, (index, output) in sorted(node.sources.items()):
                if output is None:
                    yield index, node, node.inputs[place]

    def _check_owned(self) -> None:
        """All readers of an input are OWNED_BY_DML, or none; and they have the same size."""
        first: dict[int, tuple[_ReadNode, TensorPosition]] = {}
        for index, node, position in self._readers():
            before, other = first.setdefault(index, (node, position))
            one, two = other.tensor, position.tensor
            assert one is not None
            assert two is not None
            if (one.flags ^ two.flags) & TensorFlags.OWNED_BY_DML:
                message = (
                    f"input {index} of the graph feeds {other.name} of {before.name!r} and {position.name} of "
                    f"{node.name!r}, of which one is OWNED_BY_DML; all are, or none"
                )
                self._add("graph-edge", ("InputEdges",), message, index, "the same Flags")
            if one.total_tensor_size_in_bytes != two.total_tensor_size_in_bytes:
                message = (
                    f"input {index} of the graph feeds {other.name} of {before.name!r}, "
                    f"{one.total_tensor_size_in_bytes} bytes, and {position.name} of {node.name!r}, "
                    f"{two.total_tensor_size_in_bytes} bytes"
                )
                self._add("graph-sizes", ("InputEdges",), message, index, "the same TotalTensorSizeInBytes")

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def graph(self, sent: Mapping[str, Layout] | None) -> Graph:
        """The graph; to be called when no rule is broken.

        Raises:
            InvalidDescriptor: its nodes form a cycle, or other tensors arrive.
        """
        order = self._in_order()
        read: dict[int, BufferTensorDesc] = {}
        needed: dict[int, int] = {}
        for index, _, position in self._readers():
            tensor = cast("BufferTensorDesc", position.tensor)
            if index not in read or (tensor.is_packed and not read[index].is_packed):
                read[index] = tensor
            needed[index] = max(needed.get(index, 0), tensor.data_size_in_bytes)
        slots = self._slots(read, needed, sent)
        self.raise_violations()
        places = {index: place for place, index in enumerate(sorted(read))}
        constants = [number for number, node in enumerate(self._nodes) if node is not None and node.desc is None]
        numbers = {number: place for place, number in enumerate(order)}
        nodes: list[Node] = []
        for number in order:
            node = self._node_at(number)
            assert node.desc is not None
            sources: list[Ref] = []
            for place, position in enumerate(node.inputs):
                if position.tensor is not None:
                    at, output = node.sources[place]
                    if output is None:
                        sources.append(GraphInput(places[at]))
                    elif at in constants:
                        sources.append(GraphConstant(constants.index(at)))
                    else:
                        sources.append(NodeOutput(numbers[at], self._slot_number(at, output)))
            nodes.append(Node(node.desc, tuple(sources), node.name))
        outputs = [self._outputs[index] for index in range(self._output_count)]
        held = tuple(
            [
                (
                    Slot(self._node_at(number).name, Layout.row_major(_U8, (len(self._node_at(number).data),))),
                    self._node_at(number).data,
                )
                for number in constants
            ]
        )
        return Graph(
            slots,
            tuple(nodes),
            tuple([NodeOutput(numbers[at], self._slot_number(at, place)) for at, place in outputs]),
            held,
            tuple([f"output_{index}" for index in range(self._output_count)]),
        )

    def _slot_number(self, number: int, place: int) -> int:
        """Which of an operation's outputs a position is."""
        return len([each for each in self._node_at(number).outputs[:place] if each.tensor is not None])

    def _in_order(self) -> list[int]:
        """The operators, each after those that it reads."""
        readers: dict[int, list[int]] = {number: [] for number in range(len(self._nodes))}
        waiting: dict[int, int] = {}
        for number, node in enumerate(self._nodes):
            assert node is not None
            before = {at for at, output in node.sources.values() if output is not None}
            waiting[number] = len(before)
            for each in before:
                readers[each].append(number)
        order = [number for number, count in waiting.items() if not count]
        for number in order:
            for reader in readers[number]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    order.append(reader)
        if len(order) < len(self._nodes):
            left = [self._node_at(number).name for number, count in waiting.items() if count]
            message = f"nodes form a cycle, or read from one: {', '.join(map(repr, left[:16]))}"
            self._add("graph-circle", ("IntermediateEdges",), message, None, "no cycle")
            self.raise_violations()
        return [number for number in order if self._node_at(number).desc is not None]

    def _slots(
        self, read: Mapping[int, BufferTensorDesc], needed: Mapping[int, int], sent: Mapping[str, Layout] | None
    ) -> tuple[Slot, ...]:
        """The tensors to receive: those that nodes read, of their type, in any sizes of as many bytes."""
        found: list[Slot] = []
        for index in sorted(read):
            name, tensor = f"input_{index}", read[index]
            own, total = tensor.layout, tensor.total_tensor_size_in_bytes
            if sent is None:
                found.append(Slot(name, own if own.packed else Layout.row_major(_U8, (total,))))
                continue
            path: Path = ("InputEdges",)
            arrived = sent.get(name)
            if arrived is None:
                there = ", ".join(map(repr, sent)) or "no tensor"
                self._add(
                    "input-missing", path, f"the tensor {name!r} was not sent; the body has {there}", None, "a tensor"
                )
                continue
            bytes_sent = arrived.size_in_bytes
            if arrived.data_type not in (own.data_type, _U8):
                message = (
                    f"{name!r} is {own.data_type.numpy_name} in the graph, and {arrived.data_type.numpy_name} was sent"
                )
                self._add("data-type-differs", path, message, arrived.data_type.numpy_name, own.data_type.numpy_name)
            elif bytes_sent + -bytes_sent % 4 != total or bytes_sent < needed[index]:
                message = f"{name!r} has {total} bytes in the graph, and {bytes_sent} were sent"
                self._add(
                    "input-sizes", path, message, bytes_sent, f"{own.data_type.numpy_name} of sizes {list(own.sizes)}"
                )
            found.append(Slot(name, Layout.row_major(arrived.data_type, arrived.sizes)))
        for name in sent or ():
            if name not in [f"input_{index}" for index in read]:
                known = ", ".join([f"'input_{index}'" for index in sorted(read)]) or "none"
                message = f"the graph reads no input {name[:60]!r}; it reads {known}"
                self._add("input-unknown", ("InputEdges",), message, name, known)
        return tuple(found)
