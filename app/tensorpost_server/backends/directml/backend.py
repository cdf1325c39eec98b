"""The backend `directml`: a plan's descriptor goes to DirectML as it is; its outputs are read back slice by slice."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tensorpost.descriptors import OperatorDesc
from tensorpost.values.problems import DeviceLost, NoBackend, OutOfDeviceMemory, ServerFault

from ...forms.base import extents
from ...planning import Plan
from ..base import MOST_DIRECTML_SECONDS, CannotOpen, DeviceOptions, HostBackend, RunWithoutStages, plain_memory
from ..device_run import elements_of
from . import d3d12
from .com import ComError
from .device import Device, adapters
from .device_buffers import Buffer
from .directml_dll import Libraries, open_libraries
from .index_data import limited
from .operators import REFUSED_SECONDS, CompiledOperators, Descriptors, GraphDescs, dispatch

SHARE_OF_MEMORY = 0.75
"""The share of an adapter's memory that is used; the rest is for shaders, the screen, and other processes."""

PARTIAL_OUTPUT_FIELDS = frozenset({"output_count_tensor", "past_sequence_lengths_tensor"})
"""Fields whose tensors an operator has if it leaves some bytes of its outputs as they were. These are zeros here, and
nobody else's numbers."""


class DirectmlBackend(HostBackend):
    """One adapter of this Windows machine, opened.

    Args:
        index: DXGI's index of the adapter.
        threads: what the pool gives every backend. A device is used by one thread, so the attribute `threads` is 1
            whatever is given.
        libraries: where DXGI, Direct3D 12 and DirectML are; None for this machine's.
        debug: whether the debug layers are turned on; see `Device`.
        most_seconds: how long one operator may take; see `Device`.

    Raises:
        CannotOpen: not Windows, no DirectML, or no such adapter; the message says what to do.
    """

    name = "directml"
    threads = 1
    inline = False

    def __init__(
        self, index: int = 0, threads: int = 1, *, libraries: Libraries | None = None, debug: bool = False,
        most_seconds: float = MOST_DIRECTML_SECONDS,
    ) -> None:  # fmt: skip
        libraries = open_libraries() if libraries is None else libraries
        try:
            self._device = device = Device(libraries, index, debug=debug, most_seconds=most_seconds)
        except ComError as error:
            raise CannotOpen(f"adapter {index} cannot be opened for DirectML: {error}") from error
        self.index = index
        self._libraries = libraries
        self._lost: str | None = None
        self._descriptors = Descriptors(device)
        self._graphs = GraphDescs(self._descriptors)
        self._operators = CompiledOperators(device)
        adapter = device.adapter
        self.memory_bytes = int((adapter.dedicated_bytes or adapter.shared_bytes) * SHARE_OF_MEMORY)
        words = f"directml:{index} {adapter.description} (DirectML {libraries.version or '?'}, level {device.level})"
        self.device = "".join(c if c.isascii() and c.isprintable() else "?" for c in words)

    @classmethod
    def open_all(cls, options: DeviceOptions) -> Iterator[tuple[int, DirectmlBackend | CannotOpen]]:
        """Every adapter of this machine, opened, or why it could not be.

        Raises:
            CannotOpen: there is nothing to look at: not Windows, no DirectML, no adapter.
        """
        libraries = open_libraries()
        try:
            found = adapters(libraries)
        except ComError as error:
            raise CannotOpen(f"the adapters cannot be listed: {error}") from error
        if not found:
            raise CannotOpen("Windows shows no graphics adapter to this process")
        for adapter in found:
            if adapter.software:
                yield (
                    adapter.index,
                    CannotOpen(
                        f"{adapter.description} is a software adapter on the processor; use the backend numpy or numba"
                    ),
                )
                continue
            debug, most_seconds = options.directml_debug, options.directml_seconds
            try:
                made = cls(adapter.index, libraries=libraries, debug=debug, most_seconds=most_seconds)
                yield adapter.index, made
            except CannotOpen as error:
                yield adapter.index, error

    def refusal_reason(self, plan: Plan) -> str | None:
        """Why the plan cannot run: no such operator here, refused before, or too large; None if it can run."""
        if len(plan.slices) == 0:
            return None  # there is nothing to compute
        needed = plan.input_bytes + plan.constant_bytes + plan.output_bytes
        if needed > self.memory_bytes:
            return f"its tensors need {needed:,} bytes of device memory, and this server may use {self.memory_bytes:,}"
        found = self._graphs.get(plan) if plan.is_graph else self._descriptors.get(plan.operation)
        return found if isinstance(found, str) else None

    def held_bytes(self, plan: Plan) -> int:
        """0: outputs exist whole in device memory only."""
        return 0

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DirectmlRun:
        """Copy the inputs to the device and submit the operator; it may still be under way when this returns.

        Raises:
            InvalidDescriptor: an index is outside of its axis, and the operator writes elements; see `index_data.py`.
            NoBackend: DirectML does not take the descriptor; `refusal_reason` says so for `REFUSED_SECONDS`.
            OutOfDeviceMemory: the device has no memory for it now.
            DeviceLost: the device was removed.
            ValueError: the plan is one that `refusal_reason` refuses.
        """
        run = DirectmlRun(self, plan)
        if len(plan.slices) == 0:
            return run
        if plan.is_graph:
            self._start_graph(run, plan, inputs)
            return run
        desc = self._descriptors.get(plan.operation)
        if isinstance(desc, str):
            raise ValueError(f"directml refuses this plan: {desc}")
        inputs = limited(desc, inputs)
        with self.errors():
            try:
                operator = self._operators.get(desc)
            except ComError as error:
                self._refuse(plan, error)
                raise
            run.outputs = dispatch(self._device, operator, inputs, clear=_leaves_bytes(desc))
        return run

    def _start_graph(self, run: DirectmlRun, plan: Plan, inputs: Sequence[memoryview]) -> None:
        """Submit a graph, which DirectML compiles as a whole."""
        desc = self._graphs.get(plan)
        if isinstance(desc, str):
            raise ValueError(f"directml refuses this graph: {desc}")
        blocks = [*desc.limited(inputs), *[each.data for each in desc.constants]]
        with self.errors():
            try:
                graph = self._operators.get_graph(desc)
            except ComError as error:
                self._refuse(plan, error)
                raise
            bound = [block for block, size in zip(blocks, graph.inputs, strict=True) if size is not None]
            outputs = dispatch(self._device, graph, bound, clear=any(_leaves_bytes(node) for node in desc.nodes))
            wanted = len(plan.outputs)
            self.give(outputs[wanted:])
            run.outputs = outputs[:wanted]

    def gauges(self) -> Mapping[str, int]:
        """Bytes of device memory, and how many operators are compiled."""
        return {
            "device_memory_limit_bytes": self.memory_bytes,
            "device_memory_held_bytes": self._device.buffers.kept_bytes + self._device.buffers.lent_bytes,
            "device_memory_used_bytes": self._device.buffers.lent_bytes,
            "compiled_operators": len(self._operators),
        }

    def trim(self) -> None:
        """Free the device memory that is kept for the next request. Compiled operators stay."""
        with self.errors():
            self._device.buffers.trim()

    def close(self) -> None:
        """Give the device back."""
        self._operators.clear()
        self._device.close()

    # ---- for the runs ------------------------------------------------------------------------------------------------

    def read(self, buffer: Buffer, begin: int, size: int) -> memoryview:
        """Bytes of a buffer in new memory."""
        memory = plain_memory(size)
        with self.errors():
            self._device.queue.read(buffer, begin, memory)
        return memory

    def give(self, buffers: Sequence[Buffer]) -> None:
        """Take buffers back."""
        for buffer in buffers:
            self._device.buffers.give(buffer)

    @contextmanager
    def errors(self) -> Generator[None]:
        """Turn Direct3D's and DirectML's errors into ours.

        Raises:
            OutOfDeviceMemory: Direct3D or DirectML answers E_OUTOFMEMORY.
            DeviceLost: the device was removed, and answers nothing any more.
            ServerFault: any other error.
        """
        if self._lost is not None:
            raise DeviceLost(self._lost)
        try:
            yield
        except ComError as error:
            said = "; ".join(filter(None, (str(error), self._device.messages())))
            if error.code == d3d12.E_OUTOFMEMORY:
                raise OutOfDeviceMemory(
                    f"{self.device} does not have enough free memory for this request now; send it again, or send "
                    "smaller tensors"
                ) from error
            if error.code in d3d12.LOST:
                self._lost = f"{self.device} failed permanently: {d3d12.LOST[error.code]} ({said})"
                raise DeviceLost(self._lost) from error
            raise ServerFault(f"{self.device} failed: {said}") from error

    def _refuse(self, plan: Plan, error: ComError) -> None:
        """Remember and say that DirectML does not take an operator; other errors are the device's.

        Raises:
            NoBackend: it does not take it.
        """
        if error.code != d3d12.E_OUTOFMEMORY and error.code not in d3d12.LOST:
            reason = f"DirectML {self._libraries.version or ''} does not take this {plan.operator}: {error}"
            if plan.is_graph:
                self._graphs.refuse(plan, reason)
            else:
                self._descriptors.refuse(plan.operation, reason)
            raise NoBackend(
                f"directml: {reason}; ask for another backend, or for auto. It is tried again after "
                f"{REFUSED_SECONDS / 60:g} minutes", extra={"refused": {"directml": reason}},
            ) from error  # fmt: skip


