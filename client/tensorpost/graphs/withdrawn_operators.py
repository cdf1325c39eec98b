"""Operators that ONNX has withdrawn, in models: each is the nodes of later operators that compute the same.

ONNX 1.0 to 1.4 published operators as experimental, of version 1, and withdrew or changed them later: Affine, Crop,
DynamicSlice, FC, ImageScaler, MeanVarianceNormalization, ParametricSoftplus, Scale, ScaledTanh, ThresholdedRelu and
Upsample. GroupNormalization-18 has a scale for each group, 21 for each channel. Where a text names no default, an
attribute that is left out changes nothing: factors are 1, and what is added is 0.

Source: onnx 1.0, `onnx/defs/experiments/defs.cc`; docs/Operators.md of onnx 1.4, DynamicSlice; docs/Changelog.md,
GroupNormalization-18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import ModelNode, refused
from ..values.layout import Layout
from .model_nodes import Expansion, called

__all__ = ["WITHDRAWN", "is_withdrawn", "later_nodes"]

_OPSET = 13  # of the nodes that are written here
_GROUPED_BY_CHANNEL = 21


class _Writer:
    """Writes the nodes that stand in the place of one."""

    def __init__(self, node: ModelNode, layout: Layout, path: Sequence[str | int]) -> None:
        self.node, self.layout = node, layout
        self._path = path
        self._nodes: list[ModelNode] = []
        self._constants: dict[str, NDArray[Any]] = {}

    @property
    def x(self) -> str:
        """The first input."""
        return self.node.inputs[0]

    def refuse(self, message: str, value: object, expected: str) -> Exception:
        """The error of a node that breaks a rule."""
        return refused(self._path, f"the node {called(self.node)}: {message}", value, expected)

    def number(self, name: str, default: float) -> str:
        """A number of an attribute, as a constant of the first input's type."""
        return self.constant(np.array(self.node.attributes.get(name, default), self.layout.data_type.dtype))

    def constant(self, array: NDArray[Any]) -> str:
        """A constant."""
        name = f"{self.node.outputs[0]}/constant_{len(self._constants)}"
        self._constants[name] = array
        return name

    def make(self, op_type: str, *inputs: str, opset: int = _OPSET, **attributes: Any) -> str:
        """A node of one output."""
        name = f"{self.node.outputs[0]}/{op_type}_{len(self._nodes)}"
        self._nodes.append(ModelNode("", op_type, "", opset, inputs, (name,), attributes))
        return name

    def finished(self) -> Expansion:
        """The nodes, of which the last one makes what the node made."""
        last = replace(self._nodes[-1], name=self.node.name, outputs=self.node.outputs[:1])
        return Expansion((*self._nodes[:-1], last), self._constants)


def is_withdrawn(node: ModelNode) -> bool:
    """Whether the node is of an operator, or of a version, that was withdrawn."""
    return not node.domain and node.op_type in WITHDRAWN and node.opset in WITHDRAWN[node.op_type][0]


def later_nodes(node: ModelNode, layout: Layout, path: Sequence[str | int]) -> Expansion:
    """The nodes of later operators that compute the same.

    Args:
        node: one that `is_withdrawn`, with an input and an output.
        layout: type and sizes of its first input.
        path: where it is in the model.

    Raises:
        InvalidDescriptor: its input has another rank than the text says, or an attribute is missing.
    """
    writer = _Writer(node, layout, path)
    WITHDRAWN[node.op_type][1](writer)
    return writer.finished()


def _affine(to: _Writer) -> None:
    """Y = alpha * x + beta."""
    to.make("Add", to.make("Mul", to.x, to.number("alpha", 1)), to.number("beta", 0))


def _scaled(to: _Writer) -> None:
    to.make("Mul", to.x, to.number("scale", 1))


def _scaled_tanh(to: _Writer) -> None:
    """Alpha * tanh(beta * x)."""
    to.make("Mul", to.make("Tanh", to.make("Mul", to.x, to.number("beta", 1))), to.number("alpha", 1))


def _parametric_softplus(to: _Writer) -> None:
    """Alpha * ln(exp(beta * x) + 1)."""
    to.make("Mul", to.make("Softplus", to.make("Mul", to.x, to.number("beta", 1))), to.number("alpha", 1))


def _image_scaled(to: _Writer) -> None:
    """Scale * x + bias, a bias for each channel."""
    _, channels, _, _ = _image(to)
    bias = _numbers(to, "bias") or (0,) * channels
    if len(bias) != channels:
        raise to.refuse(f"bias has {len(bias)} numbers for {channels} channels", list(bias), "one for each channel")
    array = np.array(bias, to.layout.data_type.dtype).reshape(channels, 1, 1)
    to.make("Add", to.make("Mul", to.x, to.number("scale", 1)), to.constant(array))


