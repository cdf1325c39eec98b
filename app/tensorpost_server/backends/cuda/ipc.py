"""Device memory that other processes share with this one, opened by its handle (`cudaIpcMemHandle_t`).

Source: CUDA Runtime API, "Device Management", `cudaIpcOpenMemHandle`; CUDA Driver API, `cuMemGetAddressRange`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from typing import Any

from tensorpost.values.problems import InvalidRequest

from ..base import DeviceMemory

NO_MEMORY = 2


class SharedAllocations:
    """The memory of other processes that is open on one device, which is the current device in every call.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self._open = Counter[int]()  # by address; CUDA opens a handle again at the same address, and counts
        self._lock = threading.Lock()

    def open(self, handle: bytes, device: str) -> DeviceMemory:
        """Open memory; see `SharingBackend.open_memory`.

        Args:
            handle: 64 bytes.
            device: its name, for the error.

        Raises:
            InvalidRequest: the handle cannot be opened on this device.
        """
        try:
            address = int(self._runtime.ipcOpenMemHandle(handle))
        except self._runtime.CUDARuntimeError as error:
            if error.status == NO_MEMORY:
                raise
            # Not `DeviceLost`, whatever the number: a caller chose the bytes of the handle.
            raise InvalidRequest(
                f"the handle cannot be opened on {device} ({error}): it must be of memory on this device that "
                "another process on this host allocated with cudaMalloc and has not freed"
            ) from error
        with self._lock:
            self._open[address] += 1
        try:
            begin, size = allocation_of(address)
        except BaseException:
            self.close(DeviceMemory(address, 0))
            raise
        return DeviceMemory(address, begin + size - address)

    def close(self, memory: DeviceMemory) -> None:
        """Close memory that was opened."""
        with self._lock:
            self._open[memory.address] -= 1
        self._runtime.ipcCloseMemHandle(memory.address)

    def close_all(self) -> None:
        """Close what is still open."""
        for address in self._open.elements():
            self._runtime.ipcCloseMemHandle(address)
        self._open.clear()


def allocation_of(address: int) -> tuple[int, int]:
    """The begin and the bytes of the allocation that an address lies in, of the current device.

    CuPy does not have this function of the driver.

    Raises:
        InvalidRequest: the driver knows none.
    """
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), ctypes.c_uint64(address))
    if status:
        raise InvalidRequest(f"the size of the memory behind the handle is unknown: CUDA's error {status}")
    return begin.value, size.value
