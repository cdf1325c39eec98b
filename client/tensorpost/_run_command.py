"""`tensorpost run`: any operator document with arrays from files; each output is streamed into a file of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ._files import destination, write_blocks
from .datatypes import data_type
from .descriptors import operator_class, parse_operator
from .descriptors.catalogue import slot_name
from .npy import encode_npy_head
from .onnx import OnnxNode, OnnxTensor
from .onnx._reading import schema_of
from .operation import Operation
from .problems import InvalidParameter

__all__ = ["described", "total_bytes", "write_outputs"]

Arrays = Mapping[str, NDArray[Any]]


def described(document: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> tuple[Operation, dict[str, NDArray[Any]]]:
    """The operation of a document, whose input tensors may be left out: they are described by the arrays.

    Args:
        document: `{"type": ..., "desc": {...}}`, or an ONNX node.
        arrays: the inputs in binding order; those of an array of tensors follow each other.

    Returns:
        The operation, and the arrays by the names of its inputs.

    Raises:
        UnknownOperator, InvalidDescriptor: the document breaks a rule.
        InvalidParameter: there are more or fewer arrays than the operation has inputs.
    """
    operation = _node(document, arrays) if "op_type" in document else _descriptor(document, arrays)
    names = [slot.name for slot in operation.inputs]
    if len(names) != len(arrays):
        wanted = ", ".join(names) or "none"
        raise InvalidParameter(f"{operation.name} has {len(names)} inputs ({wanted}), not {len(arrays)}")
    return operation, dict(zip(names, arrays, strict=True))


def _descriptor(document: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> Operation:
    kind, desc = document.get("type"), document.get("desc")
    if isinstance(kind, str) and isinstance(desc, Mapping):
        fields: dict[str, Any] = {**cast("Mapping[str, Any]", desc)}
        left = list(arrays)
        for field in operator_class(kind).facts.fields_by_kind["input"]:
            taken, left = (left, []) if field.is_array else (left[:1], left[1:])
            if taken and field.name not in fields:
                tensors = [{"DataType": _directml_name(field.name, x), "Sizes": list(x.shape)} for x in taken]
                fields[field.name] = tensors if field.is_array else tensors[0]
        document = {**document, "desc": fields}
    return parse_operator(document, complete=True)


def _directml_name(field: str, array: NDArray[Any]) -> str:
    name = data_type(array.dtype).directml
    if name is None:
        raise InvalidParameter(f"{slot_name(field)}: DirectML has no type for {array.dtype}; convert the file first")
    return name


def _node(document: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> OnnxNode:
    inputs = document.get("inputs")
    if isinstance(inputs, Mapping) and arrays:
        given: dict[str, Any] = {**cast("Mapping[str, Any]", inputs)}
        schema = schema_of(str(document.get("op_type")), document.get("opset"))
        names = [slot.name for slot in schema.data_inputs if not slot.variadic]
        names += [f"{slot.name}_{at}" for slot in schema.data_inputs if slot.variadic for at in range(len(arrays))]
        for name, array in zip(names, arrays, strict=False):
            given.setdefault(name, OnnxTensor(data_type(array.dtype).numpy_name, array.shape).to_json())
        document = {**document, "inputs": given}
    return OnnxNode.from_json(document)


def write_outputs(operation: Operation, blocks: Iterator[Any], outputs: Sequence[str]) -> None:
    """Write each output of a stream as npy; a file appears under its name when it is complete.

    Args:
        operation: what is computed.
        blocks: memoryviews of the only output, or a `TensorBlock` for each block of several.
        outputs: paths, one for each output; `-` for standard output.

    Raises:
        InvalidParameter: there are more or fewer paths than outputs, or an output is not packed.
    """
    slots = operation.outputs
    if len(slots) != len(outputs):
        names = ", ".join(slot.name for slot in slots)
        raise InvalidParameter(f"{operation.name} has {len(slots)} outputs ({names}): name each with -o, in this order")
    for slot in slots:
        if not slot.layout.packed:
            raise InvalidParameter(f"npy holds packed tensors only, and {slot.name} has strides or padding")
    heads = [encode_npy_head(slot.layout.data_type, slot.layout.sizes) for slot in slots]
    if len(slots) == 1:
        with destination(outputs[0]) as file:
            write_blocks(file, heads[0], blocks)
        return
    for (_, group), head, path in zip(groupby(blocks, lambda block: block.output), heads, outputs, strict=True):
        with destination(path) as file:
            write_blocks(file, head, (block.data for block in group))


def total_bytes(operation: Operation, arrays: Arrays) -> int:
    """Bytes that are sent and received, for a progress bar."""
    received = sum(slot.layout.size_in_bytes for slot in operation.outputs)
    return received + sum(int(np.asarray(array).nbytes) for array in arrays.values())
