"""What the command line asks of the server: run it, look at its backends, show its settings.

Plain functions of plain values. The command line finds them by name when a command needs them, because the SDK, where
it lives, imports no server code.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from tensorpost.problems import DeviceLost, InvalidParameter, NoBackend, nearest

from .backends.numba_ import library
from .engine import Pool
from .http.transport import Transport, choose_transport
from .main import create_app, open_pool
from .settings import ENVIRONMENT_PREFIX, Settings

__all__ = ["config", "doctor", "probe_directml", "serve", "unknown_variables", "warmup"]

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_NO_SETTINGS = ("TENSORPOST_URL",)
"""Variables that the command line reads itself."""
_LIBRARIES = {
    "cuda": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "directml": ("onnxruntime-directml", "onnxruntime-windowsml"),
    "numba": ("numba",),
    "numpy": ("numpy",),
}
"""The distributions that do a backend's computing; the first that is installed counts."""

_log = logging.getLogger(__name__)


def serve(
    *, host: str | None = None, port: int | None = None, uds: Path | None = None, log_level: str = "info"
) -> None:
    """Run the server until it is told to stop (SIGINT, SIGTERM).

    When it takes requests it prints one line with its address to standard output. Everything else goes to standard
    error: a warning if others than this machine can reach it, one for each environment variable that looks like a
    setting but is none, and what goes wrong later.

    Args:
        host: address to listen on. Default: the setting `host`.
        port: TCP port to listen on; 0 picks a free one. Default: the setting `port`.
        uds: path of a Unix socket to listen on, instead of host and port. Default: the setting `uds`.
        log_level: the least important messages to show: critical, error, warning, info or debug.

    Raises:
        InvalidParameter: a setting or argument cannot be right, or the address cannot be listened on.
        NoBackend: the backend that the settings force cannot be opened.
        DeviceLost: a device failed for good; requests under way on others were finished. Start the server again.
    """
    if log_level not in LOG_LEVELS:
        raise InvalidParameter(f"log level {log_level[:40]!r} does not exist; there are {', '.join(LOG_LEVELS)}")
    _log_to_standard_error(log_level)
    chosen = {"host": host, "port": port, "uds": uds}
    settings = _settings(**{name: value for name, value in chosen.items() if value is not None})
    for sentence in unknown_variables():
        _log.warning(sentence)
    transport = choose_transport(settings)
    if transport.missing:
        _log.warning("large tensors will move slowly: install %s", " and ".join(transport.missing))
    created = create_app(settings)
    app = _Application(created)
    with _Listener(settings) as listener:
        address = _address(listener.socket)
        if settings.uds is None and not _is_loopback(address):
            _log.warning("others can reach %s, and there is no authentication: put a proxy in front of it", address)
        server = _Server(_uvicorn_config(app, transport, log_level), app, address)
        created.state.service.end = server.end
        server.run_until_stopped(listener)


