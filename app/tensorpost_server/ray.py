"""The service on Ray Serve: the application is the replica, and the replica owns its devices.

`tensorpost serve --ray`, `serve run tensorpost_server.ray:application`, or deploy/ray/rayservice.yaml. No tensor
crosses a handle between deployments: a request goes from Serve's proxy to a replica, which answers as any other server
does, with refusals (429, 503) of its own. The proxy is HAProxy unless `RAY_SERVE_ENABLE_HA_PROXY=0` says otherwise,
since Serve's own proxy moves large bodies at a third of its rate.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidParameter

from .autoscaling import QueuedBytesPolicy
from .cluster.replica import RayCluster
from .http.service import Service
from .main import create_app
from .settings import Settings, setting_variable

# Read when ray.serve is imported, here and in the processes that Ray starts on this machine.
os.environ.setdefault("RAY_SERVE_ENABLE_HA_PROXY", "1")
# After each change of the replicas a new HAProxy takes over, and the old one may finish its answers so long, seconds.
os.environ.setdefault("RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S", "900")
try:
    serve: Any = importlib.import_module("ray.serve")  # it has no type stubs
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"Ray is not installed: {install_command('server', 'ray')}", name=missing.name) from None

_NAME = "tensorpost"
_DRAIN_SECONDS = 5
"""How long a replica that stops still takes requests, for proxies that do not know yet, seconds."""

_CALM_SECONDS = 300
"""How long there must be more replicas than the waiting bytes need before one is taken away, seconds."""

_FROM_HAPROXY = "tensorpost.from_haproxy"
"""Name of a mark in the ASGI scope of requests that come by HTTP; Serve's own proxy sends messages of Ray's."""

_REPLICA_VARIABLES = {
    # Else every 64 KiB of a body are handed from a thread to another; the devices have threads of their own.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:middlewares",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_DRAIN_SECONDS),
}
"""Ray Serve's own settings in the replicas' processes, unless they are set where `application` is called."""

_PROXY_ADDRESS = ("host", "port")
_REFUSED = {
    **dict.fromkeys(
        ("uds", "tls_certificate", "tls_key", "tls_client_ca", "http_protocol"), "the listening socket is Ray Serve's"
    ),
    **dict.fromkeys(("shared_memory", "cuda_shared_memory"), "behind Ray Serve's proxy all callers seem to be local"),
    "grpc_port": "replicas of one machine would listen on the same port",
}
"""Settings that a replica cannot follow, and why."""


class Arguments(BaseModel):
    """What `application` is told, by `serve run ... replicas=2` or in a RayService.

    Attributes:
        replicas: processes, each with devices of its own; the least, with `most_replicas`.
        most_replicas: grow to so many with the bytes that wait; None for no autoscaling.
        queued_bytes: input and output bytes that may wait at each replica before there is one more.
        gpus: GPUs of each replica.
        cpus: processor cores that each replica takes of its node, in Ray's books.
        settings: settings of docs/settings.md by their names. They, and those of the process that calls `application`,
            come before `TENSORPOST_` variables of the nodes.
    """

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(default=1, ge=1)
    most_replicas: int | None = Field(default=None, ge=1)
    queued_bytes: int = Field(default=256 << 20, ge=1)
    gpus: float = Field(default=0, ge=0)
    cpus: float = Field(default=1, ge=0)
    settings: dict[str, Any] = Field(default_factory=dict)


class Replica:
    """The application in a process of Ray's. Serve calls the methods whose names are not ours to choose.

    Args:
        settings: they come before variables of this process.
        loopback: whether only callers of its own machine reach Serve's proxy.

    Raises:
        InvalidParameter: the settings of this process are refused; see `application`.
    """

    def __init__(self, settings: Mapping[str, Any], *, loopback: bool = False) -> None:
        read = Settings(**settings)
        _check(read, loopback=loopback)
        if not loopback and read.allowed_hosts is None:
            # Requests come by a loopback address from HAProxy, and still may name any host.
            read = read.model_copy(update={"allowed_hosts": "*"})
        self._application = create_app(read, cluster=RayCluster(read))
        self._service: Service = self._application.state.service

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _with_bytes(self._application)

    def check_health(self) -> None:
        """Raise what only a new process helps against; Serve then starts one.

        Raises:
            RuntimeError: a device failed or hangs.
        """
        pool = self._service.pool
        fault = None if pool is None else pool.fault(self._service.settings.stuck_seconds)
        if fault is not None:
            raise RuntimeError(fault)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Bytes of input and output in the queues of all devices."""
        pool = self._service.pool
        return {"queued_bytes": 0.0 if pool is None else float(sum(status.queued_bytes for status in pool.status()))}


