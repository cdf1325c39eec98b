"""Reductions without `keepdims` give the bytes of those with it, on every processor's backend, in boxes too."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.support.onnx_nodes import run_plan

from tensorpost.onnx import OnnxNode
from tensorpost_server.backends import load_backend
from tensorpost_server.forms import SqueezedLines
from tensorpost_server.operators import form_of
from tensorpost_server.planning import make_plan


@pytest.mark.parametrize("name", ["numpy", "numba"])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ArgMax"])
def test_the_same_bytes_as_with_axes_of_1(name: str, op_type: str):
    try:
        backend = load_backend(name)(threads=1)  # pyright: ignore[reportCallIssue] # a Protocol has no constructor
    except Exception as error:  # noqa: BLE001 # whatever keeps it from being opened
        pytest.skip(f"the backend {name} cannot be opened here: {type(error).__name__}: {error}")
    chance, rng = random.Random(op_type), np.random.default_rng(1)
    for _ in range(30):
        sizes = [chance.randint(1, 9) for _ in range(chance.randint(1, 4))]
        x = rng.standard_normal(sizes).astype(chance.choice(["float32", "float16"]))
        axes = sorted(chance.sample(range(len(sizes)), chance.randint(1, len(sizes))))
        slice_bytes = chance.choice([4, 40, 1 << 20])
        found = []
        for keepdims in (0, 1):
            named = {"axis": axes[0]} if op_type == "ArgMax" else {}
            inputs = {"data": x} if op_type == "ArgMax" else {"data": x, "axes": axes}
            node = OnnxNode.of(op_type, inputs, opset=18, keepdims=keepdims, **named)
            assert isinstance(form_of(node), SqueezedLines) == (not keepdims)
            (made,) = run_plan(make_plan(node, slice_bytes), {"data": x}, backend)
            found.append(made)
        assert found[0].shape == np.squeeze(found[1], tuple(axes[:1] if op_type == "ArgMax" else axes)).shape
        assert found[0].tobytes() == found[1].tobytes()
