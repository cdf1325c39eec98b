"""As much of CuPy as the CUDA backend uses, on NumPy's arrays, for machines without a GPU.

What is asynchronous on a GPU happens late here: a copy is done when its stream is synchronized, or when another stream
waits for an event behind it. Who forgets to wait finds the bytes missing. Memory is counted and has a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

__all__ = ["CUBLAS", "CUDADriverError", "CUDARuntimeError", "FakeCupy", "OutOfMemoryError", "modules", "using"]

CUBLAS = "cupy_backends.cuda.libs.cublas"


def modules(found: Any) -> dict[str, Any]:
    """What to have in `sys.modules` for it: itself, and cuBLAS, which CuPy imports when it needs it."""
    return {"cupy": found, CUBLAS: SimpleNamespace()}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class CUDADriverError(CUDARuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class DeviceArray(np.ndarray[Any, Any]):
    """An array whose memory has a number, as CuPy's have."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


@dataclass
class Pool:
    """Device memory. What was freed is kept until `free_all_blocks` and counts against the limit, as in CuPy."""

    fake: FakeCupy
    limit: int = 1 << 40
    used: int = 0
    held: int = 0
    kept: list[int] = field(default_factory=list[int])

    def set_limit(self, size: int) -> None:
        self.limit = size

    def malloc(self, size: int) -> Pool:
        """Memory of so many bytes: here the pool that it belongs to."""
        if size in self.kept:
            self.kept.remove(size)
        elif self.held + size > self.limit:
            raise OutOfMemoryError(f"{size} bytes, {self.held} of {self.limit} are held")
        else:
            self.held += size
        self.used += size
        self.fake.largest_block = max(self.fake.largest_block, size)
        return self

    def free(self, size: int) -> None:
        self.used -= size
        self.kept.append(size)

    def free_all_blocks(self) -> None:
        self.held = self.used
        self.kept.clear()

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.held


class PoolWithin:
    """A pool that takes its memory from another one, and keeps it for as long as it lives."""

    def __init__(self, allocator: Callable[[int], Pool]) -> None:
        self.allocator = allocator
        self.taken: list[tuple[Pool, int]] = []

    def malloc(self, size: int) -> PoolWithin:
        self.taken.append((self.allocator(size), size))
        return self

    def free(self, size: int) -> None:
        pass

    def total_bytes(self) -> int:
        return sum(size for _, size in self.taken)

    def __del__(self) -> None:
        for pool, size in self.taken:
            pool.free(size)


