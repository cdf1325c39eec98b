"""Read the bytes of an ONNX model into `OnnxModel`: its graph with functions inlined, as frozen values.

No package is needed for it. Everything that would name a file or run something is refused by name before a node is
read: external data, custom domains, sparse and string tensors, in subgraphs, too.

Source: onnx.proto, and "Open Neural Network Exchange Intermediate Representation", IR versions 3 to 13.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import DATA_TYPES, ML_DTYPES, DataType
from ..values.packed_elements import packed_bytes, unpacked_elements
from ..values.problems import InvalidDescriptor, Violation
from .protobuf import Field, broken, doubles_of, fields, floats_of, varints_of

__all__ = [
    "MODEL_MEDIA_TYPE", "ModelNode", "ModelSubgraph", "ModelTensor", "OnnxModel", "inlined_nodes", "read_model",
    "tensor_names",
]  # fmt: skip

SOURCE = "onnx.proto"
MODEL_MEDIA_TYPE = "application/onnx"
MOST_MODEL_BYTES = (1 << 31) - 1
"""Protocol Buffers has no larger message."""
OLDEST_IR = 3
MOST_INLINED = 10_000
"""Nodes of a model once its functions are inlined."""
DEEPEST = 16
"""Functions that call each other, and subgraphs within each other."""
ML_DOMAIN = "ai.onnx.ml"
"""ONNX's operators of classic machine learning, which ONNX Runtime computes."""
_DOMAINS = ("", "ai.onnx")
_ROWS = {row.onnx_code: row for row in DATA_TYPES}
_STORED = frozenset({"float16", *ML_DTYPES})
"""Types of which the numbers of `int32_data` are the bits."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or an output of a model.

    Attributes:
        name: its name in the model.
        data_type: its element type; None if the model does not say.
        sizes: numbers, names, and None where nothing is said; None if not even the rank is.
        kind: `tensor`, or `sequence` or `optional`, whose tensors have the element type.
    """

    name: str
    data_type: DataType | None = None
    sizes: tuple[int | str | None, ...] | None = None
    kind: str = "tensor"


@dataclass(frozen=True, slots=True)
class _AttributeReference:
    """An attribute of the function's caller."""

    name: str


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node.

    Attributes:
        name: its name; empty if it has none.
        op_type: the operator.
        domain: the operator's domain; empty for ONNX's own.
        opset: the version of the domain.
        inputs: tensors that it reads, empty for those that are left out.
        outputs: tensors that it makes, empty for those that nobody wants.
        attributes: numbers, texts, lists of them, arrays, and a `ModelSubgraph` for each graph.
        message: the bytes of its NodeProto; None if neither it has a subgraph nor it is of the domain ai.onnx.ml.
        captures: tensors outside that its subgraphs read: what they are called outside, by their name in there.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    message: memoryview | None = None
    captures: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, its subgraphs included."""
        return (*self.inputs, *self.captures.values()) if self.captures else self.inputs

    @property
    def subgraphs(self) -> Mapping[str, ModelSubgraph]:
        """The graphs among its attributes, by name."""
        return {name: value for name, value in self.attributes.items() if isinstance(value, ModelSubgraph)}


@dataclass(frozen=True, slots=True, eq=False)
class ModelSubgraph:
    """A graph that is an attribute of a node: a branch of If, or the body of Loop or Scan.

    Attributes:
        inputs: what is given at each run.
        outputs: names of what it makes.
        initializers: its constants by name.
        nodes: its nodes in order.
        opsets: the version of each domain.
    """

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, NDArray[Any]]
    nodes: tuple[ModelNode, ...]
    opsets: Mapping[str, int]

    @property
    def node_count(self) -> int:
        """Its nodes, with those of subgraphs within it."""
        return sum([1 + sum([each.node_count for each in node.subgraphs.values()]) for node in self.nodes])

    @property
    def names(self) -> Iterator[str]:
        """The names of its tensors, and of those of subgraphs within it, some more than once."""
        yield from (*[each.name for each in self.inputs], *self.initializers, *self.outputs)
        yield from tensor_names(self.nodes)

    def captured(self) -> dict[str, None]:
        """The names of what it reads of the graph outside, in the order in which it does."""
        known, found = {*self.initializers, *[each.name for each in self.inputs]}, dict[str, None]()
        for node in self.nodes:
            found |= dict.fromkeys([name for name in node.reads if name and name not in known])
            known |= {*node.outputs}
        return found | dict.fromkeys([name for name in self.outputs if name not in known])


@dataclass(frozen=True, slots=True)
class _ModelFunction:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[ModelNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A model that was read.

    Attributes:
        inputs: what is given at each run, without those that an initializer stands for.
        outputs: what it makes.
        initializers: its constants by name, an input's default among them.
        nodes: its nodes in order, functions inlined.
        opset: the version of ONNX's operators.
        producer: the program that wrote it; empty if it does not say.
        ir_version: the version of the file's format.
        opsets: the version of each domain, ONNX's own as the empty name.
        defaults: the initializers that are defaults of inputs; nobody can give the others. Source: ONNX IR, "Graphs".
    """

    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    initializers: Mapping[str, NDArray[Any]]
    nodes: tuple[ModelNode, ...]
    opset: int
    producer: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    defaults: frozenset[str] = frozenset()


