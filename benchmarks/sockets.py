"""HTTP/1.1 over a bare socket, with as few copies as sockets allow, so that the server is what is measured."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
TOGETHER = 64 << 10  # bytes up to which a head and a body go in one call, as in one packet
CERTIFICATE = Path(__file__).parents[1] / "tests" / "support" / "loopback.pem"  # localhost's, signed by itself


def trusting() -> ssl.SSLContext:
    """Trusts that certificate, for any name."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False
    return context


def connected(port: int) -> socket.socket:
    """A connection to this machine that sends at once."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send(connection: socket.socket, head: bytes, parts: Sequence[memoryview]) -> None:
    """Send a head and what follows it."""
    if sum(part.nbytes for part in parts) < TOGETHER:
        connection.sendall(b"".join([head, *parts]))
        return
    connection.sendall(head)
    for part in parts:
        connection.sendall(part)


@dataclass(frozen=True)
class Head:
    """The head of an answer: its fields by their names in small letters, and what already came of the body."""

    fields: Mapping[bytes, bytes]
    rest: bytes

    @property
    def length(self) -> int:
        """The value of Content-Length, bytes."""
        return int(self.fields[b"content-length"])


def receive_head(connection: socket.socket) -> Head:
    """Receive the head of an answer.

    Raises:
        ConnectionError: the server hung up, or said something else than 200 with a length.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(4096)
        if not piece:
            raise ConnectionError(f"the server hung up after {data!r}")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    status, *lines = head.lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if not status.startswith(b"http/1.1 200") or b"content-length" not in fields:
        raise ConnectionError(f"answered with {data[:500]!r}")
    return Head(fields, rest)


def receive_body(
    connection: socket.socket, count: int, rest: bytes, look: Callable[[memoryview], object], room: memoryview
) -> None:
    """Receive so many bytes, of which `rest` already came, and show each part.

    Raises:
        ConnectionError: the server hung up before.
    """
    if rest:
        look(memoryview(rest)[:count])
    count -= min(count, len(rest))
    while count:
        got = connection.recv_into(room, min(count, len(room)))
        if not got:
            raise ConnectionError(f"the server hung up {count} bytes before the end")
        look(room[:got])
        count -= got


def request(path: str, parts: Sequence[memoryview], headers: Mapping[str, str]) -> bytes:
    """The head of a POST of these parts."""
    length = sum(part.nbytes for part in parts)
    lines = [f"{name}: {value}\r\n" for name, value in {"host": "localhost", **headers}.items()]
    return f"POST {path} HTTP/1.1\r\n{''.join(lines)}content-length: {length}\r\n\r\n".encode()


@dataclass
class Connection:
    """A connection that stays open from call to call, with TLS if it has a context."""

    port: int
    tls: ssl.SSLContext | None = None
    memory: memoryview = field(default_factory=lambda: memoryview(bytearray(MIB)))

    def __post_init__(self) -> None:
        plain = connected(self.port)
        self.socket = plain if self.tls is None else self.tls.wrap_socket(plain)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def post(
        self, path: str, parts: Sequence[memoryview], headers: Mapping[str, str], look: Callable[[memoryview], object]
    ) -> None:
        """Post a body; show each part of the answer's as it comes."""
        send(self.socket, request(path, parts, headers), parts)
        head = receive_head(self.socket)
        receive_body(self.socket, head.length, head.rest, look, self.memory)


def as_bytes(x: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a packed tensor."""
    return x.reshape(-1).view(np.uint8).data