def doctor() -> list[dict[str, object]]:
    """Open every device there is, and say what came of it.

    Returns:
        One row per device, in the order `auto` prefers them: `name` of the backend; `index` of the device, None for a
        backend that could not be opened at all; `available`; `version` of the library that computes, None if there is
        none; `device` in words and `reason`, of which one is None; `auto`, whether `auto` may choose it;
        `minimum_work`, how many elements an operator must read for that; `gauges`, by name; `folder` where its compiled
        kernels are, None if it has none. The last row, `http`, has the protocol and event loop of a server here.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    settings = _settings()
    transport = choose_transport(settings)
    pool = open_pool(settings, "auto", when_lost=_log.critical)
    try:
        rows: list[dict[str, object]] = [
            {
                "name": status.name,
                "index": status.index,
                "available": status.reason is None,
                "version": _installed(_LIBRARIES.get(status.name, ())),
                "device": status.device,
                "reason": status.reason,
                "auto": status.auto,
                "minimum_work": status.minimum_work,
                "gauges": dict(status.gauges),
                "folder": str(library.cache_folder()) if status.name == "numba" and status.reason is None else None,
            }
            for status in pool.status()
        ]
        http: dict[str, object] = {
            "name": "http",
            "index": None,
            "available": True,
            "version": version("uvicorn"),
            "device": transport.words,
            "reason": None,
            "auto": settings.http_protocol == "auto",
            "minimum_work": 0,
            "gauges": {},
            "folder": None,
        }
        return [*rows, http]
    finally:
        pool.close()


def probe_directml(provider: str, device_id: int) -> dict[str, Any]:
    """Ask DirectML the questions that its documents leave open.

    Args:
        provider: the execution provider of ONNX Runtime: `DmlExecutionProvider`, or `CPUExecutionProvider` for a check
            of the command itself.
        device_id: DXGI's index of the adapter.

    Returns:
        A JSON document: versions, device and driver, and one answer per probe.

    Raises:
        NoBackend: the provider is not here; the message says what to install.
    """
    # Only here: no other command needs it.
    from .backends.directml.probes import run_probes

    try:
        return run_probes(provider, device_id)
    except (ImportError, RuntimeError) as error:
        raise NoBackend(str(error)) from None


def warmup() -> dict[str, object]:
    """Compile the numba backend's kernels into its cache, unless they are there. Takes about 20 seconds.

    A server never compiles: without this, it computes with NumPy. To be called in a process that has not used numba.

    Returns:
        `file`; `compiled`, whether it was made now; `seconds` that it took.

    Raises:
        ModuleNotFoundError: numba is not installed; the message names the extra.
        NoBackend: there are no kernels for this kind of machine, or the cache cannot be written to.
    """
    begin = time.perf_counter()
    try:
        path, made = library.build()
    except RuntimeError as error:
        raise NoBackend(f"the backend 'numba' cannot be made ready: {error}") from None
    return {"file": str(path), "compiled": made, "seconds": round(time.perf_counter() - begin, 1)}


def config() -> list[dict[str, object]]:
    """The settings a server started here and now would have.

    Returns:
        One row per setting: `name`; `value`; `origin`, which is `default` or `environment`; `variable`, the one that
        sets it; `description`, with the unit and the reason.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    settings = _settings()
    values = settings.model_dump(mode="json")
    return [
        {
            "name": name,
            "value": values[name],
            "origin": "environment" if name in settings.model_fields_set else "default",
            "variable": _variable(name),
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]


def unknown_variables() -> list[str]:
    """A sentence for each environment variable that starts like a setting and is none.

    They are no error: Kubernetes, for one, sets such variables for a service of our name (`TENSORPOST_SERVICE_HOST`).
    """
    known = [*map(_variable, Settings.model_fields), *_NO_SETTINGS]
    sentences: list[str] = []
    for name in sorted(os.environ):
        if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess}?" if guess else "`tensorpost config` lists the settings"
            sentences.append(f"the environment variable {name[:80]} sets nothing; {hint}")
    return sentences


def _installed(distributions: Sequence[str]) -> str | None:
    """The version of the first of them that is here."""
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _settings(**arguments: Any) -> Settings:
    try:
        return Settings(**arguments)
    except ValidationError as error:
        sentences: list[str] = []
        for line in error.errors(include_url=False):
            name = str(line["loc"][0])
            what = f"--{name}" if name in arguments else _variable(name)
            sentences.append(f"{what} is {str(line['input'])[:80]!r}: {line['msg'][0].lower()}{line['msg'][1:]}")
        raise InvalidParameter("; ".join(sentences)) from None


def _log_to_standard_error(log_level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])


class _Listener:
    """A bound socket. A Unix socket's file goes with it.

    Raises:
        InvalidParameter: the system refuses the address.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.uds
        self.socket = _listen(settings.host, settings.port) if self._path is None else _listen_unix(self._path)
        self._file = None if self._path is None else self._path.stat()

    def __enter__(self) -> _Listener:
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
    """A Unix socket bound to this path. The file of a server that is gone is replaced.

    Raises:
        InvalidParameter: somebody listens there, the file is something else, or the system refuses the path.
    """
    hint = f"choose another --uds ({_variable('uds')})"
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
        reason = "the file exists and is no socket" if path.exists() else error.strerror or str(error)
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
    """A bound socket.

    Raises:
        InvalidParameter: the system refuses the address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(cast("Any", address), family=family)
    except OSError as error:
        # socket.create_server repeats the address in its message; the system's own words are enough.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise InvalidParameter(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port "
            f"({_variable('host')}, {_variable('port')}; port 0 picks a free one)"
        ) from None


