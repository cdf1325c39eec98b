"""Forms of ONNX nodes on a device, of those that ONNX Runtime computes on processors.

ONNX Runtime is faster on a processor and works in ordinary memory. On a device, the same operators are sums of products
by its library of matrices, or cuDNN's convolutions, and functions of arrays. Sums are made in float32 (of float64 in
float64) in the library's order, and rounded once; a bias of float16 in a graph is added after that.

Source: the operators' texts of ONNX. A node with an attribute or an output that is not computed here has no form, and
its graph stays on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation

from ..forms import Array, BoxFunction, Form, Pointwise, Window, WindowFunction, whole_box
from ..forms.convolutions import Convolution, add_bias, with_bias
from ..forms.expression import call, operand
from ..forms.float16 import wide
from .convolution import convolve
from .normalization import neighbours_form
from .pooling import average, largest
from .registry import NODE_FORMS, form_of

_FLOATS = ("float16", "float32", "float64")
_WHOLE_OR_BOOLEAN = ("attn_mask", "nonpad_kv_seqlen", "position_ids", "sequence_lens")
"""Inputs that may be of other types."""
DEVICE_FORMS: dict[str, Callable[[OnnxNode], Form | None]] = {}
"""What makes the form of a node on a device, by its operator; None for a node that it does not compute."""
_TYPES: dict[str, Container[str]] = {}

DeviceForm = TypeVar("DeviceForm", bound=Callable[[OnnxNode], Form | None])


def on_device(*op_types: str, types: Container[str] = _FLOATS) -> Callable[[DeviceForm], DeviceForm]:
    """Decorate the function that makes the device's form of the nodes of these operators, of tensors of these types."""

    def register(make: DeviceForm) -> DeviceForm:
        DEVICE_FORMS.update(dict.fromkeys(op_types, make))
        _TYPES.update(dict.fromkeys(op_types, types))
        return make

    return register


def device_form(operation: Operation) -> Form | None:
    """The form of an operation on a device; None if only a library on the processor computes it."""
    if not isinstance(operation, OnnxNode) or operation.op_type in NODE_FORMS or operation.is_bounded:
        found = form_of(operation)
        return None if found.library else found
    make = DEVICE_FORMS.get(operation.op_type)
    tensors = (*operation.tensors, *operation.results)
    if make is None or any(0 in tensor.shape for _, tensor in tensors):
        return None
    if operation.values and operation.op_type != "Dropout":  # the others read all of their inputs as tensors
        return None
    if any(
        tensor.data_type not in _TYPES[operation.op_type] for name, tensor in tensors if name not in _WHOLE_OR_BOOLEAN
    ):
        return None
    return make(operation)


def _numbers(node: OnnxNode, name: str, count: int, default: int = 1) -> tuple[int, ...]:
    """The entries of an attribute for each spatial axis."""
    found: Any = node.attribute(name)
    return tuple(map(int, found)) if found else (default,) * count


