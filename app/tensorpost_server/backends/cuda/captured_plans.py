"""Small plans that come again, captured as CUDA graphs.

A captured plan is one launch of all its kernels, and of small tensors of the copies of the inputs to the device and of
the outputs back, between memory that belongs to it. In the usual way every kernel is launched from Python, which takes
longer than a small kernel. Products of cuBLAS cannot be captured: they are computed between two launches.

Source: CUDA Driver API, "Graph Management".
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput, Ref
from tensorpost.values.layout import Layout

from ...forms import Form
from ...planning import Plan, PlanStep
from ..base import RunInput, RunWithoutStages, plain_memory
from ..device_run import RunMemory, as_operand, elements_of

MOST_BYTES = 1 << 20
"""Most bytes of the outputs together, which are no slices then; and of the inputs together of a plan of few steps."""
MOST_INPUT_BYTES = 64 << 20
"""Most bytes of the inputs together of a plan of many steps: above, their copies take the time."""
MANY_STEPS = 8
MOST_WORK = 1 << 39
"""Most work of a plan, which nothing interrupts: some tens of milliseconds of an H100."""
STAGED_BYTES = 256 << 10
"""Bytes of the inputs and of the outputs together, up to which their copies are part of the launch, by way of
page-locked memory that belongs to the captured plan; larger ones are copied from where they are."""
MOST_SHARE, MOST_SHARE_EACH = 8, 32
"""Parts of the device's memory that captured plans may take together, an eighth, and one of them, a thirty-second."""
RUNS_BEFORE = 3
"""Runs of a plan before it is captured: capturing takes as long as some runs, and most plans come once."""
MOST_CAPTURED = 64
"""Plans that are captured; beyond, the one that ran least recently is forgotten."""
_MOST_COUNTED = 1024

# CUDA Driver API, CUgraphNodeType.
_KERNEL, _COPY, _MEMSET, _EMPTY = 0, 1, 2, 5
# CUDA Driver API, CUmemorytype and CUpointer_attribute.
_ON_HOST, _ON_DEVICE, _MEMORY_TYPE = 1, 2, 2
# CUDA Runtime API, cudaError: the stream cannot be captured, or what was done with it cannot.
_CAPTURE_ERRORS = range(900, 909)


class CapturingDevice(Protocol):
    """What a captured plan needs of the backend: see `CudaBackend`."""

    cupy: Any
    memory_bytes: int

    def lane(self) -> Any:
        """The stream of this thread."""
        ...

    def working(self, stream: Any, allocator: Any = None) -> Any:
        """The context of this device; see `CudaBackend.working`."""
        ...

    def take_memory(self, size_in_bytes: int) -> Any:
        """Device memory within the limit."""
        ...

    def room(self, size_in_bytes: int) -> Any:
        """An array of bytes."""
        ...

    def host_memory(self, size_in_bytes: int) -> memoryview | None:
        """Page-locked memory; None if there is no room."""
        ...

    def copy(self, block: Any, memory: RunMemory, *, up: bool, stream: Any) -> None:
        """Copy between host memory and the device, in the stream's order."""
        ...

    def put(self, layouts: Sequence[Layout], blocks: Sequence[RunMemory]) -> tuple[list[Any], Any]:
        """Arrays on the device."""
        ...

    def put_kept(self, layout: Layout, data: memoryview) -> Any:
        """The array of a stored graph's constant."""
        ...

    def outputs(self, step: PlanStep, inputs: Sequence[Any], keep: list[Any] | None = None) -> list[Any]:
        """All outputs of a step, computed on the current stream; `keep` takes what its kernels read beside them."""
        ...


class CannotCapture(Exception):
    """The plan is computed in the usual way."""


