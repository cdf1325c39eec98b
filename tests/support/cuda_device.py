"""Whether the tests that need an NVIDIA device can run here."""

from __future__ import annotations

__all__ = ["missing_device"]


def missing_device() -> str | None:
    """Why there is no NVIDIA device for CuPy, as a reason to skip; None if there is one."""
    try:
        import cupy  # pyright: ignore[reportMissingImports] # an extra of its own, not installed for development
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"there is no NVIDIA device that CuPy can use: {error}"
    return None if count else "there is no NVIDIA device"
