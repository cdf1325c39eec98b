"""Which products there are, how each is started, and how it is asked."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.load import Load, Request
from benchmarks.sockets import as_bytes

from .jobs import REPEATS, SHAPES, compare, tensor

Array = np.ndarray[Any, Any]
Body = bytes | memoryview
BYTES = "application/octet-stream"
SMALLER = ("small", "16 MiB")  # 256 MiB of JSON numbers is more than a gigabyte of text


@dataclass(frozen=True)
class Product:
    """Another program for the same job.

    Attributes:
        name: the product's name in tables.
        environment: name of its virtual environment.
        packages: what to install there, pinned; the first says its version.
        module: the module of benchmarks.peers that serves.
        client: how it is asked, in words.
        request: makes the HTTP request for a tensor; None where a program of its own asks.
        read: finds the tensor in an HTTP answer.
        asks: module of benchmarks.peers that asks, where there is no `request`; then what it is told.
        asked_at_second: whether that is at the second of the two ports that a service is given.
        jobs: names of the jobs that it can do in reasonable time.
    """

    name: str
    environment: str
    packages: tuple[str, ...]
    module: str
    client: str
    request: Callable[[Array], Request] | None = None
    read: Callable[[Body], Array] | None = None
    asks: tuple[str, ...] = ()
    asked_at_second: bool = False
    jobs: tuple[str, ...] = tuple(SHAPES)

    def python(self, peers: Path) -> Path | None:
        """The interpreter of its environment, if it is there."""
        for name in ("bin/python", "Scripts/python.exe"):
            if (path := peers / self.environment / name).exists():
                return path.absolute()  # and not resolved: a link there is what makes it an environment
        return None

    @contextlib.contextmanager
    def asked(self, python: Path) -> Iterator[Asker]:
        """A running service, and who asks it."""
        second = servers.free_port()

        def ready(port: int) -> None:
            if self.request is None:
                servers.listens(second if self.asked_at_second else port)
                return
            with _Http(self, port) as http:
                http.call("small")

        command = [str(python), "-m", f"benchmarks.peers.{self.module}"]
        with servers.running(self.name, lambda port: [*command, str(port), str(second)], ready, wait=90) as server:
            if self.request is not None:
                with _Http(self, server.port) as http:
                    yield http
            else:
                port = second if self.asked_at_second else server.port
                with Conversation([str(python)], port, *self.asks) as own:
                    yield own


class Asker:
    """Whoever asks a service for the jobs."""

    port: int = 0

    def call(self, job: str) -> None:
        """Do a job."""
        raise NotImplementedError

    def check(self, job: str) -> None:
        """Do a job and compare what comes back."""
        raise NotImplementedError


class Conversation(Asker):
    """A client program of its own, told what to do; see ask.py."""

    def __init__(self, python: Sequence[str], port: int, module: str, *told: str) -> None:
        command = [*python, "-m", f"benchmarks.peers.{module}", str(port), *told]
        self.process = subprocess.Popen(
            command, cwd=servers.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def call(self, job: str) -> None:
        self._tell({"do": "call", "job": job})

    def check(self, job: str) -> None:
        self._tell({"do": "check", "job": job})

    def load(self, connections: int, seconds: float) -> Load:
        """The small job from so many threads."""
        return Load(**self._tell({"do": "load", "connections": connections, "seconds": seconds}))

    def _tell(self, command: Mapping[str, object]) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended with status {self.process.wait()} at {command}; see above")
        return json.loads(line)


@dataclass
class _Http(Asker):
    """The standard library's HTTP client, which reads into memory that is there: as fast as a bare socket."""

    product: Product
    port: int
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    room: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> _Http:
        self.connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def call(self, job: str) -> None:
        self._ask(job)

    def check(self, job: str) -> None:
        assert self.product.read is not None
        compare(self.product.name, job, self.product.read(self._ask(job)))

    def _ask(self, job: str) -> Body:
        assert self.product.request is not None
        if job not in self.requests:
            self.requests[job] = self.product.request(tensor(job))
        request = self.requests[job]
        self.connection.request("POST", request.path, request.body, dict(request.headers))
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"{self.product.name} answers {answer.status}: {answer.read(500)!r}")
        if answer.length is None:
            return answer.read()
        if len(self.room) < answer.length:
            self.room = bytearray(answer.length)
        view, got = memoryview(self.room)[: answer.length], 0
        while got < len(view):
            count = answer.readinto(view[got:])
            if not count:
                raise ConnectionError(f"{self.product.name} hung up {len(view) - got} bytes before the end")
            got += count
        answer.read()  # so that the connection is free for the next
        return view


# ---- requests and answers --------------------------------------------------------------------------------------------


def _raw(x: Array) -> Request:
    return Request("/tile", {"content-type": BYTES, "x-shape": ",".join(map(str, x.shape))}, x.tobytes())


