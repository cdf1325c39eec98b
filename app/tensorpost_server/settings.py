"""Every limit and choice of the service. Each has a name, a unit and a reason.

A value comes from the first of these that has one: an argument; the variable `TENSORPOST_NAME`; the file that
`TENSORPOST_NAME_FILE` names, for secrets; the TOML file that `TENSORPOST_CONFIG_FILE` names; the default.
"""

from __future__ import annotations

import ast
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from tensorpost.values.problems import InvalidParameter, nearest

from . import machine
from .service_links import is_service_link

ENVIRONMENT_PREFIX = "TENSORPOST_"
CONFIG_FILE = "CONFIG_FILE"
"""Name, after the prefix, of the variable that names a TOML file with settings."""
UNIX_PEERS = "unix"
"""Stands for the peers of Unix sockets in `trusted_proxies`."""
_FILE = "_FILE"
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)[ ]?([kmgt]i?b)", re.IGNORECASE)
_UNITS = {f"{letter}{i}b": (1024 if i else 1000) ** (at + 1) for at, letter in enumerate("kmgt") for i in ("", "i")}
_MIB = 1 << 20
_GIB = 1 << 30


def setting_variable(name: str) -> str:
    """The environment variable that sets a setting: `TENSORPOST_PORT` for `port`."""
    return ENVIRONMENT_PREFIX + name.upper()


def networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] | None:
    """The addresses and networks in the setting `trusted_proxies`; None for `*`, which is any.

    Raises:
        ValueError: an item is neither, or has bits set beyond its prefix.
    """
    items = [item for each in text.split(",") if (item := each.strip())]
    if items == ["*"]:
        return None
    listed: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for item in items:
        try:
            listed += [] if item == UNIX_PEERS else [_network(item)]
        except ValueError as error:
            raise ValueError(
                f"{item[:80]!r} is no address, no network in CIDR ({str(error)[:160]}), and neither unix nor * alone; "
                "for instance 10.0.0.0/8,127.0.0.1,::1"
            ) from None
    return tuple(listed)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network, that of IPv4 where it is one within IPv6 (RFC 4291, section 2.5.5.2), as addresses are compared."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    return network if mapped is None else ipaddress.IPv4Network((mapped, network.prefixlen - 96))


