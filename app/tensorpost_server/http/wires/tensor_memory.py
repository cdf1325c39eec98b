"""Where the bytes of held tensors lie: in this process, or in files that several processes map."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Protocol

from ...engine.buffer_pool import BufferPool
from ...shared.shared_folder import allocate, room_for, tensor_path


def _mapped(descriptor: int, size_in_bytes: int, **options: int) -> mmap.mmap:
    """A mapping of a file. From Python 3.13 on it keeps no descriptor of its own, of which there are few."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size_in_bytes, trackfd=False, **options)
    return mmap.mmap(descriptor, size_in_bytes, **options)


class TensorMemory(Protocol):
    """Memory of tensors by their numbers."""

    def allocate(self, number: int, size_in_bytes: int) -> memoryview:
        """Writable memory of a new tensor.

        Raises:
            MemoryError, InsufficientStorage: the system has none.
        """
        ...

    def open(self, number: int, size_in_bytes: int) -> memoryview:
        """The memory of a tensor that another process has made; it cannot be written."""
        ...

    def free(self, number: int) -> None:
        """Nobody will open the memory again. What this process has of it stays until its last view is gone."""
        ...


class OwnMemory:
    """See `TensorMemory`: of one process."""

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers

    def allocate(self, number: int, size_in_bytes: int) -> memoryview:
        del number
        return self._buffers.allocate(size_in_bytes)

    def open(self, number: int, size_in_bytes: int) -> memoryview:
        raise AssertionError("there is no other process")

    def free(self, number: int) -> None:
        del number


class SharedMemoryFiles:
    """See `TensorMemory`: files in the folder that the processes share, which each maps.

    A file has all of its memory from the start, and never another length, so no access to it can fail.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def allocate(self, number: int, size_in_bytes: int) -> memoryview:
        if not size_in_bytes:
            return memoryview(bytearray())
        path = tensor_path(self._folder, number)
        with room_for(path, size_in_bytes):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                allocate(descriptor, size_in_bytes)
                return memoryview(_mapped(descriptor, size_in_bytes))
            finally:
                os.close(descriptor)

    def open(self, number: int, size_in_bytes: int) -> memoryview:
        if not size_in_bytes:
            return memoryview(b"")
        descriptor = os.open(tensor_path(self._folder, number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return memoryview(_mapped(descriptor, size_in_bytes, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def free(self, number: int) -> None:
        tensor_path(self._folder, number).unlink(missing_ok=True)
