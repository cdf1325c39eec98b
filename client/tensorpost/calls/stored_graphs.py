"""Graphs that a server keeps: what storing one sends, and what a call of one sends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ..bodies.frame import MEDIA_TYPE, encode_head
from ..bodies.images import EncodedImage
from ..bodies.picture_inputs import picture_tensor
from ..onnx.model_reader import MODEL_MEDIA_TYPE
from ..values.checks import whole_number
from ..values.datatypes import DataType, data_type
from ..values.problems import InvalidParameter
from .array_like import as_array
from .held_tensors import HeldTensor, references
from .results import StoredGraph

if TYPE_CHECKING:
    from .graph_calls import GraphDocument, GraphInputs, InputValue
    from .model_calls import ModelSource


_NO_QUERY: Mapping[str, object] = {}


class GraphBody(NamedTuple):
    """What storing a graph sends, or a call of it.

    Attributes:
        media_type: the body's media type.
        body: the body.
    """

    media_type: str
    body: Sequence[memoryview]


def graph_target(name: str | None, version: int | None = None, query: Mapping[str, object] = _NO_QUERY) -> str:
    """The path of a stored graph, of all if there is no name, with its version and other parameters in the query.

    Raises:
        InvalidParameter: the version is none.
    """
    path = "/v1/graphs" if name is None else f"/v1/graphs/{quote(name, safe='')}"
    if version is not None:
        query = {"version": whole_number("version", version, 1, ", the number of a version"), **query}
    return path + (f"?{urlencode(query)}" if query else "")


def batch_query(max_batch_size: int | None, max_queue_delay_microseconds: int) -> Mapping[str, object]:
    """The query that lets calls of a graph be joined; empty if they are not.

    Raises:
        InvalidParameter: a number is none, or there is a delay without a batch.
    """
    if max_batch_size is None:
        if max_queue_delay_microseconds:
            raise InvalidParameter("max_queue_delay_microseconds needs max_batch_size, the most rows of a batch")
        return _NO_QUERY
    for name, number, least in (
        ("max_batch_size", max_batch_size, 1), ("max_queue_delay_microseconds", max_queue_delay_microseconds, 0),
    ):  # fmt: skip
        if type(number) is not int or number < least:
            raise InvalidParameter(f"{name} is {number!r}; it must be a whole number, at least {least}")
    return {"max_batch_size": max_batch_size, "max_queue_delay_microseconds": max_queue_delay_microseconds}


def store_request(
    graph: GraphDocument | ModelSource, weights: Mapping[str, InputValue] | None
) -> GraphBody:  # fmt: skip
    """What storing a graph or a model sends.

    Raises:
        InvalidParameter: an argument is neither, or a model has weights beside it.
        OSError, InvalidJson: a file cannot be read.
    """
    from .graph_calls import graph_document, read_input  # operators load when they are named

    content = _model_bytes(graph)
    if content is not None:
        if weights:
            raise InvalidParameter(
                "weights may only be given with a graph's document; the weights of an ONNX model are its initializers"
            )
        return GraphBody(MODEL_MEDIA_TYPE, [memoryview(content)])
    document = graph_document(cast("GraphDocument", graph))
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"the graph cannot be written as JSON: {error}") from None
    if not weights:
        return GraphBody("application/json", [memoryview(text.encode())])
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in weights.items():
        found = read_input(name, value)
        arrays[name] = found.decode()[np.newaxis] if isinstance(found, EncodedImage) else found
    return GraphBody(MEDIA_TYPE, _frame(arrays, {"graph": text}))


def stored_call(stored: StoredGraph, inputs: GraphInputs | InputValue) -> GraphBody:
    """What a call of a stored graph sends; a picture that is the only input travels as it is.

    Raises:
        InvalidParameter: an input has no name, or is no array.
        InvalidDescriptor: a picture has another number of channels than its input.
        OSError: a file cannot be read.
    """
    from .graph_calls import read_declared  # operators load when they are named

    named = cast("Mapping[str, Any]", inputs) if isinstance(inputs, Mapping) else _only(stored, inputs)
    sizes = dict(zip(stored.inputs, stored.input_sizes, strict=False))
    what = "model" if stored.kind == "onnx" else "graph"
    values = {name: read_declared(name, value, sizes.get(name), what) for name, value in named.items()}
    first = next(iter(values.values()), None)
    if len(values) == 1 and isinstance(first, EncodedImage):
        return GraphBody(f"image/{first.format.lower()}", [memoryview(first.content)])
    held = {name: value for name, value in values.items() if isinstance(value, HeldTensor)}
    arrays = {
        name: picture_tensor(value.decode(), sizes.get(name))
        if isinstance(value, EncodedImage)
        else as_array(name, value)
        for name, value in values.items()
        if name not in held
    }
    return GraphBody(MEDIA_TYPE, _frame(arrays, {"tensors": references(held)} if held else {}))


def _only(stored: StoredGraph, value: object) -> Mapping[str, Any]:
    if len(stored.inputs) != 1:
        names = ", ".join(stored.inputs) or "none"
        raise InvalidParameter(
            f"the stored graph {stored.name!r} has the inputs {names}; inputs must be a mapping from these names, not "
            f"{type(value).__name__}"
        )
    return {stored.inputs[0]: value}


def _model_bytes(graph: object) -> bytes | None:
    """The bytes of an ONNX model, if it is one."""
    if isinstance(graph, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", graph))
    if isinstance(graph, (str, os.PathLike)):
        path = Path(cast("str | os.PathLike[str]", graph))
        return path.read_bytes() if path.suffix.lower() == ".onnx" else None
    return cast("Any", graph).SerializeToString() if hasattr(graph, "SerializeToString") else None


def _frame(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> list[memoryview]:
    entries = [(name, _type_of(name, array), array.shape) for name, array in arrays.items()]
    # by way of uint8, since memoryview has no bfloat16
    views = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values()]
    return [memoryview(encode_head(entries, metadata)), *views]


def _type_of(name: str, array: NDArray[Any]) -> DataType:
    try:
        row = data_type(array.dtype)
    except KeyError:
        row = None
    if row is None or row.safetensors is None:
        raise InvalidParameter(f"{name} is an array of {array.dtype}; graphs compute numbers and booleans")
    return row
