"""Inferences as gRPC messages: what they are as requests and responses of `/v2`.

Tensors are put after a message that is serialized already, because protobuf would copy them four times. A serialized
message may be continued with further elements of a repeated field (Protocol Buffers, "Encoding", "Last One Wins").
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..calls.byte_strings import encode_strings

__all__ = ["Refused", "infer_document", "infer_response", "length_prefix"]

_RAW_OUTPUT_CONTENTS = 6  # number of the field
_CONTENTS = {
    "BOOL": ("bool_contents", "?"), "INT8": ("int_contents", "i1"), "INT16": ("int_contents", "<i2"),
    "INT32": ("int_contents", "<i4"), "INT64": ("int64_contents", "<i8"), "UINT8": ("uint_contents", "u1"),
    "UINT16": ("uint_contents", "<u2"), "UINT32": ("uint_contents", "<u4"), "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"), "FP64": ("fp64_contents", "<f8"),
}  # fmt: skip


class Refused(Exception):
    """A call that ends with a status of gRPC.

    Args:
        status: its name.
        text: what the caller is told.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def infer_document(message: Any) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON part of the request that a message stands for, and the bytes of its tensors.

    Raises:
        Refused: it names tensors without elements, or the other way round.
    """
    raw = [*message.raw_input_contents]
    inputs, parts = list[dict[str, Any]](), list[bytes]()
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
    return document, parts


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


def infer_response(kind: Any, json_bytes: int | None, parts: Sequence[bytes]) -> bytes:
    """The message that a response stands for, serialized.

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
    tensors: list[bytes | memoryview] = []
    for entry in document["outputs"]:
        message.outputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        size = entry.get("parameters", {}).get("binary_data_size", 0)
        tensors += [length_prefix(_RAW_OUTPUT_CONTENTS, size), *_take(left, size)]
    return b"".join([message.SerializeToString(), *tensors])


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
