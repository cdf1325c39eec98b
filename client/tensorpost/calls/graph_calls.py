"""What a call of a graph sends and gives back: a document and arrays in, arrays by name out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from numpy.typing import NDArray

from ..bodies.frame import encode_head
from ..bodies.strict_json import read_json
from ..graphs.graph_document import MOST_NODES, read_graph
from ..values.datatypes import DataType, data_type
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidJson, InvalidParameter, Violation
from .array_like import TensorLike, as_array
from .caller_arrays import RequestTemplate, wire_form

GraphDocument: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""A graph as a dict, or the path of a JSON file with one."""
GraphInputs: TypeAlias = Mapping[str, TensorLike | NDArray[Any]]
"""Arrays by the names of the graph's inputs."""


def graph_template(graph: GraphDocument, inputs: GraphInputs) -> tuple[RequestTemplate, dict[str, NDArray[Any]]]:
    """What a request of a graph begins with, and the arrays that follow.

    Args:
        graph: see `GraphDocument`.
        inputs: arrays by the names of the graph's inputs, or what NumPy can make one of.

    Raises:
        InvalidParameter: an argument is no graph, or no mapping of arrays.
        InvalidDescriptor: the graph breaks rules; it lists every violation, each with its node.
        OSError, InvalidJson: the file cannot be read.
    """
    document = graph_document(graph)
    if not isinstance(cast("object", inputs), Mapping):
        raise InvalidParameter(
            f"inputs must be a mapping from the names of the graph's inputs to arrays, not {type(inputs).__name__}"
        )
    arrays = {name: as_array(name, value) for name, value in inputs.items()}
    sent = {name: Layout.row_major(_type_of(name, array), array.shape) for name, array in arrays.items()}
    read = read_graph(document, sent, most_nodes=max(MOST_NODES, len(document.get("nodes", ()))))
    for slot in (*read.inputs, *read.output_slots):
        if slot.layout.data_type.safetensors is None:
            message = f"{slot.name!r} is {slot.layout.data_type.numpy_name}, which a frame does not carry"
            raise InvalidDescriptor.of([Violation("data-type-unsupported", (slot.name,), message)])
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"the graph cannot be written as JSON: {error}") from None
    head = encode_head([(slot.name, *wire_form(slot)) for slot in read.inputs], {"graph": text})
    return RequestTemplate("the graph", "/v1/graphs", read.inputs, read.output_slots, head), arrays


def _type_of(name: str, array: NDArray[Any]) -> DataType:
    try:
        return data_type(array.dtype)
    except KeyError:
        raise InvalidParameter(f"{name} is an array of {array.dtype}; graphs compute numbers and booleans") from None


def graph_document(graph: GraphDocument) -> Mapping[str, Any]:
    """The document of a graph.

    Raises:
        InvalidParameter: this is no graph, and no path of one.
        OSError, InvalidJson: the file cannot be read.
    """
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
