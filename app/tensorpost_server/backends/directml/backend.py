"""The backend `directml`: runs a plan as one node, whole, and hands its bytes out slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.layout import Layout

from ...planning import Plan
from ..base import HostBackend
from .express import express
from .model import Node
from .runtime import CPU, DIRECTML, directml_version, load_runtime, package_of
from .sessions import Session, Sessions

__all__ = ["DirectmlBackend"]

MOST_BYTES = 256 << 20
"""Bytes of a plan's output, and of its input: a node's output is made whole, in device memory and in host memory that
admission does not count. Longer ones are NumPy's, which streams them."""


class DirectmlBackend(HostBackend):
    """Runs what one node of ONNX Runtime's DirectML provider can express.

    Strided tensors are packed and unpacked here: a session knows packed ones only.

    Args:
        threads: what the pool gives every backend. More than one would wait for each other at the session's lock, so
            the attribute `threads` is 1 whatever is given.
        provider: the execution provider. With ONNX Runtime's CPU provider the same sessions run on any system; that
            is for tests and for `tensorpost probe-directml`.
        device_id: DXGI's index of the adapter.
        most_bytes: bytes of an output, or of an input, beyond which a plan is refused.

    Raises:
        CannotOpen: not Windows, or an ONNX Runtime without the provider; the message says what to install.
        ImportError: no ONNX Runtime.
    """

    name = "directml"
    threads = 1
    inline = False

    def __init__(
        self, threads: int = 1, *, provider: str = DIRECTML, device_id: int = 0, most_bytes: int = MOST_BYTES
    ) -> None:
        del threads  # see above
        runtime = load_runtime(provider)
        self._most_bytes = most_bytes
        self._sessions = Sessions(runtime, provider, device_id)
        if provider == DIRECTML:
            library = directml_version(runtime)
            where = f"adapter {device_id} (DirectML {library or 'of the system'}, {package_of(provider)})"
        else:
            where = f"{'cpu' if provider == CPU else provider} ({package_of(provider)}, no DirectML)"
        self.device = where.encode("ascii", "replace").decode()

    def refuses(self, plan: Plan) -> str | None:
        """See `Backend.refuses`: what one node cannot express, and what the provider has not taken before."""
        if 0 in plan.outputs[0].layout.sizes:
            return None  # there is nothing to compute
        longest = max(plan.output_bytes, plan.input_bytes)
        if longest > self._most_bytes:
            return f"it moves {longest:,} bytes, and directml makes an output whole; its limit is {self._most_bytes:,}"
        node = express(plan)
        return node if isinstance(node, str) else self._sessions.refusal(node)

    def held_bytes(self, plan: Plan) -> int:
        """The output, which a session makes whole."""
        return plan.output_bytes

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DirectmlRun:
        """Make the session if it is not there, and upload the input.

        Raises:
            NoBackend: the provider does not take the node; `refuses` says so from now on.
            OutOfDeviceMemory: the device has no memory for it.
            ServerFault: the device failed.
            ValueError: the plan is one that `refuses` refuses.
        """
        if 0 in plan.outputs[0].layout.sizes:
            return DirectmlRun(plan, self._sessions, None, None)
        node = express(plan)
        if isinstance(node, str):
            raise ValueError(f"directml refuses this plan: {node}")
        session = self._sessions.get(node)
        array = plan.inputs[0].layout.view(inputs[0])
        packed = _elements(node, array)
        return DirectmlRun(plan, self._sessions, session, self._sessions.upload(session, packed))

    def close(self) -> None:
        """Drop every session, and with them the device."""
        self._sessions.clear()


@dataclass(slots=True)
class DirectmlRun:
    """A plan with its input on the device, and its output once the first slice was asked for."""

    plan: Plan
    sessions: Sessions
    session: Session | None
    value: Any
    whole: NDArray[Any] | None = None

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`. Slices of a packed output are read-only views of the whole."""
        plan, piece = self.plan, self.plan.slices.piece(index)
        if self.whole is None:
            assert self.session is not None  # an output without elements has no slices
            self.whole = self.sessions.run(self.session, self.value)
        layout = plan.outputs[0].layout
        if layout.packed:
            flat = self.whole.reshape(-1).view(np.uint8).data
            return flat[piece.begin : piece.begin + piece.computed].toreadonly()
        block = np.zeros(piece.computed, np.uint8)
        sizes = tuple([stop - start for start, stop in piece.box])
        part = Layout(layout.data_type, sizes, layout.strides, piece.computed, packed=False)
        whole = self.whole.reshape(-1).view(np.uint8).view(layout.data_type.dtype).reshape(layout.sizes)
        part.view(block)[...] = whole[tuple([slice(*span) for span in piece.box])]
        return block.data

    def close(self) -> None:
        """Let go of the input and of the device's memory that holds it."""
        self.session = self.value = self.whole = None


def _elements(node: Node, array: NDArray[Any]) -> NDArray[Any]:
    """The elements packed, as the node's type and shape. No copy if they are packed already."""
    packed = np.ascontiguousarray(array).reshape(-1)
    return packed.view(np.uint8).view(node.data_type.dtype).reshape(node.shape)
