"""A stand-in for the module `onnxruntime` that records how it is used and fails on demand."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["FakeRuntime"]


@dataclass
class FakeRuntime:
    """What the backend uses of ONNX Runtime; sessions fill their outputs with bytes of 1.

    Attributes:
        providers: what `get_available_providers` says.
        fails_to_make: raised by every new session, if given.
        fails_to_run: raised by every run, if given.
        made: the arguments of each session.
        uploads: type and index of the device of each upload.
        most_at_once: most runs at the same time in one session.
    """

    providers: list[str] = field(default_factory=lambda: ["DmlExecutionProvider", "CPUExecutionProvider"])
    fails_to_make: Exception | None = None
    fails_to_run: Exception | None = None
    made: list[tuple[bytes, Any, Any]] = field(default_factory=list[Any])
    uploads: list[tuple[Any, ...]] = field(default_factory=list[Any])
    most_at_once: int = 0
    __file__: str = "nowhere/__init__.py"

    def __post_init__(self) -> None:
        self.ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL="sequential", ORT_PARALLEL="parallel")
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self._upload)

    def get_available_providers(self) -> list[str]:
        return self.providers

    def SessionOptions(self) -> Any:
        options = SimpleNamespace(entries={})
        options.add_session_config_entry = options.entries.__setitem__
        return options

    def InferenceSession(self, model: bytes, options: Any, *, providers: Any, enable_fallback: bool) -> _Session:
        assert not enable_fallback, "ONNX Runtime's Python class would go on with the CPU"
        if self.fails_to_make is not None:
            raise self.fails_to_make
        self.made.append((model, options, providers))
        return _Session(self)

    def _upload(self, array: Any, *device: Any) -> Any:
        self.uploads.append(device)
        return array


class _Session:
    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime, self.inside, self.lock = runtime, 0, threading.Lock()

    def io_binding(self) -> _Binding:
        return _Binding()

    def run_with_iobinding(self, binding: _Binding) -> None:
        with self.lock:
            self.inside += 1
            self.runtime.most_at_once = max(self.runtime.most_at_once, self.inside)
        threading.Event().wait(0.002)
        with self.lock:
            self.inside -= 1
        if self.runtime.fails_to_run is not None:
            raise self.runtime.fails_to_run
        binding.fill()


class _Binding:
    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[tuple[int, int]] = []

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        assert name == f"I{len(self.inputs)}", "in order, by their names in the model"
        self.inputs.append(value)

    def bind_output(self, name: str, device: str, index: int, dtype: Any, shape: Any, address: int) -> None:
        assert (name, device, index) == (f"O{len(self.outputs)}", "cpu", 0)
        self.outputs.append((address, np.dtype(dtype).itemsize * int(np.prod(shape))))

    def fill(self) -> None:
        for address, size in self.outputs:
            ctypes.memset(address, 1, size)
