"""One row per data type: what DirectML, ONNX, the Open Inference Protocol, safetensors and NumPy call it."""

from .values.datatypes import *  # noqa: F403 # the public name of what is in values/
