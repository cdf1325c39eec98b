"""Elements of 4 bits, two a byte: the first of them in the low half, as in ONNX's and DirectML's tensors.

NumPy has no such type, so that a tensor of UINT4 or INT4 is a line of bytes wherever it goes: in frames, JSON and npy
files, and as an argument or result of a client.

Examples:
    >>> block = pack_tensor([[1, -2, 3]], "INT4")
    >>> block.tolist(), unpack_tensor(block, "INT4", (1, 3)).tolist()
    ([225, 3], [[1, -2, 3]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .datatypes import TensorDataType
from .problems import BodyMismatch, InvalidParameter

__all__ = ["pack", "pack_tensor", "unpack", "unpack_tensor"]

_RANGES = {"UINT4": (0, 15), "INT4": (-8, 7)}


def pack_tensor(elements: ArrayLike, data_type: TensorDataType | str) -> NDArray[np.uint8]:
    """The bytes of a packed tensor, as `Client.run` takes them.

    Args:
        elements: whole numbers of the type's range, in any shape; `ml_dtypes.int4` and `uint4` too.
        data_type: UINT4 or INT4.

    Raises:
        InvalidParameter: another type, or numbers that it does not hold.
    """
    low, high = _range(data_type)
    array = np.asarray(elements)
    if array.dtype.name in ("int4", "uint4"):
        array = array.astype(np.int8)
    if array.dtype.kind not in "iu" or (array.size and (array.min() < low or array.max() > high)):
        raise InvalidParameter(f"elements must be whole numbers from {low} to {high}, in an array of integers")
    return pack(array.astype(np.int8).reshape(-1))


def unpack_tensor(
    block: ArrayLike, data_type: TensorDataType | str, sizes: Sequence[int]
) -> NDArray[np.int8] | NDArray[np.uint8]:
    """The elements of a packed tensor: int8 of INT4, uint8 of UINT4.

    Args:
        block: its bytes, as `Client.run` returns them.
        data_type: UINT4 or INT4.
        sizes: elements per dimension.

    Raises:
        InvalidParameter: another type.
        BodyMismatch: there are more elements than bytes for them.
    """
    low, _ = _range(data_type)
    line, count = np.asarray(block, np.uint8).reshape(-1), math.prod(sizes)
    if count > 2 * line.size:
        raise BodyMismatch(f"{count} elements of 4 bits need {(count + 1) // 2} bytes, not {line.size}")
    return unpack(line, signed=low < 0)[:count].reshape(tuple(sizes))


def _range(data_type: TensorDataType | str) -> tuple[int, int]:
    name = data_type.name if isinstance(data_type, TensorDataType) else data_type
    if name not in _RANGES:
        raise InvalidParameter(f"{name} has no elements of 4 bits; UINT4 and INT4 have")
    return _RANGES[name]


def pack(elements: Any) -> Any:
    """The bytes that hold a line of elements, of which the low 4 bits count; the rest of the last byte is 0.

    Args:
        elements: one-dimensional array of 8-bit integers, of NumPy or CuPy.
    """
    halves = elements.view("uint8") & 15
    packed = halves[::2].copy()
    packed[: len(halves) // 2] |= halves[1::2] << 4
    return packed


def unpack(block: Any, *, signed: bool) -> Any:
    """Two elements for each byte: int8 from -8 to 7, or uint8 from 0 to 15.

    Args:
        block: one-dimensional array of bytes, of NumPy or CuPy.
        signed: whether the elements are two's complements.
    """
    elements = block.repeat(2)
    elements[1::2] >>= 4
    elements &= 15
    return ((elements ^ 8) - 8).view("int8") if signed else elements
