"""Read a graph's JSON document into a `Graph`, whose tensors all have a type and sizes.

    {"inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
     "constants": {"mean": {"dtype": "F32", "shape": [3], "data": [124, 116, 104]}},
     "nodes": [{"name": "f", "op_type": "Cast", "opset": 21, "inputs": ["photo"], "attributes": {"to": "float32"}},
               {"name": "c", "op_type": "Sub", "opset": 21, "inputs": ["f", "mean"]},
               {"name": "small", "type": "RESAMPLE2", "inputs": {"InputTensor": "c"},
                "desc": {"InterpolationMode": "LINEAR", "Scales": [1, 0.5, 0.5, 1]}}],
     "outputs": {"small": "small"}}

A tensor is called by the name of an input, of a constant, or of a node with one output; an output of a node with
several is `node.output`, as in `parts.output_0`. Nodes may stand in any order. Sizes of intermediates follow. A size
that is a name is bound by the tensor that arrives. Every rule of the format is tensorpost's choice; what a node may be,
DirectML and ONNX say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard, cast

from ..bodies.json_tensor import tensor_from_json
from ..descriptors import NEWEST, FeatureLevel, OperatorDesc, operator_class
from ..onnx.node import OnnxNode
from ..onnx.operator_schema import OnnxSchema
from ..onnx.report import Path
from ..onnx.schemas import NEWEST_OPSET, schema_of
from ..onnx.strings import has_strings
from ..onnx.tensor import OnnxTensor
from ..values.datatypes import DataType, data_type
from ..values.graph import Graph, GraphConstant, GraphInput, Node, NodeOutput, Ref
from ..values.layout import Layout
from ..values.operation import Operation, Slot
from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, counted, nearest

__all__ = ["MOST_NODES", "read_graph"]

MOST_NODES = 1000
"""Nodes of a graph, if no other limit is given."""

_MEMBERS = ("inputs", "constants", "nodes", "outputs")
_DIRECTML_MEMBERS = ("name", "type", "inputs", "desc")
_ONNX_MEMBERS = ("name", "op_type", "opset", "inputs", "attributes", "outputs")
_LONGEST_NAME = 100
_SOURCE = "tensorpost's form of a graph"


class _Tensor(NamedTuple):
    """A tensor that nodes may read."""

    ref: Ref
    layout: Layout


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
    reads: list[tuple[str, Path]]
    outputs: dict[str, _Tensor] | None = None


@dataclass(slots=True)
class _GraphReader:
    """What was read so far, and what is wrong."""

    level: FeatureLevel
    violations: list[Violation] = field(default_factory=list[Violation])
    tensors: dict[str, _Tensor] = field(default_factory=dict[str, _Tensor])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: dict[str, _NodeText] = field(default_factory=dict[str, _NodeText])
    used: set[str] = field(default_factory=set[str])
    wrong: set[str] = field(default_factory=set[str])
    operations: list[Node] = field(default_factory=list[Node])

    def add(self, code: str, path: Path, message: str, value: object = None, expected: str = "") -> None:
        self.violations.append(Violation(code, path, message, value, expected, _SOURCE))

    def is_name(self, name: str, path: Path) -> bool:
        """Whether a name may be used and is not taken; adds what is wrong."""
        if not name or "." in name or len(name) > _LONGEST_NAME:
            message = f"a name has 1 to {_LONGEST_NAME} characters and no dot, which stands before a node's output"
            self.add("graph-name", path, message, name, "a name as in resized")
        elif name in self.tensors or name in self.nodes:
            self.add(
                "graph-name", path, f"{name!r} is the name of two; each needs a name of its own", name, "a free name"
            )
        else:
            return True
        return False

    def resolve(self, text: str, path: Path) -> _Tensor | None:
        """The tensor that a text names; None if there is none, which is added, or if its node is wrong."""
        name, dot, output = text.partition(".")
        if name in self.tensors and not dot:
            self.used.add(name)
            return self.tensors[name]
        node = self.nodes.get(name)
        if name in self.wrong:
            return None
        if node is None:
            guess = nearest(name, [*self.tensors, *self.nodes])
            hint = f"; did you mean {guess!r}?" if guess else ""
            message = f"there is no input, constant or node {name[:60]!r}{hint}"
            self.add("graph-reference", path, message, text, ", ".join([*self.tensors, *self.nodes][:16]))
            return None
        self.used.add(name)
        if node.outputs is None:
            return None
        if not dot and len(node.outputs) == 1:
            return next(iter(node.outputs.values()))
        if output in node.outputs:
            return node.outputs[output]
        names = ", ".join(f"{name}.{each}" for each in node.outputs)
        message = f"{text[:60]!r} names no output of the node {name!r}, which has {names}"
        self.add("graph-reference", path, message, text, names)
        return None


def read_graph(
    document: object, sent: Mapping[str, Layout] | None, *, level: FeatureLevel = NEWEST, most_nodes: int = MOST_NODES
) -> Graph:
    """Read a graph for tensors of these types and sizes.

    Args:
        document: the JSON document, see the module.
        sent: the tensors that arrive, by the name of the input: packed. None for those that the graph declares, whose
            sizes are then all numbers.
        level: the DirectML feature level that its descriptors are validated at; default the newest.
        most_nodes: nodes that it may have.

    Raises:
        InvalidDescriptor: rules are broken; it lists every violation, each with its node. What follows from a node that
            is wrong is not looked at.
    """
    reading = _GraphReader(level)
    members = _object(document, (), _MEMBERS, "a graph", reading)
    inputs = _members_of(members, "inputs", reading)
    slots = _read_inputs(inputs, _declared(inputs, reading) if sent is None else sent, reading)
    constants = _read_constants(_members_of(members, "constants", reading), reading)
    nodes = members.get("nodes")
    if not _is_list(nodes) or not nodes:
        reading.add("document", ("nodes",), "nodes must be a list of at least one node", nodes, "a list")
    elif len(nodes) > most_nodes:
        message = f"the graph has {len(nodes):,} nodes; at most {most_nodes:,} are computed here"
        reading.add("graph-size", ("nodes",), message, len(nodes), f"at most {most_nodes} nodes")
    else:
        _read_names(nodes, reading)
        for name in _in_order(reading):
            _read_node(name, reading)
    outputs = _read_outputs(members.get("outputs"), reading)
    _find_unused(reading)
    if reading.violations:
        raise InvalidDescriptor.of(reading.violations)
    return Graph(slots, tuple(reading.operations), tuple(outputs.values()), constants, tuple(outputs))


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _object(value: object, path: Path, known: Collection[str], what: str, reading: _GraphReader) -> Mapping[str, Any]:
    """The members of an object; what it must not have is added, and no object has no members."""
    if not _is_object(value):
        reading.add("document", path, f"{what} must be a JSON object", value, f"an object with {', '.join(known)}")
        return {}
    for key in value:
        if key not in known:
            guess = nearest(str(key), known)
            hint = f"; did you mean {guess!r}?" if guess else f"; there are {', '.join(known)}"
            reading.add(
                "document", (*path, str(key)), f"{what} has no member {str(key)[:60]!r}{hint}", None, ", ".join(known)
            )
    return value


def _members_of(members: Mapping[str, Any], name: str, reading: _GraphReader) -> Mapping[str, Any]:
    value = members.get(name, {})
    if _is_object(value):
        return value
    reading.add("document", (name,), f"{name} must be a JSON object, from a name to what it is", value, "an object")
    return {}


# ---- inputs and constants --------------------------------------------------------------------------------------------


def _read_inputs(inputs: Mapping[str, Any], sent: Mapping[str, Layout], reading: _GraphReader) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    bound: dict[str, tuple[int, str]] = {}
    for name, declared in inputs.items():
        path: Path = ("inputs", name)
        if not reading.is_name(name, path):
            continue
        arrived = sent.get(name)
        if arrived is None:
            reading.wrong.add(name)
            if not any(found.path[:2] == path for found in reading.violations):
                there = ", ".join(map(repr, sent)) or "no tensor"
                message = f"the tensor {name!r} was not sent; the body has {there}"
                reading.add("input-missing", path, message, None, "a tensor")
            continue
        members = _object(declared, path, ("data_type", "sizes"), "an input", reading)
        row = _declared_type(members, path, reading)
        if row is not None and row is not arrived.data_type:
            message = f"{name!r} is {row.numpy_name} in the graph, and {arrived.data_type.numpy_name} was sent"
            reading.add(
                "data-type-differs", (*path, "data_type"), message, arrived.data_type.numpy_name, row.numpy_name
            )
        if "sizes" in members:
            _bind_sizes(name, members["sizes"], arrived.sizes, bound, reading)
        layout = Layout.row_major(arrived.data_type, arrived.sizes)
        reading.tensors[name] = _Tensor(GraphInput(len(slots)), layout)
        slots.append(Slot(name, layout))
    for name in sent:
        if name not in inputs:
            guess = nearest(name, inputs)
            hint = f"; did you mean {guess!r}?" if guess else ""
            known = ", ".join(map(repr, inputs)) or "none"
            reading.add(
                "input-unknown", ("inputs",), f"the graph has no input {name[:60]!r}{hint}; its inputs: {known}", name
            )
    return tuple(slots)


def _declared(inputs: Mapping[str, Any], reading: _GraphReader) -> Mapping[str, Layout]:
    """The tensors that a graph declares."""
    found: dict[str, Layout] = {}
    for name, declared in inputs.items():
        members: Mapping[str, Any] = declared if _is_object(declared) else {}
        sizes, silent = members.get("sizes"), _GraphReader(reading.level)
        row = _declared_type(members, ("inputs", name), silent)
        if row is None or not _is_list(sizes) or not all(isinstance(size, int) and size >= 0 for size in sizes):
            message = f"without the tensor {name!r}, its data_type and its sizes must be there, as numbers"
            reading.add("input-missing", ("inputs", name), message, declared, "data_type and sizes")
        else:
            found[name] = Layout.row_major(row, sizes)
    return found


def _declared_type(members: Mapping[str, Any], path: Path, reading: _GraphReader) -> DataType | None:
    if "data_type" not in members:
        return None
    text = members["data_type"]
    try:
        return data_type(text if isinstance(text, str) else "")
    except KeyError:
        message = "data_type must name a type, as in FLOAT32, float32 or F32"
        reading.add("data-type-unknown", (*path, "data_type"), message, text, "a data type's name")
        return None


def _bind_sizes(
    name: str, declared: object, sizes: Sequence[int], bound: dict[str, tuple[int, str]], reading: _GraphReader
) -> None:
    """Compare sizes with those that arrived; a name stands for one number in the whole graph."""
    path: Path = ("inputs", name, "sizes")
    if not _is_list(declared) or len(declared) != len(sizes):
        message = f"{name!r} has {counted(len(sizes), 'dimension')} as it was sent: {list(sizes)}"
        reading.add("input-sizes", path, message, declared, f"{counted(len(sizes), 'size')}, numbers or names")
        return
    for axis, (text, size) in enumerate(zip(declared, sizes, strict=True)):
        if isinstance(text, str):
            first, where = bound.setdefault(text, (size, name))
            if first != size:
                message = f"{text!r} is {size} here, and {first} in {where!r}; a name is one number in the whole graph"
                reading.add("input-sizes", (*path, axis), message, size, str(first))
        elif not isinstance(text, int) or isinstance(text, bool) or text != size:
            message = f"axis {axis} of {name!r} has {counted(size, 'element')} as it was sent"
            reading.add("input-sizes", (*path, axis), message, text, f"{size}, or a name")


def _read_constants(constants: Mapping[str, Any], reading: _GraphReader) -> tuple[tuple[Slot, bytes], ...]:
    found: list[tuple[Slot, bytes]] = []
    for name, value in constants.items():
        path: Path = ("constants", name)
        if not reading.is_name(name, path):
            continue
        reading.wrong.add(name)
        if not _is_object(value):
            message = 'a constant is a tensor as JSON, as in {"dtype": "F32", "shape": [2], "data": [0.5, 2]}'
            reading.add("document", path, message, value, "an object")
            continue
        try:
            array = tensor_from_json(value, path=path)
        except InvalidDescriptor as error:
            reading.violations += error.violations
            continue
        if array.dtype.kind == "O":
            reading.add("strings-in-graph", path, "graphs compute no strings", "string", "numbers")
            continue
        layout = Layout.row_major(data_type(array.dtype), array.shape)
        reading.wrong.discard(name)
        reading.tensors[name] = _Tensor(GraphConstant(len(found)), layout)
        reading.values[name] = array
        found.append((Slot(name, layout), array.tobytes()))
    return tuple(found)


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _read_names(nodes: Sequence[Any], reading: _GraphReader) -> None:
    """The nodes by name, with what their inputs name."""
    for place, node in enumerate(nodes):
        path: Path = ("nodes", place)
        is_onnx = _is_object(node) and "op_type" in node
        members = _object(node, path, _ONNX_MEMBERS if is_onnx else _DIRECTML_MEMBERS, "a node", reading)
        if not members:
            continue
        if not is_onnx and "type" not in members:
            message = (
                'a node says what it computes: "type" and "desc" of DirectML, or "op_type" and "attributes" of ONNX'
            )
            reading.add("document", path, message, None, "type or op_type")
        name = members.get("name")
        if not isinstance(name, str):
            reading.add("graph-name", (*path, "name"), "a node needs a name", name, "a text")
        elif reading.is_name(name, (*path, "name")):
            reading.nodes[name] = _NodeText(place, members, [*_references(members.get("inputs"), ("inputs",))])


def _references(inputs: object, path: Path) -> Iterator[tuple[str, Path]]:
    """Every text in a node's inputs, which names a tensor; empty ones are inputs of ONNX that are left out."""
    if isinstance(inputs, str):
        if inputs:
            yield inputs, path
    elif _is_object(inputs):
        for key, value in inputs.items():
            yield from _references(value, (*path, str(key)))
    elif _is_list(inputs):
        for place, value in enumerate(inputs):
            yield from _references(value, (*path, place))