def _address(listener: socket.socket) -> str:
    if listener.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("http://").rpartition(":")[0].strip("[]").partition("%")[0]
    return ipaddress.ip_address(host).is_loopback


def _uvicorn_config(app: _Application, transport: Transport, log_level: str) -> uvicorn.Config:
    settings = transport.settings
    return uvicorn.Config(
        app,
        http=transport.protocol,
        loop=transport.loop,
        interface="asgi3",
        lifespan="on",
        ws="none",
        workers=1,  # said, so that the environment variable WEB_CONCURRENCY is not read
        log_config=None,
        # uvicorn's account of starting and stopping is for debugging; the line with the address says it shorter
        log_level=log_level if log_level != "info" else "warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on who the caller is
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )


class _Application:
    """The application. Keeps the error that stopped it from starting, which uvicorn would print and forget."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.error: Exception | None = None

    def refused(self) -> list[tuple[str, str]]:
        """Backends, or devices of theirs, that could not be opened, each with the reason."""
        pool: Pool | None = self._app.state.service.pool
        return [] if pool is None else [(key.partition(":")[0], reason) for key, reason in pool.refused.items()]

    @property
    def shutdown_seconds(self) -> int:
        """How long a stop may take."""
        return self._app.state.service.settings.shutdown_seconds

    def drain(self) -> None:
        """Say from now on that it is not ready."""
        self._app.state.service.draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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


class _Server(uvicorn.Server):
    """uvicorn, which says where it listens, is not ready once told to stop, and takes its Unix socket away."""

    def __init__(self, config: uvicorn.Config, app: _Application, address: str) -> None:
        super().__init__(config)
        self._app = app
        self._address = address
        self._listener: _Listener | None = None
        self._device_lost = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop: readiness falls at once, so that who asks sends its next request elsewhere."""
        self._app.drain()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, then say so."""
        await super().startup(sockets)
        for name, reason in self._app.refused():
            if _installed(_LIBRARIES.get(name, ())) is not None:
                _log.warning("the backend %s is not used: %s", name, reason)
        print(f"tensorpost {version('tensorpost')} listens on {self._address}", flush=True)  # noqa: T201 # for scripts

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; here, because uvicorn then ends the process by the signal that it got."""
        seconds = self._app.shutdown_seconds
        begin = time.monotonic()
        await self._drain(seconds / 2)
        self.config.timeout_graceful_shutdown = max(1, round(seconds - (time.monotonic() - begin)))
        await super().shutdown(sockets)
        if self._listener is not None:
            self._listener.close()

    async def _drain(self, seconds: float) -> None:
        """Listen until the requests that are there are answered: who asks meanwhile hears that it is not ready."""
        there, end = [*self.server_state.tasks], time.monotonic() + seconds
        while not all(task.done() for task in there) and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.05)

    def end(self) -> None:
        """Stop in order because a device failed for good, and let the process end with an error."""
        self._device_lost = True
        self.should_exit = True

    def run_until_stopped(self, listener: _Listener) -> None:
        """Serve, then return quietly after Ctrl+C.

        Raises:
            DeviceLost: a device failed for good.
            Exception: what stopped the application from starting.
        """
        try:
            with suppress(KeyboardInterrupt):  # uvicorn stops in order, then raises the signal again
                self._listener = listener
                self.run(sockets=[listener.socket])
            if self._device_lost:
                raise DeviceLost("a device failed for good (the log says which); start the server again")
        except SystemExit:
            if self._app.error is not None:
                raise self._app.error from None
            raise
