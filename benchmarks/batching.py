"""What dynamic batching gains: requests per second and latency of stored models, with and without it.

    python -m benchmarks.batching

The same model is stored twice, as it is and with `max_batch_size=32`, and called over loopback by 1, 16 and 64 callers
with one row each, in turn on one server. Calls of the model of convolutions go to ONNX Runtime's process.
"""

from __future__ import annotations

import argparse
import importlib
import io
import statistics
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import numpy as np

from tensorpost import Client

from . import servers
from .load import Load, Request, put

BATCH = 32
CALLERS = (1, 16, 64)
ROUNDS = 3
SECONDS = 3.0


def perceptron(side: int, layers: int = 3) -> tuple[bytes, tuple[int, ...]]:
    """Layers of a product and Relu, and the sizes of a row."""
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((side, side), np.float32) / np.sqrt(side) for _ in range(layers)]
    body = " ".join([f"p{n} = MatMul(r{n}, w{n}) r{n + 1} = Relu(p{n})" for n in range(layers)])
    text = f"(float[n, {side}] r0) => (float[n, {side}] r{layers})", body
    return _model(*text, {f"w{n}": np.float32(weight) for n, weight in enumerate(weights)}), (1, side)


def convolutions(channels: int = 16, size: int = 32) -> tuple[bytes, tuple[int, ...]]:
    """Two convolutions, a mean and a product, and the sizes of a row."""
    rng = np.random.default_rng(2)
    weights = {
        "w0": rng.standard_normal((channels, 3, 3, 3), np.float32),
        "w1": rng.standard_normal((channels, channels, 3, 3), np.float32),
        "w2": rng.standard_normal((channels, 10), np.float32),
    }
    body = """a = Conv <pads = [1, 1, 1, 1]> (x, w0) b = Relu(a) c = Conv <pads = [1, 1, 1, 1]> (b, w1) d = Relu(c)
        e = GlobalAveragePool(d) f = Flatten(e) y = MatMul(f, w2)"""
    sizes = 3, size, size
    return _model(f"(float[n, 3, {size}, {size}] x) => (float[n, 10] y)", body, weights), (1, *sizes)


def elementwise(side: int = 256) -> tuple[bytes, tuple[int, ...]]:
    """Six element-wise nodes and a softmax, and the sizes of a row."""
    body = "a = Mul(x, x) b = Sqrt(a) c = Add(b, x) d = Tanh(c) e = Mul(d, c) f = Sub(e, x) y = Softmax <axis = 2> (f)"
    return _model(f"(float[n, {side}, {side}] x) => (float[n, {side}, {side}] y)", body, {}), (1, side, side)


MODELS: dict[str, Callable[[], tuple[bytes, tuple[int, ...]]]] = {
    "perceptron_256": lambda: perceptron(256),
    "perceptron_1024": lambda: perceptron(1024),
    "perceptron_2048": lambda: perceptron(2048),
    "convolutions": convolutions,
    "elementwise": elementwise,
}


def _model(signature: str, body: str, weights: dict[str, Any]) -> bytes:
    onnx: Any = importlib.import_module("onnx")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> m {signature} {{ {body} }}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model.SerializeToString()


def npy(sizes: tuple[int, ...]) -> bytes:
    """A file with an array of these sizes."""
    file = io.BytesIO()
    np.save(file, np.random.default_rng(3).random(sizes, np.float32))
    return file.getvalue()


def store(port: int, path: str, content: bytes) -> None:
    """PUT a model."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("PUT", path, content)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status not in (200, 201):
        raise RuntimeError(text.decode())


def middle(loads: list[Load], of: Callable[[Load], float]) -> float:
    """The median of the rounds."""
    return statistics.median([of(load) for load in loads])


def main() -> None:
    """Print a line for each model and number of callers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--delay", type=int, default=0, help="max_queue_delay_microseconds")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    with servers.tensorpost(backend=arguments.backend) as server, Client(server.url) as tp:
        print("model | callers | alone: req/s, p50 ms, p99 ms | joined: req/s, p50 ms, p99 ms | ratio of req/s")
        for name in arguments.models.split(","):
            content, sizes = MODELS[name]()
            tp.store(content, name)
            query = f"max_batch_size={BATCH}&max_queue_delay_microseconds={arguments.delay}"
            store(server.port, f"/v1/graphs/{name}_joined?{query}", content)
            bodies = {"content-type": "application/x-npy"}
            requests = [Request(f"/v1/graphs/{each}", bodies, npy(sizes)) for each in (name, f"{name}_joined")]
            for callers in CALLERS:
                loads: list[list[Load]] = [[], []]
                for _ in range(ROUNDS):
                    for found, request in zip(loads, requests, strict=True):
                        found.append(put(server.port, request, callers, SECONDS))
                cells = [
                    f"{middle(each, lambda load: load.rate):8,.0f} {middle(each, lambda load: load.p50 * 1e3):7.2f} "
                    f"{middle(each, lambda load: load.p99 * 1e3):7.2f}"
                    for each in loads
                ]
                ratio = middle(loads[1], lambda load: load.rate) / middle(loads[0], lambda load: load.rate)
                print(f"{name:16} | {callers:3} | {cells[0]} | {cells[1]} | {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
