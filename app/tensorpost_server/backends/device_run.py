"""A plan on a device: its inputs are put there once, its outputs are computed slice by slice and taken from there.

One class does it for all devices whose arrays an array library holds; what differs between them is a `RunDevice`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol, final

import numpy as np

from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput, Ref
from tensorpost.values.layout import Layout, last_index
from tensorpost.values.problems import OutOfDeviceMemory

from ..forms.base import Box, extents, go_on, whole_box
from ..planning import OutputSlice, Plan, PlanStep, Stage, cut, local_step
from .base import DeviceMemory, KeptMemory, RunInput, plain_memory

SMALLEST_PART = 64 * 1024
"""Bytes: if not even so little of an output fits on the device, smaller parts will not help."""

MOST_TOGETHER = 1 << 34
"""Work of stages that a device computes without a turn for others between them: some ten milliseconds of an H100."""

RunMemory = memoryview | DeviceMemory
"""Bytes that a run reads and writes: ordinary memory, or some of the device's that other processes share."""


class KeptArray:
    """An array of memory that outlives runs; a run holds it for as long as it reads the array.

    Attributes:
        array: the elements.
    """

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array


class RunDevice(Protocol):
    """Arrays in a device's memory, and what computes them: the part of a backend that its runs use, on any thread.

    Each call but `put` has done all that it says when it returns. `OutOfDeviceMemory` is raised by each if the device
    has too little memory for it now, `DeviceLost` if the device failed permanently.
    """

    @property
    def xp(self) -> Any:
        """The library of its arrays, `numpy` or `cupy`."""
        ...

    @property
    def splits_stages(self) -> bool:
        """Whether several threads compute a stage in parts, in ordinary memory; else `compute` does it at once."""
        ...

    def streams(self, plan: Plan) -> bool:
        """Whether the plan's streamed steps are computed box by box; else in full, when the first slice needs them."""
        ...

    def put(self, layouts: Sequence[Layout], blocks: Sequence[RunMemory]) -> tuple[list[Any], Any]:
        """An array for each input, which lies in its block of bytes by its layout.

        Returns:
            The arrays, and what other calls wait for before they read them; None if they can be read already.
        """
        ...

    def put_kept(self, layout: Layout, data: memoryview) -> KeptArray:
        """An array of memory that outlives the run; it may stay on the device for as long as that memory lives.

        It can be read when this returns.
        """
        ...

    def compute(self, step: PlanStep, inputs: Sequence[Any], uploaded: Any) -> list[Any]:
        """All outputs of a step in full, as arrays of their sizes and types that stay on the device."""
        ...

    def compute_together(self, calls: Sequence[Callable[[], None]], uploaded: Any) -> list[float]:
        """Call what computes steps, one after the other on one stream, and wait once; for devices that split no stages.

        Returns:
            The seconds that the device took for each.
        """
        ...

    def compute_box(self, step: PlanStep, inputs: Sequence[Any], uploaded: Any, box: Box) -> Any:
        """A box of the only output of a step, packed, as an array of the box's sizes that stays on the device.

        Args:
            step: what is computed; not one whose outputs are computed together.
            inputs: arrays that `put`, `compute` or `compute_box` returned, or views of them.
            uploaded: what `put` returned with them.
            box: the coordinates, which are one run of the output's bytes or come in any order.
        """
        ...

    def compute_slice(
        self, step: PlanStep, inputs: Sequence[Any], uploaded: Any, piece: OutputSlice, target: RunMemory | None
    ) -> memoryview:
        """Compute a slice of an output of a step, and bring its bytes where they are wanted.

        Args:
            step: what is computed; not one whose outputs are computed together.
            inputs: arrays that `put` or `compute` returned.
            uploaded: what `put` returned with them.
            piece: the slice.
            target: `piece.computed` bytes; None for host memory that the device chooses.

        Returns:
            The bytes in host memory; nothing if the target is memory of the device.
        """
        ...

    def take(self, part: Any, layout: Layout, piece: OutputSlice, target: RunMemory | None) -> memoryview:
        """Bring the bytes of a slice where they are wanted, as `compute_slice` does.

        Args:
            part: the slice's elements, an array on the device.
            layout: the whole output's.
            piece: the slice.
            target: where to; see `compute_slice`.
        """
        ...

    def in_host_memory(self, array: Any) -> Any:
        """The array in ordinary memory."""
        ...

    def host_memory(self, size_in_bytes: int) -> memoryview | None:
        """Host memory for a slice, of the kind that the device writes fastest; see `Backend.host_memory`."""
        ...

    def release(self, uploaded: Any) -> None:
        """Wait until a `put` that returned this reads its blocks no more."""
        ...


