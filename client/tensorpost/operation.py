"""What a DirectML descriptor and an ONNX node have in common: named input tensors, named output tensors, a document."""

from .values.operation import *  # noqa: F403 # the public name of what is in values/
