"""A server that does with a connection whatever a test says: broken, slow, rude or simply wrong."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["RawServer", "http_answer", "raw_server", "read_request"]


@dataclass(eq=False)
class RawServer:
    """The server while it runs.

    Attributes:
        url: base URL; meaningless for a Unix socket.
        connections: how many were accepted so far.
        failures: what went wrong in the handler, `OSError`s aside: those are what these tests are about.
    """

    url: str
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)


def read_request(connection: socket.socket, *, body: bool = True) -> tuple[bytes, bytes]:
    """Read one request: its head, and its body if it has a Content-Length. (b"", b"") at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b"", b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    parts, got = [rest], len(rest)
    while body and got < length:
        part = connection.recv(1 << 20)
        if not part:
            break
        parts.append(part)
        got += len(part)
    return head, b"".join(parts)


def http_answer(
    status: str = "200 OK", body: bytes = b"", content_type: str = "application/json", *, headers: str = ""
) -> bytes:
    """An answer with a true Content-Length. `headers` are further lines, each ending in CRLF."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@contextlib.contextmanager
def raw_server(
    handle: Callable[[socket.socket, int], None], uds: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[RawServer]:
    """Run `handle(connection, number)` for each connection, numbered from 1, in a thread of its own.

    With `tls` the handler gets what is left after the handshake. The connection is closed when the handler returns.
    Leaving the block closes everything, and fails if a handler did.
    """
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(uds)
        listener.listen()
        url = "http://localhost"
    server = RawServer(url)
    threads: list[threading.Thread] = []

    def serve_one(connection: socket.socket, number: int) -> None:
        try:
            with tls.wrap_socket(connection, server_side=True) if tls else connection as agreed:
                server.sockets.append(agreed)
                handle(agreed, number)
        except OSError:
            pass  # the client hung up, or the test is over
        except BaseException as error:  # noqa: BLE001 # shown by the test's own thread
            server.failures.append(error)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            server.sockets.append(connection)
            thread = threading.Thread(target=serve_one, args=(connection, server.connections), daemon=True)
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        listener.close()
        acceptor.join(5)
        for connection in server.sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes a handler that still reads or writes
        for thread in threads:
            thread.join(5)
    assert server.failures == []
