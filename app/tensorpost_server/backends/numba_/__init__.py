"""The CPU, through loops that numba compiled ahead of time: optional, and preferred to the numpy backend where it is.

It runs what is worth running so: Tile, nearest neighbour and all copies for every type of fixed size; linear, cubic,
antialiased and gradients for float32, float16, uint8 and int8, summed in float32. It refuses everything else with the
reason, and the numpy backend takes it. Nearest and Tile are the same to the bit; sums are made of the same indices,
the same float32 weights and in the same order of taps as numpy's.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tensorpost.layout import Layout

from ...operators.base import Kernel
from ...operators.onnx import OnnxTileKernel
from ...operators.onnx_resize import FilterMap, ResizeKernel
from ...operators.separable import LONG_SUM, AxisMap, Rounding, SeparableKernel
from ...operators.tile import TileKernel
from ..base import Plan
from . import library
from .calls import KINDS, Blend, Gather, Kernels, Place, Tile
from .tables import most_taps

__all__ = ["NumbaBackend"]

LONGEST_AXIS = 1 << 27  # entries; with up to 16 channels an index still fits into int32
EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32

Filler = Tile | Gather | Blend
Make = Callable[[Kernels], Filler]


@dataclass(frozen=True, slots=True)
class NumbaBackend:
    """Runs the common plans on the CPU, several times faster than NumPy where sums are involved.

    Opening it loads compiled kernels from the cache; it never compiles.

    Attributes:
        threads: slices computed at the same time; the kernels let go of the interpreter lock.

    Raises:
        ImportError: numba is not installed.
        RuntimeError: its kernels are not compiled yet (`tensorpost warmup` does it), or not for this kind of machine.
        OSError: the cache cannot be read.
    """

    threads: int = 1
    name: str = "numba"
    device: str = f"cpu ({platform.machine()})"
    kernels: Kernels = field(default_factory=library.load, repr=False)

    def refuses(self, plan: Plan) -> str | None:
        """What it does not cover; None if it does."""
        made = _filler_for(plan.kernel, plan.output.layout.data_type.numpy_name, plan.output.layout.sizes)
        return made if isinstance(made, str) else None

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> NumbaRun:
        """Views of the inputs; nothing is copied."""
        layout = plan.output.layout
        make = _filler_for(plan.kernel, layout.data_type.numpy_name, layout.sizes)
        if isinstance(make, str):
            raise ValueError(f"this plan is refused: {make}")
        views = [slot.layout.view(memory) for slot, memory in zip(plan.inputs, inputs, strict=True)]
        item = layout.data_type.item_size
        kind = KINDS.get(layout.data_type.dtype.str, 0)
        source = Place(views[0].ctypes.data, tuple(step * item for step in plan.inputs[0].layout.strides), item, kind)
        return NumbaRun(plan, views, make(self.kernels), source, tuple(step * item for step in layout.strides), kind)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class NumbaRun:
    """A plan with its input's place in memory.

    Attributes:
        plan: what is computed.
        inputs: the arrays that `source` points into.
        filler: computes any box.
        source: where the input is.
        strides: bytes between entries of the output's dimensions.
        kind: number of the element type in the kernels.
    """

    plan: Plan
    inputs: list[Any]
    filler: Filler
    source: Place
    strides: tuple[int, ...]
    kind: int

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`."""
        slices = self.plan.slices
        piece = slices.piece(index)
        block = (np.zeros if slices.has_gaps else np.empty)(piece.computed, np.uint8)
        target = Place(block.ctypes.data, self.strides, self.source.item, self.kind)
        self.filler.fill(self.source, target, piece.box)
        return block.data

    def close(self) -> None:
        """Forget the inputs, so that their memory is free as soon as its owner lets go."""
        self.inputs = []


@lru_cache(maxsize=1024)
def _filler_for(kernel: Kernel, type_name: str, sizes: tuple[int, ...]) -> Make | str:
    """How a kernel is run here, or why it is not."""
    if type_name == "str":
        return "strings have no fixed size"
    if 0 in sizes:
        return lambda kernels: Tile(kernels, sizes)  # never called: there is no slice
    match kernel:
        case TileKernel(sizes=shape) | OnnxTileKernel(shape=shape):
            return lambda kernels: Tile(kernels, shape)
        case SeparableKernel():
            exact = kernel.accumulate == "float32"
            return _resampling(kernel.axes, type_name, exact=exact, anchored=kernel.rounding is Rounding.TRUNCATE)
        case ResizeKernel():
            if kernel.extrapolation_value is not None:
                return "it does not extrapolate"
            integer = type_name in ("int8", "uint8")
            bits = sum(axis.weight_bits for axis in kernel.axes if isinstance(axis, FilterMap))
            exact = not integer or (bits <= EXACT_WEIGHT_BITS and not kernel.round_each_axis)
            return _resampling(kernel.axes, type_name, exact=exact, anchored=False)
        case _:
            return f"it has no {type(kernel).__name__}"


def _resampling(axes: tuple[AxisMap | None, ...], type_name: str, *, exact: bool, anchored: bool) -> Make | str:
    maps = [axis for axis in axes if axis is not None]
    if any(max(axis.input_size, axis.output_size) > LONGEST_AXIS for axis in maps):
        return f"an axis has more than {LONGEST_AXIS} entries"
    gathers = [axis.taps(0, 1)[1] is None for axis in maps]
    if all(gathers):
        return lambda kernels: Gather(kernels, axes)
    if any(gathers):
        return "some axes are copied by index and others are summed"
    if type_name not in ("float32", "float16", "uint8", "int8"):
        return f"it sums float32, float16, uint8 and int8 only, not {type_name}"
    if not exact:
        return "the exact result needs sums in float64"
    if max(map(most_taps, maps)) >= LONG_SUM:
        return f"sums of {LONG_SUM} or more elements are numpy's"
    return lambda kernels: Blend.of(kernels, axes, anchored=anchored)
