"""Products by the array library's matrix multiplication: GEMM and CONVOLUTION.

FLOAT16 is multiplied and summed in float32 and rounded once. The order of sums is the library's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import Activation, ConvolutionDirection, ConvolutionMode, MatrixTransform, OperatorDesc

from ..forms import Box, BoxFunction
from ..forms.base import go_on, whole_box
from ..forms.pointwise import Pointwise
from .registry import form_of, form_of_class

__all__ = ["convolution_form", "gemm_form"]


@form_of_class(dml.GemmOperatorDesc)
def gemm_form(desc: dml.GemmOperatorDesc) -> BoxFunction:
    """`FusedActivation(Alpha * A' x B' + Beta * C)` (DML_GEMM_OPERATOR_DESC); without C, Beta has no effect."""
    inner = desc.a_tensor.sizes[-2 if desc.trans_a is MatrixTransform.TRANSPOSE else -1]
    parameters = (
        ("transposed", (desc.trans_a is MatrixTransform.TRANSPOSE, desc.trans_b is MatrixTransform.TRANSPOSE)),
        ("alpha", desc.alpha),
        ("beta", desc.beta),
        ("activation", _activation(desc.fused_activation)),
    )
    return BoxFunction(_gemm, len(desc.inputs), parameters, 2 * inner, scratch=_scratch(desc))


def _scratch(desc: OperatorDesc) -> int:
    """Operands in the type that they are multiplied in, as libraries copy them, the sums and a summand."""
    elements = [math.prod(slot.layout.sizes) for slot in (*desc.inputs, *desc.outputs)]
    item = max(4, desc.outputs[0].layout.data_type.item_size)
    return item * (sum(elements) + elements[-1])


def _gemm(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    transposed: tuple[bool, bool],
    alpha: float,
    beta: float,
    activation: Pointwise | None,
) -> None:
    a, b = [xp.swapaxes(x, -1, -2) if turned else x for x, turned in zip(inputs[:2], transposed, strict=True)]
    *leading, rows, columns = [slice(*span) for span in box]
    wide = "float32" if out.dtype.name == "float16" else out.dtype
    left, right = a[(*leading, rows, slice(None))], b[(*leading, slice(None), columns)]
    made = xp.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
    made *= made.dtype.type(alpha)
    if len(inputs) > 2:
        made += inputs[2][(*leading, rows, columns)].astype(wide, copy=False) * made.dtype.type(beta)
    _finish(xp, made, out, activation)


@form_of_class(dml.ConvolutionOperatorDesc)
def convolution_form(desc: dml.ConvolutionOperatorDesc) -> BoxFunction:
    """A sum over the filter's elements of a matrix product over the channels (DML_CONVOLUTION_OPERATOR_DESC)."""
    window = desc.filter_tensor.sizes
    # OutputPadding appends zeros to the sums; bias and activation are applied to them as well.
    padded = zip(desc.output_tensor.sizes[2:], desc.output_padding, strict=True)
    limits = tuple([size - padding for size, padding in padded])
    parameters = (
        ("flipped", desc.mode is ConvolutionMode.CONVOLUTION),
        ("backward", desc.direction is ConvolutionDirection.BACKWARD),
        ("strides", desc.strides),
        ("dilations", desc.dilations),
        ("start", desc.start_padding),
        ("limits", limits),
        ("groups", desc.group_count),
        ("activation", _activation(desc.fused_activation)),
    )
    least = 1000 * math.prod(window[2:])  # each tap of the filter is a few calls of the array library
    work = 2 * math.prod(window[1:])
    return BoxFunction(_convolve, len(desc.inputs), parameters, work, least, _scratch(desc))


def _convolve(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    flipped: bool,
    backward: bool,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    start: tuple[int, ...],
    limits: tuple[int, ...],
    groups: int,
    activation: Pointwise | None,
) -> None:
    x, window, *bias = inputs
    wide = "float32" if out.dtype.name == "float16" else out.dtype
    (first, last), (channel, end), *spans = box
    summed = [(low, min(high, limit)) for (low, high), limit in zip(spans, limits, strict=True)]
    own = (window.shape[1] * groups if backward else window.shape[0]) // groups  # output channels of a group
    made = xp.zeros(out.shape, wide)
    x = x[first:last]
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        count = x.shape[1] // groups
        source = x[:, group * count : (group + 1) * count].astype(wide, copy=False)
        if backward:
            weights = window[group * count : (group + 1) * count, low - group * own : high - group * own].swapaxes(0, 1)
        else:
            weights = window[low:high]
        weights = weights.astype(wide, copy=False)
        target = made[:, low - channel : high - channel]
        for taps in itertools.product(*map(range, window.shape[2:])):
            go_on()
            sizes = zip(taps, window.shape[2:], strict=True)
            at = tuple([size - 1 - tap if flipped else tap for tap, size in sizes])
            pairs = [
                (_scattered if backward else _gathered)(*numbers)
                for numbers in zip(taps, x.shape[2:], summed, strides, dilations, start, strict=True)
            ]
            if any(pair is None for pair in pairs):
                continue
            reads, writes = zip(*[pair for pair in pairs if pair is not None], strict=True)
            part = source[(slice(None), slice(None), *reads)]
            product = xp.matmul(weights[(slice(None), slice(None), *at)], part.reshape(*part.shape[:2], -1))
            target[(slice(None), slice(None), *writes)] += product.reshape(-1, high - low, *part.shape[2:])
    if bias:
        made += bias[0][:, channel:end].astype(wide, copy=False)
    _finish(xp, made, out, activation)


def _gathered(
    tap: int, size: int, span: tuple[int, int], stride: int, dilation: int, start: int
) -> tuple[slice, slice] | None:
    """Which inputs a filter element reads for the outputs of a span, and which outputs those are; None for none."""
    offset = tap * dilation - start
    low = max(span[0], -(offset // stride))
    high = min(span[1], (size - 1 - offset) // stride + 1)
    if low >= high:
        return None
    return slice(low * stride + offset, (high - 1) * stride + offset + 1, stride), slice(low - span[0], high - span[0])


def _scattered(
    tap: int, size: int, span: tuple[int, int], stride: int, dilation: int, start: int
) -> tuple[slice, slice] | None:
    """As `_gathered`, of the transposed convolution: input i adds to output i * stride + offset."""
    offset = tap * dilation - start
    low = max(0, -((offset - span[0]) // stride))
    high = min(size, (span[1] - 1 - offset) // stride + 1)
    if low >= high:
        return None
    begin = low * stride + offset - span[0]
    return slice(low, high), slice(begin, begin + (high - low - 1) * stride + 1, stride)


def _activation(desc: Activation | None) -> Pointwise | None:
    if desc is None:
        return None
    form = form_of(desc)
    assert isinstance(form, Pointwise)
    return form


def _finish(xp: ModuleType, made: Any, out: Any, activation: Pointwise | None) -> None:
    if activation is None:
        out[...] = made
    else:
        activation.fill(xp, [made], whole_box(made.shape), out)
