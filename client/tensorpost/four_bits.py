"""Elements of 4 bits, two a byte: the first of them in the low half, as in ONNX's and DirectML's tensors.

Both functions take arrays of NumPy or CuPy.
"""

from __future__ import annotations

from typing import Any

__all__ = ["pack", "unpack"]


def pack(elements: Any) -> Any:
    """The bytes that hold a line of elements, of which the low 4 bits count; the rest of the last byte is 0.

    Args:
        elements: one-dimensional array of 8-bit integers.
    """
    halves = elements.view("uint8") & 15
    made = halves[::2].copy()
    made[: len(halves) // 2] |= halves[1::2] << 4
    return made


def unpack(block: Any, *, signed: bool) -> Any:
    """Two elements for each byte: int8 from -8 to 7, or uint8 from 0 to 15.

    Args:
        block: one-dimensional array of bytes.
        signed: whether the elements are two's complements.
    """
    made = block.repeat(2)
    made[1::2] >>= 4
    made &= 15
    return ((made ^ 8) - 8).view("int8") if signed else made
