"""What a stored graph is made from: a graph's document or an ONNX model, with the tensors that are kept beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tensorpost import frame
from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import NEWEST, FeatureLevel
from tensorpost.graphs.dml_graph import is_dml_graph
from tensorpost.graphs.graph_document import Weights, read_graph
from tensorpost.graphs.model_graph import model_graph
from tensorpost.onnx.model_reader import OnnxModel, read_model
from tensorpost.values.datatypes import DataType, data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InvalidDescriptor,
    InvalidFrame,
    InvalidParameter,
    TensorpostError,
    UnsupportedMediaType,
    Violation,
)

from .request_body import JSON_MEMORY_FACTOR
from .wires.call_parser import MOST_JSON_CONTAINERS, CallInput, as_document, read_document

MODEL_MEDIA_TYPE = "application/onnx"
_NODE_BYTES = 1024  # of a model's node: texts and values
_MOST_VALUES = 64  # elements of a tensor that may decide sizes of a model, as the shape of Reshape does
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
    """What a stored graph is made from."""

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

    def graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> Graph:  # fmt: skip
        """The graph for tensors of these types and sizes.

        Raises:
            InvalidDescriptor, InvalidParameter, UnknownOperator: they do not fit, or rules are broken.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocument:
    """A graph's document. See `GraphSource`.

    Attributes:
        document: the document, in either wording.
        text_bytes: length of its text.
        weights: the inputs that are kept.
    """

    document: Mapping[str, Any]
    text_bytes: int
    weights: Weights = field(default_factory=dict[str, tuple[Layout, memoryview]])
    kind = "graph"
    value_names = frozenset[str]()

    @property
    def size_in_bytes(self) -> int:
        return self.text_bytes * JSON_MEMORY_FACTOR + sum([len(data) for _, data in self.weights.values()])

    @property
    def node_count(self) -> int:
        nodes = self.document.get("Nodes" if is_dml_graph(self.document) else "nodes")
        return len(nodes) if isinstance(nodes, (list, tuple)) else 0  # pyright: ignore[reportUnknownArgumentType]

    @property
    def inputs(self) -> Sequence[DeclaredTensor]:
        if is_dml_graph(self.document):
            return [
                DeclaredTensor(slot.name, slot.layout.data_type, slot.layout.sizes)
                for slot in read_graph(self.document, None).inputs
            ]
        declared: Any = self.document.get("inputs")
        found = [(name, value) for name, value in _members(declared).items() if name not in self.weights]
        return [DeclaredTensor(name, _type_in(value), _sizes_in(value)) for name, value in found]

    @property
    def outputs(self) -> Sequence[DeclaredTensor]:
        found = outputs_by_trial(self)
        if found:
            return found
        return [DeclaredTensor(name, None, None) for name in _members(self.document.get("outputs"))]

    @property
    def call_inputs(self) -> Sequence[CallInput]:
        return [CallInput(tensor.name, optional=False, is_array=False) for tensor in self.inputs]

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


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """An ONNX model. See `GraphSource`.

    Attributes:
        model: the model. Its arrays are copies: in a file, they begin anywhere.
        views: the bytes of its initializers, by the identity of their arrays.
    """

    model: OnnxModel
    views: Mapping[int, memoryview]
    kind = "onnx"
    document = None

    @classmethod
    def of(cls, model: OnnxModel) -> StoredModel:
        """The source of a model that was read."""
        initializers = {name: array.copy() for name, array in model.initializers.items()}
        nodes = [
            replace(node, attributes={
                key: value.copy() if isinstance(value, np.ndarray) else value for key, value in node.attributes.items()
            })
            for node in model.nodes
        ]  # fmt: skip
        model = replace(model, initializers=initializers, nodes=tuple(nodes))
        return cls(model, {id(array): _bytes_of(array) for array in initializers.values()})

    @property
    def size_in_bytes(self) -> int:
        arrays = [value for node in self.model.nodes for value in node.attributes.values() if hasattr(value, "nbytes")]
        size = sum([array.nbytes for array in (*self.model.initializers.values(), *arrays)])
        return size + _NODE_BYTES * len(self.model.nodes)

    @property
    def node_count(self) -> int:
        return len(self.model.nodes)

    @property
    def inputs(self) -> Sequence[DeclaredTensor]:
        return [DeclaredTensor(*tensor_of) for tensor_of in _declared(self.model.inputs)]

    @property
    def outputs(self) -> Sequence[DeclaredTensor]:
        declared = [DeclaredTensor(*each) for each in _declared(self.model.outputs)]
        if all(tensor.data_type is not None and tensor.sizes is not None for tensor in declared):
            return declared
        return outputs_by_trial(self) or declared

    @property
    def call_inputs(self) -> Sequence[CallInput]:
        given = [CallInput(tensor.name, optional=False, is_array=False) for tensor in self.model.inputs]
        named = {tensor.name for tensor in self.model.inputs}
        return given + [
            CallInput(name, optional=True, is_array=False) for name in self.model.initializers if name not in named
        ]

    @property
    def value_names(self) -> frozenset[str]:
        """Whole numbers of few elements, as the shape of a Reshape; names of sizes are no small tensors."""
        return frozenset([tensor.name for tensor in self.model.inputs if _is_small(tensor.data_type, tensor.sizes)])

    def graph(
        self, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None,
        level: FeatureLevel, most_nodes: int,
    ) -> Graph:  # fmt: skip
        made = model_graph(self.model, sent, outputs, values)
        weights: dict[str, tuple[Layout, memoryview]] = {}
        for text, array in made.weights.items():
            data = self.views.get(id(array))
            layout = Layout.row_major(data_type(array.dtype), array.shape)
            weights[text] = (layout, _bytes_of(array) if data is None else data)
        read = {text: sent[name] for name, text in made.inputs.items()}
        graph = read_graph(made.document, read, level=level, most_nodes=most_nodes, weights=weights)
        names = {text: name for name, text in made.inputs.items()}
        return replace(graph, inputs=tuple([replace(slot, name=names[slot.name]) for slot in graph.inputs]))


