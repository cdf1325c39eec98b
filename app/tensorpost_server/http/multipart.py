"""Bodies of multipart/form-data, as `curl -F` sends them: a part for each tensor, and one for a graph or a model.

    curl -F graph=@pipeline.json -F photo=@cat.jpg localhost:8000/v1/graphs
    curl -F model=@model.onnx -F x=@x.npy localhost:8000/v1/onnx

A tensor is an npy file, or a picture, which is decoded here; what the file begins with decides, since clients guess a
file's media type by its name. A part's own media type may have the parameters of a picture's.

Source: RFC 7578; RFC 2046, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorpost.bodies.frame import NpyHead, NpyHeadReader
from tensorpost.bodies.images import picture_format
from tensorpost.bodies.npy import NPY_MAGIC
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.graphs.model_graph import ModelGraph, ModelStage, model_stage
from tensorpost.onnx.model_reader import read_model
from tensorpost.values.datatypes import DataType, data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidFrame, InvalidParameter, TensorMismatch

from ..settings import Settings
from .declared_pictures import DeclaredInputs, as_declared, channel_violations, explain
from .encoded_bodies import Picture
from .media_types import Pixels

MOST_HEADER_BYTES = 8 * 1024
"""Most bytes of a part's header fields."""
MOST_VALUES = 64
"""Elements of a tensor that may decide sizes of a model, as the shape of Reshape does."""

_EXAMPLE = "curl -F 'photo=@cat.jpg'"


@dataclass(frozen=True, slots=True, eq=False)
class _NpyPart:
    """An npy file.

    Attributes:
        name: the tensor's name.
        head: the file's head.
        elements: the bytes of its elements.
    """

    name: str
    head: NpyHead
    elements: memoryview

    @property
    def tensors(self) -> Sequence[tuple[str, DataType, tuple[int, ...]]]:
        return [(self.name, self.head.data_type, self.head.shape)]

    @property
    def working_bytes(self) -> int:
        return 0

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        memory[0][:] = self.elements


@dataclass(frozen=True, slots=True, eq=False)
class Multipart:
    """The tensors of a body of parts. See `Encoded`.

    Attributes:
        parts: a part for each tensor, in the order of the body.
        texts: the other parts' bytes, by name.
        content_bytes: bytes of the body.
    """

    parts: Sequence[Picture | _NpyPart]
    texts: Mapping[str, memoryview]
    content_bytes: int

    @classmethod
    def read(
        cls, content: bytes, boundary: bytes, texts: Sequence[str], pixels: Pixels, settings: Settings
    ) -> Multipart:
        """Read the parts' heads.

        Args:
            content: the body.
            boundary: what stands between parts.
            texts: names of the parts that are no tensors.
            pixels: how pictures lie, unless their part says it.
            settings: the limits.

        Raises:
            InvalidFrame: the body is broken, or a part is neither an npy file nor a picture.
            LimitExceeded: a picture is too large.
        """
        parts: list[Picture | _NpyPart] = []
        found: dict[str, memoryview] = {}
        for name, media_type, begin, end in _split(content, boundary):
            if name in found or any(part.name == name for part in parts):
                raise InvalidFrame(f"there are two parts with the name {name[:60]!r}")
            if name in texts:
                found[name] = memoryview(content)[begin:end]
            else:
                parts.append(_tensor_part(content, begin, end, name, media_type, pixels, settings))
        return cls(parts, found, len(content))

    @property
    def tensors(self) -> Sequence[tuple[str, DataType, tuple[int, ...]]]:
        return [tensor for part in self.parts for tensor in part.tensors]

    @property
    def working_bytes(self) -> int:
        return self.content_bytes + max([0, *[part.working_bytes for part in self.parts]])

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        for view, part in zip(memory, self.parts[first:], strict=False):
            part.decode_into([view])

    def declared(self, inputs: DeclaredInputs) -> Multipart:
        """The same, whose pictures have the axes that their inputs have."""
        return replace(self, parts=[as_declared(part, inputs) for part in self.parts])

    def small_values(self) -> dict[str, NDArray[Any]]:
        """The elements of npy files of few elements, by name."""
        found: dict[str, NDArray[Any]] = {}
        for part in self.parts:
            if isinstance(part, _NpyPart):
                layout = Layout.row_major(part.head.data_type, part.head.shape)
                if _is_small(layout):
                    found[part.name] = layout.view(part.elements)
        return found


class StagedTensors(NamedTuple):
    """The tensors of a body, and the first part of the model that came in it.

    Attributes:
        body: the body, whose pictures have the axes that the model declares.
        stage: the part.
    """

    body: Multipart
    stage: ModelStage


