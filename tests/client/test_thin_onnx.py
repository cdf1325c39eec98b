"""ONNX operators that ONNX Runtime computes, from a process that has neither it nor the package onnx."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

PROGRAM = """
import asyncio, json, sys
import numpy as np
sys.modules["onnx"] = sys.modules["onnxruntime"] = None  # an import of either raises
import tensorpost as tp

def call(client, name, *inputs, **attributes):
    try:
        found = client.onnx(name, *inputs, **attributes)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [each.tolist() for each in found] if isinstance(found, tuple) else found.tolist()

x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
ones = np.ones((1, 1, 3, 3), np.float32)
rows = np.array([[1, 2, 3], [4, 6, 8]], np.float32)
with tp.Client(sys.argv[1]) as client:
    said = {
        "conv": call(client, "Conv", x, ones),
        "padded": call(client, "Conv", x, ones, pads=[1, 1, 1, 1], strides=[4, 4]),
        "pooled": call(client, "MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
        "einsum": call(client, "Einsum", rows, rows, equation="ij,ij->i"),
        "normal": call(client, "LayerNormalization", rows, np.ones(3, np.float32)),
        "nonzero": call(client, "NonZero", x),
        "wrong": call(client, "Conv", x, np.ones((1, 2, 3, 3), np.float32)),
        "misspelt": call(client, "Convv", x, ones),
        "missing": call(client, "Conv", x),
    }

async def again():
    async with tp.AsyncClient(sys.argv[1]) as client:
        return (await client.onnx("GlobalAveragePool", x)).tolist()

said["average"] = asyncio.run(again())
print(json.dumps(said))
"""


def test_whatever_the_server_computes(server_url: str):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, server_url], capture_output=True, text=True, check=True, timeout=120
    )
    said = json.loads(run.stdout)

    # Sums of windows of 0 to 15, by hand.
    assert said["conv"] == [[[[45.0, 54.0], [81.0, 90.0]]]]
    assert said["padded"] == [[[[10.0]]]]
    assert said["pooled"] == [[[[5.0, 7.0], [13.0, 15.0]]]]
    assert said["einsum"] == [14.0, 116.0]
    np.testing.assert_allclose(said["normal"], [[-1.2247, 0, 1.2247]] * 2, atol=1e-3)
    assert said["average"] == [[[[7.5]]]]
    assert np.array(said["nonzero"]).shape == (4, 15)  # of 0 to 15
    assert said["wrong"].startswith("InvalidDescriptor: ")
    assert said["misspelt"].startswith("UnknownOperator: there is no ONNX operator 'Convv'")
    assert said["missing"] == "InvalidParameter: Conv-22 needs the input W; pass an array for it"
