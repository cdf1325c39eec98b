"""From arrays to the bytes a descriptor speaks of, and back. Everything wrong is refused here, before anything is sent.

Rules of the file: elements are copied only where their layout or byte order leaves no choice, and values never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .datatypes import DataType, TensorDataType, data_type
from .descriptors import BufferTensorDesc, OperatorDesc, TileOperatorDesc
from .problems import InvalidParameter

__all__ = ["TensorData", "check_out", "output_memory", "tile_descriptor", "wire_form", "wire_inputs"]

TensorData: TypeAlias = NDArray[Any] | bytes | bytearray | memoryview
"""A tensor's elements as an array, or its buffer as anything bytes-like."""

_UINT8 = data_type("uint8")


def wire_form(tensor: BufferTensorDesc) -> tuple[DataType, tuple[int, ...]]:
    """Type and shape of a tensor in a frame: its own if packed, otherwise its whole buffer as bytes."""
    if tensor.is_packed:
        return tensor.data_type.row, tensor.sizes
    return _UINT8, (tensor.total_tensor_size_in_bytes,)


def wire_inputs(desc: OperatorDesc, inputs: TensorData | Mapping[str, TensorData]) -> list[memoryview]:
    """The bytes of what the caller gave for each input of the operator, in binding order.

    Raises:
        InvalidParameter: an input is missing or unknown, or its type, shape or length is not what the descriptor says.
    """
    tensors = {desc.slot_name(field): getattr(desc, field) for field in desc.input_fields}
    if not isinstance(inputs, Mapping):
        if len(tensors) > 1:
            raise InvalidParameter(
                f"{desc.operator_type} has the inputs {', '.join(tensors)}; pass a mapping from these names to arrays"
            )
        inputs = dict.fromkeys(tensors, inputs)
    if inputs.keys() != tensors.keys():
        raise InvalidParameter(
            f"{desc.operator_type} has the inputs {', '.join(tensors)}; got {', '.join(map(str, inputs)) or 'none'}"
        )
    return [_bytes_of(name, tensor, inputs[name]) for name, tensor in tensors.items()]


def _bytes_of(name: str, tensor: BufferTensorDesc, data: object) -> memoryview:
    if not isinstance(data, np.ndarray):
        return _bytes_of_buffer(name, tensor, data)
    array = _plain(name, cast("NDArray[Any]", data))
    if tensor.is_packed:
        if array.dtype.newbyteorder("<") != tensor.dtype or array.shape != tensor.sizes:
            raise InvalidParameter(
                f"{name} is {array.dtype.name} of shape {array.shape}, but its descriptor says {tensor.dtype.name} of "
                f"{tensor.sizes}; change the one or the other"
            )
        return _memory(np.ascontiguousarray(array, dtype=tensor.dtype))
    total = tensor.total_tensor_size_in_bytes
    # An array of the tensor's sizes is most likely its elements, not the buffer they are spread over.
    looks_logical = array.shape == tensor.sizes and array.nbytes != total
    if array.ndim != 1 or not array.flags.c_contiguous or looks_logical:
        raise InvalidParameter(
            f"{name} has strides or padding, so it wants its buffer: a one-dimensional contiguous array of {total} "
            f"bytes, not {array.dtype.name} of shape {array.shape}; to lay elements out, write "
            "buffer = np.zeros(tensor.total_tensor_size_in_bytes, np.uint8); tensor.view(buffer)[...] = x"
        )
    return _first_bytes(name, _memory(array), total)


def _bytes_of_buffer(name: str, tensor: BufferTensorDesc, data: object) -> memoryview:
    try:
        memory = memoryview(cast("Any", data))
        if not memory.c_contiguous:
            raise InvalidParameter(f"{name} is a memoryview with gaps; pass a contiguous one")
        memory = memory.cast("B")
    except TypeError:
        raise InvalidParameter(
            f"{name} must be a NumPy array or bytes-like, not {type(data).__name__}; for lists and other array types, "
            f"np.asarray(x, dtype=np.{tensor.dtype.name}) makes one"
        ) from None
    packed = tensor.is_packed
    return _first_bytes(name, memory, tensor.data_size_in_bytes if packed else tensor.total_tensor_size_in_bytes)


