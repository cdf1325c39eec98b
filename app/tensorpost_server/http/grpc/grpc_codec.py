"""Inferences as gRPC messages: what they are as requests, and the answers to them.

Tensors are put after a message that is serialized already, because protobuf would copy them four times. A serialized
message may be continued with further elements of a repeated field (Protocol Buffers, "Encoding", "Last One Wins").
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.values.problems import InvalidRequest

from ...engine import Worker
from ...planning import Plan
from ..calls.byte_strings import encode_strings
from ..calls.call import PreparedHead, prepared_head
from ..open_inference.content_coding import Coding
from ..open_inference.infer_request import InferRequest, infer_request
from ..open_inference.inference_answer import InferenceAnswer, OutputForm
from ..open_inference.models import Model
from .grpc_calls import Refused

_MEDIA_TYPE = "application/x-protobuf"
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


class GrpcCodec:
    """Heads of requests and answers are messages without their raw tensors. See `InferenceCodec`."""

    __slots__ = ("_message", "_raw_sizes", "_response", "key")

    def __init__(self, response: Any, message: Any, raw_sizes: Sequence[int]) -> None:
        self._response, self._message, self._raw_sizes = response, message, raw_sizes
        self.key = b"protobuf " + ",".join(map(str, raw_sizes)).encode()

    def read(self, head: bytes, binary_bytes: int) -> InferRequest:
        message, sizes, inputs = self._message, [*self._raw_sizes], list[dict[str, Any]]()
        for tensor in message.inputs:
            parameters = _parameters(tensor.parameters)
            entry = {"name": tensor.name, "datatype": tensor.datatype, "shape": [*tensor.shape]}
            if parameters.keys() & {"shared_memory_region", "tensor"}:
                entry["parameters"] = parameters
            elif tensor.HasField("contents"):
                entry["content"] = _contents(tensor)
            elif sizes:
                entry["parameters"] = {"binary_data_size": sizes.pop(0)}
            else:
                raise InvalidRequest(f"input {tensor.name!r} has no elements")
            inputs.append(entry)
        if sizes:
            raise InvalidRequest(f"raw_input_contents has {len(sizes)} more entries than there are inputs")
        parameters = {**_parameters(message.parameters), "binary_data_output": True}
        document: dict[str, Any] = {"id": message.id, "inputs": inputs, "parameters": parameters}
        if message.outputs:
            document["outputs"] = [
                {"name": output.name, "parameters": _parameters(output.parameters)} for output in message.outputs
            ]
        return infer_request(document, binary_bytes)

    def answer(
        self, model: Model, id_: str, outputs: tuple[OutputForm, ...], coding: Coding | None
    ) -> InferenceAnswer:  # fmt: skip
        return _GrpcAnswer(model.name, model.version, id_, outputs, coding, self._response)


@dataclass(frozen=True, slots=True, eq=False)
class _GrpcAnswer(InferenceAnswer):
    """The answer as a message. See `Answer`."""

    kind: Any = None

    @property
    def streams(self) -> bool:
        """See `Answer.streams`: the bytes of the only output end the message."""
        (output, *others) = self.outputs
        return not others and output.wanted and output.binary and not output.is_text

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        body_head = self._message() + length_prefix(_RAW_OUTPUT_CONTENTS, plan.output_bytes)
        length = len(body_head) + plan.output_bytes
        return prepared_head(plan, worker, _MEDIA_TYPE, body_head, length, inline=worker.is_small(plan))

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        parts: list[bytes | bytearray] = [self._message()]
        for output, data in zip(self.outputs, outputs, strict=True):
            if output.wanted and output.binary:
                parts += [length_prefix(_RAW_OUTPUT_CONTENTS, len(data)), data]
        body = b"".join(parts)
        inline = worker.is_small(plan) and all(output.in_body and not output.is_text for output in self.sinks)
        return prepared_head(plan, worker, _MEDIA_TYPE, b"", len(body), inline=inline), body

    def _message(self) -> bytes:
        message = self.kind(model_name=self.model, model_version=self.version, id=self.id)
        for output in self.outputs:
            if output.wanted:
                message.outputs.add(name=output.name, datatype=output.data_type.open_inference, shape=output.shape)
        return message.SerializeToString()


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("choice") or "string_param") for name, value in parameters.items()}


def _contents(tensor: Any) -> bytes:
    """The bytes of elements that came one by one."""
    if tensor.datatype == "BYTES":
        return encode_strings([*tensor.contents.bytes_contents])
    field, dtype = _CONTENTS.get(tensor.datatype, ("", ""))
    if not field:
        raise InvalidRequest(f"{tensor.datatype[:20]} has no typed contents; send raw_input_contents")
    try:
        return np.array(getattr(tensor.contents, field), dtype).tobytes()
    except (OverflowError, struct.error):
        raise InvalidRequest(f"an element of {tensor.name!r} does not fit {tensor.datatype}") from None


def length_prefix(field: int, size: int) -> bytes:
    """What stands before a field of bytes: its number and its length (Protocol Buffers, "Encoding")."""
    prefix = bytearray([field << 3 | 2])
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(prefix) + bytes([size])