def read_model(content: bytes | bytearray | memoryview, *, lists: bool = False) -> OnnxModel:
    """Read a model.

    Args:
        content: the bytes of a ModelProto.
        lists: whether its inputs and outputs may be sequences and optional values (`graphs/model_lists.py`).

    Raises:
        InvalidDescriptor: the bytes are no model, or it needs what is not computed: external data, a custom domain,
            strings, sparse tensors; it names the node or the tensor.
    """
    data = memoryview(content).cast("B")
    if len(data) > MOST_MODEL_BYTES:
        raise broken(f"it has {len(data):,} bytes, and no model has more than {MOST_MODEL_BYTES:,}")
    ir_version, producer, graph = 0, "", None
    opsets: dict[str, int] = {}
    functions: list[memoryview] = []
    for field in fields(data):
        match field.number:
            case 1:
                ir_version = field.whole
            case 2:
                producer = field.text
            case 7:
                graph = field.data
            case 8:
                _read_opset(field.data, opsets)
            case 25:
                functions.append(field.data)
            case _:
                pass
    if graph is None or ir_version < OLDEST_IR:
        raise broken("it has no graph" if graph is None else f"its IR version {ir_version} is older than {OLDEST_IR}")
    known = dict([_read_function(each) for each in functions])
    model = _read_graph(graph, opsets, lists=lists)
    taken = set[str]()
    if known:
        outside = [*model.initializers, *[each.name for each in (*model.inputs, *model.outputs)]]
        taken = {*outside, *tensor_names(model.nodes)}
    nodes = _Inliner(known, taken).inlined(model.nodes)
    return replace(
        model, nodes=tuple(nodes), opset=opsets.get("", 1), producer=producer, ir_version=ir_version, opsets=opsets
    )  # fmt: skip


def tensor_names(nodes: Sequence[ModelNode]) -> Iterator[str]:
    """The names of the tensors that nodes read and make, within their subgraphs, too; some more than once."""
    for node in nodes:
        yield from (*node.reads, *node.outputs)
        for graph in node.subgraphs.values():
            yield from graph.names


def refused(path: Sequence[str | int], message: str, value: object, expected: str) -> InvalidDescriptor:
    """The error of a model that breaks a rule, or needs what is not there."""
    return InvalidDescriptor.of([Violation("onnx-model", tuple(path), message, value, expected, SOURCE)])


def _read_opset(message: memoryview, opsets: dict[str, int]) -> None:
    domain, version = "", 0
    for field in fields(message):
        if field.number == 1:
            domain = field.text
        elif field.number == 2:
            version = field.whole
    opsets["" if domain in _DOMAINS else domain] = version


# ---- the graph -------------------------------------------------------------------------------------------------------


