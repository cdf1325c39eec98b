"""Shared memory with a server on the same host: tensors lie in memory that both open, and not in the socket's.

An object of shared memory loses its name as soon as the server has opened it. So nothing is left when a process ends,
however it ends: the system frees its memory with the last descriptor, and the server drops its own
(docs/open-inference.md).
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..values.checks import shown
from ..values.problems import InvalidParameter

LEAST_BYTES = 64 * 1024
"""Input and output together, bytes, from which on shared memory is used; less goes through the socket in one packet."""
_FOLDER = Path("/dev/shm")  # noqa: S108 # where Linux has POSIX shared memory; names are random, files are new
_ALIGNMENT = 64
_LARGEST_STEP = 64 << 20  # sizes are rounded up to a power of two, or a multiple of this


class OwnRegion:
    """An object of shared memory, mapped.

    Attributes:
        name: the name by which the server knows it.
        size: length in bytes.
        registered: whether the server knows it.

    Args:
        size: bytes, 1 or more.

    Raises:
        InvalidParameter: the system has no room for it.
    """

    def __init__(self, size: int) -> None:
        self.name, self.size, self.registered = f"tensorpost-{os.getpid()}-{secrets.token_hex(8)}", size, False
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # memory that is not there would end the process when it is touched
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            self.unlink()
            raise InvalidParameter(
                f"{size:,} bytes of shared memory cannot be allocated ({error}); free {_FOLDER}"
            ) from None
        finally:
            os.close(descriptor)

    @property
    def _path(self) -> Path:
        return _FOLDER / self.name

    def unlink(self) -> None:
        """Remove the object's name; processes that have it open keep the memory."""
        self._path.unlink(missing_ok=True)

    def parts(self, sizes: Sequence[int]) -> list[tuple[int, memoryview]]:
        """Offset and memory for tensors of these sizes, one after the other, aligned."""
        parts: list[tuple[int, memoryview]] = []
        at = 0
        for size in sizes:
            parts.append((at, memoryview(self._map)[at : at + size]))
            at += _aligned(size)
        return parts

    def close(self) -> None:
        """Give the memory back."""
        self.unlink()
        with suppress(BufferError):  # a view of it is still there; it goes with that
            self._map.close()


class RegionPool:
    """The regions of a client, each for one call at a time; may be shared between threads.

    Raises:
        InvalidParameter: this system has none.
    """

    def __init__(self) -> None:
        if not _FOLDER.is_dir():
            raise InvalidParameter(f"shared_memory=True needs {_FOLDER}, which this system does not have; leave it out")
        self._idle: list[OwnRegion] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def of_setting(cls, shared_memory: object) -> RegionPool | None:
        """The regions of a client with this `shared_memory`; None if its tensors go through the socket.

        Raises:
            InvalidParameter: it is neither True nor False; or this system has no shared memory.
        """
        if not isinstance(shared_memory, bool):
            raise InvalidParameter(f"shared_memory is {shown(shared_memory)}; it must be True or False")
        return cls() if shared_memory else None

    def take(self, sizes: Sequence[int]) -> OwnRegion:
        """A region with room for tensors of these sizes; it may be one that the server knows.

        Raises:
            InvalidParameter: the system has no room for it.
        """
        needed = _needed(sizes)
        with self._lock:
            if self._process != os.getpid():  # those of the process that this one was forked from are that one's
                self._idle, self._process = [], os.getpid()
            fitting = [region for region in self._idle if region.size >= needed]
            if fitting:
                region = min(fitting, key=lambda each: each.size)
                self._idle.remove(region)
                return region
        return self.new(sizes)

    def new(self, sizes: Sequence[int]) -> OwnRegion:
        """A region with room for tensors of these sizes that no server knows; see `take`."""
        return OwnRegion(_rounded(_needed(sizes)))

    def give_back(self, region: OwnRegion) -> None:
        """Keep a region for the next call."""
        with self._lock:
            self._idle.append(region)

    def empty(self) -> list[OwnRegion]:
        """Remove all idle regions from the pool and return them."""
        with self._lock:
            idle, self._idle = self._idle, []
        return idle if self._process == os.getpid() else []


def _needed(sizes: Sequence[int]) -> int:
    return max(1, sum(map(_aligned, sizes)))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _rounded(size: int) -> int:
    if size > _LARGEST_STEP:
        return -(-size // _LARGEST_STEP) * _LARGEST_STEP
    return max(LEAST_BYTES, 1 << (size - 1).bit_length())
