"""Connections to a server, TCP, Unix or TLS: how they are opened, and kept between calls."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._options import Limits
from ._origin import Origin
from ._runtime import READ, WRITE, Deadline, Runtime
from .problems import ConnectFailed, RequestTimeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["CLOSED", "SSL_WANTS", "Connection", "ConnectionPool", "all_in_use", "connect", "connect_failed"]
__all__ += ["tls_context"]

CLOSED = "the client has been closed; make a new one"
SSL_WANTS = {2: READ, 3: WRITE}  # by errno of ssl.SSLWantReadError and ssl.SSLWantWriteError
_CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))


@dataclass(frozen=True, slots=True)
class Connection:
    """An open socket that does not block.

    Attributes:
        sock: the socket.
        blocked: its errors when it would block, of which TLS has two of its own.
        process: the process that opened it.
    """

    sock: socket.socket | ssl.SSLSocket
    blocked: tuple[type[OSError], ...] = (BlockingIOError,)
    process: int = field(default_factory=os.getpid)

    @property
    def is_tls(self) -> bool:
        return len(self.blocked) > 1

    @property
    def is_inherited(self) -> bool:
        """Whether another process opened it, from which this one was forked, and goes on using it."""
        return self.process != os.getpid()

    def is_silent(self) -> bool:
        """Whether nothing came, neither bytes nor the end. TLS may have sent records of its own."""
        try:
            self.sock.recv(1)
        except OSError as error:
            return isinstance(error, self.blocked)
        return False


# ---- opening ---------------------------------------------------------------------------------------------------------


async def connect(origin: Origin, runtime: Runtime, deadline: Deadline, tls: ssl.SSLContext | None) -> Connection:
    """Open a connection. Each address of a host has the time of `Timeout.connect`.

    Raises:
        ConnectFailed: no connection, or the server's certificate is not trusted.
        RequestTimeout: the end of the call's time.
    """
    try:
        with _closed_on_error(await _connected_socket(origin, runtime, deadline)) as sock:
            if origin.uds is None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Connection(sock) if tls is None else await _secured(sock, tls, origin, runtime, deadline)
    except RequestTimeout:
        raise  # the end of the call's time, which is an OSError too
    except (OSError, UnicodeError) as error:  # timeouts, and names that do not resolve or are none, included
        deadline.clip(None)
        raise connect_failed(origin, error) from error


async def _connected_socket(origin: Origin, runtime: Runtime, deadline: Deadline) -> socket.socket:
    seconds = deadline.clip(origin.timeout.connect)
    if origin.uds is not None:
        found: list[tuple[int, Any]] = [(socket.AF_UNIX, origin.uds)]
    else:
        found = [(entry[0], entry[4]) for entry in await runtime.addresses(origin.host, origin.port, seconds)]
    failure = OSError("its name has no address")
    for family, address in found:
        try:
            with _closed_on_error(socket.socket(family, socket.SOCK_STREAM)) as sock:
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code in _CONNECTING:
                    if not await runtime.wait(sock, WRITE, seconds):
                        raise TimeoutError
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                return sock
        except OSError as error:
            failure = error
    raise failure


async def _secured(
    sock: socket.socket, tls: ssl.SSLContext, origin: Origin, runtime: Runtime, deadline: Deadline
) -> Connection:
    import ssl

    blocked = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    with _closed_on_error(tls.wrap_socket(sock, server_hostname=origin.host, do_handshake_on_connect=False)) as secured:
        while True:
            try:
                secured.do_handshake()
                return Connection(secured, blocked)
            except blocked as error:
                events = SSL_WANTS.get(error.errno or 0, READ)
            if not await runtime.wait(secured, events, deadline.clip(origin.timeout.connect)):
                raise TimeoutError


@contextmanager
def _closed_on_error(sock: socket.socket) -> Generator[Any]:
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def tls_context(tls: ssl.SSLContext | bool) -> ssl.SSLContext:
    """A caller's own context, or one with the usual certificates, or one without any verification."""
    import ssl

    if not isinstance(tls, bool):
        return tls
    cafile, capath = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if tls and not (cafile or capath):
        import certifi  # the usual ones: the same on every system, and those of httpx

        cafile = certifi.where()
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    if not tls:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def connect_failed(origin: Origin, error: Exception) -> ConnectFailed:
    """The error when no connection can be made. With a certificate that is not trusted a call is not repeated."""
    cause: BaseException | None = error
    while cause is not None:
        if why := getattr(cause, "verify_message", None):  # ssl.SSLCertVerificationError
            return ConnectFailed(
                f"the certificate of {origin} is not trusted: {why}; if it should be, pass "
                "tls=ssl.create_default_context(cafile=...) with the certificate of its issuer",
                extra={"certificate": why},
            )
        cause = cause.__cause__ or cause.__context__
    said = str(error) or "no answer in time"
    return ConnectFailed(f"no connection to {origin}: {said}; is the server running, and is this its address?")


