"""What the command line asks of the server: run it, look at its backends, show its settings.

Plain functions of plain values. The command line finds them by name when a command needs them, because the SDK, where
it lives, imports no server code.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from tensorpost.problems import DeviceLost, InvalidParameter, nearest

from .main import create_app, open_pool
from .settings import ENVIRONMENT_PREFIX, Settings

__all__ = ["config", "doctor", "serve", "unknown_variables"]

SHUTDOWN_SECONDS = 30
"""How long requests in flight may go on after the signal to stop: as long as Kubernetes waits before it kills."""
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_NO_SETTINGS = ("TENSORPOST_URL",)
"""Variables that the command line reads itself."""
_LIBRARIES = {"numpy": ("numpy",), "cuda": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}
"""The distributions that do a backend's computing; the first that is installed counts."""
_FASTER_WITH = ("httptools",) if sys.platform == "win32" else ("httptools", "uvloop")  # uvloop is not made for Windows

_log = logging.getLogger(__name__)


def serve(*, host: str | None = None, port: int | None = None, log_level: str = "info") -> None:
    """Run the server until it is told to stop (SIGINT, SIGTERM).

    When it takes requests it prints one line with its address to standard output. Everything else goes to standard
    error: a warning if others than this machine can reach it, one for each environment variable that looks like a
    setting but is none, and what goes wrong later.

    Args:
        host: address to listen on. Default: the setting `host`.
        port: TCP port to listen on; 0 picks a free one. Default: the setting `port`.
        log_level: the least important messages to show: critical, error, warning, info or debug.

    Raises:
        InvalidParameter: a setting or argument cannot be right, or the address cannot be listened on.
        NoBackend: the backend that the settings force cannot be opened.
        DeviceLost: a device failed for good; requests under way on others were finished. Start the server again.
    """
    if log_level not in LOG_LEVELS:
        raise InvalidParameter(f"log level {log_level[:40]!r} does not exist; there are {', '.join(LOG_LEVELS)}")
    _log_to_standard_error(log_level)
    chosen = {"host": host, "port": port}
    settings = _settings(**{name: value for name, value in chosen.items() if value is not None})
    for sentence in unknown_variables():
        _log.warning(sentence)
    missing = [name for name in _FASTER_WITH if importlib.util.find_spec(name) is None]
    if missing:
        _log.warning("large tensors will move slowly: install %s", " and ".join(missing))
    created = create_app(settings)
    app = _Application(created)
    with _listen(settings.host, settings.port) as listener:
        address = _address(listener)
        if not _is_loopback(address):
            _log.warning("others can reach %s, and there is no authentication: put a proxy in front of it", address)
        server = _Server(_uvicorn_config(app, settings, log_level), address)
        created.state.service.end = server.end
        server.run_until_stopped(app, listener)


def doctor() -> list[dict[str, object]]:
    """Open every device there is, and say what came of it.

    Returns:
        One row per device, in the order `auto` prefers them: `name` of the backend; `index` of the device, None for a
        backend that could not be opened at all; `available`; `version` of the library that computes, None if there is
        none; `device` in words and `reason`, of which one is None; `auto`, whether `auto` may choose it;
        `minimum_work`, how many elements an operator must read for that; `gauges`, by name.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    settings = _settings()
    pool = open_pool(settings, "auto", when_lost=_log.critical)
    try:
        return [
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
            }
            for status in pool.status()
        ]
    finally:
        pool.close()


def config() -> list[dict[str, object]]:
    """The settings a server started here and now would have.

    Returns:
        One row per setting: `name`; `value`; `origin`, which is `default` or `environment`; `variable`, the one that
        sets it; `description`, with the unit and the reason.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    settings = _settings()
    return [
        {
            "name": name,
            "value": getattr(settings, name),
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
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(address: str) -> bool:
    host = address.removeprefix("http://").rpartition(":")[0].strip("[]").partition("%")[0]
    return ipaddress.ip_address(host).is_loopback


def _uvicorn_config(app: _Application, settings: Settings, log_level: str) -> uvicorn.Config:
    return uvicorn.Config(
        app,
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
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


class _Application:
    """The application. Keeps the error that stopped it from starting, which uvicorn would print and forget."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.error: Exception | None = None

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
    """uvicorn, which says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address
        self._device_lost = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, then say so."""
        await super().startup(sockets)
        print(f"tensorpost {version('tensorpost')} listens on {self._address}", flush=True)  # noqa: T201 # for scripts

    def end(self) -> None:
        """Stop in order because a device failed for good, and let the process end with an error."""
        self._device_lost = True
        self.should_exit = True

    def run_until_stopped(self, app: _Application, listener: socket.socket) -> None:
        """Serve, then return quietly after Ctrl+C.

        Raises:
            DeviceLost: a device failed for good.
            Exception: what stopped the application from starting.
        """
        try:
            with suppress(KeyboardInterrupt):  # uvicorn stops in order, then raises the signal again
                self.run(sockets=[listener])
            if self._device_lost:
                raise DeviceLost("a device failed for good (the log says which); start the server again")
        except SystemExit:
            if app.error is not None:
                raise app.error from None
            raise
