"""Copies of tensors that other processes open by a handle (`cudaIpcMemHandle_t`).

Each lies in an allocation of its own, beside what kernels read: whoever opens it may write there, and sees all of the
allocation. CUDA may take small allocations from one block and shares that block, so sizes are multiples of 2 MiB, and
what is no tensor is zero.

Source: CUDA C++ Programming Guide, "Interprocess Communication"; CUDA Runtime API, "Device Management",
`cudaIpcGetMemHandle`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tensorpost.values.problems import InsufficientStorage, NoBackend, OutOfDeviceMemory

from ..base import ExportedMemory

SHARE = 4
"""A quarter of the memory that may be taken of the device is for exports; what they take, nothing else has."""
_BLOCK = 2 << 20


class Exports:
    """The exports of one device, which is the current device in every call; used on any thread.

    Args:
        cupy: the module.
        pool: the memory of everything else, whose limit is lowered by what is exported.
        memory_bytes: memory that may be taken of the device, bytes.
        make_room: gives memory of the pool back, step by step.

    Attributes:
        size_in_bytes: memory of all exports.
    """

    def __init__(self, cupy: Any, pool: Any, memory_bytes: int, make_room: Callable[[int], Iterator[int]]) -> None:
        self._runtime, self._pool, self._memory_bytes, self._make_room = (
            cupy.cuda.runtime,
            pool,
            memory_bytes,
            make_room,
        )
        self.size_in_bytes = 0
        self._lock = threading.Lock()
        self._open: dict[int, int] = {}  # sizes of allocations, by address

    def make(self, size_in_bytes: int, fill: Callable[[int], None], stream: Any) -> ExportedMemory:
        """A new allocation with the bytes of a tensor.

        Args:
            size_in_bytes: the tensor's, 1 or more.
            fill: begins to copy the tensor to an address.
            stream: what the copy is ordered by.

        Raises:
            InsufficientStorage: there would be more exports than the device may have.
            OutOfDeviceMemory: the device has no room for it.
            NoBackend: memory of this device cannot be shared.
        """
        taken = -(-size_in_bytes // _BLOCK) * _BLOCK
        self._reserve(taken)
        address = 0
        try:
            address = int(self._runtime.malloc(taken))
            fill(address)
            if taken > size_in_bytes:
                self._runtime.memsetAsync(address + size_in_bytes, 0, taken - size_in_bytes, stream.ptr)
            stream.synchronize()
            handle = self._handle(address)
        except BaseException:
            if address:
                with suppress(self._runtime.CUDARuntimeError):  # the first error says what happened
                    stream.synchronize()
                    self._runtime.free(address)
            self._give_back(taken)
            raise
        with self._lock:
            self._open[address] = taken
        return ExportedMemory(handle, address, size_in_bytes)

    def free(self, exported: ExportedMemory) -> None:
        """Free an export; who has it open must not use it any more."""
        with self._lock:
            taken = self._open.pop(exported.address)
        self._runtime.free(exported.address)
        self._give_back(taken)

    def free_all(self) -> None:
        """Free what is still there."""
        for address in [*self._open]:
            self.free(ExportedMemory(b"", address, 0))

    def _handle(self, address: int) -> bytes:
        try:
            return bytes(self._runtime.ipcGetMemHandle(address))
        except self._runtime.CUDARuntimeError as error:
            raise NoBackend(
                f"memory of this CUDA device cannot be shared with other processes here ({error})"
            ) from error

    def _reserve(self, taken: int) -> None:
        with self._lock:
            most = self._memory_bytes // SHARE
            if self.size_in_bytes + taken > most:
                actual, setting = self.size_in_bytes + taken, "TENSORPOST_CUDA_MEMORY_BYTES"
                raise InsufficientStorage(
                    f"exported tensors would take {actual:,} bytes of the device, and this server allows {most:,} (a "
                    f"quarter of the setting {setting}); end exports, or read the tensor through host memory",
                    extra={"limit": most, "actual": actual, "setting": setting},
                )
            self._count(taken)
        left = self._memory_bytes - self.size_in_bytes
        if self._pool.total_bytes() <= left:
            return
        for _ in self._make_room(0):
            self._pool.free_all_blocks()
            if self._pool.total_bytes() <= left:
                return
        self._give_back(taken)
        raise OutOfDeviceMemory("what other calls compute now leaves no room to export the tensor; try again")

    def _give_back(self, taken: int) -> None:
        with self._lock:
            self._count(-taken)

    def _count(self, taken: int) -> None:
        self.size_in_bytes += taken
        self._pool.set_limit(size=self._memory_bytes - self.size_in_bytes)
