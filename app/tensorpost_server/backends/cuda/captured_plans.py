"""Small plans that come again, captured as CUDA graphs.

A captured plan is one launch of all its kernels, and of small tensors of the copies of the inputs to the device and of
the outputs back, between memory that belongs to it. In the usual way every kernel is launched from Python, which takes
longer than a small kernel. Products of cuBLAS cannot be captured: they are computed between two launches.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.problems import OutOfDeviceMemory

from ...forms import Form
from ...planning import Plan, PlanStep
from ..base import Run, RunInput, RunWithoutStages, plain_memory
from ..device_run import KeptArray, RunMemory, as_operand, elements_of
from .graph_nodes import consists_of_kernels

MOST_BYTES = 1 << 20
"""Largest size of the outputs together, which are no slices then, and of the inputs of a plan of few steps, bytes."""
MOST_INPUT_BYTES = 64 << 20
"""Largest size of the inputs together of a plan of many steps, bytes: above, their copies take the time."""
MANY_STEPS = 8
MOST_WORK = 1 << 39
"""Largest work of a plan, which nothing interrupts: some tens of milliseconds of an H100."""
STAGED_BYTES = 256 << 10
"""Largest size of the inputs together, and of the outputs together, whose copies are part of the launch, bytes: by way
of page-locked memory that belongs to the captured plan. Larger ones are copied from where they are."""
MOST_SHARE, MOST_SHARE_EACH = 8, 32
"""Captured plans together may take an eighth of the device's memory, and one of them a thirty-second."""
RUNS_BEFORE = 3
"""Runs of a plan before it is captured: capturing takes as long as some runs, and most plans come once."""
MOST_CAPTURED = 64
"""Plans that are captured; beyond, the one that ran least recently is forgotten."""
_MOST_COUNTED = 1024

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

    def new_run(self, plan: Plan, inputs: Sequence[memoryview]) -> Run:
        """A run in the usual way."""
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

    def put_kept(self, layout: Layout, data: memoryview) -> KeptArray:
        """The array of a stored graph's constant; it stays on the device for as long as what is returned."""
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

    Attributes:
        memory_bytes: device memory that it holds.

    Args:
        device: the backend.
        plan: the plan, small and without indices that are checked between its steps.
        blocks: bytes of its inputs, with which it is computed once in the usual way.

    Raises:
        CannotCapture: some of its nodes are no kernels, or there is no page-locked memory for it.
    """

    def __init__(self, device: CapturingDevice, plan: Plan, blocks: Sequence[memoryview]) -> None:
        self._device = device
        # Tables and algorithms that a step needs are made when this thread first computes it, not in a capture.
        outputs_by_slice(device.new_run(plan, blocks), plan)
        # What the run takes is used again within it, in the stream's order, and by nothing else.
        self._memory = device.cupy.cuda.MemoryPool(device.take_memory)
        self._kept: list[Any] = []
        layouts = plan.input_layouts
        sizes = [layout.size_in_bytes for layout in layouts]
        self._staged: list[memoryview] = []
        if sum(sizes) <= STAGED_BYTES and plan.output_bytes <= STAGED_BYTES:
            self._staged = self._host_parts([*sizes, *[slot.layout.size_in_bytes for slot in plan.outputs]])
        stream = device.lane()
        constants: list[Any] = []
        for slot, data in plan.graph.constants if plan.is_graph else ():
            if isinstance(data, memoryview):
                kept = device.put_kept(slot.layout, data)
                self._kept.append(kept)
                constants.append(kept.array)
            else:
                constants.append(self._constant(slot.layout, data))
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
            self.memory_bytes = int(self._memory.total_bytes()) + sum([int(each.nbytes) for each in constants])
        if self.memory_bytes > device.memory_bytes // MOST_SHARE_EACH + plan.kept_bytes:
            raise CannotCapture
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
    """A run of a captured plan, in one launch when the first slice is asked for. See `Run`.

    Where another thread runs the captured plan, or there is no memory, it is computed in the usual way.

    Args:
        device: the backend.
        captured: the captured plan.
        plan: what is computed.
        blocks: bytes of its inputs.
    """

    __slots__ = ("_blocks", "_captured", "_device", "_lock", "_outputs", "_plan", "_usual")

    def __init__(
        self, device: CapturingDevice, captured: CapturedPlan, plan: Plan, blocks: Sequence[memoryview]
    ) -> None:
        self._device, self._captured, self._plan, self._blocks = device, captured, plan, blocks
        self._lock = threading.Lock()
        self._outputs: Sequence[memoryview] | None = None
        self._usual: Run | None = None

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`."""
        with self._lock:  # slices are asked for at the same time
            if self._outputs is None and self._usual is None:
                with suppress(OutOfDeviceMemory):
                    self._outputs = self._captured.run(self._blocks)
                if self._outputs is None:
                    self._usual = self._device.new_run(self._plan, self._blocks)
        if self._outputs is None:
            assert self._usual is not None
            return self._usual.compute(index)
        piece = self._plan.slices.piece(index)
        return self._outputs[piece.output][piece.begin : piece.begin + piece.computed]

    def close(self) -> None:
        """See `Run.close`."""
        self._outputs, self._blocks = None, ()
        if self._usual is not None:
            self._usual.close()