def _with_bytes(app: ASGIApp) -> ASGIApp:
    """An application whose bodies can be pickled, where they are: for Serve's own proxy they are copied.

    It answers in the place of HAProxy until HAProxy knows of a replica, or with `RAY_SERVE_ENABLE_HA_PROXY=0`.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get(_FROM_HAPROXY):
            await app(scope, receive, send)
            return

        async def send_bytes(message: Message) -> None:
            if isinstance(message.get("body"), memoryview):
                message = {**message, "body": bytes(message["body"])}
            await send(message)

        await app(scope, receive, send_bytes)

    return call


class _ReplicaMiddleware:
    """ASGI middleware around Ray's own: a body is read when the application asks for it, and has one X-Request-ID.

    By default a replica reads all of a body into memory, whether the application takes it or not, to notice that the
    caller is gone; the application notices that itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields: list[tuple[bytes, bytes]] = message["headers"]
                ids = [field for field in fields if field[0] == b"x-request-id"]
                # The first is the application's, which may have refused the caller's.
                message = {**message, "headers": [*(field for field in fields if field not in ids), *ids[:1]]}
            await send(message)

        if scope["type"] == "http":
            scope[_FROM_HAPROXY] = True
            scope["headers"] = [*scope["headers"], (b"x-request-disconnect-disabled", b"?1")]
        await self._app(scope, receive, send_one_id)


def middlewares() -> list[Middleware]:
    """What each replica's HTTP server puts around Ray's own middleware; called by Ray Serve."""
    return [Middleware(_ReplicaMiddleware)]


def application(arguments: Mapping[str, Any]) -> Any:
    """The Serve application, for `serve run` and `serve.run`.

    Args:
        arguments: the members of `Arguments`, by name.

    Raises:
        pydantic.ValidationError: an argument is none of `Arguments`, or cannot be right.
        InvalidParameter: a setting is one of the listening socket or of callers on this host; or anybody could call,
            since Serve listens on all addresses by default, and no setting says that this is meant.
    """
    chosen = Arguments.model_validate(dict(arguments))
    for name in _PROXY_ADDRESS:
        if name in chosen.settings:
            raise InvalidParameter(f"the setting {name} does nothing on Ray: tell Ray Serve where its proxy listens")
    settings = Settings(**chosen.settings)
    _check(settings)
    return _deployment(chosen, settings)


def _check(settings: Settings, *, loopback: bool = False) -> None:
    for name, reason in _REFUSED.items():
        if getattr(settings, name) != Settings.model_fields[name].default:
            raise InvalidParameter(f"{name} ({setting_variable(name)}) cannot be set on Ray: {reason}; leave it out")
    if not (loopback or settings.keys_file or settings.jwks_file or settings.allow_anonymous):
        raise InvalidParameter(
            "others could reach Ray Serve's proxy, and anybody could call: set keys_file or jwks_file; or set "
            f"allow_anonymous ({setting_variable('allow_anonymous')}=1) if something else decides who reaches it"
        )


