"""Attacks on connections: what one caller sends, or does not read, may neither cost memory nor shut others out.

The figures in the docstrings were measured before and after each mend, on 2 cores.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.support.http_app import Serving, eventually, request_bytes, serving

LIVE = request_bytes("GET", "/v2/health/live", headers={"content-length": None})


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as found:
        yield found


def resident_bytes() -> int:
    """Memory of this process, the server's thread included."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---- requests sent ahead ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_requests_sent_ahead_stay_in_the_socket(server: Serving):
    """586 KB of requests on each connection, whose answers nobody reads: 22,211 were queued on one, and now at most 8."""
    ahead = (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 24_000)[: 586 << 10]
    server.assert_serves_on()
    before = resident_bytes()
    with ExitStack() as stack:
        for _ in range(10):
            sender = stack.enter_context(server.wire(receive_buffer=4096)).socket
            sender.setblocking(False)
            with suppress(BlockingIOError):
                sender.send(ahead)
        for _ in range(20):  # the server goes on as far as it goes
            server.ask(LIVE)
        grown = resident_bytes() - before
        connections = [*server.server.server_state.connections]
        assert max(len(each.pipeline) for each in connections) <= 8  # pyright: ignore[reportAttributeAccessIssue] # uvicorn's union
    assert grown < 10 << 20, f"{grown >> 20} MiB for 10 connections"
    server.assert_serves_on()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16_000, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 60_000, None),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"a:\r\n" * 16_000, 404),
        (b"GET / HTTP/1.0\r\nHost: a\r\nX\r\n\r\n" + b"a" * 500_000, 400),
    ],
    ids=["fields", "a half", "trailers", "refused"],
)
def test_an_idle_or_refused_connection_costs_little(server: Serving, data: bytes, status: int | None):
    """Per connection, before and after: 16,000 fields 3.0 MB and 13 KB, the same as trailers 2.9 MB and 6 KB."""
    server.assert_serves_on()
    before = resident_bytes()
    with ExitStack() as stack:
        for _ in range(40):
            wire = stack.enter_context(server.wire())
            with suppress(OSError):
                wire.send(data)
            if status is not None:
                assert wire.answer().status == status
        for _ in range(5):
            server.ask(LIVE)
        grown = (resident_bytes() - before) / 40
    assert grown < 96 << 10, f"{grown / 1024:.0f} KiB for a connection"
    server.assert_serves_on()


@pytest.mark.parametrize("count", [1, 9, 10, 3000])
def test_requests_sent_ahead_are_all_answered_in_order(server: Serving, count: int):
    requests = [request_bytes("GET", f"/{number}", headers={"content-length": None}) for number in range(count)]
    with server.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        wire.send(b"".join(requests))
        for number in range(count):
            assert f"/{number};" in wire.answer().json()["detail"]
        wire.send(LIVE)
        assert wire.answer().body == b'{"live":true}'
    eventually(lambda: not server.server.server_state.connections, "the connection ends")
