"""Ten times the bytes that may be admitted, asked for by 2,000 connections at once, which wait as they are told.

The device is the CPU, made slower by pauses of 10 ms: else 2,000 callers on the same cores would be what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
import uvloop
from tests.support.http_app import NPY, npy_bytes, request_bytes
from tests.support.live_server import live_server

from ..machine import BUSY, busy_cores
from .finding import LIVE, LIVE_SECONDS, LOCAL, Finding, ask, in_processes, settled
from .mixed import spelled

CONNECTIONS, UNLOADED = 2000, 8
TIMES_MEMORY = 10
ADDRESSES = 16
BODY = npy_bytes(np.zeros(65_536, np.float32))
REQUEST = request_bytes("POST", "/v1/operators/tile?repeats=1", BODY, NPY | LOCAL)
RESERVED = 2 * len(BODY)  # input and output, at least
SLOW = """
import time
from tensorpost_server.engine.worker import Worker
until = Worker._until
def slow(self, stop, call, *args):
    time.sleep(0.03)
    return until(self, stop, call, *args)
Worker._until = slow
"""
EXPECTED = (200, 413, 429, 503)
GOODPUT = 0.9
HANGS = 30.0  # seconds for one answer


def overload(seconds: float) -> Iterator[Finding]:
    """A third of the time with a few connections, the rest with all."""
    memory = CONNECTIONS * RESERVED // TIMES_MEMORY
    settings = {
        "TENSORPOST_MEMORY_BYTES": memory, "TENSORPOST_MAX_REQUESTS": 100_000, "TENSORPOST_INLINE_BYTES": 0,
        "TENSORPOST_NUMPY_THREADS": 2,
    }  # fmt: skip
    with live_server(SLOW, **settings) as url:
        port = int(url.rpartition(":")[2])
        took: list[float] = []

        def live() -> None:
            begin = time.perf_counter()
            assert ask(port, LIVE).status == 200
            took.append(time.perf_counter() - begin)

        ((alone, _),) = in_processes([partial(load, port, UNLOADED, seconds / 3)], live)
        unloaded = float(np.quantile(took, 0.99))
        took.clear()
        ((statuses, hung),) = in_processes([partial(load, port, CONNECTIONS, seconds / 1.5)], live)
        left = settled(port)
    goodput = statuses["200"] / 2 / max(alone["200"], 1)
    p99 = float(np.quantile(took, 0.99))
    seen = (
        f"{spelled(statuses)}; {hung} hung; goodput {goodput:.0%} of that of {UNLOADED} connections; liveness p99 "
        f"{p99 * 1e3:.0f} ms, with {UNLOADED} {unloaded * 1e3:.0f} ms; in use at the end: {left or 'nothing'}"
    )
    right = {status for status in statuses if int(status) not in EXPECTED} == set()
    others = busy_cores() or 0.0
    in_time = goodput >= GOODPUT and p99 <= max(LIVE_SECONDS, 3 * unloaded)
    if others > BUSY:
        seen += f"; goodput and latencies not judged, since others kept {others:.1f} cores busy"
    holds = right and not hung and not left and (in_time or others > BUSY)
    done = f"{CONNECTIONS:,} connections that ask for {TIMES_MEMORY} times the {memory >> 20} MiB that may be admitted"
    yield Finding(done, seen, holds)


def load(port: int, connections: int, seconds: float) -> tuple[Counter[str], int]:
    """Ask over and over; after a refusal, wait as long as it says. The statuses, and how many answers never came."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load(port, connections, seconds))


async def _load(port: int, connections: int, seconds: float) -> tuple[Counter[str], int]:
    statuses, end, hung = Counter[str](), time.monotonic() + seconds, 0

    async def one(number: int) -> None:
        nonlocal hung
        source = (f"127.0.0.{2 + number % ADDRESSES}", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
        try:
            while time.monotonic() < end:
                writer.write(REQUEST)
                async with asyncio.timeout(HANGS):
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                    await reader.readexactly(int(fields[b"content-length"]))
                statuses[head[9:12].decode()] += 1
                if wait := float(fields.get(b"retry-after", 0)):
                    await asyncio.sleep(wait)
        except TimeoutError:
            hung += 1
        finally:
            writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return statuses, hung