def _deployment(chosen: Arguments, settings: Settings, *, loopback: bool = False) -> Any:
    given = settings.model_dump(mode="json", exclude_unset=True, exclude={*_PROXY_ADDRESS})
    for name in ("keys_file", "jwks_file"):
        if given.get(name):
            given[name] = str(Path(given[name]).absolute())  # a replica has a working directory of its own
    options: dict[str, Any] = {
        "name": _NAME,
        # Refusing is the replica's: it knows bytes, and says when to come back.
        "max_ongoing_requests": 2 * settings.max_requests,
        "graceful_shutdown_timeout_s": _DRAIN_SECONDS + settings.shutdown_seconds,
        "health_check_period_s": 5,
        "ray_actor_options": {
            "num_cpus": chosen.cpus,
            "num_gpus": chosen.gpus,
            "runtime_env": {
                "env_vars": {
                    **{name: os.environ.get(name, value) for name, value in _REPLICA_VARIABLES.items()},
                    "FORWARDED_ALLOW_IPS": "",  # else uvicorn believes the X-Forwarded-For that HAProxy passes on
                }
            },
        },
    }
    if chosen.most_replicas is None:
        options["num_replicas"] = chosen.replicas
    else:
        policy = {"policy_function": QueuedBytesPolicy, "policy_kwargs": {"queued_bytes": chosen.queued_bytes}}
        options["autoscaling_config"] = {
            "min_replicas": chosen.replicas, "max_replicas": chosen.most_replicas, "policy": policy,
            "upscale_delay_s": 0, "downscale_delay_s": _CALM_SECONDS,
        }  # fmt: skip
    return serve.deployment(**options)(serve.ingress()(Replica)).bind(given, loopback=loopback)


def run(settings: Settings, replicas: int, *, loopback: bool) -> None:
    """Serve on a Ray cluster until SIGINT or SIGTERM: that of `RAY_ADDRESS`, or a new one of this machine.

    Args:
        settings: the replicas' settings; host and port are the proxy's.
        replicas: how many.
        loopback: whether the host is a loopback address.

    Raises:
        InvalidParameter: the settings are refused, see `application`; or Serve runs already, with another host or port.
    """
    _check(settings, loopback=loopback)
    ray: Any = importlib.import_module("ray")
    mine = not os.environ.get("RAY_ADDRESS")
    ray.init(
        address="local" if mine else None,
        ignore_reinit_error=True,
        configure_logging=False,
        log_to_driver=False,
        include_dashboard=False if mine else None,
    )
    serve.start("EveryNode", {"host": settings.host, "port": settings.port})
    # It only warns if Serve runs already, which then listens as it did; no public name tells where.
    proxy = importlib.import_module("ray.serve.context")._get_global_client().http_config  # noqa: SLF001
    if (proxy.host, proxy.port) != (settings.host, settings.port):
        raise InvalidParameter(
            f"Ray Serve runs on this cluster already, and listens on {proxy.host}:{proxy.port}, not "
            f"{settings.host}:{settings.port}: name that host and port, or end it (serve shutdown)"
        )
    serve.run(_deployment(Arguments(replicas=replicas), settings, loopback=loopback), name=_NAME, route_prefix="/")
    print(f"tensorpost listens on http://{settings.host}:{settings.port}, {replicas} replicas on Ray", flush=True)  # noqa: T201 # for scripts
    try:
        _wait_for_a_signal()
        _drain(_DRAIN_SECONDS + settings.shutdown_seconds)
        if mine:
            serve.shutdown()
    finally:
        if mine:
            ray.shutdown()


def _drain(seconds: float) -> None:
    """Delete the application and wait for its replicas. `serve.shutdown` would end the proxies first, with requests."""
    serve.delete(_NAME, _blocking=False)
    deadline = time.monotonic() + seconds
    while _NAME in serve.status().applications and time.monotonic() < deadline:
        time.sleep(0.1)


def _wait_for_a_signal() -> None:
    """Return at the first signal; the next one raises KeyboardInterrupt, wherever the process is then."""
    told, numbers = threading.Event(), (signal.SIGINT, signal.SIGTERM)

    def tell(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
        told.set()

    for number in numbers:
        signal.signal(number, tell)
    told.wait()
