"""One operator or a graph over a Ray cluster, for outputs that are larger than any of its machines.

Each output falls into chunks, each a run of consecutive bytes; a task of Ray's computes a chunk by the plan and the
backend that the service would use, and gives it back as an object or writes it into a Zarr store. Scheduling, moving
the inputs and computing again what a lost node had are Ray's work.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.extras import install_command
from tensorpost.values.graph import Graph, GraphConstant, GraphInput, NodeOutput, Ref
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Operation
from tensorpost.values.problems import InvalidParameter

from .backends import BACKENDS, CannotOpen, DeviceOptions, load_backend
from .backends.device_run import RunDevice, as_operand
from .backends.numpy_ import NumpyBackend
from .forms import Pointwise, whole_box
from .forms.base import Box, extents
from .planning import OutputSlice, Plan, PlanStep, make_plan

_AHEAD = 2  # chunks that are asked for beyond those that the cluster's processors compute
_NAME_IN_STORE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")  # of an array below a group, on any file system


def chunk_shape(sizes: Sequence[int], item_bytes: int, most_bytes: int) -> tuple[int, ...]:
    """The largest box of at most `most_bytes` that is contiguous in C order: 1s, a part of an axis, whole axes.

    One element of the cut axis is never cut, however large it is. An output without elements has no chunk.
    """
    if 0 in sizes:
        return tuple([max(1, size) for size in sizes])
    shape = [1] * len(sizes)
    left = max(1, most_bytes // item_bytes)
    for axis in reversed(range(len(sizes))):
        shape[axis] = min(sizes[axis], left)
        if shape[axis] < sizes[axis]:
            break
        left //= sizes[axis]
        if not left:
            break
    return tuple(shape)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The cut of an output into boxes of one shape, those at the ends smaller: `Plan.slices` of a distributed run.

    Attributes:
        layout: the output's, packed.
        shape: sizes of a box, as `chunk_shape` makes them.
        whole: None, as in `OutputSlices`.
        has_gaps: False, as in `Slices`.
    """

    layout: Layout
    shape: tuple[int, ...]
    whole: OutputSlice | None = None
    has_gaps: bool = False

    def __len__(self) -> int:
        return math.prod(self._grid())

    def _grid(self) -> tuple[int, ...]:
        return tuple(-(-size // part) for size, part in zip(self.layout.sizes, self.shape, strict=True))

    def piece(self, index: int) -> OutputSlice:
        """Chunk `index`, counted in C order."""
        at = np.unravel_index(index, self._grid())
        starts = [int(i) * part for i, part in zip(at, self.shape, strict=True)]
        return _piece(self.layout, tuple([
            (start, min(start + part, size))
            for start, part, size in zip(starts, self.shape, self.layout.sizes, strict=True)
        ]))  # fmt: skip


def _piece(layout: Layout, box: Box, output: int = 0) -> OutputSlice:
    """The slice of a packed output that is a box, which is one run of its bytes."""
    item = layout.data_type.item_size
    begin = sum(start * stride for (start, _), stride in zip(box, layout.strides, strict=True))
    return OutputSlice(box, begin * item, math.prod(extents(box)) * item, 0, output)


def run(
    computed: Graph | Operation,
    inputs: Sequence[memoryview],
    *,
    store: str | Path | None,
    chunk_bytes: int,
    backend: str,
    progress: Callable[[int, int], None] | None,
    options: Mapping[str, Any],
) -> Any:
    """See `tensorpost.distributed`; `progress` is called with the bytes written and the bytes of all outputs.

    Returns:
        What `tensorpost.distributed.run` does; for a graph that of each output, by its name.
    """
    ray, zarr = _module("ray"), None if store is None else _module("zarr")
    plan = _plan(computed, chunk_bytes)
    plan.check_indices(inputs)
    outputs = [_chunks(slot.layout, chunk_bytes) for slot in plan.outputs]
    targets = _targets(plan, store)
    if not ray.is_initialized():
        ray.init(configure_logging=False, log_to_driver=False)
    for chunks, target in zip(outputs, targets, strict=True):
        if zarr is not None:
            zarr.create_array(
                target, shape=chunks.layout.sizes, chunks=chunks.shape, dtype=_dtype(chunks.layout), compressors=None
            )
    given = [ray.put(np.frombuffer(view, np.uint8)) for view in inputs]  # once for each machine, in shared memory
    task = ray.remote(_compute).options(**{"max_retries": 5, **options})
    refs: dict[Any, int] = {}  # the size of each reference's chunk, bytes
    done, most = 0, int(ray.cluster_resources().get("CPU", 1)) + _AHEAD
    found: list[Any] = []
    if progress is not None:
        progress(0, plan.output_bytes)
    for output, (chunks, target) in enumerate(zip(outputs, targets, strict=True)):
        parts: list[tuple[Box, Any]] = []
        for index in range(len(chunks)):
            piece = chunks.piece(index)
            ref = task.remote(computed, chunk_bytes, output, index, backend, target, *given)
            if target is None:
                parts.append((piece.box, ref))
                continue
            refs[ref] = piece.computed
            is_last = output == len(outputs) - 1 and index == len(chunks) - 1
            while len(refs) >= most or (refs and is_last):
                done += _settle(ray, refs)
                if progress is not None:
                    progress(done, plan.output_bytes)
        found.append(parts)
    if zarr is not None:
        found = [zarr.open_array(target, mode="r") for target in targets]
    return {slot.name: made for slot, made in zip(plan.outputs, found, strict=True)} if plan.is_graph else found[0]


def _targets(plan: Plan, store: str | Path | None) -> Sequence[str | None]:
    """Where each output is written: into the store, or below it by its name if it is one of a graph.

    Raises:
        InvalidParameter: the name of an output is none that every store can have.
    """
    if store is None:
        return [None] * len(plan.outputs)
    if not plan.is_graph:
        return [str(store)]
    for slot in plan.outputs:
        if not _NAME_IN_STORE.fullmatch(slot.name):
            raise InvalidParameter(
                f"the output {slot.name!r} is written into the store by its name, which must consist of letters, "
                "digits, _, - and dots that do not come first; rename it in outputs"
            )
    return [f"{str(store).rstrip('/')}/{slot.name}" for slot in plan.outputs]


def _settle(ray: Any, refs: dict[Any, int]) -> int:
    """Wait until a task has ended, and raise what it raised; the bytes of its chunk."""
    (ref,), _ = ray.wait([*refs], num_returns=1)
    ray.get(ref)
    return refs.pop(ref)


def _chunks(layout: Layout, chunk_bytes: int) -> Chunks:
    return Chunks(layout, chunk_shape(layout.sizes, layout.data_type.item_size, chunk_bytes))


def _plan(computed: Graph | Operation, chunk_bytes: int) -> Plan:
    """The plan; that of one operator has chunks for slices.

    Raises:
        InvalidParameter: the operator makes its outputs together, or several of them, or one with gaps; or the graph
            has larger results that are needed as a whole.
    """
    plan = make_plan(computed, chunk_bytes)
    if plan.is_graph:
        _check_whole(plan, chunk_bytes)
        return plan
    if plan.stages or len(plan.outputs) != 1 or not plan.outputs[0].layout.packed:
        raise InvalidParameter(
            f"{plan.operator} cannot be distributed: it must have one output, packed, of which parts can be computed"
        )
    return replace(plan, slices=_chunks(plan.outputs[0].layout, chunk_bytes))  # pyright: ignore[reportArgumentType] # as much of Slices as backends use


# ---- graphs ----------------------------------------------------------------------------------------------------------


def _reads_same_box(step: PlanStep, source: Layout) -> bool:
    """Whether a box of the step's output depends on the same box of what it reads, and on nothing else."""
    return isinstance(step.form, Pointwise) and source.sizes == step.outputs[0].layout.sizes


def _layout_of(plan: Plan, source: Ref) -> Layout:
    match source:
        case GraphInput(index):
            return plan.graph.inputs[index].layout
        case GraphConstant(index):
            return plan.graph.constants[index][0].layout
        case NodeOutput(step, index):
            return plan.steps[step].outputs[index].layout


def _needed_whole(plan: Plan) -> Mapping[int, str]:
    """The steps whose outputs every task needs as a whole, each with the name of a node that needs them."""
    found: dict[int, str] = {}
    for number, step in reversed([*enumerate(plan.steps)]):
        if step.form.computed_whole:
            found.setdefault(number, step.name)
        for source in step.sources:
            if isinstance(source, NodeOutput):
                made = plan.steps[source.node].outputs[source.index].layout
                if number in found or not _reads_same_box(step, made):
                    found[source.node] = step.name
    return found


def _check_whole(plan: Plan, chunk_bytes: int) -> None:
    """Refuse a graph of which every task would hold more than a chunk beside those that it computes."""
    for step in plan.steps:
        for source, slot in zip(step.sources, step.inputs, strict=True):
            if not slot.layout.packed or slot.layout.data_type is not _layout_of(plan, source).data_type:
                raise InvalidParameter(
                    f"node {step.name!r} reads {slot.name} by strides or as another type, which is not computed in "
                    "boxes; give it a tensor that lies as it is read"
                )
    needed = _needed_whole(plan)
    sizes = {number: sum([slot.layout.size_in_bytes for slot in plan.steps[number].outputs]) for number in needed}
    if (total := sum(sizes.values())) > chunk_bytes:
        largest = max(sizes, key=lambda number: sizes[number])
        name = plan.steps[largest].name
        raise InvalidParameter(
            f"node {needed[largest]!r} needs all of {name!r} at once, and results that are needed so take {total:,} "
            f"bytes, more than a chunk ({chunk_bytes:,} bytes): raise chunk_bytes, or run the graph up to {name!r} "
            "first, and what follows with its result as an input"
        )


class _GraphPart:
    """Computes boxes of a graph's outputs: element-wise steps and what they read box by box, what others read in full.

    Args:
        device: computes the steps.
        plan: the graph's.
        blocks: bytes of its inputs.
    """

    def __init__(self, device: RunDevice, plan: Plan, blocks: Sequence[memoryview]) -> None:
        self._device, self._plan = device, plan
        self._inputs = [slot.layout.view(block) for slot, block in zip(plan.inputs, blocks, strict=True)]
        self._constants = [slot.layout.view(memoryview(data)) for slot, data in plan.graph.constants]
        self._whole: dict[NodeOutput, NDArray[Any]] = {}
        self._parts: dict[NodeOutput, NDArray[Any]] = {}

    def compute(self, wanted: NodeOutput, box: Box) -> NDArray[Any]:
        """A box of an output of a step, which is one run of its bytes. Called once."""
        needed, last_readers = _reached(self._plan, wanted)
        in_full = _needed_whole(self._plan)
        for ref in needed:
            step = self._plan.steps[ref.node]
            if ref.node in in_full:
                if ref not in self._whole:
                    made = self._all_outputs(step)
                    self._whole |= {NodeOutput(ref.node, index): array for index, array in enumerate(made)}
            elif isinstance(step.form, Pointwise):
                self._parts[ref] = self._compute_pointwise(step, box)
            else:
                self._parts[ref] = self._compute_box(step, ref.index, box, [*map(self._in_full, step.sources)])
            for source in [each for each in self._parts if last_readers.get(each) == ref]:
                del self._parts[source]
        return self._whole[wanted][_indices(box)] if wanted.node in in_full else self._parts[wanted]

    def _compute_pointwise(self, step: PlanStep, box: Box) -> NDArray[Any]:
        """A box of the output of an element-wise step, from the same box of its inputs."""
        operands = [
            self._parts[source]
            if isinstance(source, NodeOutput) and source in self._parts
            else as_operand(np, self._in_full(source), layout)[_indices(box)]
            for source, layout in zip(step.sources, step.operands, strict=True)
        ]
        inputs = [replace(slot, layout=_packed(slot.layout, box)) for slot in step.inputs]
        outputs = [replace(slot, layout=_packed(slot.layout, box)) for slot in step.outputs]
        part = replace(step, inputs=tuple(inputs), outputs=tuple(outputs))
        return self._compute_box(part, 0, whole_box(extents(box)), operands)

    def _in_full(self, source: Ref) -> NDArray[Any]:
        """A tensor that is there as a whole."""
        match source:
            case GraphInput(index):
                return self._inputs[index]
            case GraphConstant(index):
                return self._constants[index]
            case NodeOutput():
                return self._whole[source]

    def _all_outputs(self, step: PlanStep) -> list[NDArray[Any]]:
        operands = [*map(self._in_full, step.sources)]
        if step.form.computed_whole:
            given, uploaded = self._put(step, operands)
            made = [self._device.in_host_memory(each) for each in self._device.compute(step, given, uploaded)]
            self._release(uploaded)
            return made
        boxes = [whole_box(slot.layout.sizes) for slot in step.outputs]
        return [self._compute_box(step, output, box, operands) for output, box in enumerate(boxes)]

    def _compute_box(self, step: PlanStep, output: int, box: Box, operands: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """A box of an output of a step, from whole inputs."""
        if step.form.index_range is not None:
            step.check_indices(operands[step.form.index_range.input])
        layout = step.outputs[output].layout
        if not math.prod(extents(box)):
            return np.empty(extents(box), _dtype(layout))
        given, uploaded = self._put(step, operands)
        own = replace(step)  # devices keep what they know of a step by its identity and where a slice begins
        block = self._device.compute_slice(own, given, uploaded, _piece(layout, box, output), None)
        self._release(uploaded)
        return np.frombuffer(block, _dtype(layout)).reshape(extents(box))

    def _put(self, step: PlanStep, operands: Sequence[NDArray[Any]]) -> tuple[list[Any], Any]:
        """The operands on the device, as the step reads them, and what `RunDevice.put` returned with them."""
        packed = [np.ascontiguousarray(each) for each in operands]
        layouts = [
            Layout.row_major(slot.layout.data_type, each.shape) for slot, each in zip(step.inputs, packed, strict=True)
        ]
        arrays, uploaded = self._device.put(layouts, [each.reshape(-1).view(np.uint8).data for each in packed])
        read = zip(arrays, step.operands, strict=True)
        return [as_operand(self._device.xp, array, layout) for array, layout in read], uploaded

    def _release(self, uploaded: Any) -> None:
        if uploaded is not None:
            self._device.release(uploaded)


def _reached(plan: Plan, wanted: NodeOutput) -> tuple[Sequence[NodeOutput], Mapping[NodeOutput, NodeOutput]]:
    """What an output depends on, and the output itself, in the order of the steps; the last that reads each of them."""
    found, waiting = set[NodeOutput](), [wanted]
    while waiting:
        if (ref := waiting.pop()) not in found:
            found.add(ref)
            waiting += [source for source in plan.steps[ref.node].sources if isinstance(source, NodeOutput)]
    in_order = sorted(found, key=lambda ref: (ref.node, ref.index))
    last = {
        source: ref for ref in in_order for source in plan.steps[ref.node].sources if isinstance(source, NodeOutput)
    }
    return in_order, last


def _indices(box: Box) -> tuple[Any, ...]:
    return (*[slice(*span) for span in box], ...)


def _packed(layout: Layout, box: Box) -> Layout:
    """The layout of a box by itself."""
    return Layout.row_major(layout.data_type, extents(box))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _dtype(layout: Layout) -> np.dtype[Any]:
    return np.dtype(layout.data_type.dtype)


@functools.lru_cache(maxsize=4)
def _backend(name: str) -> Any:
    """A device of this process, opened once. `auto`: the compiled loops if they are there, else NumPy.

    Raises:
        ImportError, CannotOpen: the one that is named cannot be used here.
    """
    kind: Any = load_backend("numba" if name == "auto" else name)
    if name != "auto" and BACKENDS[name].several:
        _, device = next(iter(kind.open_all(DeviceOptions())))
        if isinstance(device, CannotOpen):
            raise device
        return device
    try:
        return kind(threads=1)
    except (ImportError, CannotOpen):
        if name != "auto":
            raise
        return NumpyBackend(threads=1)


def _compute(
    computed: Graph | Operation, chunk_bytes: int, output: int, index: int, backend: str, store: str | None,
    *inputs: NDArray[np.uint8],
) -> NDArray[Any] | None:  # fmt: skip
    """A task: one chunk of an output, as an array or into the store."""
    plan = _plan(computed, chunk_bytes)
    layout = plan.outputs[output].layout
    piece = _chunks(layout, chunk_bytes).piece(index)
    device = _backend(backend)
    refused = device.refusal_reason(plan)
    if refused is not None:
        raise InvalidParameter(f"the backend {device.name} cannot run {plan.operator} exactly: {refused}")
    blocks = [view.data for view in inputs]
    if plan.is_graph:
        out = _GraphPart(device, plan, blocks).compute(plan.output_sources[output], piece.box)
    else:
        computing = device.start(plan, blocks)
        try:
            block = computing.compute(index)
        finally:
            computing.close()
        out = np.frombuffer(block, _dtype(layout)).reshape(extents(piece.box))
    if store is None:
        return out
    _module("zarr").open_array(store, mode="r+")[tuple(slice(*span) for span in piece.box)] = out
    return None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name} is not installed: {install_command('server', 'ray')}", name=name) from None