def window_of_node(node: OnnxNode, taps: Sequence[int]) -> Window:
    """The window of a convolution or a pool; what `auto_pad` adds is split as ONNX says."""
    count, sizes = len(taps), node.tensors[0][1].shape[2:]
    strides, dilations = _numbers(node, "strides", count), _numbers(node, "dilations", count)
    pads = _numbers(node, "pads", 2 * count, 0)[:count]
    mode: Any = node.attribute("auto_pad") or "NOTSET"
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        needed = [
            max(0, (-(-size // stride) - 1) * stride + (tap - 1) * dilation + 1 - size)
            for size, stride, dilation, tap in zip(sizes, strides, dilations, taps, strict=True)
        ]
        pads = tuple([total // 2 if mode == "SAME_UPPER" else -(-total // 2) for total in needed])
    elif mode == "VALID":
        pads = (0,) * count
    return Window(tuple(taps), strides, dilations, pads)


# ---- convolutions ----------------------------------------------------------------------------------------------------


@on_device("Conv")
def convolution_node_form(node: OnnxNode) -> Convolution | Array:
    """A sum over the filter's elements of a product over the channels, and the bias."""
    (_, x), (_, filters), *bias = node.tensors
    groups: Any = node.attribute("group") or 1
    form = Convolution(window_of_node(node, filters.shape[2:]), groups, node.output.shape, x.shape[1] // groups)
    if not bias:
        return form
    work = form.work(tuple([(0, size) for size in form.sizes]))
    return Array(with_bias, 3, work, (("form", form),), form.scratch_bytes(()))


@on_device("ConvTranspose")
def transposed_node_form(node: OnnxNode) -> Array:
    """Each element of the input, times the filter, added where it spreads to; and the bias."""
    (_, x), (_, filters), *bias = node.tensors
    taps, sizes, made = filters.shape[2:], x.shape[2:], node.output.shape[2:]
    count = len(taps)
    strides, dilations = _numbers(node, "strides", count), _numbers(node, "dilations", count)
    pads, mode = _numbers(node, "pads", 2 * count, 0)[:count], node.attribute("auto_pad") or "NOTSET"
    if node.attribute("output_shape") or mode in ("SAME_UPPER", "SAME_LOWER"):
        beyond = _numbers(node, "output_padding", count, 0)
        totals = [
            max(0, stride * (size - 1) + more + (tap - 1) * dilation + 1 - out)
            for size, out, tap, stride, dilation, more in zip(
                sizes, made, taps, strides, dilations, beyond, strict=True
            )
        ]
        pads = tuple([total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals])
    elif mode == "VALID":
        pads = (0,) * count
    groups: Any = node.attribute("group") or 1
    parameters = (
        ("window", Window(taps, strides, dilations, pads, transposed=True)), ("groups", groups),
        ("sizes", node.output.shape),
    )  # fmt: skip
    work = 2 * x.element_count * math.prod(filters.shape[1:]) + 1000 * math.prod(taps) * groups
    scratch = 8 * (2 * math.prod(node.output.shape) + x.element_count + filters.element_count)
    return Array(_spread, 2 + len(bias), work, parameters, scratch)


def _spread(
    xp: ModuleType, x: Any, filters: Any, *bias: Any, window: Window, groups: int, sizes: tuple[int, ...]
) -> Any:  # fmt: skip
    weights = wide(xp, filters)
    made = xp.zeros(sizes, weights.dtype)
    convolve(xp, x, weights, whole_box(sizes), made, window, groups)
    return (add_bias(made, bias[0]) if bias else made).astype(x.dtype, copy=False)


def bias_form(sizes: Sequence[int], data_type: str) -> Pointwise:
    """The form that adds a bias to what a convolution made.

    Args:
        sizes: sizes of the convolution's output.
        data_type: NumPy name of its type.
    """
    channels, wide_type = (1, sizes[1], *[1] * (len(sizes) - 2)), "float32" if data_type == "float16" else data_type
    return Pointwise(operand(0) + operand(1), (wide_type,) * 2, wide_type, input_sizes=(tuple(sizes), channels))


# ---- pooling ---------------------------------------------------------------------------------------------------------


@on_device("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
def pool_form(node: OnnxNode) -> WindowFunction | None:
    """The largest element of each window, or its average; without the places of the largest."""
    sizes, item = node.input.shape[2:], max(4, node.input.row.item_size)
    if len(node.results) > 1 or node.attribute("storage_order") or not sizes:
        return None
    is_average = node.op_type.endswith("AveragePool")
    if node.op_type.startswith("Global"):
        ones = (1,) * len(sizes)
        window, padded = Window(sizes, ones, ones, (0,) * len(sizes)), False
    else:
        taps: Any = node.attribute("kernel_shape")
        window, padded = window_of_node(node, taps), bool(node.attribute("count_include_pad"))
        ends = [(size - 1) * stride - start for size, stride, start in zip(
            node.output.shape[2:], window.strides, window.start, strict=True)]  # fmt: skip
        reaches_out = any(end >= size for end, size in zip(ends, sizes, strict=True))
        if node.attribute("ceil_mode") and (padded or reaches_out):
            return None  # windows reach beyond the padding, which does not count, or lie there alone
    if is_average and node.input.data_type == "float64":
        return None
    function, parameters = (average, (("padded", padded),)) if is_average else (largest, ())
    return WindowFunction(function, 1, parameters, window=window, sizes=sizes, bytes_per_element=item)


# ---- normalization ---------------------------------------------------------------------------------------------------


@on_device("BatchNormalization")
def batch_node_form(node: OnnxNode) -> Pointwise | None:
    """`scale * (x - mean) / sqrt(variance + epsilon) + bias`, with given statistics."""
    if len(node.results) > 1 or node.attribute("training_mode") or node.attribute("spatial") == 0:
        return None
    if node.opset_version < 7 and not node.attribute("is_test"):  # with the statistics of the tensor itself
        return None
    x, scale, bias, mean, variance = map(operand, range(5))
    epsilon: Any = node.attribute("epsilon")
    made = (x - mean) / call("sqrt", variance + float(epsilon)) * scale + bias
    sizes = node.input.shape
    channels = (1, sizes[1] if len(sizes) > 1 else 1, *[1] * (len(sizes) - 2))[: len(sizes)]
    wide_types = tuple(["float32" if each.data_type == "float16" else each.data_type for _, each in node.tensors])
    return Pointwise(made, wide_types, wide_types[0], input_sizes=(sizes, *[channels] * 4))


@on_device("LRN")
def local_response_node_form(node: OnnxNode) -> BoxFunction | None:
    """`x / (bias + alpha / size * sum of squares)^beta`, over neighbouring channels."""
    if node.input.data_type == "float64" or len(node.input.shape) < 2:
        return None
    size, alpha, beta, bias = [_number(node, name) for name in ("size", "alpha", "beta", "bias")]
    return neighbours_form(node.input.shape, (1,), int(size), alpha, beta, bias)


@on_device("Dropout")
def dropout_form(node: OnnxNode) -> Pointwise | None:
    """What it is given: nothing is dropped unless it trains."""
    if len(node.results) > 1 or len(node.tensors) > 1 or any(name == "training_mode" for name, _ in node.values):
        return None
    if node.opset_version < 7:  # which trains unless `is_test` is set
        return None
    return Pointwise(operand(0), (node.input.data_type,), node.input.data_type)


@on_device("InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization")
def normalization_node_form(node: OnnxNode) -> Array | None:
    """`scale * (x - mean) / sqrt(variance + epsilon) + bias`, with the statistics of the tensor itself."""
    shape, op_type = node.input.shape, node.op_type
    if len(node.results) > 1 or len(shape) < 2 or (op_type == "GroupNormalization" and node.opset_version < 21):
        return None
    groups = 0
    parts: tuple[int, ...] = shape
    if op_type in ("LayerNormalization", "RMSNormalization"):
        axis = int(_number(node, "axis")) % len(shape)
        axes, others = tuple(range(axis, len(shape))), ()
    else:
        groups = int(_number(node, "num_groups")) if op_type == "GroupNormalization" else shape[1]
        parts = (shape[0], groups, shape[1] // groups, *shape[2:])
        axes, others = tuple(range(2, len(parts))), (1, -1, *[1] * (len(shape) - 2))
    parameters = (
        ("parts", parts), ("axes", axes), ("others", others), ("epsilon", _number(node, "epsilon")),
        ("centered", op_type != "RMSNormalization"),
    )  # fmt: skip
    count = math.prod(shape)
    return Array(_normalized, len(node.tensors), 6 * count, parameters, 16 * count)


def _normalized(
    xp: ModuleType, x: Any, *given: Any, parts: tuple[int, ...], axes: tuple[int, ...], others: tuple[int, ...],
    epsilon: float, centered: bool,
) -> Any:  # fmt: skip
    made = wide(xp, x).reshape(parts)
    if centered:
        made = made - xp.mean(made, axis=axes, keepdims=True)
    spread = xp.mean(made * made, axis=axes, keepdims=True)
    made = (made / xp.sqrt(spread + made.dtype.type(epsilon))).reshape(x.shape)
    scale, *bias = [wide(xp, each).reshape(others) if others else wide(xp, each) for each in given]
    made = made * scale
    return made + bias[0] if bias else made


def _number(node: OnnxNode, name: str) -> float:
    found: Any = node.attribute(name)
    return float(np.float32(found)) if isinstance(found, float) else found
