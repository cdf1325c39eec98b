"""As much of CuPy as the SDK uses, in a client's process: its GPU is the one of a `FakeCupy` that a server uses."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.fake_cupy import CUDARuntimeError, FakeCupy, OutOfMemoryError

from tensorpost.calls import cuda_arrays, held_calls

__all__ = ["ClientCupy", "GpuArray"]

CUDA = 2  # DLPack, kDLCUDA


class GpuArray:
    """An array on a GPU. NumPy cannot read it, as it cannot read CuPy's."""

    def __init__(self, host: np.ndarray[Any, Any], index: int = 0) -> None:
        self.host, self.device = host, Device(index)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.host.dtype

    @property
    def nbytes(self) -> int:
        return self.host.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.host.__array_interface__["data"][0])

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    def copy(self) -> GpuArray:
        return GpuArray(self.host.copy(), self.device.id)

    def reshape(self, *shape: Any) -> GpuArray:
        return GpuArray(self.host.reshape(*shape), self.device.id)

    def __getitem__(self, box: Any) -> GpuArray:
        return GpuArray(self.host[box], self.device.id)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device.id

    def __dlpack__(self, **options: Any) -> Any:
        return ("capsule", self, options)


GpuArray.__module__ = "cupy"


class Device:
    """A device by its number in the client's process."""

    current = 0

    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> Device:
        self.before, Device.current = Device.current, self.id
        return self

    def __exit__(self, *_: object) -> None:
        Device.current = self.before


class ClientCupy:
    """The module.

    Args:
        server: what the server has; memory that is shared is found there by its handle.
        bus_ids: the devices that this process sees, in its order.
    """

    def __init__(self, server: FakeCupy, bus_ids: tuple[str, ...] = ("0000:1b:00.0", "0000:1c:00.0")) -> None:
        self.server, self.bus_ids = server, bus_ids
        self.opened: list[int] = []
        self.copies: list[int] = []
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError, memcpyDeviceToDevice=3, malloc=server.cuda.runtime.malloc,
            free=server.cuda.runtime.free, ipcGetMemHandle=server.cuda.runtime.ipcGetMemHandle,
            ipcOpenMemHandle=self._open, ipcCloseMemHandle=self.opened.remove, memcpyAsync=self._copy,
            deviceGetByPCIBusId=self._by_bus_id, memcpyHostToDevice=1, memcpyDeviceToHost=2,
            memcpy=lambda target, source, size, _kind: ctypes.memmove(target, source, size),
        )  # fmt: skip
        stream = SimpleNamespace(ptr=0, synchronize=lambda: None)
        self.cuda = SimpleNamespace(
            runtime=runtime, memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError), Device=Device,
            get_current_stream=lambda: stream,
        )  # fmt: skip

    def empty(self, shape: Any, dtype: Any) -> GpuArray:
        return GpuArray(np.full(shape, 0x5A, np.uint8).astype(dtype), Device.current)

    def from_dlpack(self, value: Any) -> GpuArray:
        return value if isinstance(value, GpuArray) else value.__dlpack__()[1]

    def asarray(self, array: np.ndarray[Any, Any]) -> GpuArray:
        return GpuArray(array.copy())

    def ascontiguousarray(self, array: GpuArray) -> GpuArray:
        return GpuArray(np.ascontiguousarray(array.host), array.device.id)

    def _by_bus_id(self, bus_id: str) -> int:
        if bus_id not in self.bus_ids:
            raise CUDARuntimeError(101)  # cudaErrorInvalidDevice
        return self.bus_ids.index(bus_id)

    def _open(self, handle: bytes) -> int:
        if handle not in self.server.shared:
            raise CUDARuntimeError(1)
        address: int = self.server.shared[handle].__array_interface__["data"][0]
        self.opened.append(address)
        return address

    def _copy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        del stream
        self.copies.append(kind)
        ctypes.memmove(target, source, size)


@contextlib.contextmanager
def as_client_cupy(found: ClientCupy) -> Iterator[None]:
    """Let the SDK of this process have it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cuda_arrays, held_calls):
            patch.setattr(module, "import_cupy", lambda: found)
        yield
