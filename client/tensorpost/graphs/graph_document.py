"""Read a graph's JSON document into a `Graph`, whose tensors all have a type and sizes.

    {"inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
     "constants": {"mean": {"dtype": "F32", "shape": [3], "data": [124, 116, 104]}},
     "nodes": [{"name": "f", "op_type": "Cast", "opset": 21, "inputs": ["photo"], "attributes": {"to": "float32"}},
               {"name": "c", "op_type": "Sub", "opset": 21, "inputs": ["f", "mean"]},
               {"name": "small", "type": "RESAMPLE", "inputs": {"InputTensor": "c"},
                "desc": {"InterpolationMode": "LINEAR", "Scales": [1, 0.5, 0.5, 1]}}],
     "outputs": {"small": "small"}}

A tensor is called by the name of an input, of a constant, or of a node with one output; an output of a node with
several is `node.output`, as in `parts.output_0`. Nodes may stand in any order. Sizes of intermediates follow. A size
that is a name is bound by the tensor that arrives. Every rule of the format is tensorpost's choice; what a node may be,
DirectML and ONNX say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..bodies.json_tensor import tensor_from_json
from ..descriptors import NEWEST, FeatureLevel
from ..onnx.report import Path, did_you_mean
from ..values.datatypes import DataType, data_type, type_named
from ..values.graph import Graph, GraphConstant, GraphInput, Node, NodeOutput
from ..values.layout import Layout
from ..values.operation import Slot
from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, counted
from .dml_graph import dml_input_names, is_dml_graph, read_dml_graph
from .graph_node import SOURCE, ReadableTensor, is_list, is_object, read_node, references
from .proto_node_reader import read_proto_node

__all__ = ["LONGEST_NAME", "MOST_NODES", "Weights", "declared_sizes", "input_names", "read_graph"]

Weights: TypeAlias = Mapping[str, tuple[Layout, memoryview]]
"""Inputs of a graph that a server keeps, by name: what the tensor is, packed, and its bytes."""

_NO_WEIGHTS: Weights = {}

MOST_NODES = 1000
"""Nodes of a graph, if no other limit is given."""

LONGEST_NAME = 100
"""Characters of a name in a graph."""

_MEMBERS = ("inputs", "constants", "nodes", "outputs")
_DIRECTML_MEMBERS = ("name", "type", "inputs", "desc")
_ONNX_MEMBERS = ("name", "op_type", "opset", "inputs", "attributes", "outputs", "bounded")
_PROTO_MEMBERS = ("name", "op_type", "opset", "inputs", "proto")
_MOST_NAMES = 16  # in a message


def read_graph(
    document: object, sent: Mapping[str, Layout] | None, *, level: FeatureLevel = NEWEST, most_nodes: int = MOST_NODES,
    weights: Weights = _NO_WEIGHTS,
) -> Graph:  # fmt: skip
    """Read a graph for tensors of these types and sizes.

    Args:
        document: the JSON document, see the module; or `DML_GRAPH_DESC`, see `dml_graph.py`.
        sent: the tensors that arrive, by the name of the input: packed. None for those that the graph declares, whose
            sizes are then all numbers.
        level: the DirectML feature level that its descriptors are validated at; default the newest.
        most_nodes: nodes that it may have.
        weights: inputs that are constants, since their elements are kept.

    Raises:
        InvalidDescriptor: rules are broken; it lists every violation, each with its node. Nodes that depend on a wrong
        node are not checked.
    """
    if is_object(document) and is_dml_graph(document):
        return read_dml_graph(document, sent, level=level, most_nodes=most_nodes)
    reader = _GraphReader(level)
    members = reader.members(document, (), _MEMBERS, "a graph")
    inputs = reader.by_name(members, "inputs")
    if sent is None:
        sent = reader.declared({name: value for name, value in inputs.items() if name not in weights})
    slots = reader.read_inputs(inputs, sent, weights)
    constants = reader.read_constants(reader.by_name(members, "constants"))
    reader.read_nodes(members.get("nodes"), most_nodes)
    outputs = reader.read_outputs(members.get("outputs"))
    if not reader.violations:  # nodes that are wrong read nothing
        reader.find_unused()
    if reader.violations:
        raise InvalidDescriptor.of(reader.violations)
    return Graph(slots, tuple(reader.made), tuple(outputs.values()), constants, tuple(outputs))


def input_names(document: Mapping[str, Any]) -> list[str]:
    """The names of a graph's inputs, in either wording, before it is read."""
    if is_dml_graph(document):
        return dml_input_names(document)
    inputs = document.get("inputs")
    return [*inputs] if is_object(inputs) else []


