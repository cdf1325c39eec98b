"""Convolutions: a sum over the filter's elements of matrix products over the channels, by the array library.

FLOAT16 is multiplied and summed in float32 and rounded once; the order of these sums is the library's. Integers are
summed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import ConvolutionMode

from ..forms import Box, BoxFunction, Pointwise, Window
from ..forms.base import blocks, extents, go_on, whole_box
from ..forms.float16 import wide
from ..forms.scratch import scratch
from .product import activation_form, finish, product_scratch, sums_of
from .quantized import along, by_name, centered, names_of, quantize, wrapped
from .registry import form_of_class

BLOCK = 499_000  # elements that windows read, side by side; OpenBLAS is slower at more than 10^6 products of few rows
LEAST_CHANNELS, MOST_CHANNELS = 32, 128  # of a slice of a single picture: half of them, but within these bounds
LEAST_PIXELS = 64  # of a block: a product of fewer columns takes longer for each


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
    # What is read is copied once more, and for windows of many elements, so is what a few of them read.
    copied = math.prod(desc.input_tensor.sizes) + LEAST_PIXELS * math.prod(filters[1:])
    memory = product_scratch(desc, item) + item * copied
    least = 1000 * math.prod(filters[2:])  # each tap of the filter is a few calls of the array library
    work = 2 * math.prod(filters[1:])
    pictures, channels, *spatial = desc.output_tensor.sizes
    # Each slice copies what its windows read; a slice of several pictures has all of their channels.
    together = channels if pictures > 1 else max(LEAST_CHANNELS, min(channels // 2, MOST_CHANNELS))
    in_slices = work * math.prod(spatial) * together + least
    return BoxFunction(
        function, len(desc.inputs), (*common, *parameters), work, least, memory, least_slice_work=in_slices
    )


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
    made = sums_of(xp, out, activation)
    if summed != tuple(spans):
        made[...] = 0
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
    made = xp.empty(shape, "float64")
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
    """Write the sums of a box of a cross-correlation into an array of its shape.

    Args:
        xp: the array library.
        x: the input.
        filters: output channels x channels of a group x taps, in the type that is multiplied in; transposed, input
            channels x output channels of a group x taps.
        box: the box of the output.
        made: what is written, of that type too.
        window: the window, over the spatial dimensions.
        groups: how many groups of channels there are.
        widened: function from `(xp, part)` of the input to the same in that type.
    """
    spans = tuple(box[2:])
    if xp is np and window.transposed:
        _spread(x, filters, box, made, window, groups, widened)
    elif xp is np and (window.reads(spans) == window.region(x.shape[2:], spans) or _finite(filters[slice(*box[1])])):
        _gather(x, filters, box, made, window, groups, widened)
    else:
        _by_taps(xp, x, filters, box, made, window, groups, widened)


def _finite(filters: Any) -> bool:
    """Whether all are finite, so that padding adds 0; False for some whose squares are too large, too."""
    flat = filters.reshape(-1)
    return bool(np.isfinite(np.dot(flat, flat)))


def _slices(part: Box, box: Box, channels: slice) -> tuple[slice, ...]:
    """Where a part of pictures and their dimensions lies in an array of the box, which has channels as well."""
    at, *inside = [slice(low - start, high - start) for (low, high), (start, _) in zip(part, box, strict=True)]
    return (at, channels, *inside)


def _gather(x: Any, filters: Any, box: Box, made: Any, window: Window, groups: int, widened: Any) -> None:
    """A product of the filters and of what each window reads, side by side, for each block of the output."""
    images, (channel, end), *spans = box
    count, summed = filters.shape[1], math.prod(filters.shape[1:])
    own = filters.shape[0] // groups
    first, stop = channel // own, -(-end // own)
    pixels = math.prod(extents((images, *spans)))
    together = max(1, BLOCK // max(1, summed * pixels)) if channel % own == end % own == 0 else 1
    in_place = math.prod(window.taps) == math.prod(window.strides) == 1
    for group in range(first, stop, together):
        last = min(group + together, stop)
        low, high = max(channel, group * own), min(end, last * own)
        weights = filters[low:high].reshape(last - group, -1, summed)
        inside = slice(group * count, last * count)
        pixels = max(LEAST_PIXELS, BLOCK // (len(weights) * summed))
        read_together = BLOCK // ((last - group) * count * math.prod(window.strides))
        for outer in blocks((images, *spans), max(pixels, read_together)):
            with scratch() as memory:
                read = window.view(x[slice(*outer[0]), inside], outer[1:], widened, memory)
                target = made[_slices(outer, (images, *spans), slice(low - channel, high - channel))]
                for part in blocks(whole_box(extents(outer)), pixels):
                    go_on()
                    at, *near = [slice(*span) for span in part]
                    columns = read[(at, ..., *near)]
                    if not in_place:
                        columns = memory.copied(columns)
                    sums = target[(at, slice(None), *near)]
                    flat = sums.reshape(len(sums), *weights.shape[:2], -1)
                    np.matmul(weights, columns.reshape(len(sums), len(weights), summed, -1), out=flat)
                    if not np.may_share_memory(flat, sums):
                        sums[...] = flat.reshape(sums.shape)


def _spread(x: Any, filters: Any, box: Box, made: Any, window: Window, groups: int, widened: Any) -> None:
    """A product of all taps and a block of the input, of which each tap's part is added where it belongs."""
    images, (channel, end), *spans = box
    count, own = filters.shape[0] // groups, filters.shape[1]
    region = window.region(x.shape[2:], tuple(spans))
    every = (slice(None), slice(None))
    made[...] = 0
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        inside = slice(group * count, (group + 1) * count)
        weights = filters[inside, low - group * own : high - group * own].reshape(count, -1).T
        for part in blocks((images, *region), max(LEAST_PIXELS, BLOCK // len(weights))):
            go_on()
            at, *read = [slice(*span) for span in part]
            source = widened(np, x[(at, inside, *read)])
            source = source.reshape(*source.shape[:2], -1)
            with scratch() as memory:
                product = memory.empty((len(source), len(weights), source.shape[2]), made.dtype)
                np.matmul(weights, source, out=product)
                product = product.reshape(len(source), high - low, *window.taps, *extents(part[1:]))
                target = made[at.start - images[0] : at.stop - images[0], low - channel : high - channel]
                for taps in window.inside(part[1:]).all_moves(extents(part[1:]), tuple(spans)):
                    write = [write for _, (_, write) in taps]
                    near = [read for _, (read, _) in taps]
                    target[(..., *write)] += product[(*every, *[tap for tap, _ in taps], *near)]


def _by_taps(
    xp: ModuleType, x: Any, filters: Any, box: Box, made: Any, window: Window, groups: int, widened: Any
) -> None:
    """A product for each tap, which padding takes no part in: an infinite filter times padding adds nothing."""
    images, (channel, end), *spans = box
    own = (filters.shape[1] * groups if window.transposed else filters.shape[0]) // groups  # output channels of a group
    count = x.shape[1] // groups
    region = window.region(x.shape[2:], tuple(spans))
    inner = window.inside(region)
    every = (slice(None), slice(None))
    made[...] = 0
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        inside = slice(group * count, (group + 1) * count)
        source = widened(xp, x[(slice(*images), inside, *[slice(*span) for span in region])])
        mine = slice(low - group * own, high - group * own)
        weights = filters[inside, mine].swapaxes(0, 1) if window.transposed else filters[low:high]
        target = made[:, low - channel : high - channel]
        for taps in inner.all_moves([high - low for low, high in region], tuple(spans)):
            go_on()
            part = source[(*every, *[read for _, (read, _) in taps])]
            product = xp.matmul(weights[(*every, *[tap for tap, _ in taps])], part.reshape(*part.shape[:2], -1))
            target[(*every, *[write for _, (_, write) in taps])] += product.reshape(-1, high - low, *part.shape[2:])