def _read_graph(
    message: memoryview, opsets: Mapping[str, int], path: Sequence[str | int] = ("graph",), depth: int = 0, *,
    lists: bool = False,
) -> OnnxModel:  # fmt: skip
    nodes: list[ModelNode] = []
    inputs: list[ModelTensor] = []
    outputs: list[ModelTensor] = []
    initializers: dict[str, NDArray[Any]] = {}
    for field in fields(message):
        match field.number:
            case 1:
                nodes.append(_read_node(field.data, opsets, (*path, "node", len(nodes)), depth))
            case 5:
                name, array = _read_tensor(field.data, (*path, "initializer", len(initializers)))
                initializers[name] = array
            case 11:
                inputs.append(_read_value_info(field.data, (*path, "input"), is_tensor=not depth, lists=lists))
            case 12:
                outputs.append(_read_value_info(field.data, (*path, "output"), is_tensor=not depth, lists=lists))
            case 15:
                raise refused((*path, "sparse_initializer"), "sparse initializers are not read", None, "a dense one")
            case _:
                pass
    given = tuple([each for each in inputs if each.name not in initializers])
    defaults = frozenset([each.name for each in inputs if each.name in initializers])
    return OnnxModel(given, tuple(outputs), initializers, tuple(nodes), 0, defaults=defaults)


def _read_value_info(message: memoryview, path: Sequence[str | int], *, is_tensor: bool, lists: bool) -> ModelTensor:
    """An input or an output of a graph; within a model there may be sequences, whose tensors say their types."""
    found = ModelTensor("")
    for field in fields(message):
        if field.number == 1:
            found = replace(found, name=field.text)
        elif field.number == 2:
            for kind in fields(field.data):
                if kind.number == 1:
                    found = _with_tensor_type(found, kind.data)
                elif lists and kind.number in _LISTS:
                    found = _of_elements(replace(found, kind=_LISTS[kind.number]), kind.data)
                elif is_tensor:
                    message_ = f"{found.name!r} is a sequence, a map or an optional value, and a call has tensors only"
                    raise refused((*path, found.name), message_, None, "a tensor")
    return found


_LISTS = {4: "sequence", 9: "optional"}
"""Fields of TypeProto."""


def _of_elements(found: ModelTensor, message: memoryview) -> ModelTensor:
    """The input or output with the element type of what is in its sequence or optional value."""
    for field in fields(message):
        for kind in fields(field.data):
            if kind.number == 1:
                return replace(_with_tensor_type(found, kind.data), sizes=None)
            if kind.number in _LISTS:
                return _of_elements(found, kind.data)
    return found


def _with_tensor_type(tensor: ModelTensor, message: memoryview) -> ModelTensor:
    for field in fields(message):
        if field.number == 1:
            row = _ROWS.get(field.whole)
            if row is None or row.dtype.kind in "OUT":
                raise refused(
                    ("graph", "input", tensor.name), f"{tensor.name!r} is of ONNX's type {field.whole}, which is not "
                    "computed", field.whole, "numbers or booleans",
                )  # fmt: skip
            tensor = replace(tensor, data_type=row)
        elif field.number == 2:
            tensor = replace(tensor, sizes=tuple([_read_size(each.data) for each in fields(field.data)]))
    return tensor


def _read_size(message: memoryview) -> int | str | None:
    """A number, a name, or None for a free size: exporters also write -1 and `?` for one (Paddle2ONNX does)."""
    size: int | str | None = None
    for field in fields(message):
        if field.number == 1:
            size = field.whole if field.whole >= 0 else None  # -1: some exporters write it for any size
        elif field.number == 2:
            size = None if field.text in ("", "?") else field.text  # "?": one that all unknown sizes share
    return size


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _read_node(
    message: memoryview, opsets: Mapping[str, int], path: Sequence[str | int], depth: int = 0, *, is_own: bool = False
) -> ModelNode:  # fmt: skip
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Any] = {}
    name = op_type = domain = ""
    attribute_messages: list[memoryview] = []
    for field in fields(message):
        match field.number:
            case 1:
                inputs.append(field.text)
            case 2:
                outputs.append(field.text)
            case 3:
                name = field.text
            case 4:
                op_type = field.text
            case 5:
                attribute_messages.append(field.data)
            case 7:
                domain = field.text
            case _:
                pass
    domain = "" if domain in _DOMAINS else domain
    kept = domain == ML_DOMAIN or any(part.number == 6 for each in attribute_messages for part in fields(each))
    if kept and depth == 0 and not is_own:
        return _read_node(memoryview(bytes(message)), opsets, path, is_own=True)  # nothing of the file stays in memory
    for each in attribute_messages:
        key, value = _read_attribute(each, f"{op_type} {name!r}", path, opsets, depth)
        attributes[key] = value
    node = ModelNode(name, op_type, domain, opsets.get(domain, 0), tuple(inputs), tuple(outputs), attributes)
    if not kept:
        return node
    if any(isinstance(value, _AttributeReference) for value in attributes.values()):
        message_ = f"the node {op_type} {name!r} reads attributes of a function that calls it, which is not computed"
        raise refused(path, message_, None, "numbers, or the model with its functions inlined (onnx.inliner)")
    captures = {key: key for each in node.subgraphs.values() for key in each.captured()}
    return replace(node, message=message, captures=captures)


