"""BYTES tensors: each element is its length as four little-endian bytes, then its content.

Source: Triton, "binary tensor data" extension. The elements of ONNX strings are Unicode text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tensorpost.values.problems import BodyMismatch


def decode_strings(data: bytes | memoryview, count: int, name: str) -> list[bytes]:
    """The elements.

    Raises:
        BodyMismatch: there are more or fewer than `count`, or the last one is cut off.
    """
    raw, elements, at = bytes(data), list[bytes](), 0
    for index in range(count):
        if at + 4 > len(raw):
            raise _mismatch(name, f"ends before element {index} of {count}")
        (length,) = struct.unpack_from("<I", raw, at)
        at += 4
        if at + length > len(raw):
            raise _mismatch(name, f"ends within element {index}, of {length:,} bytes")
        elements.append(raw[at : at + length])
        at += length
    if at != len(raw):
        raise _mismatch(name, f"has {len(raw) - at:,} bytes after its {count} elements")
    return elements


def encode_strings(elements: Sequence[bytes]) -> bytes:
    """The tensor's bytes."""
    return b"".join([part for element in elements for part in (len(element).to_bytes(4, "little"), element)])


def _mismatch(name: str, what: str) -> BodyMismatch:
    return BodyMismatch(f"the BYTES tensor {name!r} {what}")