def outputs_by_slice(run: Run, plan: Plan) -> list[memoryview]:
    """The slices of a run, which is closed."""
    try:
        return [run.compute(index) for index in range(len(plan.slices))]
    finally:
        run.close()


class CapturedPlans:
    """The plans of a device that were captured, and how often others ran.

    Args:
        device: the backend.
    """

    def __init__(self, device: CapturingDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        # By identity: the call cache has the same plan for the same call, and hashing one takes longer than its launch.
        # The reference tells the plan from a later one that has the identity of one that is gone.
        self._plans: dict[int, _CountedPlan] = {}  # the one that ran least recently first

    def start(self, plan: Plan, inputs: Sequence[RunInput]) -> CapturedRun | None:
        """The run of a plan that is captured, or is now; None if it is to be computed in the usual way.

        Args:
            plan: the plan.
            inputs: its inputs; only those in host memory are copied to the captured plan's own.
        """
        blocks = [block for block in inputs if isinstance(block, memoryview)]
        if len(blocks) < len(inputs):
            return None
        counted, runs = self._counted(plan)
        if counted is None:
            return None
        if counted.captured is None:
            if runs != RUNS_BEFORE + 1:  # of one thread alone
                return None
            try:
                counted.captured = CapturedPlan(self._device, plan, blocks)
            except (CannotCapture, OutOfDeviceMemory):
                return None
            self._forget_oldest()
        return CapturedRun(self._device, counted.captured, plan, blocks)

    def clear(self) -> None:
        """Forget all, and give back their memory."""
        with self._lock:
            self._plans.clear()

    def __len__(self) -> int:
        with self._lock:
            return len([each for each in self._plans.copy().values() if each.captured is not None])

    def _counted(self, plan: Plan) -> tuple[_CountedPlan | None, int]:
        """The plan with this run counted, and how many that makes; None if it cannot be captured."""
        key = id(plan)
        with self._lock:
            found = self._plans.get(key)
            if found is not None and found.plan() is plan:
                self._plans.pop(key, None)
                self._plans[key] = found
                found.runs += 1
                return found, found.runs
            if not is_capturable(plan, self._device.memory_bytes):
                return None, 0
            found = _CountedPlan(weakref.ref(plan, lambda gone: self._forget(key, gone)), 1)
            self._plans.pop(key, None)
            self._plans[key] = found
            for oldest in [*self._plans.copy()][: max(0, len(self._plans) - _MOST_COUNTED)]:
                self._plans.pop(oldest, None)
            return found, 1

    def _forget_oldest(self) -> None:
        """Forget captured plans that ran least recently, while there are too many or they take too much memory."""
        most = self._device.memory_bytes // MOST_SHARE
        with self._lock:
            # A copy: a plan may be collected meanwhile, which takes it out.
            found = self._plans.copy().items()
            captured = [(key, each.captured) for key, each in found if each.captured is not None]
            taken = sum([each.memory_bytes for _, each in captured])
            for count, (key, each) in zip(range(len(captured), 1, -1), captured, strict=False):
                if count <= MOST_CAPTURED and taken <= most:
                    break
                taken -= each.memory_bytes
                self._plans.pop(key, None)

    def _forget(self, key: int, gone: weakref.ref[Plan]) -> None:
        # Without the lock: a plan may be collected anywhere, also while this thread holds it. Each step is atomic, and
        # what another thread puts there meanwhile has another reference.
        found = self._plans.get(key)
        if found is not None and found.plan is gone:
            self._plans.pop(key, None)


@dataclass(slots=True)
class _CountedPlan:
    """A plan that may be captured.

    Attributes:
        plan: the plan, for as long as something else holds it.
        runs: how often it was started.
        captured: the captured plan; None as long as it is not.
    """

    plan: weakref.ref[Plan]
    runs: int
    captured: CapturedPlan | None = None


def is_capturable(plan: Plan, memory_bytes: int) -> bool:
    """Whether it is small, without gaps in its outputs, and reads no index that the host must check meanwhile.

    Args:
        plan: the plan.
        memory_bytes: memory that may be taken of the device, bytes.
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
