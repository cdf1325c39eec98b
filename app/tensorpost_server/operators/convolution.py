"""Convolutions of DirectML; see `forms/convolutions.py` for how their sums are made.

FLOAT16 is multiplied and summed in float32 and rounded once; the order of these sums is the library's. Integers are
summed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import ConvolutionMode

from ..forms import Box, BoxFunction, Pointwise, Window
from ..forms.convolutions import convolve
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
    return _form(desc, _convolve_integers, names_of(desc), 8)


@form_of_class(dml.QuantizedLinearConvolutionOperatorDesc)
def quantized_form(desc: dml.QuantizedLinearConvolutionOperatorDesc) -> BoxFunction:
    """`(sums + bias) * input scale * filter scale`, quantized; the bias is as ONNX's QLinearConv has it."""
    return _form(desc, _convolve_quantized, names_of(desc), 8)


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


def _convolve_integers(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, window: Window, groups: int, names: tuple[str, ...]
) -> None:
    wrapped(_integer_sums(xp, by_name(names, inputs), box, out.shape, window, groups), out)


def _convolve_quantized(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, window: Window, groups: int, names: tuple[str, ...]
) -> None:
    named = by_name(names, inputs)
    made = _integer_sums(xp, named, box, out.shape, window, groups)
    if "bias" in named:
        made += named["bias"][:, slice(*box[1])]
    made *= along(xp, named["input_scale"], out.ndim, 1, (0, 1), 1)
    made *= along(xp, named["filter_scale"], out.ndim, 1, box[1], 1)
    scale, zero = (along(xp, named.get(f"output_{name}"), out.ndim, 1, (0, 1), 0) for name in ("scale", "zero_point"))
    quantize(xp, made, scale, zero, out)
