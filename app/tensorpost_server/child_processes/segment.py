"""`SharedSegment`: memory that the server and a child process share."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorpost.values.datatypes import data_type

KEPT_SEGMENT_BYTES = 32 << 20
"""Shared memory that stays between two calls, so that the next call touches no fresh pages."""

_ALIGNMENT = 64


def aligned(size_in_bytes: int) -> int:
    """The size, rounded up so that any element may follow."""
    return -(-size_in_bytes // _ALIGNMENT) * _ALIGNMENT


class SharedSegment:
    """Memory of one file without a name (memfd) that two processes map. It cannot shrink, so no access to it fails.

    Args:
        descriptor: the file; None makes a new one.

    Raises:
        OSError: the system has no such files, or no memory for one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._writes = descriptor is None  # a child process may write no file
        self.descriptor = _new_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._used = 0

    @staticmethod
    def bytes_of(sizes: Sequence[int]) -> int:
        """Bytes that arrays of these sizes take, each aligned for any element."""
        return sum([aligned(size) for size in sizes])

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
        count = math.prod(shape)
        end = offset + count * dtype.itemsize
        if self._map is None or len(self._map) < end:
            size = os.fstat(self.descriptor).st_size
            if not 0 <= offset <= end <= size:
                raise ValueError(f"{end - offset} bytes from {offset} on do not lie in {size}")
            self._map = mmap.mmap(self.descriptor, size)  # views of the map before keep that one
        self._used = max(self._used, end)
        return np.frombuffer(self._map, dtype, count, offset).reshape(tuple(shape))

    def put(self, kind: str, array: Any, offset: int) -> None:
        """Copy a packed array of this type to an offset, in memory that is reserved.

        Writing to the file takes 0.6 of the time of copying to pages that are touched for the first time.

        Raises:
            OSError: the system gives no more memory.
        """
        if not self._writes:
            np.copyto(self.array(kind, array.shape, offset), array, casting="no")
            return
        rest = array.reshape(-1).view(np.uint8).data
        self._used = max(self._used, offset + len(rest))
        while len(rest):
            count = os.pwrite(self.descriptor, rest, offset)
            rest, offset = rest[count:], offset + count

    def trim(self) -> None:
        """Give back the pages beyond those that are kept; no array of the segment may be in use."""
        if self._used > KEPT_SEGMENT_BYTES and sys.platform == "linux":
            if self._map is None or len(self._map) < self._used:
                self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
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
