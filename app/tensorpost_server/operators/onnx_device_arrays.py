"""More of ONNX's operators on a device: sums by index letters, rotations of positions, norms, and integer convolutions.

They are functions of arrays, computed in float32 at least; integers are summed in float64, exactly. Where the text is
silent: a line whose norm is 0 is 0 in LpNormalization, as in ONNX Runtime and the reference.

Source: ONNX, Einsum-12, RotaryEmbedding-23, LpNormalization-22, LpPool-22, MeanVarianceNormalization-13,
ConvInteger-10, QLinearConv-10.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost.onnx import OnnxNode

from ..forms import Array, Box, BoxFunction, Form, Window, WindowFunction
from ..forms.float16 import wide
from ..forms.index_ranges import IndexRange
from .convolution import convolve_integers, convolve_quantized
from .onnx_device import device_form, on_device, window_of_node
from .onnx_device_sequences import own_form_of_sequences, widest
from .onnx_runtime_cost import extra_bytes, work_of
from .pooling import powers_in_windows

_FIRST_VERSION = 7  # that ONNX Runtime computes
_MOST_OPERANDS, _MOST_AXES = 31, 32  # of the einsum of any NumPy and CuPy
_INTEGERS = ("int8", "uint8", "int32", "float32")


def _whole_array(
    node: OnnxNode, function: Any, *parameters: tuple[str, Any], ranges: IndexRange | None = None
) -> Array:
    """The form of a node that functions of whole arrays compute, with temporaries of twice its tensors in float32."""
    elements = sum([tensor.element_count for _, tensor in (*node.tensors, *node.results)])
    scratch = 16 * elements + extra_bytes(node)
    return Array(function, len(node.tensors), max(8 * elements, work_of(node)), parameters, scratch, index_range=ranges)


# ---- sums ------------------------------------------------------------------------------------------------------------


@on_device("Einsum")
def einsum_form(node: OnnxNode) -> Array | None:
    """The sum over the letters that the result does not have, of the product of all tensors."""
    equation = "".join(str(node.attribute("equation")).split())
    known = {*string.ascii_letters, *",.->"}
    axes = len({*equation} & {*string.ascii_letters}) + max([len(tensor.shape) for _, tensor in node.tensors])
    if not {*equation} <= known or len(node.tensors) > _MOST_OPERANDS or axes > _MOST_AXES:
        return None
    return _whole_array(node, _einsum, ("equation", equation))


def _einsum(xp: ModuleType, *tensors: Any, equation: str) -> Any:
    made = xp.einsum(equation, *[widest(xp, tensor) for tensor in tensors])
    return xp.asarray(made).astype(tensors[0].dtype, copy=False)


# ---- positions -------------------------------------------------------------------------------------------------------


@on_device("RotaryEmbedding")
def rotary_form(node: OnnxNode) -> Array | None:
    """Pairs of each head's elements, or of a part of them, turned by the angle of their position."""
    x, heads = node.input, node.attribute("num_heads")
    if len(x.shape) == 3 and not heads:
        return None
    positions, ranges = dict(node.tensors), None
    if "position_ids" in positions:
        ranges = IndexRange(node.schema.name, 3, (0,), positions["cos_cache"].shape[:1])
    parameters = (
        ("heads", int(str(heads)) if len(x.shape) == 3 else x.shape[1]),
        ("width", int(str(node.attribute("rotary_embedding_dim") or 0))),
        ("interleaved", bool(node.attribute("interleaved"))),
    )
    return _whole_array(node, _rotated, *parameters, ranges=ranges)


def _rotated(
    xp: ModuleType, x: Any, cosines: Any, sines: Any, *places: Any, heads: int, width: int, interleaved: bool
) -> Any:  # fmt: skip
    parts = x.transpose(0, 2, 1, 3) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
    made = wide(xp, parts).copy()
    turned = made[..., : width or made.shape[-1]]
    cosine, sine = (wide(xp, each[places[0]] if places else each)[:, :, None] for each in (cosines, sines))
    half = turned.shape[-1] // 2
    pair = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    first, second = (turned[..., part] for part in pair)
    real, imaginary = cosine * first - sine * second, sine * first + cosine * second
    turned[..., pair[0]], turned[..., pair[1]] = real, imaginary
    found = made.transpose(0, 2, 1, 3) if x.ndim == 4 else made.reshape(x.shape)
    return found.astype(x.dtype, copy=False)


# ---- norms -----------------------------------------------------------------------------------------------------------


@on_device("LpNormalization")
def norm_node_form(node: OnnxNode) -> Array:
    """Each line along the axis, divided by its norm."""
    axis, p = int(str(node.attribute("axis"))), int(str(node.attribute("p")))
    return _whole_array(node, _divided_by_norm, ("axis", axis), ("p", p))