def _read_subgraph(
    message: memoryview, node: str, opsets: Mapping[str, int], path: Sequence[str | int], depth: int
) -> ModelSubgraph:  # fmt: skip
    if depth == DEEPEST:
        raise refused(path, f"subgraphs lie {DEEPEST} deep within each other at the node {node}", depth, "fewer")
    graph = _read_graph(message, opsets, path, depth + 1)
    for inner in graph.nodes:
        if any(isinstance(value, _AttributeReference) for value in inner.attributes.values()):
            message_ = f"the node {node} has a subgraph that reads attributes of a function, which is not computed"
            raise refused(path, message_, None, "numbers, or the model with its functions inlined (onnx.inliner)")
    outputs = tuple([each.name for each in graph.outputs])
    return ModelSubgraph(graph.inputs, outputs, graph.initializers, graph.nodes, opsets)


def _read_attribute(
    message: memoryview, node: str, path: Sequence[str | int], opsets: Mapping[str, int], depth: int
) -> tuple[str, Any]:  # fmt: skip
    name, value, kind = "", cast("Any", None), 0
    several: dict[int, list[Any]] = {7: [], 8: [], 9: []}
    for field in fields(message):
        match field.number:
            case 1:
                name = field.text
            case 2:
                value = _only(floats_of(field))
            case 3:
                value = field.whole
            case 4:
                value = field.text
            case 5:
                _, value = _read_tensor(field.data, (*path, "attribute", name))
            case 7:
                several[7] += floats_of(field)
            case 8:
                several[8] += varints_of(field)
            case 9:
                several[9].append(field.text)
            case 6:
                value = _read_subgraph(field.data, node, opsets, (*path, "attribute", name), depth)
            case 10 | 11 | 22 | 23:
                what = "several subgraphs" if field.number == 11 else "sparse tensors or lists of tensors"
                message_ = f"the node {node} has {what} in {name!r}, which is not computed"
                raise refused((*path, "attribute", name), message_, None, "numbers, texts or one tensor")
            case 20:
                kind = field.whole
            case 21:
                value = _AttributeReference(field.text)
            case _:
                pass
    if kind in (6, 7, 8) and not isinstance(value, _AttributeReference):
        value = several[{6: 7, 7: 8, 8: 9}[kind]]
    elif value is None:
        value = next((each for each in several.values() if each), {1: 0.0, 2: 0, 3: ""}.get(kind, []))
    return name, value


