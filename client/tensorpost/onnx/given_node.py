"""What `inference_context.py` has, by the names that it had in this module."""

from .inference_context import Broken, InferenceContext, InferredOutputs
from .parameters import Parameters
from .tensor import Shape

__all__ = ["Broken", "GivenNode", "InferredOutputs", "Meaning", "Shape"]

GivenNode = InferenceContext
Meaning = Parameters
