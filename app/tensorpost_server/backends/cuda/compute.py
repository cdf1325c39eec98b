"""Fills boxes of operators' outputs on CuPy's current device and stream.

The rule for what runs in our kernels and what in CuPy's array operations stands in planning.py. Kernels are compiled by
NVRTC when they are first launched; CuPy keeps the binaries in its own cache on disk (`CUPY_CACHE_DIR`), so that a new
process finds them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...operators.base import Box, Kernel
from ...operators.onnx_resize import ResizeKernel
from .planning import Layout, plan
from .resampling import Step, TablePart
from .tables import Kept, Table, array_of
from .variants import Variant, source_of

__all__ = ["clear_caches", "compile_variant", "fill"]

cupy: Any = importlib.import_module("cupy")  # it has no type stubs: whatever is CuPy's is Any in this module

KEPT_BYTES = 64 << 20  # on each device: of tables, and again of the tables of the plans made last
CALL_BYTES = 2 << 10  # about what a plan takes on the host


@dataclass(frozen=True, slots=True)
class _Call:
    """A launch with everything but the two arrays.

    Attributes:
        function: the compiled kernel.
        grid: blocks, as CuPy wants them.
        block: threads of a block.
        shared: bytes of shared memory.
        of: bytes from the input's first element.
        into: bytes from the output's.
        rest: the arguments behind the two arrays: table addresses and the kernel's structure.
        made: bytes of the array to write instead of the output; 0 for none.
        tables: what the addresses point into, to keep it.
    """

    function: Any
    grid: tuple[int]
    block: tuple[int]
    shared: int
    of: int
    into: int
    rest: tuple[int | NDArray[Any], ...]
    made: int
    tables: tuple[Any, ...]


def fill(kernel: Kernel, inputs: Sequence[Any], box: Box, out: Any) -> None:
    """Compute the output's elements inside `box` into `out`, asynchronously.

    What it keeps (plans, and tables of taps in device memory) belongs to the stream it was made for, so that uploads,
    uses and the reuse of freed memory follow each other without waiting.

    Args:
        kernel: the operator.
        inputs: the whole input tensors as `cupy.ndarray` on the current device; possibly strided, only read.
        box: which part of the output.
        out: array of the box's shape and the output's type; possibly strided, its old content undefined.
    """
    if any(start == stop for start, stop in box):
        return
    (x,) = inputs
    of, into = x.data.ptr, out.data.ptr
    layouts = Layout(x.dtype, x.strides, of % 16), Layout(out.dtype, out.strides, into % 16)
    device, stream = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    calls = _calls(device).of(
        (stream, kernel, box, *layouts), functools.partial(_make_calls, device, stream, kernel, box, *layouts)
    )
    if calls is None:
        kernel.fill(cupy, inputs, box, out)
        return
    made: list[Any] = []  # freed behind the last launch, in the stream's order
    for call in calls:
        source, target = of, into
        if call.made:
            made.append(cupy.empty(call.made, np.uint8))
            of = target = made[-1].data.ptr  # which the next launch reads
        call.function(call.grid, call.block, (source + call.of, target + call.into, *call.rest), shared_mem=call.shared)
    if isinstance(kernel, ResizeKernel):
        kernel.extrapolate(box, out)


def compile_variant(variant: Variant) -> Any:
    """The variant's kernel, compiled for the current device. The compiler's message is part of what it raises."""
    function = _function(variant)
    function.compile()
    return function


def clear_caches() -> None:
    """Forget all plans and tables, and so give back the device memory that they hold."""
    _calls.cache_clear()
    _tables.cache_clear()


@functools.cache
def _function(variant: Variant) -> Any:
    return cupy.RawKernel(source_of(variant.file), variant.kernel, options=variant.options)


@functools.cache
def _tables(device: int) -> Kept[Any]:
    del device
    return Kept(KEPT_BYTES)


@functools.cache
def _calls(device: int) -> Kept[tuple[_Call, ...] | None]:
    del device
    return Kept(KEPT_BYTES)


def _make_calls(
    device: int, stream: int, kernel: Kernel, box: Box, of: Layout, into: Layout
) -> tuple[int, tuple[_Call, ...] | None]:
    steps = plan(kernel, of, box, into)
    if steps is None:
        return CALL_BYTES, None
    calls = tuple([_call(device, stream, step) for step in steps])
    held = sum(table.nbytes for call in calls for table in call.tables if table is not None)
    return CALL_BYTES * len(calls) + held, calls


def _call(device: int, stream: int, step: Step) -> _Call:
    launch = step.launch
    tables = [None if part is None else _on_device(device, stream, part.table) for part in step.tables]
    places = [_place(part, table) for part, table in zip(step.tables, tables, strict=True)]
    return _Call(
        _function(launch.variant),
        (launch.grid,),
        (launch.block,),
        launch.shared,
        launch.of,
        launch.into,
        (*places, launch.parameters),
        step.made,
        tuple(tables),
    )


def _on_device(device: int, stream: int, table: Table) -> Any:
    """The table's array on the current device, copied there in the stream's order."""

    def make() -> tuple[int, Any]:
        array = array_of(table)
        return array.nbytes, cupy.asarray(array.view(np.uint8))

    return _tables(device).of((stream, table), make)


def _place(part: TablePart | None, array: Any) -> int:
    return 0 if part is None else int(array.data.ptr) + part.first
