"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import (
    activation,
    clip,
    elementwise,
    generator,
    indexing,
    logic,
    movement,
    onnx,
    onnx_elementwise,
    onnx_lines,
    onnx_movement,
    product,
    reduction,
    resample,
    softmax,
    tile,
)
from .registry import FORMS, form_of

__all__ = [
    "FORMS",
    "activation",
    "clip",
    "elementwise",
    "form_of",
    "generator",
    "indexing",
    "logic",
    "movement",
    "onnx",
    "onnx_elementwise",
    "onnx_lines",
    "onnx_movement",
    "product",
    "reduction",
    "resample",
    "softmax",
    "tile",
]
