"""Softmax, its logarithm and HARDMAX, along lines.

Choices where the pages are silent: FLOAT16 is computed in float32 and rounded once; the largest element of a line is
subtracted first, so nothing overflows; a line with NaN, with +infinity or of -infinity alone is NaN; NaN is the
largest in HARDMAX, as in TOP_K1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml

from ..forms import Array, Lines, cut_by_lines
from ..forms.in_blocks import in_blocks, same
from .registry import form_of_class


@form_of_class(
    dml.ActivationSoftmaxOperatorDesc, dml.ActivationSoftmax1OperatorDesc,
    dml.ActivationLogSoftmaxOperatorDesc, dml.ActivationLogSoftmax1OperatorDesc,
)  # fmt: skip
def softmax_form(desc: Any) -> Lines | Array:
    """`e^x / sum(e^x)` or its logarithm, along the axes together or the last one."""
    logarithm = desc.operator_type.startswith("ACTIVATION_LOG")
    lines = softmax_lines(desc.input_tensor.sizes, _axes(desc), logarithm=logarithm)
    return cut_by_lines(lines, desc.output_tensor.effective_strides, desc.output_tensor.dtype.name)


@form_of_class(dml.ActivationHardmaxOperatorDesc, dml.ActivationHardmax1OperatorDesc)
def hardmax_form(desc: Any) -> Lines | Array:
    """1 at the first of the largest elements, in row-major order of the axes."""
    lines = hardmax_lines(desc.input_tensor.sizes, _axes(desc))
    return cut_by_lines(lines, desc.output_tensor.effective_strides, desc.output_tensor.dtype.name)


def _axes(desc: Any) -> tuple[int, ...]:
    return tuple(sorted(set(getattr(desc, "axes", (len(desc.input_tensor.sizes) - 1,)))))


def softmax_lines(sizes: tuple[int, ...], axes: tuple[int, ...], *, logarithm: bool) -> Lines:
    """Softmax or its logarithm of a tensor of these sizes, along ascending axes together."""
    return Lines(_softmax, axes, sizes, (sizes,), ((("logarithm", logarithm), ("axes", axes)),), 12)


def hardmax_lines(sizes: tuple[int, ...], axes: tuple[int, ...]) -> Lines:
    """1 at the first of the largest elements of a tensor of these sizes, along ascending axes together."""
    return Lines(_hardmax, axes, sizes, (sizes,), ((("axes", axes),),), 12)


def _softmax(xp: ModuleType, x: Any, out: Any, logarithm: bool, axes: tuple[int, ...]) -> None:
    kind = x.dtype.char  # a type's name takes longer to make than a small softmax's maximum
    wide = "float64" if kind == "d" else "float32"  # which ONNX has
    if kind not in "df":
        x = in_blocks(xp, same, xp.empty_like(x, dtype=wide), x)
    shifted = in_blocks(xp, xp.subtract, xp.empty_like(x), x, xp.max(x, axis=axes, keepdims=True))
    powers = in_blocks(xp, xp.exp, xp.empty_like(x) if logarithm else shifted, shifted)
    total = xp.sum(powers, axis=axes, keepdims=True, dtype=wide)
    if logarithm:
        in_blocks(xp, xp.subtract, out, shifted, xp.log(total))
    else:
        in_blocks(xp, xp.divide, out, powers, total)


def _hardmax(xp: ModuleType, x: Any, out: Any, axes: tuple[int, ...]) -> None:
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    order = [*kept, *axes]
    turned = x.transpose(order)
    lines = turned.reshape([*[x.shape[axis] for axis in kept], -1])
    places = xp.unravel_index(xp.argmax(lines, axis=-1), [x.shape[axis] for axis in axes])
    others = [xp.arange(size).reshape([-1 if at == own else 1 for at in range(len(kept))])
              for own, size in enumerate([x.shape[axis] for axis in kept])]  # fmt: skip
    out[...] = 0
    out.transpose(order)[(*others, *places)] = 1
