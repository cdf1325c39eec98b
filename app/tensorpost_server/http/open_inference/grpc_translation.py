"""Inferences as gRPC messages: what they are as requests and responses of `/v2`.

Tensors are put after a message that is serialized already, because protobuf would copy them four times. A serialized
message may be continued with further elements of a repeated field (Protocol Buffers, "Encoding", "Last One Wins").
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .byte_strings import encode_strings
from .grpc_calls import Refused

__all__ = ["infer_document", "infer_response", "length_prefix", "parsed", "split_message"]

_RAW_INPUT_CONTENTS, _RAW_OUTPUT_CONTENTS = 7, 6  # numbers of the fields
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_MOST_FIELDS = 4096  # of a message, looked at on the event loop's thread: 2 ms
_CONTENTS = {
    "BOOL": ("bool_contents", "?"), "INT8": ("int_contents", "i1"), "INT16": ("int_contents", "<i2"),
    "INT32": ("int_contents", "<i4"), "INT64": ("int64_contents", "<i8"), "UINT8": ("uint_contents", "u1"),
    "UINT16": ("uint_contents", "<u2"), "UINT32": ("uint_contents", "<u4"), "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"), "FP64": ("fp64_contents", "<f8"),
}  # fmt: skip


def split_message(message: bytes | memoryview) -> tuple[list[memoryview], list[memoryview]]:
    """The parts of a request that are beside its raw tensors, and those; nothing is copied.

    Raises:
        Refused: it is no message, or has more fields than a request can have.
    """
    view, at, kept_from, count = memoryview(message), 0, 0, 0
    kept, raw = list[memoryview](), list[memoryview]()
    while at < len(view):
        begin = at
        tag, at = _varint(view, at)
        kind, count = tag & 7, count + 1
        if count > _MOST_FIELDS:
            raise Refused("INVALID_ARGUMENT", f"the message has more than {_MOST_FIELDS:,} tensors and parameters")
        if kind == _LENGTH_DELIMITED:
            size, at = _varint(view, at)
            if tag >> 3 == _RAW_INPUT_CONTENTS:
                kept.append(view[kept_from:begin])
                raw.append(view[at : at + size])
                kept_from = at + size
            at += size
        elif kind == 0:
            _, at = _varint(view, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise _malformed()
    if at > len(view):
        raise _malformed()
    return [*kept, view[kept_from:]], raw


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A number (Protocol Buffers, "Encoding", "Base 128 Varints"), and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        byte, at = view[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _malformed()


def _malformed() -> Refused:
    return Refused("INVALID_ARGUMENT", "the message is not a request of the Open Inference Protocol (protobuf)")


def parsed(kind: Any, data: bytes | memoryview) -> Any:
    """The message of a class.

    Raises:
        Refused: it is no such message.
    """
    error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    try:
        return kind.FromString(data if isinstance(data, bytes) else bytes(data))
    except error:
        raise _malformed() from None


def infer_document(message: Any, raw: Sequence[bytes | memoryview]) -> tuple[bytes, list[bytes | memoryview]]:
    """The JSON part of the request that a message stands for, and the bytes of its tensors.

    Args:
        message: the message.
        raw: its raw_input_contents.

    Raises:
        Refused: it names tensors without elements, or the other way round.
    """
    raw = [*raw]
    inputs, parts = list[dict[str, Any]](), list[bytes | memoryview]()
    for tensor in message.inputs:
        parameters = _parameters(tensor.parameters)
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": [*tensor.shape]}
        if "shared_memory_region" not in parameters:
            if tensor.HasField("contents"):
                part = _contents(tensor)
            elif raw:
                part = raw.pop(0)
            else:
                raise Refused("INVALID_ARGUMENT", f"input {tensor.name!r} has no elements")
            parts.append(part)
            parameters = {"binary_data_size": len(part)}
        inputs.append({**entry, "parameters": parameters})
    if raw:
        raise Refused("INVALID_ARGUMENT", f"raw_input_contents has {len(raw)} more entries than there are inputs")
    given = {**_parameters(message.parameters), "binary_data_output": True}
    document: dict[str, Any] = {"id": message.id, "inputs": inputs, "parameters": given}
    if message.outputs:
        document["outputs"] = [
            {"name": output.name, "parameters": _parameters(output.parameters)} for output in message.outputs
        ]
    return json.dumps(document).encode(), parts


def _parameters(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("choice") or "string_param") for name, value in found.items()}


def _contents(tensor: Any) -> bytes:
    """The bytes of elements that came one by one."""
    if tensor.datatype == "BYTES":
        return encode_strings([*tensor.contents.bytes_contents])
    field, dtype = _CONTENTS.get(tensor.datatype, ("", ""))
    if not field:
        raise Refused("INVALID_ARGUMENT", f"{tensor.datatype[:20]} has no typed contents; send raw_input_contents")
    try:
        return np.array(getattr(tensor.contents, field), dtype).tobytes()
    except (OverflowError, struct.error):
        raise Refused("INVALID_ARGUMENT", f"an element of {tensor.name!r} does not fit {tensor.datatype}") from None


def infer_response(kind: Any, json_bytes: int | None, parts: Sequence[bytes]) -> list[bytes | memoryview]:
    """The message that a response stands for, serialized, in pieces.

    Args:
        kind: class of the message.
        json_bytes: length of the JSON part; None if there is nothing else.
        parts: the parts of the response's body, in order.
    """
    left = [memoryview(part) for part in reversed(parts)]
    document = json.loads(b"".join(_take(left, sum(map(len, left)) if json_bytes is None else json_bytes)))
    message = kind(
        model_name=document["model_name"], model_version=document["model_version"], id=document.get("id", "")
    )
    tensors: list[bytes | memoryview] = [b""]
    for entry in document["outputs"]:
        message.outputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        size = entry.get("parameters", {}).get("binary_data_size", 0)
        tensors += [length_prefix(_RAW_OUTPUT_CONTENTS, size), *_take(left, size)]
    tensors[0] = message.SerializeToString()
    return tensors


def _take(left: list[memoryview], size: int) -> Iterator[memoryview]:
    """The next bytes of parts, of which the last in the list is the next."""
    while size:
        part = left.pop()
        if len(part) > size:
            left.append(part[size:])
        yield part[:size]
        size -= min(size, len(part))


def length_prefix(field: int, size: int) -> bytes:
    """What stands before a field of bytes: its number and its length (Protocol Buffers, "Encoding")."""
    prefix = bytearray([field << 3 | 2])
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(prefix) + bytes([size])
