"""A caller of HTTP/2 that sends what it is told: frames of any kind, well-formed or not, on a socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator

__all__ = [
    "CONTINUATION", "DATA", "GOAWAY", "HEADERS", "PING", "PREFACE", "PRIORITY", "PUSH", "RESET", "SETTINGS", "WINDOW",
    "Http2Wire", "frame", "head", "literal", "message",
]  # fmt: skip

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
SERVICE = b"/inference.GRPCInferenceService/"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A field without index and Huffman's code; its parts have fewer than 127 bytes (RFC 7541, section 6.2.2)."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def head(path: bytes, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The header block of a call of gRPC; a path without / is a method of the protocol's service."""
    whole = path if path.startswith(b"/") else SERVICE + path
    first = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", whole), (b":authority", b"localhost"))
    rest = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), *fields)
    return b"".join([literal(name, value) for name, value in (*first, *rest)])


def message(data: bytes, *, compressed: bool = False, length: int | None = None) -> bytes:
    """A message with its prefix, which may announce another length."""
    return bytes([compressed]) + (len(data) if length is None else length).to_bytes(4, "big") + data


class Http2Wire:
    """A connection, on which the preface and empty settings were sent.

    Args:
        port: the server's port at 127.0.0.1.
        source: the address to call from.
        timeout: longest wait for a frame, seconds.
    """

    def __init__(self, port: int, source: str = "127.0.0.1", timeout: float = 20) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout, (source, 0))
        self._rest = b""
        self._unsent: dict[int, tuple[bytes, int]] = {}  # of bodies, with what the window lets through
        self.send(PREFACE + frame(SETTINGS))

    def __enter__(self) -> Http2Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes, as far as the server takes them."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def call(
        self, stream: int, path: bytes, body: bytes | None = b"", fields: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Begin a call, and end it with this body unless there is none; of a long one as much as the window lets."""
        self.send(frame(HEADERS, 4, stream, head(path, fields)))
        if body is not None:
            self._continue(stream, body, 65_535)

    def _continue(self, stream: int, body: bytes, window: int) -> None:
        frames = list[bytes]()
        while window and (body or not frames):
            part, body = body[: min(16_384, window)], body[min(16_384, window) :]
            window -= len(part)
            frames.append(frame(DATA, int(not body), stream, part))
            if not body:
                self._unsent.pop(stream, None)
                break
        else:
            self._unsent[stream] = body, window
        self.send(b"".join(frames))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each frame, until the server closes the connection."""
        while True:
            while len(self._rest) < 9 or len(self._rest) < 9 + int.from_bytes(self._rest[:3], "big"):
                try:
                    data = self.socket.recv(65_536)
                except ConnectionError:
                    return
                if not data:
                    return
                self._rest += data
            end = 9 + int.from_bytes(self._rest[:3], "big")
            found, self._rest = self._rest[:end], self._rest[end:]
            stream = int.from_bytes(found[5:9], "big")
            if found[3] == WINDOW and stream in self._unsent:
                body, window = self._unsent[stream]
                self._continue(stream, body, window + int.from_bytes(found[9:], "big"))
            yield found[3], found[4], stream, found[9:]

    def status(self, stream: int) -> int | None:
        """The status of a call; None if the connection ends before it, or the call is reset."""
        for kind, flags, number, payload in self.frames():
            if number == stream and kind == HEADERS and flags & 1:
                at = payload.index(b"grpc-status") + len(b"grpc-status")
                return int(payload[at + 1 : at + 1 + payload[at]])
            if number == stream and kind == RESET:
                return None
        return None

    def goaway(self) -> int | None:
        """The error code of the end of the connection; None if it is closed without one."""
        return next(
            (int.from_bytes(payload[4:8], "big") for kind, _, _, payload in self.frames() if kind == GOAWAY), None
        )