class Preset(BaseModel):
    """An operator with its attributes fixed, which appears as a model of its own.

    Attributes:
        operator: the model that it is made of: `tile`, `onnx.resize`.
        attributes: the attributes' JSON values, by name.
        datatype: type of the first input, by the Open Inference Protocol's name; FP32 by default.
        shape: sizes of the first input; -1 for a free size. Default: all are free.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: str
    attributes: Mapping[str, Any] = {}
    datatype: str = "FP32"
    shape: tuple[int, ...] | None = None


class Settings(BaseSettings):
    """The service's settings. `TENSORPOST_MAX_OUTPUT_BYTES=1000000` sets `max_output_bytes`.

    Raises:
        pydantic.ValidationError: a variable has a value that its setting cannot take.
        InvalidParameter: a file that a variable names cannot be read, or sets what is not a setting.
    """

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _read_sizes(cls, value: object, info: ValidationInfo) -> object:
        """Sizes as people write them: `1GB` is 10^9 bytes, `1GiB` 2^30."""
        if "_bytes" in str(info.field_name) and isinstance(value, str) and (size := _SIZE.fullmatch(value.strip())):
            return int(Fraction(size[1]) * _UNITS[size[2].lower()])
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, variables, then files; see the module."""
        files = {name: value for name, (value, _) in _in_files(cls, getattr(env_settings, "env_prefix", "")).items()}
        variables = env_settings()
        if is_service_link(setting_variable("port"), str(variables.get("port", ""))):
            del variables["port"]
        return init_settings, InitSettingsSource(settings_cls, variables), InitSettingsSource(settings_cls, files)

    host: str = "127.0.0.1"
    """Address to listen on. An address other than loopback requires keys_file, jwks_file or allow_anonymous."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port to listen on; 0 picks a free one."""
    uds: Path | None = None
    """Unix socket to listen on, instead of host and port. The permissions of its folder and the umask decide who may
    connect."""
    allowed_hosts: str | None = None
    """Hosts that requests may name, with or without a port, separated by commas; * for any. Default: localhost and
    loopback addresses on a connection to a loopback address, so that no web page can reach the service under its own
    host name; any host on other connections."""
    allowed_origins: str = ""
    """Origins of web pages that may call the service, separated by commas, as https://example.org; * for any. Pages of
    the service itself are always allowed."""
    keys_file: Path | None = None
    """File with the API keys (`tensorpost keys add`), checked every second. With it, every path except the health
    endpoints requires a key; without it, anybody who can reach the port may call."""
    jwks_file: Path | None = None
    """File with the public keys of an issuer of tokens (JWKS), checked every second. JSON Web Tokens signed with them
    are accepted instead of API keys, with or without a keys_file. Needs jwt_issuer, jwt_audience and the extra jwt."""
    jwt_issuer: str | None = None
    """Issuer that tokens must name (iss); the comparison is exact and case-sensitive."""
    jwt_audience: str | None = None
    """Audience that tokens must be for (aud): the name of this service at the issuer."""
    jwt_scope_prefix: str = "tensorpost:"
    """Prefix of the scopes in a token (scope or scp): `tensorpost:` for `tensorpost:run`."""
    allow_anonymous: bool = False
    """Whether requests from other machines are served without an API key. Set it only where a firewall, a proxy or a
    container's published ports restrict access."""
    tls_certificate: Path | None = None
    """PEM file with the server's certificate, followed by the intermediate certificates; turns on TLS. The certificate
    and the key are checked every few seconds and used for new connections."""
    tls_key: Path | None = None
    """PEM file with the certificate's private key, if tls_certificate does not contain it."""
    tls_client_ca: Path | None = None
    """PEM file with certificates of issuers. The server then accepts only callers with a certificate of one of these
    issuers, also for health checks (mutual TLS). Read only at the start."""
    backend: str = "auto"
    """Backend for requests that name none: auto, or a backend's name, which is then forced."""
    http_protocol: Literal["auto", "direct", "httptools", "h11"] = "auto"
    """Parser of HTTP. direct: large bodies are received directly into their memory, and heads, slow callers and unread
    bodies are limited; it needs httptools. httptools, h11: uvicorn's parsers, without these limits. auto: direct if
    httptools is installed, else h11."""
    access_log: Literal["auto", "json", "console", "off"] = "auto"
    """A line on standard error for each request that has ended. json: an object in a line; console: for people; auto:
    console on a terminal, else json; off: none. A log level above info turns it off too. Warnings and errors are
    written in the same format; with off, in that of auto."""
    metrics: bool = True
    """Whether to count requests and serve the counts at GET /metrics, in Prometheus's formats."""
    playground: bool = True
    """Whether GET / is a page on which operators can be tried in a browser."""
    traces: bool = False
    """Whether spans of requests are sent by OpenTelemetry (OTLP over HTTP) to the address in
    OTEL_EXPORTER_OTLP_ENDPOINT, by default http://localhost:4318. Needs the extra otel."""
    numpy_threads: int = Field(default_factory=lambda: min(machine.cores(), 256), ge=1, le=256)
    """Number of slices that the CPU backends, numba and numpy, compute at the same time. Default: the CPU cores
    available to the process. Each multiplies matrices on one thread, unless OPENBLAS_NUM_THREADS, MKL_NUM_THREADS or
    OMP_NUM_THREADS says how many."""
    cuda_memory_bytes: int | None = Field(default=None, ge=1 << 20)
    """Memory that this server may use on each CUDA device, bytes. Default: three quarters of the memory that is free
    there when it starts."""
    cuda_pinned_bytes: int = Field(default_factory=lambda: min(_GIB, machine.memory() // 8), ge=0)
    """Page-locked host memory for each CUDA device, bytes, allocated at the start. Tensors that do not fit are
    transferred at about half the speed. Default: 1 GiB, or an eighth of the memory available to the process if that is
    less."""
    directml_debug: bool = False
    """Turn on the debug layers of Direct3D 12 and DirectML; errors then contain their messages. Needs Windows' Graphics
    Tools, and DirectML.Debug.dll beside DirectML.dll."""
    directml_seconds: float = Field(default=600, gt=0, le=86_400)
    """Longest time that a DirectML device may compute one operator, seconds. Then the device is treated as hung: the
    request fails with `device-lost`, and the process ends. Direct3D's own limit of two seconds is off."""
    auto_minimum_work: int | None = Field(default=None, ge=0)
    """Elements that an operator must read for auto to prefer a GPU to a processor. Default: measured for each device at
    the start; GET /v1/devices shows it."""
    idle_seconds: float = Field(default=30, gt=0)
    """Idle time after which a device's cached memory is freed, seconds."""
    max_body_bytes: int = Field(default=_GIB, ge=1)
    """Largest request body, bytes. Larger ones are refused by Content-Length, before any byte is read."""
    max_head_bytes: int = Field(default=_MIB, ge=64)
    """Largest head of a frame or npy body, bytes. The heads that tensorpost writes have a few hundred bytes."""
    max_http_head_bytes: int = Field(default=64 * 1024, ge=1024)
    """Largest head of an HTTP request, bytes; then 431. Descriptors may be in the query, which proxies limit to 8 to 64
    KiB; the same limit as h11's."""
    max_drain_bytes: int = Field(default=64 * _MIB, ge=1)
    """Largest rest of a refused body that the server reads and discards, bytes, so that the client receives the error;
    a larger one closes the connection."""
    max_json_bytes: int = Field(default=_MIB, ge=64)
    """Largest JSON body, bytes. JSON numbers take 10 to 30 times as long as a copy; send large tensors as bytes."""
    max_json_elements: int = Field(default=65_536, ge=1)
    """Largest output, in elements, that is written as JSON numbers; request larger ones as bytes."""
    max_image_pixels: int = Field(default=1 << 27, ge=1)
    """Most pixels of a picture that is read or written. A file of a few KiB can announce any number of pixels, and each
    may take 48 bytes of memory while it is decoded."""
    picture_processes: int = Field(default=2, ge=1, le=64)
    """Processes that read and write pictures by Pillow, one picture each at a time. They start with the first pictures,
    and take some 40 MiB each in addition to memory_bytes; one more is started for small pictures when all of them
    process large ones. If such a process crashes, nothing else ends."""
    picture_seconds: float = Field(default=120, gt=0)
    """Longest time that a process may read or write one picture, seconds; then the process is ended and the request
    refused."""
    max_output_bytes: int = Field(default=16 * _GIB, ge=1)
    """Largest output, bytes. Outputs are streamed, so this limits time and network traffic, not memory. 16 GiB is the
    largest FLOAT32 tensor that DirectML allows."""
    max_graph_nodes: int = Field(default=1024, ge=1, le=100_000)
    """Most nodes that a graph may have. Reading and planning take up to 0.7 ms of a core for each."""
    max_graph_constant_bytes: int = Field(default=16 * _MIB, ge=0)
    """Most bytes of all constants of a graph. Each request contains them, as text that max_json_bytes, max_head_bytes
    and max_http_head_bytes also limit, and they are held in memory while it is computed."""
    max_stored_graphs: int = Field(default=256, ge=0)
    """Most stored graphs of one caller (PUT /v1/graphs/{name}); 0 allows none."""
    max_stored_graph_bytes: int = Field(default=_GIB, ge=0)
    """Most memory of one caller's stored graphs together, their weights above all. It is part of memory_bytes for as
    long as they are stored."""
    stored_graph_idle_seconds: int = Field(default=86_400, ge=1)
    """Seconds that a stored graph is kept for without a call; each call renews it."""
    graphs: Path | None = None
    """Folder with graphs of the server, which every caller may call: files name.onnx (.json, .safetensors), or models
    as Triton's repositories have them, name/1/model.onnx. Read at the start, and again at SIGHUP."""
    max_held_tensors: int = Field(default=1024, ge=0)
    """Most held tensors of one caller (PUT /v1/tensors/{name}, keep=NAME); 0 allows none."""
    max_held_tensor_bytes: int = Field(default_factory=lambda: machine.memory() // 8, ge=0)
    """Most memory of one caller's held tensors together, bytes. It is part of memory_bytes for as long as they are
    held, and all that stays is at most half of that. Default: an eighth of the memory available to the process."""
    held_tensor_idle_seconds: int = Field(default=3600, ge=1)
    """Seconds that a held tensor is kept for without being used; each use renews it."""
    held_tensor_seconds: int = Field(default=0, ge=0)
    """Longest time that a tensor is held, however often it is used, seconds; 0 sets no such limit."""
    max_work: int = Field(default=10**12, ge=1)
    """Most elements that one request may read and add. A small tensor can require much work: an antialiased or gradient
    axis reads up to its whole input for each output."""
    max_seconds: float = Field(default=600, gt=0)
    """Longest computing time of one request, seconds, as estimated before it begins and as measured while it runs,
    without pauses. POST /v1/validate returns the estimate."""
    onnx_processes: int = Field(default=2, ge=1, le=64)
    """Processes that compute ONNX operators with ONNX Runtime, each one call at a time. The threads of numpy_threads
    are divided among them, and each takes some 60 MiB in addition to memory_bytes. One more is started for short calls
    when all of them compute long ones, and one checks nodes with the package onnx."""
    onnx_ahead: bool = True
    """Whether these processes are started with the server, where the extra onnx is installed; else with the first
    calls, which then wait for about a second."""
    memory_bytes: int = Field(default_factory=lambda: machine.memory() // 2, ge=1)
    """Bytes that all requests in flight may hold together. Default: half of the memory available to the process."""
    pool_bytes: int = Field(default_factory=lambda: min(machine.memory() // 8, _GIB), ge=0)
    """Bytes of memory, in addition to memory_bytes, that are kept for the next large tensors and freed after half a
    minute; and bytes, beside that, of ONNX Runtime's sessions that hold the weights of stored graphs, all processes
    together. Default: an eighth of the memory available to the process, at most 1 GiB; 0 keeps none of either."""
    max_requests: int = Field(default=256, ge=1)
    """Requests that may be in flight; one more is refused with 429 and Retry-After."""
    caller_share: float = Field(default=0.75, gt=0, le=1)
    """Largest share of the free requests and memory (max_requests, memory_bytes) that one caller with several requests
    may use, an API key's name or an address; beyond it, 429. This always leaves room for another caller. Behind a
    proxy, all callers without keys have one address, unless trusted_proxies names it."""
    slow_upload_seconds: float = Field(default=10, gt=0)
    """When there is no room for a request, the server ends the slowest body with 408, if that body has been arriving
    for this time, seconds, and would need the same time again."""
    max_connections: int = Field(default_factory=machine.connections, ge=1)
    """Connections that may be open. At the limit, a new connection replaces the oldest idle one. If none is idle, it
    may use only the health endpoints; other requests get 429. Default: the limit of open files, less an eighth and at
    least 32."""
    max_connections_per_address: int | None = Field(default=None, ge=1)
    """The same for the connections of one caller's address. Default: half of max_connections. Proxies that
    trusted_proxies names have no such limit."""
    trusted_proxies: str = ""
    """Peers whose X-Forwarded-For is trusted: addresses and networks in CIDR, separated by commas
    (10.0.0.0/8,127.0.0.1,::1), and unix for a Unix socket. The last address there that is not one of them is the
    caller's, for logs, turns and caller_share. Their connections count in max_connections only. With *, the server
    trusts the last forwarded address of every peer, so any caller can fake one. Default: none."""
    presets: Annotated[Mapping[str, Preset], NoDecode] = {}
    """Models of /v2 by name, each an operator with its attributes fixed: operator (tile, onnx.resize), attributes,
    datatype and shape of the first input. A table in the TOML file, JSON in the variable."""
    grpc_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port for the Open Inference Protocol over gRPC, at the same host and with the same certificates; 0 picks a
    free one. Default: no gRPC. Needs the extra grpc."""
    grpc_idle_seconds: float = Field(default=300, gt=0)
    """Longest time that a call of gRPC, or a stream, may wait for its next message, seconds. Then it ends with
    DEADLINE_EXCEEDED. If too many calls are open, waiting ones end earlier."""
    shared_memory: bool = False
    """Whether the server reads and writes tensors in shared memory that callers on the same host name
    (/v2/systemsharedmemory; Linux). Only objects of the server's own user; not for callers behind a proxy."""
    shared_memory_prefix: str = ""
    """What the names of shared memory objects must begin with to be registered."""
    cuda_shared_memory: bool = False
    """Whether the server reads and writes tensors in memory of its CUDA devices that callers on the same host share by
    a handle (/v2/cudasharedmemory; Linux). Not for callers behind a proxy."""
    slice_bytes: int = Field(default=2 * _MIB, ge=4096)
    """Size of the slices in which outputs are computed and sent, bytes. Below 2 MiB, thread synchronization takes
    longer than the slice."""
    slices_ahead: int = Field(default=3, ge=0, le=64)
    """Slices of a request that may be computed before they can be sent."""
    head_timeout_seconds: float = Field(default=30, gt=0)
    """Longest time for the head of an HTTP request, for a new connection to send one, and for a TLS handshake, seconds;
    then the answer is 408, or the handshake is closed. A head is one packet; the default allows for the slowest
    networks."""
    min_bytes_per_second: int = Field(default=16 * 1024, ge=0)
    """Lowest rate of a body or an answer, bytes per second, measured over twice the receive or send timeout. A slower
    connection is closed, so that a caller cannot hold memory for hours. 16 KiB/s is a quarter of a slow mobile
    connection; 0 requires only that some bytes arrive."""
    stuck_seconds: float = Field(default=900, gt=0)
    """Longest time that a thread of a device may spend in one call, usually a slice, seconds. After it /v2/health/live
    answers 503, so that the process is restarted. Must exceed the computing time of the largest slice."""
    inline_bytes: int = Field(default=1 << 20, ge=0)
    """Input or output, bytes, up to which a request is computed on the event loop's thread. Another thread costs some
    50 microseconds, in which about 1 MiB is copied twice."""
    inline_work: int = Field(default=1 << 17, ge=0)
    """Elements that a request computed there may read and combine."""
    receive_timeout_seconds: float = Field(default=60, gt=0)
    """Longest pause between two parts of a request body, seconds; then 408."""
    send_timeout_seconds: float = Field(default=60, gt=0)
    """Longest wait for a caller to take a part of the answer, seconds; then the connection is closed."""
    retry_after_seconds: int = Field(default=1, ge=0)
    """Value of Retry-After with 429 and 503, seconds. If many callers are refused, their retry times are spread over up
    to 30 seconds, about 100 in each second."""
    keep_alive_seconds: int = Field(default=75, ge=1)
    """How long an idle connection stays open, seconds. Above the usual proxies' 60."""
    workers: int | None = Field(default=None, ge=1, le=64)
    """Processes that serve the address together (tensorpost serve --workers, not on Windows). Limits hold for all of
    them together; caches and processes of libraries are divided among them, and numpy_threads if it is set. Each takes
    some 150 MiB in addition to memory_bytes. Default: one for each NVIDIA GPU; without one, one for each four cores, at
    most 8; but 1 if held tensors of max_held_tensor_bytes do not fit into /dev/shm, or with cuda_shared_memory."""
    shutdown_seconds: int = Field(default=30, ge=1)
    """How long requests in flight may continue after the signal to stop, seconds. Kubernetes waits for the same time by
    default. While there are such requests, the port stays open for up to half of this time and /v2/health/ready answers
    503."""

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: str) -> str:
        networks(value)
        return value

    @field_validator("presets", mode="before")
    @classmethod
    def _presets_of_text(cls, value: object) -> object:
        """Read JSON, in which a variable has them."""
        try:
            return json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            raise ValueError(
                f"this is no JSON ({error}); expected an object of presets by name, for instance "
                '{"twice": {"operator": "tile", "attributes": {"repeats": [2, 2]}}}'
            ) from None

    def threads_by_backend(self) -> dict[str, int]:
        """How many slices each backend computes at the same time; 1 for a backend that is not named."""
        return {"numba": self.numpy_threads, "numpy": self.numpy_threads}


@cache
def setting_descriptions() -> Mapping[str, str]:
    """What each setting is, in one line: the text below it in this file; empty where only bytecode is installed."""
    if not (source := Path(__file__).with_suffix(".py")).exists():
        return {}
    # Pydantic would read them too (`use_attribute_docstrings`), at every start, and takes a tenth of a second for it.
    (settings,) = [
        node
        for node in ast.parse(source.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == Settings.__name__
    ]
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(settings.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def origins(settings_class: type[BaseSettings] = Settings) -> Mapping[str, str]:
    """Where the value of each setting comes from: `default`, `environment`, or a variable or file by its name.

    Raises:
        InvalidParameter: a file that a variable names cannot be read, or sets what is not a setting.
    """
    in_files = {name: origin for name, (_, origin) in _in_files(settings_class, ENVIRONMENT_PREFIX).items()}
    environment = _environment()
    return {
        name: "environment" if setting_variable(name) in environment else in_files.get(name, "default")
        for name in settings_class.model_fields
    }


def _environment() -> Mapping[str, str]:
    """Environment variables by their names in upper case, as pydantic-settings reads them, without Kubernetes' own."""
    return {name.upper(): value for name, value in os.environ.items() if not is_service_link(name, value)}


def _in_files(settings_class: type[BaseSettings], prefix: str) -> dict[str, tuple[Any, str]]:
    """The settings that stand in files, by name: each one's value, and where that is."""
    environment, names = _environment(), settings_class.model_fields
    values: dict[str, tuple[Any, str]] = {}
    if path := environment.get(f"{prefix}{CONFIG_FILE}".upper()):
        for name, value in _toml(path).items():
            if name not in names:
                guess = nearest(name, [*names])
                hint = f"did you mean {guess}?" if guess else "`tensorpost config` lists the settings"
                raise InvalidParameter(f"{path} sets {name[:80]!r}, which is not a setting; {hint}")
            values[name] = value, path
    for name in names:
        variable = f"{prefix}{name}{_FILE}".upper()
        if variable not in environment or variable == f"{prefix}{CONFIG_FILE}":
            continue
        if (other := variable.removesuffix(_FILE)) in environment:
            raise InvalidParameter(f"{other} and {variable} are both set; leave out one of them")
        try:
            values[name] = Path(environment[variable]).read_text("utf-8").strip(), variable
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameter(f"{variable} names {environment[variable]}, which cannot be read: {error}") from None
    return values


def _toml(path: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameter(
            f"{ENVIRONMENT_PREFIX}{CONFIG_FILE} names {path}, which cannot be read: {error}"
        ) from None
