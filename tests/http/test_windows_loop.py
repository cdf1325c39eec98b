"""Accepting goes on after connections that ended before they were accepted; on Windows over sockets, here in small."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
from collections.abc import Awaitable, Callable

import pytest

from tensorpost_server.http.connection.windows_loop import accept_next, event_loop

RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)  # SO_LINGER: close by a reset


def accepting(*outcomes: int | OSError) -> Callable[[], Awaitable[int]]:
    left = list(outcomes)

    async def accept() -> int:
        outcome = left.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    return accept


def test_those_that_are_gone_are_passed_over() -> None:
    gone = OSError(22, "The specified network name is no longer available")
    assert asyncio.run(accept_next(accepting(gone, gone, 7), lambda: False)) == 7


def test_a_closed_listener_ends_it() -> None:
    with pytest.raises(OSError, match="closed"):
        asyncio.run(accept_next(accepting(OSError("closed"), 7), lambda: True))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio does not close the sockets that were reset
def test_a_server_outlives_callers_who_reset() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(2))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            for _ in range(50):
                with socket.create_connection(address) as caller:
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"ok")
            answer = await asyncio.wait_for(reader.readexactly(2), 10)
            writer.close()
            gc.collect()
            return answer

    with asyncio.Runner(loop_factory=event_loop) as runner:
        assert runner.run(run()) == b"ok"