def _only(numbers: Sequence[float]) -> float:
    if len(numbers) != 1:
        raise broken(f"an attribute has {len(numbers)} numbers where one is expected")
    return numbers[0]


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _read_tensor(message: memoryview, path: Sequence[str | int]) -> tuple[str, NDArray[Any]]:
    """A TensorProto's name and elements."""
    sizes: list[int] = []
    code, name, raw, external = 0, "", cast("memoryview | None", None), False
    numbers: list[Any] = []
    for field in fields(message):
        match field.number:
            case 1:
                sizes += varints_of(field)
            case 2:
                code = field.whole
            case 8:
                name = field.text
            case 9:
                raw = field.data
            case 13:
                external = True
            case 14:
                external = external or field.whole == 1
            case 4 | 5 | 7 | 10 | 11:
                numbers += _numbers(field)
            case _:
                pass
    what = f"the tensor {name!r}"
    if external:
        raise refused(
            path, f"{what} lies in another file (external data); no file is read", None,
            "a model with its tensors inside, as onnx.save(model, path, save_as_external_data=False) writes it",
        )  # fmt: skip
    row = _ROWS.get(code)
    if row is None or row.dtype.kind in "OUT":
        raise refused(path, f"{what} is of ONNX's type {code}, which is not read", code, "numbers or booleans")
    count = math.prod(sizes)
    if any(size < 0 for size in sizes):
        raise refused(path, f"{what} has the sizes {sizes}", sizes, "sizes of 0 or more")
    dtype = row.dtype.newbyteorder("<") if row.dtype.byteorder in "=<>" else row.dtype
    if raw is not None:
        needed = packed_bytes(count, row.bits) if row.bits else count * row.item_size
        if len(raw) != needed:
            raise refused(path, f"{what} has {len(raw):,} bytes for {count:,} elements", len(raw), f"{needed} bytes")
        if row.bits:
            array = unpacked_elements(np.frombuffer(raw, np.uint8), row.bits, count).view(dtype)
        else:
            array = np.frombuffer(raw, dtype).astype(row.dtype, copy=False)
    else:
        packed = row.bits in (2, 4)
        wanted = packed_bytes(count, row.bits) if packed else count * (2 if row.dtype.kind == "c" else 1)
        if len(numbers) != wanted:
            raise refused(path, f"{what} has {len(numbers):,} numbers for {count:,} elements", None, f"{count} numbers")
        if packed:
            line = np.array([number & 0xFF for number in numbers], np.uint8)
            array = unpacked_elements(line, row.bits, count).view(row.dtype)
        elif row.numpy_name in _STORED:
            bits = np.dtype(f"u{row.item_size}")
            array = np.array([number & np.iinfo(bits).max for number in numbers], bits).view(row.dtype)
        else:
            wide = np.uint64 if row.dtype == np.uint64 else np.int64 if row.dtype.kind in "iub" else np.float64
            array = np.array(numbers, wide).astype(row.dtype)
    try:
        return name, array.reshape(sizes)
    except (ValueError, OverflowError):  # of no elements and a size that no array has
        raise refused(path, f"{what} has the sizes {sizes}", sizes, "sizes that an array can have") from None


def _numbers(field: Field) -> list[Any]:
    if field.number == 4:
        return floats_of(field)
    if field.number == 10:
        return doubles_of(field)
    found = varints_of(field)
    return [number % (1 << 64) for number in found] if field.number == 11 else found


# ---- functions -------------------------------------------------------------------------------------------------------


def _read_function(message: memoryview) -> tuple[tuple[str, str], _ModelFunction]:
    opsets: dict[str, int] = {}
    for field in fields(message):
        if field.number == 9:
            _read_opset(field.data, opsets)
    name = domain = ""
    inputs: list[str] = []
    outputs: list[str] = []
    nodes: list[ModelNode] = []
    defaults: dict[str, Any] = {}
    for field in fields(message):
        match field.number:
            case 1:
                name = field.text
            case 4:
                inputs.append(field.text)
            case 5:
                outputs.append(field.text)
            case 7:
                nodes.append(_read_node(field.data, opsets, ("functions", name, "node", len(nodes))))
            case 10:
                domain = field.text
            case 11:
                key, value = _read_attribute(field.data, name, ("functions", name), opsets, DEEPEST)
                defaults[key] = value
            case _:
                pass
    domain = "" if domain in _DOMAINS else domain
    return (domain, name), _ModelFunction(tuple(inputs), tuple(outputs), defaults, tuple(nodes))


