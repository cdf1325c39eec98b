"""The nodes of a captured CUDA graph, as the driver lists them: CuPy has no functions for them.

Source: CUDA Driver API, "Graph Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

# CUDA Driver API, CUgraphNodeType.
_KERNEL, _COPY, _MEMSET, _EMPTY = 0, 1, 2, 5
# CUDA Driver API, CUmemorytype and CUpointer_attribute.
_ON_HOST, _ON_DEVICE, _MEMORY_TYPE = 1, 2, 2


def consists_of_kernels(graph: Any, blocks: Sequence[memoryview]) -> bool:
    """Whether a captured graph has only kernels, copies on the device, and copies of these blocks.

    Another copy may be one from host memory that is gone when the graph is launched again; memory that is allocated in
    the graph is in no limit.

    Args:
        graph: CuPy's.
        blocks: page-locked memory of inputs and outputs.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # it has another name on this system
        return False
    handle = ctypes.c_void_p(int(graph.graph))
    count = ctypes.c_size_t()
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)):
        return False
    nodes = (ctypes.c_void_p * count.value)()
    if driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)):
        return False
    own = {np.frombuffer(block, np.uint8).__array_interface__["data"][0] for block in blocks}
    for node in map(ctypes.c_void_p, nodes):
        kind = ctypes.c_int()
        if driver.cuGraphNodeGetType(node, ctypes.byref(kind)) or kind.value not in (_KERNEL, _COPY, _MEMSET, _EMPTY):
            return False
        if kind.value == _COPY:
            copy = _CopyParameters()
            if driver.cuGraphMemcpyNodeGetParams(node, ctypes.byref(copy)):
                return False
            ends = {copy.source.address, copy.target.address}
            if not ends & own and not all(_is_on_device(driver, address) for address in ends):
                return False
    return True


class _CopyEnd(ctypes.Structure):
    """One end of a copy, as `CUDA_MEMCPY3D` has it."""

    _fields_ = (
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("lod", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_void_p), ("device", ctypes.c_uint64), ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.host or 0) if self.kind == _ON_HOST else int(self.device)


class _CopyParameters(ctypes.Structure):
    """Parameters of a copy: `CUDA_MEMCPY3D`."""

    _fields_ = (
        ("source", _CopyEnd), ("target", _CopyEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )  # fmt: skip


def _is_on_device(driver: Any, address: int) -> bool:
    kind = ctypes.c_uint()
    status = driver.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address))
    return not status and kind.value == _ON_DEVICE