def _cropped(to: _Writer) -> None:
    """The picture without `border` (left, top, right, bottom), or the part of size `scale` that begins there."""
    _, _, *sizes = _image(to)
    border, scale = _numbers(to, "border"), _numbers(to, "scale")
    if len(border) != 4 or len(scale) not in (0, 2):
        expected = "border: left, top, right, bottom; scale: height, width, or left out"
        raise to.refuse(f"border is {list(border)} and scale {list(scale)}", list(border), expected)
    left, top, right, bottom = map(int, border)
    begin = (top, left)
    ends = [size - after for size, after in zip(sizes, (bottom, right), strict=True)]
    if scale:
        ends = [start + int(length) for start, length in zip(begin, scale, strict=True)]
    fits = [0 <= start < end <= size for start, end, size in zip(begin, ends, sizes, strict=True)]
    if not all(fits):
        message = f"{[*begin]} to {ends} of height and width do not lie in {sizes}"
        raise to.refuse(message, ends, "a part of the picture")
    starts, stops, axes = (to.constant(np.array(numbers, np.int64)) for numbers in (begin, ends, (2, 3)))
    to.make("Slice", to.x, starts, stops, axes)


def _fully_connected(to: _Writer) -> None:
    """X * W^T + b, of X and W as matrices, whose columns are the axes from `axis` and from `axis_w` on."""
    if len(to.node.inputs) != 3:
        raise to.refuse(f"it has {len(to.node.inputs)} inputs", len(to.node.inputs), "X, W and B")
    x, weights, bias = to.node.inputs
    rows = to.make("Flatten", x, axis=to.node.attributes.get("axis", 1))
    columns = to.make("Flatten", weights, axis=to.node.attributes.get("axis_w", 1))
    to.make("Gemm", rows, columns, bias, transB=1)


def _normalized(to: _Writer) -> None:
    """Mean and variance of each channel, or `across_channels`; onnx 1.3 also had the attribute axes of version 9."""
    axes = [0, 1, 2, 3] if to.node.attributes.get("across_channels", 0) else [0, 2, 3]
    axes = [*(_numbers(to, "axes") or axes)]
    if to.node.attributes.get("normalize_variance", 1):
        to.make("MeanVarianceNormalization", to.x, axes=axes)
    else:
        to.make("Sub", to.x, to.make("ReduceMean", to.x, axes=axes, keepdims=1))


def _normalized_by_group(to: _Writer) -> None:
    """Each scale and each bias of a group stands for its channels."""
    groups, sizes = to.node.attributes.get("num_groups", 0), to.layout.sizes
    if len(to.node.inputs) != 3 or len(sizes) < 2 or not isinstance(groups, int) or groups < 1 or sizes[1] % groups:
        message = f"it has {len(to.node.inputs)} inputs, the first of shape {list(sizes)}, and num_groups {groups}"
        raise to.refuse(message, groups, "X, scale and bias, and a divisor of the channels")
    x, *given = to.node.inputs
    each, channels = np.array([groups, sizes[1] // groups]), np.array([sizes[1]])
    spread: list[str] = []
    for name in given:
        column = to.make("Unsqueeze", name, to.constant(np.array([1])))
        wide = to.make("Expand", column, to.constant(each))
        spread.append(to.make("Reshape", wide, to.constant(channels)))
    attributes = {name: to.node.attributes[name] for name in ("epsilon", "num_groups") if name in to.node.attributes}
    to.make("GroupNormalization", x, *spread, opset=_GROUPED_BY_CHANNEL, **attributes)


def _upsampled(to: _Writer) -> None:
    """Height and width; `bilinear` is `linear` from opset 7 on."""
    _image(to)
    scales = [to.node.attributes.get(name) for name in ("height_scale", "width_scale")]
    if not all(isinstance(scale, float) for scale in scales):
        raise to.refuse(f"height_scale and width_scale are {scales}", None, "two numbers of at least 1")
    mode = to.node.attributes.get("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    to.make("Upsample", to.x, opset=7, scales=[1.0, 1.0, *scales], mode=mode)


def _same_later(op_type: str, opset: int) -> Callable[[_Writer], None]:
    """The same node of another name or version."""

    def write(to: _Writer) -> None:
        attributes = {name: value for name, value in to.node.attributes.items() if name != "consumed_inputs"}
        to.make(op_type, *to.node.inputs, opset=opset, **attributes)

    return write


def _image(to: _Writer) -> tuple[int, ...]:
    sizes = to.layout.sizes
    if len(sizes) != 4:
        raise to.refuse(f"its input has the shape {list(sizes)}", list(sizes), "4 dimensions: N, C, H, W")
    return sizes


def _numbers(to: _Writer, name: str) -> Sequence[float]:
    found = to.node.attributes.get(name, ())
    return cast("Sequence[float]", found) if isinstance(found, (list, tuple)) else ()


WITHDRAWN: Mapping[str, tuple[range, Callable[[_Writer], None]]] = {
    "Affine": (range(1, 10), _affine),
    "Crop": (range(1, 10), _cropped),
    "DynamicSlice": (range(1, 10), _same_later("Slice", 10)),
    "FC": (range(1, 10), _fully_connected),
    "GroupNormalization": (range(18, 21), _normalized_by_group),
    "ImageScaler": (range(1, 10), _image_scaled),
    "MeanVarianceNormalization": (range(1, 9), _normalized),
    "ParametricSoftplus": (range(1, 10), _parametric_softplus),
    "Scale": (range(1, 10), _scaled),
    "ScaledTanh": (range(1, 10), _scaled_tanh),
    "ThresholdedRelu": (range(1, 10), _same_later("ThresholdedRelu", 10)),
    "Upsample": (range(1, 7), _upsampled),
}
"""The opsets of each operator, or of the version of it, that was withdrawn, and what writes the later nodes."""
