"""Several ONNX nodes as the bytes of one model, for ONNX Runtime; the package `onnx` is not needed for that.

A node that the package has checked comes with the model of it alone, whose attributes and constants are taken as they
are. Of any other node, attributes and values are written by the types of its schema.
Source: onnx.proto (field numbers); Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.onnx.model_reader import read_model
from tensorpost.onnx.operator_schema import OnnxInput
from tensorpost.onnx.parameters import ModelParameters
from tensorpost.onnx.proto_node import OnnxProtoNode, renamed_node, tensor_message
from tensorpost.onnx.protobuf import fields, fixed32_field, message_field, text_field, varint_bytes, whole_field
from tensorpost.values.datatypes import data_type

_IR_VERSION = 8  # as that of the models of one node
_KINDS = {"FLOAT": 1, "INT": 2, "STRING": 3, "TENSOR": 4, "FLOATS": 6, "INTS": 7}  # AttributeProto.AttributeType
_SCALARS = frozenset({
    "axis", "constant_value", "delta", "depth", "dft_length", "frame_length", "frame_step", "k", "limit", "start",
})  # fmt: skip
"""Values that are tensors of rank 0: of CumSum, Pad, Range, OneHot, Trilu, DFT and STFT."""


@dataclass(frozen=True, slots=True)
class WrittenNode:
    """A node of a model.

    Attributes:
        operation: what it computes.
        name: what the model calls it.
        inputs: names of the tensors that `operation.tensors` are.
        outputs: names of the tensors that `operation.results` are.
        of_signed_zeros: whether Relu and Clip are written as maximum and minimum, which give 0 for -0 and a bound of 0,
            as our own forms do; ONNX Runtime's give -0.
    """

    operation: OnnxNode
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    of_signed_zeros: bool = False


def model_bytes(
    nodes: Sequence[WrittenNode], inputs: Sequence[tuple[str, OnnxTensor]], outputs: Sequence[tuple[str, OnnxTensor]],
    opsets: Mapping[str, int], *, any_sizes: bool = False,
) -> bytes:  # fmt: skip
    """A `ModelProto`.

    Args:
        nodes: the nodes, each after those whose outputs it reads.
        inputs: name, type and shape of each tensor that is given.
        outputs: the same of each tensor that comes back.
        opsets: the version of each domain's operators that all nodes are read at; ONNX's own is the empty name.
        any_sizes: whether it says no sizes of tensors, so that the same model is made for others.
    """
    graph: list[bytes] = []
    for node in nodes:
        graph += _node_fields(node)
    graph.append(text_field(2, "partition"))
    graph += [message_field(11, _value_info(name, tensor, any_sizes=any_sizes)) for name, tensor in inputs]
    graph += [message_field(12, _value_info(name, tensor, any_sizes=any_sizes)) for name, tensor in outputs]
    imported = [message_field(8, text_field(1, domain) + whole_field(2, opsets[domain])) for domain in sorted(opsets)]
    parts = [whole_field(1, _IR_VERSION), text_field(2, "tensorpost"), message_field(7, b"".join(graph)), *imported]
    return b"".join(parts)


def _node_fields(node: WrittenNode) -> Iterator[bytes]:
    """The node, and the constants that belong to it, as fields of a `GraphProto`."""
    operation = node.operation
    if isinstance(operation, OnnxProtoNode):
        yield from _proto_node(node, operation)
        return
    if node.of_signed_zeros and operation.op_type in ("Clip", "Relu"):
        yield from _bounded(node)
        return
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
        yield message_field(5, constant + text_field(8, names[name]))  # the last name counts
    read = [names.get(name, "") for name in formal]
    while read and not read[-1]:
        read.pop()
    yield _node(node.name, operation.op_type, read, node.outputs, attributes)


def _proto_node(node: WrittenNode, operation: OnnxProtoNode) -> Iterator[bytes]:
    """A node that is written as it came, with the names of this model; what lies in its subgraphs gets its own."""
    model = read_model(operation.model)
    (proto,) = model.nodes
    assert proto.message is not None
    names = {f"i{place}": name for place, name in enumerate(node.inputs)}
    made = dict(zip([name for name in proto.outputs if name], node.outputs, strict=True))
    outputs = [name and made[name] for name in proto.outputs]

    def renamed(name: str) -> str:
        return names.get(name) or f"{node.name}.{name}"

    inputs = [name and renamed(name) for name in proto.inputs]
    for name, array in model.initializers.items():
        yield message_field(5, tensor_message(array) + text_field(8, renamed(name)))
    yield message_field(1, renamed_node(proto.message, inputs, outputs, renamed, node.name))


def _bounded(node: WrittenNode) -> Iterator[bytes]:
    """Clip, or Relu, as Max and Min."""
    operation = node.operation
    given = dict(zip([name for name, _ in operation.tensors], node.inputs, strict=True))
    bounds = {name: given[name] for name in ("min", "max") if name in given}
    numbers = {"min": 0.0} if operation.op_type == "Relu" else dict(operation.attributes)
    for key in ("min", "max"):
        if (number := numbers.get(key)) is not None:
            bounds[key] = f"{node.name}.{key}"
            yield message_field(5, tensor_message(np.array(number, np.float32)) + text_field(8, bounds[key]))
    source = node.inputs[0]
    steps = [(op_type, bounds[key]) for key, op_type in (("min", "Max"), ("max", "Min")) if key in bounds]
    for place, (op_type, bound) in enumerate(steps):
        target = node.outputs[0] if place == len(steps) - 1 else f"{node.name}.bounded"
        yield _node(f"{node.name}.{op_type}", op_type, [source, bound], [target])
        source = target
    if not steps:
        yield _node(node.name, "Identity", [source], node.outputs)


def _node(
    name: str, op_type: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Sequence[bytes] = ()
) -> bytes:  # fmt: skip
    """A field of a `GraphProto` with a `NodeProto`."""
    parts = [*[text_field(1, each) for each in inputs], *[text_field(2, each) for each in outputs]]
    parts += [text_field(3, name), text_field(4, op_type), *[message_field(5, attribute) for attribute in attributes]]
    return message_field(1, b"".join(parts))


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
    parts = [text_field(1, name), whole_field(20, _KINDS[kind])]
    match kind:
        case "FLOAT":
            parts.append(fixed32_field(2, np.float32(value).tobytes()))
        case "INT":
            parts.append(whole_field(3, int(value)))
        case "STRING":
            parts.append(text_field(4, str(value)))
        case "TENSOR":
            element_type, number = value
            parts.append(message_field(5, tensor_message(np.array([number], data_type(element_type).dtype))))
        case "FLOATS":
            parts.append(message_field(7, np.array(value, "<f4").tobytes()))
        case _:
            parts.append(message_field(8, b"".join([varint_bytes(int(number)) for number in value])))
    return b"".join(parts)


def _constant(operation: OnnxNode, name: str, values: Sequence[int | float]) -> bytes:
    """A small input as a `TensorProto` without a name."""
    entry = operation.schema.input(name)
    assert entry is not None
    array = np.array(values, data_type(_type_of(operation, entry, values)).dtype)
    return tensor_message(array.reshape(()) if name in _SCALARS and array.size == 1 else array)


def _type_of(operation: OnnxNode, entry: OnnxInput, values: Sequence[int | float]) -> str:
    """The type of a small input: that of what shares its variable, or one that holds the numbers."""
    types = [*entry.types]
    if len(types) > 1 and entry.variable:
        schema = operation.schema
        shared = {slot.name for slot in (*schema.inputs, *schema.outputs) if slot.variable == entry.variable}
        for name, tensor in (*operation.tensors, *operation.results):
            if name in shared:
                return tensor.row.numpy_name
    whole = all(isinstance(value, int) for value in values)
    return "int64" if whole and "int64" in types else types[0]


def _value_info(name: str, tensor: OnnxTensor, *, any_sizes: bool) -> bytes:
    """A `ValueInfoProto`."""
    sizes = b"".join([message_field(1, b"" if any_sizes else whole_field(1, size)) for size in tensor.shape])
    return text_field(1, name) + message_field(
        2, message_field(1, whole_field(1, tensor.row.onnx_code) + message_field(2, sizes))
    )