def _first_bytes(name: str, memory: memoryview, count: int) -> memoryview:
    if memory.nbytes < count:
        raise InvalidParameter(f"{name} has {memory.nbytes} bytes, but its descriptor needs {count}")
    return memory[:count]


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidParameter(f"{name} is a masked array, and a tensor has no mask; fill it first: x.filled(value)")
    return array


def _memory(array: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array. By way of uint8, since memoryview knows no bfloat16."""
    return array.reshape(-1).view(np.uint8).data


def check_out(tensor: BufferTensorDesc, out: NDArray[Any] | None) -> None:
    """Refuse memory that the output does not fit exactly.

    Raises:
        InvalidParameter: wrong type, dtype or shape, not C-contiguous or not writeable.
    """
    if out is None:
        return
    row, shape = wire_form(tensor)
    if not isinstance(cast("object", out), np.ndarray) or out.dtype != row.dtype or out.shape != shape:
        is_array = isinstance(cast("object", out), np.ndarray)
        found = f"{out.dtype} of shape {out.shape}" if is_array else type(out).__name__
        why = "" if tensor.is_packed else ", the output's whole buffer"
        raise InvalidParameter(f"out must be an array of {row.dtype} and shape {shape}{why}; it is {found}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidParameter("out must be C-contiguous and writeable: the answer is received straight into it")


def output_memory(tensor: BufferTensorDesc, out: NDArray[Any] | None) -> tuple[memoryview, NDArray[Any]]:
    """Where the output's bytes go, and the array to give back for them: `out` or new memory."""
    row, shape = wire_form(tensor)
    block = np.empty(shape, row.dtype) if out is None else out
    return _memory(block), block if tensor.is_packed else tensor.view(block)


_SAME_BITS: Mapping[str, str] = {
    # NumPy's kind or name -> how to move such elements through an operator that only copies them
    "bool": "x.view(np.uint8)",
    "float64": "x.view(np.uint64), or x.astype(np.float32) if half the precision will do",
    "complex64": "x.view(np.uint64)",
    "complex128": "x.view(np.uint64).reshape(*x.shape, 2) with one more repeat of 1",
    "bfloat16": "x.view(np.uint16)",
    "M": "x.view(np.int64)",
    "m": "x.view(np.int64)",
}


def tile_descriptor(x: object, repeats: Sequence[int]) -> TileOperatorDesc:
    """The descriptor of an array's packed Tile.

    Raises:
        InvalidParameter: no array, or of a dtype that DML_OPERATOR_TILE takes at no feature level.
        InvalidDescriptor: the repeats do not fit the array, or it is empty or has more than 8 dimensions.
    """
    if not isinstance(x, np.ndarray):
        raise InvalidParameter(f"x must be a NumPy array, not {type(x).__name__}; np.asarray(x, dtype=...) makes one")
    array = cast("NDArray[Any]", x)
    allowed = TileOperatorDesc.support[-1].data_types
    name = array.dtype.name
    found = next((t for t in allowed if t.row.numpy_name == name), None)
    if found is None:
        instead = _SAME_BITS.get(name) or _SAME_BITS.get(array.dtype.kind)
        hint = f"to copy the same bits: {instead}; view the result as {name} again" if instead else "convert it first"
        names = ", ".join(t.row.numpy_name for t in allowed)
        raise InvalidParameter(f"DML_OPERATOR_TILE takes no {name} at any feature level, but {names}; {hint}")
    return _tile(found, array.shape, *repeats)


@lru_cache(maxsize=256, typed=True)  # typed: 2.0 equals 2, and must not pass for it once 2 has passed
def _tile(data_type: TensorDataType, sizes: tuple[int, ...], *repeats: int) -> TileOperatorDesc:
    return TileOperatorDesc.of(BufferTensorDesc(data_type=data_type, sizes=sizes), repeats)
