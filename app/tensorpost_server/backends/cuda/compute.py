"""Fills boxes of operators' outputs on CuPy's current device and stream.

The rule for what runs in our kernels and what in CuPy's array operations stands in launch_plan.py. Kernels are compiled
by NVRTC when they are first launched, unless `kernel_files.py` has them; CuPy keeps the binaries of all but expressions
in its own cache on disk (`CUPY_CACHE_DIR`), so that a new process finds them, unless `CUPY_CACHE_IN_MEMORY=1`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...forms import Box, Form, FusedLines, SqueezedLines
from ...forms.onnx_resize import OnnxResize
from . import kernel_files
from .dimensions import Step
from .launch_plan import plan
from .launches import ArrayLayout
from .tap_tables import ByteCache, KernelTable, array_of
from .variants import Variant

cupy: Any = importlib.import_module("cupy")  # it has no type stubs: whatever is CuPy's is Any in this module

KEPT_BYTES = 64 << 20  # on each device: of tables, and again of the tables of the plans made last
CALL_BYTES = 2 << 10  # about what a plan takes on the host
KEPT_FORMS = 4096  # that have a number
KEPT_FUNCTIONS = 1024  # compiled kernels; the variants of files are fewer than half of them

_LayoutFields = tuple[Any, tuple[int, ...], int]  # the fields of ArrayLayout, which takes longer to make


@dataclass(frozen=True, slots=True)
class _BoundLaunch:
    """A launch with everything but the arrays.

    Attributes:
        function: the compiled kernel.
        grid: blocks, as CuPy wants them.
        block: threads of a block.
        shared: bytes of shared memory.
        sources: index of the input of each array that is read, and bytes from the input's first element.
        target: bytes from the output's first element.
        parameters: the kernel's structure, with the addresses of tables.
        made: bytes of the array to write instead of the output, which the next call reads as its input; 0 for none.
        tables: what the addresses point into, to keep it.
    """

    function: Any
    grid: tuple[int]
    block: tuple[int]
    shared: int
    sources: tuple[tuple[int, int], ...]
    target: int
    parameters: NDArray[Any]
    made: int
    tables: tuple[Any, ...]


class _Numbers:
    """A number for each form, the same for equal ones: hashing all axes of one takes as long as a launch."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Form, int]] = {}  # which keeps the object, so that no other has its id
        self._by_value: dict[Form, int] = {}
        self._next = itertools.count()
        self._lock = threading.Lock()

    def number(self, form: Form) -> int:
        """The number of this form; equal forms have the same one."""
        found = self._by_identity.get(id(form))
        if found is not None:
            return found[1]
        with self._lock:
            if len(self._by_identity) >= KEPT_FORMS:
                self._by_identity.clear()
                self._by_value.clear()
            if form not in self._by_value:
                self._by_value[form] = next(self._next)
            number = self._by_value[form]
            self._by_identity[id(form)] = (form, number)
            return number


_NUMBERS = _Numbers()