def _in_order(reading: _GraphReader) -> Sequence[str]:
    """The nodes, each after those that it reads; of nodes in a circle only the first is looked at, as what is wrong."""
    readers: dict[str, list[str]] = {name: [] for name in reading.nodes}
    waiting: dict[str, int] = {}
    for name, node in reading.nodes.items():
        before = {text.partition(".")[0] for text, _ in node.reads} & reading.nodes.keys()
        waiting[name] = len(before)
        for each in before:
            readers[each].append(name)
    order = [name for name, count in waiting.items() if not count]
    for name in order:
        for reader in readers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    if len(order) < len(reading.nodes):
        circle = _circle({name for name, count in waiting.items() if count}, reading)
        path: Path = ("nodes", reading.nodes[circle[0]].place, "inputs")
        reading.add(
            "graph-circle", path, f"nodes read each other in a circle: {' <- '.join(circle[:16])}", None, "no circle"
        )
        reading.used.update(reading.nodes)
    return order


def _circle(names: Collection[str], reading: _GraphReader) -> list[str]:
    """A circle among nodes that wait for each other."""
    at, seen = min(names, key=lambda name: reading.nodes[name].place), list[str]()
    while at not in seen:
        seen.append(at)
        before = [text.partition(".")[0] for text, _ in reading.nodes[at].reads]
        at = next(name for name in before if name in names)
    return [*seen[seen.index(at) :], at]


