"""Connections to a server: TCP, Unix sockets and TLS."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ._origin import Origin
from ._runtime import READ, WRITE, Deadline, Runtime
from .problems import ConnectFailed, ConnectionProblem, RequestTimeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["SSL_WANTS", "Connection", "Direction", "broken", "connect", "connect_failed", "timed_out", "tls_context"]

SSL_WANTS = {2: READ, 3: WRITE}  # by errno of ssl.SSLWantReadError and ssl.SSLWantWriteError
_CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))
Direction: TypeAlias = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Connection:
    """An open socket that does not block.

    Attributes:
        blocked: the socket's errors when it would block, of which TLS has two of its own.
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


# ---- errors ----------------------------------------------------------------------------------------------------------


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


def timed_out(origin: Origin, direction: Direction) -> RequestTimeout:
    """The error of too long a wait."""
    seconds = origin.timeout.read if direction == "read" else origin.timeout.write
    # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
    long = "too long" if seconds is None else f"{seconds:g} seconds"
    more = "" if direction == "read" else " and took no more of the request"
    return RequestTimeout(f"{origin} was silent for {long}{more}", extra={"phase": direction})


def broken(origin: Origin, direction: Direction, error: Exception) -> ConnectionProblem:
    """The error of a connection that failed."""
    if isinstance(error, TimeoutError):
        return timed_out(origin, direction)
    said = str(error) or type(error).__name__
    return ConnectionProblem(f"the connection to {origin} failed: {said}", extra={"phase": direction})
