"""What a stored graph is made from: a graph's document or an ONNX model, with the tensors that are kept beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tensorpost import frame
from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import NEWEST, FeatureLevel
from tensorpost.graphs.dml_graph import is_dml_graph
from tensorpost.graphs.graph_document import Weights, declared_sizes, read_graph
from tensorpost.graphs.model_graph import ModelStage, model_graph, model_stage, needed_nodes
from tensorpost.graphs.model_nodes import runtime_operator
from tensorpost.onnx.model_reader import MODEL_MEDIA_TYPE, ModelNode, OnnxModel, read_model
from tensorpost.values.datatypes import DataType, type_named
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InvalidDescriptor,
    InvalidFrame,
    InvalidParameter,
    LimitExceeded,
    TensorpostError,
    UnsupportedMediaType,
    Violation,
)

from ...operators.onnx_runtime import require_runtime
from ...settings import Settings
from ..multipart import MOST_VALUES
from ..request_body import JSON_MEMORY_FACTOR
from .call_parser import MOST_JSON_CONTAINERS, CallInput, as_document, read_document
from .staged_calls import RestOfModel, StoredConstant, bound

_MOST_READ_GRAPHS = 8
"""Graphs of a model that are kept, each for other sizes or elements. With an input that decides sizes no call is
repeated as it is, and reading silero-vad's graph takes 11 ms."""
_NODE_BYTES = 1024  # of a model's node: texts and values
_TRIAL_SIZES = ((224, 256), (64, 96), (32, 48), (8, 12), (3, 4), (1, 2))


class DeclaredTensor(NamedTuple):
    """An input or an output of a stored graph, as far as it is known before tensors arrive.

    Attributes:
        name: its name.
        data_type: its element type; None if any may arrive.
        sizes: numbers, names, and None for one that depends on the inputs; None if not even the rank is known.
    """

    name: str
    data_type: DataType | None
    sizes: tuple[int | str | None, ...] | None

    def to_json(self) -> dict[str, Any]:
        """The tensor in the answer to `GET /v1/graphs/{name}`."""
        kind = None if self.data_type is None else self.data_type.numpy_name
        return {"name": self.name, "data_type": kind, "sizes": None if self.sizes is None else [*self.sizes]}


class GraphSource(Protocol):
    """What a stored graph is made from. Everything but `graph` is known when it is stored."""

    @property
    def kind(self) -> str:
        """`graph` or `onnx`."""
        ...

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The graph's document; None of a model."""
        ...

    @property
    def node_count(self) -> int:
        """The number of its nodes."""
        ...

    @property
    def size_in_bytes(self) -> int:
        """About the memory that it takes."""
        ...

    @property
    def inputs(self) -> Sequence[DeclaredTensor]:
        """What each call sends."""
        ...

    @property
    def outputs(self) -> Sequence[DeclaredTensor]:
        """What comes back."""
        ...

    @property
    def call_inputs(self) -> Sequence[CallInput]:
        """The inputs as a `CallParser` names them."""
        ...

    @property
    def value_names(self) -> frozenset[str]:
        """Inputs whose elements decide sizes."""
        ...

    @property
    def constants(self) -> Container[str]:
        """Names of what is kept, and cannot be given with a call."""
        ...

    def graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> Graph:  # fmt: skip
        """The graph for tensors of these types and sizes.

        Raises:
            InvalidDescriptor, InvalidParameter, UnknownOperator: they do not fit, or rules are broken.
        """
        ...

    def first_graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> FirstGraph:  # fmt: skip
        """The same; of a model whose sizes depend on elements, the graph of its first part.

        Raises:
            InvalidDescriptor, InvalidParameter, UnknownOperator: see `graph`.
        """
        ...


