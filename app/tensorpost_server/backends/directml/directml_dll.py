"""Where DirectML.dll is, and which version it is.

The first of these that is there is loaded, by its full path:

1. the one in the wheel of `onnxruntime-directml` or `onnxruntime-windowsml`, which the extra `directml` installs;
2. the one in the PyPI package `directml`;
3. the one of Windows itself, which is as old as that Windows.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from ctypes import c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorpost.values.extras import install_command

from ..base import CannotOpen

SYSTEM: str = sys.platform
FILE = "DirectML.dll"
PACKAGES = ("onnxruntime", "directml")
"""The modules whose folders may hold the library. They are not imported."""
_FIXED_FILE_INFO = struct.pack("<II", 0xFEEF04BD, 0x00010000)
"""Signature and version that begin a VS_FIXEDFILEINFO, the numbers of a Windows file's version resource."""


class WindowsEvent:
    """An event of Windows, which is reset by the wait that it ends.

    Args:
        kernel32: the library.

    Attributes:
        handle: what a fence is given.
    """

    def __init__(self, kernel32: Any) -> None:
        create = kernel32.CreateEventW
        create.restype, create.argtypes = c_void_p, (c_void_p, c_int32, c_int32, c_void_p)
        self._kernel32 = kernel32
        self.handle: int = create(None, 0, 0, None)

    def wait(self, seconds: float) -> bool:
        """Whether the event was set within `seconds`."""
        return self._kernel32.WaitForSingleObject(c_void_p(self.handle), c_uint32(int(seconds * 1000))) == 0

    def close(self) -> None:
        """Give it back."""
        self._kernel32.CloseHandle(c_void_p(self.handle))


@dataclass(frozen=True, slots=True)
class Libraries:
    """The exported functions that create the first objects, as ctypes functions that return an HRESULT.

    Attributes:
        create_factory: the function CreateDXGIFactory1.
        create_device: the function D3D12CreateDevice.
        create_dml_device: the function DMLCreateDevice1.
        get_debug_interface: the function D3D12GetDebugInterface.
        new_event: the class `WindowsEvent` with its library.
        version: DirectML's file version, as in `1.15.4.0`; None if the file says none.
        path: where it was found.
    """

    create_factory: Any
    create_device: Any
    create_dml_device: Any
    get_debug_interface: Any
    new_event: Callable[[], WindowsEvent]
    version: str | None = None
    path: str = FILE


def find_directml() -> Path | None:
    """The DirectML.dll that is to be loaded; None if there is none."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found = next(iter(sorted(Path(folder).rglob(FILE))), None)
            if found is not None:
                return found
    system = Path(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", FILE)
    return system if system.is_file() else None


def open_libraries() -> Libraries:
    """Load the system's DXGI and Direct3D 12, and DirectML from where `find_directml` finds it.

    Raises:
        CannotOpen: not 64-bit Windows, or a library is missing or too old; the message says what to do.
    """
    load = getattr(ctypes, "WinDLL", None)
    if SYSTEM != "win32" or load is None or ctypes.sizeof(c_void_p) != 8:
        raise CannotOpen(
            "DirectML runs on 64-bit Windows only (10 version 1903 or newer, any DirectX 12 GPU); there, "
            + install_command("directml")
        )
    path = find_directml()
    if path is None:
        raise CannotOpen(f"there is no DirectML.dll on this machine: {install_command('directml')}")
    version = file_version(path.read_bytes())
    try:
        directml, d3d12, dxgi = load(str(path)), load("d3d12.dll"), load("dxgi.dll")
        return Libraries(
            dxgi.CreateDXGIFactory1, d3d12.D3D12CreateDevice, directml.DMLCreateDevice1, d3d12.D3D12GetDebugInterface,
            partial(WindowsEvent, load("kernel32.dll")), version, str(path),
        )  # fmt: skip
    except AttributeError:
        raise CannotOpen(
            f"{path} is DirectML {version or 'of an unknown version'}, and 1.1.0 or newer is needed: "
            + install_command("directml")
        ) from None
    except OSError as error:
        raise CannotOpen(f"DirectML cannot be loaded: {error}") from error


def file_version(content: bytes) -> str | None:
    """The version in a Windows file's version resource, as in `1.15.4.0`; None if there is none."""
    begin = content.find(_FIXED_FILE_INFO)
    if begin < 0 or begin + 16 > len(content):
        return None
    high, low = struct.unpack_from("<II", content, begin + 8)
    return f"{high >> 16}.{high & 0xFFFF}.{low >> 16}.{low & 0xFFFF}"
