"""A cache of ONNX Runtime sessions of one node each, bounded in number and in bytes; one run at a time per session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.problems import NoBackend, OutOfDeviceMemory, ServerFault

from .model import Node, model_bytes
from .runtime import DIRECTML, session_options

__all__ = ["Session", "Sessions"]

MOST_SESSIONS = 64
"""Sessions in the cache. A session holds compiled shaders; creating one takes milliseconds."""
MOST_SESSION_BYTES = 1 << 30
"""Input and output bytes of all cached sessions: DirectML's provider keeps a session's buffers for its next run."""
MOST_REFUSALS = 1024
"""Nodes in the negative cache: those that the provider did not take, with the reason."""

_LOST = ("887A0005", "887A0006", "887A0007", "887A0020", "DEVICE_REMOVED", "DEVICE_HUNG", "DEVICE_RESET")
"""DXGI_ERROR_DEVICE_REMOVED, _HUNG, _RESET and _DRIVER_INTERNAL_ERROR, as they stand in ONNX Runtime's messages."""
_NO_MEMORY = ("8007000E", "OUT_OF_MEMORY", "Failed to allocate memory", "bad allocation")
"""E_OUTOFMEMORY, in the same messages."""


@dataclass(slots=True)
class Session:
    """One session and its lock: ONNX Runtime lets one thread at a time run a session of DirectML's provider.

    Attributes:
        node: the node of its model.
        device: ONNX Runtime's name of the device, `dml` or `cpu`, and its index.
    """

    node: Node
    device: tuple[str, int]
    _runtime: ModuleType
    _session: Any
    _lock: Lock = field(default_factory=Lock)

    @property
    def bytes_kept(self) -> int:
        """Bytes of the inputs and outputs, which the provider keeps on the device."""
        return sum([tensor.size_in_bytes for tensor in (*self.node.fed.values(), *self.node.outputs)])

    def upload(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """The inputs on the device, to be run on as often as needed. On the CPU they are the arrays' own memory."""
        return [self._runtime.OrtValue.ortvalue_from_numpy(array, *self.device) for array in arrays]

    def run(self, values: Sequence[Any]) -> list[NDArray[Any]]:
        """The outputs in new host memory."""
        outputs = [np.empty(tensor.shape, tensor.data_type.dtype) for tensor in self.node.outputs]
        with self._lock:
            binding = self._session.io_binding()
            for name, value in zip(self.node.fed, values, strict=True):
                binding.bind_ortvalue_input(name, value)
            for name, out in zip(self.node.made, outputs, strict=True):
                binding.bind_output(name, "cpu", 0, out.dtype, out.shape, out.ctypes.data)
            self._session.run_with_iobinding(binding)
        return outputs


class Sessions:
    """The sessions of one device.

    Args:
        runtime: the module `onnxruntime`.
        provider: the execution provider.
        device_id: DirectML's adapter index; unused on the CPU.
        most: sessions kept.
        most_bytes: bytes they may keep on the device together; the newest stays whatever its size.
    """

    def __init__(
        self,
        runtime: ModuleType,
        provider: str,
        device_id: int,
        *,
        most: int = MOST_SESSIONS,
        most_bytes: int = MOST_SESSION_BYTES,
    ) -> None:
        self._runtime, self._provider, self._device_id = runtime, provider, device_id
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[Node, Session] = OrderedDict()
        self._refusals: OrderedDict[Node, str] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def refusal(self, node: Node) -> str | None:
        """Why the provider did not take this node; None if it was not asked, or took it."""
        return self._refusals.get(node)

    def get(self, node: Node) -> Session:
        """The node's session, made now if it is not there.

        Raises:
            NoBackend: the provider does not take the node; from now on `refusal` says so.
            OutOfDeviceMemory: the device has no memory for it.
            ServerFault: the device was lost.
        """
        with self._lock:
            session = self._kept.get(node)
            if session is None:
                session = self._make(node)
                self._kept[node] = session
            self._kept.move_to_end(node)
            while len(self._kept) > 1 and self._too_many():
                self._kept.popitem(last=False)
            return session

    def run(self, session: Session, values: Sequence[Any]) -> list[NDArray[Any]]:
        """`session.run`, with the provider's exceptions translated.

        Raises:
            OutOfDeviceMemory: the device has no memory for it.
            ServerFault: the device failed; all sessions are dropped, and the next request creates its own again.
        """
        try:
            return session.run(values)
        except Exception as error:
            raise self._failed(session.node, error) from error

    def upload(self, session: Session, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """`session.upload`, with the same errors as `run`."""
        try:
            return session.upload(arrays)
        except Exception as error:
            raise self._failed(session.node, error) from error

    def clear(self) -> None:
        """Drop every session."""
        with self._lock:
            self._kept.clear()

    def _too_many(self) -> bool:
        total = sum(session.bytes_kept for session in self._kept.values())
        return len(self._kept) > self._most or total > self._most_bytes

    def _make(self, node: Node) -> Session:
        options: Mapping[str, str] = {"device_id": str(self._device_id)} if self._provider == DIRECTML else {}
        try:
            made = self._runtime.InferenceSession(
                model_bytes(node),
                session_options(self._runtime, self._provider),
                providers=[(self._provider, options)],
                enable_fallback=False,  # else the Python class tries the CPU after an error, and prints so
            )
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            if _mentions(said, _LOST) or _mentions(said, _NO_MEMORY):
                self._kept.clear()
                raise _problem(node, said) from error
            self._refusals[node] = f"{self._provider} does not take this {node.op_type}: {said}"
            if len(self._refusals) > MOST_REFUSALS:
                self._refusals.popitem(last=False)
            raise NoBackend(
                f"directml: {self._refusals[node]}; ask for another backend, or for auto",
                extra={"refused": {"directml": self._refusals[node]}},
            ) from error
        device = ("dml", self._device_id) if self._provider == DIRECTML else ("cpu", 0)
        return Session(node, device, self._runtime, made)

    def _failed(self, node: Node, error: Exception) -> ServerFault | OutOfDeviceMemory:
        """Drop every session, since a lost device invalidates all of them."""
        self.clear()
        return _problem(node, " ".join(str(error).split())[:300])


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    return any(word.lower() in text.lower() for word in words)


def _problem(node: Node, said: str) -> ServerFault | OutOfDeviceMemory:
    if _mentions(said, _NO_MEMORY):
        return OutOfDeviceMemory(
            f"the DirectML device has no memory for this {node.op_type}; send it again, or in parts"
        )
    what = "was lost" if _mentions(said, _LOST) else "failed"
    return ServerFault(f"the DirectML device {what} in a {node.op_type}: {said}")
