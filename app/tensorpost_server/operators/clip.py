"""Operators with a lower or an upper bound. Where Min is above Max, Min wins; NaN passes, and so does its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorpost import descriptors as dml

from ..forms import Pointwise
from ..forms.expression import maximum, minimum, where
from .elementwise_base import operands, pointwise, scaling
from .registry import form_of_class


def _bound(value: float, desc: Any) -> float:
    """A bound in the type of the tensor: truncated and saturated for integers without ScaleBias."""
    dtype = desc.input_tensor.dtype
    if dtype.kind in "iu" and scaling(desc) is None:
        limits = np.iinfo(dtype)
        return min(max(int(value), int(limits.min)), int(limits.max))
    if dtype.itemsize == 2:
        with np.errstate(over="ignore"):
            return float(np.float16(value))
    return value


@form_of_class(dml.ElementWiseClipOperatorDesc, dml.ElementWiseClip1OperatorDesc)
def clip_form(desc: dml.ElementWiseClipOperatorDesc | dml.ElementWiseClip1OperatorDesc) -> Pointwise:
    """`max(Min, min(x, Max))`."""
    low, high = _bound(desc.min, desc), _bound(desc.max, desc)
    (x,) = operands(desc)
    return pointwise(desc, maximum(minimum(x, high), low))


@form_of_class(dml.ElementWiseThresholdOperatorDesc)
def threshold_form(desc: dml.ElementWiseThresholdOperatorDesc) -> Pointwise:
    """`max(x, Min)`; the bound is cast as CLIP casts it."""
    (x,) = operands(desc)
    return pointwise(desc, maximum(x, _bound(desc.min, desc)))


@form_of_class(dml.ElementWiseClipGradOperatorDesc, dml.ElementWiseClipGrad1OperatorDesc)
def clip_grad_form(desc: dml.ElementWiseClipGradOperatorDesc | dml.ElementWiseClipGrad1OperatorDesc) -> Pointwise:
    """0 at the bounds and outside, so that the gradient is CLIP's with the bounds that CLIP has."""
    x, gradient = operands(desc)
    low, high = _bound(desc.min, desc), _bound(desc.max, desc)
    below, above = x <= low, x >= high
    if desc.input_tensor.dtype.kind in "iu":  # nothing is outside a bound that the type does not reach
        below = below if int(desc.min) >= low else x < low
        above = above if int(desc.max) <= high else x > high
    return pointwise(desc, where(below | above, 0, gradient))
