"""A proxy of sockets that cuts connections in the middle of an answer, as a network does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class CuttingProxy:
    """A running proxy.

    Attributes:
        url: its address.
        cuts: after how many bytes from the server each connection is cut, in the order in which they are opened; those
            that follow are not.
        heads: the first bytes that each connection sent to the server.
        passed: bytes from the server that each connection passed on.
        others: servers of later connections, each from a number of connections on.
        resets: whether connections are reset, not closed.
        silent_after: number of connections after which the others are accepted and never answered.
        unanswered: these.
        refuses_until: until when connections but the first are closed as soon as they are opened (`time.monotonic`).
    """

    url: str
    cuts: list[int]
    heads: list[bytes] = field(default_factory=list[bytes])
    passed: list[int] = field(default_factory=list[int])
    others: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    resets: bool = False
    silent_after: int | None = None
    refuses_until: float = 0.0
    unanswered: list[socket.socket] = field(default_factory=list[socket.socket])


@contextlib.contextmanager
def cutting_proxy(target: str, cuts: Sequence[int]) -> Iterator[CuttingProxy]:
    """A proxy in front of the server at this URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CuttingProxy(f"http://127.0.0.1:{listener.getsockname()[1]}", [*cuts])
        threading.Thread(target=_accept, args=(listener, proxy, target), daemon=True).start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for unanswered in proxy.unanswered:
                unanswered.close()


def _accept(listener: socket.socket, proxy: CuttingProxy, target: str) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return  # closed
        if proxy.heads and time.monotonic() < proxy.refuses_until:
            caller.close()
            continue
        if proxy.silent_after is not None and len(proxy.heads) >= proxy.silent_after:
            proxy.unanswered.append(caller)
            continue
        to = urlsplit(next((other for first, other in proxy.others if len(proxy.heads) >= first), target))
        server = socket.create_connection((to.hostname or "", to.port or 0))
        number, cut = len(proxy.heads), proxy.cuts.pop(0) if proxy.cuts else 1 << 62
        proxy.heads.append(b"")
        proxy.passed.append(0)
        threading.Thread(target=_up, args=(caller, server, proxy, number), daemon=True).start()
        threading.Thread(target=_down, args=(caller, server, proxy, number, cut), daemon=True).start()


def _up(caller: socket.socket, server: socket.socket, proxy: CuttingProxy, number: int) -> None:
    with contextlib.suppress(OSError):
        while data := caller.recv(1 << 16):
            if len(proxy.heads[number]) < 4096:
                proxy.heads[number] += data[:4096]
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _down(caller: socket.socket, server: socket.socket, proxy: CuttingProxy, number: int, cut: int) -> None:
    with contextlib.suppress(OSError):
        while proxy.passed[number] < cut and (data := server.recv(min(1 << 16, cut - proxy.passed[number]))):
            caller.sendall(data)
            proxy.passed[number] += len(data)
    for side in (caller, server):
        with contextlib.suppress(OSError):
            if proxy.resets:  # with no time to linger, closing resets the connection, and what is under way is lost
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.shutdown(socket.SHUT_RDWR)
        side.close()
