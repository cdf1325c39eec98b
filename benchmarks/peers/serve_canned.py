"""Answers to the jobs, made beforehand, by HTTP and gRPC: a server without any work."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import cache
from typing import Any, cast

import grpc.aio
import numpy as np
import uvloop

from tensorpost_server.http.grpc.grpc_messages import PACKAGE, grpc_messages

from .jobs import REPEATS, SHAPES, tensor

SERVICE = f"{PACKAGE}.GRPCInferenceService"
READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@cache
def output(request_bytes: int) -> np.ndarray[Any, Any]:
    """The output of the largest job whose input fits into such a request."""
    job = max(
        (job for job in SHAPES if 4 * np.prod(SHAPES[job]) <= request_bytes), key=lambda job: np.prod(SHAPES[job])
    )
    return np.tile(tensor(job), REPEATS)


@cache
def http_answer(request_bytes: int) -> bytes:
    """The response, head included."""
    y = output(request_bytes)
    tensors = {"name": "y", "datatype": "FP32", "shape": y.shape, "parameters": {"binary_data_size": y.nbytes}}
    text = json.dumps({"model_name": "tile", "outputs": [tensors]}).encode()
    fields = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + y.nbytes}"
    return f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + text + y.tobytes()


@cache
def grpc_answer(request_bytes: int) -> bytes:
    """The message."""
    y = output(request_bytes)
    message = grpc_messages()["ModelInferResponse"](model_name="tile", raw_output_contents=[y.tobytes()])
    message.outputs.add(name="y", datatype="FP32", shape=y.shape)
    return message.SerializeToString()


class Canned(asyncio.Protocol):
    """Answers when a whole request has come; one at a time."""

    def __init__(self) -> None:
        self.begin = bytearray()
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.left:
            self.left -= len(data)
        else:
            self.begin += data
            head, blank, body = self.begin.partition(b"\r\n\r\n")
            if not blank:
                return
            found = LENGTH.search(head)
            self.length = int(found[1]) if found else 0
            self.left = self.length - len(body)
            self.begin.clear()
        if not self.left:
            self.transport.write(http_answer(self.length) if self.length else READY)


async def main() -> None:
    """Serve until the process is ended."""

    async def infer(request: bytes, context: object) -> bytes:  # noqa: ARG001 # gRPC's own
        return grpc_answer(len(request))

    limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.aio.server(options=limits)
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}")
    await server.start()
    http = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", int(sys.argv[1]))
    await http.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
