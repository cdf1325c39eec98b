"""Attacks on connections: what one caller sends, or does not read, may neither cost memory nor shut others out."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.support.http_app import (
    NPY,
    PATIENCE,
    Controlled,
    Serving,
    assert_problem,
    eventually,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)
from tests.support.live_server import live_server

from tensorpost_server import machine, main
from tensorpost_server.engine import Admission
from tensorpost_server.http.connection import lingering_close

CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"
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
    """586 KB of requests on each connection, whose answers nobody reads: 22,211 were queued on one, now 8."""
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


def test_httptools_closes_a_connection_with_many_requests_ahead():
    """uvicorn's own protocol keeps objects of each; here a ninth one that waits ends the connection."""
    one = request_bytes("GET", "/v1/limits")
    large = request_bytes("POST", "/v1/operators/tile?repeats=256", npy_bytes(np.zeros(1 << 18, "uint8")), NPY)
    with serving(http_protocol="httptools") as server:
        with server.wire() as wire:
            wire.send(one * 8)
            assert [wire.answer().status for _ in range(8)] == [200] * 8
        with server.wire(receive_buffer=4096) as wire:
            wire.send(large + one * 10_000)
            eventually(lambda: not server.server.server_state.connections, "the connection is closed")
        server.assert_serves_on()


