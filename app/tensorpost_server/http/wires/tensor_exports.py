"""Copies of held tensors on a device that callers on this host open by a CUDA IPC handle, each for a limited time.

An export is a copy of its own (`backends/cuda/exports.py`), so it may outlive the held tensor, and what is written
there changes nothing else.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tensorpost.values.problems import InsufficientStorage, InvalidRequest, NotFound

from ...backends import ExportedMemory, SharingBackend
from ...engine import Worker
from .tensor_store import OpenTensor

EXPORT_SECONDS = 60.0
"""How long a caller has for its copy. Nothing tells that it has ended, and the memory is not free before."""
MOST_EXPORTS = 64
"""Exports that one caller may have at a time."""


@dataclass(frozen=True, slots=True)
class TensorExport:
    """One copy, lent to a caller.

    Attributes:
        id: what the caller ends it by.
        owner: whose it is.
        name: the tensor's.
        worker: the worker of the device that it lies on.
        memory: the memory that has the copy.
        ends: when it is freed at the latest, by the exports' clock.
    """

    id: str
    owner: str
    name: str
    worker: Worker
    memory: ExportedMemory
    ends: float

    @property
    def backend(self) -> SharingBackend:
        """The backend of its device."""
        return cast("SharingBackend", self.worker.backend)

    def free(self) -> None:
        """Free the memory; the worker does it after what runs."""
        self.worker.call_later(self.backend.end_export, self.memory)

    def describe(self, tensor: OpenTensor) -> dict[str, Any]:
        """What opens it."""
        said = tensor.held.describe()
        return {
            "export": self.id,
            "raw_handle": {"b64": base64.b64encode(self.memory.handle).decode()},
            "offset": 0,
            "size_in_bytes": self.memory.nbytes,
            "data_type": said["data_type"],
            "dtype": said["dtype"],
            "sizes": said["sizes"],
            "device_id": self.backend.index,
            "pci_bus_id": self.backend.bus_id,
            "seconds": EXPORT_SECONDS,
        }


@dataclass(slots=True, eq=False)
class TensorExports:
    """The exports of all callers. Used from the event loop's thread only."""

    _exports: dict[str, TensorExport] = field(default_factory=dict[str, TensorExport])
    _clock: Callable[[], float] = time.monotonic

    async def make(self, tensor: OpenTensor, worker: Worker) -> TensorExport:
        """Copy a tensor, which the request uses, for its owner, on the device of a worker.

        Raises:
            InvalidRequest: the tensor has no elements.
            InsufficientStorage: the caller has too many exports, or all have too much of the device's memory.
            OutOfDeviceMemory: the device has no room for it.
            NoBackend: memory of this device cannot be shared.
        """
        if not tensor.data.nbytes:
            raise InvalidRequest(f"the held tensor {tensor.held.name!r} has no elements, and so no memory to export")
        self.sweep()
        owned = sum([each.owner == tensor.held.owner for each in self._exports.values()])
        if owned >= MOST_EXPORTS:
            raise InsufficientStorage(
                f"you have {owned} exports, the most that one caller may have; end some by DELETE, or wait for "
                f"{EXPORT_SECONDS:g} s",
                extra={"limit": MOST_EXPORTS, "actual": owned + 1},
            )
        backend, made = cast("SharingBackend", worker.backend), list[ExportedMemory]()

        def copy() -> None:
            made.append(backend.export_copy(tensor.layout, tensor.data))

        try:
            await worker.call(copy)
        except BaseException:
            for memory in made:
                worker.call_later(backend.end_export, memory)
            raise
        export = TensorExport(
            secrets.token_hex(12), tensor.held.owner, tensor.held.name, worker, made[0], self._clock() + EXPORT_SECONDS
        )
        self._exports[export.id] = export
        return export

    def end(self, owner: str, name: str, id_: str) -> None:
        """Free an export, which its caller does not have open any more.

        Raises:
            NotFound: the caller has no such export, or its time was over.
        """
        found = self._exports.get(id_)
        if found is None or (found.owner, found.name) != (owner, name):
            raise NotFound(
                f"there is no export {id_[:40]!r} of {name[:100]!r}; exports are freed after {EXPORT_SECONDS:g} s"
            )
        del self._exports[id_]
        found.free()

    def sweep(self) -> None:
        """Free the exports whose time is over."""
        now = self._clock()
        for export in [each for each in self._exports.values() if each.ends <= now]:
            del self._exports[export.id]
            export.free()

    def close(self) -> None:
        """Free all exports."""
        for export in self._exports.values():
            export.free()
        self._exports.clear()
