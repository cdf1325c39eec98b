"""What travels between the server and a child process: a JSON head and arrays.

Small arrays follow the head. Large ones lie in memory that both processes share, where the system has it (Linux). The
head is JSON and not pickle, so that a child process cannot make the server run anything.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tensorpost.values.datatypes import data_type

from .segment import SharedSegment, aligned

INLINE_BYTES = 1 << 16
"""Arrays of at most so many bytes together travel in the message: copying them takes less time than mapping memory."""

_LENGTH = struct.Struct("<I")


class MalformedMessage(Exception):
    """What the other process sent is no message of this form."""


def travels(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this type travel."""
    try:
        data_type(dtype)
    except KeyError:
        return False
    return not dtype.hasobject


def send_parts(
    head: Mapping[str, Any], arrays: Sequence[Any], segment: SharedSegment | None, begin: int = 0
) -> list[bytes | memoryview]:
    """The parts of a message, whose arrays were copied into the segment where they are large.

    Args:
        head: what else the message says; `arrays` is added to it.
        arrays: arrays in the order of their elements, without gaps, of types that travel.
        segment: shared memory of sufficient length; None if there is none.
        begin: the first free byte in it.
    """
    inline = segment is None or sum([array.nbytes for array in arrays]) <= INLINE_BYTES
    rows: list[tuple[str, tuple[int, ...], int]] = []
    parts: list[bytes | memoryview] = []
    for array in arrays:
        kind, shape = data_type(array.dtype.name).numpy_name, array.shape
        rows.append((kind, shape, -1 if inline else begin))
        if inline:
            parts.append(array.reshape(-1).view(np.uint8).data)
        elif array.nbytes:
            assert segment is not None
            segment.put(kind, array, begin)
            begin += aligned(array.nbytes)
    text = json.dumps({**head, "arrays": rows}).encode()
    return [_LENGTH.pack(len(text)), text, *parts]


def receive(message: bytes, segment: SharedSegment | None) -> tuple[dict[str, Any], list[Any]]:
    """The head and the arrays of a message: views of the message or of the segment.

    Raises:
        MalformedMessage: it is no message of this form.
    """
    try:
        (length,) = _LENGTH.unpack_from(message)
        head = cast("dict[str, Any]", json.loads(message[4 : 4 + length]))
        at = 4 + length
        arrays: list[Any] = []
        for kind, sizes, offset in head["arrays"]:
            dtype = data_type(kind).dtype
            shape = [_whole_number(size) for size in sizes]
            count = math.prod(shape)
            if not count:
                arrays.append(np.empty(shape, dtype))
            elif offset == -1:
                arrays.append(np.frombuffer(message, dtype, count, at).reshape(shape))
                at += count * dtype.itemsize
            elif segment is None:
                raise MalformedMessage("an array lies in shared memory, and there is none")
            else:
                arrays.append(segment.array(kind, shape, _whole_number(offset)))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise MalformedMessage(str(error)) from error
    return head, arrays


def _whole_number(value: object) -> int:
    """A size or an offset: NumPy takes a negative one for any that fits."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size and no offset")
    return value
