"""Where the bytes of held tensors lie: in this process, or in files that several processes map."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Protocol

from tensorpost.values.problems import InsufficientStorage

from ...engine.buffer_pool import BufferPool
from ...shared.shared_folder import tensor_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size_in_bytes)
            else:  # macOS
                os.ftruncate(descriptor, size_in_bytes)
            return memoryview(mmap.mmap(descriptor, size_in_bytes))
        except OSError as error:
            path.unlink()
            if error.errno not in _FULL:
                raise
            raise InsufficientStorage(
                f"{self._folder.parent}, where processes share tensors, has no {size_in_bytes:,} bytes left; delete "
                "held tensors, make that file system larger (docker run --shm-size), or use one process (--workers 1)",
                extra={"actual": size_in_bytes},
            ) from None
        finally:
            os.close(descriptor)

    def open(self, number: int, size_in_bytes: int) -> memoryview:
        if not size_in_bytes:
            return memoryview(b"")
        descriptor = os.open(tensor_path(self._folder, number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return memoryview(mmap.mmap(descriptor, size_in_bytes, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def free(self, number: int) -> None:
        tensor_path(self._folder, number).unlink(missing_ok=True)
