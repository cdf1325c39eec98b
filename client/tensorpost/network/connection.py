"""Connections to a server: TCP, Unix sockets and TLS."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..values.problems import ConnectFailed, ConnectionProblem
from .deadline import Deadline, WaitPhase
from .runtime import READ, WRITE

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

_CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))
_TLS_AWAITED = {2: READ, 3: WRITE}  # by errno of ssl.SSLWantReadError and ssl.SSLWantWriteError

TRUST_ADVICE = "if it should be, pass tls=ssl.create_default_context(cafile=...) with the certificate of its issuer"
"""What a program does about a certificate that is not trusted; the command line says it in its own words."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""What OpenSSL calls an answer that is no TLS, by its version."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open socket that does not block.

    Attributes:
        process: the process that opened it.
    """

    sock: socket.socket
    is_tls: bool = False
    process: int = field(default_factory=os.getpid)

    @property
    def is_inherited(self) -> bool:
        """Whether another process opened it, from which this one was forked, and goes on using it."""
        return self.process != os.getpid()

    def is_silent(self) -> bool:
        """Whether nothing came, neither bytes nor the end. TLS may have sent records of its own."""
        try:
            self.sock.recv(1)
        except OSError as error:
            return awaited(error, READ) > 0
        return False


def awaited(error: OSError, events: int) -> int:
    """The events for which a socket operation has to wait, `events` if TLS says nothing else; 0 if it failed."""
    return events if isinstance(error, BlockingIOError) else _TLS_AWAITED.get(error.errno or 0, 0)


async def connect(deadline: Deadline, tls: ssl.SSLContext | None) -> Connection:
    """Open a connection. Each address of a host has the time of `Timeout.connect`."""
    origin, failure = deadline.origin, OSError("its name has no address")
    try:
        if origin.uds is not None:
            return await _open(socket.AF_UNIX, origin.uds, deadline, tls)
        for entry in await deadline.runtime.addresses(
            origin.address or origin.host, origin.port, deadline.seconds("connect")
        ):
            try:
                return await _open(entry[0], entry[4], deadline, tls)
            except OSError as error:
                failure = error
    except (OSError, UnicodeError) as error:  # names that do not resolve or are none, included
        failure = error
    deadline.check()
    raise connect_failed(deadline, failure) from failure


async def _open(family: int, address: Any, deadline: Deadline, tls: ssl.SSLContext | None) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in _CONNECTING:
            await deadline.wait(sock, WRITE, "connect")
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if deadline.origin.uds is None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=deadline.origin.host, do_handshake_on_connect=False)
            await _shake_hands(sock, deadline)
    except BaseException:
        sock.close()
        raise
    return Connection(sock, is_tls=tls is not None)


async def _shake_hands(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    while True:
        try:
            return sock.do_handshake()
        except OSError as error:
            events = awaited(error, READ)
            if not events:
                raise
        await deadline.wait(sock, events, "connect")


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


def connect_failed(deadline: Deadline, error: Exception) -> ConnectFailed:
    """The error when no connection can be made. With a certificate that is not trusted a call is not repeated."""
    origin, cause = deadline.origin, error
    while cause is not None:
        if why := getattr(cause, "verify_message", None):  # ssl.SSLCertVerificationError
            return ConnectFailed(
                f"the certificate of {origin} is not trusted: {why}; {TRUST_ADVICE}",
                extra={"certificate": why},
            )
        if getattr(cause, "reason", None) in _NO_TLS:  # ssl.SSLError
            return ConnectFailed(f"{origin} answered without TLS ({cause}): it serves plain HTTP; write http://")
        cause = cause.__cause__ or cause.__context__
    said = str(error) or "no answer in time"
    return ConnectFailed(f"no connection to {origin}: {said}; is the server running, and is this its address?")


def broken(deadline: Deadline, phase: WaitPhase, error: Exception) -> ConnectionProblem:
    """The error of a connection that failed."""
    if isinstance(error, TimeoutError):
        return deadline.timed_out(phase)
    said = str(error) or type(error).__name__
    return ConnectionProblem(f"the connection to {deadline.origin} failed: {said}", extra={"phase": phase})