def _read_node(name: str, reading: _GraphReader) -> None:
    """Add the operation of a node whose inputs are known; a node with a wrong one is left out."""
    node = reading.nodes[name]
    path: Path = ("nodes", node.place)
    found = {text: reading.resolve(text, (*path, *where)) for text, where in node.reads}
    if None in found.values():
        return
    tensors = cast("dict[str, _Tensor]", found)
    read = _read_onnx if "op_type" in node.members else _read_directml
    try:
        made = read(node.members, tensors, reading)
    except InvalidDescriptor as error:
        reading.violations += error.prefixed(*path).violations
        return
    except UnknownOperator as error:
        member = "op_type" if "op_type" in node.members else "type"
        reading.add("operator-unknown", (*path, member), error.detail, node.members.get(member), "an operator")
        return
    operation, refs = made
    if has_strings(operation):
        reading.add("strings-in-graph", path, f"{operation.name} works on strings, which graphs do not compute")
        return
    outputs: dict[str, _Tensor] = {}
    for index, slot in enumerate(operation.outputs):
        if not slot.layout.packed:
            message = f"{slot.name} of {name!r} has strides or padding; tensors of a graph are packed"
            reading.add("graph-packed", (*path, "desc"), message, None, "no Strides")
        outputs[slot.name] = _Tensor(NodeOutput(len(reading.operations), index), slot.layout)
    node.outputs = outputs
    reading.operations.append(Node(operation, tuple([refs[slot.name].ref for slot in operation.inputs]), name))


