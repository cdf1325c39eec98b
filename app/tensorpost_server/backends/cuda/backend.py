"""One NVIDIA GPU through CuPy.

Inputs go up on a stream of their own, out of page-locked memory that the request body was received into. Every thread
of the worker has a stream on which it computes a slice and brings it down, so that with two threads one slice is
computed while the other is on the bus. A slice that finds no memory is made in smaller parts. Forms that compute all
outputs together are computed once for a run, and slices are copied from what they gave.

CuPy is imported when a device is opened, and by nothing else.
"""

from __future__ import annotations

import importlib
import itertools
import math
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tensorpost.values.layout import Layout
from tensorpost.values.problems import DeviceLost, OutOfDeviceMemory

from ...forms import Array, BoxFunction, Lines, SqueezedLines
from ...forms.base import Box, extents, whole_box
from ...forms.convolutions import add_bias, convolution_of
from ...planning import OutputSlice, Plan, PlanStep
from ..base import CannotOpen, DeviceMemory, DeviceOptions, ExportedMemory, RunInput, plain_memory
from ..device_run import SMALLEST_PART, DeviceRun, KeptArray, RunMemory, bytes_of, elements_of, outputs_of
from ..timeline import is_timed, next_phase
from .captured_plans import CapturedPlans, CapturedRun
from .cuda_library import device_count, import_cupy
from .cudnn import Cudnn, takes
from .device_copies import DeviceCopies
from .exports import Exports
from .ipc import SharedAllocations
from .pinned import PinnedMemory

WORKER_THREADS = 2
"""One slice is computed while another is on the bus; a third would only wait."""

SHARE_OF_FREE = 0.75
"""The share of a device's memory that is used; the rest is for CuPy's kernels, the context, and other processes."""

# CUDA Runtime API, cudaError: the driver's errors have the same numbers.
NO_MEMORY = 2
DEVICES_UNAVAILABLE = 46
LOST: Mapping[int, str] = {
    # Each description there ends with "this leaves the process in an inconsistent state and any further CUDA work will
    # return the same error. To continue using CUDA, the process must be terminated and relaunched", or says as much.
    214: "an uncorrectable memory error (ECC)",
    220: "an uncorrectable NVLink error",
    226: "a contained memory error",
    700: "a kernel touched memory that is not its own",
    702: "a kernel ran longer than the system allows",
    709: "its context is gone",
    710: "an assertion failed in a kernel",
    714: "a hardware stack error",
    715: "an illegal instruction",
    716: "a misaligned address",
    717: "an address in the wrong space",
    718: "an invalid program counter",
    719: "a kernel failed to launch or to finish",
    721: "a kernel left tensor memory taken",
    911: "an external device failed",
    999: "an unknown error of the driver",
}


