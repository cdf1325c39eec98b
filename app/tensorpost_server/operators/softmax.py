"""Softmax, its logarithm and HARDMAX, along lines.

Choices where the pages are silent: FLOAT16 is computed in float32 and rounded once; the largest element of a line is
subtracted first, so nothing overflows; a line with NaN, with +infinity or of -infinity alone is NaN; NaN is the
largest in HARDMAX, as in TOP_K1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml

from ..forms import Lines
from .registry import form_of_class

__all__ = ["hardmax_form", "softmax_form"]


@form_of_class(
    dml.ActivationSoftmaxOperatorDesc, dml.ActivationSoftmax1OperatorDesc,
    dml.ActivationLogSoftmaxOperatorDesc, dml.ActivationLogSoftmax1OperatorDesc,
)  # fmt: skip
def softmax_form(desc: Any) -> Lines:
    """`e^x / sum(e^x)` or its logarithm, along the axes together or the last one."""
    logarithm = desc.operator_type.startswith("ACTIVATION_LOG")
    return _lines(desc, _softmax, (("logarithm", logarithm),), 12)


@form_of_class(dml.ActivationHardmaxOperatorDesc, dml.ActivationHardmax1OperatorDesc)
def hardmax_form(desc: Any) -> Lines:
    """1 at the first of the largest elements, in row-major order of the axes."""
    return _lines(desc, _hardmax, (), 12)


def _lines(desc: Any, function: Any, parameters: tuple[tuple[str, Any], ...], scratch: int) -> Lines:
    sizes = desc.input_tensor.sizes
    axes = tuple(sorted(set(getattr(desc, "axes", (len(sizes) - 1,)))))
    return Lines(function, axes, sizes, (sizes,), ((*parameters, ("axes", axes)),), scratch)


def _softmax(xp: ModuleType, x: Any, out: Any, logarithm: bool, axes: tuple[int, ...]) -> None:
    shifted = x.astype("float32") - xp.max(x, axis=axes, keepdims=True)
    powers = xp.exp(shifted)
    total = xp.sum(powers, axis=axes, keepdims=True, dtype="float32")
    out[...] = shifted - xp.log(total) if logarithm else powers / total


def _hardmax(xp: ModuleType, x: Any, out: Any, axes: tuple[int, ...]) -> None:
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    order = [*kept, *axes]
    turned = x.transpose(order)
    lines = turned.reshape([*[x.shape[axis] for axis in kept], -1])
    first = xp.argmax(lines, axis=-1)[..., None] == xp.arange(lines.shape[-1])
    out[...] = first.reshape(turned.shape).transpose(sorted(range(x.ndim), key=order.__getitem__))
