"""What a form is: one of a closed set of ways to compute, with all attributes of an operator in it.

A form is a frozen, hashable, picklable value made from a descriptor or a node once. It holds no arrays and knows no
device. Its methods compute with an array library `xp`, NumPy or CuPy, and use only what both have; a backend may
replace them by kernels of its own.

================  ========================================================  ===================================
form              outputs are made of                                       files
================  ========================================================  ===================================
`Copies`          strided boxes of inputs, over a fill value                `copies.py`, `copy_loops.py`
`Pointwise`       an expression of the inputs' elements at the same place   `pointwise.py`, `expression.py`
`Separable`       a few weighted elements along each axis                   `separable.py`, `axis_*.py`, `axes.py`
`OnnxResize`      the same, rounded and extrapolated as ONNX says           `onnx_resize.py`
`Lines`           whole lines along some axes                               `arrays.py`
`BoxFunction`     anything that can be computed box by box                  `arrays.py`
`WindowFunction`  windows of one input, channel by channel                  `windows.py`
`Array`           whole inputs, all outputs together                        `arrays.py`
================  ========================================================  ===================================

What an axis of `Separable` and `OnnxResize` reads is an axis map (`axes.py`): `resample_axes.py` has DirectML's,
`onnx_axes.py` ONNX's.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

from tensorpost.layout import Layout

from .index_ranges import IndexRange

__all__ = ["Abandoned", "Box", "BoxForm", "Form", "Reads", "blocks", "extents", "go_on", "stoppable", "whole_box"]

Box = tuple[tuple[int, int], ...]
"""Half-open ranges of coordinates, one per dimension: a rectangular part of a tensor."""

Reads = Box | None
"""The part of an input that is read; None for the whole of it, where a form cannot know."""


def extents(box: Box) -> list[int]:
    """Elements of the box per dimension."""
    return [stop - start for start, stop in box]


def whole_box(sizes: Sequence[int]) -> Box:
    """All coordinates of a tensor of these sizes."""
    return tuple([(0, size) for size in sizes])


def blocks(box: Box, most: int) -> Iterator[Box]:
    """Cut the box into parts of at most `most` elements, in memory order."""
    if math.prod(extents(box)) <= most:
        return iter((box,))
    ranges: list[list[tuple[int, int]]] = []
    room = most
    for start, stop in reversed(box):
        extent = min(stop - start, max(1, room))
        ranges.append([(low, min(low + extent, stop)) for low in range(start, stop, extent)])
        room //= extent
    return itertools.product(*reversed(ranges))


class Form(Protocol):
    """A way to compute the outputs of an operation from its inputs, box by box."""

    @property
    def computed_whole(self) -> bool:
        """Whether `compute` computes all outputs together, in full, instead of `fill` box by box."""
        ...

    @property
    def library(self) -> str:
        """The library that computes it on every backend, as ONNX Runtime; empty if the backend does."""
        ...

    @property
    def index_range(self) -> IndexRange | None:
        """What the elements of an input must lie in (ONNX's indices); None if any are allowed."""
        ...

    @property
    def input_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes that packed inputs are read with, one for each input that is read at all; empty for their own."""
        ...

    @property
    def weight(self) -> int:
        """How many elements that are just added up take as long as one element of its work."""
        ...

    @property
    def cut_weight(self) -> int:
        """The same, for the size of slices: more where a small slice costs no more than its part of a large one."""
        ...

    @property
    def reads_again(self) -> bool:
        """Whether every slice reads again what others have read."""
        ...

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """How it reads an input: as it lies, or broadcast.

        Args:
            layout: the input's layout.
            sizes: the sizes of the first output.
        """
        ...

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """Which part of each input a box of an output depends on; never less than it reads."""
        ...

    def work(self, box: Box, output: int = 0) -> int:
        """Estimate of the elements that are read and combined for a box of an output; at least those of the box."""
        ...

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """Compute the elements of one output inside `box` into `out`.

        Args:
            xp: the array library, `numpy` or `cupy`.
            inputs: the whole input tensors as arrays of their sizes, in binding order; possibly strided, read-only.
            box: which part of the output.
            out: array of the box's shape and the output's dtype; possibly strided, its old content undefined.
            output: which output, in binding order.

        Where a library sums (products, reductions), the order of the sums, and so the last bits, may depend on the box.
        """
        ...

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """Upper bound of the memory that a box takes on the CPU beside inputs and result, bytes.

        Blocks of a size that does not depend on the tensors are not counted.
        """
        ...

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        """All outputs in full, as arrays of their sizes and dtypes; called only where `computed_whole` is true."""
        ...


class BoxForm:
    """Base of forms that are computed box by box: their part of `Form` that is the same for all."""

    __slots__ = ()

    computed_whole = False
    library = ""
    index_range: IndexRange | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    weight = 1
    reads_again = False

    @property
    def cut_weight(self) -> int:
        """See `Form.cut_weight`: no other than its weight."""
        return self.weight

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """See `Form.operand`: as it lies."""
        del sizes
        return layout

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: blocks only."""
        del box, output
        return 0

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        """Never called: `computed_whole` is false."""
        del xp, inputs
        raise AssertionError(f"{type(self).__name__} is computed box by box")


class Abandoned(Exception):  # no error: the request was cancelled
    """A computation ended early because its result is not needed any more."""


class _Stop(threading.local):
    event: threading.Event | None = None


_STOP = _Stop()


@contextmanager
def stoppable(stop: threading.Event) -> Generator[None]:
    """Inside, computations of this thread end early with `Abandoned` once `stop` is set."""
    before, _STOP.event = _STOP.event, stop
    try:
        yield
    finally:
        _STOP.event = before


def go_on() -> None:
    """Check between two blocks of a computation whether its result is still needed.

    Raises:
        Abandoned: the result is not needed any more.
    """
    if _STOP.event is not None and _STOP.event.is_set():
        raise Abandoned
