"""Many small requests at once: by `wrk` where it is installed, else by a generator of our own."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from .machine import wrk_version

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
# What wrk runs; it has no way to take a body from a file, nor to print what a program can read.
LUA = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*all")
file:close()
{headers}
done = function(summary, latency, requests)
  local bad = summary.errors
  io.write(string.format("found %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), bad.connect + bad.read + bad.write + bad.status + bad.timeout))
end
"""


@dataclass(frozen=True)
class Request:
    """One request, to be made over and over."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Load:
    """What came of it: requests per second, and within how many seconds half and 99 % of them were answered."""

    rate: float
    p50: float
    p99: float


def put(port: int, request: Request, connections: int, seconds: float) -> Load:
    """Make a request from so many connections for so long.

    Raises:
        RuntimeError: an answer was not 200, or a connection broke.
    """
    if wrk_version():
        return _by_wrk(port, request, connections, seconds)
    return by_loop(port, request, connections, seconds)


def generator() -> str:
    """Who makes the load."""
    return (
        f"wrk {found}, one thread"
        if (found := wrk_version())
        else "an asyncio loop of this program (wrk is not installed)"
    )


def _by_wrk(port: int, request: Request, connections: int, seconds: float) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder, "body"), Path(folder, "script.lua")
        body.write_bytes(request.body)
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items())
        script.write_text(LUA.format(body=body, headers=headers))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script)]
        run = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{request.path}"],
            capture_output=True, text=True, check=True, timeout=seconds + 60,
        )  # fmt: skip
    found = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("found ")]
    made, took, p50, p99, bad = (int(number) for number in found[0])
    if bad or not made:
        raise RuntimeError(f"{bad} of {made} requests to {request.path} failed:\n{run.stdout}")
    return Load(made / took * 1e6, p50 / 1e6, p99 / 1e6)


def by_loop(port: int, request: Request, connections: int, seconds: float) -> Load:
    """The same as wrk, in Python: each connection asks again when its answer is there."""
    try:
        factory = importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:  # there is none for Windows
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_ask(port, request, connections, seconds))


async def _ask(port: int, request: Request, connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    callers = [
        _Caller(request, loop.create_future(), loop.create_future(), begin + seconds) for _ in range(connections)
    ]
    connected: list[_Caller] = []
    try:
        for caller in callers:
            await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", port)
            connected.append(caller)
        async with asyncio.timeout(seconds + 60):
            await asyncio.gather(*(caller.done for caller in callers))
    finally:
        # uvloop complains about a transport that its loop did not see to its end.
        for caller in connected:
            caller.transport.close()
        await asyncio.gather(*(caller.closed for caller in connected))
        for caller in callers:
            if not caller.done.cancel():
                caller.done.exception()  # seen, if another one's was raised
    took = [seconds for caller in callers for seconds in caller.took]
    p50, p99 = np.quantile(took, [0.5, 0.99])
    return Load(len(took) / (time.perf_counter() - begin), float(p50), float(p99))


class _Caller(asyncio.Protocol):
    """One connection. Answers may differ in length, as those with a `Server-Timing` do."""

    def __init__(self, request: Request, done: asyncio.Future[None], closed: asyncio.Future[None], end: float) -> None:
        fields = {"host": "localhost", **request.headers, "content-length": str(len(request.body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.message = f"POST {request.path} HTTP/1.1\r\n{lines}\r\n".encode() + request.body
        self.done, self.closed, self.end = done, closed, end
        self.took: list[float] = []
        self.got = bytearray()
        self.length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its type
        self.ask()

    def ask(self) -> None:
        self.begun = time.perf_counter()
        self.transport.write(self.message)

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.length:
            head_bytes = self.got.find(b"\r\n\r\n") + 4
            if head_bytes < 4:
                return
            length = CONTENT_LENGTH.search(self.got, 0, head_bytes)
            if length is None:
                self.fail(f"an answer without Content-Length: {bytes(self.got[:head_bytes])!r}")
                return
            self.length = head_bytes + int(length[1])
        if len(self.got) < self.length:
            return
        if len(self.got) > self.length or not self.got.startswith(b"HTTP/1.1 200"):
            self.fail(f"answered with {bytes(self.got[:200])!r}")
            return
        now = time.perf_counter()
        self.took.append(now - self.begun)
        self.got.clear()
        self.length = 0
        if now < self.end:
            self.ask()
        else:
            self.finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish(RuntimeError(f"the connection broke: {exc}"))
        self.closed.set_result(None)

    def fail(self, why: str) -> None:
        self.finish(RuntimeError(why))

    def finish(self, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
        self.transport.close()