class _StepCallsLibrary(Exception):
    """A step that cannot be captured, but may be computed between two launches.

    Attributes:
        step: its place in the plan.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class _StepAlone(NamedTuple):
    """A step that is computed between two launches.

    Attributes:
        step: the step.
        read: the arrays that it reads, which the launch before it has filled.
        results: the arrays that the next launch reads.
    """

    step: PlanStep
    read: list[Any]
    results: list[Any]

    def compute(self, device: CapturingDevice) -> None:
        """Compute it, on the current stream."""
        for array, result in zip(
            device.outputs(self.step, _operands(device.cupy, self.step, self.read)), self.results, strict=True
        ):
            result[...] = array


class CapturedPlan:
    """One plan, captured; one run at a time.

    Args:
        device: the backend.
        plan: the plan, small and without indices that are checked between its steps.

    Raises:
        CannotCapture: some of its nodes are no kernels, or there is no page-locked memory for it.
    """

    def __init__(self, device: CapturingDevice, plan: Plan) -> None:
        self._device = device
        # What the run takes is used again within it, in the stream's order, and by nothing else.
        self._memory = device.cupy.cuda.MemoryPool(device.take_memory)
        self._kept: list[Any] = []
        layouts = plan.input_layouts
        sizes = [layout.size_in_bytes for layout in layouts]
        self._staged: list[memoryview] = []
        if sum(sizes) <= STAGED_BYTES and plan.output_bytes <= STAGED_BYTES:
            self._staged = self._host_parts([*sizes, *[slot.layout.size_in_bytes for slot in plan.outputs]])
        stream = device.lane()
        constants = [
            device.put_kept(slot.layout, data) if isinstance(data, memoryview) else self._constant(slot.layout, data)
            for slot, data in plan.graph.constants
            if plan.is_graph
        ]
        with device.working(stream, self._memory.malloc):
            self._inputs = [device.room(size) for size in sizes]
            inputs = [
                elements_of(device.cupy, room[: layout.data_size_in_bytes], layout, layout.sizes)
                for room, layout in zip(self._inputs, layouts, strict=True)
            ]
            alone = set[int]()
            while True:
                try:
                    self._parts = self._captured(plan, [*inputs, *constants], alone, stream)
                    break
                except _StepCallsLibrary as error:
                    same = _function_of(plan.steps[error.step].form)
                    alone |= {at for at, step in enumerate(plan.steps) if _function_of(step.form) == same}
                    if 2 * len(alone) > len(plan.steps):
                        raise CannotCapture from error
        self._kept.append(constants)
        self._lock = threading.Lock()

    def _captured(
        self, plan: Plan, arrays: Sequence[Any], alone: Container[int], stream: Any
    ) -> list[_StepAlone | Any]:
        """CuPy's graphs of the steps, and between them the steps that cannot be captured.

        Args:
            plan: the plan.
            arrays: its inputs and constants.
            alone: the steps that are computed by themselves.
            stream: the current stream.
        """
        count = len(self._inputs)
        made: dict[NodeOutput, Any] = {}
        parts: list[_StepAlone | Any] = []

        def array_of(source: Ref) -> Any:
            match source:
                case GraphInput(index):
                    return arrays[index]
                case GraphConstant(index):
                    return arrays[len(plan.inputs) + index]
                case NodeOutput():
                    return made[source]

        outputs = plan.output_sources if plan.is_graph else [NodeOutput(0, at) for at in range(len(plan.outputs))]
        last_read = _last_read(plan, outputs)
        stream.begin_capture()
        try:
            self._copy_all(self._inputs, self._staged[:count], up=True, stream=stream)
            for number, step in enumerate(plan.steps):
                read = [*arrays] if not plan.is_graph else [array_of(source) for source in step.sources]
                if number in alone:
                    parts.append(self._end(stream))
                    results = [_room_of(self._device, slot.layout) for slot in step.outputs]
                    parts.append(_StepAlone(step, read, results))
                    stream.begin_capture()
                else:
                    results = self._results(number, step, read if plan.is_graph else None, read)
                made |= {NodeOutput(number, index): array for index, array in enumerate(results)}
                for ref in last_read.get(number, ()):
                    del made[ref]
            results = [made[ref] for ref in outputs]
            self._outputs = [self._packed(array) for array in results]
            self._copy_all(self._outputs, self._staged[count:], up=False, stream=stream)
        except BaseException:
            _ended(self._device.cupy, stream)
            raise
        self._kept.append(results)
        return [*parts, self._end(stream)]

    def _results(self, number: int, step: PlanStep, operands: Sequence[Any] | None, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a step while a stream is captured.

        Args:
            number: its place in the plan.
            step: the step.
            operands: the arrays that it reads by its layouts; None if it reads its inputs as they are.
            inputs: its inputs.
        """
        try:
            if operands is not None:
                inputs = _operands(self._device.cupy, step, operands)
            return self._device.outputs(step, inputs, self._kept)
        except NotImplementedError as error:  # CuPy calls no cuBLAS while a stream is captured
            raise _StepCallsLibrary(number) from error
        except RuntimeError as error:  # CuPy has no class for what it refuses itself
            if getattr(error, "status", None) in (None, *_CAPTURE_ERRORS):
                raise CannotCapture from error
            raise

    def _end(self, stream: Any) -> Any:
        """The graph of what was captured since it began.

        Raises:
            CannotCapture: it has other nodes than kernels and copies.
        """
        graph = _ended(self._device.cupy, stream)
        if graph is None or not consists_of_kernels(graph, self._staged):
            raise CannotCapture
        return graph

    @property
    def memory_bytes(self) -> int:
        """Device memory that it holds."""
        return int(self._memory.total_bytes())

    def run(self, inputs: Sequence[memoryview]) -> list[memoryview] | None:
        """The bytes of each output, in memory that is the caller's; None if another thread runs it now."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            found = self._room_for_outputs()
            count = len(self._inputs)
            for memory, source in zip(self._staged, inputs, strict=False):
                memory[:] = source
            stream = self._device.lane()
            # Steps between launches take other memory: of the captured plan's, what a launch will read counts as free.
            with self._device.working(stream):
                try:
                    if not self._staged:
                        self._copy_all(self._inputs, inputs, up=True, stream=stream)
                    for part in self._parts:
                        if isinstance(part, _StepAlone):
                            part.compute(self._device)
                        else:
                            part.launch(stream)
                    if not self._staged:
                        self._copy_all(self._outputs, found, up=False, stream=stream)
                finally:
                    stream.synchronize()
            for target, memory in zip(found, self._staged[count:], strict=False):
                target[:] = memory
            return found
        finally:
            self._lock.release()

    def _room_for_outputs(self) -> list[memoryview]:
        sizes = [int(array.nbytes) for array in self._outputs]
        if self._staged:
            return [plain_memory(size) for size in sizes]
        return [self._device.host_memory(size) or plain_memory(size) for size in sizes]

    def _copy_all(self, blocks: Sequence[Any], memory: Sequence[memoryview], *, up: bool, stream: Any) -> None:
        """Copy between blocks on the device and host memory, if there is any."""
        for block, each in zip(blocks, memory, strict=False):
            self._device.copy(block, each, up=up, stream=stream)

    def _constant(self, layout: Layout, data: bytes) -> Any:
        ((array,), uploaded) = self._device.put([layout], [memoryview(data)])
        if uploaded is not None:
            uploaded.synchronize()
        return array

    def _packed(self, array: Any) -> Any:
        """The bytes of an output, which some functions of arrays make with other strides."""
        if not array.flags.c_contiguous:
            packed = self._device.room(array.nbytes).view(array.dtype).reshape(array.shape)
            packed[...] = array
            array = packed
        return array.reshape(-1).view(np.uint8)

    def _host_parts(self, sizes: Sequence[int]) -> list[memoryview]:
        parts = [self._device.host_memory(size) for size in sizes]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            raise CannotCapture
        return found


class CapturedRun(RunWithoutStages):
    """A run that is done when it begins. See `Run`.

    Args:
        plan: what was computed.
        outputs: the bytes of each output.
    """

    __slots__ = ("_outputs", "_plan")

    def __init__(self, plan: Plan, outputs: Sequence[memoryview]) -> None:
        self._plan, self._outputs = plan, outputs

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`."""
        piece = self._plan.slices.piece(index)
        return self._outputs[piece.output][piece.begin : piece.begin + piece.computed]

    def close(self) -> None:
        """See `Run.close`."""
        self._outputs = ()