class _Inliner:
    """Puts the nodes of functions in the place of the nodes that call them.

    Args:
        functions: the model's functions, by domain and name.
        taken: the names of the model's tensors; those that are made are added.
    """

    def __init__(self, functions: Mapping[tuple[str, str], _ModelFunction], taken: set[str]) -> None:
        self._functions, self._taken, self._calls, self._made = functions, taken, 0, 0

    def inlined(self, nodes: Sequence[ModelNode], depth: int = 0) -> list[ModelNode]:
        """The nodes without calls of functions.

        Raises:
            InvalidDescriptor: functions call each other too deeply, or there are too many nodes.
        """
        found: list[ModelNode] = []
        for node in nodes:
            function = self._functions.get((node.domain, node.op_type))
            if function is None:
                self._made += 1 + sum([each.node_count for each in node.subgraphs.values()])
                self._refuse_calls(node)
                found.append(node)
            elif depth == DEEPEST:
                message = f"functions call each other {DEEPEST} deep at {node.op_type!r}"
                raise refused(("functions", node.op_type), message, depth, f"at most {DEEPEST}")
            else:
                found += self.inlined(self._body(node, function), depth + 1)
            if self._made + self._calls > MOST_INLINED:
                message = f"the model has more than {MOST_INLINED:,} nodes once its functions are inlined"
                raise refused(("functions",), message, None, f"at most {MOST_INLINED} nodes")
        return found

    def _refuse_calls(self, node: ModelNode) -> None:
        """Refuse calls of functions within subgraphs."""
        for name, graph in node.subgraphs.items():
            for inner in graph.nodes:
                if (inner.domain, inner.op_type) in self._functions:
                    message = f"the subgraph {name} of the node {node.op_type} {node.name!r} calls the function "
                    message += f"{inner.op_type!r}, which is not computed"
                    expected = "a model with its functions inlined (onnx.inliner)"
                    raise refused(("functions", inner.op_type), message, None, expected)
                self._refuse_calls(inner)

    def _body(self, call: ModelNode, function: _ModelFunction) -> list[ModelNode]:
        self._calls += 1
        names = {"": ""}
        names |= dict(zip(function.inputs, [*call.inputs, *[""] * len(function.inputs)], strict=False))
        names |= {inner: outer for inner, outer in zip(function.outputs, call.outputs, strict=False) if outer}
        attributes = {**function.defaults, **call.attributes}

        def renamed(name: str) -> str:
            if name not in names:
                made = f"{(call.name or call.op_type)[:60]}_{self._calls}/{name}"
                while made in self._taken:
                    made = f"_{made}"
                self._taken.add(made)
                names[name] = made
            return names[name]

        found: list[ModelNode] = []
        for node in function.nodes:
            given = {
                key: attributes.get(value.name) if isinstance(value, _AttributeReference) else value
                for key, value in node.attributes.items()
            }
            found.append(
                replace(
                    node,
                    inputs=tuple(map(renamed, node.inputs)),
                    outputs=tuple(map(renamed, node.outputs)),
                    attributes={key: value for key, value in given.items() if value is not None},
                    captures={inner: renamed(outer) for inner, outer in node.captures.items()},
                )
            )
        return found


def inlined_nodes(
    graph: ModelSubgraph, outputs: Sequence[str], captures: Mapping[str, str], prefix: str
) -> tuple[list[ModelNode], dict[str, NDArray[Any]]]:  # fmt: skip
    """The nodes and the constants of a branch in the place of the node that takes it.

    Args:
        graph: the branch, which has no inputs.
        outputs: what the node's outputs are called.
        captures: see `ModelNode.captures`, and what its inputs are.
        prefix: begins the names of what lies within, and of no other tensor.
    """
    names = {"": ""}

    def renamed(name: str) -> str:
        if (found := names.get(name)) is None:
            found = names[name] = captures.get(name) or f"{prefix}/{name}"
        return found

    found = [
        replace(
            node, inputs=tuple(map(renamed, node.inputs)),
            outputs=tuple(map(renamed, node.outputs)),
            captures={inner: renamed(outer) for inner, outer in node.captures.items()},
        )
        for node in graph.nodes
    ]  # fmt: skip
    for made, name in zip(graph.outputs, outputs, strict=False):
        if name:
            found.append(ModelNode("", "Identity", "", 13, (renamed(made),), (name,), {}))
    return found, {renamed(name): array for name, array in graph.initializers.items()}
