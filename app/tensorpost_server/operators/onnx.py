"""ONNX nodes as forms: where their rows are looked up, and Tile, Resize and Upsample.

Unlike DirectML's operators, these take empty tensors, rank 0, and more than 8 dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tensorpost.onnx import OnnxNode, Resizing, Tiling
from tensorpost.onnx.directml_twins import ElementWiseTwin
from tensorpost.onnx.proto_node import OnnxProtoNode
from tensorpost.onnx.shapes import RULES

from ..forms import Form
from ..forms.axes import AxisMap
from ..forms.onnx_axes import FilterMap, NearestMap
from ..forms.onnx_resize import OnnxResize
from .elementwise_base import FORMULAS
from .onnx_device_arrays import own_form
from .onnx_elementwise import twin_form
from .onnx_runtime import model_form
from .registry import NODE_FORMS, form_of_class, form_of_node
from .tile import tile


@form_of_class(OnnxNode)
def onnx_form(node: OnnxNode) -> Form:
    """The form of a node, by the row of its operator; without one by ONNX Runtime, if it computes such a node."""
    make = NODE_FORMS.get(node.op_type)
    return make(node) if make is not None else own_form(node) or model_form(node)


@form_of_class(OnnxProtoNode)
def proto_form(node: OnnxProtoNode) -> Form:
    """The form of a node that ONNX Runtime computes as it is written."""
    return model_form(node)


@form_of_node("Tile")
def tile_form(node: OnnxNode) -> Form:
    """Copies side by side."""
    return tile(node.input.shape, node.parameters_as(Tiling).repeats)


@form_of_node("Resize", "Upsample")
def resize_form(node: OnnxNode) -> OnnxResize:
    """The form of a resize, for tensors of any type."""
    meaning = node.parameters_as(Resizing)
    crops = meaning.extrapolation_value is not None
    maps: list[AxisMap | None] = []
    for axis in meaning.axes:
        # The common scale of an aspect ratio may be below 1 on an axis that keeps its length.
        filtered = meaning.antialias and axis.scale < 1
        if axis.is_copied and not filtered:
            maps.append(None)
        elif meaning.mode == "nearest":
            maps.append(NearestMap(axis))
        else:
            maps.append(
                FilterMap(
                    axis,
                    radius=1 if meaning.mode == "linear" else 2,
                    coefficient=meaning.cubic_coeff_a,
                    exclude_outside=meaning.exclude_outside,
                    stretch=max(Fraction(1), 1 / axis.scale) if meaning.antialias else Fraction(1),
                    crops=crops,
                )
            )
    return OnnxResize(
        axes=tuple(maps),
        inside=tuple(axis.inside for axis in meaning.axes),
        extrapolation_value=meaning.extrapolation_value,
        round_each_axis=meaning.antialias,
    )


def complete(forms: dict[str, Callable[[Any], Form]]) -> None:
    """Give the formula of its DirectML twin to each operator that has no form yet.

    Raises:
        ImportError: an operator has neither.
    """
    for op_type, row in RULES.items():
        if op_type not in forms:
            if not isinstance(row.twin, ElementWiseTwin) or row.twin.operator not in FORMULAS:
                raise ImportError(
                    f"ONNX's {op_type} has a row in tensorpost.onnx.shapes.RULES, but neither a form in "
                    "operators/onnx_*.py nor an ElementWiseTwin whose operator has a formula"
                )
            forms[op_type] = twin_form
