"""Several ONNX nodes as the bytes of one model, for ONNX Runtime; the package `onnx` is not needed for that.

A node that the package has checked comes with the model of it alone, whose attributes and constants are taken as they
are. Of any other node, attributes and values are written by the types of its schema.
Source: onnx.proto (field numbers); Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.onnx.operator_schema import OnnxInput
from tensorpost.onnx.parameters import ModelParameters
from tensorpost.onnx.protobuf import fields
from tensorpost.values.datatypes import data_type

_IR_VERSION = 8  # as that of the models of one node
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_KINDS = {"FLOAT": 1, "INT": 2, "STRING": 3, "TENSOR": 4, "FLOATS": 6, "INTS": 7}  # AttributeProto.AttributeType
_SCALARS = frozenset({"axis", "constant_value", "delta", "depth", "k", "limit", "start"})
"""Values that are tensors of rank 0: of CumSum, Pad, Range, OneHot and Trilu."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node of a model.

    Attributes:
        operation: what it computes.
        name: what the model calls it.
        inputs: names of the tensors that `operation.tensors` are.
        outputs: names of the tensors that `operation.results` are.
    """

    operation: OnnxNode
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def model_bytes(
    nodes: Sequence[ModelNode], inputs: Sequence[tuple[str, OnnxTensor]], outputs: Sequence[tuple[str, OnnxTensor]],
    opset: int,
) -> bytes:  # fmt: skip
    """A `ModelProto`.

    Args:
        nodes: the nodes, each after those whose outputs it reads.
        inputs: name, type and shape of each tensor that is given.
        outputs: name and type of each tensor that comes back; shapes are left to ONNX Runtime.
        opset: the version of ONNX's operators that all nodes are read at.
    """
    graph: list[bytes] = []
    for node in nodes:
        graph += _node_fields(node)
    graph.append(_text(2, "partition"))
    graph += [_message(11, _value_info(name, tensor, sizes=tensor.shape)) for name, tensor in inputs]
    graph += [_message(12, _value_info(name, tensor)) for name, tensor in outputs]
    opset_import = _text(1, "") + _whole(2, opset)
    return b"".join([_whole(1, _IR_VERSION), _text(2, "tensorpost"), _message(7, b"".join(graph)),
                     _message(8, opset_import)])  # fmt: skip


def _node_fields(node: ModelNode) -> Iterator[bytes]:
    """The node, and the constants that belong to it, as fields of a `GraphProto`."""
    operation = node.operation
    names = dict(zip([name for name, _ in operation.tensors], node.inputs, strict=True))
    if isinstance(operation.meaning, ModelParameters):
        formal, attributes, constants = _parts_of_model(operation.meaning.model)
    else:
        schema = operation.schema
        formal = [entry.name for entry in schema.inputs if not entry.variadic]
        formal += [name for name in names if name not in formal]
        kinds = {entry.name: entry.type for entry in schema.attributes}
        given = [(name, value) for name, value in operation.attributes if value != ()]
        attributes = [_attribute(name, kinds[name], value) for name, value in given]
        constants = {name: _constant(operation, name, values) for name, values in operation.values}
    for name, constant in constants.items():
        names[name] = f"{node.name}.{name}"
        yield _message(5, constant + _text(8, names[name]))  # the last name counts
    read = [names.get(name, "") for name in formal]
    while read and not read[-1]:
        read.pop()
    parts = [_text(1, name) for name in read] + [_text(2, name) for name in node.outputs]
    parts += [_text(3, node.name), _text(4, operation.op_type)]
    yield _message(1, b"".join(parts + [_message(5, attribute) for attribute in attributes]))


def _parts_of_model(model: bytes) -> tuple[list[str], list[bytes], dict[str, bytes]]:
    """Formal names of a model's only node's inputs, its attributes, and its constants by name."""
    inputs: list[str] = []
    attributes: list[bytes] = []
    constants: dict[str, bytes] = {}
    (graph,) = [field.data for field in fields(memoryview(model)) if field.number == 7]
    for field in fields(graph):
        if field.number == 1:
            for part in fields(field.data):
                if part.number == 1:
                    inputs.append(part.text)
                elif part.number == 5:
                    attributes.append(bytes(part.data))
        elif field.number == 5:
            (name,) = [part.text for part in fields(field.data) if part.number == 8]
            constants[name] = bytes(field.data)
    return inputs, attributes, constants


def _attribute(name: str, kind: str, value: Any) -> bytes:
    """An `AttributeProto`."""
    parts = [_text(1, name), _whole(20, _KINDS[kind])]
    match kind:
        case "FLOAT":
            parts.append(_tag(2, _FIXED32) + np.float32(value).tobytes())
        case "INT":
            parts.append(_whole(3, int(value)))
        case "STRING":
            parts.append(_text(4, str(value)))
        case "TENSOR":
            element_type, number = value
            parts.append(_message(5, _tensor(np.array([number], data_type(element_type).dtype))))
        case "FLOATS":
            parts.append(_message(7, np.array(value, "<f4").tobytes()))
        case _:
            parts.append(_message(8, b"".join([_varint(int(number)) for number in value])))
    return b"".join(parts)


def _constant(operation: OnnxNode, name: str, values: Sequence[int | float]) -> bytes:
    """A small input as a `TensorProto` without a name."""
    entry = operation.schema.input(name)
    assert entry is not None
    array = np.array(values, data_type(_type_of(operation, entry, values)).dtype)
    return _tensor(array.reshape(()) if name in _SCALARS and array.size == 1 else array)


def _type_of(operation: OnnxNode, entry: OnnxInput, values: Sequence[int | float]) -> str:
    """The type of a small input: that of what shares its variable, or one that holds the numbers."""
    if len(entry.types) > 1 and entry.variable:
        schema = operation.schema
        shared = {slot.name for slot in (*schema.inputs, *schema.outputs) if slot.variable == entry.variable}
        for name, tensor in (*operation.tensors, *operation.results):
            if name in shared:
                return tensor.row.numpy_name
    whole = all(isinstance(value, int) for value in values)
    return "int64" if whole and "int64" in entry.types else entry.types[0]


def _tensor(array: Any) -> bytes:
    """A `TensorProto`."""
    dims = [_whole(1, size) for size in array.shape]
    return b"".join([*dims, _whole(2, data_type(array.dtype).onnx_code), _message(9, array.tobytes())])


def _value_info(name: str, tensor: OnnxTensor, sizes: Sequence[int] | None = None) -> bytes:
    """A `ValueInfoProto`."""
    kind = _whole(1, tensor.row.onnx_code)
    if sizes is not None:
        kind += _message(2, b"".join([_message(1, _whole(1, size)) for size in sizes]))
    return _text(1, name) + _message(2, _message(1, kind))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    count = max(1, math.ceil(value.bit_length() / 7))
    return bytes([value >> 7 * place & 127 | (128 if place < count - 1 else 0) for place in range(count)])


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _whole(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value)


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())
