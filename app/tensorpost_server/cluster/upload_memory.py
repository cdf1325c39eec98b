"""Memory of tensors that a replica receives or computes: files without a name, which a process beside it can open."""

from __future__ import annotations

import errno
import mmap
import os
import sys

_FULL = (errno.ENOSPC, errno.ENOMEM)


class UploadMemory:
    """The files, by the numbers of the tensors. They are gone with this process, however it ends. Linux only."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def allocate(self, number: int, size_in_bytes: int) -> memoryview:
        """Writable memory of a new tensor, which has at least one byte.

        Raises:
            MemoryError: the system has none.
        """
        assert sys.platform == "linux"
        descriptor = os.memfd_create("tensorpost")
        try:
            os.posix_fallocate(descriptor, 0, size_in_bytes)
            memory = memoryview(mmap.mmap(descriptor, size_in_bytes))
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _FULL:
                raise
            raise MemoryError from None
        self._descriptors[number] = descriptor
        return memory

    def path(self, number: int) -> str:
        """Where a process of the same user on this machine can open the memory until `free`."""
        return f"/proc/{os.getpid()}/fd/{self._descriptors[number]}"

    def free(self, number: int) -> None:
        """Nobody will open the memory again, if there is any."""
        if (descriptor := self._descriptors.pop(number, None)) is not None:
            os.close(descriptor)