class CapturedPlans:
    """The plans of a device that were captured, and how often others ran.

    Args:
        device: the backend.
    """

    def __init__(self, device: CapturingDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        # By identity: the call cache has the same plan for the same call, and hashing one takes longer than its launch.
        self._counts: OrderedDict[int, tuple[weakref.ref[Plan], int]] = OrderedDict()
        self._captured: OrderedDict[int, CapturedPlan] = OrderedDict()

    def start(self, plan: Plan, inputs: Sequence[RunInput]) -> CapturedRun | None:
        """The run of a plan that is captured, or is now; None if it is to be computed in the usual way.

        Args:
            plan: the plan.
            inputs: its inputs; only those in host memory are copied to the captured plan's own.
        """
        blocks = [block for block in inputs if isinstance(block, memoryview)]
        if len(blocks) < len(inputs):
            return None
        captured = self._captured.get(id(plan))
        if captured is None:
            if not self._is_due(plan):
                return None
            try:
                captured = CapturedPlan(self._device, plan)
            except CannotCapture:
                return None
            with self._lock:
                self._captured[id(plan)] = captured
                while len(self._captured) > 1 and self._is_above():
                    self._captured.popitem(last=False)
        else:
            with self._lock:
                if id(plan) in self._captured:
                    self._captured.move_to_end(id(plan))
        outputs = captured.run(blocks)
        return None if outputs is None else CapturedRun(plan, outputs)

    def clear(self) -> None:
        """Forget all, and give back their memory."""
        with self._lock:
            self._captured.clear()

    def __len__(self) -> int:
        return len(self._captured)

    def _is_above(self) -> bool:
        """Whether there are too many, or they take too much memory."""
        taken = sum([captured.memory_bytes for captured in self._captured.values()])
        return len(self._captured) > MOST_CAPTURED or taken > self._device.memory_bytes // MOST_SHARE

    def _is_due(self, plan: Plan) -> bool:
        """Whether it ran so often that it is to be captured; at most once for a plan."""
        key = id(plan)
        with self._lock:
            found = self._counts.get(key)
            if found is None:
                if not is_capturable(plan, self._device.memory_bytes):
                    return False
                self._counts[key] = (weakref.ref(plan, lambda _: self._forget(key)), 1)
                while len(self._counts) > _MOST_COUNTED:
                    self._counts.popitem(last=False)
                return False
            reference, count = found
            self._counts[key] = (reference, count + 1)
            return count == RUNS_BEFORE

    def _forget(self, key: int) -> None:
        # Without the lock: a plan may be collected anywhere, also while this thread holds it. Both are atomic.
        self._counts.pop(key, None)
        self._captured.pop(key, None)


def is_capturable(plan: Plan, memory_bytes: int) -> bool:
    """Whether it is small, without gaps in its outputs, and reads no index that the host must check meanwhile.

    Args:
        plan: the plan.
        memory_bytes: memory of the device, bytes.
    """
    most_input = MOST_INPUT_BYTES if len(plan.steps) >= MANY_STEPS else MOST_BYTES
    held = plan.input_bytes + plan.output_bytes + plan.held_bytes + plan.streamed_bytes
    tensors = [*plan.input_layouts, *[slot.layout for slot in plan.outputs]]
    return (
        plan.input_bytes <= most_input
        and plan.output_bytes <= MOST_BYTES
        and held <= memory_bytes // MOST_SHARE_EACH
        and plan.work <= MOST_WORK
        and all(math.prod(layout.sizes) for layout in tensors)
        and all(slot.layout.packed for slot in plan.outputs)
        and not any(stage.checked for stage in plan.stages)
    )


def consists_of_kernels(graph: Any, blocks: Sequence[memoryview]) -> bool:
    """Whether a captured graph has only kernels, copies on the device, and copies of these blocks.

    Another copy may be one from host memory that is gone when the graph is launched again; memory that is allocated in
    the graph is in no limit.

    Args:
        graph: CuPy's.
        blocks: page-locked memory of inputs and outputs.
    """
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(int(graph.graph))
    count = ctypes.c_size_t()
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)):
        return False
    nodes = (ctypes.c_void_p * count.value)()
    if driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)):
        return False
    own = {np.frombuffer(block, np.uint8).__array_interface__["data"][0] for block in blocks}
    for node in map(ctypes.c_void_p, nodes):
        kind = ctypes.c_int()
        if driver.cuGraphNodeGetType(node, ctypes.byref(kind)) or kind.value not in (_KERNEL, _COPY, _MEMSET, _EMPTY):
            return False
        if kind.value == _COPY:
            copy = _CopyParameters()
            if driver.cuGraphMemcpyNodeGetParams(node, ctypes.byref(copy)):
                return False
            ends = {copy.source.address, copy.target.address}
            if not ends & own and not all(_is_on_device(driver, address) for address in ends):
                return False
    return True