class Stream:
    """Work that is done when it is waited for."""

    def __init__(self, fake: FakeCupy) -> None:
        self.fake = fake
        self.todo: list[Callable[[], object]] = []
        self.lock = threading.Lock()
        self.ptr = fake.number(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        self.fake.check()
        with self.lock:  # a second thread waits for the end of what the first one does
            while self.todo:
                self.todo.pop(0)()

    def wait_event(self, event: Event) -> None:
        event.synchronize()

    def begin_capture(self) -> None:
        assert not self.todo, "what is under way would be captured"
        self.fake.capturing = self

    def end_capture(self) -> Graph:
        assert self.fake.capturing is self
        self.fake.capturing = None
        graph = Graph([*self.todo])
        self.todo.clear()
        return graph


@dataclass
class Graph:
    """What was captured; launched as often as one likes."""

    todo: list[Callable[[], object]]

    def launch(self, stream: Stream) -> None:
        stream.fake.launches += 1
        stream.todo += self.todo


class Event:
    """A point in a stream; everything before it is done when it is waited for."""

    stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        assert self.stream is not None, "an event that was never recorded is no event to wait for"
        self.stream.synchronize()


@dataclass
class FakeCupy:
    """The module.

    Attributes:
        devices: names of the devices.
        free: free bytes on each, before this process takes any.
        failing: what the next calls raise; None for nothing.
        count_error: what counting the devices raises.
        driver: CUDA version of the driver, as a number.
        nvrtc: whether it can compile.
        largest_block: the largest single piece of device memory so far.
        shared: memory of another process by its handle.
        opened: how often it is open here, by address.
        capturing: the stream that is captured now.
        launches: how many graphs were launched.
        allocations: what was allocated past the pools, by address.
    """

    devices: tuple[str, ...] = ("NVIDIA H200", "NVIDIA H200")
    free: Mapping[int, int] = field(default_factory=dict[int, int])
    failing: BaseException | None = None
    count_error: int | None = None
    pinned_error: int | None = None
    driver: int = 13_000
    nvrtc: bool = True
    largest_block: int = 0
    shared: dict[bytes, np.ndarray[Any, Any]] = field(default_factory=dict[bytes, Any])
    opened: Counter[int] = field(default_factory=Counter[int])
    capturing: Stream | None = None
    launches: int = 0
    allocations: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict[int, Any])

    def __post_init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self._numbering = threading.Lock()
        self.pools: list[Pool] = []
        self.copies: list[int] = []  # the kind of each
        self._current = threading.local()
        self.lib = np.lib
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError, memcpyHostToDevice=1, memcpyDeviceToHost=2,
            getDeviceCount=self._count, getDeviceProperties=self._properties, memGetInfo=self._memory,
            memcpyDeviceToDevice=3, ipcOpenMemHandle=self._open_shared, ipcCloseMemHandle=self._close_shared,
            malloc=self._malloc, free=self._free, memsetAsync=self._memset, ipcGetMemHandle=self._handle_of,
            deviceGetPCIBusId=lambda index: f"0000:{index + 27:02x}:00.0",
            driverGetVersion=lambda: self.driver, runtimeGetVersion=lambda: 13_020, memcpyAsync=self._copy,
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            runtime=runtime, driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError), nvrtc=SimpleNamespace(getVersion=self._nvrtc),
            Device=self._device, MemoryPool=self._pool, using_allocator=self._using,
            Stream=lambda non_blocking: Stream(self), Event=lambda disable_timing=False: Event(),  # noqa: ARG005 # CuPy's names
            get_elapsed_time=lambda begin, end: 1.0,  # noqa: ARG005 # CuPy's names
            alloc_pinned_memory=self._pinned,
        )  # fmt: skip

    def number(self, stream: Stream) -> int:
        """A number for a stream, which `memcpyAsync` takes."""
        with self._numbering:  # threads make their streams at the same time
            number = len(self.streams) + 1
            self.streams[number] = stream
        return number

    def check(self) -> None:
        """Raise what the device is to fail with."""
        if self.failing is not None:
            raise self.failing

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Device memory, counted; filled with bytes that no test expects."""
        array = np.full(shape, 0xA5, np.uint8) if np.dtype(dtype) == np.uint8 else np.empty(shape, dtype)
        malloc = getattr(self._current, "malloc", None)
        assert malloc is not None, "memory was taken past the pool with the limit"
        pool: Pool | PoolWithin = malloc(array.nbytes)
        found = array.view(DeviceArray)
        weakref.finalize(array, pool.free, array.nbytes)
        return found

    def asarray(self, array: Any, dtype: Any = None) -> Any:
        """The array as one on the device."""
        if self.capturing is not None:
            raise CUDARuntimeError(900)  # cudaErrorStreamCaptureUnsupported
        made = self.empty(array.shape, array.dtype if dtype is None else dtype)
        made[...] = array
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)  # what forms compute with

    def _count(self) -> int:
        if self.count_error is not None:
            raise CUDARuntimeError(self.count_error)
        return len(self.devices)

    def _properties(self, index: int) -> Mapping[str, Any]:
        self.check()
        return {"name": self.devices[index].encode()}

    def _memory(self) -> tuple[int, int]:
        self.check()
        return self.free.get(self._current.device, 100 << 30), 140 << 30

    def _nvrtc(self) -> tuple[int, int]:
        if not self.nvrtc:
            raise RuntimeError("Failure finding libnvrtc.so")
        return 13, 0

    def _pool(self, allocator: Callable[[int], Pool] | None = None) -> Pool | PoolWithin:
        if allocator is not None:
            return PoolWithin(allocator)
        self.pools.append(Pool(self))
        return self.pools[-1]

    def _pinned(self, size: int) -> Any:
        if self.pinned_error is not None:
            raise CUDARuntimeError(self.pinned_error)
        return bytearray(size)

    @contextlib.contextmanager
    def _device(self, index: int) -> Iterator[None]:
        before = getattr(self._current, "device", 0)
        self._current.device = index
        try:
            yield
        finally:
            self._current.device = before

    @contextlib.contextmanager
    def _using(self, malloc: Any) -> Iterator[None]:
        self._current.malloc = malloc
        try:
            yield
        finally:
            self._current.malloc = None

    def _copy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        assert kind in (1, 2, 3)
        self.check()
        self.copies.append(kind)
        self.streams[stream].todo.append(lambda: ctypes.memmove(target, source, size))

    def _open_shared(self, handle: bytes) -> int:
        self.check()
        if handle not in self.shared:
            raise CUDARuntimeError(1)
        address: int = self.shared[handle].__array_interface__["data"][0]
        self.opened[address] += 1
        return address

    def _close_shared(self, address: int) -> None:
        assert self.opened[address], "closed more often than it was opened"
        self.opened[address] -= 1

    def _malloc(self, size: int) -> int:
        self.check()
        memory = np.full(size, 0xA5, np.uint8)
        address: int = memory.__array_interface__["data"][0]
        self.allocations[address] = memory
        return address

    def _free(self, address: int) -> None:
        del self.allocations[address]
        self.shared = {
            handle: memory for handle, memory in self.shared.items() if memory.__array_interface__["data"][0] != address
        }

    def _memset(self, address: int, value: int, size: int, stream: int) -> None:
        self.streams[stream].todo.append(lambda: ctypes.memset(address, value, size))

    def _handle_of(self, address: int) -> bytes:
        self.check()
        handle = hashlib.sha512(str(address).encode()).digest()
        self.shared[handle] = self.allocations[address]
        return handle

    def allocation_of(self, address: int) -> tuple[int, int]:
        """Stands in for the function of `ipc.py`, which asks the driver."""
        return next(
            (begin, memory.nbytes)
            for memory in self.shared.values()
            if (begin := memory.__array_interface__["data"][0]) <= address < begin + memory.nbytes
        )


def _fill(form: Any, inputs: Any, box: Any, out: Any, output: int = 0) -> None:
    form.fill(np, inputs, box, out, output)


def _not_captured(*_: Any) -> None:
    raise NotImplementedError


@contextlib.contextmanager
def using(found: FakeCupy, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Let the CUDA backend use it, with NumPy's functions as kernels, and capture nothing.

    Args:
        found: stands in for CuPy.
        folder: for kernels.
    """
    compute: Any = SimpleNamespace(fill=_fill, fill_keeping=_not_captured, clear_caches=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorpost_server.backends.cuda.compute", compute)
        patch.setenv("CUPY_CACHE_DIR", str(folder))
        for name, module in modules(found).items():
            patch.setitem(sys.modules, name, module)
        yield patch
