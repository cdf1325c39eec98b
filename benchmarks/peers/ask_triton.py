"""A server of the Open Inference Protocol, asked by `tritonclient.http` or `tritonclient.grpc`."""
# pyright: reportMissingImports=false
# Why: it also runs in a product's own environment.

from __future__ import annotations

import importlib
import sys
from typing import Any

from .ask import Array, Call, converse

LARGEST = (1 << 31) - 1
LIMITS = [("grpc.max_send_message_length", LARGEST), ("grpc.max_receive_message_length", LARGEST)]


def connect() -> Call:
    """A client of its own for each thread. Our attributes are parameters; other products' models have them built in."""
    port, kind, source, target, *repeats = sys.argv[1:]
    triton: Any = importlib.import_module(f"tritonclient.{kind}")
    options = {"channel_args": LIMITS} if kind == "grpc" else {"network_timeout": 300.0}
    client = triton.InferenceServerClient(f"127.0.0.1:{port}", **options)
    parameters = {"repeats": repeats[0]} if repeats else None

    def call(x: Array) -> Array:
        tensor = triton.InferInput(source, list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return client.infer("tile", [tensor], parameters=parameters).as_numpy(target)

    return call


if __name__ == "__main__":
    converse(f"tritonclient.{sys.argv[2]}", connect)
