"""One operator or a graph over the nodes of a cluster, its outputs cut into chunks that tasks compute."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.graph import Graph
from tensorpost.values.operation import Operation
from tensorpost.values.problems import InvalidParameter

from ..backends import BACKENDS, CannotOpen, DeviceOptions, load_backend
from ..backends.numpy_ import NumpyBackend
from ..forms import Box, extents
from ..planning import Plan, make_plan
from .chunks import Chunks, bytes_of, chunk_shape, dtype_of, indices
from .cluster import Placement, TasksInFlight, connected_ray, module, task, this_node
from .graph_part import GraphPart, InputPart, check_packed, check_whole, parts_read, step_name
from .held_chunks import HeldChunks, lost_as_gone

_NAME_IN_STORE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")  # of an array below a group, on any file system
_IN_PLACE = ("auto", "numba", "numpy")  # backends that read ordinary memory where it is

JobInput: TypeAlias = memoryview | HeldChunks
"""The bytes of an input, or an array that the cluster holds."""


def run(
    computed: Graph | Operation,
    inputs: Sequence[JobInput],
    *,
    store: str | Path | None,
    keep: bool,
    chunk_bytes: int,
    backend: str,
    progress: Callable[[int, int], None] | None,
    options: Mapping[str, Any],
) -> Any:
    """See `tensorpost.distributed`; `progress` is called with the bytes computed and the bytes of all outputs.

    Returns:
        What `tensorpost.distributed.run` does, with `keep` a `HeldChunks`; for a graph that of each output, by its
        name.
    """
    module("ray")
    zarr = None if store is None else module("zarr")
    held = {place: each for place, each in enumerate(inputs) if isinstance(each, HeldChunks)}
    for array in held.values():
        array.check()
    plan = _plan(computed, chunk_bytes)
    if held:
        check_packed(plan)
    if not plan.checked_inputs & held.keys():  # otherwise each task checks the indices that it reads
        plan.check_indices(inputs)
    outputs = [
        _chunks(plan, output, chunk_bytes, held, sparse=backend in _IN_PLACE) for output in range(len(plan.outputs))
    ]
    targets = _targets(plan, store)
    ray = connected_ray()
    for chunks, target in zip(outputs, targets, strict=True):
        if zarr is not None:
            zarr.create_array(
                target, shape=chunks.layout.sizes, chunks=chunks.shape, dtype=dtype_of(chunks.layout), compressors=None
            )
    given = [
        each if isinstance(each, HeldChunks) else ray.put(np.frombuffer(each, np.uint8)) for each in inputs
    ]  # once for each machine, in shared memory
    kept = [
        HeldChunks(each, f"{slot.name!r} of {plan.operator}", "Compute it again", [*held.values()])
        for each, slot in zip(outputs, plan.outputs, strict=True)
    ]
    placement = Placement() if keep else None
    done = 0

    def ended(ref: Any, what: tuple[int, int, Any]) -> None:
        nonlocal done
        (output, index, chunk), node = what, ray.get(ref)
        if keep:
            kept[output].set(index, chunk, node)
        done += outputs[output].bytes(index)
        if progress is not None:
            progress(done, plan.output_bytes)

    if progress is not None:
        progress(0, plan.output_bytes)
    flight, found = TasksInFlight(ended), list[Any]()
    with lost_as_gone([*held.values()]) if held else nullcontext():
        for output, (chunks, target) in enumerate(zip(outputs, targets, strict=True)):
            parts: list[tuple[Box, Any]] = []
            for index in range(len(chunks)):
                read, refs, node = _inputs_of(plan, output, chunks.box(index), given, held, backend)
                chunk = _ChunkTask(computed, chunk_bytes, output, chunks.shape, index, backend, target, read)
                if placement is not None:
                    where = {"num_returns": 2, **placement.next(chunks.bytes(index), node), **options}
                    made, node = task(_compute_kept, **where).remote(chunk, *refs)
                    flight.add(node, (output, index, made))
                    continue
                ref = task(_compute, **options).remote(chunk, *refs)
                if target is None:
                    parts.append((chunks.box(index), ref))
                else:
                    flight.add(ref, (output, index, None))
            found.append(parts)
        flight.finish()
    if keep:
        found = kept
    elif zarr is not None:
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


def _plan(computed: Graph | Operation, chunk_bytes: int) -> Plan:
    """The plan; that of one operator has chunks for slices.

    Raises:
        InvalidParameter: the operator makes its outputs together, or several of them, or one with gaps; or the graph
            has larger results that are needed as a whole.
    """
    plan = make_plan(computed, chunk_bytes)
    if plan.is_graph:
        check_whole(plan, chunk_bytes)
        return plan
    if plan.stages or len(plan.outputs) != 1 or not plan.outputs[0].layout.packed:
        raise InvalidParameter(
            f"{plan.operator} cannot be distributed: it must have one output, packed, of which parts can be computed"
        )
    return replace(plan, slices=_chunks(plan, 0, chunk_bytes, {}, sparse=False))  # pyright: ignore[reportArgumentType] # as much of Slices as backends use


def _chunks(plan: Plan, output: int, chunk_bytes: int, held: Mapping[int, HeldChunks], *, sparse: bool) -> Chunks:
    """The cut of an output: chunks of as many bytes as allowed, of which none reads more of a held input.

    Raises:
        InvalidParameter: one element reads more.
    """
    layout, size = plan.outputs[output].layout, chunk_bytes
    while True:
        chunks = Chunks(layout, chunk_shape(layout.sizes, layout.data_type.item_size, size))
        too_much = _reads_too_much(plan, output, chunks, chunk_bytes, held, sparse=sparse) if held else None
        if too_much is None:
            return chunks
        if math.prod(chunks.shape) == 1:
            raise InvalidParameter(too_much)
        size = min(size, layout.size_in_bytes) // 2


def _reads_too_much(
    plan: Plan, output: int, chunks: Chunks, chunk_bytes: int, held: Mapping[int, HeldChunks], *, sparse: bool
) -> str | None:
    """What to say of the first chunk that reads more than `chunk_bytes` of a held input; None if none does."""
    for index in range(len(chunks)):
        wanted, box = plan.output_sources[output], chunks.box(index)
        for place, read in parts_read(plan, wanted, box, held.keys(), sparse=sparse).items():
            slot = plan.graph.inputs[place]
            size = bytes_of(slot.layout, read.box)
            if size > chunk_bytes:
                what = "all" if read.box == tuple([(0, n) for n in slot.layout.sizes]) else f"{size:,} bytes"
                return (
                    f"{step_name(plan, read.reader)} needs {what} of the held input {slot.name!r} "
                    f"({slot.layout.size_in_bytes:,} bytes) for one element, and a task reads at most chunk_bytes of "
                    f"it ({chunk_bytes:,} bytes): raise chunk_bytes, or compute it in steps that each read less"
                )
    return None


_Pieces: TypeAlias = tuple[Box, tuple[tuple[slice, ...], ...]]
"""The box of an input that a task has, and where in it each of its pieces lies."""


@dataclass(frozen=True, slots=True)
class _ChunkTask:
    """What a task computes.

    Attributes:
        computed: the graph, or the operator.
        chunk_bytes: see `tensorpost.distributed.run`.
        output: the place of the output.
        shape: sizes of its chunks.
        index: which chunk.
        backend: the backend's name.
        store: where to write it; None to give it back.
        parts: what is there of each input, if it is a part; None for a whole input.
    """

    computed: Graph | Operation
    chunk_bytes: int
    output: int
    shape: tuple[int, ...]
    index: int
    backend: str
    store: str | None
    parts: tuple[_Pieces | None, ...]


def _inputs_of(
    plan: Plan, output: int, box: Box, given: Sequence[Any], held: Mapping[int, HeldChunks], backend: str
) -> tuple[tuple[_Pieces | None, ...], list[Any], str]:
    """What a task that computes a box is given: of each held input what it reads, as references of pieces.

    Returns:
        The parts, the references, and the node on which the chunk with the largest piece was made.
    """
    wanted, sparse = plan.output_sources[output], backend in _IN_PLACE
    reads = parts_read(plan, wanted, box, held.keys(), sparse=sparse) if held else {}
    parts: list[_Pieces | None] = []
    refs: list[Any] = []
    most, node = 0, ""
    for place, each in enumerate(given):
        if place not in held:
            parts.append(None)
            refs.append(each)
            continue
        sizes = held[place].layout.sizes
        read = reads[place].box if place in reads else ((0, 0),) * len(sizes)
        cut = held[place].cut([*held[place].chunks.taken([range(*span) for span in read])])
        pieces = [piece for together in cut for piece in together]
        parts.append((read, tuple([taken.target for taken, _ in pieces])))
        refs += [ref for _, ref in pieces]
        for taken, _ in pieces:
            size = taken.elements * held[place].layout.data_type.item_size
            if size > most:
                most, node = size, held[place].nodes[taken.index]
    return tuple(parts), refs, node


# ---- tasks -----------------------------------------------------------------------------------------------------------


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


def _compute(chunk: _ChunkTask, *arrays: NDArray[Any]) -> NDArray[Any] | None:
    """One chunk of an output, as an array or into the store."""
    plan = _plan(chunk.computed, chunk.chunk_bytes)
    layout = plan.outputs[chunk.output].layout
    box = Chunks(layout, chunk.shape).box(chunk.index)
    device = _backend(chunk.backend)
    refused = device.refusal_reason(plan)
    if refused is not None:
        raise InvalidParameter(f"the backend {device.name} cannot run {plan.operator} exactly: {refused}")
    if plan.is_graph or any(chunk.parts):
        inputs = [*_input_parts(plan, chunk.parts, arrays)]
        out = GraphPart(device, plan, inputs, sparse=chunk.backend in _IN_PLACE).compute(
            plan.output_sources[chunk.output], box
        )
    else:
        computing = device.start(plan, [view.data for view in arrays])
        try:
            block = computing.compute(chunk.index)
        finally:
            computing.close()
        out = np.frombuffer(block, dtype_of(layout)).reshape(extents(box))
    if chunk.store is None:
        return out
    module("zarr").open_array(chunk.store, mode="r+")[indices(box)] = out
    return None


def _compute_kept(chunk: _ChunkTask, *arrays: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """One chunk of an output, and the node that has it."""
    return cast("NDArray[Any]", _compute(chunk, *arrays)), this_node()


def _input_parts(plan: Plan, parts: Sequence[_Pieces | None], arrays: Sequence[NDArray[Any]]) -> Iterator[InputPart]:
    """The inputs of a plan, put together of their pieces."""
    rest = iter(arrays)
    for slot, part in zip(plan.graph.inputs, parts, strict=True):
        if part is None:
            yield InputPart.of(slot.layout, next(rest).data)
            continue
        box, targets = part
        if len(targets) == 1:
            array = next(rest)
        else:
            array = np.empty(extents(box), dtype_of(slot.layout))
            for target in targets:
                array[(*target, ...)] = next(rest)
        yield InputPart(array, box, slot.layout.sizes)
