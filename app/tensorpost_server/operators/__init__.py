"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import elementwise, generator, indexing, movement, onnx, product, reduction, resample, tile
from .registry import FORMS, form_of

__all__ = [
    "FORMS",
    "elementwise",
    "form_of",
    "generator",
    "indexing",
    "movement",
    "onnx",
    "product",
    "reduction",
    "resample",
    "tile",
]
