"""Ends of clients and servers in the middle of something, and callers that are slow or have vanished."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from tests.attacks.test_connection_attacks import open_sockets
from tests.support.http_app import NPY, Wire, npy_bytes, request_bytes

from tensorpost import Client
from tensorpost.values.problems import TensorpostError

from .. import servers
from .finding import LOCAL, SMALL, Finding, ask, settled
from .suites import suite

TIMEOUTS = {"receive_timeout_seconds": 1, "send_timeout_seconds": 1, "head_timeout_seconds": 1}
STREAM = request_bytes("POST", "/v1/operators/tile?repeats=4000000", npy_bytes(np.zeros(256)), NPY | LOCAL)
LARGE = request_bytes("POST", "/v1/operators/tile?repeats=1", npy_bytes(np.zeros(1 << 18)), NPY | LOCAL)
READER = """
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(bytes.fromhex(sys.stdin.readline()))
print(s.recv(4096)[:12], flush=True)
while s.recv(1 << 16):
    pass
"""


def lifecycle(seconds: float) -> Iterator[Finding]:
    """Each of them, as often as the time is for."""
    times = max(1, round(seconds / 12))
    with servers.tensorpost(min_bytes_per_second=16384, **TIMEOUTS) as server:
        yield killed_clients(server.port, 4 * times)
        yield until_released(server.port, "SIGSTOP of a reader of 8 GB", partial(stopped_reader, server.port))
        yield until_released(server.port, "a body of 2 MiB sent at 1 KB/s", partial(slow_sender, server.port))
        yield until_released(
            server.port,
            "200 half-open connections: half heads, half bodies, then silence",
            partial(half_open, server.port),
        )
    yield killed_servers(times)
    yield terminated_under_load(times)
    yield suite("restarts under load, a passed socket", "tests/commands/test_upgrades.py")


def killed_clients(port: int, count: int) -> Finding:
    """Kill readers with SIGKILL in the middle of a stream."""
    for _ in range(count):
        reader = _reader(port)
        reader.kill()
        reader.communicate()
    begin = time.monotonic()
    left = settled(port)
    seen = f"in use {time.monotonic() - begin:.1f} s later: {left or 'nothing'}"
    return Finding(f"kill -9 of {count} clients in the middle of a stream", seen, not left and served(port))


def until_released(port: int, done: str, act: Callable[[], contextlib.AbstractContextManager[None]]) -> Finding:
    """Hold something, and see that it is released by the timeouts of a second while it is held."""
    with act():
        begin = time.monotonic()
        assert settled(port, 0), "nothing is held"
        left = settled(port, 20)
        took = time.monotonic() - begin
    seen = f"released after {took:.1f} s, with timeouts of 1 s" if not left else f"still in use: {left}"
    return Finding(done, seen, not left and served(port))


@contextlib.contextmanager
def stopped_reader(port: int) -> Iterator[None]:
    """A reader of a stream that SIGSTOP has stopped."""
    reader = _reader(port)
    reader.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        reader.kill()
        reader.communicate()


def _reader(port: int) -> subprocess.Popen[str]:
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(STREAM.hex() + "\n")
    reader.stdin.flush()
    assert "200" in reader.stdout.readline()
    return reader


@contextlib.contextmanager
def slow_sender(port: int) -> Iterator[None]:
    """A body that comes at 1 KB/s."""
    done = threading.Event()
    with contextlib.closing(Wire("127.0.0.1", port)) as wire:
        wire.send(LARGE[:4096])

        def drip() -> None:
            at = 4096
            with contextlib.suppress(OSError):
                while not done.wait(0.1):
                    wire.send(LARGE[at : at + 100])
                    at += 100

        thread = threading.Thread(target=drip)
        thread.start()
        time.sleep(0.2)
        try:
            yield
        finally:
            done.set()
            thread.join()


@contextlib.contextmanager
def half_open(port: int) -> Iterator[None]:
    """Connections whose other side says nothing any more, and does not close."""
    with contextlib.ExitStack() as stack:
        open_sockets(stack, port, 100, b"GET / HTTP/1.1\r\nHost: local")
        open_sockets(stack, port, 100, LARGE[:300])
        time.sleep(0.3)
        yield


def killed_servers(count: int) -> Finding:
    """SIGKILL of a server in the middle of a stream to the SDK, which must say so, and take no part for the whole."""
    outcomes: list[str] = []
    for _ in range(count):
        with servers.tensorpost() as server, Client(server.url, timeout=10, retries=0) as client:
            blocks = 0

            def kill(_progress: object, pid: int = server.process) -> None:
                nonlocal blocks
                blocks += 1
                if blocks == 3:
                    os.kill(pid, signal.SIGKILL)

            try:
                client.tile(np.zeros(1 << 20, np.uint8), (512,), progress=kill)
                outcomes.append("an answer")
            except TensorpostError as error:
                outcomes.append(type(error).__name__)
    seen = f"the SDK raised {', '.join(sorted(set(outcomes)))}"
    return Finding(f"kill -9 of {count} servers in the middle of an answer", seen, "an answer" not in outcomes)


def terminated_under_load(count: int) -> Finding:
    """SIGTERM while requests are in flight: each that was admitted is answered whole."""
    answered, lost = 0, list[str]()
    for _ in range(count):
        with servers.tensorpost() as server, contextlib.ExitStack() as stack:
            wires = [stack.enter_context(contextlib.closing(Wire("127.0.0.1", server.port))) for _ in range(16)]
            for wire in wires:
                wire.send(STREAM.replace(b"repeats=4000000", b"repeats=2000", 1))
                wire.socket.settimeout(60)
            in_flight = 0
            while in_flight < len(wires):  # else it would be a request that was not admitted
                said = ask(server.port, request_bytes("GET", "/v1/limits", headers=LOCAL)).json()
                in_flight = said["in_use"]["requests_in_flight"]
            os.kill(server.process, signal.SIGTERM)
            for wire in wires:
                try:
                    status, fields = wire.head()
                    wire.read(int(fields["content-length"]))
                    answered += status == 200
                except (OSError, EOFError) as error:
                    lost.append(repr(error))
    seen = f"{answered} of {count * 16} admitted requests answered whole, {len(lost)} lost {'; '.join(lost[:2])}"
    return Finding(f"SIGTERM to {count} servers with 16 streams in flight", seen, not lost and answered == count * 16)


def served(port: int) -> bool:
    """Whether a small call is answered."""
    with contextlib.suppress(OSError, EOFError, socket.timeout):
        return ask(port, SMALL).status == 200
    return False
