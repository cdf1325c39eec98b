"""How fast bytes get into the service and out of it, against the same bytes over plain TCP, in one run on loopback.

    python benchmarks/wire.py                     about two minutes
    python benchmarks/wire.py --quick             some seconds, for a first look
    python benchmarks/wire.py --json wire.json    the same figures for machines, with what they were measured on

In: a tensor of so many bytes, of which a nearest-neighbour Resample returns 256 elements. Out: 1 MiB, tiled. Each way:

- `tcp`: a process that receives into one block of memory and sends from one. The ceiling.
- `tensorpost`: as `tensorpost serve` runs.
- `no pool`: the same without memory kept for the next tensor (TENSORPOST_POOL_BYTES=0).
- `uvicorn`: the same behind uvicorn's own protocol class (TENSORPOST_HTTP_PROTOCOL=httptools).
- `fastapi`: what one writes in ten lines, `await request.body()` and `Response(bytes)`, with httptools and uvloop.

One client with bare sockets asks them in turn. Every answer is compared with what NumPy says. Given are the fastest
round and the lower quartile of the times; only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response

from tensorpost import frame
from tensorpost.datatypes import data_type

HERE = Path(__file__).resolve()
MIB = 1 << 20
SAMPLES = 256
SETTINGS: dict[str, dict[str, str]] = {
    "tensorpost": {},
    "no pool": {"TENSORPOST_POOL_BYTES": "0"},
    "uvicorn": {"TENSORPOST_HTTP_PROTOCOL": "httptools"},
}
WAYS = ("tcp", "tensorpost", "no pool", "uvicorn", "fastapi")


# ---- the servers -----------------------------------------------------------------------------------------------------


def plain_app() -> FastAPI:
    """The peer: the same two jobs, written as most would."""
    app = FastAPI()

    @app.post("/in")
    async def take(request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32)
        return Response(x[_picked(x.size)].tobytes())

    @app.post("/out")
    async def give(request: Request, copies: int) -> Response:
        return Response(np.tile(np.frombuffer(await request.body(), np.float32), copies).tobytes())

    return app


def plain_tcp(port: int) -> None:
    """The ceiling: `<I` bytes in and out (two 8-byte numbers), then so many bytes in, then so many out."""
    block = memoryview(bytearray(256 * MIB))
    block[:] = bytes(len(block))  # mapped before anybody measures
    with socket.create_server(("127.0.0.1", port)) as listener:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while numbers := connection.recv(16, socket.MSG_WAITALL):
                incoming, outgoing = int.from_bytes(numbers[:8], "little"), int.from_bytes(numbers[8:], "little")
                got = 0
                while got < incoming:
                    got += connection.recv_into(block[got % len(block) :], min(incoming - got, len(block)))
                while outgoing:
                    count = min(MIB, outgoing)
                    connection.sendall(block[:count])
                    outgoing -= count


@contextlib.contextmanager
def serving(way: str) -> Iterator[int]:
    """A server of this kind in a process of its own: its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    if way == "tcp":
        command = [str(HERE), "--tcp", str(port)]
    elif way == "fastapi":
        command = ["-m", "uvicorn", "--factory", "wire:plain_app", "--port", str(port), "--log-level", "warning"]
        command += ["--no-access-log", "--http", "httptools"]
    else:
        command = ["-m", "tensorpost", "serve", "--port", str(port), "--log-level", "warning"]
        environment |= {
            "no pool": {"TENSORPOST_POOL_BYTES": "0"},
            "uvicorn": {"TENSORPOST_HTTP_PROTOCOL": "httptools"},
        }.get(way, {})
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(15)


# ---- the client ------------------------------------------------------------------------------------------------------


@dataclass
class Caller:
    """A connection that sends and receives with as few copies as sockets allow."""

    way: str
    socket: socket.socket
    memory: memoryview = field(default_factory=lambda: memoryview(bytearray(MIB)))

    @classmethod
    def to(cls, way: str, port: int) -> Caller:
        """Connect, when the server is there."""
        for _ in range(400):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return cls(way, connection)
            time.sleep(0.05)
        raise SystemExit(f"{way} does not start")

    def take(self, x: np.ndarray[Any, Any]) -> None:
        """Send a tensor; compare the elements that come back."""
        if self.way == "tcp":
            self._plain(x.data.cast("B"), SAMPLES * 4)
            return
        path = f"/v1/operators/resample?interpolation_mode=NEAREST_NEIGHBOR&output_sizes={SAMPLES}"
        got = bytearray()
        self._ask(path, "/in", x, lambda part: got.extend(part))
        if not np.array_equal(np.frombuffer(got[-SAMPLES * 4 :], np.float32), x[_picked(x.size)]):
            raise SystemExit(f"{self.way} gave other elements back")

    def give(self, x: np.ndarray[Any, Any], copies: int) -> None:
        """Send 1 MiB; receive it many times over, and compare an element of each part."""
        if self.way == "tcp":
            self._plain(x.data.cast("B"), x.nbytes * copies)
            return
        expected, at = x.view(np.uint8), 0

        def look(part: memoryview) -> None:
            nonlocal at
            start = at - head if (head := self._head) <= at else 0
            if at >= head and part[0] != expected[start % x.nbytes]:
                raise SystemExit(f"{self.way} gave another byte {start}")
            at += len(part)

        self._ask(f"/v1/operators/tile?repeats={copies}", f"/out?copies={copies}", x, look)
        if at != self._head + x.nbytes * copies:
            raise SystemExit(f"{self.way} gave {at} bytes")

    @property
    def _head(self) -> int:
        return 0 if self.way == "fastapi" else 128  # of an npy file

    def _plain(self, body: memoryview, answer: int) -> None:
        self.socket.sendall(len(body).to_bytes(8, "little") + answer.to_bytes(8, "little"))
        self.socket.sendall(body)
        while answer:
            answer -= self.socket.recv_into(self.memory, min(answer, len(self.memory)))

    def _ask(self, ours: str, theirs: str, x: np.ndarray[Any, Any], look: Callable[[memoryview], object]) -> None:
        npy = b"" if self.way == "fastapi" else frame.encode_npy_head(data_type(x.dtype), x.shape)
        length = len(npy) + x.nbytes
        head = f"POST {ours if npy else theirs} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-npy\r\n"
        self.socket.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + npy)
        self.socket.sendall(x.data.cast("B"))
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.socket.recv(4096)
        text, _, rest = data.partition(b"\r\n\r\n")
        if not text.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{self.way}: {data[:500]!r}")
        left = int(next(line for line in text.lower().split(b"\r\n") if line.startswith(b"content-length")).split()[1])
        if rest:
            look(memoryview(rest))
        left -= len(rest)
        while left:
            count = self.socket.recv_into(self.memory, min(left, len(self.memory)))
            if not count:
                raise SystemExit(f"{self.way} broke off")
            look(self.memory[:count])
            left -= count