def test_memory_that_slow_readers_held_is_given_back(monkeypatch: pytest.MonkeyPatch):
    """The C library kept it: 112 MiB at the start, 471 MiB for good after 64 slow readers."""
    freed, resident = list[int](), [100 << 20]

    def free() -> None:
        freed.append(admission.requests_in_flight)
        resident[0] = 110 << 20

    monkeypatch.setattr(machine, "resident_memory", lambda: resident[0])
    monkeypatch.setattr(machine, "free_unused_memory", free)
    admission = Admission(1 << 30, 8, 1)

    async def run() -> None:
        trimming = asyncio.ensure_future(main._trim(admission, lambda: None, 0.001))
        await asyncio.sleep(0.01)  # until it has looked at the memory for the first time
        ticket = admission.admit(1 << 20, "anna")
        resident[0] = 500 << 20
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert freed == [], "not while a request is in flight"
        ticket.release()
        async with asyncio.timeout(30):
            while not freed:
                await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0.001)
        trimming.cancel()

    asyncio.run(run())
    assert freed == [0], "once, until the process has grown again"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_the_c_library_gives_memory_back():
    code = """
import numpy as np
from tensorpost_server import machine
blocks = [np.ones(1 << 17) for _ in range(128)]  # the first ones set how much the C library keeps
del blocks
blocks = [np.ones(1 << 14) for _ in range(2048)]
last = blocks[-1]
del blocks
before = machine.resident_memory()
machine.free_unused_memory()
print((before - machine.resident_memory()) >> 20)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(ran.stdout) > 128


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16_000, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 60_000, None),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"a:\r\n" * 16_000, 431),
        (b"GET / HTTP/1.0\r\nHost: a\r\nX\r\n\r\n" + b"a" * 500_000, 400),
    ],
    ids=["fields", "a half", "trailers", "refused"],
)
def test_an_idle_or_refused_connection_costs_little(server: Serving, data: bytes, status: int | None):
    """16,000 trailers were kept at 1775 KiB a connection, and as many fields of a head until its timeout."""
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
        assert wire.answer().body == b'{"live":true}\n'
    eventually(lambda: not server.server.server_state.connections, "the connection ends")


# ---- smuggling -------------------------------------------------------------------------------------------------------

INNER = b"GET /v1/inner HTTP/1.1\r\nHost: test\r\nX-Filler: aaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n"
VALIDATE = b"POST /v1/validate HTTP/1.1\r\nContent-Type: application/json\r\n"
HOST = b"Host: test\r\n"


@pytest.fixture(scope="module", params=["direct", "httptools", "h11"])
def any_server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(http_protocol=request.param, receive_timeout_seconds=1) as found:
        yield found


def all_statuses(server: Serving, data: bytes) -> list[int]:
    """The status of every answer to this data, after which the server hangs up."""
    with server.wire() as wire:
        wire.send(data)
        wire.socket.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionResetError):
            while part := wire.socket.recv(65536):
                received += part
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "], ids=["space", "tab", "both"])
@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"], ids=["plain", "upgrade"])
def test_white_space_about_a_length_does_not_make_a_body_a_request(server: Serving, space: bytes, upgrade: bytes):
    """With Upgrade, the body of 74 bytes was the next request: two answers, and now one."""
    assert len(INNER) == 74
    data = VALIDATE + HOST + upgrade + b"Content-Length:" + space + b"74" + space + b"\r\n\r\n" + INNER
    with server.wire() as wire:
        wire.send(data)
        assert_problem(wire.answer(), 400, "invalid-json")
        wire.send(request_bytes("GET", "/v1/last"))
        assert "/v1/last" in wire.answer().json()["detail"]


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\n",
        HOST + HOST + b"Content-Length: 5\r\n",
        HOST + b"Host: other\r\nContent-Length: 5\r\n",
        b"Host: a b\r\nContent-Length: 5\r\n",
        b"Host: test/x\r\nContent-Length: 5\r\n",
        b"Host: me@test\r\nContent-Length: 5\r\n",
        HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n",
        HOST + b"Content-Length: \r\n",
        HOST + b"Transfer-Encoding: gzip, chunked\r\n",
        HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ],
    ids=lambda fields: fields.decode().replace("\r\n", "|"),
)
def test_fields_that_two_readers_may_read_differently(any_server: Serving, fields: bytes):
    """On h11, TE with CL was answered as if it were right; on the other two, no Host and several were."""
    assert all_statuses(any_server, VALIDATE + fields + b"\r\n" + b"0\r\n\r\n" + INNER) in ([400], [501])


@pytest.mark.parametrize("lengths", [b"Content-Length: 5, 5\r\n", b"Content-Length: 5\r\nContent-Length: 5\r\n"])
def test_a_length_told_twice_is_refused_or_one_length(any_server: Serving, lengths: bytes):
    """RFC 9110, section 8.6, allows both; h11 reads one length, and then the next request."""
    found = all_statuses(any_server, VALIDATE + HOST + lengths + b"\r\n" + b"0\r\n\r\n" + INNER)
    assert found in ([[200], [200, 404]] if any_server.service.settings.http_protocol == "h11" else [[400]])


@pytest.mark.parametrize("fields", [b"", HOST, b"Host: [::1]:80\r\n", b"Host: a.b:8000\r\n"])
def test_hosts_that_are_right(any_server: Serving, fields: bytes):
    version = b"HTTP/1.1" if fields else b"HTTP/1.0"
    with any_server.wire() as wire:
        wire.send(b"GET /v2/health/live " + version + b"\r\n" + fields + b"\r\n")
        assert wire.answer().status == 200


def test_refusals_of_bytes_have_the_shape_of_every_error(server: Serving):
    """The body was a sentence of text/plain without an id."""
    for data, status, code in (
        (b"nonsense\r\n\r\n", 400, "invalid-request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid-parameter"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431, "limit-exceeded"),
    ):
        assert_problem(server.ask(data), status, code)
    named = assert_problem(server.ask(b"GET / HTTP/1.1\r\nX-Request-ID: mine\r\n\r\n"), 400, "invalid-parameter")
    assert named["request_id"] == "mine"


# ---- lock-out --------------------------------------------------------------------------------------------------------

SMALL = request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1]), NPY)


def open_sockets(stack: ExitStack, port: int, count: int, data: bytes = b"", address: str = "127.0.0.1") -> None:
    """Open so many connections from this address, and send this on each; some may be closed already."""
    for _ in range(count):
        opened = stack.enter_context(socket.socket())
        opened.bind((address, 0))
        with suppress(OSError):
            opened.connect(("127.0.0.1", port))
            opened.sendall(data)


def test_uploads_that_stop_make_room():
    """256 connections of 253 bytes: everybody else got 429 for 60 s, now until uploads count as slow."""
    with serving(slow_upload_seconds=0.3, max_requests=64) as server, ExitStack() as stack:
        stopped = request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1] * 1000), NPY)[:253]
        open_sockets(stack, server.port, 64, stopped)
        eventually(lambda: server.ask(SMALL).status == 429, "all places of this caller are taken")
        eventually(lambda: server.ask(SMALL).status == 200, "there is room", within=10)


def test_uploads_that_stop_stay_where_nobody_waits():
    with serving(slow_upload_seconds=0.05, max_requests=4) as server, server.wire() as wire:
        wire.send(SMALL[:-1])
        time.sleep(0.5)
        assert server.ask(SMALL).status == 200
        wire.send(SMALL[-1:])
        assert wire.answer().status == 200


def test_idle_connections_make_room(caplog: pytest.LogCaptureFixture):
    """Beyond the budget the oldest idle one is closed, and the newest is served."""
    with serving(max_connections=20) as server, ExitStack() as stack:
        open_sockets(stack, server.port, 40)
        with server.wire() as wire:
            for _ in range(3):
                wire.send(SMALL)
                assert wire.answer().status == 200
                assert len(server.server.server_state.connections) <= 20
        eventually(lambda: "connections are at their limit" in caplog.text, "it is logged")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address only")
def test_one_address_does_not_take_the_connections_of_another():
    busy = request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1]), NPY)[:-1]
    with serving(max_connections=40, max_connections_per_address=10) as server, ExitStack() as stack:
        open_sockets(stack, server.port, 30, busy, "127.0.0.2")
        assert server.ask(SMALL).status == 200
        eventually(lambda: server.service.admission.requests_in_flight == 10, "ten are served")
        assert len(server.server.server_state.connections) <= 10 + 16 + 1  # served, refused and lingering, the caller's


def test_health_is_answered_when_no_connection_is_free():
    busy = SMALL[:-1]
    with serving(max_connections=10, max_connections_per_address=10) as server, ExitStack() as stack:
        open_sockets(stack, server.port, 10, busy)
        eventually(lambda: server.service.admission.requests_in_flight == 10, "all are busy")
        open_sockets(stack, server.port, 40)
        for _ in range(3):
            answer = server.ask(LIVE)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            refused = server.ask(SMALL)
            assert refused.headers["retry-after"] == "1"
            assert_problem(refused, 429, "too-busy")


_FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of open files")
@pytest.mark.parametrize("http_protocol", ["direct", "h11"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_400_idle_sockets_under_256_descriptors(http_protocol: str, *, tls: bool):
    """Every new connection was dropped without a word, health checks included; with TLS for a minute."""
    settings = {"TENSORPOST_HTTP_PROTOCOL": http_protocol}
    if tls:
        settings["TENSORPOST_TLS_CERTIFICATE"] = str(CERTIFICATE)
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    trusted.check_hostname = False
    with live_server(before=_FEW_DESCRIPTORS, **settings) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        open_sockets(stack, port, 400)
        for _ in range(5):
            assert httpx.get(url + "/v2/health/live", timeout=5, verify=trusted).status_code == 200


# ---- ends of connections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize(
    "rest", [b"", b"GET /half HTTP/1.1\r\nHo", SMALL[:-1]], ids=["whole", "half a head", "half a body"]
)
def test_a_caller_that_sends_no_more_gets_what_is_due(server: Serving, count: int, rest: bytes):
    """No answer came; `printf ... | nc -N` and others close their side when they have sent all."""
    slow = Controlled(before=lambda _index: time.sleep(0.1))
    with use_backend(server.service, slow), server.wire() as wire:
        wire.send(SMALL * count + rest)
        wire.socket.shutdown(socket.SHUT_WR)
        for _ in range(count):
            assert wire.answer().status == 200
        assert wire.is_closed()
    server.assert_serves_on()


def test_a_caller_that_has_gone_is_given_up(server: Serving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lingering_close, "HALF_CLOSED_SECONDS", 0.2)
    go_on = threading.Event()
    slow = Controlled(before=lambda _index: go_on.wait(PATIENCE))
    with use_backend(server.service, slow):
        with server.wire() as wire:
            wire.send(SMALL)
            eventually(lambda: slow.begun == [0], "it is computed")
        eventually(lambda: not server.server.server_state.connections, "the connection ends before the work")
        go_on.set()
    server.assert_serves_on()


@pytest.mark.skipif(sys.platform == "win32", reason="other signals there")
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path):
    """It went on with requests in flight, for as long as their time to stop allows."""
    pid_file = tmp_path / "pid"
    before = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    with live_server(before, TENSORPOST_ALLOWED_HOSTS="*") as url, ExitStack() as stack:
        pid = int(pid_file.read_text())

        def has_ended() -> bool:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

        port = int(url.rpartition(":")[2])
        open_sockets(stack, port, 1, SMALL[:-1])
        eventually(lambda: httpx.get(url + "/v1/limits").json()["in_use"]["requests_in_flight"] == 1, "it is in flight")
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: httpx.get(url + "/v2/health/ready").status_code == 503, "it drains")
        assert not has_ended()
        os.kill(pid, signal.SIGTERM)
        eventually(has_ended, "it ends", within=3)
