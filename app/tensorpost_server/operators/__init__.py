"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import (
    activation,
    clip,
    convolution,
    elementwise,
    generator,
    indexing,
    logic,
    movement,
    onnx,
    pooling,
    product,
    reduction,
    resample,
    roi,
    softmax,
    tile,
)
from .registry import FORMS, form_of

__all__ = [
    "FORMS",
    "activation",
    "clip",
    "convolution",
    "elementwise",
    "form_of",
    "generator",
    "indexing",
    "logic",
    "movement",
    "onnx",
    "pooling",
    "product",
    "reduction",
    "resample",
    "roi",
    "softmax",
    "tile",
]
