"""The service against a plain FastAPI application that does the same Tile, in one run on loopback.

    python benchmarks/service.py            about a minute
    python benchmarks/service.py --quick    a few seconds, for a first look

The peer is what one writes in ten lines: `await request.body()`, `numpy.tile`, `Response(content=...)`. Both servers
run uvicorn with httptools and uvloop, one process each, and get the same bytes from the same raw-socket client.
Figures are medians; only ratios mean anything on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response

from tensorpost import frame
from tensorpost.datatypes import data_type

HERE = Path(__file__).resolve()
MIB = 1 << 20


def plain_app() -> Any:
    """The peer: a FastAPI application without any of our code in the path of the bytes."""
    app = FastAPI()

    @app.post("/tile")
    async def tile(request: Request, shape: str, repeats: str) -> Response:
        body = await request.body()
        x = np.frombuffer(body, np.float32).reshape([int(n) for n in shape.split(",")])
        y = np.tile(x, [int(n) for n in repeats.split(",")])
        return Response(y.tobytes(), media_type="application/octet-stream")

    @app.get("/v2/health/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    return app


@contextlib.contextmanager
def server(factory: str) -> Iterator[int]:
    """A uvicorn process on a free port; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "uvicorn", "--factory", factory, "--port", str(port), "--log-level", "warning"]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([*command, "--no-access-log"], env={**os.environ, "PYTHONPATH": path})
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), Caller(port) as caller:
                caller.get("/v2/health/ready")
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


class Caller:
    """A keep-alive connection that sends and receives with as few copies as sockets allow."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.memory = memoryview(bytearray(MIB))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def get(self, path: str) -> int:
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        return self._answer()

    def post(self, path: str, media_type: str, parts: list[memoryview]) -> int:
        """Send a body and receive the answer; returns the answer's bytes without its head."""
        length = sum(part.nbytes for part in parts)
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
        if length < 65536:
            self.socket.sendall(b"".join([head.encode(), *parts]))
        else:
            self.socket.sendall(head.encode())
            for part in parts:
                self.socket.sendall(part)
        return self._answer()

    def _answer(self) -> int:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.socket.recv(4096)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), data[:500]
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length, got = int(fields[b"content-length"]), len(rest)
        while got < length:
            count = self.socket.recv_into(self.memory)
            assert count, "the answer broke off"
            got += count
        return length


@dataclass
class Job:
    """The same Tile for both servers."""

    x: np.ndarray[Any, Any]
    repeats: tuple[int, ...]

    def ours(self, caller: Caller) -> int:
        head = frame.encode_npy_head(data_type(self.x.dtype), self.x.shape)
        path = f"/v1/operators/tile?repeats={','.join(map(str, self.repeats))}"
        return caller.post(path, "application/x-npy", [memoryview(head), self.x.data.cast("B")])

    def plain(self, caller: Caller) -> int:
        shape, repeats = ",".join(map(str, self.x.shape)), ",".join(map(str, self.repeats))
        path = f"/tile?shape={shape}&repeats={repeats}"
        return caller.post(path, "application/octet-stream", [self.x.data.cast("B")])


def alternately(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call, taken in turn."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in took.items()}


def rate(port: int, call: Callable[[Caller], object], connections: int, seconds: float) -> float:
    """Requests per second from this many connections, each in a thread of its own."""
    stop, counts = time.perf_counter() + seconds, [0] * connections

    def work(index: int) -> None:
        with Caller(port) as caller:
            while time.perf_counter() < stop:
                call(caller)
                counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(connections)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller calls")
    quick = parser.parse_args().quick
    small = Job(np.random.default_rng(0).random((1, 3, 8, 8), np.float32), (1, 1, 2, 2))
    sizes = [1, 16] if quick else [1, 16, 256]
    with server("tensorpost_server.main:create_app") as ours, server("service:plain_app") as plain:
        print(f"{'job':34} {'tensorpost':>12} {'FastAPI':>12}   ratio")
        with Caller(ours) as a, Caller(plain) as b:
            took = alternately({"ours": lambda: small.ours(a), "plain": lambda: small.plain(b)}, 200 if quick else 1000)
            row("small tile, microseconds", took["ours"] * 1e6, took["plain"] * 1e6, "time")
        for connections in (1, 8) if quick else (1, 8, 64):
            seconds = 0.5 if quick else 1.5
            rates = [
                (rate(ours, small.ours, connections, seconds), rate(plain, small.plain, connections, seconds))
                for _ in range(1 if quick else 3)
            ]
            mine, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
            row(f"small tile, {connections} connections, req/s", mine, theirs, "rate")
        for mib in sizes:
            # First a quarter in and all out, then all in and all out.
            rows = max(1, mib * MIB // 16 // 1024)
            tiled = Job(np.zeros((1, 1, rows, 1024), np.float32), (1, 1, 2, 2))
            copied = Job(np.zeros((1, 1, rows * 4, 1024), np.float32), (1, 1, 1, 1))
            for label, job in (("tile x2x2 to", tiled), ("copy of", copied)):
                with Caller(ours) as a, Caller(plain) as b:
                    calls: dict[str, Callable[[], object]] = {
                        "ours": lambda a=a, job=job: job.ours(a),
                        "plain": lambda b=b, job=job: job.plain(b),
                    }
                    took = alternately(calls, 3 if quick or mib > 100 else 9)
                out = job.x.nbytes * int(np.prod(job.repeats))
                row(f"{label} {mib} MiB, GB/s out", out / took["ours"] / 1e9, out / took["plain"] / 1e9, "rate")


def row(label: str, ours: float, plain: float, kind: str) -> None:
    """One line; a ratio above 1 is in our favour."""
    ratio = ours / plain if kind == "rate" else plain / ours
    digits = 2 if max(ours, plain) < 100 else 0
    print(f"{label:34} {ours:12.{digits}f} {plain:12.{digits}f}   {ratio:5.2f}x", flush=True)


if __name__ == "__main__":
    main()