def _refuse(path: Path, message: str, value: object, expected: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation("graph-inputs", path, message, value, expected, _SOURCE)])


def _read_directml(
    members: Mapping[str, Any], tensors: Mapping[str, _Tensor], reading: _GraphReader
) -> tuple[Operation, Mapping[str, _Tensor]]:
    """The descriptor, and the tensor of each of its inputs."""
    kind, desc = members.get("type"), members.get("desc", {})
    if not isinstance(kind, str):
        raise _refuse(("type",), "type must name the operator", kind, "as in RESAMPLE2")
    cls = operator_class(kind)
    if not _is_object(desc):
        raise _refuse(("desc",), "desc must be an object with the operator's fields", desc, "an object")
    fields = cls.facts.fields_by_kind["input"]
    names = {each: entry for entry in fields for each in (entry.name, entry.attribute_name, entry.slot_name)}
    inputs, complete, refs = members.get("inputs", {}), dict[str, Any](desc), dict[str, _Tensor]()
    for key, value in _by_name(inputs, [entry.name for entry in fields], cls.operator_type).items():
        entry = names.get(key)
        path: Path = ("inputs", key) if _is_object(inputs) else ("inputs",)
        if entry is None:
            known = ", ".join([each.name for each in fields])
            raise _refuse(path, f"{cls.operator_type} has no input {key[:60]!r}; its inputs: {known}", key, known)
        if {entry.name, entry.attribute_name} & desc.keys():
            raise _refuse(
                path, f"{entry.name} stands in inputs and in desc; what it is follows from inputs", key, "one"
            )
        texts: Sequence[Any] = value if _is_list(value) else [value]
        if (_is_list(value) and not entry.is_array) or not all(isinstance(text, str) and text for text in texts):
            expected = "a list of names" if entry.is_array else "a name"
            raise _refuse(path, f"{entry.name} must be {expected} of tensors", value, expected)
        described = [_directml_tensor(text, tensors[text].layout, path) for text in texts]
        complete[entry.name] = described if entry.is_array else described[0]
        for place, text in enumerate(texts):
            refs[f"{entry.slot_name}_{place}" if entry.is_array else entry.slot_name] = tensors[text]
    parsed = _completed(cls, complete, reading.level)
    missing = [slot.name for slot in parsed.inputs if slot.name not in refs]
    if missing:
        message = f"{missing[0]} is described in desc and reads no tensor; name one in inputs"
        raise _refuse(("inputs",), message, missing[0], "a name for each input")
    return parsed, refs


