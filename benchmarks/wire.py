"""How fast bytes get into the service and out of it, against the same bytes over plain TCP.

In: a tensor, of which a nearest-neighbour Resample returns 256 elements. Out: 1 MiB, tiled. One client with bare
sockets asks every server in turn and compares what it gets with what NumPy says.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tensorpost import frame
from tensorpost.values.datatypes import data_type

from . import servers
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .sockets import CERTIFICATE, MIB, Connection, as_bytes, trusting
from .timing import Times, in_turn

SAMPLES = 256
WAYS = {
    "TCP": "a process that receives into one block of memory and sends from one; the ceiling",
    "tensorpost": "as `tensorpost serve` runs",
    "no pool": "the same, without memory kept for the next tensor (TENSORPOST_POOL_BYTES=0)",
    "uvicorn": "the same, behind uvicorn's own protocol class (TENSORPOST_HTTP_PROTOCOL=httptools)",
    "FastAPI": "`await request.body()` and `Response(bytes)`, with httptools and uvloop",
}
SIZES_IN, SIZES_OUT = (1, 16, 64, 256), (16, 256, 1024)  # MiB
WAYS_TLS = {
    "TCP with TLS": "the process above with TLS of Python's module ssl, as our client has it; the ceiling",
    "with TLS": "tensorpost with a certificate (TENSORPOST_TLS_CERTIFICATE)",
}
SIZES_TLS = (1, 64, 256)  # MiB, both ways
ROUNDS = {1: 150, 16: 40, 64: 16, 256: 12, 1024: 5}
TARGETS = {
    ("in", 256, "TCP"): Target("256 MiB body in, speed against plain TCP", 0.8),
    ("in", 256, "FastAPI"): Target("256 MiB body in, speed against a FastAPI `body()` route", 5),
    ("out", 256, "TCP"): Target("256 MiB body out, speed against plain TCP", 0.8),
    ("out", 1024, "TCP"): Target("1 GiB out from 1 MiB in, speed against plain TCP", 0.7),
}


def picked(size: int) -> np.ndarray[Any, Any]:
    """Which elements a nearest-neighbour Resample to `SAMPLES` takes: the centres, exact for these sizes."""
    return (np.arange(SAMPLES) * 2 + 1) * (size // SAMPLES) // 2


# ---- the servers -----------------------------------------------------------------------------------------------------


def plain_tcp(port: int, *, tls: bool = False) -> None:
    """Serve connections one by one: two 8-byte numbers, then so many bytes in and so many out as they say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    block = memoryview(bytearray(256 * MIB))
    block[:] = bytes(len(block))  # mapped before anybody measures
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError, ssl.SSLError):  # who only looks whether it listens
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls:
                    connection = context.wrap_socket(connection, server_side=True)
                while numbers := connection.recv(16):  # sent in one piece
                    left, wanted = int.from_bytes(numbers[:8], "little"), int.from_bytes(numbers[8:], "little")
                    at = 0
                    while left:
                        got = connection.recv_into(block[at:], min(left, len(block) - at))
                        at, left = (at + got) % len(block), left - got
                    while wanted:
                        wanted -= connection.send(block[: min(MIB, wanted)])


def serving(way: str) -> contextlib.AbstractContextManager[servers.Server]:
    """A server of this kind."""
    if way.startswith("TCP"):
        code = f"import sys; from benchmarks.wire import plain_tcp; plain_tcp(int(sys.argv[1]), tls={way != 'TCP'})"
        return servers.running(way, lambda port: [sys.executable, "-c", code, str(port)], servers.listens)
    if way == "FastAPI":
        return servers.uvicorn("benchmarks.routes:app")
    settings: dict[str, object] = {
        "no pool": {"pool_bytes": 0},
        "uvicorn": {"http_protocol": "httptools"},
        "with TLS": {"tls_certificate": CERTIFICATE},
    }.get(way, {})
    return servers.tensorpost(**settings)


# ---- the client ------------------------------------------------------------------------------------------------------


@dataclass
class Caller:
    """Asks one server, and compares."""

    way: str
    connection: Connection
    scratch: bytearray = field(default_factory=bytearray)

    def take(self, x: np.ndarray[Any, Any]) -> None:
        """Send a tensor; compare the elements that come back."""
        if self.way.startswith("TCP"):
            self.exchange(as_bytes(x), SAMPLES * 4)
            return
        self.scratch.clear()
        path = f"/v1/operators/resample?interpolation_mode=NEAREST_NEIGHBOR&output_sizes={SAMPLES}"
        self._post(path, "/pick", x, self.scratch.extend)
        if not np.array_equal(np.frombuffer(bytes(self.scratch[-SAMPLES * 4 :]), np.float32), x[picked(x.size)]):
            raise RuntimeError(f"{self.way} gave other elements back")

    def give(self, x: np.ndarray[Any, Any], copies: int) -> None:
        """Send 1 MiB; receive it many times over, and compare a byte of each part."""
        if self.way.startswith("TCP"):
            self.exchange(as_bytes(x), x.nbytes * copies)
            return
        expected, at, head = as_bytes(x), 0, 0 if self.way == "FastAPI" else 128  # of an npy file

        def look(part: memoryview) -> None:
            nonlocal at
            if at >= head and part[0] != expected[(at - head) % x.nbytes]:
                raise RuntimeError(f"{self.way} gave another byte {at - head}")
            at += len(part)

        path = f"/tile?shape={x.size}&repeats={copies}"
        self._post(f"/v1/operators/tile?repeats={copies}", path, x, look)
        if at != head + x.nbytes * copies:
            raise RuntimeError(f"{self.way} gave {at} bytes")

    def exchange(self, body: memoryview, answer: int) -> None:
        """Send so many bytes over plain TCP, and receive so many."""
        connection = self.connection.socket
        connection.sendall(len(body).to_bytes(8, "little") + answer.to_bytes(8, "little"))
        connection.sendall(body)
        while answer:
            answer -= connection.recv_into(self.connection.memory, min(answer, MIB))

    def _post(self, ours: str, theirs: str, x: np.ndarray[Any, Any], look: Any) -> None:
        if self.way == "FastAPI":
            self.connection.post(theirs, [as_bytes(x)], {"content-type": "application/octet-stream"}, look)
            return
        head = memoryview(frame.encode_npy_head(data_type(x.dtype), x.shape))
        self.connection.post(ours, [head, as_bytes(x)], {"content-type": "application/x-npy"}, look)


