"""The devices that can run plans. `BACKENDS` is the whole list, in the order `auto` prefers them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from .base import (
    Backend,
    CannotOpen,
    DeviceMemory,
    DeviceOptions,
    ExportedMemory,
    HostBackend,
    KeptMemory,
    Run,
    RunInput,
    RunWithoutStages,
    SharingBackend,
)

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendRow",
    "CannotOpen",
    "DeviceMemory",
    "DeviceOptions",
    "ExportedMemory",
    "HostBackend",
    "KeptMemory",
    "Run",
    "RunInput",
    "RunWithoutStages",
    "SharingBackend",
    "load_backend",
]


@dataclass(frozen=True, slots=True)
class BackendRow:
    """How a backend is imported, and what `auto` may do with it.

    Attributes:
        target: `module:Class` inside this package, imported only when the backend is opened.
        auto: whether `auto` may choose it.
        summary: what it is, in a few words.
        several: whether it may have several devices; its class then has `open_all(options)`, which yields the index of
            each device with the opened backend, or with a `CannotOpen`.
    """

    target: str
    auto: bool
    summary: str
    several: bool = False


BACKENDS: Mapping[str, BackendRow] = {
    "cuda": BackendRow("cuda.backend:CudaBackend", auto=True, summary="NVIDIA GPUs, through CuPy", several=True),
    "directml": BackendRow("directml:DirectmlBackend", auto=True, summary="GPUs on Windows", several=True),
    "numba": BackendRow("numba_:NumbaBackend", auto=True, summary="the CPU, through loops compiled ahead; optional"),
    "numpy": BackendRow("numpy_:NumpyBackend", auto=True, summary="the CPU, through NumPy; always available"),
    "null": BackendRow("null:NullBackend", auto=False, summary="returns zeros; for measuring everything else"),
}


def load_backend(name: str) -> type[Backend]:
    """Import a backend's class. Opens no device.

    Raises:
        KeyError: no such backend.
        ImportError: its library is not installed.
    """
    module, _, attribute = BACKENDS[name].target.partition(":")
    return getattr(importlib.import_module(f".{module}", __name__), attribute)