class FirstGraph(NamedTuple):
    """The graph of a call, or its first part, and what follows then; None if there is nothing."""

    graph: Graph
    rest: RestOfModel | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocument:
    """A graph's document, in either wording, and the inputs that are kept (`weights`). See `GraphSource`."""

    document: Mapping[str, Any]
    node_count: int
    size_in_bytes: int
    weights: Weights
    inputs: Sequence[DeclaredTensor]
    call_inputs: Sequence[CallInput]
    outputs: Sequence[DeclaredTensor] = ()
    kind: str = field(default="graph", init=False)
    value_names: frozenset[str] = field(default=frozenset(), init=False)

    @property
    def constants(self) -> Container[str]:
        return self.weights

    @classmethod
    def of(cls, document: Mapping[str, Any], text_bytes: int, weights: Weights) -> StoredDocument:
        """The source of a document.

        Args:
            document: the document.
            text_bytes: length of its text.
            weights: the inputs that are kept.

        Raises:
            InvalidDescriptor: it is in DirectML's structs, and breaks a rule.
        """
        if is_dml_graph(document):
            inputs = [
                DeclaredTensor(slot.name, slot.layout.data_type, slot.layout.sizes)
                for slot in read_graph(document, None).inputs
            ]
        else:
            inputs = [each for each in declared_inputs(document) if each.name not in weights]
        nodes = document.get("Nodes" if is_dml_graph(document) else "nodes")
        count = len(cast("list[Any]", nodes)) if isinstance(nodes, (list, tuple)) else 0
        size = text_bytes * JSON_MEMORY_FACTOR + sum([len(data) for _, data in weights.values()])
        return cls(document, count, size, weights, inputs, [_call_input(tensor.name) for tensor in inputs])

    def described(self) -> StoredDocument:
        """The same with its outputs, as far as they are known before tensors arrive."""
        names = _members(self.document.get("outputs"))
        found = outputs_by_trial(self)
        return replace(self, outputs=found or [DeclaredTensor(name, None, None) for name in names])

    def graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> Graph:  # fmt: skip
        del values
        if outputs is not None:
            raise InvalidParameter(
                "only of an ONNX model outputs can be chosen; a graph's document names those that come back",
                extra={"parameter": "outputs"},
            )
        try:
            return read_graph(self.document, sent, level=level, most_nodes=most_nodes, weights=self.weights)
        except InvalidDescriptor as error:
            raise error.prefixed("graph") from None

    def first_graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> FirstGraph:  # fmt: skip
        return FirstGraph(self.graph(sent, values, outputs, level, most_nodes))


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """An ONNX model. See `GraphSource`.

    Attributes:
        model: the model. Its arrays are copies: in a file, they begin anywhere.
        views: its constants by the identity of their arrays.
    """

    model: OnnxModel
    views: Mapping[int, StoredConstant]
    size_in_bytes: int
    inputs: Sequence[DeclaredTensor]
    call_inputs: Sequence[CallInput]
    value_names: frozenset[str]
    outputs: Sequence[DeclaredTensor] = ()
    kind: str = field(default="onnx", init=False)
    document: None = field(default=None, init=False)
    _graphs: OrderedDict[object, FirstGraph] = field(default_factory=OrderedDict[object, FirstGraph], init=False)

    @classmethod
    def of(cls, model: OnnxModel) -> StoredModel:
        """The source of a model that was read."""
        initializers = {name: array.copy() for name, array in model.initializers.items()}
        nodes = [replace(node, attributes=_copied(node.attributes)) for node in model.nodes]
        model = replace(model, initializers=initializers, nodes=tuple(nodes))
        values = [value for node in nodes for value in node.attributes.values()]
        size = sum([getattr(value, "nbytes", 0) for value in (*initializers.values(), *values)])
        size += _NODE_BYTES * len(nodes) + sum([len(node.message or b"") for node in nodes])
        inputs = [DeclaredTensor(each.name, each.data_type, each.sizes) for each in model.inputs]
        given = [_call_input(tensor.name) for tensor in inputs]
        given += [_call_input(name, optional=True) for name in initializers if name in model.defaults]
        # Whole numbers of few elements, as the shape of a Reshape.
        small = frozenset([each.name for each in inputs if _is_small(each)])
        arrays = [*initializers.values(), *[array for node in nodes for array in _arrays_of(node)]]
        views = {id(array): StoredConstant(array, _bytes_of(array)) for array in arrays}
        return cls(model, views, size, inputs, given, small)

    @property
    def node_count(self) -> int:
        return len(self.model.nodes)

    @property
    def constants(self) -> Container[str]:
        return self.model.initializers.keys() - self.model.defaults

    def runtime_operator(self) -> str | None:
        """An operator of a node that ONNX Runtime computes; None if there is none."""
        outputs = [tensor.name for tensor in self.model.outputs]
        nodes = [node for _, node in needed_nodes(self.model, outputs)]
        return runtime_operator(nodes, frozenset([*outputs, *[name for node in nodes for name in node.reads]]))

    def described(self) -> StoredModel:
        """The same with its outputs, as far as they are known before tensors arrive."""
        declared = [DeclaredTensor(each.name, each.data_type, each.sizes) for each in self.model.outputs]
        if any(tensor.data_type is None or tensor.sizes is None for tensor in declared):
            declared = outputs_by_trial(self) or declared
        return replace(self, outputs=declared)

    def graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> Graph:  # fmt: skip
        found = self.first_graph(sent, values, outputs, level, most_nodes)
        if found.rest is not None:
            model_graph(self.model, sent, outputs, values)  # names the node
        return found.graph

    def first_graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> FirstGraph:  # fmt: skip
        read_before = [(name, array.dtype, array.shape, array.tobytes()) for name, array in sorted(values.items())]
        key = (*sorted(sent.items(), key=lambda each: each[0]), *read_before, None, *(outputs or ()), level, most_nodes)
        known = self._graphs.get(key)
        if known is None:
            known = self._graphs[key] = self._read(sent, values, outputs, level, most_nodes)
            if len(self._graphs) > _MOST_READ_GRAPHS:
                self._graphs.popitem(last=False)
        return known

    def _read(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> FirstGraph:  # fmt: skip
        made = model_stage(self.model, sent, outputs, values)
        rest = None
        if isinstance(made, ModelStage):
            rest = RestOfModel.of_stage(made, most_nodes, level, self.views)
        part = made.graph if isinstance(made, ModelStage) else made
        return FirstGraph(bound(part, sent, self.views, level, most_nodes).graph, rest)


def reading_bytes(content: bytes, media_type: str | None, settings: Settings) -> int:
    """Memory that `read_source` takes beside the body: values of a document, and copies of what is kept."""
    kind = _kind(content, media_type)
    if kind == "application/json":
        return min(len(content), settings.max_json_bytes) * JSON_MEMORY_FACTOR
    head = 0 if kind == MODEL_MEDIA_TYPE else int.from_bytes(content[:8], "little")
    return len(content) + min(head, settings.max_head_bytes) * JSON_MEMORY_FACTOR


def read_source(content: bytes, media_type: str | None, settings: Settings) -> GraphSource:
    """Read what is to be stored, and check what can be checked before tensors arrive.

    Args:
        content: the body; nothing that is kept is a view of it.
        media_type: JSON, a frame or application/onnx; None to find out by the first bytes.
        settings: limits of nodes, of JSON and of the head of a frame.

    Raises:
        LimitExceeded: the document is too long.
        UnsupportedMediaType: another media type.
        InvalidJson, InvalidFrame, InvalidDescriptor, InvalidParameter, UnknownOperator: it cannot be used.
        NoBackend: it is a model that needs ONNX Runtime, which is not installed.
    """
    kind = _kind(content, media_type)
    if kind == MODEL_MEDIA_TYPE:
        source = StoredModel.of(read_model(content))
    elif kind == "application/json":
        if len(content) > settings.max_json_bytes:
            limit = settings.max_json_bytes
            raise LimitExceeded.of("the graph's document", len(content), limit, "TENSORPOST_MAX_JSON_BYTES")
        document = as_document(read_json(content, max_containers=MOST_JSON_CONTAINERS), "graph")
        source = StoredDocument.of(document, len(content), {})
    elif kind in (frame.MEDIA_TYPE, *frame.ALSO_READ):
        source = _of_frame(content, settings.max_head_bytes)
    else:
        raise UnsupportedMediaType(
            f"a graph is stored from application/json, {frame.MEDIA_TYPE} or {MODEL_MEDIA_TYPE}, not {kind[:80]!r}"
        )
    _check(source, settings.max_graph_nodes)
    return source.described()


def declared_inputs(document: Mapping[str, Any]) -> list[DeclaredTensor]:
    """The inputs of a graph's document with names; of `DML_GRAPH_DESC` none."""
    inputs = _members(document.get("inputs"))
    return [DeclaredTensor(name, _type_in(inputs[name]), sizes) for name, sizes in declared_sizes(document).items()]


def outputs_by_trial(source: GraphSource) -> Sequence[DeclaredTensor] | None:
    """The outputs for inputs of some sizes; None if none of the sizes that are tried will do.

    A size that follows from a name of the inputs differs between two sizes for that name, and is None here.
    """
    for pair in _TRIAL_SIZES:
        with suppress(TensorpostError):
            first, second = (
                source.graph(sent, {}, None, NEWEST, source.node_count).output_slots for sent in _bound(source, pair)
            )
            return [
                DeclaredTensor(
                    one.name, one.layout.data_type,
                    tuple([a if a == b else None for a, b in zip(one.layout.sizes, other.layout.sizes, strict=True)]),
                )
                for one, other in zip(first, second, strict=True)
            ]  # fmt: skip
    return None


def declared_layouts(source: GraphSource, bound: Mapping[str, int] | None = None) -> dict[str, Layout] | None:
    """The inputs, if all of their types and sizes are known before tensors arrive.

    Args:
        source: what a graph is made from.
        bound: numbers for names of sizes.
    """
    found: dict[str, Layout] = {}
    for name, row, sizes in source.inputs:
        known = [(bound or {}).get(size, size) if isinstance(size, str) else size for size in sizes or ()]
        numbers = [size for size in known if isinstance(size, int)]
        if row is None or sizes is None or len(numbers) < len(sizes):
            return None
        found[name] = Layout.row_major(row, numbers)
    return found


def _bound(source: GraphSource, sizes: Sequence[int]) -> Iterator[Mapping[str, Layout]]:
    for size in sizes:
        found: dict[str, Layout] = {}
        for name, row, declared in source.inputs:
            if row is None or declared is None:
                raise InvalidParameter(f"nothing is known of {name!r}")
            found[name] = Layout.row_major(row, [each if isinstance(each, int) else size for each in declared])
        yield found


def _check(source: GraphSource, most_nodes: int) -> None:
    """Refuse what no call could use; all rules are checked if every size is known."""
    document = source.document
    if document is not None and not is_dml_graph(document):
        for member in ("nodes", "outputs"):
            if not document.get(member):
                raise InvalidDescriptor.of([Violation("document", ("graph", member), f"the graph has no {member}")])
    if source.node_count > most_nodes:
        message = (
            f"the graph has {source.node_count:,} nodes; at most {most_nodes:,} are computed here (setting "
            "TENSORPOST_MAX_GRAPH_NODES)"
        )
        raise InvalidDescriptor.of(
            [Violation("graph-size", ("graph", "nodes"), message, source.node_count, f"at most {most_nodes} nodes")]
        )
    if isinstance(source, StoredModel) and (operator := source.runtime_operator()) is not None:
        require_runtime(operator)
    if document is not None and is_dml_graph(document):
        read_graph(document, None, most_nodes=most_nodes)
    elif not source.value_names and (sent := declared_layouts(source)) is not None:
        source.first_graph(sent, {}, None, NEWEST, most_nodes)


def _of_frame(content: bytes, max_head_bytes: int) -> StoredDocument:
    """A frame with the graph in its metadata; its tensors are inputs that are kept."""
    reader = frame.HeadReader(max_head_bytes=max_head_bytes, content_length=len(content))
    fed = reader.feed(content)
    head = reader.finish()
    document = read_document(head.metadata.get("graph"), "graph")
    if document is None:
        raise InvalidFrame("the frame's metadata has no graph; it stands there as JSON text under graph")
    if is_dml_graph(document) and head.tensors:
        raise InvalidFrame("tensors beside DML_GRAPH_DESC are not kept; they are nodes of Type CONSTANT in it")
    weights: dict[str, tuple[Layout, memoryview]] = {}
    known, at = _members(document.get("inputs")), fed
    if len(content) - fed != head.body_bytes:
        raise InvalidFrame(f"the frame's tensors have {head.body_bytes:,} bytes, and the body {len(content) - fed:,}")
    for entry in head.tensors:
        if entry.name not in known or not entry.data_type.item_size:
            names = ", ".join(known) or "none"
            raise InvalidFrame(
                f"the tensor {entry.name[:60]!r} is no input of numbers of the graph; its inputs: {names}"
            )
        layout = Layout.row_major(entry.data_type, entry.shape)
        block = np.frombuffer(content, np.uint8, entry.nbytes, at).copy()  # which begins at a multiple of 16 bytes
        weights[entry.name] = (layout, block.data.toreadonly())
        at += entry.nbytes
    return StoredDocument.of(document, head.head_bytes, weights)


def _kind(content: bytes, media_type: str | None) -> str:
    if media_type is not None:
        return media_type.partition(";")[0].strip().lower()
    if content[:64].lstrip()[:1] == b"{":
        return "application/json"
    return frame.MEDIA_TYPE if content[8:9] == b"{" else MODEL_MEDIA_TYPE


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _type_in(declared: Any) -> DataType | None:
    name = _members(declared).get("data_type")
    try:
        return type_named(name) if isinstance(name, str) else None
    except KeyError:
        return None


def _call_input(name: str, *, optional: bool = False) -> CallInput:
    return CallInput(name, optional=optional, is_array=False)


def _arrays_of(node: ModelNode) -> Iterator[NDArray[Any]]:
    """The arrays in a node's attributes, and in those of its subgraphs."""
    for value in node.attributes.values():
        if isinstance(value, np.ndarray):
            yield cast("NDArray[Any]", value)
    for graph in node.subgraphs.values():
        yield from graph.initializers.values()
        for inner in graph.nodes:
            yield from _arrays_of(inner)


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in attributes.items()}


def _is_small(tensor: DeclaredTensor) -> bool:
    row, sizes = tensor.data_type, tensor.sizes
    if row is None or sizes is None or len(sizes) > 1 or row.dtype.kind not in "iub":
        return False
    return all(isinstance(size, int) and size <= MOST_VALUES for size in sizes)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()