@dataclass(frozen=True, slots=True, eq=False)
class ModelTensors:
    """The tensors of a model and of the body that it came in. See `Encoded`.

    Attributes:
        body: the body.
        graph: the model as a graph.
        tensors: the tensors that the graph reads: parts of the body by the graph's names, then the model's constants.
    """

    body: Multipart
    graph: ModelGraph
    tensors: Sequence[tuple[str, DataType, tuple[int, ...]]]

    @classmethod
    def read(
        cls, body: Multipart, outputs: Sequence[str] | None, held: Mapping[str, tuple[Layout, memoryview]]
    ) -> ModelTensors | StagedTensors:
        """Read the part `model`.

        Args:
            body: the body.
            outputs: names of the outputs that are wanted; None for all.
            held: inputs that are not in the body, by name: what the tensor is, and its bytes.

        Returns:
            The tensors of its graph; or its first part, if the sizes of the rest depend on elements.

        Raises:
            TensorMismatch: there is none, or a tensor is of strings.
            InvalidParameter: an input is in the body and held.
            InvalidParameter, InvalidDescriptor, UnknownOperator: see `model_stage`.
        """
        if "model" not in body.texts:
            raise TensorMismatch(
                "the model is missing: send its file as the part model, as curl -F model=@model.onnx -F x=@x.npy does"
            )
        model = read_model(body.texts["model"])
        inputs = {tensor.name: tensor for tensor in model.inputs}
        body = body.declared(inputs)
        for violation in channel_violations(body.parts, inputs, "model"):
            raise InvalidParameter(violation.message)
        sent = {name: layout for name, (layout, _) in held.items()}
        for name, row, shape in body.tensors:
            if not row.item_size:
                raise TensorMismatch(f"tensor {name!r} holds strings, which models do not compute here")
            if name in held:
                raise InvalidParameter(f"the input {name!r} is in the body, and refers to a held tensor as well")
            sent[name] = Layout.row_major(row, shape)
        small = body.small_values() | {
            name: layout.view(data) for name, (layout, data) in held.items() if _is_small(layout)
        }
        try:
            found = model_stage(model, sent, outputs, small)
        except InvalidParameter as error:
            explain(error, body.parts, inputs, in_parts=True)
            raise
        if isinstance(found, ModelStage):
            return StagedTensors(body, found)
        tensors = [(found.inputs[name], row, shape) for name, row, shape in body.tensors if name in found.inputs]
        tensors += [(name, data_type(array.dtype), array.shape) for name, array in found.weights.items()]
        return cls(body, found, tensors)

    @property
    def working_bytes(self) -> int:
        return self.body.working_bytes

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        parts = [part for part in self.body.parts if part.name in self.graph.inputs]
        weights = [*self.graph.weights.values()]
        for place, view in enumerate(memory, first):
            if place < len(parts):
                parts[place].decode_into([view])
            else:
                array = np.ascontiguousarray(weights[place - len(parts)])
                view[:] = array.reshape(-1).view(np.uint8).data


def _is_small(layout: Layout) -> bool:
    size = layout.data_type.item_size
    return len(layout.sizes) <= 1 and size > 0 and layout.size_in_bytes <= MOST_VALUES * size


def _split(content: bytes, boundary: bytes) -> Sequence[tuple[str, str, int, int]]:
    """Name, media type, begin and end of each part."""
    delimiter, at = b"--" + boundary, 0
    if not content.startswith(delimiter):
        raise InvalidFrame(f"the body does not begin with its boundary; send parts as {_EXAMPLE} does")
    found: list[tuple[str, str, int, int]] = []
    at += len(delimiter)
    while content[at : at + 2] != b"--":
        if content[at : at + 2] != b"\r\n":
            raise InvalidFrame("a boundary is not followed by the end of the line")
        end_of_head = content.find(b"\r\n\r\n", at, at + MOST_HEADER_BYTES)
        end = content.find(b"\r\n" + delimiter, max(at, end_of_head))
        if end_of_head < 0 or end < 0:
            raise InvalidFrame("a part is cut off, or has header fields of more than 8 KiB")
        name, media_type = _head_of_part(content[at + 2 : end_of_head])
        if len(found) == MOST_TENSORS:
            raise InvalidFrame(f"the body has more than {MOST_TENSORS:,} parts")
        found.append((name, media_type, min(end_of_head + 4, end), end))
        at = end + 2 + len(delimiter)
    return found


def _head_of_part(head: bytes) -> tuple[str, str]:
    """The name and the media type of a part."""
    message = Message()
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, colon, value = line.partition(":")
        if colon and key.strip().lower() in ("content-disposition", "content-type") and key.strip() not in message:
            message[key.strip()] = value.strip()
    name = message.get_param("name", header="content-disposition")
    if not isinstance(name, str) or not name:
        raise InvalidFrame(f"a part has no name; send parts as {_EXAMPLE} does")
    return name, message.get("content-type", "")


def _tensor_part(
    content: bytes, begin: int, end: int, name: str, media_type: str, pixels: Pixels, settings: Settings
) -> Picture | _NpyPart:
    start = content[begin : min(begin + 16, end)]
    if start.startswith(NPY_MAGIC):
        reader = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=end - begin)
        at = begin
        while reader.head is None and at < end:
            piece = content[at : min(at + max(1, reader.missing), end)]
            reader.feed(piece)
            at += len(piece)
        head = reader.finish()
        return _NpyPart(name, head, memoryview(content)[begin + head.head_bytes : end])
    kind = picture_format(start)
    if kind is None:
        raise InvalidFrame(f"the part {name[:60]!r} is neither an npy file nor a picture")
    own = Pixels.from_parameters(media_type.split(";")[1:], pixels) if media_type.startswith("image/") else pixels
    return Picture.read(content[begin:end], f"image/{kind.lower()}", name, own, settings)