def _divided_by_norm(xp: ModuleType, x: Any, *, axis: int, p: int) -> Any:
    made = wide(xp, x)
    norm = xp.sum(xp.abs(made), axis=axis, keepdims=True)
    if p == 2:
        norm = xp.sqrt(xp.sum(made * made, axis=axis, keepdims=True))
    return xp.where(norm == 0, made.dtype.type(0), made / norm).astype(x.dtype, copy=False)


@on_device("MeanVarianceNormalization")
def mean_variance_form(node: OnnxNode) -> Array:
    """`(x - mean) / (sqrt(variance) + 1e-9)`, along the axes."""
    axes: Any = node.attribute("axes")
    return _whole_array(node, _standardized, ("axes", tuple(axes)))


def _standardized(xp: ModuleType, x: Any, *, axes: tuple[int, ...]) -> Any:
    made = wide(xp, x)
    made = made - xp.mean(made, axis=axes, keepdims=True)
    spread = xp.sqrt(xp.mean(made * made, axis=axes, keepdims=True))
    return (made / (spread + made.dtype.type(1e-9))).astype(x.dtype, copy=False)


@on_device("LpPool", "GlobalLpPool")
def norm_pool_form(node: OnnxNode) -> WindowFunction | None:
    """`(sum of |x|^p)^(1/p)` of each window; padding is 0."""
    sizes, p = node.input.shape[2:], node.attribute("p")
    if node.input.data_type == "float64" or not sizes or not isinstance(p, int):
        return None
    ones = (1,) * len(sizes)
    window = Window(sizes, ones, ones, (0,) * len(sizes))
    if node.op_type == "LpPool":
        taps: Any = node.attribute("kernel_shape")
        window = window_of_node(node, taps)
    return WindowFunction(powers_in_windows, 1, (("p", p),), window=window, sizes=sizes, bytes_per_element=8)


# ---- integer convolutions --------------------------------------------------------------------------------------------

_SLOTS = {
    "x": "input", "x_scale": "input_scale", "x_zero_point": "input_zero_point", "w": "filter",
    "w_scale": "filter_scale", "w_zero_point": "filter_zero_point", "y_scale": "output_scale",
    "y_zero_point": "output_zero_point", "B": "bias",
}  # fmt: skip
"""What DirectML calls the tensors."""


@on_device("ConvInteger", "QLinearConv", types=_INTEGERS)
def integer_node_form(node: OnnxNode) -> BoxFunction:
    """The sums of `(x - zero) * (w - zero)`; of QLinearConv with the bias, scaled and quantized."""
    tensors = dict(node.tensors)
    filters = tensors["w"].shape
    function: Any = convolve_integers if node.op_type == "ConvInteger" else _quantized
    parameters = (
        ("window", window_of_node(node, filters[2:])),
        ("groups", int(str(node.attribute("group") or 1))),
        ("names", tuple([_SLOTS[name] for name in tensors])),
    )
    elements = [tensor.element_count for tensor in (*tensors.values(), node.output)]
    scratch = 8 * (sum(elements) + elements[-1] + elements[0])
    return BoxFunction(
        function, len(tensors), parameters, 2 * math.prod(filters[1:]), 1000 * math.prod(filters[2:]), scratch
    )


def _quantized(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, names: Sequence[str], **given: Any) -> None:
    shaped = [
        array.reshape(1, -1, *[1] * (out.ndim - 2)) if name == "bias" else array
        for name, array in zip(names, inputs, strict=True)
    ]
    convolve_quantized(xp, shaped, box, out, names=tuple(names), **given)


def own_form(node: OnnxNode) -> Form | None:
    """The form of a node that ONNX Runtime does not compute on a processor; None of one that it does.

    It takes no recurrent networks whose batch comes first (`layout`), no zero point for each filter of ConvInteger, no
    versions of AveragePool and BatchNormalization before 7, no Einsum and no attention of bfloat16, and no mask that is
    shorter than the keys; of masked scores that are an output it makes finite numbers.
    """
    tensors = dict(node.tensors)
    if node.values or any(0 in tensor.shape for _, tensor in (*node.tensors, *node.results)):
        return None
    if node.op_type == "ConvInteger":
        zeros = tensors.get("w_zero_point")
        return integer_node_form(node) if zeros is not None and zeros.element_count > 1 else None
    if node.op_type in ("AveragePool", "BatchNormalization"):
        return device_form(node) if node.opset_version < _FIRST_VERSION else None
    if node.op_type == "Einsum":
        return einsum_form(node) if node.input.data_type == "bfloat16" else None
    return own_form_of_sequences(node)
