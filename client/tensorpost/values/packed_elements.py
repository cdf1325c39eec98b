"""Elements of fewer than 8 bits, packed as in ONNX's tensors: one after another, from the lowest bit of each byte.

Source: onnx.proto, `TensorProto.raw_data`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["packed_bytes", "packed_elements", "unpacked_elements"]

_AT_A_TIME = 1 << 18
"""Elements; a multiple of 8, so that each block begins with a byte. Their bits take a byte each on the way."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of packed elements.

    Args:
        count: how many elements.
        bits: bits of each.
    """
    return (count * bits + 7) // 8


def unpacked_elements(block: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """The elements of a line of packed bytes, a byte each, in the low bits.

    Args:
        block: `packed_bytes(count, bits)` bytes.
        bits: bits of each element, below 8.
        count: how many elements.

    Examples:
        >>> unpacked_elements(np.array([0x21, 0x03], np.uint8), 4, 3).tolist()
        [1, 2, 3]
    """
    found = np.empty(count, np.uint8)
    for begin in range(0, count, _AT_A_TIME):
        end = min(begin + _AT_A_TIME, count)
        part = np.unpackbits(block[begin * bits // 8 : packed_bytes(end, bits)], bitorder="little")
        spread = np.zeros((end - begin, 8), np.uint8)
        spread[:, :bits] = part[: (end - begin) * bits].reshape(-1, bits)
        found[begin:end] = np.packbits(spread, axis=1, bitorder="little")[:, 0]
    return found


def packed_elements(elements: NDArray[np.uint8], bits: int) -> bytes:
    """The packed bytes of a line of elements; the bits left in the last byte are 0.

    Args:
        elements: a byte each, of which the low bits count.
        bits: bits of each element, below 8.

    Examples:
        >>> packed_elements(np.array([1, 2, 3], np.uint8), 4).hex()
        '2103'
    """
    lines = [
        np.packbits(np.unpackbits(block.reshape(-1, 1), axis=1, count=bits, bitorder="little"), bitorder="little")
        for block in np.split(elements, range(_AT_A_TIME, len(elements), _AT_A_TIME))
    ]
    return b"".join([line.tobytes() for line in lines])
