"""BYTES tensors: each element is its length as four little-endian bytes, then its content.

Source: Triton, "binary tensor data" extension. The elements of ONNX strings are Unicode text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tensorpost.onnx.strings import StringCall
from tensorpost.values.problems import BodyMismatch

from .call import AnnouncedTensor

Block = TypeVar("Block")
"""Memory of a tensor: a view of it, or a source on a device."""


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


def read_strings(strings: StringCall, tensors: Sequence[AnnouncedTensor], memory: Sequence[Block]) -> list[Block]:
    """The memory of a call's inputs as its computation reads them; of a Cast, the numbers that strings say.

    Raises:
        InvalidDescriptor: a string says no number.
    """
    found = [*memory]
    if not strings.reads_texts:
        return found
    for index, tensor in enumerate(tensors):
        block: Any = found[index]
        if tensor.data_type.numpy_name == "str" and isinstance(block, memoryview):
            numbers = np.frombuffer(cast("memoryview", block), np.int64)
            found[index] = cast("Block", strings.read(numbers).view(np.uint8).data)
    return found


def _mismatch(name: str, what: str) -> BodyMismatch:
    return BodyMismatch(f"the BYTES tensor {name!r} {what}")
