"""What the command line asks of the server: run it, look at its backends, show its settings.

Plain functions of plain values. The command line finds them by name when a command needs them, because the SDK, where
it lives, imports no server code. What computes takes seconds to load: each function imports what it needs of it.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidParameter, NoBackend, TensorpostError, nearest

from . import machine
from .http.access.api_keys import ApiKey, KeyScope, digest, keys_file, new_key, read_keys, write_keys
from .listener import Listener, address_of, inherited_socket, is_loopback, listen_for_grpc
from .service_links import is_service_link
from .setting_errors import read_settings
from .settings import CONFIG_FILE, ENVIRONMENT_PREFIX, Settings, origins, setting_descriptions, setting_variable
from .shared.shared_folder import MEMORY_FOLDER

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_NO_SETTINGS = ("TENSORPOST_URL", "TENSORPOST_API_KEY", "TENSORPOST_API_KEY_FILE")
"""Variables that the command line reads itself."""

CORES_OF_PROCESS, MOST_USUAL_PROCESSES = 4, 8
"""Cores for each process, and the most processes, where no number is set (docs/decisions/0049-several-processes.md)."""

_BY_RUNTIME = "ONNX's convolutions, pooling, normalizations and others that tensorpost has no code for"
_log = logging.getLogger(__name__)


def serve(
    *, host: str | None = None, port: int | None = None, uds: Path | None = None, log_level: str = "info",
    workers: int | None = None,
) -> None:  # fmt: skip
    """Run the server until it is told to stop (SIGINT, SIGTERM).

    When it takes requests it prints one line with its address to standard output. Everything else goes to standard
    error, in the format of the access log: a warning if others than this machine can reach it without keys or TLS, one
    for each environment variable that looks like a setting but is none, and later errors.

    A socket that systemd passed (`inherited_socket`) is listened on, and goes on to hold connections after the end.

    Args:
        host: address to listen on. Default: the setting `host`.
        port: TCP port to listen on; 0 picks a free one. Default: the setting `port`.
        uds: path of a Unix socket to listen on, instead of host and port. Default: the setting `uds`.
        log_level: the least important messages to show: critical, error, warning, info or debug.
        workers: processes that serve the address together; see `Supervisor`. Default: the setting `workers`.

    Raises:
        InvalidParameter: a setting or argument cannot be right, the address cannot be listened on, an address is given
            and a socket was passed, others could reach it and anybody could call, or there can be one process only.
        NoBackend: the backend that the settings force cannot be opened.
        DeviceLost: a device failed permanently; requests under way on others were finished. Start the server again.
    """
    if log_level not in LOG_LEVELS:
        raise InvalidParameter(f"log level {log_level[:40]!r} does not exist; there are {', '.join(LOG_LEVELS)}")
    chosen = {"host": host, "port": port, "uds": uds}
    given = {name: value for name, value in chosen.items() if value is not None}
    settings = read_settings(**given)
    processes = processes_of(settings, workers)
    inherited = inherited_socket()
    if inherited is not None and (address_setting := _given_address(chosen)):
        inherited.close()
        raise InvalidParameter(
            f"systemd passed a socket to listen on, and {address_setting} says where to listen; drop one"
        )
    with Listener(settings, inherited) as listener:  # before all that computes is loaded, which takes seconds
        from .http.observability.log_format import log_format
        from .serving import GuardedApplication, Server, choose_protocol, uvicorn_config

        _begin_log(settings, log_level)
        choice = choose_protocol(settings)
        if choice.missing:
            _log.warning("large tensors will move slowly: install %s", " and ".join(choice.missing))
        address = address_of(listener.socket, tls=settings.tls_certificate is not None)
        if not address.startswith("unix:") and not is_loopback(address):
            _check_access_from_outside(settings, address)
        elif settings.grpc_port is not None and not _is_loopback_host(settings.host):  # which gRPC listens on
            _check_access_from_outside(settings, f"gRPC at {settings.host}, port {settings.grpc_port}")
        if sys.stderr.isatty() and log_format(settings) == "console" and not address.startswith("unix:"):
            page = f"page: {address}/   " if settings.playground else ""
            sys.stderr.write(f"{page}documentation: {address}/docs   stop: Ctrl+C\n")
        try:
            if processes > 1:
                _supervise(settings, processes, listener, address, given, log_level)
                return
            from .main import create_app

            created = create_app(settings)
            app = GuardedApplication(created)
            server = Server(uvicorn_config(app, choice, log_level), app, address)
            created.state.service.end = server.end
            server.run_until_stopped(listener)
        except Exception as error:
            if log_format(settings) == "json":  # the command line says it once more, in plain text
                _log.critical("%s", error, exc_info=not isinstance(error, TensorpostError))
            raise


def _supervise(
    settings: Settings, processes: int, listener: Listener, address: str, given: Mapping[str, object], log_level: str
) -> None:
    """Serve by several processes until told to stop."""
    from .serving import announce_addresses
    from .supervisor import Supervisor

    grpc = None if settings.grpc_port is None else listen_for_grpc(settings.host, settings.grpc_port)
    try:
        grpc_address = None if grpc is None else address_of(grpc).partition("://")[2]
        Supervisor(
            processes, listener.socket, grpc, given, log_level, settings.shutdown_seconds,
            partial(announce_addresses, address, grpc_address),
        ).run()  # fmt: skip
    finally:
        if grpc is not None:
            grpc.close()


def processes_of(settings: Settings, workers: int | None) -> int:
    """How many processes serve: as an option or the settings say, or as many as the machine is worth.

    Raises:
        InvalidParameter: there can be one only, and more are wished for.
    """
    wished = settings.workers if workers is None else workers
    if wished is None:
        return _usual_processes(settings)
    wish = f"--workers {wished} ({setting_variable('workers')})"
    if wished > 1 and sys.platform == "win32":
        raise InvalidParameter(f"{wish} needs signals and sockets that Windows does not have; use 1")
    if wished > 1 and settings.cuda_shared_memory:
        raise InvalidParameter(
            f"{wish} and {setting_variable('cuda_shared_memory')} do not go together: a region of a CUDA device is "
            "open in one process; use 1, or turn the setting off"
        )
    return wished


def _usual_processes(settings: Settings) -> int:
    if sys.platform != "linux" or settings.cuda_shared_memory or not os.access(MEMORY_FOLDER, os.W_OK):
        return 1
    if shutil.disk_usage(MEMORY_FOLDER).free < settings.max_held_tensor_bytes:
        return 1
    gpus = machine.nvidia_gpus() if settings.backend in ("auto", "cuda") else 0
    return min(gpus or max(1, machine.cores() // CORES_OF_PROCESS), MOST_USUAL_PROCESSES)


def serve_on_ray(replicas: int, *, host: str | None = None, port: int | None = None, log_level: str = "info") -> None:
    """Run replicas of the server on Ray Serve until told to stop; see `tensorpost_server.ray`.

    Args:
        replicas: processes, each with devices of its own.
        host: address that Serve's proxy listens on. Default: the setting `host`.
        port: its TCP port. Default: the setting `port`.
        log_level: least severe messages that are shown; see `serve`.

    Raises:
        InvalidParameter: a setting or argument cannot be right, or others could reach it and anybody could call.
        ModuleNotFoundError: Ray is not installed; the message names the extra.
    """
    arguments = {"host": host, "port": port}
    settings = read_settings(**{name: value for name, value in arguments.items() if value is not None})
    _begin_log(settings, log_level)
    host_in_url = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host_in_url}:{settings.port}"
    loopback = settings.host == "localhost" or is_loopback(address)
    if not loopback:
        _check_access_from_outside(settings, address)
    importlib.import_module(".ray", __package__).run(settings, replicas, loopback=loopback)


def _begin_log(settings: Settings, log_level: str) -> None:
    """Write the log as the settings say, from now on, and warn of variables that are no settings."""
    from .http.observability.log_format import begin_log

    begin_log(settings, log_level)
    for sentence in unknown_variables():
        _log.warning(sentence)


def _given_address(arguments: Mapping[str, object]) -> str | None:
    """The argument or variable that says where to listen; None if all is as by default."""
    names = [f"--{name}" for name, value in arguments.items() if value is not None]
    names += [setting_variable(name) for name, origin in origins().items() if name in arguments and origin != "default"]
    return names[0] if names else None


def _is_loopback_host(host: str) -> bool:
    """Whether only this machine can reach what listens on the host, an address or a name of several ones."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:  # gRPC has resolvers of its own
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