def _completed(cls: type[OperatorDesc], desc: Mapping[str, Any], level: FeatureLevel) -> OperatorDesc:
    try:
        parsed = cls.completed(desc)
        parsed.validate_for(level)
    except InvalidDescriptor as error:
        raise error.prefixed("desc") from None
    return parsed


def _directml_tensor(text: str, layout: Layout, path: Path) -> dict[str, Any]:
    if layout.data_type.directml is None:
        message = (
            f"{text!r} is {layout.data_type.numpy_name}, for which DirectML has no type; use ONNX's operators for it"
        )
        raise _refuse(path, message, layout.data_type.numpy_name, "a type of DirectML")
    return {"DataType": layout.data_type.directml, "Sizes": list(layout.sizes)}


def _read_onnx(
    members: Mapping[str, Any], tensors: Mapping[str, _Tensor], reading: _GraphReader
) -> tuple[Operation, Mapping[str, _Tensor]]:
    """The node, and the tensor of each of its inputs."""
    opset = members.get("opset", NEWEST_OPSET)
    schema = schema_of(cast("str", members["op_type"]), opset)
    inputs = members.get("inputs", [])
    refs: dict[str, _Tensor] = {}
    given: dict[str, Any] = {}
    count = len(inputs) if _is_list(inputs) else 1
    for formal, value in _by_name(inputs, _formal_names(schema, count), schema.name).items():
        if not isinstance(value, str):
            given[formal] = value
            continue
        if not value:
            continue
        entry = schema.input(formal)
        if entry is not None and not entry.data:
            if value not in reading.values:
                message = (
                    f"{formal} of {schema.name} decides the sizes of the output, so it must be numbers or a constant"
                )
                raise _refuse(("inputs",), message, value, "a list of numbers, or a constant's name")
            given[formal] = reading.values[value]
            continue
        tensor = tensors[value]
        refs[formal] = tensor
        given[formal] = OnnxTensor(tensor.layout.data_type.numpy_name, tensor.layout.sizes)
    document = {"op_type": members["op_type"], "opset": opset, "inputs": given}
    document |= {key: members[key] for key in ("attributes", "outputs") if key in members}
    return OnnxNode.from_json(document), refs


