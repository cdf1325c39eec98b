"""Tiny tensors as plain JSON: `{"dtype": "F32", "shape": [2], "data": [0.1, 2.0]}`, both ways."""

from .bodies.json_tensor import *  # noqa: F403 # the public name of what is in bodies/