def _check_access_from_outside(settings: Settings, address: str) -> None:
    """What has to be set before others than this machine can reach the server."""
    if settings.trusted_proxies.strip() == "*":
        _log.warning(
            "whoever can reach %s may say whose requests it sends (%s is *): let nobody but one proxy reach it",
            address, setting_variable("trusted_proxies"),
        )  # fmt: skip
    keys, anonymous = setting_variable("keys_file"), setting_variable("allow_anonymous")
    if settings.keys_file is not None or settings.jwks_file is not None:
        if settings.tls_certificate is None:
            _log.warning(
                "others can reach %s, and their API keys travel unencrypted: set %s, or put a proxy in front of it",
                address, setting_variable("tls_certificate"),
            )  # fmt: skip
    elif settings.allow_anonymous:
        _log.warning("others can reach %s, and anybody may call (%s)", address, anonymous)
    else:
        raise InvalidParameter(
            f"others could reach {address}, and anybody could call: make an API key (tensorpost keys add NAME "
            f"--keys-file FILE) and set {keys}=FILE; or set {anonymous}=1 if something else decides who reaches it; "
            "or listen on 127.0.0.1"
        )


def doctor() -> list[dict[str, object]]:
    """Open every device there is and report the result.

    Returns:
        One row per device, in the order `auto` prefers them: `name` of the backend; `index` of the device, None for a
        backend that could not be opened at all; `available`; `version` of the library that computes, None if there is
        none; `device`, a description, and `reason`, of which one is None; `auto`, whether `auto` may choose it;
        `minimum_work`, how many elements an operator must read for that; `gauges`, by name; `folder` where its compiled
        kernels are, None if it has none; `not_compiled`, groups of kernels that are not there, for which NumPy
        computes. The last rows: `onnxruntime`, which computes some of ONNX's operators beside every backend but needs
        its extra, and `http`, with the protocol and event loop of a server here.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    from .backends.numba_ import library
    from .child_processes.libraries import ONNX_RUNTIME
    from .main import open_pool
    from .serving import choose_protocol, library_version

    settings = read_settings()
    choice = choose_protocol(settings)
    pool = open_pool(settings, "auto", when_lost=_log.critical)
    try:
        rows: list[dict[str, object]] = [
            {
                "name": status.name,
                "index": status.index,
                "available": status.reason is None,
                "version": library_version(status.name),
                "device": status.device,
                "reason": status.reason,
                "auto": status.auto,
                "minimum_work": status.minimum_work,
                "gauges": dict(status.gauges),
                "folder": str(library.cache_folder()) if status.name == "numba" and status.reason is None else None,
                "not_compiled": library.missing_groups() if status.name == "numba" and status.reason is None else [],
            }
            for status in pool.status()
        ]
        lacks = (
            None if ONNX_RUNTIME.installed else f"not installed; it computes {_BY_RUNTIME}: {install_command('onnx')}"
        )
        beside: dict[str, object] = {"index": None, "minimum_work": 0, "gauges": {}, "folder": None, "not_compiled": []}
        runtime: dict[str, object] = {
            "name": ONNX_RUNTIME.state.name,
            "available": lacks is None,
            "version": ONNX_RUNTIME.state.version,
            "device": _BY_RUNTIME if lacks is None else None,
            "reason": lacks,
            "auto": True,
        }
        http: dict[str, object] = {
            "name": "http",
            "available": True,
            "version": version("uvicorn"),
            "device": choice.words,
            "reason": None,
            "auto": settings.http_protocol == "auto",
        }
        return [*rows, runtime | beside, http | beside]
    finally:
        pool.close()


def warmup(announce: Callable[[str], None], groups: Sequence[str] = ()) -> dict[str, object]:
    """Compile the numba backend's kernels into its cache, unless they are there: half a minute to two, or longer.

    A server never compiles: without this, it computes with NumPy.

    Args:
        announce: called with a sentence before something is compiled and after each group of kernels, and not at all
            where nothing is.
        groups: names of `GROUPS` of the backend's library; all of them if there are none.

    Returns:
        `folder`; `compiled`, the groups that were made now; `seconds` that it took.

    Raises:
        ModuleNotFoundError: numba is not installed; the message names the extra.
        InvalidParameter: there is no such group.
        NoBackend: there are no kernels for this kind of machine, or the cache cannot be written to.
    """
    from .backends.numba_ import library

    known = tuple(library.GROUPS)
    for group in groups:
        if group not in known:
            raise InvalidParameter(f"there are no kernels {group!r}; there are {', '.join(known)}")
    begin = time.perf_counter()

    def done(group: str) -> None:
        announce(f"  {group}: after {time.perf_counter() - begin:.0f} s")

    try:
        missing = library.missing_groups([group for group in known if not groups or group in groups])
        if missing:
            announce(
                f"compiling the numba backend's loops for {', '.join(missing)}, once: on two idle cores half a minute "
                "at most, longer on a busy machine"
            )
        library.build(missing, done)
    except RuntimeError as error:
        raise NoBackend(f"the backend 'numba' cannot be made ready: {error}") from None
    return {
        "folder": str(library.cache_folder()), "compiled": missing, "seconds": round(time.perf_counter() - begin, 1)
    }  # fmt: skip


def warmup_cuda(announce: Callable[[str], None]) -> dict[str, object]:
    """Compile the cuda backend's kernels for the common kinds of GPU, unless they are there. Needs no GPU.

    Args:
        announce: called with a sentence before they are looked for.

    Returns:
        `folder`; `compiled`, how many were made now; `seconds` that it took.

    Raises:
        NoBackend: CuPy or NVRTC is not installed, or the folder cannot be written to.
    """
    from .backends import CannotOpen
    from .backends.cuda import kernel_files

    begin = time.perf_counter()
    announce("compiling the cuda backend's kernels, unless they are there: some minutes")
    try:
        folder, compiled = kernel_files.build()
    except CannotOpen as error:
        raise NoBackend(f"the backend 'cuda' cannot be made ready: {error}") from None
    return {"folder": str(folder), "compiled": compiled, "seconds": round(time.perf_counter() - begin, 1)}


def add_key(
    path: Path,
    name: str,
    *,
    scopes: Sequence[str] = ("run",),
    days: int | None = None,
    requests_per_minute: int | None = None,
    bytes_per_minute: int | None = None,
) -> str:
    """Make an API key and add it to a keys file, which is made if it is not there.

    Args:
        path: path of the keys file.
        name: name of the key's holder.
        scopes: the scopes that it has: `run`, `graphs`, `tensors`, `admin`.
        days: how long it is valid. Default: for ever.
        requests_per_minute: its rate. Default: any.
        bytes_per_minute: limit of request and response bodies together. Default: any.

    Returns:
        The key. It is kept nowhere.

    Raises:
        InvalidParameter: the name is taken, an argument cannot be right, or the file cannot be used.
    """
    keys = _keys_in(path)
    if any(known.name == name for known in keys):
        raise InvalidParameter(
            f"there is a key {name} already; revoke it first, or give the new one another name so that both are valid "
            "while callers change over"
        )
    secret, now = new_key(), datetime.now(UTC)
    try:
        added = ApiKey(
            name=name,
            sha256=digest(secret.encode()),
            scopes=cast("tuple[KeyScope, ...]", tuple(scopes)),
            created=now,
            expires=None if days is None else now + timedelta(days=days),
            requests_per_minute=requests_per_minute,
            bytes_per_minute=bytes_per_minute,
        )
    except (ValidationError, OverflowError) as error:
        said = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            said = f"{first['loc'][0]} is {str(first['input'])[:80]!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
        raise InvalidParameter(f"no such key can be made: {said}") from None
    write_keys(path, [*keys, added])
    return secret


def list_keys(path: Path) -> list[dict[str, object]]:
    """What a keys file holds: one row per key with its members and `expired`; no key, and no hash of one.

    Raises:
        InvalidParameter: the file is not there or cannot be used.
    """
    now = datetime.now(UTC)
    return [
        {**key.model_dump(mode="json", exclude={"sha256"}), "expired": key.has_expired(now)}
        for key in keys_file(path).read()
    ]


def revoke_key(path: Path, name: str) -> None:
    """Take a key out of a keys file. A server that watches the file refuses it a second later.

    Raises:
        InvalidParameter: there is no such key, or the file cannot be used.
    """
    keys = keys_file(path).read()
    left = [key for key in keys if key.name != name]
    if len(left) == len(keys):
        guess = nearest(name, [key.name for key in keys])
        hint = f"; did you mean {guess}?" if guess else ""
        raise InvalidParameter(f"there is no key {name[:80]} in {path}{hint}")
    write_keys(path, left)


def _keys_in(path: Path) -> tuple[ApiKey, ...]:
    try:
        return read_keys(path)
    except FileNotFoundError:
        return ()


def config() -> list[dict[str, object]]:
    """The settings a server started here and now would have.

    Returns:
        One row per setting: `name`; `value`, in which secrets are masked; `origin`, which is `default`,
        `environment`, a variable that names a file, or the path of the config file; `variable`, the one that sets it;
        `description`, with the unit and the reason.

    Raises:
        InvalidParameter: an environment variable has a value that its setting cannot take.
    """
    settings = read_settings()
    values, origin_of, descriptions = settings.model_dump(mode="json"), origins(), setting_descriptions()
    return [
        {
            "name": name,
            "value": values[name],
            "origin": origin_of[name],
            "variable": setting_variable(name),
            "description": descriptions.get(name),
        }
        for name in Settings.model_fields
    ]


def unknown_variables() -> list[str]:
    """A sentence for each environment variable that starts like a setting and is none.

    They are not errors. Those that Kubernetes makes for a Service of our name have one sentence together.
    """
    variables = [*map(setting_variable, Settings.model_fields), *_NO_SETTINGS]
    known = [*variables, ENVIRONMENT_PREFIX + CONFIG_FILE, *[f"{name}_FILE" for name in variables]]
    links = sorted(name for name, value in os.environ.items() if is_service_link(name, value))
    sentences: list[str] = []
    for name in sorted({*os.environ}.difference(links)):
        if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known:
            guess = nearest(name, variables)
            hint = f"did you mean {guess}?" if guess else "`tensorpost config` lists the settings"
            sentences.append(f"the environment variable {name[:80]} sets nothing; {hint}")
    if links:
        several, one = f"{len(links)} variables of a Kubernetes Service are", "a variable of a Kubernetes Service is"
        example = f"{links[0][:80]}{' for one' if links[1:] else ''}"
        sentences.append(
            f"{several if links[1:] else one} ignored, {example}; enableServiceLinks: false in the pod leaves them out"
        )
    return sentences
