"""A slow evaluator, written from the documents alone: one element after the other, integers and bytes only.

It shares nothing with the packages under test but the descriptor's own fields (`data_type`, `sizes`, `strides` and
`total_tensor_size_in_bytes`): no effective strides, no item sizes, no NumPy. Every read and write is checked against
the buffer, so that an address computed wrongly is an error and not a wrong result.

Sources: "Using strides to express padding and memory layout" (element offset = sum of coordinate times stride), the
DML_BUFFER_TENSOR_DESC and DML_TILE_OPERATOR_DESC pages.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = [
    "OutsideBuffer",
    "coordinates",
    "element_offset",
    "minimum_bytes",
    "pack_elements",
    "packed",
    "read_elements",
    "read_values",
    "tile_oracle",
    "write_elements",
]

# DirectML's short name -> struct code; "<" gives little-endian and sizes that do not depend on the machine
_CODES = {
    "FLOAT32": "f",
    "FLOAT16": "e",
    "UINT32": "I",
    "UINT16": "H",
    "UINT8": "B",
    "INT32": "i",
    "INT16": "h",
    "INT8": "b",
    "FLOAT64": "d",
    "UINT64": "Q",
    "INT64": "q",
}


class OutsideBuffer(IndexError):
    """An element lies outside the buffer."""


def item_bytes(data_type: Any) -> int:
    """Bytes of an element of a `TensorDataType`, by its name."""
    return struct.calcsize("<" + _CODES[data_type.name])


def packed(sizes: Sequence[int]) -> list[int]:
    """Row-major strides: the product of all later sizes."""
    strides: list[int] = []
    for axis in range(len(sizes)):
        product = 1
        for later in sizes[axis + 1 :]:
            product *= later
        strides.append(product)
    return strides


def coordinates(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every coordinate, the last dimension fastest."""
    return itertools.product(*(range(size) for size in sizes))


def element_offset(coordinate: Sequence[int], strides: Sequence[int]) -> int:
    """Where an element lies, counted in elements."""
    offset = 0
    for position, stride in zip(coordinate, strides, strict=True):
        offset += position * stride
    return offset


def minimum_bytes(bits: int, sizes: Sequence[int], strides: Sequence[int] | None) -> int:
    """DMLCalcBufferTensorSize by looking at every element: the end of the farthest one, rounded up to 4 bytes."""
    strides = packed(sizes) if strides is None else strides
    farthest = max(element_offset(c, strides) for c in coordinates(sizes))
    end_in_bits = (farthest + 1) * bits
    end = end_in_bits // 8 + (1 if end_in_bits % 8 else 0)
    while end % 4:
        end += 1
    return end


def read_elements(tensor: Any, buffer: bytes) -> list[bytes]:
    """The bytes of every element of a `BufferTensorDesc`, in row-major order of its coordinates.

    Raises:
        OutsideBuffer: an element is not wholly inside the buffer.
    """
    size = item_bytes(tensor.data_type)
    strides = packed(tensor.sizes) if tensor.strides is None else tensor.strides
    elements: list[bytes] = []
    for coordinate in coordinates(tensor.sizes):
        start = element_offset(coordinate, strides) * size
        if start < 0 or start + size > len(buffer):
            raise OutsideBuffer(f"{coordinate} is at byte {start}, the buffer has {len(buffer)}")
        elements.append(bytes(buffer[start : start + size]))
    return elements


def write_elements(tensor: Any, elements: Sequence[bytes]) -> bytes:
    """A whole buffer of `total_tensor_size_in_bytes` with these elements in it, and zeros where there are none.

    Raises:
        OutsideBuffer: an element is not wholly inside the buffer.
        ValueError: two elements share bytes.
    """
    size = item_bytes(tensor.data_type)
    strides = packed(tensor.sizes) if tensor.strides is None else tensor.strides
    buffer = bytearray(tensor.total_tensor_size_in_bytes)
    taken: set[int] = set()
    for coordinate, element in zip(coordinates(tensor.sizes), elements, strict=True):
        start = element_offset(coordinate, strides) * size
        if start < 0 or start + size > len(buffer):
            raise OutsideBuffer(f"{coordinate} is at byte {start}, the buffer has {len(buffer)}")
        if start in taken:
            raise ValueError(f"{coordinate} is written to byte {start}, where another element is already")
        taken.add(start)
        buffer[start : start + size] = element
    return bytes(buffer)


def read_values(tensor: Any, buffer: bytes) -> list[Any]:
    """Every element as a Python number, in row-major order."""
    code = "<" + _CODES[tensor.data_type.name]
    return [struct.unpack(code, element)[0] for element in read_elements(tensor, buffer)]


def pack_elements(data_type: Any, values: Sequence[Any]) -> bytes:
    """Values one after the other, as bytes."""
    return b"".join(struct.pack("<" + _CODES[data_type.name], value) for value in values)


def tile_oracle(desc: Any, buffer: bytes) -> bytes:
    """The whole output buffer of a `TileOperatorDesc`: `Output[c] = Input[c mod Input.Sizes]`, zeros in the padding.

    Args:
        desc: the descriptor.
        buffer: the input tensor's buffer.

    Raises:
        OutsideBuffer: the input reaches outside the buffer, or the output outside its own.
        ValueError: two elements of the output share bytes.
    """
    source = desc.input_tensor
    by_coordinate = dict(zip(coordinates(source.sizes), read_elements(source, buffer), strict=True))
    found: list[bytes] = []
    for coordinate in coordinates(desc.output_tensor.sizes):
        within = tuple(position % size for position, size in zip(coordinate, source.sizes, strict=True))
        found.append(by_coordinate[within])
    return write_elements(desc.output_tensor, found)
