"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import (
    activation,
    clip,
    depth_space,
    elementwise,
    generator,
    indexing,
    indexing_nd,
    logic,
    movement,
    onnx,
    product,
    reduction,
    resample,
    scan,
    softmax,
    tile,
)
from .registry import FORMS, form_of

__all__ = [
    "FORMS",
    "activation",
    "clip",
    "depth_space",
    "elementwise",
    "form_of",
    "generator",
    "indexing",
    "indexing_nd",
    "logic",
    "movement",
    "onnx",
    "product",
    "reduction",
    "resample",
    "scan",
    "softmax",
    "tile",
]
