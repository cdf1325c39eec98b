"""Which kernels compute a box of an operator's output, or that CuPy itself does.

Our kernels take Tile of every type, and resampling that copies elements of every type or sums float16, bfloat16,
float32 and integers of up to 32 bits in float32. CuPy's own array operations, through `Form.fill`, take the rest:

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

from ...forms import Box, Form
from ...forms.separable import Separable
from ...operators.onnx_resize import OnnxResize
from .dimensions import Step
from .resampling import plan_resample

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


def plan(kernel: Form, of: Layout, box: Box, into: Layout) -> list[Step] | None:
    """The steps that fill a box that is not empty; None if CuPy must. OnnxResize.extrapolate is not among them."""
    if of.dtype != into.dtype:
        return None
    item = of.dtype.itemsize
    match kernel:
        case Separable():
            separable = kernel
        case OnnxResize():
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
