"""Takes new connections, all that wait in each turn of the event loop, also where no descriptor is free.

uvloop's own server takes one in a turn (libuv since 1.45). With a thousand busy connections, whose turn takes a third
of a second, the hundredth of those that wait had its turn after half a minute. Where no descriptor is free, it closes
the new ones at once, and asyncio's server takes none for a second; here an idle connection makes room.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from .connection_budget import is_idle

__all__ = ["Acceptor"]

MOST_AT_ONCE = 16
"""Connections that are taken in a turn of the loop; each takes some 100 microseconds of it."""

_LOG_SECONDS = 10.0
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class Acceptor:
    """The listening socket of a server, on an event loop that watches descriptors (not on Windows).

    Args:
        listener: a bound socket; the caller closes it after `close`.
        backlog: connections that may wait in the system.
        protocol: the function that makes the protocol of a connection.
        tls: the context of TLS; None for plain connections.
        connections: the protocols that uvicorn counts, in order to find an idle one.
    """

    def __init__(
        self,
        listener: socket.socket,
        backlog: int,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        connections: Iterable[Any],
    ) -> None:
        self._listener, self._protocol, self._tls, self._connections = listener, protocol, tls, connections
        self._loop = asyncio.get_running_loop()
        self._connecting = set[asyncio.Task[None]]()
        self._reserve = os.open(os.devnull, os.O_RDONLY)  # given up to take a connection, and refuse it
        self._logged = -_LOG_SECONDS
        self._is_open = True
        listener.setblocking(False)
        listener.listen(backlog)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Take no more; may be repeated."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listener)
            os.close(self._reserve)

    async def wait_closed(self) -> None:
        """Wait for handshakes that had begun."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._make_room(error)
                return
            task = self._loop.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except (OSError, asyncio.CancelledError):  # it has gone, or the handshake of TLS failed (ssl.SSLError)
            connection.close()

    def _make_room(self, error: OSError) -> None:
        """Close an idle connection; its descriptor is free in the next turn. If none is idle, refuse a new one."""
        idle = next((each for each in self._connections if is_idle(each)), None)
        if idle is not None:
            idle.transport.close()
        else:
            os.close(self._reserve)
            with suppress(OSError):
                self._listener.accept()[0].close()
            self._reserve = os.open(os.devnull, os.O_RDONLY)
        if self._loop.time() >= self._logged + _LOG_SECONDS:
            self._logged = self._loop.time()
            done = "a new connection was refused" if idle is None else "an idle one was closed"
            _log.warning("no connection could be taken (%s), so %s; raise ulimit -n", error.strerror, done)
