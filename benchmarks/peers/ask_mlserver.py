"""MLServer by gRPC, with the client that Triton publishes for the same protocol."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import sys

import tritonclient.grpc as triton

from .ask import Array, Call, converse

LARGEST = 1 << 30


def connect() -> Call:
    limits = [("grpc.max_send_message_length", LARGEST), ("grpc.max_receive_message_length", LARGEST)]
    client = triton.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}", channel_args=limits)

    def call(x: Array) -> Array:
        sent = triton.InferInput("x", list(x.shape), "FP32")
        sent.set_data_from_numpy(x)
        answer = client.infer("tile", [sent])
        assert answer is not None
        y = answer.as_numpy("y")
        assert y is not None
        return y

    return call


if __name__ == "__main__":
    converse("MLServer, gRPC", connect)