@final
class DeviceRun:
    """A run of a plan on a device; see `Run`.

    Args:
        device: the device that it runs on.
        plan: what is computed.
        blocks: bytes of the plan's inputs, in binding order.
        targets: see `SharingBackend.start`.
    """

    __slots__ = (
        "_begun",
        "_device",
        "_ended",
        "_group_ends",
        "_inputs",
        "_local_steps",
        "_lock",
        "_memory",
        "_plan",
        "_read",
        "_streams",
        "_targets",
        "_tensors",
        "_uploaded",
    )

    def __init__(
        self, device: RunDevice, plan: Plan, blocks: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None = None,
    ) -> None:  # fmt: skip
        self._device, self._plan, self._targets = device, plan, targets
        self._streams = bool(plan.streamed) and device.streams(plan)
        self._lock = threading.RLock() if plan.stages or plan.streamed else None
        self._begun = self._ended = 0  # stages
        self._group_ends = _group_ends(plan.stages, joined=not device.splits_stages)
        self._tensors: dict[tuple[int, int], Any] = {}  # outputs of stages, by step and output
        self._local_steps: dict[tuple[int, tuple[int, ...]], PlanStep] = {}  # by step and sizes of the box
        self._memory: list[memoryview] = []  # of the outputs of the stage that is computed in parts
        layouts: Sequence[Layout] = plan.input_layouts
        constants = plan.graph.constants if plan.is_graph else ()
        sent = [(slot.layout, memoryview(data)) for slot, data in constants if isinstance(data, bytes)]
        if sent:
            layouts = [*layouts, *[layout for layout, _ in sent]]
            blocks = [*blocks, *[data for _, data in sent]]
        self._read: list[KeptArray] = []
        kept = [(at, block.data) for at, block in enumerate(blocks) if isinstance(block, KeptMemory)]
        if kept:
            known = {at for at, _ in kept}
            layouts_sent = [layout for at, layout in enumerate(layouts) if at not in known]
            self._inputs, self._uploaded = device.put(layouts_sent, _others(blocks))
            for at, data in kept:
                self._insert_kept(at, layouts[at], data)
        else:
            self._inputs, self._uploaded = device.put(layouts, _others(blocks))
        for place, (slot, data) in enumerate(constants, len(plan.input_layouts)):
            if isinstance(data, memoryview):
                self._insert_kept(place, slot.layout, data)

    def _insert_kept(self, place: int, layout: Layout, data: memoryview) -> None:
        """Make memory that outlives the run the input at this place."""
        kept = self._device.put_kept(layout, data)
        self._read.append(kept)
        self._inputs.insert(place, kept.array)

    # ---- stages ------------------------------------------------------------------------------------------------------

    def parts(self, stage: int) -> int:
        """See `Run.parts`: a device that splits no stages computes several of them together."""
        if self._device.splits_stages:
            return len(self._plan.stages[stage].slices)
        return 1 if self._group_ends[stage] == stage else 0

    def prepare(self, stage: int, part: int) -> Sequence[tuple[int, float]]:
        """See `Run.prepare`."""
        if not self._device.splits_stages:
            stages = range(self._ended, stage + 1)
            # Made on another stream, on which their memory would be used again while this one still reads them.
            before = [*self._tensors.values()]
            seconds = self._device.compute_together([partial(self._compute, each) for each in stages], self._uploaded)
            del before
            return [(self._plan.stages[each].step, took) for each, took in zip(stages, seconds, strict=True)]
        at = self._begin(stage)
        step = self._plan.steps[at.step]
        if self._memory:
            piece = at.slices.piece(part)
            target = self._memory[piece.output][piece.begin : piece.begin + piece.computed]
            self._device.compute_slice(step, self._operands(step), self._uploaded, piece, target)
        else:
            self._compute(stage)
        return ()

    def _compute(self, stage: int) -> None:
        """Compute all of a stage."""
        go_on()
        at = self._begin(stage)
        outputs = self._device.compute(
            self._plan.steps[at.step], self._operands(self._plan.steps[at.step]), self._uploaded
        )
        self._tensors.update({(at.step, index): array for index, array in enumerate(outputs)})

    def finish(self, stage: int) -> None:
        """See `Run.finish`."""
        if self._group_ends[stage] != stage:
            return
        at = self._begin(stage)  # if it has no part, because its outputs have no elements
        for reader, output in at.checked:
            indices = self._device.in_host_memory(self._tensors[at.step, output])
            self._plan.steps[reader].check_indices(indices)
        if stage == len(self._plan.stages) - 1:
            self._memory = []
            for ref in self._plan.freed:
                del self._tensors[ref.node, ref.index]
        self._ended = stage + 1

    def _begin(self, stage: int) -> Stage:
        """Free what nobody reads any more, and take memory for the outputs of a stage that is computed in parts."""
        at = self._plan.stages[stage]
        assert self._lock is not None
        with self._lock:
            if self._begun == stage:
                self._begun += 1
                for ref in at.freed:
                    del self._tensors[ref.node, ref.index]
                step, self._memory = self._plan.steps[at.step], []
                if self._device.splits_stages and not step.form.computed_whole:
                    self._memory = [plain_memory(slot.layout.size_in_bytes) for slot in step.outputs]
                    for index, (slot, memory) in enumerate(zip(step.outputs, self._memory, strict=True)):
                        self._tensors[at.step, index] = slot.layout.view(memory)
        return at

    def _prepare_rest(self) -> None:
        assert self._lock is not None
        with self._lock:  # other slices wait for it
            for stage in range(self._ended, len(self._plan.stages)):
                go_on()
                for part in range(self.parts(stage)):
                    self.prepare(stage, part)
                self.finish(stage)

    def _operands(self, step: PlanStep) -> list[Any]:
        """The inputs of a step, as it reads them."""
        if not self._plan.is_graph:
            return self._inputs
        return [self._operand(source, layout) for source, layout in zip(step.sources, step.operands, strict=True)]

    def _operand(self, source: Ref, layout: Layout) -> Any:
        match source:
            case GraphInput(index):
                array = self._inputs[index]
            case GraphConstant(index):
                array = self._inputs[len(self._plan.inputs) + index]
            case NodeOutput(number, index):
                array = self._tensors.get((number, index))
                if array is None:
                    array = self._in_full(number)
        return as_operand(self._device.xp, array, layout)

    # ---- streamed steps ----------------------------------------------------------------------------------------------

    def _in_full(self, number: int) -> Any:
        """The output of a step that is streamed elsewhere, computed when it is first asked for."""
        assert self._lock is not None
        with self._lock:  # other slices wait for it
            if (number, 0) not in self._tensors:
                step = self._plan.steps[number]
                (self._tensors[number, 0],) = self._device.compute(step, self._operands(step), self._uploaded)
                for source in step.sources:
                    if isinstance(source, NodeOutput) and source.node in self._plan.streamed:
                        del self._tensors[source.node, 0]  # nothing else reads it
            return self._tensors[number, 0]

    def _is_streamed(self, source: Ref) -> bool:
        return self._streams and isinstance(source, NodeOutput) and source.node in self._plan.streamed

    def _reads_streamed(self, step: PlanStep) -> bool:
        return self._streams and any(map(self._is_streamed, step.sources))

    def _local(self, number: int, box: Box) -> tuple[PlanStep, list[Any]]:
        """A step that computes a box of what another one computes, and its inputs."""
        step = self._plan.steps[number]
        form, reads = step.form.localized(box), step.form.reads(box)
        boxes = [read for read in reads if read is not None]
        assert form is not None, f"{step.name} reads whole inputs"
        inputs = [
            self._box(source.node, read)
            if isinstance(source, NodeOutput) and source.node in self._plan.streamed
            else self._operand(source, layout)[(*[slice(*span) for span in read], ...)]
            for source, layout, read in zip(step.sources, step.operands, boxes, strict=True)
        ]
        key = (number, tuple(extents(box)))
        local = self._local_steps.get(key)
        if local is None:
            local = local_step(step, form, box, boxes, [*map(self._is_streamed, step.sources)])
            if form is step.form:
                self._local_steps[key] = local
        return local, inputs

    def _box(self, number: int, box: Box) -> Any:
        """A box of the output of a streamed step."""
        step = self._plan.steps[number]
        if not math.prod(extents(box)):
            return self._device.xp.empty(extents(box), step.outputs[0].layout.data_type.dtype)
        if self._reads_streamed(step):
            local, inputs = self._local(number, box)
            return self._device.compute_box(local, inputs, self._uploaded, whole_box(extents(box)))
        return self._device.compute_box(step, self._operands(step), self._uploaded, box)

    # ---- slices ------------------------------------------------------------------------------------------------------

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`; nothing where the slice is put into shared memory."""
        if self._ended < len(self._plan.stages):
            self._prepare_rest()
        piece = self._plan.slices.piece(index)
        target = None
        if self._targets is not None:
            memory = self._targets[piece.output]
            if memory is None:
                return memoryview(b"")
            target = memory.part(piece.begin, piece.computed)
        if not self._plan.is_graph:
            return self._slice(0, piece.output, piece, target)
        source = self._plan.output_sources[piece.output]
        return self._slice(source.node, source.index, piece, target)

    def _slice(self, number: int, output: int, piece: OutputSlice, target: RunMemory | None) -> memoryview:
        """A slice; in halves, and halves of those, if the device has no room for it."""
        step = self._plan.steps[number]
        layout = step.outputs[output].layout
        try:
            if self._tensors and (array := self._tensors.get((number, output))) is not None:
                part = array[(*[slice(*span) for span in piece.box], ...)]  # an array at rank 0 too
                return self._device.take(part, layout, piece, target)
            own = piece if piece.output == output else replace(piece, output=output)
            if self._reads_streamed(step):
                step, inputs = self._local(number, piece.box)
                own = replace(own, box=whole_box(extents(piece.box)), begin=0)
            else:
                inputs = self._operands(step)
            return self._device.compute_slice(step, inputs, self._uploaded, own, target)
        except OutOfDeviceMemory:
            part = replace(layout, sizes=tuple(extents(piece.box)), size_in_bytes=piece.computed)
            half = part.data_size_in_bytes // 2  # without the padding after it, which cannot be halved
            smaller = cut(part, half, piece.output)
            if half < SMALLEST_PART or len(smaller) < 2:
                raise
        if target is None:
            target = self._device.host_memory(piece.computed) or plain_memory(piece.computed)
        if smaller.has_gaps and isinstance(target, memoryview):
            np.frombuffer(target, np.uint8)[:] = 0
        for one in smaller:
            spans = zip(piece.box, one.box, strict=True)
            box = tuple([(first + start, first + stop) for (first, _), (start, stop) in spans])
            self._slice(number, output, replace(one, box=box), part_of(target, one.begin, one.computed))
        return target if isinstance(target, memoryview) else memoryview(b"")

    def close(self) -> None:
        try:
            if self._uploaded is not None:
                self._device.release(self._uploaded)
        finally:
            self._inputs, self._read = [], []
            self._tensors.clear()
            self._memory.clear()


def _group_ends(stages: Sequence[Stage], *, joined: bool) -> list[int]:
    """The last stage that is computed together with each stage.

    Args:
        stages: the plan's.
        joined: whether stages are computed together: up to one whose indices are checked, or after which others get a
            turn.
    """
    ends: list[int] = []
    begin = work = 0
    for number, stage in enumerate(stages):
        work += stage.work
        if not joined or stage.checked or work > MOST_TOGETHER or number == len(stages) - 1:
            ends += [number] * (number + 1 - begin)
            begin, work = number + 1, 0
    return ends


def _others(blocks: Sequence[RunInput]) -> list[RunMemory]:
    return [block for block in blocks if not isinstance(block, KeptMemory)]


def as_operand(xp: ModuleType, array: Any, layout: Layout) -> Any:
    """A tensor as a step reads it: with its own sizes, reshaped, by strides, or its bytes as another type.

    The layout reaches no byte beyond those of the array's elements: whatever reads graphs has checked it.
    """
    dtype = layout.data_type.dtype
    if layout.packed and array.shape == layout.sizes and array.dtype == dtype:
        return array
    if 0 in layout.sizes:
        return xp.empty(layout.sizes, dtype)
    flat = xp.ascontiguousarray(array).reshape(-1)
    if array.dtype != dtype:
        whole = flat.nbytes // dtype.itemsize * dtype.itemsize
        flat = flat.view(np.uint8)[:whole].view(dtype)
    if layout.packed:
        return flat[: math.prod(layout.sizes)].reshape(layout.sizes)
    strides = tuple([stride * dtype.itemsize for stride in layout.strides])
    return xp.lib.stride_tricks.as_strided(flat, layout.sizes, strides)


def part_of(memory: RunMemory, begin: int, size_in_bytes: int) -> RunMemory:
    """Some of the bytes."""
    is_shared = isinstance(memory, DeviceMemory)
    return memory.part(begin, size_in_bytes) if is_shared else memory[begin : begin + size_in_bytes]


def elements_of(xp: ModuleType, block: Any, layout: Layout, sizes: Sequence[int]) -> Any:
    """The elements of a tensor, or of a slice of it, as an array that views their bytes.

    Args:
        xp: `numpy` or `cupy`.
        block: array of bytes; just as long as packed elements, at least as long as others.
        layout: the tensor's.
        sizes: the sizes of the tensor or of the slice, none of them 0.
    """
    dtype = layout.data_type.dtype
    if layout.packed:
        # NumPy's constructor takes a third of the time of the two views.
        return np.ndarray(sizes, dtype, block) if xp is np else block.view(dtype).reshape(sizes)
    elements = block[: (last_index(sizes, layout.strides) + 1) * dtype.itemsize].view(dtype)
    strides = tuple([stride * dtype.itemsize for stride in layout.strides])
    return xp.lib.stride_tricks.as_strided(elements, tuple(sizes), strides)


def outputs_of(xp: ModuleType, step: PlanStep, inputs: Sequence[Any]) -> list[Any]:
    """All outputs of a step that computes them together, by the array library; see `RunDevice.compute`."""
    outputs = zip(step.form.compute(xp, inputs), [slot.layout for slot in step.outputs], strict=True)
    return [xp.asarray(array, layout.data_type.dtype).reshape(layout.sizes) for array, layout in outputs]


def bytes_of(xp: ModuleType, part: Any, layout: Layout, piece: OutputSlice) -> Any:
    """The bytes of a slice as an array, with zeros in its gaps; see `RunDevice.take`. Packed ones are not copied."""
    if layout.packed and part.flags.c_contiguous:
        return part.reshape(-1).view(np.uint8)
    block = xp.empty(piece.computed, np.uint8)
    if not layout.packed:
        block.fill(0)
    elements_of(xp, block, layout, part.shape)[...] = part
    return block