# ---- between calls ---------------------------------------------------------------------------------------------------


class ConnectionPool:
    """The connections of a client to its server. May be used by several threads, or by the tasks of one event loop."""

    def __init__(self, runtime: Runtime, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime, self._limits, self._clock = runtime, limits, clock
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()  # events of the calls that wait, oldest first
        self._idle: list[tuple[Connection, float]] = []  # with the time of its last use, oldest first
        self._busy = 0
        self._closed = False

    async def acquire(self, seconds: float | None, deadline: Deadline) -> Connection | None:
        """Wait until there may be one more connection. Each call of this is followed by one of `release`.

        Returns:
            An idle connection that the server has not closed; None if one must be made.

        Raises:
            RequestTimeout: all were in use for so many seconds.
            RuntimeError: the pool was closed.
        """
        most, event = self._limits.max_connections, None
        with self._lock:
            if self._closed:
                raise RuntimeError(CLOSED)
            if most is None or self._busy < most:
                self._busy += 1
            else:
                event = self._runtime.event()
                self._waiting.append(event)
        if event is not None:
            await self._wait(event, seconds, deadline)
        while (connection := self._take()) is not None and not connection.is_silent():
            connection.sock.close()
        return connection

    async def _wait(self, event: Any, seconds: float | None, deadline: Deadline) -> None:
        """Wait for a call that ends and passes its place on."""
        try:
            await self._runtime.wait_for(event, deadline.clip(seconds))
        except BaseException:
            if not self._withdraw(event):
                self.release()  # the place that came too late goes to the next one
            raise
        if self._withdraw(event):
            deadline.clip(None)
            raise all_in_use(seconds, self._limits.max_connections)
        if self._closed:
            self.release()
            raise RuntimeError(CLOSED)

    def _withdraw(self, event: Any) -> bool:
        """Wait no longer; False if a place was passed on already."""
        with self._lock:
            waits = event in self._waiting
            if waits:
                self._waiting.remove(event)
            return waits

    def _take(self) -> Connection | None:
        """The idle connection used last, which is the least likely to be closed."""
        with self._lock:
            expiry = self._limits.keepalive_expiry
            while expiry is not None and self._idle and self._idle[0][1] < self._clock() - expiry:
                self._close_idle(len(self._idle) - 1)
            return self._idle.pop()[0] if self._idle else None

    def release(self, connection: Connection | None = None, *, reusable: bool = False) -> None:
        """A call has ended. Keep its connection if it can serve another one and there is room, or close it."""
        if connection is not None and not reusable:
            connection.sock.close()
        with self._lock:
            if connection is not None and reusable:
                self._idle.append((connection, self._clock()))
                most = 0 if self._closed else self._limits.max_keepalive_connections
                self._close_idle(len(self._idle) if most is None else most)
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._busy -= 1

    def _close_idle(self, most: int) -> None:
        while len(self._idle) > most:
            self._idle.pop(0)[0].sock.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their responses are."""
        with self._lock:
            self._closed = True
            self._close_idle(0)


def all_in_use(seconds: float | None, most: int | None = None) -> RequestTimeout:
    """The error when no connection became free."""
    return RequestTimeout(
        f"all{f' {most}' if most else ''} connections were in use for {seconds} seconds; raise max_connections or the "
        "timeout's pool, or close streams that are not read to their end",
        extra={"phase": "pool"},
    )
