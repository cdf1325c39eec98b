"""Elements of 4 bits, two a byte: the first of them in the low half, as in ONNX's and DirectML's tensors."""

from .values.four_bits import *  # noqa: F403 # the public name of what is in values/
