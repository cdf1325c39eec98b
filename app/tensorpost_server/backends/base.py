"""The interface of a backend, which opens a device and runs plans on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from tensorpost.values.layout import Layout

from ..planning import Plan


class CannotOpen(RuntimeError):
    """Why a device cannot be used: a sentence that says what to install or to change. People read it as it is."""


MOST_DIRECTML_SECONDS = 600.0


AWAY_PART = 1 / 8
"""The part of a device's memory that processes have together which use it only for calls that name it."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the settings say about opening devices.

    Attributes:
        threads: slices computed at the same time, by backend; 1 for a backend that is not named.
        cuda_memory_bytes: memory that requests may use on one CUDA device; None for most of what is free on it.
        cuda_pinned_bytes: page-locked host memory for each CUDA device.
        directml_debug: turn on the debug layers of Direct3D 12 and DirectML, whose messages then stand in errors.
        directml_seconds: the most time that one operator may take with DirectML, seconds; then the device is hung.
        place: which of the server's processes this is.
        processes: how many processes use the devices.
    """

    threads: Mapping[str, int] = field(default_factory=dict[str, int])
    cuda_memory_bytes: int | None = None
    cuda_pinned_bytes: int = 0
    directml_debug: bool = False
    directml_seconds: float = MOST_DIRECTML_SECONDS
    place: int = 0
    processes: int = 1

    def is_home(self, index: int, devices: int) -> bool:
        """Whether this process uses a device, of so many, for calls that name none."""
        among = min(devices, self.processes)
        return index % among == self.place % among

    def memory_part(self, index: int, devices: int) -> float:
        """The part of a device's memory that this process may take. The processes that prefer others have an eighth."""
        among = min(devices, self.processes)
        homes = sum(place % among == index % among for place in range(self.processes))
        others = self.processes - homes
        if not others:
            return 1 / homes
        return (1 - AWAY_PART) / homes if self.is_home(index, devices) else AWAY_PART / others


class Run(Protocol):
    """One plan with its inputs, on one device.

    Parts of a stage may be prepared at the same time, when the stage before it has been finished. The first slice
    prepares what was not prepared before.
    """

    def parts(self, stage: int) -> int:
        """How many parts the stage is prepared in; 0 if this device computes it with a later stage or the slices."""
        ...

    def prepare(self, stage: int, part: int) -> Sequence[tuple[int, float]]:
        """Compute a part of a stage of the plan, now; errors are those of `compute`.

        Returns:
            The steps that were computed with it, each with the seconds that it took, where the stages before it waited
            for this one; empty otherwise.
        """
        ...

    def finish(self, stage: int) -> None:
        """End a stage, whose parts are all prepared.

        Takes long only if the stage has computed indices, which are compared with the axis that a later step uses them
        on (`Stage.checked`).

        Raises:
            InvalidDescriptor: one is outside.
        """
        ...

    def compute(self, index: int) -> memoryview:
        """Slice `index` of the plan in host memory, computed now; `plan.slices.piece(index).computed` bytes.

        Slices are asked for in order, but up to `Backend.threads` of them at the same time. The memory belongs to the
        caller; nothing writes to it again.

        Raises:
            OutOfDeviceMemory: not even a small part of the slice fits on the device now.
            DeviceLost: the device failed permanently.
        """
        ...

    def close(self) -> None:
        """Release everything that the run holds; nothing reads the inputs afterwards.

        Called once, after the last `compute` has returned.
        """
        ...


class RunWithoutStages:
    """Base of runs that compute everything with the slices: their part of `Run` that is the same for all."""

    __slots__ = ()

    def parts(self, stage: int) -> int:
        """See `Run.parts`: none."""
        return 0

    def prepare(self, stage: int, part: int) -> Sequence[tuple[int, float]]:
        """See `Run.prepare`: there is no part."""
        return ()

    def finish(self, stage: int) -> None:
        """See `Run.finish`: nothing was computed yet."""


class Backend(Protocol):
    """A device that runs plans.

    All but `refusal_reason`, `library`, `held_bytes`, `host_memory` and `gauges` is called by its worker alone.
    """

    @property
    def name(self) -> str:
        """The backend's name in requests and answers: `numpy`, `null`."""
        ...

    @property
    def index(self) -> int:
        """Which of the backend's devices it is, from 0."""
        ...

    @property
    def device(self) -> str:
        """Which device it is, in printable ASCII; it travels in a header."""
        ...

    @property
    def threads(self) -> int:
        """How many slices it may compute at the same time."""
        ...

    @property
    def inline(self) -> bool:
        """Whether a small plan may run on any thread, the event loop's too, and is done there within microseconds.

        True for processors, which work on the caller's memory. False for devices that have memory of their own, for
        which `auto` weighs both transfers (`Pool.choose`).
        """
        ...

    def refusal_reason(self, plan: Plan) -> str | None:
        """Why this backend cannot run the plan exactly; None if it can. Has no side effects and takes microseconds."""
        ...

    def library(self, plan: Plan) -> str:
        """What computes the plan instead of the backend's own code: `numpy`, `onnxruntime`; empty if that code does.

        Answers name it after the backend, so that nobody measures another library by mistake. Takes microseconds.
        """
        ...

    def held_bytes(self, plan: Plan) -> int:
        """Ordinary memory that a run of this plan holds beside its inputs and the slices not yet sent, bytes."""
        ...

    def host_memory(self, size_in_bytes: int) -> memoryview | None:
        """Writable host memory for a request's tensor, of the kind that the device reads fastest; content undefined.

        None if there is none, or no room in it; then use ordinary memory.

        It is in use for as long as this view, or any made from it, exists. Never blocks for long: it is called on the
        event loop's thread.
        """
        ...

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> Run:
        """Make the inputs, which stay valid and unchanged until the run is closed, ready to be computed on.

        Raises:
            OutOfDeviceMemory: they do not fit on the device now.
            DeviceLost: the device failed permanently.
        """
        ...

    def gauges(self) -> Mapping[str, int]:
        """Quantities in use now, bytes or counts by name, for people and monitors. Never raises."""
        ...

    def trim(self) -> None:
        """Free memory that is kept for reuse; called when nothing has run for a while."""
        ...

    def close(self) -> None:
        """Close the device."""
        ...