class _CopyEnd(ctypes.Structure):
    """One end of a copy, as `CUDA_MEMCPY3D` has it."""

    _fields_ = (
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("lod", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_void_p), ("device", ctypes.c_uint64), ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.host or 0) if self.kind == _ON_HOST else int(self.device)


class _CopyParameters(ctypes.Structure):
    """The struct `CUDA_MEMCPY3D`."""

    _fields_ = (
        ("source", _CopyEnd), ("target", _CopyEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )  # fmt: skip


def _is_on_device(driver: Any, address: int) -> bool:
    kind = ctypes.c_uint()
    status = driver.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address))
    return not status and kind.value == _ON_DEVICE


def _last_read(plan: Plan, outputs: Sequence[NodeOutput]) -> dict[int, list[NodeOutput]]:
    """What nothing reads any more after a step, by its place."""
    readers = {
        source: number
        for number, step in enumerate(plan.steps)
        for source in step.sources
        if isinstance(source, NodeOutput) and source not in outputs
    }
    found: dict[int, list[NodeOutput]] = {}
    for source, number in readers.items():
        found.setdefault(number, []).append(source)
    return found


def _operands(cupy: Any, step: PlanStep, arrays: Sequence[Any]) -> list[Any]:
    """The arrays as the step reads them."""
    return [as_operand(cupy, array, layout) for array, layout in zip(arrays, step.operands, strict=True)]


def _room_of(device: CapturingDevice, layout: Layout) -> Any:
    return device.room(layout.size_in_bytes).view(layout.data_type.dtype).reshape(layout.sizes)


def _function_of(form: Form) -> object:
    """What a form calls; forms of the same function are captured or not alike."""
    return getattr(form, "function", type(form))


def _ended(cupy: Any, stream: Any) -> Any:
    """End the capture; None if it failed."""
    try:
        return stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError:
        return None