def _leaves_bytes(desc: OperatorDesc) -> bool:
    """Whether an operator leaves some bytes of its outputs as they were.

    Of four bits, all bytes of the tensor are the output's, those after its elements too.
    """
    partial = any(path[0] in PARTIAL_OUTPUT_FIELDS for path, _ in desc.tensors())
    return partial or any(tensor.data_type.bits == 4 for _, tensor in desc.tensors("output"))


@dataclass(slots=True, eq=False)
class DirectmlRun(RunWithoutStages):
    """A plan whose operator was submitted.

    Attributes:
        backend: where it runs.
        plan: what runs.
        outputs: the outputs in device memory.
    """

    backend: DirectmlBackend
    plan: Plan
    outputs: list[Buffer] = field(default_factory=list[Buffer])

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`: the slice's bytes are read back; what lies between elements becomes zeros."""
        piece = self.plan.slices.piece(index)
        layout, buffer = self.plan.outputs[piece.output].layout, self.outputs[piece.output]
        block = self.backend.read(buffer, piece.begin, piece.computed)
        if layout.packed:
            return block
        clean, sizes = np.zeros(piece.computed, np.uint8), extents(piece.box)
        elements_of(np, clean, layout, sizes)[...] = elements_of(np, np.frombuffer(block, np.uint8), layout, sizes)
        return clean.data

    def close(self) -> None:
        """Let go of the device's memory."""
        self.backend.give(self.outputs)
        self.outputs = []
