"""A plain ASGI application that reads bodies in every way there is, behind any protocol class on any event loop.

`POST /{how}` answers with what it got as JSON: `length`, `sha`, `path`, and whether it was received into memory
(`straight`). Memory for receiving lies between guards, which are looked at for as long as the application lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from tests.support.http_app import PATIENCE, Wire, eventually

from tensorpost_server.http.connection.receive_into import receive_into

WINDOWS_LOOP = "tensorpost_server.http.connection.windows_loop:event_loop"  # asyncio's own stops at a reset
__all__ = ["BodiesApp", "Lent", "Serving", "serve_bodies", "settle", "sha"]

GUARD = b"\xa5" * 64


def sha(data: bytes) -> str:
    """A digest to compare bodies by."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class Lent:
    """Memory for receiving, between two guards.

    Attributes:
        view: what the server may write to.
    """

    size: int
    block: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.block = bytearray(GUARD + bytes(self.size) + GUARD)

    @property
    def view(self) -> memoryview:
        return memoryview(self.block)[len(GUARD) : len(GUARD) + self.size]

    def assert_guards(self) -> None:
        assert self.block.startswith(GUARD), "written before the memory that was lent"
        assert self.block.endswith(GUARD), "written behind the memory that was lent"


@dataclass
class BodiesApp:
    """See the module.

    Attributes:
        seen: paths, as they came.
        ended: paths of requests whose application has returned.
        gone: paths of those whose caller hung up.
        lent: all memory lent so far.
        after_return: copies of lent memory taken when a receive had ended early.
        headers: of the last request, when its body was read.
        go_on: `/wait` answers when it is set.
        timeout: seconds between two parts of a body.
    """

    seen: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    lent: list[Lent] = field(default_factory=list)
    after_return: list[tuple[Lent, bytes]] = field(default_factory=list)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    timeout: float = PATIENCE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        self.seen.append(path)
        try:
            await self._run(path, scope, receive, send)
        except ConnectionResetError:
            self.gone.append(path)
        finally:
            self.ended.append(path)

    async def _run(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        into = receive_into(scope)
        length = next((int(value) for name, value in scope["headers"] if name == b"content-length"), None)
        how = path.strip("/").split("/")[0]
        body, straight = b"", False
        if how == "refuse":
            pass  # answers before the body is read
        elif how == "wait":
            while not self.go_on.is_set():
                await asyncio.sleep(0.005)
        elif how == "endless":
            await self._endless(receive, send)
            return
        elif how == "big":
            await self._answer(send, bytes(int(path.rsplit("/", 1)[1])))
            return
        elif into is None or length is None or how == "receive":
            body = await self._by_receive(receive)
        else:
            straight = True
            lent = Lent(length)
            self.lent.append(lent)
            into_it = self._mixed(into, receive, lent) if how == "mixed" else getattr(self, f"_{how}")(into, lent)
            body = await into_it
        self.headers = list(scope["headers"])
        about = {"path": path, "length": len(body), "sha": sha(body), "straight": straight}
        await self._answer(send, json.dumps(about).encode())

    async def _by_receive(self, receive: Receive, least: int | None = None) -> bytes:
        body, more = b"", True
        while more and (least is None or len(body) < least):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body

    async def _into(self, into: Any, lent: Lent) -> bytes:
        """All of it into one piece of memory."""
        count = await into([lent.view], lent.size, self.timeout)
        return self._end(lent, count)

    async def _greedy(self, into: Any, lent: Lent) -> bytes:
        """Ask for more than the body has."""
        more = Lent(lent.size + 1000)
        self.lent.append(more)
        count = await into([more.view], more.size, self.timeout)
        assert bytes(more.view[count:]) == bytes(more.size - count), "bytes behind the body are in its memory"
        return self._end(more, count)

    async def _pieces(self, into: Any, lent: Lent) -> bytes:
        """Head first, then into many pieces of memory, some of which are empty."""
        view, at = lent.view, 0
        while at < min(16, lent.size):
            at += await into([view[at:16]], 1, self.timeout)
        parts = [view[start : start + 1000] for start in range(at, lent.size, 1000)]
        with_empty = [part for each in parts for part in (view[:0], each)]
        at += await into(with_empty, lent.size - at, self.timeout)
        return self._end(lent, at)

    async def _mixed(self, into: Any, receive: Receive, lent: Lent) -> bytes:
        """Receive into memory, with `receive`, and into memory again."""
        view, third = lent.view, lent.size // 3
        at = await into([view[:third]], third, self.timeout)
        piece = await self._by_receive(receive, 1)
        view[at : at + len(piece)] = piece
        at += len(piece)
        at += await into([view[at:]], lent.size - at, self.timeout)
        return self._end(lent, at)

    async def _stop(self, into: Any, lent: Lent) -> bytes:
        """Receive a third of the body and no more."""
        third = lent.size // 3
        count = await into([lent.view[:third]], third, self.timeout)
        self.after_return.append((lent, bytes(lent.block)))
        return bytes(lent.view[:count])

    async def _cancel(self, into: Any, lent: Lent) -> bytes:
        """Wait for more than comes, but not for long."""
        try:
            async with asyncio.timeout(0.1):
                await into([lent.view], lent.size, self.timeout)
        except TimeoutError:
            pass
        self.after_return.append((lent, bytes(lent.block)))
        return b""

    def _end(self, lent: Lent, count: int) -> bytes:
        lent.assert_guards()
        return bytes(lent.view[:count])

    async def _endless(self, receive: Receive, send: Send) -> None:
        """An answer that takes as long as its caller."""
        gone = asyncio.ensure_future(self._by_receive(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"999999999999")]})
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                await asyncio.sleep(0)
                if gone.done() and gone.exception() is not None:
                    raise ConnectionResetError
                if gone.done():
                    gone = asyncio.ensure_future(self._until_gone(receive))
        finally:
            gone.cancel()

    @staticmethod
    async def _until_gone(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise ConnectionResetError

    @staticmethod
    async def _answer(send: Send, body: bytes) -> None:
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def assert_untouched(self) -> None:
        """No guard is broken, and nothing was written to memory after it was taken back."""
        for lent in self.lent:
            lent.assert_guards()
        for lent, before in self.after_return:
            assert bytes(lent.block) == before, "written to after it was taken back"


@dataclass
class Serving:
    """A server in a thread of this process."""

    app: BodiesApp
    port: int
    server: uvicorn.Server
    tls: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def wire(self, **options: Any) -> Iterator[Wire]:
        """A connection of its own."""
        wire = Wire("127.0.0.1", self.port, **options)
        if self.tls is not None:
            wire.socket = self.tls.wrap_socket(wire.socket)
        try:
            yield wire
        finally:
            wire.close()

    @property
    def connections(self) -> int:
        """How many are open, seen from the server."""
        return len(self.server.server_state.connections)


@contextlib.contextmanager
def serve_bodies(
    protocol: Any, loop: Any, certificate: Path | None = None, *, uds: str | None = None
) -> Iterator[Serving]:
    """`BodiesApp` behind uvicorn with this protocol and loop.

    Args:
        protocol: for uvicorn.
        loop: for uvicorn.
        certificate: with its key; makes it TLS.
        uds: path of a Unix socket, to listen there and not on a port.
    """
    app = BodiesApp()
    config = uvicorn.Config(
        app, http=protocol, loop=WINDOWS_LOOP if sys.platform == "win32" else loop, log_config=None, ws="none",
        lifespan="off", timeout_graceful_shutdown=PATIENCE,
        ssl_certfile=certificate, ssl_keyfile=certificate, uds=uds,
    )  # fmt: skip
    server = uvicorn.Server(config)
    client = None
    if certificate is not None:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": None if uds else [listener]}, name="uvicorn")
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive(), "the server starts")
            assert server.started, "the server stopped while starting"
            yield Serving(app, listener.getsockname()[1], server, client)
        finally:
            app.go_on.set()
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server does not stop"
    app.assert_untouched()


async def settle(turns: int = 12) -> None:
    """Let the loop do what it can without waiting."""
    for _ in range(turns):
        await asyncio.sleep(0)