def _read_raw(body: Body) -> Array:
    return np.frombuffer(body, np.float32)


def _inference(x: Array) -> Request:
    """Open Inference Protocol with the binary extension."""
    tensors = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensors], "outputs": outputs}).encode()
    headers = {"content-type": BYTES, "inference-header-content-length": str(len(head))}
    return Request("/v2/models/tile/infer", headers, b"".join([head, as_bytes(x)]))


def _read_inference(body: Body) -> Array:
    """The output is the end of the answer; its head must say the shape."""
    head, end = json.JSONDecoder().raw_decode(bytes(body[:4096]).decode("latin-1"))
    (output,) = head["outputs"]
    size = int(np.prod(output["shape"])) * 4
    assert len(body) == end + size, "the answer is not a head and a tensor"
    return np.frombuffer(body[end:], np.float32)


def _numbers(x: Array) -> Request:
    """Open Inference Protocol with JSON numbers."""
    tensors = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1).tolist()}
    return Request(
        "/v2/models/tile/infer", {"content-type": "application/json"}, json.dumps({"inputs": [tensors]}).encode()
    )


def _read_numbers(body: Body) -> Array:
    (output,) = json.loads(bytes(body))["outputs"]
    return np.asarray(output["data"], np.float32)


def _base64(x: Array) -> Request:
    text = json.dumps({"shape": x.shape, "x": base64.b64encode(as_bytes(x)).decode()})
    return Request("/predict", {"content-type": "application/json"}, text.encode())


def _read_base64(body: Body) -> Array:
    return np.frombuffer(base64.b64decode(json.loads(bytes(body))["y"]), np.float32)


def _lists(x: Array) -> Request:
    return Request("/tile", {"content-type": "application/json"}, json.dumps({"x": x.tolist()}).encode())


def _read_lists(body: Body) -> Array:
    return np.asarray(json.loads(bytes(body)), np.float32)


PRODUCTS = (
    Product(
        "Arrow Flight", "flight", ("pyarrow==26.0.1", "numpy==2.4.6"), "serve_flight",
        "its own Python client, DoExchange", asks=("ask_flight",),
    ),
    Product(
        "Ray Serve", "ray", ("ray[serve]==2.60.0", "numpy==2.4.6"), "serve_ray",
        "HTTP, raw bytes", _raw, _read_raw,
    ),
    Product(
        "KServe", "kserve", ("kserve==0.21.0",), "serve_kserve",
        "HTTP, binary tensors", _inference, _read_inference,
    ),
    Product(
        "MLServer", "mlserver", ("mlserver==1.7.1",), "serve_mlserver",
        "HTTP, JSON numbers", _numbers, _read_numbers, jobs=SMALLER,
    ),
    Product(
        "MLServer, gRPC", "mlserver", ("mlserver==1.7.1",), "serve_mlserver",
        "tritonclient's gRPC client", asks=("ask_triton", "grpc", "x", "y"), asked_at_second=True,
    ),
    Product(
        "PyTriton", "pytriton", ("nvidia-pytriton==0.7.0",), "serve_pytriton",
        "HTTP, binary tensors", _inference, _read_inference,
    ),
    Product(
        "LitServe", "litserve", ("litserve==0.2.19", "numpy==2.4.6"), "serve_litserve",
        "HTTP, base64 in JSON", _base64, _read_base64,
    ),
    Product(
        "BentoML", "bentoml", ("bentoml==1.4.39", "numpy==2.4.6"), "serve_bentoml",
        "HTTP, JSON numbers", _lists, _read_lists, jobs=SMALLER,
    ),
)  # fmt: skip


def found(bench: Bench) -> list[tuple[Product, Path]]:
    """The products whose environments are there; the others are named."""
    if bench.peers is None:
        bench.leave_out("other products: their environments are made by `make bench-peers` and named by --peers")
        return []
    there: list[tuple[Product, Path]] = []
    for product in PRODUCTS:
        python = product.python(bench.peers)
        if python is None:
            bench.leave_out(f"{product.name}, which is not in {bench.peers.name}")
        else:
            there.append((product, python))
    return there


def versions(peers: Path | None) -> dict[str, str]:
    """The installed version of every product that is there."""
    said: dict[str, str] = {}
    for product in PRODUCTS if peers is not None else ():
        assert peers is not None
        python, package = product.python(peers), product.packages[0].partition("==")[0].partition("[")[0]
        if python is not None and package not in said:
            code = f"import importlib.metadata as m; print(m.version({package!r}))"
            said[package] = subprocess.run(
                [str(python), "-c", code], capture_output=True, text=True, check=True
            ).stdout.strip()
    return said


__all__ = ["PRODUCTS", "REPEATS", "Asker", "Conversation", "Product", "found", "versions"]
