"""Convolutions: a sum over the filter's elements of matrix products over the channels, by the array library.

FLOAT16 is multiplied and summed in float32 and rounded once; the order of these sums is the library's. Integers are
summed exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import ConvolutionMode

from ..forms import Box, BoxFunction, Pointwise, Window
from ..forms.base import go_on
from ..forms.float16 import wide
from .product import activation_form, finish, product_scratch
from .quantized import along, by_name, centered, names_of, quantize, wrapped
from .registry import form_of_class


@form_of_class(dml.ConvolutionOperatorDesc)
def convolution_form(desc: dml.ConvolutionOperatorDesc) -> BoxFunction:
    """A sum over the filter's elements of a matrix product over the channels (DML_CONVOLUTION_OPERATOR_DESC)."""
    # OutputPadding appends zeros, which DirectML gives the activation but no bias.
    padded = zip(desc.output_tensor.sizes[2:], desc.output_padding, strict=True)
    limits = tuple([size - padding for size, padding in padded])
    parameters = (
        ("flipped", desc.mode is ConvolutionMode.CONVOLUTION),
        ("limits", limits),
        ("activation", activation_form(desc.fused_activation)),
    )
    return _form(desc, _convolve, parameters, 4)


def _form(desc: Any, function: Any, parameters: tuple[tuple[str, Any], ...], item: int) -> BoxFunction:
    filters = desc.filter_tensor.sizes
    window = Window(filters[2:], desc.strides, desc.dilations, desc.start_padding, desc.backward)
    common = (("window", window), ("groups", desc.group_count))
    # What a tap reads is copied once more, into rows.
    scratch = product_scratch(desc, item) + item * math.prod(desc.input_tensor.sizes)
    least = 1000 * math.prod(filters[2:])  # each tap of the filter is a few calls of the array library
    return BoxFunction(function, len(desc.inputs), (*common, *parameters), 2 * math.prod(filters[1:]), least, scratch)


def _convolve(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    window: Window,
    groups: int,
    flipped: bool,
    limits: tuple[int, ...],
    activation: Pointwise | None,
) -> None:
    x, filters, *bias = inputs
    images, channels, *spans = box
    summed = tuple([(low, max(low, min(high, limit))) for (low, high), limit in zip(spans, limits, strict=True)])
    made = xp.zeros(out.shape, "float32" if out.dtype.name == "float16" else out.dtype)
    inside = (slice(None), slice(None), *[slice(0, high - low) for low, high in summed])
    if flipped:
        filters = filters[(slice(None), slice(None), *[slice(None, None, -1)] * len(spans))]
    convolve(xp, x, wide(xp, filters), (images, channels, *summed), made[inside], window, groups)
    if bias:
        made[inside] += wide(xp, bias[0][:, slice(*channels)])
    finish(xp, made, out, activation)


@form_of_class(dml.ConvolutionIntegerOperatorDesc)
def integer_form(desc: dml.ConvolutionIntegerOperatorDesc) -> BoxFunction:
    """The sums of `(input - zero) * (filter - zero)`, modulo 2^32; padding is 0 after the difference."""
    return _form(desc, convolve_integers, names_of(desc), 8)


@form_of_class(dml.QuantizedLinearConvolutionOperatorDesc)
def quantized_form(desc: dml.QuantizedLinearConvolutionOperatorDesc) -> BoxFunction:
    """`(sums + bias) * input scale * filter scale`, quantized; the bias is as ONNX's QLinearConv has it."""
    return _form(desc, convolve_quantized, names_of(desc), 8)


def _integer_sums(
    xp: ModuleType, named: Mapping[str, Any], box: Box, shape: Sequence[int], window: Window, groups: int
) -> Any:
    x, filters = named["input"], named["filter"]
    zero = along(xp, named.get("input_zero_point"), x.ndim, 1, (0, 1), 0)
    zeros = along(xp, named.get("filter_zero_point"), x.ndim, 0, (0, filters.shape[0]), 0)
    made = xp.zeros(shape, "float64")
    convolve(xp, x, centered(filters, zeros), box, made, window, groups, partial(_less, zero))
    return made


def _less(zero: Any, xp: ModuleType, part: Any) -> Any:
    del xp
    return centered(part, zero)


def convolve_integers(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, window: Window, groups: int, names: tuple[str, ...]
) -> None:
    """Fill a box with the sums of integers, modulo 2^32."""
    wrapped(_integer_sums(xp, by_name(names, inputs), box, out.shape, window, groups), out)


def convolve_quantized(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, window: Window, groups: int, names: tuple[str, ...]
) -> None:
    """Fill a box with the sums, scaled and quantized."""
    named = by_name(names, inputs)
    made = _integer_sums(xp, named, box, out.shape, window, groups)
    if "bias" in named:
        made += named["bias"][:, slice(*box[1])]
    made *= along(xp, named["input_scale"], out.ndim, 1, (0, 1), 1)
    made *= along(xp, named["filter_scale"], out.ndim, 1, box[1], 1)
    scale, zero = (along(xp, named.get(f"output_{name}"), out.ndim, 1, (0, 1), 0) for name in ("scale", "zero_point"))
    quantize(xp, made, scale, zero, out)


def convolve(
    xp: ModuleType, x: Any, filters: Any, box: Box, made: Any, window: Window, groups: int, widened: Any = wide
) -> None:
    """Add the sums of a box of a cross-correlation to an array of its shape.

    Args:
        xp: the array library.
        x: the input.
        filters: output channels x channels of a group x taps, in the type that is multiplied in; transposed, input
            channels x output channels of a group x taps.
        box: the box of the output.
        made: what is added to, of that type too.
        window: the window, over the spatial dimensions.
        groups: how many groups of channels there are.
        widened: function from `(xp, part)` of the input to the same in that type.
    """
    images, (channel, end), *spans = box
    own = (filters.shape[1] * groups if window.transposed else filters.shape[0]) // groups  # output channels of a group
    count = x.shape[1] // groups
    region = window.region(x.shape[2:], tuple(spans))
    inner = window.inside(region)
    axes = [
        list(inner.moves(axis, high - low, span))
        for axis, ((low, high), span) in enumerate(zip(region, spans, strict=True))
    ]
    every = (slice(None), slice(None))
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        inside = slice(group * count, (group + 1) * count)
        source = widened(xp, x[(slice(*images), inside, *[slice(*span) for span in region])])
        mine = slice(low - group * own, high - group * own)
        weights = filters[inside, mine].swapaxes(0, 1) if window.transposed else filters[low:high]
        target = made[:, low - channel : high - channel]
        for taps in itertools.product(*axes):
            go_on()
            part = source[(*every, *[read for _, (read, _) in taps])]
            product = xp.matmul(weights[(*every, *[tap for tap, _ in taps])], part.reshape(*part.shape[:2], -1))
            target[(*every, *[write for _, (_, write) in taps])] += product.reshape(-1, high - low, *part.shape[2:])
