"""Takes new connections, all that wait in each turn of the event loop, also where no descriptor is free.

uvloop's own server takes one in a turn (libuv since 1.45). With a thousand busy connections, whose turn takes a third
of a second, the hundredth of those that wait had its turn after half a minute. Where no descriptor is free, it closes
the new ones at once, and asyncio's server takes none for a second; here an idle connection makes room.

A connection has its protocol, and counts in the budget of connections, when the handshake of TLS has ended. So the
handshakes have a bound of their own, and a time: callers that say nothing would else hold every descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, cast

from ..caller_address import network_of
from .connection_budget import is_idle
from .timeouts import ConnectionLimits

MOST_AT_ONCE = 16
"""Connections that are taken in a turn of the loop; each takes some 100 microseconds of it."""

LEAST_HANDSHAKES, MOST_HANDSHAKES = MOST_AT_ONCE, 1024
"""Handshakes of TLS at a time, where the connections leave room for fewer, and for more; one takes milliseconds."""

_LOG_SECONDS = 10.0
_WAIT_SECONDS, _MOST_WAITS = 0.001, 5  # for a process with fewer connections, which may be in a long turn of its loop
_LAST_SECONDS = 1.0  # for handshakes when the server stops
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
        limits: `connections` bounds the handshakes of TLS too, `head_seconds` is the longest time of one.
        should_wait: whether another process, which has fewer connections, should take the next one; it gets some
            milliseconds to do so.
    """

    def __init__(
        self,
        listener: socket.socket,
        backlog: int,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        connections: Collection[Any],
        limits: ConnectionLimits,
        should_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self._listener, self._protocol, self._tls, self._connections = listener, protocol, tls, connections
        self._most, self._handshake_seconds = limits.connections, None if tls is None else limits.head_seconds
        self._loop = asyncio.get_running_loop()
        self._connecting = dict[asyncio.Task[None], str]()  # the oldest first, with the caller's network
        self._reserve = os.open(os.devnull, os.O_RDONLY)  # given up to take a connection, and refuse it
        self._logged = -_LOG_SECONDS
        self._should_wait, self._waited = should_wait, 0
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
        """Wait for handshakes that had begun, and end those that take longer."""
        if self._connecting:
            _done, late = await asyncio.wait([*self._connecting], timeout=_LAST_SECONDS)
            for task in late:
                task.cancel()

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            if self._waited < _MOST_WAITS and self._should_wait():
                self._waited += 1
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_WAIT_SECONDS, self._resume)
                return
            self._waited = 0
            try:
                connection, peer = cast("tuple[socket.socket, object]", self._listener.accept())
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._make_room(error)
                return
            most = len(self._connecting) + 1 if self._tls is None else self._most_handshakes()
            while len(self._connecting) >= most and self._end_handshake():
                self._log("handshakes of TLS are at their limit (%d), so the oldest was closed", most)
            task = self._loop.create_task(self._connect(connection))
            self._connecting[task] = network_of(str(cast("Any", peer)[0])) if isinstance(peer, tuple) else ""
            task.add_done_callback(partial(self._connected, connection))

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )
        except OSError:  # it has gone, or the handshake of TLS failed (ssl.SSLError) or took too long
            connection.close()

    def _connected(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._connecting.pop(task, None)
        if task.cancelled():  # perhaps before it had begun
            connection.close()

    def _most_handshakes(self) -> int:
        """How many may be at a time, beside the connections that are open."""
        most = min(self._most // 2, self._most - len(self._connections), MOST_HANDSHAKES)
        return max(most, LEAST_HANDSHAKES)

    def _end_handshake(self) -> bool:
        """End the oldest handshake of the caller's network that has most of them; false if there is none."""
        if self._tls is None or not self._connecting:
            return False
        [(network, _count)] = Counter(self._connecting.values()).most_common(1)
        oldest = next(task for task, each in self._connecting.items() if each == network)
        del self._connecting[oldest]
        oldest.cancel()
        return True

    def _make_room(self, error: OSError) -> None:
        """Close an idle connection or a handshake; its descriptor is free in the next turn. Else refuse a new one."""
        idle = next((each for each in self._connections if is_idle(each)), None)
        if idle is not None:
            idle.transport.close()
            done = "an idle one was closed"
        elif self._end_handshake():
            done = "the oldest handshake of TLS was closed"
        else:
            done = "a new connection was refused"
            os.close(self._reserve)
            with suppress(OSError):
                self._listener.accept()[0].close()
            self._reserve = os.open(os.devnull, os.O_RDONLY)
        self._log("no connection could be taken (%s), so %s; raise ulimit -n", error.strerror, done)

    def _log(self, message: str, *values: object) -> None:
        if self._loop.time() >= self._logged + _LOG_SECONDS:
            self._logged = self._loop.time()
            _log.warning(message, *values)
