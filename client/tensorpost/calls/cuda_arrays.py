"""Arrays on a GPU that this process shares with a server on the same host, by CuPy and CUDA IPC: no element travels.

Source: DLPack, `DLDeviceType`; CUDA Runtime API, "Device Management", `cudaIpcGetMemHandle`; CUDA C++ Programming
Guide, "Interprocess Communication"; Triton, "CUDA shared memory" extension.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from ..transport.http1 import Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..values.checks import shown
from ..values.datatypes import DataType, data_type
from ..values.problems import InvalidParameter, NoBackend, TensorpostError, Unavailable

CPU, CUDA, CUDA_MANAGED = 1, 2, 13  # DLPack, DLDeviceType
_BLOCK = 2 << 20  # CUDA may share a block with allocations that are smaller
_JSON = (("content-type", "application/json"), ("accept", "application/json"))
_PATH = "/v2/cudasharedmemory/region"


def checked_setting(value: object) -> bool:
    """The argument `cuda_shared_memory` of a client.

    Raises:
        InvalidParameter: it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise InvalidParameter(f"cuda_shared_memory is {shown(value)}; it must be True or False")
    return value


def is_on_gpu(value: object) -> bool:
    """Whether a value lies in memory of one CUDA device, as DLPack says."""
    if isinstance(value, np.ndarray) or not hasattr(type(value), "__dlpack_device__"):
        return False
    try:
        kind, _ = cast("Any", value).__dlpack_device__()
    except (BufferError, ValueError):  # it lies on several devices, or on one that DLPack has no number for
        return False
    return int(kind) in (CUDA, CUDA_MANAGED)


