"""What each operator means: one file per family, under the same name as its descriptors, makes its form."""

from . import onnx, resample, tile
from .registry import FORMS, form_of

__all__ = ["FORMS", "form_of", "onnx", "resample", "tile"]
