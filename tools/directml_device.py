"""Under Wine: let DirectML open a Direct3D device of vkd3d's. Installed there as `sitecustomize`.

DirectML asks a device for its meta commands when it is made; vkd3d's ID3D12Device5::EnumerateMetaCommands fails, where
it should say that there are none. All devices share one table of functions, so the entry is replaced there, once.
"""

import ctypes
import uuid
from ctypes import POINTER, byref, c_long, c_size_t, c_uint32, c_void_p, sizeof
from typing import Any

ENUMERATE_META_COMMANDS = 59  # its place in the table
FEATURE_LEVEL_11_0 = 0xB000
PAGE_EXECUTE_READWRITE = 0x40
ID3D12_DEVICE = uuid.UUID("189819f1-1db6-4b57-be54-1821339b85f7")


@ctypes.CFUNCTYPE(c_long, c_void_p, POINTER(c_uint32), c_void_p)
def no_meta_commands(_this: Any, count: Any, _descs: Any) -> int:
    """ID3D12Device5::EnumerateMetaCommands of a device that has none."""
    count[0] = 0
    return 0


def replace() -> None:
    """Put it into the table.

    Raises:
        OSError: there is no Direct3D 12 device, or the table cannot be written to.
    """
    load: Any = getattr(ctypes, "WinDLL")  # noqa: B009 # it is there on Windows only
    device, before = c_void_p(), c_uint32()
    iid = (ctypes.c_ubyte * 16)(*ID3D12_DEVICE.bytes_le)
    code = load("d3d12").D3D12CreateDevice(None, FEATURE_LEVEL_11_0, byref(iid), byref(device))
    if code < 0:
        raise OSError(f"D3D12CreateDevice returned 0x{code & 0xFFFFFFFF:08X}")
    table = c_void_p.from_address(device.value or 0).value or 0
    entry = table + ENUMERATE_META_COMMANDS * sizeof(c_void_p)
    protect = load("kernel32").VirtualProtect
    protect.argtypes = [c_void_p, c_size_t, c_uint32, POINTER(c_uint32)]
    if not protect(entry, sizeof(c_void_p), PAGE_EXECUTE_READWRITE, byref(before)):
        raise OSError("the table of functions cannot be written to")
    c_void_p.from_address(entry).value = ctypes.cast(no_meta_commands, c_void_p).value


try:
    replace()
except OSError as problem:
    print(f"There is no Direct3D 12 device: {problem}")  # noqa: T201 # to whoever starts Python
