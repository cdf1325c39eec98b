"""Running uvicorn: the HTTP protocol and event loop it is given, how it starts and stops.

No choice is silent: `tensorpost doctor` shows the protocol, and `tensorpost serve` warns when it is a slow one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import FrameType
from typing import Any, Literal, cast

import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from tensorpost.values.extras import install_command
from tensorpost.values.problems import DeviceLost, InvalidParameter

from .engine import Pool
from .http.connection.acceptor import Acceptor
from .http.connection.shared_state import shared_state
from .http.connection.timeouts import ConnectionLimits
from .http.connection.tls import TlsFiles, uvicorn_options
from .listener import Listener
from .settings import Settings, setting_variable
from .shared.process_group import ProcessGroup

_LIBRARIES = {
    "cuda": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "directml": ("onnxruntime-directml", "onnxruntime-windowsml", "directml"),
    "numba": ("numba",),
    "numpy": ("numpy",),
}
"""The distributions that do a backend's computing; the first that is installed counts."""

SWITCH_SECONDS = 0.0005
"""How long a thread keeps Python's lock from the event loop's thread, which wants it back several times a request. With
Python's 5 ms, half of the small calls beside threads that parse or compute took 1.5 to 3 times as long. With 0.2 ms, 99
of 100 beside four computations of 20,000,000 elements took 18 ms instead of 28, but beside 64 callers of JSON 71
instead of 51."""

_TICKS_BETWEEN_LOOKS = 50  # at the files of TLS; uvicorn ticks ten times a second

_log = logging.getLogger(__name__)


def library_version(backend: str) -> str | None:
    """The version of the library that does a backend's computing; None if none is installed."""
    for name in _LIBRARIES.get(backend, ()):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


@dataclass(frozen=True, slots=True)
class ProtocolChoice:
    """The HTTP protocol and event loop that uvicorn is given.

    Attributes:
        http: `direct` is `DirectProtocol`; the others are uvicorn's, httptools with bounded pipelines.
        loop: the event loop.
        missing: packages that would make it faster and are not installed.
        settings: the service's settings, among them the protocol's limits.
    """

    http: Literal["direct", "httptools", "h11"]
    loop: Literal["uvloop", "asyncio"]
    missing: tuple[str, ...]
    settings: Settings

    @property
    def protocol(self) -> type[asyncio.Protocol] | Literal["h11"]:
        """The protocol class, for `uvicorn.Config(http=...)`."""
        if self.http == "h11":
            return self.http
        # These import httptools, which may not be installed.
        if self.http == "httptools":
            from .http.connection.fallback_protocol import FallbackProtocol

            return FallbackProtocol
        from .http.connection.protocol import protocol_class

        return protocol_class(ConnectionLimits.from_settings(self.settings))

    @property
    def loop_factory(self) -> str:
        """The event loop, for `uvicorn.Config(loop=...)`."""
        is_ours = sys.platform == "win32" and self.loop == "asyncio"
        return "tensorpost_server.http.connection.windows_loop:event_loop" if is_ours else self.loop

    @property
    def words(self) -> str:
        """The choice and its consequences in a sentence."""
        ways = {
            "direct": "bodies are received straight into their memory; slow and endless callers are disconnected",
            "httptools": "uvicorn's own protocol: bodies are copied several times, slow callers are not disconnected",
            "h11": "uvicorn's slow protocol: bodies are copied several times, slow callers are not disconnected",
        }
        missing = f" (not installed: {', '.join(self.missing)})" if self.missing else ""
        return f"{self.http} on {self.loop}: {ways[self.http]}{missing}"


def choose_protocol(settings: Settings) -> ProtocolChoice:
    """The protocol that the settings name, or the fastest that is installed.

    Raises:
        InvalidParameter: the settings name one whose package is not installed.
    """
    wished = settings.http_protocol
    faster = ("httptools",) if sys.platform == "win32" else ("httptools", "uvloop")  # uvloop is not made for Windows
    missing = tuple(name for name in faster if find_spec(name) is None)
    if "httptools" in missing and wished in ("direct", "httptools"):
        raise InvalidParameter(
            f"{setting_variable('http_protocol')} is {wished!r}, which needs httptools: {install_command('server')}, "
            "or choose auto or h11"
        )
    best = "h11" if "httptools" in missing else "direct"
    loop = "asyncio" if "uvloop" in missing or sys.platform == "win32" else "uvloop"
    return ProtocolChoice(best if wished == "auto" else wished, loop, missing, settings)


def uvicorn_config(app: GuardedApplication, choice: ProtocolChoice, log_level: str) -> uvicorn.Config:
    """How uvicorn runs the application."""
    settings = choice.settings
    return uvicorn.Config(
        app,
        http=choice.protocol,
        loop=choice.loop_factory,
        interface="asgi3",
        lifespan="on",
        ws="none",
        workers=1,  # explicit, so that the environment variable WEB_CONCURRENCY is not read
        log_config=None,
        # uvicorn's messages about starting and stopping are for debugging; the line with the address replaces them
        log_level=log_level if log_level != "info" else "warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # see `http/caller_address.py`; uvicorn's would believe every program of this machine
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        **uvicorn_options(settings),
    )


