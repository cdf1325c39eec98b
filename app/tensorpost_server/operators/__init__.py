"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import (
    activation,
    attention,
    clip,
    elementwise,
    generator,
    indexing,
    logic,
    movement,
    onnx,
    product,
    recurrent,
    reduction,
    resample,
    softmax,
    tile,
)
from .registry import FORMS, form_of

__all__ = [
    "FORMS",
    "activation",
    "attention",
    "clip",
    "elementwise",
    "form_of",
    "generator",
    "indexing",
    "logic",
    "movement",
    "onnx",
    "product",
    "recurrent",
    "reduction",
    "resample",
    "softmax",
    "tile",
]
