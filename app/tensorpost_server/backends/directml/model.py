"""A model of one node as the bytes that ONNX Runtime loads.

Written field by field, because the `onnx` package would be a large dependency for some hundred bytes whose form never
changes. The field numbers are those of `onnx.proto`; a test reads every kind of model back with that package and its
checker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tensorpost.datatypes import DataType, data_type

__all__ = ["INPUT", "OUTPUT", "Constant", "Node", "model_bytes"]

INPUT, OUTPUT = "X", "Y"
"""The graph's names of the tensor that is worked on and of the result."""

IR_VERSION = 9
"""The oldest that may hold opset 19; every ONNX Runtime with a current DirectML provider reads it."""

_VARINT, _BYTES = 0, 2  # wire types of protobuf
_ATTRIBUTE_INT, _ATTRIBUTE_STRING = 2, 3  # AttributeProto.AttributeType


@dataclass(frozen=True, slots=True)
class Constant:
    """A small input whose entries are part of the model.

    DirectML's provider takes repeats, scales and roi as constants only (ONNX Runtime, its operator registration).

    Attributes:
        name: the input's formal name.
        data_type: int64 or float32.
        entries: its numbers; one dimension.
    """

    name: str
    data_type: DataType
    entries: tuple[int | float, ...]

    @classmethod
    def int64(cls, name: str, entries: tuple[int, ...]) -> Constant:
        """Whole numbers."""
        return cls(name, data_type("int64"), entries)

    @classmethod
    def float32(cls, name: str, entries: tuple[float, ...]) -> Constant:
        """Numbers that float32 holds."""
        return cls(name, data_type("float32"), entries)

    @property
    def raw(self) -> bytes:
        """The entries as little-endian bytes."""
        code = "q" if self.data_type.numpy_name == "int64" else "f"
        return struct.pack(f"<{len(self.entries)}{code}", *self.entries)


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node with fixed shapes: what a session runs, and the key under which it is kept.

    Attributes:
        op_type: `Tile` or `Resize`.
        opset: of the default domain.
        data_type: of the tensor and of the result.
        shape: the tensor's.
        output_shape: the result's.
        constants: the inputs after the tensor, in the signature's order; None for one that is left out.
        attributes: by name.
    """

    op_type: str
    opset: int
    data_type: DataType
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    constants: tuple[Constant | None, ...]
    attributes: tuple[tuple[str, str | int], ...] = ()


def model_bytes(node: Node) -> bytes:
    """The node as a serialized `ModelProto`: the tensor is the graph's input, everything else an initializer."""
    constants = [constant for constant in node.constants if constant is not None]
    inputs = [INPUT, *("" if constant is None else constant.name for constant in node.constants)]
    proto = b"".join(_text(1, name) for name in inputs) + _text(2, OUTPUT) + _text(4, node.op_type)
    proto += b"".join(_block(5, _attribute(name, value)) for name, value in node.attributes)
    graph = _block(1, proto) + _text(2, node.op_type)
    graph += b"".join(_block(5, _tensor(constant)) for constant in constants)
    graph += _block(11, _value_info(INPUT, node.data_type, node.shape))
    graph += _block(12, _value_info(OUTPUT, node.data_type, node.output_shape))
    opset = _text(1, "") + _number(2, node.opset)
    return _number(1, IR_VERSION) + _text(2, "tensorpost") + _block(7, graph) + _block(8, opset)


def _attribute(name: str, value: str | int) -> bytes:
    if isinstance(value, str):
        return _text(1, name) + _text(4, value) + _number(20, _ATTRIBUTE_STRING)
    return _text(1, name) + _number(3, value) + _number(20, _ATTRIBUTE_INT)


def _tensor(constant: Constant) -> bytes:
    head = _number(1, len(constant.entries)) + _number(2, constant.data_type.onnx_code)
    return head + _text(8, constant.name) + _block(9, constant.raw)


def _value_info(name: str, element: DataType, shape: tuple[int, ...]) -> bytes:
    dimensions = b"".join(_block(1, _number(1, size)) for size in shape)
    tensor = _number(1, element.onnx_code) + _block(2, dimensions)
    return _text(1, name) + _block(2, _block(1, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _block(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, least significant first. Nothing here is negative."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
