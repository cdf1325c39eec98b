"""The socket that a server listens on: a port, a Unix socket, or the one that systemd passed.

It loads little, so that an address that is in use is found out before all that computes is loaded.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tensorpost.values.problems import InvalidParameter

from .settings import Settings, setting_variable

__all__ = ["Listener", "address_of", "inherited_socket", "is_loopback", "listen_for_grpc"]

_FIRST_PASSED = 3
"""The first descriptor that systemd passes (SD_LISTEN_FDS_START)."""


def inherited_socket() -> socket.socket | None:
    """The listening socket that systemd, or another supervisor, passed to this process; None if there is none.

    The supervisor keeps it, so that connections wait in its queue while one server ends and the next one starts. The
    variables are taken out of the environment, since they mean this process alone.

    Source: sd_listen_fds(3).

    Raises:
        InvalidParameter: there are several, or it is not a listening socket of TCP or of a Unix path.
    """
    variables = {name: os.environ.get(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if variables["LISTEN_PID"] != str(os.getpid()):
        return None
    for name in variables:
        os.environ.pop(name, None)
    if variables["LISTEN_FDS"] != "1":
        raise InvalidParameter(
            f"systemd passed {variables['LISTEN_FDS'][:20] or 'no'} sockets (LISTEN_FDS), and one is listened on; "
            "the socket unit must have one ListenStream="
        )
    try:
        os.set_inheritable(_FIRST_PASSED, False)
        inherited = socket.socket(fileno=_FIRST_PASSED)
        if inherited.type != socket.SOCK_STREAM or not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            inherited.close()
            raise InvalidParameter("what systemd passed is not a listening socket; the socket unit needs ListenStream=")
    except OSError as error:
        raise InvalidParameter(f"the socket that systemd should have passed is none: {error.strerror}") from None
    return inherited


class Listener:
    """A bound socket. Closing it removes the file of a Unix socket, unless the socket was passed to this process.

    Raises:
        InvalidParameter: the system refuses the address.
    """

    def __init__(self, settings: Settings, inherited: socket.socket | None = None) -> None:
        self._path = settings.uds if inherited is None else None
        if inherited is not None:
            self.socket = inherited
        else:
            self.socket = _listen(settings.host, settings.port) if self._path is None else _listen_unix(self._path)
        self._file = None if self._path is None else self._path.stat()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; may be repeated."""
        self.socket.close()
        path, file = self._path, self._file
        if path is not None and file is not None:
            self._file = None
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), file):  # and not of another server that took the path over
                    path.unlink()


def _listen_unix(path: Path) -> socket.socket:
    """A Unix socket bound to this path. The file of a server that is gone is replaced."""
    hint = f"choose another --uds ({setting_variable('uds')})"
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameter(f"there are no Unix sockets for Python on {sys.platform}; use --host and --port")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            if _is_answered(path):
                raise InvalidParameter(f"cannot listen on {path}: another server does already; {hint}")
            path.unlink()
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "the file exists and is not a socket" if path.exists() else error.strerror or str(error)
        raise InvalidParameter(f"cannot listen on {path}: {reason}; {hint}") from None
    except BaseException:
        listener.close()
        raise
    return listener


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(cast("Any", address), family=family)
    except OSError as error:
        # socket.create_server repeats the address in its message; the system's own words are enough.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise InvalidParameter(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port "
            f"({setting_variable('host')}, {setting_variable('port')}; port 0 picks a free one)"
        ) from None


def listen_for_grpc(host: str, port: int) -> socket.socket:
    """A bound socket for gRPC.

    Raises:
        InvalidParameter: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidParameter(f"gRPC cannot listen at {host}:{port}: {error.strerror or error}") from None


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL, or `unix:` and the path, at which a bound socket is reached."""
    if listener.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the URL."""
    host = address.partition("://")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    return ipaddress.ip_address(host).is_loopback
