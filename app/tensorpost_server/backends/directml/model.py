"""A model of one node as the bytes that ONNX Runtime loads.

Written field by field, because the `onnx` package would be a large dependency for some hundred bytes whose form never
changes. The field numbers are those of `onnx.proto`; a test reads every kind of model back with that package and its
checker.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from tensorpost.datatypes import DataType, data_type

__all__ = ["Constant", "Node", "TensorType", "model_bytes"]

IR_VERSION = 9
"""The oldest that may hold opset 19; every ONNX Runtime with a current DirectML provider reads it."""

_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # wire types of protobuf
_FLOAT, _INT, _STRING, _INTS = 1, 2, 3, 7  # AttributeProto.AttributeType

Attribute = str | int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor that is given to a node, or made by it."""

    data_type: DataType
    shape: tuple[int, ...]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the packed tensor."""
        return math.prod(self.shape) * self.data_type.item_size


@dataclass(frozen=True, slots=True)
class Constant:
    """A small input whose entries are part of the model.

    DirectML's provider takes repeats, scales, pads and so on as constants only (ONNX Runtime, its operator
    registration).

    Attributes:
        data_type: element type.
        shape: one dimension, or none for a scalar.
        entries: its numbers.
    """

    data_type: DataType
    shape: tuple[int, ...]
    entries: tuple[int | float, ...]

    @classmethod
    def vector(cls, name: str, entries: tuple[int | float, ...]) -> Constant:
        """Numbers of the named type in one dimension."""
        return cls(data_type(name), (len(entries),), entries)

    @property
    def raw(self) -> bytes:
        """The entries as little-endian bytes."""
        return np.array(self.entries, self.data_type.dtype).tobytes()


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node with fixed shapes: what a session runs, and the key under which it is kept.

    Attributes:
        op_type: the operator, for instance `Tile`.
        opset: of the default domain.
        inputs: in the signature's order; None for an optional one that is absent.
        outputs: in the signature's order.
        attributes: by name.
    """

    op_type: str
    opset: int
    inputs: tuple[TensorType | Constant | None, ...]
    outputs: tuple[TensorType, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()

    @property
    def fed(self) -> dict[str, TensorType]:
        """The tensors that every run is given, by their names in the graph."""
        return {f"I{at}": value for at, value in enumerate(self.inputs) if isinstance(value, TensorType)}

    @property
    def made(self) -> dict[str, TensorType]:
        """The tensors that every run makes, by their names in the graph."""
        return {f"O{at}": value for at, value in enumerate(self.outputs)}


def model_bytes(node: Node) -> bytes:
    """The node as a serialized `ModelProto`: tensors are the graph's inputs, constants its initializers."""
    names = ["" if value is None else f"I{at}" for at, value in enumerate(node.inputs)]
    proto = b"".join(_text(1, name) for name in names) + b"".join(_text(2, name) for name in node.made)
    proto += _text(4, node.op_type) + b"".join(_block(5, _attribute(name, value)) for name, value in node.attributes)
    graph = _block(1, proto) + _text(2, node.op_type)
    constants = [(name, value) for name, value in zip(names, node.inputs, strict=True) if isinstance(value, Constant)]
    graph += b"".join(_block(5, _tensor(name, constant)) for name, constant in constants)
    graph += b"".join(_block(11, _value_info(name, tensor)) for name, tensor in node.fed.items())
    graph += b"".join(_block(12, _value_info(name, tensor)) for name, tensor in node.made.items())
    opset = _text(1, "") + _number(2, node.opset)
    return _number(1, IR_VERSION) + _text(2, "tensorpost") + _block(7, graph) + _block(8, opset)


def _attribute(name: str, value: Attribute) -> bytes:
    match value:
        case str():
            return _text(1, name) + _text(4, value) + _number(20, _STRING)
        case int():
            return _text(1, name) + _number(3, value) + _number(20, _INT)
        case float():
            return _text(1, name) + _varint(2 << 3 | _FIXED32) + struct.pack("<f", value) + _number(20, _FLOAT)
        case _:
            return _text(1, name) + b"".join(_number(8, entry) for entry in value) + _number(20, _INTS)


def _tensor(name: str, constant: Constant) -> bytes:
    head = b"".join(_number(1, size) for size in constant.shape) + _number(2, constant.data_type.onnx_code)
    return head + _text(8, name) + _block(9, constant.raw)


def _value_info(name: str, tensor: TensorType) -> bytes:
    dimensions = b"".join(_block(1, _number(1, size)) for size in tensor.shape)
    content = _number(1, tensor.data_type.onnx_code) + _block(2, dimensions)
    return _text(1, name) + _block(2, _block(1, content))


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
