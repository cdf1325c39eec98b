"""Pooling operators: windows reduced axis by axis.

Choices where the pages are silent: sums are made in float32 and rounded once; a window that lies in the padding alone
has the average 0, the norm 0, and as its largest element -infinity, or the smallest number of an integer type, at the
first place of its channel; NaN is the largest element; of equal elements the first in row-major order is the one;
padding that counts makes the divisor the whole window's size, also where the window reaches beyond the padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml

from ..forms import Array, Box, Window, WindowFunction
from ..forms.base import go_on
from ..forms.float16 import widen
from .quantized import along, by_name, centered, names_of, quantize
from .registry import form_of_class

PUT = 1 << 20  # elements that are put to their places at a time


def window_of(desc: Any, *, transposed: bool = False) -> Window:
    """The window of a pool's descriptor."""
    dilations = getattr(desc, "dilations", (1,) * len(desc.window_size))
    return Window(desc.window_size, desc.strides, dilations, desc.start_padding, transposed)


def _form(
    desc: Any, function: Any, parameters: tuple[tuple[str, Any], ...], item: int, steps: int = 1
) -> WindowFunction:
    sizes = desc.inputs[0].layout.sizes[2:]
    return WindowFunction(
        function, len(desc.inputs), parameters, steps, window=window_of(desc), sizes=sizes, bytes_per_element=item
    )


def _read(x: Any, box: Box, window: Window) -> tuple[Any, Window, Box]:
    """What a box reads, the window over that part, and the part's spans along the spatial axes."""
    region = window.region(x.shape[2:], box[2:])
    return x[tuple([slice(*span) for span in (*box[:2], *region)])], window.inside(region), region


def _sum(xp: ModuleType) -> tuple[Any, Any, Any]:
    return xp.add, xp.sum, 0


@form_of_class(dml.AveragePoolingOperatorDesc, dml.AveragePooling1OperatorDesc)
def average_form(desc: Any) -> WindowFunction:
    """The sum over the window's size, or over what of it lies inside the input."""
    return _form(desc, average, (("padded", desc.include_padding),), 4)


def average(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window, padded: bool
) -> None:
    """Fill a box with the averages of the windows, over their sizes if the padding counts."""
    del output
    (x,) = inputs
    part, inside, _ = _read(x, box, window)
    total = inside.slide(xp, widen(xp, part) if part.dtype.name == "float16" else part, box[2:], _sum(xp))
    total /= _divisor(xp, window, x.shape[2:], box[2:], padded).astype("float32")
    out[...] = total


def _divisor(xp: ModuleType, window: Window, sizes: Sequence[int], spans: Box, padded: bool) -> Any:
    """What sums are divided by, at least 1: a float64 array that broadcasts along the spatial axes."""
    if padded:
        return xp.asarray(float(math.prod(window.taps)))
    divisor = xp.ones((1,) * len(spans))
    for axis, (size, span) in enumerate(zip(sizes, spans, strict=True)):
        count = window.count(xp, axis, size, span)
        divisor = divisor * count.reshape(-1, *[1] * (len(spans) - axis - 1))
    return xp.maximum(divisor, 1)


@form_of_class(dml.QuantizedLinearAveragePoolingOperatorDesc)
def quantized_average_form(desc: dml.QuantizedLinearAveragePoolingOperatorDesc) -> WindowFunction:
    """The average of `(input - zero) * scale`, quantized."""
    return _form(desc, _quantized_average, (*names_of(desc), ("padded", desc.include_padding)), 8)


def _quantized_average(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window,
    names: tuple[str, ...], padded: bool,
) -> None:  # fmt: skip
    del output
    named = by_name(names, inputs)
    x, rank, channels = named["input"], len(box), box[1]
    part, inside, _ = _read(x, box, window)
    zero = along(xp, named.get("input_zero_point"), rank, 1, channels, 0)
    total = inside.slide(xp, centered(part, zero), box[2:], _sum(xp))
    total /= _divisor(xp, window, x.shape[2:], box[2:], padded)
    total *= along(xp, named["input_scale"], rank, 1, channels, 1)
    scale, zero = (along(xp, named.get(f"output_{name}"), rank, 1, channels, 0) for name in ("scale", "zero_point"))
    quantize(xp, total, scale, zero, out)


