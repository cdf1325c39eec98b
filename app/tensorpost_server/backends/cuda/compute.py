"""Fills boxes of operators' outputs on CuPy's current device and stream.

The rule for what runs in our kernels and what in CuPy's array operations stands in planning.py. Kernels are compiled by
NVRTC when they are first launched; CuPy keeps the binaries in its own cache on disk (`CUPY_CACHE_DIR`), so that a new
process finds them.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms import Box, Form
from ...operators.onnx_resize import OnnxResize
from .dimensions import Step
from .planning import Layout, plan
from .tables import Kept, Table, array_of
from .variants import Variant, source_of

__all__ = ["clear_caches", "compile_variant", "fill"]

cupy: Any = importlib.import_module("cupy")  # it has no type stubs: whatever is CuPy's is Any in this module

KEPT_BYTES = 64 << 20  # on each device: of tables, and again of the tables of the plans made last
CALL_BYTES = 2 << 10  # about what a plan takes on the host
KEPT_KERNELS = 4096  # that have a number

_Layout = tuple[Any, tuple[int, ...], int]  # the fields of planning.Layout, which takes longer to make


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
        parameters: the kernel's structure, with the addresses of tables.
        made: bytes of the array to write instead of the output; 0 for none.
        tables: what the addresses point into, to keep it.
    """

    function: Any
    grid: tuple[int]
    block: tuple[int]
    shared: int
    of: int
    into: int
    parameters: NDArray[Any]
    made: int
    tables: tuple[Any, ...]


class _Numbers:
    """A number for each kernel, the same for equal ones: hashing all axes of one takes as long as a launch."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Form, int]] = {}  # which keeps the object, so that no other has its id
        self._by_value: dict[Form, int] = {}
        self._next = itertools.count()
        self._lock = threading.Lock()

    def of(self, kernel: Form) -> int:
        """Its number."""
        found = self._by_identity.get(id(kernel))
        if found is not None:
            return found[1]
        with self._lock:
            if len(self._by_identity) >= KEPT_KERNELS:
                self._by_identity.clear()
                self._by_value.clear()
            if kernel not in self._by_value:
                self._by_value[kernel] = next(self._next)
            number = self._by_value[kernel]
            self._by_identity[id(kernel)] = (kernel, number)
            return number


_NUMBERS = _Numbers()


def fill(kernel: Form, inputs: Sequence[Any], box: Box, out: Any) -> None:
    """Compute the output's elements inside `box` into `out`, asynchronously.

    What it keeps (plans, and tables of taps in device memory) belongs to the stream it was made for, so that uploads,
    uses and the reuse of freed memory follow each other without waiting.

    Args:
        kernel: the operator.
        inputs: the whole input tensors as `cupy.ndarray` on the current device; possibly strided, only read.
        box: which part of the output.
        out: array of the box's shape and the output's type; possibly strided, its old content undefined.
    """
    (x,) = inputs
    of, into = x.data.ptr, out.data.ptr
    device, stream = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    layouts = (x.dtype, x.strides, of % 16), (out.dtype, out.strides, into % 16)
    calls = _calls(device).of(
        (stream, _NUMBERS.of(kernel), box, layouts), lambda: _make_calls(device, stream, kernel, box, *layouts)
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
        call.function(
            call.grid, call.block, (source + call.of, target + call.into, call.parameters), shared_mem=call.shared
        )
    if isinstance(kernel, OnnxResize):
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
    device: int, stream: int, kernel: Form, box: Box, of: _Layout, into: _Layout
) -> tuple[int, tuple[_Call, ...] | None]:
    if any(start == stop for start, stop in box):
        return CALL_BYTES, ()
    steps = plan(kernel, Layout(*of), box, Layout(*into))
    if steps is None:
        return CALL_BYTES, None
    calls = tuple([_call(device, stream, step) for step in steps])
    return CALL_BYTES * len(calls) + sum(table.nbytes for call in calls for table in call.tables), calls


def _call(device: int, stream: int, step: Step) -> _Call:
    launch, tables = step.launch, list[Any]()
    parameters = launch.parameters.copy()
    for name, part in step.tables.items():
        tables.append(_on_device(device, stream, part.table))
        parameters[name] = tables[-1].data.ptr + part.first
    # Without its fields, which CuPy would have NumPy describe to it at every launch.
    parameters = parameters.view(f"V{parameters.nbytes}")
    return _Call(
        _function(launch.variant),
        (launch.grid,),
        (launch.block,),
        launch.shared,
        launch.of,
        launch.into,
        parameters,
        step.made,
        tuple(tables),
    )


def _on_device(device: int, stream: int, table: Table) -> Any:
    """The table's array on the current device, copied there in the stream's order."""

    def make() -> tuple[int, Any]:
        array = array_of(table)
        return array.nbytes, cupy.asarray(array.view(np.uint8))

    return _tables(device).of((stream, table), make)
