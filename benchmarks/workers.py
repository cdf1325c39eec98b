"""How much more several processes answer than one: `tensorpost serve --workers`, beside uvicorn's workers with FastAPI.

    python -m benchmarks.workers [--workers 1,2,4,8] [--seconds 3] [--backend numba]

Small requests (a Tile of 4 KiB, as in `make bench`) by 64 connections, and bodies of 256 MiB that come back as they
are, by twice as many connections as there are processes. The load is made by processes of their own, as many as the
server has, so at least twice as many cores as the largest number are needed for a fair figure. The servers take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from benchmarks import load, servers
from benchmarks.small import fastapi_request, our_request
from tensorpost import frame
from tensorpost.datatypes import data_type

LARGE_BYTES = 256 << 20
CONNECTIONS = 64


def large_request(*, is_ours: bool) -> load.Request:
    """A body of 256 MiB that comes back once."""
    x = np.zeros((LARGE_BYTES // 4,), np.float32)
    if is_ours:
        body = frame.encode_npy_head(data_type(x.dtype), x.shape) + x.tobytes()
        return load.Request("/v1/operators/tile?repeats=1", {"content-type": "application/x-npy"}, body)
    return load.Request(f"/tile?shape={x.size}&repeats=1", {"content-type": "application/octet-stream"}, x.tobytes())


def ask_small(port: int, is_ours: bool, connections: int, seconds: float, start: Barrier, results: Any) -> None:
    """Requests a second of some connections."""
    request = our_request() if is_ours else fastapi_request()
    start.wait()
    results.put(load.by_loop(port, request, connections, seconds).rate)


def ask_large(port: int, is_ours: bool, _one: int, seconds: float, start: Barrier, results: Any) -> None:
    """Bytes a second, of bodies both ways, of a connection."""
    request = large_request(is_ours=is_ours)
    fields = {"host": "localhost", **request.headers, "content-length": str(len(request.body))}
    head = f"POST {request.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    buffer, moved = bytearray(1 << 20), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start.wait()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            connection.sendall(head.encode() + b"\r\n")
            connection.sendall(request.body)
            received, length = bytearray(), 0
            while not length:
                received += connection.recv(65536)
                if b"\r\n\r\n" in received:
                    found = load.CONTENT_LENGTH.search(received)
                    assert found is not None
                    assert received.startswith(b"HTTP/1.1 200"), bytes(received[:300])
                    length = received.index(b"\r\n\r\n") + 4 + int(found[1])
            left = length - len(received)
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            moved += len(request.body) + length
        results.put(moved / (time.perf_counter() - begin))


def together(work: Callable[..., None], port: int, is_ours: bool, processes: int, each: int, seconds: float) -> float:
    """The sum of what processes measure at the same time."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=work, args=(port, is_ours, each, seconds, start, results)) for _ in range(processes)
    ]
    for process in running:
        process.start()
    rates = [results.get(timeout=seconds + 60) for _ in running]
    for process in running:
        process.join()
    return sum(rates)


def main() -> None:
    """Print a line for each number of processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--only", choices=("small", "large"))
    parser.add_argument("--alone", action="store_true", help="without FastAPI")
    parser.add_argument("--connections", type=int, help="of large bodies; twice the number of processes by default")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; rates as multiples of one process")
    first: dict[str, float] = {}
    for count in [int(text) for text in arguments.workers.split(",")]:
        servers_of: dict[str, Callable[[], AbstractContextManager[servers.Server]]] = {
            "ours": lambda count=count: servers.tensorpost(workers=count, backend=arguments.backend, onnx_ahead=0),
            "FastAPI": lambda count=count: servers.uvicorn("benchmarks.routes:app", workers=count),
        }
        if arguments.alone:
            del servers_of["FastAPI"]
        for name, start in servers_of.items():
            is_ours, said = name == "ours", list[str]()
            with start() as server:
                time.sleep(2 if count > 1 else 0)  # until all processes take connections
                makers = min(8, 2 * count)
                if arguments.only != "large":
                    rate = together(ask_small, server.port, is_ours, makers, CONNECTIONS // makers, arguments.seconds)
                    first.setdefault(f"{name} small", rate)
                    said.append(f"small {rate:9,.0f}/s {rate / first[f'{name} small']:5.2f}")
                if arguments.only != "small":
                    rate = together(
                        ask_large, server.port, is_ours, arguments.connections or 2 * count, 1, arguments.seconds
                    )
                    first.setdefault(f"{name} large", rate)
                    said.append(f"256 MiB {rate / 1e9:6.2f} GB/s {rate / first[f'{name} large']:5.2f}")
            print(f"{count} {name:8s} {'   '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
