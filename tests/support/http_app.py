"""The application for tests: in process through ASGI, or behind a real uvicorn that a bare socket can talk to.

Both run the real lifespan and leave the application within reach, so that a test can look at what is in use or put a
backend of its own into the pool. `live_server` starts the same application in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI

from tensorpost import frame
from tensorpost_server.backends import BACKENDS, Backend, HostBackend, RunWithoutStages
from tensorpost_server.engine import Worker
from tensorpost_server.http.service import Service
from tensorpost_server.main import create_app
from tensorpost_server.serving import choose_protocol
from tensorpost_server.settings import Settings

T = TypeVar("T")

__all__ = [
    "FRAME",
    "JSON",
    "NPY",
    "Answer",
    "AppClient",
    "Controlled",
    "ControlledRun",
    "Wire",
    "app_settings",
    "assert_problem",
    "eventually",
    "frame_bytes",
    "http_app",
    "npy_array",
    "npy_bytes",
    "request_bytes",
    "serving",
    "split_frame",
    "use_backend",
]

NPY = {"content-type": frame.NPY_MEDIA_TYPE}
FRAME = {"content-type": frame.MEDIA_TYPE}
JSON = {"content-type": "application/json"}
PATIENCE = 20  # seconds until a test gives up waiting; a machine that is busy is slow, not wrong


def app_settings(**values: Any) -> Settings:
    """Settings with these values, whatever the environment of the test run says. `onnx_ahead`: see `live_process`."""
    values = {"onnx_ahead": False, **values}
    return Settings(_env_prefix="TENSORPOST_IN_NO_ENVIRONMENT_", **values)  # pyright: ignore[reportCallIssue] # read by pydantic-settings, not a field


# ---- in process ------------------------------------------------------------------------------------------------------


class AppClient:
    """Requests to an application in this process. Each call runs the event loop until its answer is whole."""

    def __init__(self, app: FastAPI, runner: asyncio.Runner, client: httpx.AsyncClient) -> None:
        self.app = app
        self.run = runner.run
        self.client = client

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """As `httpx.Client.request`."""
        return self.run(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, content: Any = b"", headers: Mapping[str, Any] = NPY, **options: Any) -> httpx.Response:
        """POST these bytes, as npy unless the headers say otherwise."""
        return self.request("POST", path, content=content, headers=headers, **options)

    @property
    def service(self) -> Service:
        """What lives as long as the application."""
        return self.app.state.service

    def in_use(self) -> dict[str, int]:
        """What `/v1/limits` says is in use."""
        return self.get("/v1/limits").json()["in_use"]


@contextlib.contextmanager
def http_app(**settings: Any) -> Iterator[AppClient]:
    """The application with these settings, started; faults of the server are answers, not exceptions of the test."""
    app = create_app(app_settings(**settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=transport, base_url="http://test")
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        try:
            yield AppClient(app, runner, client)
        finally:
            runner.run(client.aclose())
            runner.run(lifespan.__aexit__(None, None, None))


# ---- behind a socket -------------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """uvicorn's, which says what its event loop is."""

    loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)


@dataclass
class Serving:
    """A server in a thread of this process, on a port of its own."""

    app: FastAPI
    host: str
    port: int
    server: _Server

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}:{self.port}"

    @property
    def service(self) -> Service:
        """What lives as long as the application."""
        return self.app.state.service

    def on_loop(self, call: Callable[[], T]) -> T:
        """Call the function on the thread of the event loop, which alone may use stores and the database."""

        async def called() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(called(), self.server.loop).result(PATIENCE)

    @contextlib.contextmanager
    def wire(self, **options: Any) -> Iterator[Wire]:
        """A connection of its own."""
        wire = Wire(self.host, self.port, **options)
        try:
            yield wire
        finally:
            wire.close()

    def ask(self, data: bytes) -> Answer:
        """One request on a connection of its own."""
        with self.wire() as wire:
            wire.send(data)
            return wire.answer()

    def idle(self) -> bool:
        """Whether no memory is in use."""
        admission = self.service.admission
        return admission.bytes_in_flight == 0 == admission.requests_in_flight

    def assert_serves_on(self) -> None:
        """No memory is in use, and a small request still gets its answer."""
        eventually(self.idle, "all memory is released")
        answer = self.ask(request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1, 2]), NPY))
        assert answer.status == 200, answer.body
        np.testing.assert_array_equal(npy_array(answer.body), [1, 2, 1, 2])


