"""Stored graphs and held tensors of several processes under change: all processes agree, and nothing is left behind."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.support.http_app import eventually, frame_bytes, npy_bytes
from tests.support.live_server import live_process
from tests.support.server_processes import Connection, connections, server_processes, shared_folder

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="which process answers is read from /proc")

X = np.arange(4, dtype=np.float32)
NPY = {"content-type": "application/x-npy", "accept": "application/x-npy"}
GRAPH = {"content-type": "application/vnd.safetensors"}


def times(factor: int, weights: int = 1) -> bytes:
    """A graph that multiplies by a number, with so many weights of 4 bytes."""
    graph = {
        "inputs": {"x": {}, "w": {}},
        "nodes": [
            {"name": "factor", "op_type": "ReduceMax", "inputs": ["w"]},
            {"name": "y", "op_type": "Mul", "inputs": ["x", "factor"]},
        ],
        "outputs": {"y": "y"},
    }
    data = np.full(weights, factor, np.float32).tobytes()
    return frame_bytes({"w": ("F32", [weights], data)}, {"graph": json.dumps(graph)})


def factor_of(connection: Connection, name: str) -> float | None:
    """What the graph of this name multiplies by in a process; None if it has none."""
    status, content = connection.ask("POST", f"/v1/graphs/{name}", npy_bytes(X), NPY)
    if status == 404:
        return None
    assert status == 200, content
    return float(np.load(io.BytesIO(content))[1])


def at_once(url: str, requests: list[tuple[str, str, bytes | None]]) -> list[int]:
    """Send all of these at the same time, each over a connection of its own; the statuses."""
    parts, start = urlsplit(url), threading.Barrier(len(requests))

    def send(request: tuple[str, str, bytes | None]) -> int:
        method, path, body = request
        with closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as connection:
            connection.connect()
            start.wait()
            connection.request(method, path, body, GRAPH)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    with ThreadPoolExecutor(len(requests)) as pool:
        return [*pool.map(send, requests)]


@contextmanager
def nothing_written(*processes: int) -> Iterator[None]:
    """Let the system refuse these processes each write to a file, as a full file system does."""
    before = [resource.prlimit(each, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)) for each in processes]
    try:
        yield
    finally:
        for each, limits in zip(processes, before, strict=True):
            resource.prlimit(each, resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as running:
        yield running


@pytest.fixture
def both(server: tuple[str, int]) -> Iterator[list[Connection]]:
    with connections(*server) as opened:
        yield opened


def test_graphs_stored_at_once_under_one_name_are_one_graph_in_all_processes(
    server: tuple[str, int], both: list[Connection]
) -> None:
    # Some are large, so that they are written for longer than the others.
    graphs = [times(2 + number, 1 << (20 if number % 3 == 0 else 4)) for number in range(20)]
    for _ in range(4):
        statuses = at_once(server[0], [("PUT", "/v1/graphs/g", graph) for graph in graphs])
        assert {*statuses} <= {200, 201}
        found = [factor_of(connection, "g") for connection in both]
        assert found[0] == found[1] is not None
        digests = [connection.json("GET", "/v1/graphs/g")["digest"] for connection in both]
        assert digests[0] == digests[1]


def test_a_graph_is_never_missing_while_it_is_replaced(both: list[Connection]) -> None:
    first, second = both
    large = [times(factor, 1 << 18) for factor in (2, 3)]
    assert first.ask("PUT", "/v1/graphs/r", large[0], GRAPH)[0] == 201
    ended = threading.Event()

    def call() -> set[float | None]:
        found = set[float | None]()
        while not ended.is_set():
            found.add(factor_of(second, "r"))
        return found

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call)
        try:
            for number in range(30):
                assert first.ask("PUT", "/v1/graphs/r", large[(number + 1) % 2], GRAPH)[0] == 200
        finally:
            ended.set()
        assert calling.result() <= {2, 3}


def test_a_version_that_is_stored_while_the_graph_is_deleted_is_there_in_all_processes_or_in_none(
    server: tuple[str, int], both: list[Connection]
) -> None:
    for _ in range(6):
        both[0].ask("PUT", "/v1/graphs/d", times(2), GRAPH)
        puts = [("PUT", f"/v1/graphs/d?version={number}", times(2 + number)) for number in range(2, 6)]
        statuses = at_once(server[0], [*puts, ("DELETE", "/v1/graphs/d", None), ("DELETE", "/v1/graphs/d", None)])
        assert {*statuses} <= {200, 201, 204, 404}
        found = [
            [each["version"] for each in connection.json("GET", "/v1/graphs")["graphs"] if each["name"] == "d"]
            for connection in both
        ]
        assert found[0] == found[1]
        assert factor_of(both[0], "d") == factor_of(both[1], "d")
        both[0].ask("DELETE", "/v1/graphs/d")


def test_a_graph_that_cannot_be_written_is_refused_and_the_one_before_stays(
    server: tuple[str, int], both: list[Connection]
) -> None:
    assert both[0].ask("PUT", "/v1/graphs/full", times(2), GRAPH)[0] == 201
    files = {*shared_folder(server_processes(server[1])).glob("graph-*")}
    with nothing_written(*server_processes(server[1])):
        for connection in both:
            status, content = connection.ask("PUT", "/v1/graphs/full", times(3), GRAPH)
            assert status == 507, content
            assert b"insufficient-storage" in content
            status, content = connection.ask("DELETE", "/v1/graphs/full")
            assert status == 507, content
            assert b"insufficient-storage" in content
        assert [factor_of(connection, "full") for connection in both] == [2, 2]
    assert {*shared_folder(server_processes(server[1])).glob("graph-*")} == files
    assert both[1].ask("PUT", "/v1/graphs/full", times(3), GRAPH)[0] == 200
    assert [factor_of(connection, "full") for connection in both] == [3, 3]
    assert both[1].ask("DELETE", "/v1/graphs/full")[0] == 204


def test_held_tensors_go_on_after_the_file_system_was_full(server: tuple[str, int], both: list[Connection]) -> None:
    def held() -> float:
        found = re.search(r"^tensorpost_held_tensor_bytes (\S+)$", both[0].ask("GET", "/metrics")[1].decode(), re.M)
        assert found is not None
        return float(found[1])

    assert both[0].ask("PUT", "/v1/tensors/x", npy_bytes(X), NPY)[0] == 201
    # A read that has begun when nothing can be written any more, and ends then.
    long = np.zeros(1 << 24, np.float32)
    assert both[0].ask("PUT", "/v1/tensors/long", npy_bytes(long), NPY)[0] == 201
    both[1].http.request("GET", "/v1/tensors/long")
    answer = both[1].http.getresponse()
    with nothing_written(*server_processes(server[1])):
        assert len(answer.read()) == 128 + long.nbytes
        for connection in both:
            for method, path, body in (("PUT", "/v1/tensors/y", npy_bytes(X)), ("DELETE", "/v1/tensors/x", None)):
                status, content = connection.ask(method, path, body, NPY)
                assert status == 507, (method, path, content)
                assert b"insufficient-storage" in content
        assert held() == X.nbytes + long.nbytes
    for connection in both:
        assert np.array_equal(np.load(io.BytesIO(connection.ask("GET", "/v1/tensors/x")[1])), X)
        assert connection.ask("PUT", "/v1/tensors/y?replace=true", npy_bytes(X), NPY)[0] in (200, 201)
    for name in ("x", "y", "long"):
        assert both[1].ask("DELETE", f"/v1/tensors/{name}")[0] == 204
    eventually(lambda: held() == 0, "all is given back")
    assert [*shared_folder(server_processes(server[1])).glob("tensor-*")] == []


def test_a_stopped_process_delays_the_others_for_a_bounded_time(
    server: tuple[str, int], both: list[Connection]
) -> None:
    first, second = both
    assert first.ask("PUT", "/v1/graphs/s", times(2), GRAPH)[0] in (200, 201)
    stopped = second.process
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    try:
        status, _ = first.ask("GET", "/metrics")
        assert status == 200
        with ThreadPoolExecutor(1) as pool:
            storing = pool.submit(first.ask, "PUT", "/v1/graphs/s", times(5), GRAPH)
            os.kill(stopped, signal.SIGCONT)
            assert storing.result()[0] == 200
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert [factor_of(connection, "s") for connection in both] == [5, 5]


def test_a_graph_for_which_only_some_processes_have_memory_is_refused() -> None:
    settings: dict[str, Any] = {
        "TENSORPOST_WORKERS": 2, "TENSORPOST_BACKEND": "numpy", "TENSORPOST_MEMORY_BYTES": 16 << 20,
    }  # fmt: skip
    with live_process(**settings) as (url, supervisor), connections(url, supervisor) as both:
        status, content = both[0].ask("PUT", "/v1/graphs/big", times(2, (5 << 20) // 4), GRAPH)
        assert status == 413, content  # two of them are more than may ever stay
        assert b"TENSORPOST_MEMORY_BYTES" in content
        assert [factor_of(connection, "big") for connection in both] == [None, None]
        assert both[0].ask("PUT", "/v1/graphs/big", times(3, (3 << 20) // 4), GRAPH)[0] == 201
        assert [factor_of(connection, "big") for connection in both] == [3, 3]


def test_tensors_may_be_more_than_the_descriptors_that_the_system_offers() -> None:
    before = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))\n"
    settings: dict[str, Any] = {
        "TENSORPOST_WORKERS": 2, "TENSORPOST_BACKEND": "numpy", "TENSORPOST_MAX_CONNECTIONS": 16,
    }  # fmt: skip
    with live_process(before, **settings) as (url, supervisor), connections(url, supervisor) as (first, second):
        for number in range(80):
            assert first.ask("PUT", f"/v1/tensors/x{number}", npy_bytes(X + number), NPY)[0] == 201
        for number in range(80):
            status, content = second.ask("GET", f"/v1/tensors/x{number}", None, NPY)
            assert status == 200, content
            assert np.array_equal(np.load(io.BytesIO(content)), X + number)


def test_the_memory_of_replaced_tensors_is_free_in_all_processes(both: list[Connection]) -> None:
    """A process that maps a tensor keeps its memory: those that have read one let go of it when it is replaced."""
    large = npy_bytes(np.zeros(10 << 20, np.float32))
    for _ in range(6):
        assert both[0].ask("PUT", "/v1/tensors/l?replace=true", large, NPY)[0] in (200, 201)
        for connection in both:
            assert connection.ask("GET", "/v1/tensors/l?box=:4")[0] == 200

    def deleted() -> int:
        lines = [line for each in both for line in Path(f"/proc/{each.process}/maps").read_text().splitlines()]
        return sum("/tensor-" in line and line.endswith("(deleted)") for line in lines)

    eventually(lambda: deleted() <= 2, "no more than 64 MiB, and one in use, are mapped by each", 3)
    assert both[0].ask("DELETE", "/v1/tensors/l")[0] == 204
