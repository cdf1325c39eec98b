"""What travels between the server and a child process: a JSON head and arrays.

Small arrays follow the head. Large ones lie in memory that both processes share, where the system has it (Linux). The
head is JSON and not pickle, so that a child process cannot make the server run anything.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tensorpost.datatypes import data_type

__all__ = ["INLINE_BYTES", "SharedSegment", "receive", "send_parts"]

INLINE_BYTES = 1 << 16
"""Arrays of at most so many bytes together travel in the message: copying them takes less time than mapping memory."""

KEPT_SEGMENT_BYTES = 4 << 20
"""Shared memory that stays between two calls, so that the next call touches no fresh pages."""

_ALIGNMENT = 64
_LENGTH = struct.Struct("<I")


def _aligned(size_in_bytes: int) -> int:
    return -(-size_in_bytes // _ALIGNMENT) * _ALIGNMENT


class SharedSegment:
    """Memory of one file without a name (memfd) that two processes map. It cannot shrink, so no access to it fails.

    Args:
        descriptor: the file; None makes a new one.

    Raises:
        OSError: the system has no such files, or no memory for one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = _new_file()
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._used = 0

    @staticmethod
    def bytes_of(sizes: Sequence[int]) -> int:
        """Bytes that arrays of these sizes take, each aligned for any element."""
        return sum([_aligned(size) for size in sizes])

    def reserve(self, size_in_bytes: int) -> None:
        """Make the file at least so long; only the server does that.

        Raises:
            OSError: the system gives no more memory.
        """
        if os.fstat(self.descriptor).st_size < size_in_bytes:
            os.ftruncate(self.descriptor, size_in_bytes)

    def array(self, kind: str, shape: Sequence[int], offset: int) -> Any:
        """The array at an offset, as a view of the memory.

        Raises:
            ValueError: it does not lie in the memory.
        """
        dtype = data_type(kind).dtype
        count = int(np.prod(shape, dtype=object)) if len(shape) else 1
        end = offset + count * dtype.itemsize
        if self._map is None or len(self._map) < end:
            size = os.fstat(self.descriptor).st_size
            if not 0 <= offset <= end <= size:
                raise ValueError(f"{end - offset} bytes from {offset} on do not lie in {size}")
            self._map = mmap.mmap(self.descriptor, size)  # views of the map before keep that one
        self._used = max(self._used, end)
        return np.frombuffer(self._map, dtype, count, offset).reshape(tuple(shape))

    def trim(self) -> None:
        """Give back the pages beyond those that are kept; no array of the segment may be in use."""
        if self._map is not None and self._used > KEPT_SEGMENT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, KEPT_SEGMENT_BYTES)
            self._used = KEPT_SEGMENT_BYTES

    def close(self) -> None:
        """Close the file; its pages go when both processes have let go of them."""
        self._map = None
        os.close(self.descriptor)


def _new_file() -> int:
    if sys.platform != "linux":
        raise OSError("memory without a name is shared on Linux only")
    import fcntl  # not there on Windows

    descriptor = os.memfd_create("tensorpost-child", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def send_parts(
    head: dict[str, Any], arrays: Sequence[Any], segment: SharedSegment | None, begin: int = 0
) -> list[bytes | memoryview]:
    """The parts of a message, whose arrays were copied into the segment where they are large.

    Args:
        head: what else the message says; `arrays` is added to it.
        arrays: arrays in the order of their elements, without gaps.
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
            np.copyto(segment.array(kind, shape, begin), array, casting="no")
            begin += _aligned(array.nbytes)
    text = json.dumps(head | {"arrays": rows}).encode()
    return [_LENGTH.pack(len(text)), text, *parts]


def receive(message: bytes, segment: SharedSegment | None) -> tuple[dict[str, Any], list[Any]]:
    """The head and the arrays of a message: views of the message or of the segment.

    Raises:
        ValueError: it is no message of this form.
    """
    (length,) = _LENGTH.unpack_from(message)
    head = cast("dict[str, Any]", json.loads(message[4 : 4 + length]))
    at = 4 + length
    arrays: list[Any] = []
    for kind, shape, offset in head["arrays"]:
        dtype = data_type(kind).dtype
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if offset < 0:
            arrays.append(np.frombuffer(message, dtype, count, at).reshape(tuple(shape)))
            at += count * dtype.itemsize
        elif segment is None:
            raise ValueError("an array lies in shared memory, and there is none")
        else:
            arrays.append(segment.array(kind, shape, offset))
    return head, arrays