class CudaBackend:
    """One device, opened.

    Args:
        index: which device, as CUDA counts those that it shows to this process.
        threads: slices computed at the same time.
        memory_bytes: device memory to take at most; None for three quarters of what is free now.
        pinned_bytes: page-locked host memory for request bodies and slices.
        part: the part of both that this process may take.

    Raises:
        CannotOpen: there is no CuPy, no driver, no such device, or no memory left on it.
    """

    name = "cuda"
    inline = False

    def __init__(
        self,
        index: int = 0,
        threads: int = WORKER_THREADS,
        memory_bytes: int | None = None,
        pinned_bytes: int = 64 << 20,
        part: float = 1.0,
    ) -> None:
        self.cupy = cupy = import_cupy()
        compute: Any = importlib.import_module(f"{__package__}.compute")  # it needs CuPy to be imported
        self._fill, self._fill_keeping, self._forget = compute.fill, compute.fill_keeping, compute.clear_caches
        count = device_count(cupy)
        if not 0 <= index < count:
            raise CannotOpen(
                f"there is no CUDA device {index}: this process sees {count}, counted from 0 "
                "(the variable CUDA_VISIBLE_DEVICES decides which)"
            )
        self.index = index
        self.threads = max(threads, WORKER_THREADS)
        self.device = f"cuda:{index}"
        self._lost: str | None = None
        self._lanes = threading.local()
        self._shared = SharedAllocations(cupy)
        self._copies = DeviceCopies(self._put_copy)
        self._captured = CapturedPlans(self)
        self.cudnn = _cudnn()
        try:
            properties = cupy.cuda.runtime.getDeviceProperties(index)
            raw: Any = properties["name"]
            text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
            self.device = f"cuda:{index} {''.join(c for c in text if c.isascii() and c.isprintable())}"
            with cupy.cuda.Device(index):
                free, self._total = (int(n) for n in cupy.cuda.runtime.memGetInfo())
                most = free * SHARE_OF_FREE if memory_bytes is None else min(memory_bytes, free)
                self.memory_bytes, pinned_bytes = int(most * part), int(pinned_bytes * part)
                if self.memory_bytes < 2 * SMALLEST_PART:
                    raise CannotOpen(self._nothing_left(free))
                self._pool = cupy.cuda.MemoryPool()
                self._pool.set_limit(size=self.memory_bytes)
                self._exports = Exports(cupy, self._pool, self.memory_bytes, self._make_room)
                self.bus_id = str(cupy.cuda.runtime.deviceGetPCIBusId(index))
                self._uploads = cupy.cuda.Stream(non_blocking=True)
                block = cupy.cuda.alloc_pinned_memory(pinned_bytes) if pinned_bytes else bytearray()
                self._pinned = PinnedMemory(block, pinned_bytes)
        except _cuda_errors(cupy) as error:
            raise CannotOpen(self._why_not(error, pinned_bytes)) from error

    @classmethod
    def open_all(cls, options: DeviceOptions) -> Iterator[tuple[int, CudaBackend | CannotOpen]]:
        """Every device that CUDA shows to this process, opened, or why it could not be.

        Raises:
            CannotOpen: there is nothing to look at: no CuPy, no driver, no device.
        """
        count = device_count(import_cupy())
        for index in range(count):
            try:
                yield (
                    index,
                    cls(
                        index,
                        options.threads.get(cls.name, WORKER_THREADS),
                        options.cuda_memory_bytes,
                        options.cuda_pinned_bytes,
                        options.memory_part(index, count),
                    ),
                )
            except CannotOpen as error:
                yield index, error

    def refusal_reason(self, plan: Plan) -> str | None:
        """Strings, and a plan whose inputs never fit into the memory that may be taken.

        A small part of an output must fit beside them, or all outputs where they are computed together.
        """
        if any(slot.layout.data_type.item_size == 0 for slot in (*plan.inputs, *plan.outputs)):
            return "strings have no fixed size, and arrays of them exist only in host memory"
        if plan.libraries:
            return f"{plan.libraries[0]} computes it, in host memory"
        for step in plan.steps:
            by_arrays = isinstance(step.form, (Lines, SqueezedLines, BoxFunction, Array))
            types = [slot.layout.data_type for slot in (*step.inputs, *step.outputs)]
            if unknown := [row.numpy_name for row in types if row.is_small]:
                return f"{unknown[0]} is computed in host memory"
            if by_arrays and any(row.in_ml_dtypes for row in types):
                return "CuPy's array functions do not compute bfloat16"
        needed = plan.input_bytes + plan.constant_bytes + plan.held_bytes + SMALLEST_PART
        if needed > self.memory_bytes:
            what = "its inputs, constants and intermediate results" if plan.held_bytes else "its inputs"
            return (
                f"{what} need {needed:,} bytes of device memory, and this server may take {self.memory_bytes:,} "
                "(setting TENSORPOST_CUDA_MEMORY_BYTES)"
            )
        return None

    def library(self, plan: Plan) -> str:
        """cuDNN, if it computes a convolution; what a library computes in ordinary memory is refused."""
        if self.cudnn is None:
            return ""
        for step in plan.steps:
            form = convolution_of(step.form)
            if form is not None and takes(form, step.inputs[0].layout.data_type.numpy_name):
                return "cudnn"
        return ""

    def held_bytes(self, plan: Plan) -> int:
        """0: outputs exist in ordinary memory in slices; those computed together are device memory."""
        return 0

    def host_memory(self, size_in_bytes: int) -> memoryview | None:
        """Page-locked memory as long as there is room in what was locked at the start."""
        return self._pinned.lend(size_in_bytes)

    def start(
        self, plan: Plan, inputs: Sequence[RunInput], targets: Sequence[DeviceMemory | None] | None = None
    ) -> DeviceRun | CapturedRun:
        """Begin to copy the inputs to the device; the copies may still be under way when it returns.

        A small plan that comes again is computed at once, in one launch, unless its phases are timed.
        """
        if targets is None and not is_timed():
            run = self._captured.start(plan, inputs)
            if run is not None:
                return run
        return DeviceRun(self, plan, inputs, targets)

    def new_run(self, plan: Plan, inputs: Sequence[RunInput]) -> DeviceRun:
        """A run in the usual way, step by step."""
        return DeviceRun(self, plan, inputs)

    def gauges(self) -> Mapping[str, int]:
        """Bytes of device memory and of page-locked host memory, how often the latter had no room; copies that stay."""
        found = {
            "device_memory_bytes": self._total,
            "device_memory_limit_bytes": self.memory_bytes,
            "pinned_bytes": self._pinned.size_in_bytes,
            "pinned_used_bytes": self._pinned.lent,
            "pinned_misses": self._pinned.misses,
            "device_exported_bytes": self._exports.size_in_bytes,
            "device_copies": self._copies.count,
            "device_copy_bytes": self._copies.size_in_bytes,
            "device_copies_dropped_total": self._copies.dropped,
            "device_copies_uploaded_again_total": self._copies.uploaded_again,
        }
        if self._lost is None:
            with suppress(*_cuda_errors(self.cupy)), self.cupy.cuda.Device(self.index):
                found |= {
                    "device_memory_free_bytes": int(self.cupy.cuda.runtime.memGetInfo()[0]),
                    "device_memory_held_bytes": int(self._pool.total_bytes()),
                    "device_memory_used_bytes": int(self._pool.used_bytes()),
                }
        return found

    def trim(self) -> None:
        """Free the device memory that is kept for the next request, plans and tables of taps among it."""
        with self.working(self.lane()):
            self._captured.clear()
            self._forget()
            self._pool.free_all_blocks()

    def close(self) -> None:
        """Free what is kept. Nothing is asked of a device that was lost."""
        if self._lost is None:
            with suppress(*_cuda_errors(self.cupy)), self.cupy.cuda.Device(self.index):
                self._uploads.synchronize()
                self._captured.clear()
                self._copies.clear()
                self._shared.close_all()
                self._exports.free_all()
                self._pool.free_all_blocks()

    # ---- memory of other processes -----------------------------------------------------------------------------------

    def open_memory(self, handle: bytes) -> DeviceMemory:
        with self.working(self._uploads):
            return self._shared.open(handle, self.device)

    def close_memory(self, memory: DeviceMemory) -> None:
        with self.working(self._uploads):
            self._shared.close(memory)

    def export_copy(self, layout: Layout, data: memoryview) -> ExportedMemory:
        """See `SharingBackend.export_copy`: copied within the device if it is there."""
        stream, kept = self.lane(), self._copies.find(layout, data)
        runtime, size = self.cupy.cuda.runtime, layout.data_size_in_bytes
        if kept is None:
            source, kind = _host_address(data), runtime.memcpyHostToDevice
        else:
            source, kind = kept.array.data.ptr, runtime.memcpyDeviceToDevice

        def fill(address: int) -> None:
            runtime.memcpyAsync(address, source, size, kind, stream.ptr)

        with self.working(stream):
            return self._exports.make(size, fill, stream)

    def end_export(self, exported: ExportedMemory) -> None:
        with self.working(self.lane()):
            self._exports.free(exported)

    def download(self, source: DeviceMemory, target: memoryview) -> None:
        self._move(_host_address(target), source.address, target.nbytes, self.cupy.cuda.runtime.memcpyDeviceToHost)

    def upload(self, source: memoryview, target: DeviceMemory) -> None:
        self._move(target.address, _host_address(source), source.nbytes, self.cupy.cuda.runtime.memcpyHostToDevice)

    def _move(self, target: int, source: int, size_in_bytes: int, kind: int) -> None:
        stream = self.lane()
        with self.working(stream):
            try:
                self.cupy.cuda.runtime.memcpyAsync(target, source, size_in_bytes, kind, stream.ptr)
            finally:
                stream.synchronize()

    # ---- for the runs ------------------------------------------------------------------------------------------------

    def put(self, layouts: Sequence[Layout], blocks: Sequence[RunMemory]) -> tuple[list[Any], Any]:
        """Arrays of device memory, and the event after the last upload; nothing is kept of what fails."""
        with self.working(self._uploads):
            rooms = [self.room(block.nbytes) for block in blocks]
            uploaded = self.cupy.cuda.Event(disable_timing=True)
            arrays: list[Any] = []
            try:
                for layout, block, room in zip(layouts, blocks, rooms, strict=True):
                    self.copy(room, block, up=True, stream=self._uploads)
                    used, sizes = room[: layout.data_size_in_bytes], layout.sizes
                    if used.size:
                        arrays.append(elements_of(self.cupy, used, layout, sizes))
                    else:
                        arrays.append(self.cupy.empty(sizes, layout.data_type.dtype))
                uploaded.record(self._uploads)
                if is_timed():
                    self._uploads.synchronize()
            except BaseException:
                self._uploads.synchronize()  # the caller's memory must not be read once it is told
                raise
            return arrays, uploaded if arrays else None

    def put_kept(self, layout: Layout, data: memoryview) -> KeptArray:
        """The array of memory that stays: uploaded once, and freed with that memory or when memory is short."""
        return self._copies.get(layout, data)

    def _put_copy(self, layout: Layout, data: memoryview) -> Any:
        ((array,), _) = self.put([layout], [data])
        with self.working(self._uploads):
            self._uploads.synchronize()
        return array

    def has_copy(self, data: memoryview) -> bool:
        return self._copies.has_copy(data)

    @property
    def xp(self) -> Any:
        return self.cupy

    @property
    def splits_stages(self) -> bool:
        return False

    def compute(self, step: PlanStep, inputs: Sequence[Any], uploaded: Any) -> list[Any]:
        with self._session(uploaded):
            return self.outputs(step, inputs)

    def compute_together(self, calls: Sequence[Callable[[], None]], uploaded: Any) -> list[float]:
        marks: list[Any] = []

        def mark(stream: Any) -> None:
            marks.append(self.cupy.cuda.Event())
            marks[-1].record(stream)

        with self._session(uploaded) as stream:
            mark(stream)
            self._lanes.is_waited_for = True
            try:
                for call in calls:
                    call()
                    mark(stream)
            finally:
                self._lanes.is_waited_for = False
        elapsed = self.cupy.cuda.get_elapsed_time
        return [elapsed(begin, end) / 1e3 for begin, end in itertools.pairwise(marks)]

    def outputs(self, step: PlanStep, inputs: Sequence[Any], keep: list[Any] | None = None) -> list[Any]:
        """All outputs of a step, computed on the current stream.

        Args:
            step: the step.
            inputs: its operands.
            keep: takes what its kernels read beside them, which a captured plan must keep.
        """
        if step.form.computed_whole:
            convolution = convolution_of(step.form)
            if self.cudnn is not None and convolution is not None:
                made = self.cudnn.convolve(self.cupy, convolution, *inputs[:2])
                if made is not None:
                    return [made if len(inputs) == 2 else add_bias(made, inputs[2])]
            return outputs_of(self.cupy, step, inputs)
        outputs: list[Any] = []
        for index, slot in enumerate(step.outputs):
            sizes = slot.layout.sizes
            out = elements_of(self.cupy, self.room(slot.layout.size_in_bytes), slot.layout, sizes)
            if out.size:
                box = whole_box(sizes)
                if keep is None:
                    self._fill(step.form, inputs, box, out, index)
                else:
                    self._fill_keeping(keep, step.form, inputs, box, out, index)
            outputs.append(out)
        return outputs

    def compute_box(self, step: PlanStep, inputs: Sequence[Any], uploaded: Any, box: Box) -> Any:
        sizes, made = extents(box), step.outputs[0].layout
        with self._session(uploaded):
            block = self.room(math.prod(sizes) * made.data_type.item_size)
            out = block.view(made.data_type.dtype).reshape(sizes)
            self._fill(step.form, inputs, box, out, 0)
            return out

    def streams(self, plan: Plan) -> bool:
        """Only where the results do not fit in full: on an H100, boxes of 2 MiB take 1.3 to 3.5 times as long."""
        needed = plan.input_bytes + plan.constant_bytes + plan.held_bytes + plan.streamed_bytes + SMALLEST_PART
        return needed > self.memory_bytes

    def in_host_memory(self, array: Any) -> Any:
        with self._session(None):
            return self.cupy.asnumpy(array)

    def compute_slice(
        self, step: PlanStep, inputs: Sequence[Any], uploaded: Any, piece: OutputSlice, target: RunMemory | None
    ) -> memoryview:
        layout = step.outputs[piece.output].layout
        with self._session(uploaded) as stream:
            block = self.room(piece.computed)
            if not layout.packed:
                block.fill(0)
            out = elements_of(self.cupy, block, layout, extents(piece.box))
            self._fill(step.form, inputs, piece.box, out, piece.output)
            return self._brought(block, target, stream)

    def take(self, part: Any, layout: Layout, piece: OutputSlice, target: RunMemory | None) -> memoryview:
        with self._session(None) as stream:
            block = bytes_of(self.cupy, part, layout, piece)  # a name, so that it is there until the copy is done
            return self._brought(block, target, stream)

    @contextmanager
    def _session(self, uploaded: Any) -> Generator[Any]:
        """The stream of this thread, on which everything inside is done once the inputs are there, and at the end.

        Within `compute_together`, that is for its session to see to.
        """
        stream = self.lane()
        if getattr(self._lanes, "is_waited_for", False):
            yield stream
            return
        next_phase("kernel")
        with self.working(stream):
            try:
                if uploaded is not None:
                    stream.wait_event(uploaded)
                yield stream
            finally:
                # Blocks are used again when they are freed, targets are the caller's, and other streams read outputs.
                stream.synchronize()

    def _brought(self, block: Any, target: RunMemory | None, stream: Any) -> memoryview:
        """Copy bytes to the target; without one, to page-locked memory as long as there is room in it."""
        if is_timed():
            stream.synchronize()
            next_phase("download")
        if target is None:
            target = self.host_memory(block.nbytes) or plain_memory(block.nbytes)
        self.copy(block, target, up=False, stream=stream)
        return memoryview(b"") if isinstance(target, DeviceMemory) else target

    def release(self, uploaded: Any) -> None:
        with self.working(self.lane()):
            uploaded.synchronize()

    def lane(self) -> Any:
        """The stream of this thread."""
        if not hasattr(self._lanes, "stream"):
            with self.working(self._uploads):
                self._lanes.stream = self.cupy.cuda.Stream(non_blocking=True)
        return self._lanes.stream

    @contextmanager
    def working(self, stream: Any, allocator: Callable[[int], Any] | None = None) -> Generator[None]:
        """This device, stream and memory for everything that CuPy does inside; its errors become ours.

        Args:
            stream: the stream.
            allocator: takes device memory; default `take_memory`.

        Raises:
            OutOfDeviceMemory: the device has too little memory, even after the kept memory was freed.
            DeviceLost: the device answers nothing any more after an error.
        """
        if self._lost is not None:
            raise DeviceLost(self._lost)
        cuda = self.cupy.cuda
        try:
            with cuda.Device(self.index), stream, cuda.using_allocator(allocator or self.take_memory):
                yield
        except cuda.memory.OutOfMemoryError as error:
            raise self._out_of_memory() from _without_frames(error)
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            if error.status == NO_MEMORY:
                raise self._out_of_memory() from _without_frames(error)
            if error.status in LOST:
                self._lost = f"{self.device} failed permanently: {LOST[error.status]} ({error})"
                raise DeviceLost(self._lost) from error
            raise

    def room(self, size_in_bytes: int) -> Any:
        """Device memory with undefined content, as an array of bytes; what is kept is freed before it gives up."""
        return self.cupy.empty(size_in_bytes, np.uint8)

    def take_memory(self, size_in_bytes: int) -> Any:
        """Device memory within the limit, for CuPy; what is kept is freed before it gives up."""
        out_of_memory = self.cupy.cuda.memory.OutOfMemoryError
        with suppress(out_of_memory):
            return self._pool.malloc(size_in_bytes)
        for _ in self._make_room(size_in_bytes):
            # The pool counts what it keeps against its limit, and frees that by itself only if the device has no more.
            self._pool.free_all_blocks()
            with suppress(out_of_memory):
                return self._pool.malloc(size_in_bytes)
        return self._pool.malloc(size_in_bytes)

    def _make_room(self, size_in_bytes: int) -> Iterator[int]:
        """Give back what is kept, the cheapest to make again first; yields each time after something was given back."""
        yield 0  # blocks of the pool that nobody has
        left = self.memory_bytes - self._exports.size_in_bytes - int(self._pool.used_bytes())
        missing = max(1, size_in_bytes - left)
        yield from self._copies.give_way(missing)
        self._captured.clear()
        yield 0
        yield from self._copies.give_way(missing)  # those that only captured plans read

    def copy(self, block: Any, memory: RunMemory, *, up: bool, stream: Any) -> None:
        """Copy between a caller's memory and an array of as many bytes on the device, after what the stream does.

        Page-locked memory is copied without the processor; it must not be touched until the stream is through.
        """
        if memory.nbytes:
            runtime = self.cupy.cuda.runtime
            if isinstance(memory, DeviceMemory):
                at, kind = memory.address, runtime.memcpyDeviceToDevice
            else:
                at, kind = _host_address(memory), runtime.memcpyHostToDevice if up else runtime.memcpyDeviceToHost
            target, source = (block.data.ptr, at) if up else (at, block.data.ptr)
            runtime.memcpyAsync(target, source, memory.nbytes, kind, stream.ptr)

    def _out_of_memory(self) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(
            f"{self.device} has no room for this request now, even in small slices: this server may take "
            f"{self.memory_bytes:,} bytes of it (setting TENSORPOST_CUDA_MEMORY_BYTES), and other processes may use "
            "it as well; try again, or name another backend"
        )

    def _nothing_left(self, free: int) -> str:
        return (
            f"no memory is left on {self.device}: {free:,} bytes are free; nvidia-smi shows which process uses the rest"
            "; stop it, or exclude this device by CUDA_VISIBLE_DEVICES"
        )

    def _why_not(self, error: Any, pinned_bytes: int) -> str:
        status = getattr(error, "status", None)
        if status == NO_MEMORY and hasattr(self, "_uploads"):
            return (
                f"{pinned_bytes:,} bytes of host memory could not be page-locked for {self.device}; "
                "lower TENSORPOST_CUDA_PINNED_BYTES, or raise the limit of locked memory (ulimit -l)"
            )
        if status == NO_MEMORY:
            return self._nothing_left(0)
        if status == DEVICES_UNAVAILABLE:
            return (
                f"{self.device} is busy: another process uses it exclusively; nvidia-smi shows which one, stop that "
                "process"
            )
        return f"{self.device} could not be opened: {error}; nvidia-smi may show the cause"


def _host_address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]


def _cudnn() -> Cudnn | None:
    try:
        return Cudnn()
    except OSError:
        return None  # convolutions are products of matrices then


def _without_frames(error: BaseException) -> BaseException:
    """The error without its traceback.

    Frames there hold the device memory of what has failed, and from Python 3.12 on they are in a reference cycle with
    the error, through `contextlib`, so that the memory would be free only when the garbage collector runs.
    """
    return error.with_traceback(None)


def _cuda_errors(cupy: Any) -> tuple[type[Exception], ...]:
    cuda = cupy.cuda
    return (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError)