def declared_sizes(document: Mapping[str, Any]) -> dict[str, tuple[int | str | None, ...] | None]:
    """The sizes of a graph's inputs as it declares them, by name; nothing of `DML_GRAPH_DESC`."""
    inputs, found = document.get("inputs"), dict[str, tuple[int | str | None, ...] | None]()
    for name, declared in inputs.items() if is_object(inputs) else ():
        sizes = declared.get("sizes") if is_object(declared) else None
        found[name] = tuple(sizes) if is_list(sizes) else None
    return found


@dataclass(slots=True)
class _NodeText:
    """A node of the document whose name can be used.

    Attributes:
        place: its place in the document.
        members: its members.
        reads: what its inputs name, each with its path in the node.
        outputs: its outputs by name, once it was read; None if it, or a node before it, is wrong.
    """

    place: int
    members: Mapping[str, Any]
    reads: Sequence[tuple[str, Path]]
    outputs: Mapping[str, ReadableTensor] | None = None


class _GraphReader:
    """Reads a document member by member, and goes on where a rule is broken.

    Attributes:
        violations: what is wrong so far.
        made: the nodes that were read, each after those that it reads.
    """

    def __init__(self, level: FeatureLevel) -> None:
        self.violations: list[Violation] = []
        self.made: list[Node] = []
        self._level = level
        self._most_inner = 0  # nodes that subgraphs may have
        self._tensors: dict[str, ReadableTensor] = {}  # inputs and constants
        self._nodes: dict[str, _NodeText] = {}
        self._wrong: set[str] = set()  # names of inputs and constants that cannot be read
        self._used: set[str] = set()
        self._constants: list[tuple[Slot, bytes | memoryview]] = []

    def _add(self, code: str, path: Path, message: str, value: object = None, expected: str = "") -> None:
        self.violations.append(Violation(code, path, message, value, expected, SOURCE))

    def members(self, value: object, path: Path, known: Collection[str], what: str) -> Mapping[str, Any]:
        """The members of an object; a value that is no object has none."""
        if not is_object(value):
            self._add("document", path, f"{what} must be a JSON object", value, f"an object with {', '.join(known)}")
            return {}
        for key in value:
            if key not in known:
                hint = did_you_mean(key, known) or f"; there are {', '.join(known)}"
                message = f"{what} has no member {str(key)[:60]!r}{hint}"
                self._add("document", (*path, str(key)), message, None, ", ".join(known))
        return value

    def by_name(self, members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A member that is an object of named things, and may be left out."""
        value = members.get(name, {})
        if is_object(value):
            return value
        self._add("document", (name,), f"{name} must be a JSON object, with an entry for each name", value, "an object")
        return {}

    def _accept_name(self, name: str, path: Path) -> bool:
        """Whether something may have this name."""
        if not name or "." in name or len(name) > LONGEST_NAME:
            message = (
                f"a name has 1 to {LONGEST_NAME} characters and no dot, which precedes the name of a node's output"
            )
            self._add("graph-name", path, message, name, "a name, as in resized")
            return False
        if name in self._tensors or name in self._nodes:
            message = f"the name {name!r} is used twice; each input, constant and node needs its own name"
            self._add("graph-name", path, message, name, "a name that is not used yet")
            return False
        return True

    # ---- inputs and constants ----------------------------------------------------------------------------------------

    def declared(self, inputs: Mapping[str, Any]) -> Mapping[str, Layout]:
        """The tensors that a graph declares, with numbers for all sizes."""
        found: dict[str, Layout] = {}
        for name, declared in inputs.items():
            members: Mapping[str, Any] = declared if is_object(declared) else {}
            row, sizes = _type_named(members.get("data_type")), members.get("sizes")
            if row is None or not is_list(sizes) or not all(type(size) is int and size >= 0 for size in sizes):
                message = (
                    f"the tensor {name!r} is not given, so its data_type and its sizes must be declared, as numbers"
                )
                self._add("input-missing", ("inputs", name), message, declared, "data_type and sizes")
                self._wrong.add(name)
            else:
                found[name] = Layout.row_major(row, sizes)
        return found

    def read_inputs(
        self, inputs: Mapping[str, Any], sent: Mapping[str, Layout], weights: Weights = _NO_WEIGHTS
    ) -> tuple[Slot, ...]:
        """The inputs, compared with the tensors that arrive and with those that are kept."""
        slots: list[Slot] = []
        bound: dict[str, tuple[int, str]] = {}
        for name, declared in inputs.items():
            path: Path = ("inputs", name)
            if not self._accept_name(name, path) or name in self._wrong:
                continue
            kept = weights.get(name)
            arrived = sent.get(name) if kept is None else kept[0]
            if kept is not None and name in sent:
                message = f"{name!r} is stored with the graph; do not send it"
                self._add("input-unknown", path, message, None, "no tensor")
            if arrived is None:
                there = ", ".join(map(repr, sent)) or "no tensor"
                message = f"the tensor {name!r} was not sent; the body has {there}"
                self._add("input-missing", path, message, None, "a tensor")
                self._wrong.add(name)
                continue
            members = self.members(declared, path, ("data_type", "sizes"), "an input")
            if "data_type" in members:
                self._compare_type(name, members["data_type"], arrived.data_type)
            if "sizes" in members:
                self._bind_sizes(name, members["sizes"], arrived.sizes, bound)
            layout = Layout.row_major(arrived.data_type, arrived.sizes)
            if kept is None:
                self._tensors[name] = ReadableTensor(GraphInput(len(slots)), layout)
                slots.append(Slot(name, layout))
            else:
                self._tensors[name] = ReadableTensor(GraphConstant(len(self._constants)), layout, layout.view(kept[1]))
                self._constants.append((Slot(name, layout), kept[1]))
        for name in sent:
            if name not in inputs:
                known = ", ".join(map(repr, inputs)) or "none"
                message = f"the graph has no input {name[:60]!r}{did_you_mean(name, inputs)}; its inputs: {known}"
                self._add("input-unknown", ("inputs",), message, name, known)
        return tuple(slots)

    def _compare_type(self, name: str, declared: object, arrived: DataType) -> None:
        path: Path = ("inputs", name, "data_type")
        row = _type_named(declared)
        if row is None:
            message = "data_type must name a type, as in FLOAT32, float32 or F32"
            self._add("data-type-unknown", path, message, declared, "a data type's name")
        elif row is not arrived:
            message = f"{name!r} is {row.numpy_name} in the graph, and {arrived.numpy_name} was sent"
            self._add("data-type-differs", path, message, arrived.numpy_name, row.numpy_name)

    def _bind_sizes(self, name: str, declared: object, sizes: Sequence[int], bound: dict[str, tuple[int, str]]) -> None:
        """Compare sizes with those that arrived; a name stands for one number in the whole graph."""
        path: Path = ("inputs", name, "sizes")
        if not is_list(declared) or len(declared) != len(sizes):
            found = f"{counted(len(declared), 'dimension')}" if is_list(declared) else "no list of sizes"
            message = f"{name!r} has {found} in the graph, and {counted(len(sizes), 'dimension')} as it was sent"
            expected = f"{counted(len(declared), 'dimension')}" if is_list(declared) else "a list of numbers and names"
            self._add("input-sizes", path, message, list(sizes) if is_list(declared) else declared, expected)
            return
        for axis, (entry, size) in enumerate(zip(declared, sizes, strict=True)):
            if isinstance(entry, str):
                first, where = bound.setdefault(entry, (size, name))
                if first != size:
                    message = (
                        f"{entry!r} is {size} here, and {first} in {where!r}; it must be the same number in the "
                        "whole graph"
                    )
                    self._add("input-sizes", (*path, axis), message, size, str(first))
            elif type(entry) is not int or entry != size:
                message = f"axis {axis} of {name!r} has size {entry!r} in the graph, and {size} as it was sent"
                hint = f"{entry}; or a name in the graph, which takes any size"
                self._add("input-sizes", (*path, axis), message, size, hint)

    def read_constants(self, constants: Mapping[str, Any]) -> tuple[tuple[Slot, bytes | memoryview], ...]:
        """The constants, each with its bytes, after those inputs that are kept."""
        found = self._constants
        for name, value in constants.items():
            path: Path = ("constants", name)
            if not self._accept_name(name, path):
                continue
            self._wrong.add(name)
            if not is_object(value):
                message = 'a constant is a tensor as JSON, as in {"dtype": "F32", "shape": [2], "data": [0.5, 2]}'
                self._add("document", path, message, value, "an object")
                continue
            try:
                array = tensor_from_json(value, path=path)
            except InvalidDescriptor as error:
                self.violations += error.violations
                continue
            if array.dtype.kind == "O":
                self._add("graph-node", path, "graphs compute no strings", "string", "numbers")
                continue
            self._wrong.discard(name)
            layout = Layout.row_major(data_type(array.dtype), array.shape)
            self._tensors[name] = ReadableTensor(GraphConstant(len(found)), layout, array)
            found.append((Slot(name, layout), array.tobytes()))
        return tuple(found)

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def read_nodes(self, nodes: object, most_nodes: int) -> None:
        """The nodes, each after those that it reads."""
        if not is_list(nodes) or not nodes:
            self._add("document", ("nodes",), "nodes must be a list of at least one node", nodes, "a list")
            return
        if len(nodes) > most_nodes:
            message = f"the graph has {len(nodes):,} nodes; at most {most_nodes:,} are computed here"
            self._add("graph-size", ("nodes",), message, len(nodes), f"at most {most_nodes} nodes")
            return
        self._most_inner = most_nodes - len(nodes)
        for place, node in enumerate(nodes):
            self._find_name(place, node)
        for name in self._in_order():
            self._read_node(name, self._nodes[name])

    def _find_name(self, place: int, node: object) -> None:
        path: Path = ("nodes", place)
        is_onnx = is_object(node) and "op_type" in node
        known = _ONNX_MEMBERS if is_onnx else _DIRECTML_MEMBERS
        if is_object(node) and is_onnx and "proto" in node:
            known = _PROTO_MEMBERS
        members = self.members(node, path, known, "a node")
        if not members:
            return
        if not is_onnx and "type" not in members:
            message = 'a node has "type" and "desc", as in DirectML, or "op_type" and "attributes", as in ONNX'
            self._add("document", path, message, None, "type or op_type")
        name = members.get("name")
        if not isinstance(name, str):
            self._add("graph-name", (*path, "name"), "a node needs a name", name, "a text")
        elif self._accept_name(name, (*path, "name")):
            self._nodes[name] = _NodeText(place, members, [*references(members.get("inputs"))])

    def _in_order(self) -> Sequence[str]:
        """The names of the nodes, each after those that it reads, without those in cycles or after them."""
        readers: dict[str, list[str]] = {name: [] for name in self._nodes}
        waiting: dict[str, int] = {}
        for name, node in self._nodes.items():
            before = {text.partition(".")[0] for text, _ in node.reads} & self._nodes.keys()
            waiting[name] = len(before)
            for each in before:
                readers[each].append(name)
        order = [name for name, count in waiting.items() if not count]
        for name in order:
            for reader in readers[name]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    order.append(reader)
        if len(order) < len(self._nodes):
            circle = self._circle({name for name, count in waiting.items() if count})
            path: Path = ("nodes", self._nodes[circle[0]].place, "inputs")
            message = f"nodes form a cycle: {' <- '.join(circle[:_MOST_NAMES])}"
            self._add("graph-circle", path, message, None, "no cycle")
        return order

    def _circle(self, names: Collection[str]) -> list[str]:
        """A cycle among nodes that wait for each other."""
        at, seen = min(names, key=lambda name: self._nodes[name].place), list[str]()
        while at not in seen:
            seen.append(at)
            before = [text.partition(".")[0] for text, _ in self._nodes[at].reads]
            at = next(name for name in before if name in names)
        return [*seen[seen.index(at) :], at]

    def _read_node(self, name: str, node: _NodeText) -> None:
        """Read a node, unless a tensor that it reads is wrong."""
        path: Path = ("nodes", node.place)
        tensors: dict[str, ReadableTensor] = {}
        for text, where in node.reads:
            if (tensor := self._tensor(text, (*path, *where))) is not None:
                tensors[text] = tensor
        if any(text not in tensors for text, _ in node.reads):
            return
        try:
            if "proto" in node.members:
                operation, sources = read_proto_node(node.members, tensors, self._most_inner)
                self._most_inner -= len(operation.inner)
            else:
                operation, sources = read_node(node.members, tensors, self._level)
        except InvalidDescriptor as error:
            self.violations += error.prefixed(*path).violations
        except UnknownOperator as error:
            member = "op_type" if "op_type" in node.members else "type"
            self._add("operator-unknown", (*path, member), error.detail, node.members.get(member), "an operator")
        else:
            number = len(self.made)
            node.outputs = {
                slot.name: ReadableTensor(NodeOutput(number, index), slot.layout)
                for index, slot in enumerate(operation.outputs)
            }
            self.made.append(Node(operation, sources, name))

    def _tensor(self, text: str, path: Path) -> ReadableTensor | None:
        """The tensor that a text names; None if there is none, or if what makes it is wrong."""
        name, dot, output = text.partition(".")
        self._used.add(name)
        if name in self._wrong:
            return None
        if name in self._tensors and not dot:
            return self._tensors[name]
        node = self._nodes.get(name)
        if node is None:
            known = [*self._tensors, *self._nodes]
            message = f"there is no input, constant or node {name[:60]!r}{did_you_mean(name, known)}"
            self._add("graph-reference", path, message, text, ", ".join(known[:_MOST_NAMES]))
            return None
        if node.outputs is None:
            return None
        if not dot and len(node.outputs) == 1:
            return next(iter(node.outputs.values()))
        if output not in node.outputs:
            names = ", ".join([f"{name}.{each}" for each in node.outputs])
            message = f"{text[:60]!r} names no output of the node {name!r}, which has {names}"
            self._add("graph-reference", path, message, text, names)
        return node.outputs.get(output)

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def read_outputs(self, outputs: object) -> dict[str, NodeOutput]:
        """Where the outputs come from, by their names."""
        found: dict[str, NodeOutput] = {}
        if not is_object(outputs) or not outputs:
            message = 'outputs must name the tensors that come back, as in {"small": "resized"}'
            self._add("document", ("outputs",), message, outputs, "an object")
            return found
        for name, text in outputs.items():
            path: Path = ("outputs", name)
            if not name or len(name) > LONGEST_NAME:
                message = f"a name has 1 to {LONGEST_NAME} characters"
                self._add("graph-name", path, message, name, "a name, as in resized")
            if not isinstance(text, str):
                self._add("graph-reference", path, "an output is the name of a tensor", text, "a text")
            elif (tensor := self._tensor(text, path)) is not None:
                if isinstance(tensor.ref, NodeOutput):
                    found[name] = tensor.ref
                else:
                    message = f"{text!r} is not computed by a node; remove it from outputs"
                    self._add("graph-reference", path, message, text, "a node's output")
        return found

    def find_unused(self) -> None:
        """Add what no node reads: a mistake, or bytes and work without a use. Constants are allowed."""
        for name, tensor in self._tensors.items():
            if name not in self._used and tensor.value is None:
                self._add("graph-unused", ("inputs", name), f"no node reads {name!r}", None, "a node that reads it")
        for name, node in self._nodes.items():
            if name not in self._used:
                path: Path = ("nodes", node.place, "name")
                message = f"nothing reads {name!r}; remove it, or name it in outputs"
                self._add("graph-unused", path, message, name, "a node that reads it")


def _type_named(name: object) -> DataType | None:
    """The data type of this name in any system; None if there is none."""
    try:
        return type_named(name if isinstance(name, str) else "")
    except KeyError:
        return None
