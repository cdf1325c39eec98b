"""Which kernels compute a box of an operator's output, or that CuPy itself does.

Our kernels take Tile of every type, and resampling that copies elements of every type or sums float16, bfloat16,
float32 and integers of up to 32 bits in float32. CuPy's own array operations, through `Kernel.fill`, take the rest:

* sums in float64 (ONNX Resize of float64 and of most integers) and of complex numbers;
* 64-bit integers that are blended;
* an axis whose outputs share more than 2^23 taps, or one of whose outputs has more than 2^16;
* more loops than a launch has room for: more than 20 for Tile (DirectML's 8 dimensions need 16), more than about 10
  dimensions that cannot be joined for Resample;
* more than 2^31 - 1 threads of work in one box, or an input row of more than 2 GiB.

Either way the result is the operator's; only speed depends on the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...operators.base import Box, Kernel
from ...operators.onnx import OnnxTileKernel
from ...operators.onnx_resize import ResizeKernel
from ...operators.separable import SeparableKernel
from ...operators.tile import TileKernel
from .dimensions import Step
from .resampling import plan_resample
from .tiling import plan_tile

__all__ = ["Layout", "plan"]


@dataclass(frozen=True, slots=True)
class Layout:
    """What matters of an array on the device.

    Attributes:
        dtype: its elements.
        strides: in bytes.
        address: of its first element, modulo 16.
    """

    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    address: int


def plan(kernel: Kernel, of: Layout, box: Box, into: Layout) -> list[Step] | None:
    """The steps that fill a box that is not empty; None if CuPy must. ResizeKernel.extrapolate is not among them."""
    if of.dtype != into.dtype:
        return None
    item = of.dtype.itemsize
    match kernel:
        case TileKernel(sizes=sizes) | OnnxTileKernel(shape=sizes):
            launches = plan_tile(sizes, box, item, of.strides, into.strides, of.address, into.address)
            return None if launches is None else [Step(launch, {}) for launch in launches]
        case SeparableKernel():
            separable = kernel
        case ResizeKernel():
            separable = kernel.alone(of.dtype)
        case _:
            return None
    if separable is None:
        return None
    return plan_resample(
        separable.axes,
        separable.rounding,
        box,
        # Sums in float64 are nothing for our kernels; copies do not sum.
        of.dtype.name if separable.accumulate == "float32" else "float64",
        item,
        of.strides,
        into.strides,
        of.address,
        into.address,
    )
