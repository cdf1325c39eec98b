"""CuPy and the driver: whether they are here, and what to install if they are not."""

from __future__ import annotations

import importlib
from typing import Any

from tensorpost.values.extras import install_command

from ..base import CannotOpen
from . import kernel_files

INSTALL = (
    f"{install_command('cuda13')} (drivers from 580 on), or with cuda12 (drivers from 525 on); "
    "nvidia-smi shows the driver"
)

# CUDA Runtime API, cudaError.
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100


def import_cupy() -> Any:
    """CuPy, able to compile.

    Raises:
        CannotOpen: it is not here, lacks the compiler, or a folder to write to.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        what = "is not installed" if getattr(error, "name", None) == "cupy" else f"cannot be imported ({error})"
        raise CannotOpen(f"CuPy {what}: {INSTALL}") from error
    except OSError:  # it makes its folder when it is imported
        kernel_files.check_writable()
        raise
    kernel_files.check_writable()
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        # CuPy looks for the library when it is first needed; what it raises has changed from version to version.
        raise CannotOpen(f"CuPy finds no NVRTC to compile kernels with: {INSTALL}") from error
    try:
        importlib.import_module("cupy_backends.cuda.libs.cublas")  # CuPy imports it when it first multiplies matrices
    except ImportError as error:
        raise CannotOpen(f"CuPy finds no cuBLAS to multiply matrices with: {INSTALL}") from error
    return cupy


def device_count(cupy: Any) -> int:
    """How many devices CUDA shows to this process; at least 1.

    Raises:
        CannotOpen: none, or there is no driver that could.
    """
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == INSUFFICIENT_DRIVER:
            driver, ours = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
            if driver == 0:
                raise CannotOpen(
                    "no NVIDIA driver was found: install one, or start the container with the GPUs "
                    "(docker run --gpus all)"
                ) from error
            raise CannotOpen(
                f"the NVIDIA driver is too old: it supports CUDA {_version(driver)} and CuPy needs {_version(ours)}; "
                f"update it, or {INSTALL}"
            ) from error
        if error.status != NO_DEVICE:
            raise CannotOpen(f"CUDA cannot list its devices: {error}; nvidia-smi may show the cause") from error
        count = 0
    if count == 0:
        raise CannotOpen(
            "CUDA shows no device to this process: nvidia-smi lists what the driver sees, and CUDA_VISIBLE_DEVICES "
            "may hide it; containers need docker run --gpus all"
        )
    return count


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