# ---- the run ---------------------------------------------------------------------------------------------------------


def measure(bench: Bench) -> Iterator[Table]:
    """Every size and direction."""
    for way, text in WAYS.items():
        bench.note(f"{way}: {text}.")
    bench.note("Speeds are GB/s at the lower quartile of the times.")
    rows: dict[str, list[tuple[Cell, ...]]] = {"in": [], "out": []}
    with contextlib.ExitStack() as kept:
        callers: dict[str, Caller] = {}
        for way in WAYS:
            if bench.quick and way == "no pool":
                continue
            connection = kept.enter_context(Connection(kept.enter_context(serving(way)).port))
            callers[way] = Caller(way, connection)
        for mib in SIZES_IN:
            if bench.quick and mib == 64:
                continue
            bench.doing(f"wire: {mib} MiB in")
            x = np.random.default_rng(mib).random(mib * MIB // 4, np.float32)
            calls = {way: partial(caller.take, x) for way, caller in callers.items()}
            rows["in"].append(_row("in", mib, in_turn(calls, least=_rounds(mib, bench))))
        x = np.random.default_rng(0).random(MIB // 4, np.float32)
        for mib in SIZES_OUT:
            bench.doing(f"wire: {mib} MiB out")
            # A plain route would hold 2 GiB for the largest; no pool matters only on the way in.
            unasked = {"no pool", "FastAPI"} if mib > 256 else {"no pool"}
            calls = {way: partial(caller.give, x, mib) for way, caller in callers.items() if way not in unasked}
            rows["out"].append(_row("out", mib, in_turn(calls, least=_rounds(mib, bench))))
    columns = ("size", *(f"{way}, GB/s" for way in WAYS), "against TCP", "against uvicorn", "against FastAPI")
    for direction, title in (("in", "Bodies in, 1 KiB out"), ("out", "Bodies out, 1 MiB in")):
        yield Table(title, columns, tuple(rows[direction]))
    ways = (*WAYS_TLS, "tensorpost")
    columns = ("direction", "size", *(f"{way}, GB/s" for way in ways), "against TCP with TLS", "against no TLS")
    yield Table("Bodies with TLS", columns, tuple(_with_tls(bench, ways)))


def _with_tls(bench: Bench, ways: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    """Both directions with TLS, beside the server without."""
    for way, text in WAYS_TLS.items():
        bench.note(f"{way}: {text}.")
    with contextlib.ExitStack() as kept:
        callers: dict[str, Caller] = {}
        for way in ways:
            tls = trusting() if "TLS" in way else None
            callers[way] = Caller(way, kept.enter_context(Connection(kept.enter_context(serving(way)).port, tls)))
        for mib in SIZES_TLS:
            bench.doing(f"wire: {mib} MiB with TLS")
            x, one = (np.random.default_rng(0).random(n * MIB // 4, np.float32) for n in (mib, 1))
            for direction in ("in", "out"):
                calls = {
                    way: partial(caller.take, x) if direction == "in" else partial(caller.give, one, mib)
                    for way, caller in callers.items()
                }
                took = in_turn(calls, least=_rounds(mib, bench))
                rates = [Figure(mib * MIB / took[way].quartile / 1e9) for way in ways]
                ratios = [Figure(took[way].quartile / took["with TLS"].quartile) for way in (ways[0], ways[-1])]
                yield (direction, f"{mib} MiB", *rates, *ratios)


def _rounds(mib: int, bench: Bench) -> int:
    return max(3, ROUNDS[mib] // 4) if bench.quick else ROUNDS[mib]


def _row(direction: str, mib: int, took: Mapping[str, Times]) -> tuple[Cell, ...]:
    """Rates, and how many times as fast as others we are."""
    rates: list[Cell] = [Figure(mib * MIB / took[way].quartile / 1e9) if way in took else None for way in WAYS]
    ratios: list[Cell] = [
        Figure(took[way].quartile / took["tensorpost"].quartile, target=TARGETS.get((direction, mib, way)))
        if way in took
        else None
        for way in ("TCP", "uvicorn", "FastAPI")
    ]
    return (f"{mib} MiB", *rates, *ratios)