@form_of_class(dml.LpPoolingOperatorDesc, dml.LpPooling1OperatorDesc)
def norm_form(desc: Any) -> WindowFunction:
    """`(sum of |x|^P)^(1/P)`; padding is 0."""
    return _form(desc, powers_in_windows, (("p", desc.p),), 8)


def powers_in_windows(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window, p: int
) -> None:
    """Fill a box with the norms of the windows."""
    del output
    part, inside, _ = _read(inputs[0], box, window)
    magnitudes = xp.abs(part.astype("float32"))
    powers = magnitudes if p == 1 else magnitudes * magnitudes if p == 2 else magnitudes ** magnitudes.dtype.type(p)
    total = inside.slide(xp, powers, box[2:], _sum(xp))
    out[...] = total if p == 1 else xp.sqrt(total) if p == 2 else total ** total.dtype.type(1 / p)


@form_of_class(dml.MaxPoolingOperatorDesc, dml.MaxPooling1OperatorDesc, dml.MaxPooling2OperatorDesc)
def max_form(desc: Any) -> WindowFunction:
    """The largest element of each window and, as a second output, its place in the input."""
    with_places = len(desc.outputs) > 1
    item = desc.input_tensor.item_size
    return _form(desc, largest, (), 2 * item + 40 if with_places else item, 4 if with_places else 1)


def largest(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window) -> None:
    """Fill a box with the largest elements of the windows, or of the second output with their places."""
    (x,) = inputs
    if output == 0:
        part, inside, _ = _read(x, box, window)
        out[...] = inside.slide(xp, part, box[2:], (xp.maximum, xp.max, _lowest(xp, x.dtype)))
        return
    _places(xp, inputs, box, out, output, window, 0)


def _places(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window, padding: int
) -> None:
    """The places of the largest elements in the whole input; `padding` of windows of padding alone, 0 for the first."""
    del output
    (x,) = inputs
    part, inside, region = _read(x, box, window)
    places = largest_places(xp, part, inside, box[2:], x.shape[2:], region)
    images = xp.arange(*box[0]).reshape(-1, 1) * x.shape[1] + xp.arange(*box[1])
    images = images.reshape(*images.shape, *[1] * (x.ndim - 2)) * math.prod(x.shape[2:])
    out[...] = xp.where(places < 0, padding, places + images) if padding else xp.maximum(places, 0) + images


def _lowest(xp: ModuleType, dtype: Any) -> Any:
    return -math.inf if dtype.kind == "f" else xp.iinfo(dtype).min


def largest_places(xp: ModuleType, x: Any, window: Window, spans: Box, sizes: Sequence[int], region: Box) -> Any:
    """The first place of the largest element of each window, in row-major order of the spatial dimensions.

    Args:
        xp: the array library.
        x: a part of the input.
        window: the window, over that part.
        spans: which outputs.
        sizes: the whole input's spatial sizes.
        region: where the part lies in it.

    Returns:
        int64 array; -1 for windows of padding alone.
    """
    empty = xp.zeros((1,) * len(spans), bool)
    places = xp.broadcast_to(xp.zeros((1,) * x.ndim, "int64"), x.shape)
    for axis in reversed(range(len(spans))):
        at, span, size = axis + x.ndim - len(spans), spans[axis], x.shape[axis - len(spans)]
        tail = (1,) * (len(spans) - axis - 1)
        empty = empty | (window.count(xp, axis, size, span) == 0).reshape(-1, *tail)
        step = math.prod(sizes[axis + 1 :])
        shape, head = (*x.shape[:at], span[1] - span[0], *x.shape[at + 1 :]), (slice(None),) * at
        best, found = xp.full(shape, _lowest(xp, x.dtype), x.dtype), xp.full(shape, -1, "int64")
        if window.has_fewer_taps(axis, size, span):
            for _, (read, write) in window.moves(axis, size, span):
                go_on()
                along = xp.arange(read.start, read.stop, read.step or 1).reshape(-1, *tail) + region[axis][0]
                one, known, place = x[(*head, read)], best[(*head, write)], found[(*head, write)]
                # NaN, which no comparison holds for, is the largest; the first one stays.
                wins = (~(one <= known) & (known == known)) | (place < 0)  # false for NaN only
                known[...] = xp.where(wins, one, known)
                place[...] = xp.where(wins, places[(*head, read)] + along * step, place)
        else:
            for one, many in window.rays(axis, size, span):
                go_on()
                line = x[(*head, many)]
                index = xp.argmax(line, axis=at, keepdims=True)
                here = (*head, slice(one, one + 1))
                best[here] = xp.take_along_axis(line, index, at)
                along = (index * many.step + many.start + region[axis][0]) * step
                found[here] = xp.take_along_axis(places[(*head, many)], index, at) + along
        x, places = best, found
    return xp.where(empty, -1, places)


