"""The names of `inference_context.py`, for code that imports them from here."""

from .inference_context import Broken, InferenceContext, InferredOutputs
from .parameters import Parameters
from .tensor import Shape

__all__ = ["Broken", "GivenNode", "InferredOutputs", "Meaning", "Shape"]

GivenNode = InferenceContext
Meaning = Parameters