def _picked(size: int) -> np.ndarray[Any, Any]:
    """Which elements a nearest-neighbour Resample to `SAMPLES` takes: the centres, exact for these sizes."""
    return (np.arange(SAMPLES) * 2 + 1) * (size // SAMPLES) // 2


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What was measured for one size, one direction."""

    name: str
    moved: int
    seconds: dict[str, list[float]]

    def rate(self, way: str, quantile: float) -> float:
        """GB/s of the fastest round (0) or at a quantile of the times."""
        return self.moved / float(np.quantile(self.seconds[way], quantile)) / 1e9

    def ratio(self, way: str, other: str) -> float:
        """How many times as fast, at the lower quartile."""
        return self.rate(way, 0.25) / self.rate(other, 0.25)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        rates = {way: {"best": self.rate(way, 0), "quartile": self.rate(way, 0.25)} for way in self.seconds}
        ratios = {f"tensorpost/{way}": self.ratio("tensorpost", way) for way in self.seconds if way != "tensorpost"}
        return {"name": self.name, "bytes": self.moved, "gigabytes_per_second": rates, "ratios": ratios}


def measure(callers: dict[str, Caller], quick: bool) -> Iterator[Row]:
    """Every size and direction, the ways in turn."""
    for mib in (1, 16) if quick else (1, 16, 64, 256):
        x = np.random.default_rng(mib).random(mib * MIB // 4, np.float32)
        rounds = {1: 150, 16: 40, 64: 16, 256: 10}[mib] // (4 if quick else 1)
        calls = {way: lambda caller=caller, x=x: caller.take(x) for way, caller in callers.items()}
        yield Row(f"{mib} MiB in", x.nbytes, alternately(calls, rounds))
    x = np.random.default_rng(0).random(MIB // 4, np.float32)
    for mib in (16,) if quick else (16, 256, 1024):
        few = {way: caller for way, caller in callers.items() if way != "no pool" and (way != "fastapi" or mib < 1024)}
        calls = {way: lambda caller=caller, n=mib: caller.give(x, n) for way, caller in few.items()}
        yield Row(f"{mib} MiB out", x.nbytes * mib, alternately(calls, {16: 30, 256: 8, 1024: 4}[mib]))


def alternately(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, taken in turn, after one that is not counted."""
    took: dict[str, list[float]] = {way: [] for way in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for way, call in calls.items():
            begin = time.perf_counter()
            call()
            took[way].append(time.perf_counter() - begin)
    return took


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    packages = ("uvicorn", "httptools", "uvloop", "fastapi", "starlette", "numpy")
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def main() -> None:
    """Run, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller calls")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--tcp", type=int, help=argparse.SUPPRESS)  # this program as the ceiling's server
    chosen = parser.parse_args()
    if chosen.tcp:
        plain_tcp(chosen.tcp)
        return
    rows: list[Row] = []
    with contextlib.ExitStack() as servers:
        callers = {way: Caller.to(way, servers.enter_context(serving(way))) for way in WAYS}
        print(f"{'GB/s, best round / lower quartile':16}", flush=True)
        print(f"{'':14}" + "".join(f"{way:>15}" for way in WAYS) + "   tensorpost against tcp, uvicorn, fastapi")
        for row in measure(callers, chosen.quick):
            rows.append(row)
            cells = [
                f"{row.rate(way, 0):8.2f} / {row.rate(way, 0.25):.2f}" if way in row.seconds else f"{'-':>15}"
                for way in WAYS
            ]
            against = [
                f"{row.ratio('tensorpost', way):6.2f}x" for way in ("tcp", "uvicorn", "fastapi") if way in row.seconds
            ]
            print(f"{row.name:14}" + "".join(cells) + "  " + "".join(against), flush=True)
        for caller in callers.values():
            caller.socket.close()
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), "rows": [row.as_json() for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