def import_cupy() -> Any:
    """CuPy.

    Raises:
        InvalidParameter: it is not installed.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise InvalidParameter(
            f"tensors on a GPU need CuPy in this process, which cannot be imported ({error}): install cupy-cuda13x or "
            "cupy-cuda12x, or make the client without cuda_shared_memory=True"
        ) from None


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A copy of an array in an allocation of its own, which a server may open.

    Attributes:
        cupy: the module.
        device: the number of its device in this process.
        address: the address of its first byte.
        size_in_bytes: the array's.
        row_name: NumPy's name of its type.
        shape: its sizes.
        name: the name by which the server shall know it.
    """

    cupy: Any
    device: int
    address: int
    size_in_bytes: int
    row_name: str
    shape: tuple[int, ...]
    name: str

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """A copy of what speaks DLPack; None if it has no elements.

        Raises:
            InvalidParameter: CuPy cannot read it, has not its type, or has no room for it.
        """
        cupy = import_cupy()
        runtime = cupy.cuda.runtime
        try:
            if type(value).__module__.partition(".")[0] == "torch":
                value = value.detach()
            array = cupy.ascontiguousarray(cupy.from_dlpack(value))
            row = data_type(array.dtype)
            if not array.nbytes:
                return None
            with array.device:
                address = int(runtime.malloc(-(-array.nbytes // _BLOCK) * _BLOCK))
                try:
                    stream = cupy.cuda.get_current_stream()
                    runtime.memcpyAsync(address, array.data.ptr, array.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
                    stream.synchronize()
                except BaseException:
                    runtime.free(address)
                    raise
        except (KeyError, TypeError, ValueError, BufferError, RuntimeError, MemoryError) as error:
            raise InvalidParameter(
                f"x is on a GPU, and CuPy cannot share it: {error}; send a copy in host memory"
            ) from None
        name = f"tensorpost-{os.getpid()}-{secrets.token_hex(8)}"
        shape = tuple([int(size) for size in array.shape])
        return cls(cupy, int(array.device.id), address, int(array.nbytes), row.numpy_name, shape, name)

    @property
    def query(self) -> dict[str, str]:
        """What refers to it in the query of `PUT /v1/tensors/{name}`."""
        return {"region": self.name, "data_type": self.row_name, "sizes": ",".join(map(str, self.shape))}

    async def register(self, transport: Transport | ManyServers) -> None:
        """Tell the server of it.

        Raises:
            Unavailable: the server takes no memory of CUDA devices.
            TensorpostError: what else it refused.
        """
        runtime = self.cupy.cuda.runtime
        with self.cupy.cuda.Device(self.device):
            handle = bytes(runtime.ipcGetMemHandle(self.address))
        document = {
            "raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": self.device,
            "byte_size": self.size_in_bytes,
        }  # fmt: skip
        body = memoryview(json.dumps(document).encode())
        try:
            async with await transport.ask(Request("POST", f"{_PATH}/{self.name}/register", _JSON, (body,))) as found:
                await found.read()
        except NoBackend as error:
            raise unavailable(error) from error

    async def end(self, transport: Transport | ManyServers) -> None:
        """Have the server close it, and free it."""
        try:
            with suppress(TensorpostError):  # the server drops it when it was not used for long
                request = Request("POST", f"{_PATH}/{self.name}/unregister", _JSON, ())
                async with await transport.ask(request, repeat=False) as response:
                    await response.read()
        finally:
            with self.cupy.cuda.Device(self.device):
                self.cupy.cuda.runtime.free(self.address)


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A held tensor in memory of a GPU that the server has shared for a while.

    Attributes:
        id: what ends it.
        handle: what opens the memory.
        offset: the tensor's first byte there, bytes from the begin.
        bus_id: address of the GPU on the PCI bus.
        data_type: the tensor's.
        sizes: the tensor's.
    """

    id: str
    handle: bytes
    offset: int
    bus_id: str
    data_type: DataType
    sizes: tuple[int, ...]

    @classmethod
    def of_answer(cls, said: Mapping[str, Any]) -> Self:
        """What a server answers to `POST /v1/tensors/{name}/exports`.

        Raises:
            KeyError, TypeError, ValueError: it is no such answer.
        """
        return cls(
            str(said["export"]),
            base64.b64decode(said["raw_handle"]["b64"], validate=True),
            int(said["offset"]),
            str(said["pci_bus_id"]),
            data_type(str(said["dtype"])),
            tuple([int(size) for size in said["sizes"]]),
        )

    def copied(self) -> Any:
        """A CuPy array of its own with the elements; the memory is closed again.

        Raises:
            InvalidParameter: CuPy has no such type, or this process cannot open the memory.
        """
        cupy, row = import_cupy(), self.data_type
        if row.in_ml_dtypes:
            raise InvalidParameter(f"CuPy has no {row.numpy_name}; read the tensor through host memory: held.get()")
        runtime = cupy.cuda.runtime
        try:
            with cupy.cuda.Device(runtime.deviceGetByPCIBusId(self.bus_id)):
                array = cupy.empty(self.sizes, row.dtype)
                address = runtime.ipcOpenMemHandle(self.handle)
                try:
                    stream = cupy.cuda.get_current_stream()
                    kind = runtime.memcpyDeviceToDevice
                    runtime.memcpyAsync(array.data.ptr, address + self.offset, array.nbytes, kind, stream.ptr)
                    stream.synchronize()
                finally:
                    runtime.ipcCloseMemHandle(address)
                return array
        except (runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError) as error:
            raise InvalidParameter(
                f"this process cannot open memory of the server's GPU {self.bus_id} ({error}): it must run on the same "
                "host, see that GPU (CUDA_VISIBLE_DEVICES) and have room on it; or read the tensor through host "
                "memory: held.get()"
            ) from error


def unavailable(error: NoBackend) -> Unavailable:
    """What a server means that offers no CUDA shared memory."""
    return Unavailable(
        f"this server shares no memory of a GPU ({error.detail}): start it on a host with CUDA and with the setting "
        "TENSORPOST_CUDA_SHARED_MEMORY=1, or send and read tensors through host memory",
        status=error.status,
        request_id=error.request_id,
    )
