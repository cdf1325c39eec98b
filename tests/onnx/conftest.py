"""What the ONNX tests share: running a node on NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.onnx import OnnxNode
from tensorpost_server.operators import form_of

Run = Callable[..., NDArray[Any]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a node on an array; `box` asks for a part of the output only."""

    def run_node(node: OnnxNode, x: NDArray[Any], box: tuple[tuple[int, int], ...] | None = None) -> NDArray[Any]:
        box = tuple((0, size) for size in node.output.shape) if box is None else box
        shape = [stop - start for start, stop in box]
        if x.dtype == object:
            out = np.empty(shape, object)
        else:  # an element that is not written shows
            old = bytearray(b"\xa5" * (math.prod(shape) * x.dtype.itemsize))
            out = np.frombuffer(old, x.dtype).reshape(shape)
        form_of(node).fill(np, [x], box, out)
        return out

    return run_node