@form_of_class(dml.MaxUnpoolingOperatorDesc)
def unpooling_form(desc: dml.MaxUnpoolingOperatorDesc) -> Array:
    """`Output[Indices[j]] = Input[j]`, over zeros."""
    elements, sizes = math.prod(desc.input_tensor.sizes), desc.output_tensor.sizes
    return Array(_unpool, 2, 2 * elements + math.prod(sizes), (("sizes", sizes),), elements * 32)


def _unpool(xp: ModuleType, x: Any, indices: Any, sizes: tuple[int, ...]) -> Any:
    made = xp.zeros(math.prod(sizes), x.dtype)
    all_places, values = indices.reshape(-1), x.reshape(-1)
    step = PUT if xp is np else max(1, values.size)
    for start in range(0, values.size, step):
        go_on()
        places = all_places[start : start + step]
        inside = places < places.dtype.type(min(made.size, xp.iinfo(places.dtype).max))
        made[places[inside].astype("int64")] = values[start : start + step][inside]
    return made.reshape(sizes)


# ---- gradients -------------------------------------------------------------------------------------------------------


@form_of_class(dml.AveragePoolingGradOperatorDesc)
def average_grad_form(desc: dml.AveragePoolingGradOperatorDesc) -> WindowFunction:
    """The gradient over the forward divisor, spread over each window."""
    sizes = desc.input_gradient_tensor.sizes[2:]
    parameters = (("sizes", desc.output_gradient_tensor.sizes[2:]), ("padded", desc.include_padding))
    window = window_of(desc, transposed=True)
    return WindowFunction(_spread, 1, parameters, window=window, sizes=sizes, bytes_per_element=8)


def _spread(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int, window: Window,
    sizes: tuple[int, ...], padded: bool,
) -> None:  # fmt: skip
    del output
    part, inside, region = _read(inputs[0], box, window)
    shares = part / _divisor(xp, window, sizes, region, padded).astype("float32")
    out[...] = inside.slide(xp, shares.astype("float32", copy=False), box[2:], _sum(xp))


@form_of_class(dml.MaxPoolingGradOperatorDesc)
def max_grad_form(desc: dml.MaxPoolingGradOperatorDesc) -> Array:
    """`OutputGradient[place of the largest of window o] += InputGradient[o]`, in float64, rounded once."""
    elements, outputs = (math.prod(tensor.sizes) for tensor in (desc.input_tensor, desc.input_gradient_tensor))
    window = window_of(desc)
    taps = sum(min(taps, size) for taps, size in zip(window.taps, desc.input_tensor.sizes[2:], strict=True))
    widest = WindowFunction(largest, 1, window=window, sizes=desc.input_tensor.sizes[2:], bytes_per_element=56)
    box = tuple([(0, size) for size in desc.input_gradient_tensor.sizes])
    scratch = widest.scratch_bytes(box) + 16 * elements + 40 * outputs
    return Array(_gather_gradients, 2, elements + 4 * taps * outputs, (("window", window),), scratch)


def _gather_gradients(xp: ModuleType, x: Any, gradient: Any, window: Window) -> Any:
    places = xp.empty(gradient.shape, "int64")
    form = WindowFunction(_places, 1, (("padding", -1),), window=window, sizes=x.shape[2:], bytes_per_element=56)
    form.fill(xp, [x], tuple([(0, size) for size in gradient.shape]), places)
    weights = xp.where(places < 0, 0, gradient.astype("float64"))
    made = xp.bincount(xp.maximum(places, 0).reshape(-1), weights.reshape(-1), x.size)
    return made.reshape(x.shape).astype(x.dtype)
