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
from ..forms.float16 import widen
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
    left, right = a[(*leading, rows, slice(None))], b[(*leading, slice(None), columns)]
    made = xp.matmul(_wide(xp, left), _wide(xp, right))
    made *= made.dtype.type(alpha)
    if len(inputs) > 2:
        made += _wide(xp, inputs[2][(*leading, rows, columns)]) * made.dtype.type(beta)
    _finish(xp, made, out, activation)


@form_of_class(dml.ConvolutionOperatorDesc)
def convolution_form(desc: dml.ConvolutionOperatorDesc) -> BoxFunction:
    """A sum over the filter's elements of a matrix product over the channels (DML_CONVOLUTION_OPERATOR_DESC)."""
    window = desc.filter_tensor.sizes
    # OutputPadding appends zeros, which DirectML gives the activation but no bias.
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
    (first, last), (channel, end), *spans = box
    summed = [(low, min(high, limit)) for (low, high), limit in zip(spans, limits, strict=True)]
    own = (window.shape[1] * groups if backward else window.shape[0]) // groups  # output channels of a group
    made = xp.zeros(out.shape, "float32" if out.dtype.name == "float16" else out.dtype)
    move = _scattered if backward else _gathered
    axes = [
        [move(tap, size, span, *steps) for tap in range(taps)]
        for taps, size, span, *steps in zip(
            window.shape[2:], x.shape[2:], summed, strides, dilations, start, strict=True
        )
    ]
    region = [_region([pair[0] for pair in axis if pair is not None]) for axis in axes]
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        count = x.shape[1] // groups
        inside = slice(group * count, (group + 1) * count)
        source = _wide(xp, x[(slice(first, last), inside, *region)])
        weights = (
            window[inside, low - group * own : high - group * own].swapaxes(0, 1) if backward else window[low:high]
        )
        weights = _wide(xp, weights)
        target = made[:, low - channel : high - channel]
        for taps in itertools.product(*map(enumerate, axes)):
            go_on()
            at = tuple([-1 - tap if flipped else tap for tap, _ in taps])
            pairs = [pair for _, pair in taps if pair is not None]
            if len(pairs) < len(taps):
                continue
            reads = [
                slice(read.start - around.start, read.stop - around.start, read.step)
                for (read, _), around in zip(pairs, region, strict=True)
            ]
            part = source[(slice(None), slice(None), *reads)]
            product = xp.matmul(weights[(slice(None), slice(None), *at)], part.reshape(*part.shape[:2], -1))
            writes = [write for _, write in pairs]
            target[(slice(None), slice(None), *writes)] += product.reshape(-1, high - low, *part.shape[2:])
    if bias:
        inside = tuple([slice(0, max(0, high - low)) for low, high in summed])
        made[(slice(None), slice(None), *inside)] += _wide(xp, bias[0][:, channel:end])
    _finish(xp, made, out, activation)


def _wide(xp: ModuleType, x: Any) -> Any:
    """The array in the type that it is multiplied in."""
    return widen(xp, x) if x.dtype.name == "float16" else x


def _region(reads: Sequence[slice]) -> slice:
    """All entries of an axis from the first to the last one that is read."""
    return slice(min([read.start for read in reads], default=0), max([read.stop for read in reads], default=0))


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
