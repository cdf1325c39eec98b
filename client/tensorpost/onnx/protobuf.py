"""The fields of a Protocol Buffers message, read from its bytes and written without a schema.

Only what `onnx.proto` uses: varints, fixed numbers and length-delimited fields. Reading copies no byte, and reads none
outside of the message. Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..values.problems import InvalidDescriptor, Violation

__all__ = [
    "Field", "doubles_of", "fields", "fixed32_field", "floats_of", "message_field", "signed", "text_field",
    "varint_bytes", "varints_of", "whole_field",
]  # fmt: skip

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10  # bytes


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: which field of the message.
        value: the number of a varint; the bytes of any other field.
    """

    number: int
    value: int | memoryview

    @property
    def data(self) -> memoryview:
        """The bytes: a text, a message, or packed numbers.

        Raises:
            InvalidDescriptor: it is a varint.
        """
        if isinstance(self.value, int):
            raise broken(f"field {self.number} has a number where bytes are expected")
        return self.value

    @property
    def text(self) -> str:
        """The bytes as UTF-8; what is none is replaced."""
        return bytes(self.data).decode("utf-8", "replace")

    @property
    def whole(self) -> int:
        """The number of a varint as int64.

        Raises:
            InvalidDescriptor: it is no varint.
        """
        if not isinstance(self.value, int):
            raise broken(f"field {self.number} has bytes where a whole number is expected")
        return signed(self.value)


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in the order of its bytes.

    Raises:
        InvalidDescriptor: the bytes are no message: they are cut off, or have a field of an unknown kind.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield Field(number, value)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise broken(f"a field of kind {kind} does not exist in Protocol Buffers version 3")
        if not number or size > end - at:
            raise broken(f"field {number} has {size:,} bytes, and the message has {end - at:,} more")
        yield Field(number, message[at : at + size])
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a byte, and where the next field begins."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(message):
            raise broken("a number is cut off")
        byte = message[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & ((1 << 64) - 1), at + place + 1
    raise broken("a number has more than 10 bytes")


def signed(value: int) -> int:
    """A varint as int64."""
    return value - (1 << 64) if value >> 63 else value


def varints_of(field: Field) -> list[int]:
    """The numbers of a repeated field of integers, packed or one of them, as int64."""
    if isinstance(field.value, int):
        return [signed(field.value)]
    found, at = list[int](), 0
    while at < len(field.value):
        value, at = _varint(field.value, at)
        found.append(signed(value))
    return found


def floats_of(field: Field) -> list[float]:
    """The numbers of a repeated field of floats, packed or one of them."""
    return [number for (number,) in struct.iter_unpack("<f", _whole_numbers(field, 4))]


def doubles_of(field: Field) -> list[float]:
    """The numbers of a repeated field of doubles, packed or one of them."""
    return [number for (number,) in struct.iter_unpack("<d", _whole_numbers(field, 8))]


def _whole_numbers(field: Field, size: int) -> memoryview:
    if len(field.data) % size:
        raise broken(f"field {field.number} has {len(field.data):,} bytes of numbers of {size} bytes each")
    return field.data


def varint_bytes(value: int) -> bytes:
    """A varint; a negative number is its int64."""
    value &= (1 << 64) - 1
    count = max(1, math.ceil(value.bit_length() / 7))
    return bytes([value >> 7 * place & 127 | (128 if place < count - 1 else 0) for place in range(count)])


def whole_field(number: int, value: int) -> bytes:
    """A field with a whole number."""
    return varint_bytes(number << 3 | _VARINT) + varint_bytes(value)


def message_field(number: int, content: bytes | memoryview) -> bytes:
    """A field with bytes, packed numbers or a message."""
    return b"".join([varint_bytes(number << 3 | _BYTES), varint_bytes(len(content)), content])


def fixed32_field(number: int, content: bytes) -> bytes:
    """A field with 4 bytes, as a float."""
    return varint_bytes(number << 3 | _FIXED32) + content


def text_field(number: int, text: str) -> bytes:
    """A field with a text."""
    return message_field(number, text.encode())


def broken(message: str) -> InvalidDescriptor:
    """The error of bytes that are no model."""
    return InvalidDescriptor.of([
        Violation(
            "onnx-model", (), f"the bytes are not an ONNX model: {message}", None, "a ModelProto of onnx.save",
            "onnx.proto",
        )
    ])  # fmt: skip
