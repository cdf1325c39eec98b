"""Scales and zero points of products, convolutions and pools, and quantizing what these make.

Integers less their zero points are multiplied and summed in float64, exactly, up to 2^53. Real numbers are computed in
float64 too and rounded once: `quantized = round(real / scale) + zero`, halves to even, limited to the output's type.
The pages leave the rounding open; ONNX's operators round so. A scale of 0 is not refused: what is not a number then
becomes the type's lowest number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.descriptors import OperatorDesc

from ..forms.in_blocks import in_blocks


def names_of(desc: OperatorDesc) -> tuple[tuple[str, tuple[str, ...]]]:
    """The parameter `names` of a form: the inputs that are there."""
    return (("names", tuple([slot.name for slot in desc.inputs])),)


def by_name(names: Sequence[str], inputs: Sequence[Any]) -> Mapping[str, Any]:
    """The inputs by the names of their slots."""
    return dict(zip(names, inputs, strict=True))


def along(xp: ModuleType, values: Any, rank: int, axis: int, span: tuple[int, int], absent: float) -> Any:
    """One value, or those of a span along an axis, as a float64 array that broadcasts to `rank` dimensions.

    Args:
        xp: the array library.
        values: one value or one for each entry of the axis, of any rank; None for an absent tensor.
        rank: dimensions of the tensor that the values scale.
        axis: index of the axis that the values belong to.
        span: the part of the axis that is wanted.
        absent: what stands for an absent tensor.
    """
    if values is None:
        return xp.full((1,) * rank, absent, "float64")
    flat = values.reshape(-1).astype("float64")
    flat = flat if flat.size == 1 else flat[slice(*span)]
    return flat.reshape([-1 if at == axis else 1 for at in range(rank)])


def centered(part: Any, zero: Any) -> Any:
    """Integers less a zero point, as float64."""
    if type(part) is np.ndarray:
        sizes: tuple[int, ...] = part.shape
        return in_blocks(np, np.subtract, np.empty(sizes), part, zero)
    made = part.astype("float64")
    made -= zero
    return made


def wrapped(sums: Any, out: Any) -> None:
    """Write whole numbers below 2^53 as INT32, modulo 2^32."""
    out[...] = sums.astype("int64")


def quantize(xp: ModuleType, real: Any, scale: Any, zero: Any, out: Any) -> None:
    """Write real numbers, whose array is overwritten, as integers of the output's type."""
    limits = xp.iinfo(out.dtype)
    real /= scale
    xp.rint(real, out=real)
    real += zero
    xp.fmax(real, float(limits.min), out=real)  # of NaN too
    xp.fmin(real, float(limits.max), out=real)
    out[...] = real
