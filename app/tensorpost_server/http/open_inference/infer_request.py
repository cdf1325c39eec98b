"""The JSON part of an inference request, as a frozen value; what it says is consistent, and nothing is computed yet.

Source: Open Inference Protocol, "Inference Request JSON Object"; Triton's extensions "binary tensor data",
"shared memory" and "parameters".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.datatypes import DATA_TYPES, DataType
from tensorpost.values.problems import InvalidDescriptor, NoBackend, Violation, nearest

from ..wires.held_inputs import HeldReference

_SOURCE = "Open Inference Protocol, inference request"
_TYPES = {row.open_inference: row for row in DATA_TYPES if row.open_inference is not None}
_MOST_DIMENSIONS = 64
_MOST_TENSORS = 1024
_MOST_DEPTH = 100
_MOST_CONTAINERS = 16_384
_MOST_BYTES = 2**63 - 1
_RESERVED = frozenset({
    "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output",
})  # fmt: skip
_MICROSECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class RegionPart:
    """Some bytes of a region of shared memory."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class InferInput:
    """A tensor of a request. Its elements are in exactly one place.

    Attributes:
        binary_bytes: how many bytes of the body it has; None if it is elsewhere.
        content: its bytes, if the head of the request has them; None if it is elsewhere.
        data: its elements as JSON; None if it is elsewhere.
        region: where it lies in shared memory; None if it is elsewhere.
        held: the held tensor that it is; None if it is elsewhere.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    binary_bytes: int | None = None
    content: bytes | None = None
    data: Any = None
    region: RegionPart | None = None
    held: HeldReference | None = None

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed elements; 0 for strings, whose elements differ."""
        return math.prod(self.shape) * self.data_type.item_size

    @property
    def is_text(self) -> bool:
        """Whether its elements are strings."""
        return not self.data_type.item_size


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that is wanted."""

    name: str
    binary: bool
    region: RegionPart | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """The JSON part.

    Attributes:
        id: the caller's id of the request; empty if there is none.
        parameters: the parameters of the request that are the operator's.
        inputs: the tensors of the request, in its order.
        outputs: the outputs that are wanted; None for all.
        binary_output: whether outputs that are not listed are wanted as bytes.
        timeout: how long the request may wait until its answer begins, seconds; None for as long as it takes.
    """

    id: str
    parameters: Mapping[str, Any]
    inputs: tuple[InferInput, ...]
    outputs: tuple[RequestedOutput, ...] | None = None
    binary_output: bool = False
    timeout: float | None = None

    @property
    def binary_bytes(self) -> int:
        """Bytes of the body after the JSON part."""
        return sum([tensor.binary_bytes or 0 for tensor in self.inputs])


def refuse(path: tuple[str | int, ...], message: str, value: object = None, expected: str = "") -> NoReturn:
    """Refuse a request for what stands at a place in its JSON part.

    Raises:
        InvalidDescriptor: every call ends with it.
    """
    raise InvalidDescriptor.of([Violation("infer-request", path, message, value, expected, _SOURCE)])


def read_infer_request(text: bytes, binary_bytes: int) -> InferRequest:
    """Read the JSON part of a request.

    Raises:
        InvalidJson: it is not JSON.
        InvalidDescriptor: a member is missing or malformed, or the body has not the bytes that the inputs announce.
        NoBackend: what is asked for is not offered (501).
    """
    return infer_request(
        read_json(text, max_depth=_MOST_DEPTH, max_containers=_MOST_CONTAINERS, allow_non_finite=True), binary_bytes
    )


def infer_request(value: object, binary_bytes: int) -> InferRequest:
    """The request that a document means; see `read_infer_request`. Its inputs may have the member `content`, bytes."""
    document = _object(value, ())
    parameters = _object(document.get("parameters", {}), ("parameters",))
    binary_output = _boolean(parameters.get("binary_data_output", False), ("parameters", "binary_data_output"))
    inputs = _array(document.get("inputs"), ("inputs",))
    outputs = document.get("outputs")
    request = InferRequest(
        _text(document.get("id", ""), ("id",)),
        {name: value for name, value in parameters.items() if name not in _RESERVED and not name.startswith("triton_")},
        tuple([_input(entry, ("inputs", index)) for index, entry in enumerate(inputs)]),
        None if outputs is None else tuple([
            _output(entry, ("outputs", index), binary_output)
            for index, entry in enumerate(_array(outputs, ("outputs",)))
        ]),
        binary_output,
        _timeout(parameters.get("timeout")),
    )  # fmt: skip
    names = [tensor.name for tensor in request.inputs]
    if len({*names}) < len(names):
        refuse(("inputs",), "two inputs have the same name", names, "a name for each")
    if request.binary_bytes != binary_bytes:
        refuse(
            ("inputs",), f"the inputs announce {request.binary_bytes:,} bytes after the JSON, the body has "
            f"{binary_bytes:,}", binary_bytes, f"{request.binary_bytes:,} bytes",
        )  # fmt: skip
    return request


def _timeout(value: object) -> float | None:
    path = ("parameters", "timeout")
    if value is None:
        return None
    microseconds = _whole(value, path)
    return microseconds * _MICROSECONDS if microseconds else None


def _input(entry: object, path: tuple[str | int, ...]) -> InferInput:
    members = _object(entry, path)
    name = _text(members.get("name"), (*path, "name"))
    datatype = members.get("datatype")
    row = _TYPES.get(datatype) if isinstance(datatype, str) else None
    if row is None:
        guess = nearest(datatype, [*_TYPES]) if isinstance(datatype, str) else None
        hint = f"; did you mean {guess}?" if guess else ""
        refuse((*path, "datatype"), f"is no datatype of the protocol{hint}", datatype, ", ".join(map(str, _TYPES)))
    shape = _shape(members.get("shape"), row, (*path, "shape"))
    parameters = _object(members.get("parameters", {}), (*path, "parameters"))
    size, region = parameters.get("binary_data_size"), parameters.get("shared_memory_region")
    content = members.get("content")
    if isinstance(content, bytes):  # JSON has none
        _packed_size(name, row, shape, len(content), path)
        return InferInput(name, row, shape, content=content)
    held = HeldReference.of_document(
        {member: parameters[member] for member in ("tensor", "box") if member in parameters}, (*path, "parameters")
    )
    forms = ("data" in members) + (size is not None) + (region is not None) + (held is not None)
    if forms != 1:
        message = f"input {name!r} has its elements in {forms} places" if forms else f"input {name!r} has no elements"
        refuse(
            path,
            message,
            None,
            "one of data, and of the parameters binary_data_size, shared_memory_region and tensor",
        )
    if region is not None:
        part = _region(parameters, region, path)
        _packed_size(name, row, shape, part.size, path)
        return InferInput(name, row, shape, region=part)
    if held is not None:
        return InferInput(name, row, shape, held=held._replace(sizes=shape))
    if size is not None:
        count = _whole(size, (*path, "parameters", "binary_data_size"))
        _packed_size(name, row, shape, count, path)
        return InferInput(name, row, shape, binary_bytes=count)
    return InferInput(name, row, shape, data=members["data"])


def _packed_size(name: str, row: DataType, shape: tuple[int, ...], size: int, path: tuple[str | int, ...]) -> None:
    """Refuse a size that is not the shape's; of strings only the least is known: four bytes for each."""
    needed = math.prod(shape) * (row.item_size or 4)
    if (size != needed) if row.item_size else (size < needed):
        at_least = "" if row.item_size else "at least "
        refuse(
            path, f"input {name!r} announces {size:,} bytes, but {row.open_inference} of shape {list(shape)} has "
            f"{at_least}{needed:,}", size, f"{at_least}{needed:,}",
        )  # fmt: skip


