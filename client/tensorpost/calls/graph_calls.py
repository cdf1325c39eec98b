"""What a call of a graph sends and gives back: a document and arrays in, arrays by name out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ..bodies.frame import encode_head
from ..bodies.images import EncodedImage, open_image, picture_format
from ..bodies.npy import NPY_MAGIC
from ..bodies.picture_inputs import DeclaredSizes, declared_picture, is_batch, picture_tensor, wrong_channels
from ..bodies.strict_json import read_json
from ..descriptors.feature_levels import NEWEST, FeatureLevel
from ..graphs.graph_document import MOST_NODES, declared_sizes, input_names, read_graph
from ..values.datatypes import DataType, data_type, load_ml_dtypes
from ..values.graph import Graph
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidJson, InvalidParameter, Violation
from .array_like import TensorLike, as_array
from .caller_arrays import RequestTemplate, wire_form
from .results import StoredGraph

GraphDocument: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | StoredGraph
"""A graph as a dict, or the path of a JSON file with one; or a stored graph, where calls are made."""
InputValue: TypeAlias = TensorLike | NDArray[Any] | bytes | str | os.PathLike[str]
"""An array, or what NumPy can make one of; the path of a picture or of an npy file; or the bytes of a picture."""
GraphInputs: TypeAlias = Mapping[str, InputValue]
"""The inputs of a graph by name."""
ModelInputs: TypeAlias = Mapping[str, InputValue | Sequence[InputValue] | None]
"""The inputs of a model by name: arrays, lists of them for sequences, and None for an optional value without one."""

_MOST_QUERY_BYTES = (
    32 * 1024
)  # of a graph beside a picture; a server takes heads of 64 KiB, if its settings are the defaults


class GraphRequest(NamedTuple):
    """What a request of a graph sends.

    Attributes:
        template: its outputs, and what its body begins with.
        body: the arrays of its inputs, which follow; or the picture that is the whole body.
        document: the graph as JSON text.
        graph: the graph, for these inputs.
    """

    template: RequestTemplate
    body: dict[str, NDArray[Any]] | EncodedImage
    document: str
    graph: Graph

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the graph's inputs; a picture is decoded."""
        if isinstance(self.body, dict):
            return self.body
        slot = self.template.inputs[0]
        return {slot.name: picture_tensor(self.body.decode(), slot.layout.sizes)}


def graph_request(graph: GraphDocument, inputs: GraphInputs) -> GraphRequest:
    """What a request of a graph sends.

    A picture that is the only input travels as it is, with the graph in the query, if that is below 32 KiB; pictures
    beside other inputs are decoded here. A picture is a tensor of 1, height, width and channels, or of height, width
    and channels where the graph declares three dimensions.

    Args:
        graph: see `GraphDocument`.
        inputs: see `GraphInputs`.

    Raises:
        InvalidParameter: an argument is no graph, or no mapping of arrays.
        InvalidDescriptor: the graph breaks rules, and it lists every violation, each with its node; or a picture has
            another number of channels than its input.
        OSError, InvalidJson, InvalidFrame: a file cannot be read.
        ModuleNotFoundError: a picture without Pillow.
    """
    document = graph_document(graph)
    if not isinstance(cast("object", inputs), Mapping):
        raise InvalidParameter(
            f"inputs must be a mapping from the names of the graph's inputs to arrays, not {type(inputs).__name__}"
        )
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"the graph cannot be written as JSON: {error}") from None
    sizes = declared_sizes(document)
    values = {name: read_declared(name, value, sizes.get(name), "graph") for name, value in inputs.items()}
    picture = next(iter(values.values()), None) if len(values) == 1 else None
    if isinstance(picture, EncodedImage) and len(quote(text)) <= _MOST_QUERY_BYTES:
        body: dict[str, NDArray[Any]] | EncodedImage = picture
        ((name, _),) = values.items()
        shape = (1, *picture.shape) if is_batch(sizes.get(name)) else picture.shape
        sent = {name: Layout.row_major(data_type(f"uint{picture.depth}"), shape)}
    else:
        body = {
            name: picture_tensor(value.decode(), sizes.get(name)) if isinstance(value, EncodedImage) else value
            for name, value in values.items()
        }
        sent = {name: Layout.row_major(_type_of(name, array), array.shape) for name, array in body.items()}
    count = len(document.get("Nodes", document.get("nodes", ())))
    read = read_graph(document, sent, most_nodes=max(MOST_NODES, count))
    for slot in (*read.inputs, *read.output_slots):
        if slot.layout.data_type.safetensors is None:
            message = f"{slot.name!r} is {slot.layout.data_type.numpy_name}, which a frame does not carry"
            raise InvalidDescriptor.of([Violation("data-type-unsupported", (slot.name,), message)])
    head = encode_head([(slot.name, *wire_form(slot)) for slot in read.inputs], {"graph": text})
    template = RequestTemplate("the graph", "/v1/graphs", read.inputs, read.output_slots, head)
    return GraphRequest(template, body, text, read)


def read_input(name: str, value: object) -> NDArray[Any] | EncodedImage:
    """An input as an array, or as the picture that it is a file of."""
    if isinstance(value, (str, os.PathLike)):
        path = Path(cast("str | os.PathLike[str]", value))
        with path.open("rb") as file:
            start = file.read(16)
            if start.startswith(NPY_MAGIC):
                load_ml_dtypes()
                return np.load(path, mmap_mode="r", allow_pickle=False)
            content = start + file.read()
        return open_image(content, str(path))
    if isinstance(value, EncodedImage):
        return value
    if isinstance(value, (bytes, bytearray)) and picture_format(bytes(value[:16])) is not None:
        return open_image(bytes(value), name)
    return as_array(name, value)


