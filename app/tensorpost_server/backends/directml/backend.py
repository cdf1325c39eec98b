"""The backend `directml`: runs a plan as one ONNX node, whole, and gives its outputs slice by slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...planning import Plan
from ..base import HostBackend
from ..numpy_ import new_block
from .runtime import CPU, DIRECTML, directml_version, load_runtime, package_of
from .sessions import Session, Sessions
from .to_onnx import to_onnx

__all__ = ["DirectmlBackend"]

MOST_BYTES = 256 << 20
"""Bytes of a plan's outputs, and of its inputs: outputs are made whole, in device memory and in host memory. Larger
plans are for the backends that stream."""


class DirectmlBackend(HostBackend):
    """Runs what one node of ONNX Runtime's DirectML provider computes.

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
        """See `Backend.refuses`: what one node cannot compute, and what the provider has not taken before."""
        if len(plan.slices) == 0:
            return None  # there is nothing to compute
        longest = max(plan.output_bytes, plan.input_bytes)
        if longest > self._most_bytes:
            return f"it moves {longest:,} bytes, and directml makes outputs whole; its limit is {self._most_bytes:,}"
        node = to_onnx(plan)
        return node if isinstance(node, str) else self._sessions.refusal(node)

    def held_bytes(self, plan: Plan) -> int:
        """The outputs, which a session makes whole."""
        return plan.output_bytes

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DirectmlRun:
        """Make the session if it is not there, and upload the inputs.

        Raises:
            NoBackend: the provider does not take the node; `refuses` says so from now on.
            OutOfDeviceMemory: the device has no memory for it.
            ServerFault: the device failed.
            ValueError: the plan is one that `refuses` refuses.
        """
        if len(plan.slices) == 0:
            return DirectmlRun(plan, self._sessions, None, [])
        node = to_onnx(plan)
        if isinstance(node, str):
            raise ValueError(f"directml refuses this plan: {node}")
        session = self._sessions.get(node)
        arrays: list[NDArray[Any]] = []
        for slot, memory, tensor in zip(plan.inputs, inputs, node.fed.values(), strict=True):
            array, dtype = slot.layout.view(memory), tensor.data_type.dtype
            # The node of an ELEMENT_WISE_IF takes bool; all other bits travel in integers.
            arrays.append(_converted(array != 0 if dtype.kind == "b" else array, dtype, tensor.shape))
        return DirectmlRun(plan, self._sessions, session, self._sessions.upload(session, arrays))

    def close(self) -> None:
        """Drop every session, and with them the device."""
        self._sessions.clear()


@dataclass(slots=True)
class DirectmlRun:
    """A plan with its inputs on the device, and its outputs once the first slice was asked for."""

    plan: Plan
    sessions: Sessions
    session: Session | None
    values: list[Any]
    outputs: list[NDArray[Any]] | None = None

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`. Slices of a packed output are read-only views of the whole."""
        piece = self.plan.slices.piece(index)
        if self.outputs is None:
            assert self.session is not None  # outputs without elements have no slices
            made = self.sessions.run(self.session, self.values)
            self.outputs = [
                _converted(array, slot.layout.data_type.dtype, slot.layout.sizes)
                for array, slot in zip(made, self.plan.outputs, strict=True)
            ]
        layout, whole = self.plan.outputs[piece.output].layout, self.outputs[piece.output]
        if layout.packed:
            return whole.reshape(-1).view(np.uint8).data[piece.begin : piece.begin + piece.computed].toreadonly()
        block, out = new_block(layout, piece)
        out[...] = whole[tuple([slice(*span) for span in piece.box])]
        return block.data

    def close(self) -> None:
        """Let go of the inputs and of the device's memory that holds them."""
        self.session, self.values, self.outputs = None, [], None


def _converted(array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor packed, as the other side of a session has it: the same bytes, or the same numbers in another size.

    No copy if the tensor is packed and keeps its bytes.
    """
    packed = np.ascontiguousarray(array).reshape(-1)
    if packed.nbytes != math.prod(shape) * dtype.itemsize:
        packed = packed.astype(dtype)
    return packed.view(np.uint8).view(dtype).reshape(shape)
