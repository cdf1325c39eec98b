"""What a stored graph gains on a GPU: its weights stay there.

    python -m benchmarks.gpu_stored

A matrix of 16 MiB to 256 MiB is multiplied with one row, through the service over loopback: stored with the graph, sent
with each request, and by CuPy in this process where the matrix lies on the device.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import servers
from tensorpost import Client

SIDES = (2048, 4096, 8192)
ROUNDS = 15


def median(call: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    call()
    call()
    took: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3


def by_cupy(cupy: Any, x: Any, on_device: Any) -> Any:
    """The same by CuPy, with the matrix on the device."""
    return cupy.asnumpy(cupy.maximum(cupy.asarray(x) @ on_device, 0))


def main() -> None:
    """Print a line for each size."""
    cupy: Any = importlib.import_module("cupy")
    graph = {
        "inputs": {"x": {}, "w": {}},
        "nodes": [
            {"name": "y", "op_type": "MatMul", "inputs": ["x", "w"]},
            {"name": "z", "op_type": "Relu", "inputs": ["y"]},
        ],
        "outputs": {"z": "z"},
    }
    with servers.tensorpost() as server, Client(server.url) as tp:
        print("MiB of weights | stored, ms | sent, ms | CuPy here, ms")
        for side in SIDES:
            rng = np.random.default_rng(0)
            x, w = rng.random((1, side), np.float32), rng.random((side, side), np.float32)
            on_device = cupy.asarray(w)
            stored = tp.store(graph, "product", weights={"w": w})
            expected = np.maximum(x @ w, 0)

            ways = (
                partial(stored, x, backend="cuda"),
                partial(tp.run_graph, graph, {"x": x, "w": w}, backend="cuda"),
                partial(by_cupy, cupy, x, on_device),
            )
            for found in (ways[0]()["z"], ways[1]()["z"], ways[2]()):
                np.testing.assert_allclose(found, expected, rtol=1e-3)
            times = [median(way) for way in ways]
            print(f"{w.nbytes >> 20} | {times[0]:.2f} | {times[1]:.2f} | {times[2]:.2f}", flush=True)


if __name__ == "__main__":
    main()