def read_declared(name: str, value: object, sizes: DeclaredSizes, what: str) -> NDArray[Any] | EncodedImage:
    """An input that is declared with these sizes; a picture of Pillow gets a batch and channels where they have them.

    Raises:
        InvalidDescriptor: a picture has another number of channels.
        InvalidParameter, OSError, InvalidFrame, ModuleNotFoundError: it cannot be read.
    """
    found = read_input(name, value)
    if isinstance(found, EncodedImage):
        shape = (1, *found.shape) if is_batch(sizes) else found.shape
        if (violation := wrong_channels(name, shape, sizes, what)) is not None:
            raise InvalidDescriptor.of([violation])
        return found
    return declared_picture(name, found, sizes, what) if type(value).__module__.startswith("PIL.") else found


def inputs_of(graph: Mapping[str, Any] | StoredGraph, item: object) -> GraphInputs:
    """The inputs of a call: a mapping as it is, and anything else as the graph's only input.

    Raises:
        InvalidParameter: the graph has several inputs.
    """
    if isinstance(item, Mapping):
        return cast("GraphInputs", item)
    names = [*graph.inputs] if isinstance(graph, StoredGraph) else input_names(graph)
    if len(names) != 1:
        raise InvalidParameter(
            f"the graph has the inputs {', '.join(names) or 'none'}; each item must be a mapping from these names, not "
            f"{type(item).__name__}"
        )
    return {names[0]: cast("InputValue", item)}


def _type_of(name: str, array: NDArray[Any]) -> DataType:
    try:
        return data_type(array.dtype)
    except KeyError:
        raise InvalidParameter(f"{name} is an array of {array.dtype}; graphs compute numbers and booleans") from None


def graph_document(graph: GraphDocument) -> Mapping[str, Any]:
    """The document of a graph.

    Raises:
        InvalidParameter: this is neither a graph nor the path of one.
        OSError, InvalidJson: the file cannot be read.
    """
    if isinstance(graph, StoredGraph):
        raise InvalidParameter(
            f"the stored graph {graph.name!r} is on a server, and its document is needed here; call it, or use "
            "run_graph, run_stored or map"
        )
    if isinstance(graph, (str, os.PathLike)):
        text = Path(graph).read_bytes()
        try:
            document: Any = read_json(text)
        except InvalidJson as error:
            raise InvalidJson(f"{os.fspath(graph)}: {error.detail}") from None
    else:
        document = graph
    if not isinstance(document, Mapping):
        raise InvalidParameter(
            f"graph must be a dict, or the path of a JSON file with one, not {type(document).__name__}"
        )
    return cast("Mapping[str, Any]", document)


def to_dml_graph(graph: GraphDocument, inputs: GraphInputs | None = None) -> dict[str, Any]:
    """A graph as DirectML's structs, `DML_GRAPH_DESC` and those below it, as JSON with the header's names.

    ONNX nodes become the DirectML operator of the same function, and constants nodes of Type CONSTANT.

    Args:
        graph: the graph in either wording, or the path of a JSON file with it.
        inputs: its inputs, as in `run_graph`; needed if sizes in the graph are names.

    Examples:
        >>> graph = {
        ...     "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2, 3]}},
        ...     "nodes": [{"name": "y", "op_type": "Relu", "inputs": "x"}],
        ...     "outputs": {"y": "y"},
        ... }
        >>> to_dml_graph(graph)["Nodes"][0]["Desc"]["Operator"]["type"]
        'DML_OPERATOR_ACTIVATION_RELU'

    Raises:
        InvalidParameter, InvalidDescriptor: the graph or an argument is wrong, or a node has no DirectML operator.
        OSError, InvalidJson: the file cannot be read.
    """
    from ..graphs.graph_wordings import dml_graph_of  # what lowers ONNX nodes takes long to load

    return dml_graph_of(read_for(graph, inputs))


def from_dml_graph(graph: GraphDocument) -> dict[str, Any]:
    """A graph of DirectML's structs as a document with names; see docs/graphs.md.

    Args:
        graph: `DML_GRAPH_DESC` as JSON, or the path of a JSON file with it.

    Examples:
        >>> graph = {
        ...     "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2, 3]}},
        ...     "nodes": [{"name": "y", "op_type": "Relu", "inputs": "x"}],
        ...     "outputs": {"y": "y"},
        ... }
        >>> from_dml_graph(to_dml_graph(graph))["outputs"]
        {'output_0': 'y'}

    Raises:
        InvalidParameter, InvalidDescriptor: the graph is wrong.
        OSError, InvalidJson: the file cannot be read.
    """
    from ..graphs.graph_wordings import document_of  # what lowers ONNX nodes takes long to load

    return document_of(read_for(graph, None))


def read_for(graph: GraphDocument, inputs: GraphInputs | None, level: FeatureLevel = NEWEST) -> Graph:
    """Read a graph for given inputs, or for those that it declares; the default level is the newest."""
    document = graph_document(graph)
    if inputs is None:
        return read_graph(document, None, level=level)
    read = graph_request(document, inputs).graph
    return read if level is NEWEST else read_graph(document, {s.name: s.layout for s in read.inputs}, level=level)