def plain_memory(size_in_bytes: int) -> memoryview:
    """Writable memory of the ordinary kind; its content is undefined."""
    return np.empty(size_in_bytes, np.uint8).data


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device that another process shares with this one. It is only copied from and to.

    Attributes:
        address: address of its first byte on the device.
        nbytes: how many bytes.
    """

    address: int
    nbytes: int

    def part(self, begin: int, size_in_bytes: int) -> DeviceMemory:
        """Some of its bytes.

        Raises:
            ValueError: they do not lie in it.
        """
        if not 0 <= begin <= begin + size_in_bytes <= self.nbytes:
            raise ValueError(f"{size_in_bytes} bytes from {begin} on do not lie in {self.nbytes}")
        return DeviceMemory(self.address + begin, size_in_bytes)


@dataclass(frozen=True, slots=True)
class ExportedMemory:
    """A copy of a tensor that other processes may open.

    Attributes:
        handle: what they open it by, 64 bytes (`cudaIpcMemHandle_t`); the tensor is at the begin of that memory.
        address: its address in this process.
        nbytes: the tensor's bytes.
    """

    handle: bytes
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class KeptMemory:
    """Host memory of an input that stays as it is beyond the run: a device may keep a copy for the next one.

    Attributes:
        data: its bytes; the same object each time.
    """

    data: memoryview

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.data.nbytes


RunInput: TypeAlias = memoryview | DeviceMemory | KeptMemory
"""Bytes of an input of a run."""


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """A backend that can use memory of its device that other processes share. Called by its worker alone."""

    def open_memory(self, handle: bytes) -> DeviceMemory:
        """Open memory of another process, from the begin of the handle's memory to the end of its allocation.

        Raises:
            InvalidRequest: the handle is of no memory that can be opened on this device.
        """
        ...

    def close_memory(self, memory: DeviceMemory) -> None:
        """Close memory that `open_memory` returned; called once for each call of that."""
        ...

    def download(self, source: DeviceMemory, target: memoryview) -> None:
        """Copy bytes to host memory of the same length."""
        ...

    def upload(self, source: memoryview, target: DeviceMemory) -> None:
        """Copy bytes from host memory of the same length."""
        ...

    @property
    def bus_id(self) -> str:
        """The address of the device on the PCI bus, as `0000:1b:00.0`: other processes may number devices otherwise."""
        ...

    def export_copy(self, layout: Layout, data: memoryview) -> ExportedMemory:
        """A copy of memory that stays, for other processes; it takes memory of the device until `end_export`.

        Raises:
            InsufficientStorage: there would be more exports than the device may have.
            OutOfDeviceMemory: the device has no room for it.
            NoBackend: memory of this device cannot be shared.
        """
        ...

    def end_export(self, exported: ExportedMemory) -> None:
        """Free what `export_copy` returned; called once for each."""
        ...

    def has_copy(self, data: memoryview) -> bool:
        """Whether a copy of these bytes, of a `KeptMemory`, is on the device now. May be called on any thread."""
        ...

    def start(
        self, plan: Plan, inputs: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None = None,
    ) -> Run:  # fmt: skip
        """`Backend.start` where inputs and outputs may be in shared memory.

        Args:
            plan: what to run.
            inputs: bytes in host memory, or shared memory of this device, which is copied within the device; of
                `KeptMemory` a copy stays on the device.
            targets: memory for the bytes of each output, None for an output that nobody wants; `compute` then returns
                nothing. Outputs have no gaps. None for slices in host memory.
        """
        ...


class HostBackend:
    """Base of backends that compute in ordinary memory: their part of `Backend` that is the same for all."""

    __slots__ = ()

    threads: int
    index = 0
    """There is one."""
    inline = True
    """A small plan is done before another thread would have woken up."""

    def refusal_reason(self, plan: Plan) -> str | None:
        """None: it runs every plan."""
        return None

    def library(self, plan: Plan) -> str:
        """Empty: the backend's own code computes every plan that it does not refuse."""
        return ""

    def held_bytes(self, plan: Plan) -> int:
        """Outputs that are computed together, by one thread, and the scratch memory of what is computed at a time."""
        several = plan.split_scratch_bytes * min(self.threads, max(1, plan.most_parts))
        return plan.held_bytes + max(plan.scratch_bytes, several)

    def host_memory(self, size_in_bytes: int) -> memoryview | None:
        """Always None: the device reads ordinary memory."""
        return None

    def gauges(self) -> Mapping[str, int]:
        """No figures: processors have none to show."""
        return {}

    def trim(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""
