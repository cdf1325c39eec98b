"""A transport without a network for `DirectProtocol`, whose bytes arrive as a test says.

It does what asyncio's transports do: reads nothing while it is paused, asks a `BufferedProtocol` for memory before each
read, and writes no further than that memory goes. With `reads_first` it does what asyncio's transport on Windows does:
it has read already when it asks for memory, and feeds all that it has, whatever happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from tensorpost_server.http.connection.protocol import DirectProtocol, protocol_class
from tensorpost_server.http.connection.timeouts import ConnectionLimits

from .bodies_app import settle

__all__ = ["FakeTransport", "answers", "connect"]


class FakeTransport(asyncio.Transport):
    """A transport without a network."""

    def __init__(
        self, protocol: DirectProtocol, *, tls: bool = False, reads_first: bool = False, address: str = "127.0.0.1"
    ) -> None:
        super().__init__({"peername": (address, 40_000), **({"sslcontext": object()} if tls else {})})
        self.reads_first = reads_first
        self.protocol: Any = protocol
        self.out = bytearray()
        self.paused = self.closing = self.aborted = self.eof = False
        self.unsent = 0
        self.straight = 0  # bytes that went into memory of the protocol
        protocol.connection_made(self)

    def set_protocol(self, protocol: Any) -> None:
        assert self.paused, "uvloop looks at the kind of protocol only when reading starts"
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        assert not self.eof, "written after the end"
        self.out += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def lose(self) -> None:
        """The peer resets the connection."""
        self.closing = True
        self.protocol.connection_lost(ConnectionResetError())

    def read(self, data: bytes) -> int:
        """One read of the bytes that have arrived; how many were taken."""
        assert not self.paused
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return len(data)
        if self.reads_first:
            self._feed(self.protocol, data)
            return len(data)
        buffer = memoryview(self.protocol.get_buffer(-1))  # pyright: ignore[reportArgumentType] # a memoryview here
        assert len(buffer), "asyncio takes no empty buffer"
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self.straight += count
        self.protocol.buffer_updated(count)
        return count

    def _feed(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        """What asyncio's Proactor transport does with a read, to the protocol that there was when it began."""
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))  # pyright: ignore[reportArgumentType] # a memoryview here
            assert len(buffer), "asyncio takes no empty buffer"
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.straight += count
            protocol.buffer_updated(count)
            data = data[count:]

    async def deliver(self, pieces: Sequence[bytes]) -> bytes:
        """Deliver the pieces one after the other; the bytes that the protocol did not read."""
        for index, piece in enumerate(pieces):
            rest = piece
            while rest:
                for _ in range(60):
                    if not self.paused:
                        break
                    await asyncio.sleep(0)
                if self.paused or self.closing:
                    return rest + b"".join(pieces[index + 1 :])
                rest = rest[self.read(rest) :]
            await settle(3)
        await settle(40)
        return b""


def connect(
    app: ASGIApp,
    *,
    tls: bool = False,
    reads_first: bool = False,
    state: ServerState | None = None,
    address: str = "127.0.0.1",
    **limits: Any,
) -> FakeTransport:
    """A connection to the application; with the same `state` to the same server."""
    config = uvicorn.Config(
        app, http=protocol_class(ConnectionLimits(**limits)), ws="none", lifespan="off", log_config=None,
        access_log=False,
    )  # fmt: skip
    config.load()
    state = ServerState() if state is None else state
    protocol = config.http_protocol_class(config=config, server_state=state, app_state={})  # pyright: ignore[reportCallIssue] # uvicorn calls it so
    assert isinstance(protocol, DirectProtocol)
    return FakeTransport(protocol, tls=tls, reads_first=reads_first, address=address)


def answers(out: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The answers on the wire; interim ones have no length and no body."""
    found: list[tuple[int, dict[str, str], bytes]] = []
    while out:
        head, _, out = out.partition(b"\r\n\r\n")
        start, *lines = head.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        length = int(fields.get("content-length", 0))
        assert len(out) >= length, "an answer is cut off"
        found.append((int(start.split()[1]), fields, out[:length]))
        out = out[length:]
    return found
