"""Generators: outputs that follow from the descriptor alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.layout import packed_strides

from ..forms import Box, BoxFunction
from .registry import form_of_class

__all__ = ["sequence_form"]


@form_of_class(dml.FillValueSequenceOperatorDesc)
def sequence_form(desc: dml.FillValueSequenceOperatorDesc) -> BoxFunction:
    """`ValueStart + k * ValueDelta`, rounded once for floating-point types and modulo 2^bits for integers."""
    strides = packed_strides(desc.output_tensor.sizes)
    return BoxFunction(_sequence, 0, (("strides", strides), ("start", desc.value_start), ("delta", desc.value_delta)))


def _sequence(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, strides: tuple[int, ...], start: float, delta: float
) -> None:
    del inputs
    integers = out.dtype.kind in "iu"
    index = xp.zeros((1,) * len(box), "uint64" if integers else "float64")
    for axis, ((low, high), stride) in enumerate(zip(box, strides, strict=True)):
        entries = xp.arange(low, high).astype(index.dtype) * index.dtype.type(stride)
        index = index + entries.reshape([-1 if at == axis else 1 for at in range(len(box))])
    if integers:
        wrap = 2**64 - 1
        out[...] = (index * index.dtype.type(int(delta) & wrap) + index.dtype.type(int(start) & wrap)).astype(out.dtype)
    else:
        out[...] = index * float(delta) + float(start)
