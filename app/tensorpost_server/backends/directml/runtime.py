"""The installed ONNX Runtime: its package, its execution providers, its devices, and DirectML's version.

The module `onnxruntime` comes from several packages that overwrite each other. DirectML's provider is in
`onnxruntime-directml` and in `onnxruntime-windowsml`, both for Windows only.
"""

from __future__ import annotations

import struct
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from ..base import CannotOpen

__all__ = [
    "CPU",
    "DIRECTML",
    "adapters",
    "directml_version",
    "file_version",
    "load_runtime",
    "package_of",
    "session_options",
]

DIRECTML, CPU = "DmlExecutionProvider", "CPUExecutionProvider"
PACKAGES = {
    DIRECTML: ("onnxruntime-directml", "onnxruntime-windowsml"),
    CPU: ("onnxruntime", "onnxruntime-directml", "onnxruntime-windowsml"),
}
"""Packages that contain a provider, in the order in which they are looked for."""
SYSTEM: str = sys.platform
_FIXED_FILE_INFO = struct.pack("<II", 0xFEEF04BD, 0x00010000)
"""Signature and version that begin a VS_FIXEDFILEINFO, the numbers of a Windows file's version resource."""


def load_runtime(provider: str) -> ModuleType:
    """Import ONNX Runtime and make sure that it has the provider.

    Raises:
        CannotOpen: DirectML on another system than Windows, or an ONNX Runtime without the provider; the message
            says what to install.
        ImportError: no ONNX Runtime; the message says what to install.
    """
    if provider == DIRECTML and SYSTEM != "win32":
        raise CannotOpen(
            "DirectML runs on Windows only (10 version 1903 or newer, any DirectX 12 GPU); there, "
            "pip install 'tensorpost[directml]'"
        )
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        extra = "'tensorpost[directml]'" if provider == DIRECTML else PACKAGES[CPU][0]
        raise ImportError(f"ONNX Runtime cannot be imported ({error}): pip install {extra}", name=error.name) from None
    available: list[str] = runtime.get_available_providers()
    if provider not in available:
        hint = (
            "the plain package onnxruntime stands in the way: pip uninstall onnxruntime, then "
            "pip install --force-reinstall onnxruntime-directml"
            if provider == DIRECTML
            else "choose one of these"
        )
        raise CannotOpen(f"this ONNX Runtime has no {provider}, only {', '.join(available)}; {hint}")
    return runtime


def package_of(provider: str) -> str:
    """The package that ONNX Runtime came from, with its version, as in `onnxruntime-directml 1.24.4`."""
    for name in PACKAGES.get(provider, PACKAGES[CPU]):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "onnxruntime of an unknown package"


def session_options(runtime: ModuleType, provider: str) -> Any:
    """Options of a session of one node on this provider.

    DirectML's provider demands sequential execution and no memory pattern (ONNX Runtime, DirectML execution provider).
    ONNX Runtime's silent fallback to the CPU for nodes that the provider does not take is switched off.
    """
    options = runtime.SessionOptions()
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.intra_op_num_threads = 1  # else every session has an idle thread pool
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised as exceptions
    if provider != CPU:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def adapters(runtime: ModuleType) -> list[dict[str, object]]:
    """The devices that ONNX Runtime finds on this machine; an empty list for versions that cannot list them."""
    find = getattr(runtime, "get_ep_devices", None)
    if find is None:
        return []
    return [
        {
            "provider": str(found.ep_name),
            "type": str(found.device.type),
            "vendor": str(found.device.vendor),
            "vendor_id": int(found.device.vendor_id),
            "device_id": int(found.device.device_id),
            "metadata": dict(found.device.metadata),
        }
        for found in find()
    ]


def directml_version(runtime: ModuleType) -> str | None:
    """The file version of the DirectML.dll that the package brings; None if it brings none."""
    path = Path(str(runtime.__file__)).parent / "capi" / "DirectML.dll"
    return file_version(path.read_bytes()) if path.is_file() else None


def file_version(content: bytes) -> str | None:
    """The version in a Windows file's version resource, as in `1.15.4.0`; None if there is none."""
    at = content.find(_FIXED_FILE_INFO)
    if at < 0 or at + 16 > len(content):
        return None
    high, low = struct.unpack_from("<II", content, at + 8)
    return f"{high >> 16}.{high & 0xFFFF}.{low >> 16}.{low & 0xFFFF}"