def _output(entry: object, path: tuple[str | int, ...], binary_output: bool) -> RequestedOutput:
    members = _object(entry, path)
    name = _text(members.get("name"), (*path, "name"))
    parameters = _object(members.get("parameters", {}), (*path, "parameters"))
    region, wanted = parameters.get("shared_memory_region"), parameters.get("binary_data")
    binary = binary_output if wanted is None else _boolean(wanted, (*path, "parameters", "binary_data"))
    if parameters.get("classification") is not None:
        if region is not None:
            refuse(path, "classification and shared_memory_region exclude each other", None, "one of them")
        raise NoBackend("classification is not supported; request the tensor, or use the operator TOP_K")
    if region is None:
        return RequestedOutput(name, binary)
    if wanted is not None and binary:
        refuse(path, "binary_data and shared_memory_region exclude each other", None, "one of them")
    return RequestedOutput(name, binary=False, region=_region(parameters, region, path))


def _region(parameters: Mapping[str, Any], region: object, path: tuple[str | int, ...]) -> RegionPart:
    path = (*path, "parameters")
    return RegionPart(
        _text(region, (*path, "shared_memory_region")),
        _whole(parameters.get("shared_memory_offset", 0), (*path, "shared_memory_offset")),
        _whole(parameters.get("shared_memory_byte_size"), (*path, "shared_memory_byte_size")),
    )


def _shape(value: object, row: DataType, path: tuple[str | int, ...]) -> tuple[int, ...]:
    sizes = _array(value, path, _MOST_DIMENSIONS)
    shape = tuple([_whole(size, (*path, axis)) for axis, size in enumerate(sizes)])
    if math.prod(filter(None, shape)) * max(4, row.item_size) > _MOST_BYTES:
        refuse(path, "the tensor's bytes do not fit a signed 64-bit number", list(shape), "fewer than 2^63 bytes")
    return shape


def _whole(value: object, path: tuple[str | int, ...]) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_BYTES:
        refuse(path, "must be a whole number from 0 up", value, "0 to 2^63 - 1")
    return value


def _boolean(value: object, path: tuple[str | int, ...]) -> bool:
    if not isinstance(value, bool):
        refuse(path, "must be true or false", value, "true or false")
    return value


def _text(value: object, path: tuple[str | int, ...]) -> str:
    if not isinstance(value, str):
        refuse(path, "must be text", value, "text")
    return value


def _object(value: object, path: tuple[str | int, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        refuse(path, "must be an object", value, "an object")
    return cast("Mapping[str, Any]", value)


def _array(value: object, path: tuple[str | int, ...], most: int = _MOST_TENSORS) -> Sequence[Any]:
    if not isinstance(value, list) or len(cast("list[Any]", value)) > most:
        refuse(path, f"must be an array of at most {most:,} entries", None, "an array")
    return cast("list[Any]", value)