class GuardedApplication:
    """The application; keeps the error that stopped it from starting, which uvicorn would print and drop."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.error: Exception | None = None

    def refused(self) -> list[tuple[str, str]]:
        """Backends, or devices of theirs, that could not be opened, each with the reason."""
        pool: Pool | None = self._app.state.service.pool
        return [] if pool is None else [(key.partition(":")[0], reason) for key, reason in pool.refused.items()]

    @property
    def settings(self) -> Settings:
        """The settings of the application."""
        return self._app.state.service.settings

    @property
    def group(self) -> ProcessGroup:
        """The processes of the server."""
        return self._app.state.service.group

    @property
    def grpc_address(self) -> str | None:
        """Host and port of gRPC; None without gRPC, and before the application is open."""
        port: int | None = getattr(self._app.state, "grpc_port", None)
        host = self.settings.host
        return None if port is None else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def drain(self) -> None:
        """Say from now on that it is not ready; other processes of the server take the connections."""
        self._app.state.service.draining = True
        self.group.set_ready(is_ready=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def without_traceback(message: Message) -> None:
            await send({**message, "message": ""} if message["type"] == "lifespan.startup.failed" else message)

        try:
            await self._app(scope, receive, without_traceback)
        except Exception as error:
            self.error = error
            raise


def announce_addresses(address: str, grpc_address: str | None) -> None:
    """Print where the server listens, for scripts; in a second line where it does for gRPC."""
    _announce(f"tensorpost {version('tensorpost')} listens on {address}")
    if grpc_address is not None:
        _announce(f"tensorpost {version('tensorpost')} listens for gRPC on {grpc_address}")


def _announce(line: str) -> None:
    """Print a line for scripts; where nobody can read it (a closed pipe, a full disk), the log has it."""
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        _log.warning("standard output cannot be written to (%s), so here is its line: %s", error.strerror, line)
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123 # the line is still buffered, and would fail at the end
            os.dup2(nothing.fileno(), sys.stdout.fileno())


class Server(uvicorn.Server):
    """uvicorn, which says where it listens, is not ready once told to stop, and takes its Unix socket away."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: GuardedApplication,
        address: str,
        when_ready: Callable[[], object] | None = None,
        when_stopped: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._when_ready, self._when_stopped = when_ready, when_stopped
        self._app = app
        self._address = address
        self._listener: Listener | None = None
        self._device_lost = False
        self._was_told_to_stop = False
        self._tls_files: TlsFiles | None = None

    async def on_tick(self, counter: int) -> bool:
        """What is done ten times a second."""
        if self._tls_files is not None and counter % _TICKS_BETWEEN_LOOKS == 0:
            self._tls_files.reload_if_changed()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop: the server is not ready from now on, so that load balancers send requests elsewhere.

        A second signal ends the process at once, as if it had no handler.
        """
        if self._was_told_to_stop:
            if self._listener is not None:
                self._listener.close()
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._was_told_to_stop = True
        self._app.drain()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, then print the address; in a second line that of gRPC."""
        tls = self.config.ssl
        if tls is not None:
            self._tls_files = TlsFiles(self._app.settings, tls)
        accepts = bool(sockets) and sys.platform != "win32"
        await super().startup([] if accepts else sockets)
        if accepts:
            self.servers = [cast("Any", self._acceptor(each)) for each in sockets or ()]
        for name, reason in self._app.refused():
            if library_version(name) is not None:
                _log.warning("the backend %s is not used: %s", name, reason)
        gc.collect()
        gc.freeze()  # else each full collection of garbage looks at every module, and takes 50 to 100 ms
        if self._when_ready is None:
            announce_addresses(self._address, self._app.grpc_address)
        else:
            self._when_ready()

    def _acceptor(self, listener: socket.socket) -> Acceptor:
        config, state = self.config, self.server_state
        make = cast("Any", config.http_protocol_class)
        make_protocol = partial(make, config=config, server_state=state, app_state=self.lifespan.state)
        limits = ConnectionLimits.from_settings(self._app.settings)
        budget = shared_state(state, limits, asyncio.get_running_loop(), self._app.group.connections).budget

        def should_wait() -> bool:
            return budget.has_more_than_others

        return Acceptor(listener, config.backlog, make_protocol, config.ssl, state.connections, limits, should_wait)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; here, because uvicorn then ends the process by the signal that it got."""
        seconds = self._app.settings.shutdown_seconds
        begin = time.monotonic()
        await self._drain(seconds / 2)
        self.config.timeout_graceful_shutdown = max(1, round(seconds - (time.monotonic() - begin)))
        await super().shutdown(sockets)
        if self._listener is not None:
            self._listener.close()
        self._when_stopped()

    async def _drain(self, seconds: float) -> None:
        """Listen until the requests in flight are answered; meanwhile readiness answers 503."""
        in_flight, end = [*self.server_state.tasks], time.monotonic() + seconds
        while not all(task.done() for task in in_flight) and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.05)

    def end_with_supervisor(self, life: int) -> None:
        """The supervisor has ended, and nobody would start this process again: stop in order.

        Args:
            life: the end of a pipe that the supervisor held open.
        """
        asyncio.get_running_loop().remove_reader(life)
        _log.error("the supervisor has ended; this process ends")
        self.handle_exit(signal.SIGTERM, None)

    def end(self) -> None:
        """Stop in order because a device failed permanently, and let the process end with an error."""
        self._device_lost = True
        self.should_exit = True

    def run_until_stopped(self, listener: Listener) -> None:
        """Serve, then return quietly after Ctrl+C.

        Raises:
            DeviceLost: a device failed permanently.
            Exception: what stopped the application from starting.
        """
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with suppress(KeyboardInterrupt):  # uvicorn stops in order, then raises the signal again
                self._listener = listener
                self.run(sockets=[listener.socket])
            if self._device_lost:
                raise DeviceLost("a device failed permanently (the log says which); start the server again")
        except SystemExit:
            if self._app.error is not None:
                raise self._app.error from None
            raise