@contextlib.contextmanager
def serving(before_start: Callable[[FastAPI], object] | None = None, **settings: Any) -> Iterator[Serving]:
    """A real server, as it runs in production but for the thread."""
    app = create_app(app_settings(**{"allowed_hosts": "*", **settings}))
    if before_start is not None:
        before_start(app)
    choice = choose_protocol(app.state.service.settings)
    config = uvicorn.Config(
        app, http=choice.protocol, loop=choice.loop_factory, log_config=None, ws="none", lifespan="on",
        timeout_graceful_shutdown=PATIENCE, access_log=False, proxy_headers=False,
    )  # fmt: skip
    server = _Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive(), "the server starts")
            assert server.started, "the server stopped while starting"
            yield Serving(app, "127.0.0.1", listener.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server does not stop"


@dataclass(frozen=True)
class Answer:
    """A whole answer, as it stood on the wire."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Wire:
    """A bare connection: what is sent is exactly what is given, and what comes is read no further than asked."""

    def __init__(self, host: str, port: int, *, receive_buffer: int | None = None, source: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source is not None:
            self.socket.bind((source, 0))
        self.socket.connect((host, port))
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        """The status and headers of the next answer; interim answers (1xx) are skipped."""
        while b"\r\n\r\n" not in self._rest:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError(f"the server hung up after {self._rest!r}")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\r\n\r\n")
        start, *lines = text.decode("latin-1").split("\r\n")
        matched = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", start)
        assert matched is not None, f"no status line: {start!r}"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return (int(matched[1]), headers) if int(matched[1]) >= 200 else self.head()

    def read(self, count: int) -> bytes:
        """Exactly so many bytes.

        Raises:
            EOFError: the server hung up before.
        """
        found = bytearray()
        while len(found) < count:
            piece = self._rest[: count - len(found)] or self.socket.recv(min(count - len(found), 1 << 20))
            self._rest = self._rest[len(piece) :] if self._rest else b""
            if not piece:
                raise EOFError(f"the server hung up after {len(found)} of {count} bytes")
            found += piece
        return bytes(found)

    def answer(self) -> Answer:
        """The next whole answer."""
        status, headers = self.head()
        return Answer(status, headers, self.read(int(headers["content-length"])))

    def is_closed(self, within: float = PATIENCE) -> bool:
        """Whether the server hangs up, without a further byte, within so many seconds."""
        self.socket.settimeout(within)
        try:
            return not self._rest and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(PATIENCE)

    def hang_up(self) -> None:
        """Close at once; what was not read is thrown away, and the server is told so (RST)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        """Close."""
        self.socket.close()


def request_bytes(method: str, target: str, body: bytes = b"", headers: Mapping[str, Any] | None = None) -> bytes:
    """A request as it stands on the wire. A header of None is left out, Content-Length included."""
    fields = {"host": "test", "content-length": len(body), **(headers or {})}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value is not None]
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def eventually(holds: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    """Wait until it holds.

    Raises:
        AssertionError: it did not in time.
    """
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"after {within} s it still does not hold that {what}"
        time.sleep(0.005)


# ---- bodies ----------------------------------------------------------------------------------------------------------


def npy_bytes(array: Any, dtype: str = "float32") -> bytes:
    """An array as NumPy saves it."""
    buffer = io.BytesIO()
    array = np.asarray(array, dtype) if not isinstance(array, np.ndarray) else array
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npy_array(data: bytes) -> np.ndarray[Any, Any]:
    """What NumPy loads."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def frame_bytes(tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str]) -> bytes:
    """A frame written by hand from the safetensors README: length, JSON, buffers; name -> (dtype, shape, bytes)."""
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def split_frame(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A frame's head and its buffers by name, read by hand."""
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    buffers = {name: body[slice(*entry["data_offsets"])] for name, entry in head.items() if name != "__metadata__"}
    return head, buffers


def tile_frame(desc: Any, buffer: bytes) -> bytes:
    """A Tile with its whole input buffer, as raw bytes."""
    return frame_bytes({"input": ("U8", [len(buffer)], buffer)}, {"op": json.dumps(desc.to_document())})


# ---- what every refusal looks like -----------------------------------------------------------------------------------

_MEMBERS = {"type": str, "title": str, "status": int, "detail": str, "request_id": str}
_VIOLATION = {"code", "path", "message", "value", "expected", "source"}


def assert_problem(answer: httpx.Response | Answer, status: int, code: str) -> dict[str, Any]:
    """Assert the one shape that refusals have at every door (RFC 9457), and return the document."""
    body = answer.content if isinstance(answer, httpx.Response) else answer.body
    found = answer.status_code if isinstance(answer, httpx.Response) else answer.status
    assert (status, "application/problem+json") == (found, answer.headers.get("content-type")), body[:2000]
    problem = json.loads(body)
    for member, kind in _MEMBERS.items():
        assert isinstance(problem.get(member), kind), f"{member} is {problem.get(member)!r}"
    assert f"urn:tensorpost:problem:{code}" == problem["type"], problem
    assert status == problem["status"]
    assert answer.headers["x-request-id"] == problem["request_id"]
    assert len(problem["detail"]) > 15, "a sentence"
    assert str(len(body)) == answer.headers["content-length"]
    assert len(body) < 20_000, "a refusal is small, whatever it refuses"
    for violation in problem.get("violations", []):
        assert violation.keys() == _VIOLATION
        assert violation["path"].startswith("$")
        assert violation["message"]
    return problem


# ---- backends that do as they are told -------------------------------------------------------------------------------


@dataclass
class Controlled(HostBackend):
    """A backend that calls back before every slice, and counts. Slices are filled with their index, modulo 251.

    Attributes:
        before: called with the slice's index, on the thread that computes it; it may block, or raise.
        threads: slices computed at the same time.
        starting: called before a run is started; it may block, or raise.
        trimmed: how often it was told to give back what it keeps.
    """

    before: Callable[[int], object] = lambda _index: None
    threads: int = 1
    name: str = "numpy"
    device: str = "a test's"
    refusal: str | None = None
    inline: bool = True
    index: int = 0
    starting: Callable[[], object] = lambda: None
    trimmed: int = 0
    begun: list[int] = field(default_factory=list)
    started: int = 0
    closed_runs: int = 0
    closed: int = 0
    computing: int = 0
    most_computing: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    thread_names: set[str] = field(default_factory=set)

    def refusal_reason(self, plan: Any) -> str | None:
        del plan
        return self.refusal

    def start(self, plan: Any, inputs: Any) -> ControlledRun:
        del inputs
        self.starting()
        self.started += 1
        return ControlledRun(self, plan)

    def trim(self) -> None:
        self.trimmed += 1

    def close(self) -> None:
        self.closed += 1


@dataclass
class ControlledRun(RunWithoutStages):
    """A run of `Controlled`."""

    backend: Controlled
    plan: Any
    closed: bool = False
    computing: int = 0

    def compute(self, index: int) -> memoryview:
        backend = self.backend
        assert not self.closed, "compute after close"
        with backend.lock:
            backend.begun.append(index)
            backend.computing += 1
            self.computing += 1
            backend.most_computing = max(backend.most_computing, backend.computing)
            backend.thread_names.add(threading.current_thread().name)
        try:
            backend.before(index)
            return memoryview(bytes([index % 251]) * self.plan.slices.piece(index).computed)
        finally:
            with backend.lock:
                backend.computing -= 1
                self.computing -= 1

    def close(self) -> None:
        assert not self.closed, "closed twice"
        assert self.computing == 0, "closed while a slice is computed"
        self.closed = True
        self.backend.closed_runs += 1


@contextlib.contextmanager
def use_backend(service: Service, backend: Backend, *, slices_ahead: int | None = None) -> Iterator[None]:
    """Let this backend stand in for its namesake in a running application, and be the only one that `auto` takes."""
    pool = service.pool
    assert pool is not None
    ahead = service.settings.slices_ahead if slices_ahead is None else slices_ahead
    usual, refused = dict(pool.workers), dict(pool.refused)
    for key in usual.keys() - {backend.name}:
        if BACKENDS[usual[key].backend.name].auto:
            del pool.workers[key]
            pool.refused[key] = "set aside by a test"
    pool.workers[backend.name] = worker = Worker(
        backend, ahead, retry_after_seconds=service.settings.retry_after_seconds, when_lost=pool._lose
    )
    try:
        yield
    finally:
        pool.workers.update(usual)
        pool.refused.clear()
        pool.refused.update(refused)
        eventually(lambda: service.admission.requests_in_flight == 0, "the requests to this backend end")
        worker.close()


async def collect(blocks: AsyncIterator[memoryview]) -> bytes:
    """All of them, joined."""
    return b"".join([bytes(block) async for block in blocks])