def _formal_names(schema: OnnxSchema, count: int) -> list[str]:
    names = [entry.name for entry in schema.inputs if not entry.variadic]
    variadic = [entry.name for entry in schema.inputs if entry.variadic]
    return names + [f"{variadic[0]}_{index}" for index in range(count - len(names))] if variadic else names


def _by_name(inputs: object, names: Sequence[str], operator: str) -> Mapping[str, Any]:
    """The inputs of a node by their names: of an object, of a list in the operator's order, or of a single one.

    Raises:
        InvalidDescriptor: there are more than the operator has, or they are something else.
    """
    if _is_object(inputs):
        return inputs
    listed: Sequence[Any] = [inputs] if isinstance(inputs, str) else inputs if _is_list(inputs) else ()
    if not isinstance(inputs, str) and not _is_list(inputs):
        message = (
            "inputs must be names of tensors: one, a list in the operator's order, or an object by the operator's names"
        )
        raise _refuse(("inputs",), message, inputs, "names")
    if len(listed) > len(names):
        message = f"{operator} has {counted(len(names), 'input')}: {', '.join(names) or 'none'}"
        raise _refuse(("inputs",), message, len(listed), f"at most {len(names)}")
    return dict(zip(names, listed, strict=False))


# ---- outputs ---------------------------------------------------------------------------------------------------------


def _read_outputs(outputs: object, reading: _GraphReader) -> dict[str, NodeOutput]:
    found: dict[str, NodeOutput] = {}
    if not _is_object(outputs) or not outputs:
        message = 'outputs must name the tensors that come back, as in {"small": "resized"}'
        reading.add("document", ("outputs",), message, outputs, "an object")
        return found
    for name, text in outputs.items():
        path: Path = ("outputs", name)
        if not name or len(name) > _LONGEST_NAME:
            reading.add("graph-name", path, f"a name has 1 to {_LONGEST_NAME} characters", name, "a name")
        if not isinstance(text, str):
            reading.add("graph-reference", path, "an output is the name of a tensor", text, "a text")
            continue
        tensor = reading.resolve(text, path)
        if tensor is None:
            continue
        if not isinstance(tensor.ref, NodeOutput):
            reading.add(
                "graph-reference", path, f"{text!r} is computed by no node; it need not travel", text, "a node's output"
            )
            continue
        found[name] = tensor.ref
    return found


def _find_unused(reading: _GraphReader) -> None:
    """Add what nobody reads: a mistake, or bytes and work for nothing."""
    if reading.violations:
        return  # nodes that are wrong read nothing
    for name, tensor in reading.tensors.items():
        if name not in reading.used and name not in reading.values:
            reading.add("graph-unused", ("inputs", name), f"no node reads {name!r}", None, "a reader")
        assert tensor.layout.packed
    for name, node in reading.nodes.items():
        if name not in reading.used:
            path: Path = ("nodes", node.place, "name")
            reading.add(
                "graph-unused", path, f"nothing reads {name!r}; remove it, or name it in outputs", name, "a reader"
            )
