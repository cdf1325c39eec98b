"""Device memory: Direct3D buffers, kept for the next request up to a bound."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int32, c_uint32, c_void_p
from dataclasses import dataclass

from . import d3d12
from .com import ComError, ComObject, pointer_to

KEPT_BYTES = 256 << 20
"""Device memory that is kept for the next request."""

SMALLEST_BUFFER = 64 << 10  # D3D12_DEFAULT_RESOURCE_PLACEMENT_ALIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A Direct3D buffer.

    Attributes:
        resource: the object.
        size: bytes; at least what was asked for.
        mapped: where the processor sees it; 0 if it does not.
    """

    resource: ComObject
    size: int
    mapped: int = 0


class DeviceBuffers:
    """Buffers in device memory, lent and kept. What uses them is submitted to one queue, which runs it in order.

    Args:
        d3d: the Direct3D device.
        retire: releases an object once the queue has passed it.
        drain: waits for the queue.

    Attributes:
        kept_bytes: bytes of the buffers that are kept and not lent.
        lent_bytes: bytes of the buffers that are lent.
    """

    def __init__(self, d3d: ComObject, retire: Callable[[ComObject], object], drain: Callable[[], object]) -> None:
        self._d3d, self._retire, self._drain = d3d, retire, drain
        self._kept: dict[int, list[Buffer]] = {}
        self.kept_bytes = self.lent_bytes = 0

    def take(self, size: int) -> Buffer:
        """A buffer of at least `size` bytes, with any content.

        Raises:
            ComError: E_OUTOFMEMORY, after all kept buffers were freed; or the device was removed.
        """
        size = _size_class(size)
        kept = self._kept.get(size)
        if kept:
            self.kept_bytes -= size
            buffer = kept.pop()
        else:
            try:
                buffer = make_buffer(self._d3d, size, d3d12.HEAP_DEFAULT, d3d12.STATE_COMMON)
            except ComError as error:
                if error.code != d3d12.E_OUTOFMEMORY:
                    raise
                self.trim()
                buffer = make_buffer(self._d3d, size, d3d12.HEAP_DEFAULT, d3d12.STATE_COMMON)
        self.lent_bytes += size
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back; everything that uses it was submitted."""
        self.lent_bytes -= buffer.size
        if self.kept_bytes + buffer.size > KEPT_BYTES:
            self._retire(buffer.resource)
        else:
            self._kept.setdefault(buffer.size, []).append(buffer)
            self.kept_bytes += buffer.size

    def trim(self) -> None:
        """Free all buffers that are kept.

        Raises:
            ComError: the device was removed.
        """
        for buffers in self._kept.values():
            for buffer in buffers:
                self._retire(buffer.resource)
        self._kept.clear()
        self.kept_bytes = 0
        self._drain()


def make_buffer(d3d: ComObject, size: int, heap: int, state: int) -> Buffer:
    """A new buffer in a heap of this type; shaders may write to one in the default heap.

    Raises:
        ComError: E_OUTOFMEMORY, or the device was removed.
    """
    flags = d3d12.ALLOW_UNORDERED_ACCESS if heap == d3d12.HEAP_DEFAULT else 0
    desc = d3d12.ResourceDesc(  # a buffer, row-major
        Dimension=1, Width=size, Height=1, DepthOrArraySize=1, MipLevels=1, SampleCount=1, Layout=1, Flags=flags
    )
    resource = d3d.create(
        d3d12.DEVICE_RESOURCE, "CreateCommittedResource", d3d12.HeapProperties(Type=heap), c_int32(0), desc,
        c_int32(state), c_void_p(), iid=d3d12.IID_RESOURCE,
    )  # fmt: skip
    return Buffer(resource, size)


def make_staging(d3d: ComObject, size: int, heap: int, state: int) -> Buffer:
    """A new buffer that the processor sees for as long as it exists.

    Raises:
        ComError: E_OUTOFMEMORY, or the device was removed.
    """
    resource = make_buffer(d3d, size, heap, state).resource
    address = c_void_p()
    resource.check(d3d12.RESOURCE_MAP, "Map", c_uint32(0), c_void_p(), pointer_to(address))
    return Buffer(resource, size, address.value or 0)


def _size_class(size: int) -> int:
    """The size rounded up so that buffers are used again: to an eighth of the power of two above it."""
    size = max(size, SMALLEST_BUFFER)
    step = max(SMALLEST_BUFFER, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