def read_source(content: bytes, media_type: str | None, most_nodes: int, max_head_bytes: int) -> GraphSource:
    """Read what is to be stored, and check what can be checked before tensors arrive.

    Args:
        content: the body; nothing that is kept is a view of it.
        media_type: JSON, a frame or application/onnx; None to find out by the first bytes.
        most_nodes: nodes that it may have.
        max_head_bytes: longest head of a frame.

    Raises:
        UnsupportedMediaType: another media type.
        InvalidJson, InvalidFrame, InvalidDescriptor, InvalidParameter, UnknownOperator: it cannot be used.
    """
    kind = _sniffed(content) if media_type is None else media_type.partition(";")[0].strip().lower()
    if kind == MODEL_MEDIA_TYPE:
        source: GraphSource = StoredModel.of(read_model(content))
    elif kind == "application/json":
        document = as_document(read_json(content, max_containers=MOST_JSON_CONTAINERS), "graph")
        source = StoredDocument(document, len(content))
    elif kind in (frame.MEDIA_TYPE, *frame.ALSO_READ):
        source = _of_frame(content, max_head_bytes)
    else:
        raise UnsupportedMediaType(
            f"a graph is stored from application/json, {frame.MEDIA_TYPE} or {MODEL_MEDIA_TYPE}, not {kind[:80]!r}"
        )
    _check(source, most_nodes)
    return source


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
        message = f"the graph has {source.node_count:,} nodes; at most {most_nodes:,} are computed here"
        raise InvalidDescriptor.of(
            [Violation("graph-size", ("graph", "nodes"), message, source.node_count, f"at most {most_nodes} nodes")]
        )
    if document is not None and is_dml_graph(document):
        read_graph(document, None, most_nodes=most_nodes)
    elif not source.value_names and (sent := declared_layouts(source)) is not None:
        source.graph(sent, {}, None, NEWEST, most_nodes)


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
    return StoredDocument(document, head.head_bytes, weights)


def _sniffed(content: bytes) -> str:
    if content[:64].lstrip()[:1] == b"{":
        return "application/json"
    return frame.MEDIA_TYPE if content[8:9] == b"{" else MODEL_MEDIA_TYPE


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _type_in(declared: Any) -> DataType | None:
    name = _members(declared).get("data_type")
    try:
        return data_type(name) if isinstance(name, str) else None
    except KeyError:
        return None


def _sizes_in(declared: Any) -> tuple[int | str | None, ...] | None:
    sizes = _members(declared).get("sizes")
    return tuple(cast("list[int | str | None]", sizes)) if isinstance(sizes, (list, tuple)) else None


def _declared(tensors: Sequence[Any]) -> Iterator[tuple[str, DataType | None, tuple[int | str | None, ...] | None]]:
    for tensor in tensors:
        yield tensor.name, tensor.data_type, tensor.sizes


def _is_small(row: DataType | None, sizes: Sequence[int | str | None] | None) -> bool:
    if row is None or sizes is None or len(sizes) > 1 or row.dtype.kind not in "iu":
        return False
    return all(isinstance(size, int) and size <= _MOST_VALUES for size in sizes)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()
