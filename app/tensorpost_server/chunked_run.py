"""One operator over a Ray cluster, for outputs that are larger than any of its machines.

The output falls into chunks, each a run of consecutive bytes; a task of Ray's computes a chunk by the plan and the
backend that the service would use, and gives it back as an object or writes it into a Zarr store. Scheduling, moving
the inputs and computing again what a lost node had are Ray's work.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.extras import install_command
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Operation
from tensorpost.values.problems import InvalidParameter

from .backends import BACKENDS, CannotOpen, DeviceOptions, load_backend
from .backends.numpy_ import NumpyBackend
from .forms.base import Box
from .planning import OutputSlice, Plan, make_plan

_AHEAD = 2  # chunks that are asked for beyond those that the cluster's processors compute


def chunk_shape(sizes: Sequence[int], item_bytes: int, most_bytes: int) -> tuple[int, ...]:
    """The largest box of at most `most_bytes` that is contiguous in C order: 1s, a part of an axis, whole axes.

    One element of the cut axis is never cut, however large it is.
    """
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
        box: Box = tuple(
            (start, min(start + part, size))
            for start, part, size in zip(starts, self.shape, self.layout.sizes, strict=True)
        )
        item = self.layout.data_type.item_size
        begin = sum(start * stride for start, stride in zip(starts, self.layout.strides, strict=True))
        return OutputSlice(box, begin * item, math.prod(stop - start for start, stop in box) * item, 0)


def run(
    operation: Operation,
    inputs: Sequence[memoryview],
    *,
    store: str | Path | None,
    chunk_bytes: int,
    backend: str,
    progress: Callable[[int, int], None] | None,
    options: Mapping[str, Any],
) -> Any:
    """See `tensorpost.distributed.run`; `progress` is called with the bytes written and the bytes of the output."""
    ray, zarr = _module("ray"), None if store is None else _module("zarr")
    plan = _plan(operation, chunk_bytes)
    plan.check_indices(inputs)
    chunks = cast("Chunks", plan.slices)
    if not ray.is_initialized():
        ray.init(configure_logging=False, log_to_driver=False)
    if zarr is not None:
        zarr.create_array(
            str(store), shape=chunks.layout.sizes, chunks=chunks.shape, dtype=_dtype(chunks.layout), compressors=None
        )
    given = [ray.put(np.frombuffer(view, np.uint8)) for view in inputs]  # once for each machine, in shared memory
    task = ray.remote(_compute).options(**{"max_retries": 5, **options})
    refs: dict[Any, int] = {}  # the size of each reference's chunk, bytes
    done, total = 0, math.prod(chunks.layout.sizes) * chunks.layout.data_type.item_size
    most = int(ray.cluster_resources().get("CPU", 1)) + _AHEAD
    parts: list[tuple[Box, Any]] = []
    if progress is not None:
        progress(0, total)
    for index in range(len(chunks)):
        piece, target = chunks.piece(index), None if store is None else str(store)
        ref = task.remote(operation, chunk_bytes, index, backend, target, *given)
        if store is None:
            parts.append((piece.box, ref))
            continue
        refs[ref] = piece.computed
        while len(refs) >= most or (refs and index == len(chunks) - 1):
            done += _settle(ray, refs)
            if progress is not None:
                progress(done, total)
    return parts if zarr is None else zarr.open_array(str(store), mode="r")


def _settle(ray: Any, refs: dict[Any, int]) -> int:
    """Wait until a task has ended, and raise what it raised; the bytes of its chunk."""
    (ref,), _ = ray.wait([*refs], num_returns=1)
    ray.get(ref)
    return refs.pop(ref)


def _plan(operation: Operation, chunk_bytes: int) -> Plan:
    """The plan with chunks for slices.

    Raises:
        InvalidParameter: the operator makes its outputs together, or several of them, or one with gaps.
    """
    plan = make_plan(operation, chunk_bytes)
    if plan.stages or len(plan.outputs) != 1 or not plan.outputs[0].layout.packed:
        raise InvalidParameter(
            f"{plan.operator} cannot be distributed: it must have one output, packed, of which parts can be computed"
        )
    layout = plan.outputs[0].layout
    chunks = Chunks(layout, chunk_shape(layout.sizes, layout.data_type.item_size, chunk_bytes))
    return replace(plan, slices=chunks)  # pyright: ignore[reportArgumentType] # as much of Slices as backends use


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
    operation: Operation, chunk_bytes: int, index: int, backend: str, store: str | None, *inputs: NDArray[np.uint8]
) -> NDArray[Any] | None:
    """A task: one chunk, as an array or into the store."""
    plan = _plan(operation, chunk_bytes)
    piece = cast("Chunks", plan.slices).piece(index)
    device = _backend(backend)
    refused = device.refusal_reason(plan)
    if refused is not None:
        raise InvalidParameter(f"the backend {device.name} cannot run {plan.operator} exactly: {refused}")
    computing = device.start(plan, [view.data for view in inputs])
    try:
        block = computing.compute(index)
    finally:
        computing.close()
    layout = plan.outputs[0].layout
    out = np.frombuffer(block, _dtype(layout)).reshape([stop - start for start, stop in piece.box])
    if store is None:
        return out
    _module("zarr").open_array(store, mode="r+")[tuple(slice(*span) for span in piece.box)] = out
    return None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name} is not installed: {install_command('server', 'ray')}", name=name) from None