def fill(form: Form, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
    """Compute an output's elements inside `box` into `out`, asynchronously.

    What it keeps (plans, and tables of taps in device memory) belongs to the stream it was made for, so that uploads,
    uses and the reuse of freed memory follow each other without waiting.

    Args:
        form: what is computed; one that is computed box by box.
        inputs: the whole input tensors as `cupy.ndarray` on the current device; possibly strided, only read.
        box: which part of the output.
        out: array of the box's shape and the output's type; possibly strided, its old content undefined.
        output: which output.
    """
    fill_keeping(None, form, inputs, box, out, output)


def fill_keeping(
    keep: list[Any] | None, form: Form, inputs: Sequence[Any], box: Box, out: Any, output: int = 0
) -> None:
    """`fill`, whose kernels are launched again later, as those of a captured plan.

    Args:
        keep: takes what the kernels read beside the inputs; None to keep nothing.
        form: see `fill`.
        inputs: see `fill`.
        box: see `fill`.
        out: see `fill`.
        output: see `fill`.
    """
    if isinstance(form, SqueezedLines):
        box, out, form = form.with_axes(box), cupy.expand_dims(out, form.axes), form.lines
    if isinstance(form, FusedLines):
        form.fill_parts(cupy, inputs, box, out, partial(fill_keeping, keep))
        return
    addresses = [x.data.ptr for x in inputs]
    target = out.data.ptr
    layouts = tuple([(x.dtype, x.strides, at % 16) for x, at in zip(inputs, addresses, strict=True)])
    layout = (out.dtype, out.strides, target % 16)
    device, stream = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    calls = _calls(device).get(
        (stream, _NUMBERS.number(form), box, output, layouts, layout),
        lambda: _make_calls(device, stream, form, box, output, layouts, layout, captures=keep is not None),
    )
    if calls is None:
        form.fill(cupy, inputs, box, out, output)
        return
    if keep is not None:
        keep.append(calls)
    made: list[Any] = []  # freed after the last launch, in the stream's order
    for call in calls:
        places = [addresses[number] + start for number, start in call.sources]
        if call.made:
            made.append(cupy.empty(call.made, np.uint8))
            addresses = [made[-1].data.ptr]
            places.append(addresses[0])
        else:
            places.append(target + call.target)
        call.function(call.grid, call.block, (*places, call.parameters), shared_mem=call.shared)
    if isinstance(form, OnnxResize):
        form.extrapolate(box, out)


def clear_caches() -> None:
    """Forget all plans and tables, and so give back the device memory that they hold."""
    _calls.cache_clear()
    _tables.cache_clear()


@functools.lru_cache(maxsize=KEPT_FUNCTIONS)
def _function(device: int, variant: Variant) -> Any:
    compiled = kernel_files.find(variant, cupy.cuda.Device(device).compute_capability)
    if compiled is None:
        if not variant.prelude:
            return cupy.RawKernel(variant.source, variant.kernel, options=variant.options)
        # RawKernel would keep every kernel there ever was. In memory: this needs no folder that can be written to.
        compiled, _ = cupy.cuda.compiler.compile_using_nvrtc(
            variant.source, kernel_files.options_of(variant), filename=variant.file, cache_in_memory=True
        )
    return _loaded(compiled, variant)


def _loaded(binary: Any, variant: Variant) -> Any:
    module = cupy.cuda.function.Module()
    module.load(binary)
    return module.get_function(variant.kernel)


@functools.cache
def _tables(device: int) -> ByteCache[Any]:
    del device
    return ByteCache(KEPT_BYTES)


@functools.cache
def _calls(device: int) -> ByteCache[tuple[_BoundLaunch, ...] | None]:
    del device
    return ByteCache(KEPT_BYTES)


def _make_calls(
    device: int, stream: int, form: Form, box: Box, output: int, inputs: Sequence[_LayoutFields], out: _LayoutFields,
    *, captures: bool,
) -> tuple[int, tuple[_BoundLaunch, ...] | None]:  # fmt: skip
    if any(start == stop for start, stop in box):
        return CALL_BYTES, ()
    steps = plan(form, [ArrayLayout(*x) for x in inputs], box, ArrayLayout(*out), output)
    if steps is None:
        return CALL_BYTES, None
    if captures and any(step.tables for step in steps):
        # Its upload would be part of the capture, which may be refused, and the table would be kept without elements.
        raise RuntimeError("the tables of a step are not there yet, and are not uploaded while a stream is captured")
    calls = tuple([_call(device, stream, step) for step in steps])
    return CALL_BYTES * (1 + len(calls)) + sum(table.nbytes for call in calls for table in call.tables), calls


def _call(device: int, stream: int, step: Step) -> _BoundLaunch:
    launch, tables = step.launch, list[Any]()
    parameters = launch.parameters.copy()
    for name, part in step.tables.items():
        tables.append(_on_device(device, stream, part.table))
        parameters[name] = tables[-1].data.ptr + part.first
    # Without its fields, which CuPy would have NumPy describe to it at every launch.
    parameters = parameters.view(f"V{parameters.nbytes}")
    function, grid, block = _function(device, launch.variant), (launch.grid,), (launch.block,)
    return _BoundLaunch(
        function, grid, block, launch.shared, launch.sources, launch.target, parameters, step.made, tuple(tables)
    )


def _on_device(device: int, stream: int, table: KernelTable) -> Any:
    """The table's array on the current device, copied there in the stream's order."""

    def make() -> tuple[int, Any]:
        array = array_of(table)
        return array.nbytes, cupy.asarray(array.view(np.uint8))

    return _tables(device).get((stream, table), make)
