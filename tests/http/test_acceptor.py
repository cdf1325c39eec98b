"""New connections: all that wait are taken in a few turns of the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tensorpost_server.http.connection.acceptor import Acceptor
from tensorpost_server.http.connection.timeouts import ConnectionLimits

CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows' event loop has a server of its own")


class Greeter(asyncio.Protocol):
    """Says hello, and counts."""

    cycle = None
    flow = FlowControl(asyncio.Transport())

    def __init__(self, made: list[Greeter]) -> None:
        self.made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.made.append(self)
        self.transport.write(b"hello")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as found:
        yield found


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_all_that_wait_are_taken_in_a_few_turns(kind: str, listener: socket.socket) -> None:
    """uvloop's own server takes 200 turns: with a thousand busy connections each is a third of a second."""
    reason = "uvloop has no wheel for this machine"
    loop = pytest.importorskip("uvloop", reason=reason).new_event_loop if kind == "uvloop" else asyncio.new_event_loop
    made: list[Greeter] = []

    async def turns() -> int:
        acceptor = Acceptor(listener, 512, lambda: Greeter(made), None, made, ConnectionLimits())
        callers = [socket.create_connection(listener.getsockname()) for _ in range(200)]
        count = 0
        while len(made) < 200:
            await asyncio.sleep(0)
            count += 1
            assert count < 10_000
        for caller in callers:
            caller.setblocking(True)
            assert await asyncio.to_thread(caller.recv, 5) == b"hello"
            caller.close()
        acceptor.close()
        acceptor.close()
        await acceptor.wait_closed()
        for each in made:
            each.transport.abort()
        await asyncio.sleep(0.01)
        return count

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(turns()) < 20


class Full:
    """A listener for whose next connection there is no descriptor, once it is told."""

    def __init__(self, real: socket.socket) -> None:
        self.real, self.is_full = real, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def accept(self) -> Any:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.real.accept()


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_connection_makes_room_or_the_new_one_is_refused(
    listener: socket.socket, caplog: pytest.LogCaptureFixture, *, idle: bool
) -> None:
    made: list[Greeter] = []
    full: Any = Full(listener)

    async def run() -> None:
        acceptor = Acceptor(full, 512, lambda: Greeter(made), None, made if idle else [], ConnectionLimits())
        first = socket.create_connection(listener.getsockname(), timeout=5)
        assert await asyncio.to_thread(first.recv, 5) == b"hello"
        full.is_full = True
        second = socket.create_connection(listener.getsockname(), timeout=5)
        assert await asyncio.to_thread(second.recv, 5) == (b"hello" if idle else b"")
        if idle:
            assert await asyncio.to_thread(first.recv, 1) == b"", "it was idle"
        third = socket.create_connection(listener.getsockname(), timeout=5)
        assert await asyncio.to_thread(third.recv, 5) == b"hello"
        acceptor.close()
        for each in (first, second, third):
            each.close()
        for each in made:
            each.transport.abort()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert ("an idle one was closed" if idle else "a new connection was refused") in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address only")
@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_handshakes_that_stand_still_make_room_and_end(
    kind: str, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """They had no bound but the descriptors, and a minute each; the oldest of who has most makes room."""
    reason = "uvloop has no wheel for this machine"
    loop = pytest.importorskip("uvloop", reason=reason).new_event_loop if kind == "uvloop" else asyncio.new_event_loop
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    made: list[Greeter] = []

    def is_closed(caller: socket.socket) -> bool:
        try:
            return caller.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    async def run() -> None:
        limits = ConnectionLimits(connections=40, head_seconds=2)
        acceptor = Acceptor(listener, 512, lambda: Greeter(made), tls, made, limits)
        first = socket.create_connection(listener.getsockname())
        silent = [socket.create_connection(listener.getsockname(), source_address=("127.0.0.2", 0)) for _ in range(30)]
        trusted = ssl.create_default_context(cafile=CERTIFICATE)
        trusted.check_hostname = False
        async with asyncio.timeout(5):
            while sum(map(is_closed, silent)) < 11:
                await asyncio.sleep(0.01)
        assert [is_closed(each) for each in silent] == [True] * 11 + [False] * 19, (
            "20 stay, the first caller's among them"
        )
        reader, writer = await asyncio.open_connection(sock=first, ssl=trusted, server_hostname="127.0.0.1")
        assert await reader.readexactly(5) == b"hello"
        async with asyncio.timeout(10):
            while not all(map(is_closed, silent)):
                await asyncio.sleep(0.05)
        acceptor.close()
        await acceptor.wait_closed()
        writer.transport.abort()
        for each in silent:
            each.close()
        for each in made:
            each.transport.abort()
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    assert "handshakes of TLS are at their limit (20)" in caplog.text
