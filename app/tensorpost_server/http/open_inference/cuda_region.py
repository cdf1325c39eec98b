"""CUDA shared memory: memory of a device that another process on this host took, opened by its handle.

Only copies touch a caller's memory, as with system shared memory: kernels read copies, so nobody can change an index
after it was checked. The driver keeps the memory of a process that ended for as long as it is open here.

Source: Triton, "CUDA shared memory" extension.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Self, cast

from tensorpost.values.problems import InvalidParameter, InvalidRequest, NoBackend

from ...backends import DeviceMemory, SharingBackend
from ...engine import Pool, Worker
from .shared_region import SharedRegion, whole_number

UNUSED_SECONDS = 600.0
"""How long a region may be unused before it is dropped. Nothing tells that its caller has ended, and until it is closed
here, the device's memory is not free."""

_BACKEND = "cuda"
_HANDLE_BYTES = 64
"""Length of a `cudaIpcMemHandle_t` (CUDA Runtime API, CUDA_IPC_HANDLE_SIZE)."""


class CudaRegion(SharedRegion):
    """Memory of a device, open. See `SharedRegion`."""

    kind = "cuda"

    def __init__(self, name: str, size: int, owner: str, worker: Worker, memory: DeviceMemory) -> None:
        super().__init__(name, size, owner)
        self.worker = worker
        self._memory = memory

    @classmethod
    async def open(cls, name: str, handle: bytes, size: int, owner: str, worker: Worker) -> Self:
        """Open the memory of a handle.

        Raises:
            InvalidRequest: it cannot be opened, or is smaller.
        """
        opened: list[DeviceMemory] = []
        backend = _sharing(worker)

        def open_memory() -> None:
            opened.append(backend.open_memory(handle))

        try:
            await worker.call(open_memory)
            (memory,) = opened
            if size > memory.nbytes:
                raise InvalidRequest(
                    f"{size:,} bytes do not lie in the memory of the handle, which has {memory.nbytes:,} bytes"
                )
        except BaseException:
            for memory in opened:
                worker.call_later(backend.close_memory, memory)
            raise
        return cls(name, size, owner, worker, memory)

    def to_status(self) -> dict[str, Any]:
        return {"name": self.name, "device_id": self.worker.backend.index, "byte_size": self.size}

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody has used it for long."""
        return self.idle_seconds > UNUSED_SECONDS

    def close(self) -> None:
        """See `SharedRegion.close`; the worker does it after what runs."""
        self.worker.call_later(_sharing(self.worker).close_memory, self._memory)

    def part(self, offset: int, size_in_bytes: int) -> DeviceMemory:
        """Some of its bytes, which lie in it."""
        return self._memory.part(offset, size_in_bytes)

    async def read_into(self, target: memoryview, offset: int) -> None:
        """Copy bytes from the region to host memory."""
        await self.worker.call(_sharing(self.worker).download, self.part(offset, len(target)), target)

    async def write(self, source: memoryview, offset: int) -> None:
        """Copy bytes from host memory into the region."""
        await self.worker.call(_sharing(self.worker).upload, source, self.part(offset, len(source)))


def has_sharing_worker(pool: Pool) -> bool:
    """Whether a device of this server can open memory of other processes."""
    return any(isinstance(worker.backend, SharingBackend) for worker in pool.workers.values())


def sharing_worker(pool: Pool, device: object) -> Worker:
    """The worker of a CUDA device.

    Raises:
        NoBackend: there is no CUDA device here.
        InvalidParameter: there is not this one.
    """
    if not has_sharing_worker(pool):
        raise NoBackend(
            "CUDA shared memory is not offered, because this server uses no CUDA device; use system shared memory, or "
            "binary tensors"
        )
    index = whole_number("device_id", device)
    worker = pool.workers.get(f"{_BACKEND}:{index}")
    if worker is None:
        known = ", ".join([str(worker.backend.index) for worker in pool.workers.values() if _is_sharing(worker)])
        raise InvalidParameter(f"there is no CUDA device {index} in use here; device_id is one of {known}")
    return worker


def memory_handle(document: object) -> bytes:
    """The handle in the member `raw_handle` of a registration.

    Raises:
        InvalidParameter: it is no handle.
    """
    text = cast("Mapping[str, object]", document).get("b64") if isinstance(document, Mapping) else None
    try:
        handle = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error:
        handle = b""
    if len(handle) != _HANDLE_BYTES:
        raise InvalidParameter(
            f'raw_handle must be {{"b64": "..."}}, the {_HANDLE_BYTES} bytes of a cudaIpcMemHandle_t in base64'
        )
    return handle


def _is_sharing(worker: Worker) -> bool:
    return isinstance(worker.backend, SharingBackend)


def _sharing(worker: Worker) -> SharingBackend:
    return cast("SharingBackend", worker.backend)
