"""`tensorpost serve --workers`: processes that are one server to their callers."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_app import eventually, npy_bytes
from tests.support.live_server import live_process
from tests.support.processes import remaining
from tests.support.server_processes import Connection, connections, server_processes, shared_folder

from tensorpost import Client
from tensorpost_server import commands

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="which process answers is read from /proc")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
TWICE = {"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Add", "inputs": ["x", "x"]}], "outputs": {"y": "y"}}
NEGATIVE = {"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": ["x"]}], "outputs": {"y": "y"}}
NPY = "application/x-npy"
NPY_BOTH = {"content-type": NPY, "accept": NPY}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with live_process(
        TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy", TENSORPOST_SHARED_MEMORY=1, TENSORPOST_MAX_HELD_TENSORS=8
    ) as running:
        yield running


@pytest.fixture
def both(server: tuple[str, int]) -> Iterator[list[Connection]]:
    with connections(*server) as opened:
        yield opened


def loaded(content: bytes) -> Any:
    return np.load(io.BytesIO(content))


def samples(connection: Connection) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, text = connection.ask("GET", "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text.decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def is_refused(connection: socket.socket) -> bool:
    """Whether a connection is beyond the limit: 429, or closed because it was idle or there are many such."""
    connection.settimeout(0.3)
    try:
        answer = connection.recv(100)
        return not answer or b" 429 " in answer
    except TimeoutError:
        return False  # it waits for the rest of the request
    except ConnectionResetError:
        return True


def test_connections_are_spread_evenly(server: tuple[str, int]) -> None:
    url, supervisor = server
    processes = server_processes(supervisor)
    assert len(processes) == 2
    opened = [Connection(url, processes) for _ in range(12)]
    try:
        counts = Counter(each.process for each in opened)
        assert counts.keys() == processes
        assert max(counts.values()) <= 8, counts  # a busy process leaves some to the other
    finally:
        for each in opened:
            each.http.close()


def test_a_held_tensor_is_there_in_every_process(both: list[Connection]) -> None:
    first, second = both
    assert first.ask("PUT", "/v1/tensors/x", npy_bytes(X), {"content-type": NPY})[0] == 201
    status, content = second.ask("GET", "/v1/tensors/x?box=1,:,::2")
    assert status == 200
    assert np.array_equal(loaded(content), X[1, :, ::2])
    status, content = second.ask("POST", "/v1/onnx/Neg?X=@x", b"", {"accept": NPY})
    assert np.array_equal(loaded(content), -X)
    assert second.ask("PUT", "/v1/tensors/x", npy_bytes(-X), {"content-type": NPY})[0] == 409
    assert second.ask("POST", "/v1/onnx/Neg?X=@x&keep=y", b"", {})[0] == 200
    assert np.array_equal(loaded(first.ask("GET", "/v1/tensors/y")[1]), -X)
    assert [each["name"] for each in first.json("GET", "/v1/tensors")["tensors"]] == ["x", "y"]
    assert second.ask("PUT", "/v1/tensors/x?replace=true", npy_bytes(X + 1), {"content-type": NPY})[0] == 200
    assert np.array_equal(loaded(first.ask("GET", "/v1/tensors/x")[1]), X + 1)
    assert first.ask("DELETE", "/v1/tensors/x")[0] == 204
    assert second.ask("GET", "/v1/tensors/x")[0] == 410
    assert second.ask("DELETE", "/v1/tensors/y")[0] == 204
    found = samples(first)
    assert found["tensorpost_held_tensors", frozenset()] == found["tensorpost_held_tensor_bytes", frozenset()] == 0
    eventually(lambda: samples(first)["tensorpost_memory_reserved_bytes", frozenset()] == 0, "all is given back")


def test_limits_of_held_tensors_are_those_of_all_processes(both: list[Connection]) -> None:
    for number in range(8):
        assert both[number % 2].ask("PUT", f"/v1/tensors/n{number}", npy_bytes(X), {"content-type": NPY})[0] == 201
    for connection in both:
        status, content = connection.ask("PUT", "/v1/tensors/more", npy_bytes(X), {"content-type": NPY})
        assert status == 507
        assert b"TENSORPOST_MAX_HELD_TENSORS" in content
    for number in range(8):
        assert both[(number + 1) % 2].ask("DELETE", f"/v1/tensors/n{number}")[0] == 204


def test_a_stored_graph_is_there_in_every_process(both: list[Connection]) -> None:
    first, second = both
    call = ("POST", "/v1/graphs/g", npy_bytes(X), NPY_BOTH)
    first.json("PUT", "/v1/graphs/g", TWICE)
    for _ in range(3):  # planned, then replayed
        assert np.array_equal(loaded(second.ask(*call)[1]), X + X)
    second.json("PUT", "/v1/graphs/g", NEGATIVE)
    for connection in both:
        assert np.array_equal(loaded(connection.ask(*call)[1]), -X)
    first.json("PUT", "/v1/graphs/g?version=2", TWICE)
    assert second.json("GET", "/v1/graphs/g")["versions"] == [1, 2]
    assert np.array_equal(loaded(second.ask(*call)[1]), X + X)
    assert second.ask("DELETE", "/v1/graphs/g?version=2")[0] == 204
    assert np.array_equal(loaded(first.ask(*call)[1]), -X)
    assert second.ask("DELETE", "/v1/graphs/g")[0] == 204
    assert [connection.ask(*call)[0] for connection in both] == [404, 404]


def test_metrics_and_statistics_are_those_of_all_processes(both: list[Connection]) -> None:
    tile = ("POST", "/v1/operators/tile?repeats=1,1,2", npy_bytes(X), NPY_BOTH)
    key = "tensorpost_requests_total", frozenset({("operator", "TILE"), ("backend", "numpy"), ("status", "200")})
    before = samples(both[0]).get(key, 0)
    for connection in both:
        for _ in range(3):
            assert connection.ask(*tile)[0] == 200
    for connection in both:
        assert samples(connection)[key] == before + 6
    found = samples(both[0])
    buckets = [
        value for (name, labels), value in found.items()
        if name == "tensorpost_request_seconds_bucket" and {("operator", "TILE"), ("le", "+Inf")} <= labels
    ]  # fmt: skip
    assert sum(buckets) == before + 6
    assert found["tensorpost_ready", frozenset()] == 1
    assert found["tensorpost_requests_in_flight", frozenset()] == 0
    both[0].json("PUT", "/v1/graphs/counted", TWICE)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]
    for connection in both:
        assert connection.json("POST", "/v2/models/counted/infer", {"inputs": inputs})["outputs"][0]["data"] == [2, 4]
    for connection in both:
        (row,) = connection.json("GET", "/v2/models/counted/stats")["model_stats"]
        assert row["inference_count"] == row["inference_stats"]["success"]["count"] == 2
        assert connection.json("GET", "/v1/graphs/counted")["calls"] == 2
        (listed,) = [each for each in connection.json("GET", "/v1/graphs")["graphs"] if each["name"] == "counted"]
        assert listed["calls"] == 2


def test_what_was_counted_stays_when_processes_end() -> None:
    """Prometheus takes a sum that becomes smaller for a restart of the server, and counts all that is left again."""
    key = "tensorpost_requests_total", frozenset({("operator", "TILE"), ("backend", "numpy"), ("status", "200")})
    tile = ("POST", "/v1/operators/tile?repeats=1,1,2", npy_bytes(X), NPY_BOTH)
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (url, supervisor):
        with connections(url, supervisor) as (first, second):
            for connection in (first, second, second):
                assert connection.ask(*tile)[0] == 200
            assert samples(second)[key] == 3
            assert first.process is not None
            os.kill(first.process, signal.SIGKILL)
            eventually(lambda: samples(second)[key] == 3 and len(server_processes(supervisor)) == 2, "another starts")
            with connections(url, supervisor) as both:
                assert [samples(connection)[key] for connection in both] == [3, 3]
            assert second.ask(*tile)[0] == 200  # which nobody asks about before the process ends in order
        for _ in range(2):  # to the other places and back
            before = server_processes(supervisor)
            os.kill(supervisor, signal.SIGUSR2)
            eventually(lambda before=before: not before & server_processes(supervisor), "all are replaced", 60)
        with connections(url, supervisor) as both:
            assert both[0].ask(*tile)[0] == 200
            assert [samples(connection)[key] for connection in both] == [5, 5]
            assert samples(both[0])["tensorpost_requests_limit", frozenset()] > 0
        names = [path.name.split("-")[0] for path in shared_folder(server_processes(supervisor)).iterdir()]
        assert names.count("metrics") <= 2 * 4
        assert "new" not in names


def test_regions_of_shared_memory_are_there_in_every_process(both: list[Connection]) -> None:
    first, second = both
    region = SharedMemory(create=True, size=X.nbytes)
    try:
        assert region.buf is not None
        region.buf[: X.nbytes] = X.tobytes()
        document = {"key": region.name, "byte_size": X.nbytes}
        assert first.ask("POST", "/v2/systemsharedmemory/region/r/register", json.dumps(document).encode())[0] == 200
        assert second.json("GET", "/v2/systemsharedmemory/status")[0]["name"] == "r"
        parameters = {"shared_memory_region": "r", "shared_memory_byte_size": X.nbytes}
        inputs = [{"name": "X", "datatype": "FP32", "shape": list(X.shape), "parameters": parameters}]
        for connection in (second, first):
            answer = connection.json("POST", "/v2/models/onnx.neg/infer", {"inputs": inputs})
            assert answer["outputs"][0]["data"] == (-X).reshape(-1).tolist()
        assert second.ask("POST", "/v2/systemsharedmemory/unregister")[0] == 200
        assert first.json("GET", "/v2/systemsharedmemory/status") == []
        status, content = first.ask(
            "POST", "/v2/models/onnx.neg/infer", json.dumps({"inputs": inputs}).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        assert status in (400, 404), content
    finally:
        region.close()
        region.unlink()


def test_quotas_are_those_of_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = commands.add_key(file, "anna", requests_per_minute=10)
    headers = {**NPY_BOTH, "authorization": f"Bearer {key}"}
    with (
        live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy", TENSORPOST_KEYS_FILE=file) as (url, supervisor),
        connections(url, supervisor) as both,
    ):
        statuses = [
            both[number % 2].ask("POST", "/v1/operators/tile?repeats=1,1,2", npy_bytes(X), headers)[0]
            for number in range(14)
        ]
        assert Counter(statuses) == {200: 10, 429: 4}, statuses


def test_the_budget_is_that_of_all_processes() -> None:
    with (
        live_process(
            TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy", TENSORPOST_MAX_REQUESTS=1, TENSORPOST_MAX_CONNECTIONS=20,
            TENSORPOST_MAX_CONNECTIONS_PER_ADDRESS=8,
        ) as (url, supervisor),
        connections(url, supervisor) as both,
    ):  # fmt: skip
        first, second = both
        head = f"POST /v1/operators/tile?repeats=1,1,2 HTTP/1.1\r\nhost: localhost\r\ncontent-type: {NPY}\r\n"
        body = npy_bytes(np.zeros((2, 3, 1 << 16), np.float32))
        first.http.sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:1000])
        eventually(lambda: samples(second)["tensorpost_requests_in_flight", frozenset()] == 1, "the upload is admitted")
        status, content = second.ask("POST", "/v1/operators/tile?repeats=1,1,2", npy_bytes(X), NPY_BOTH)
        assert status == 429
        assert b"TENSORPOST_MAX_REQUESTS" in content
        # The process is killed within the upload: what it had counted is taken out.
        assert first.process is not None
        os.kill(first.process, signal.SIGKILL)
        eventually(lambda: len(server_processes(supervisor) - {first.process}) == 2, "another one is started")
        eventually(
            lambda: second.ask("POST", "/v1/operators/tile?repeats=1,1,2", npy_bytes(X), NPY_BOTH)[0] == 200,
            "there is room",
        )
        # One after the other, each within a request: an idle one would make room for the next.
        parts, opened = urlsplit(url), list[socket.socket]()
        try:
            for _ in range(12):
                opened.append(socket.create_connection((parts.hostname, parts.port)))
                opened[-1].sendall(f"{head}content-length: 9999\r\n\r\n".encode())
                time.sleep(0.05)
            assert sum(map(is_refused, opened)) == 12 - 8
        finally:
            for each in opened:
                each.close()


def test_a_killed_process_loses_nothing_that_is_kept(server: tuple[str, int]) -> None:
    url, supervisor = server
    with connections(url, supervisor) as (first, second):
        first.json("PUT", "/v1/graphs/g", TWICE)
        assert first.ask("PUT", "/v1/tensors/x", npy_bytes(X), {"content-type": NPY})[0] == 201
        first.http.sock.sendall(b"PUT /v1/tensors/half HTTP/1.1\r\nhost: localhost\r\ncontent-type: " + NPY.encode())
        first.http.sock.sendall(b"\r\ncontent-length: 10000\r\n\r\n" + npy_bytes(np.zeros(2468, np.float32))[:5000])
        held = "tensorpost_held_tensor_bytes", frozenset[tuple[str, str]]()
        eventually(lambda: samples(second)[held] == X.nbytes + 2468 * 4, "the upload has room")
        assert first.process is not None
        os.kill(first.process, signal.SIGKILL)
        eventually(lambda: samples(second)[held] == X.nbytes, "the room is given back")
        assert np.array_equal(loaded(second.ask("GET", "/v1/tensors/x")[1]), X)
        eventually(lambda: len(server_processes(supervisor)) == 2, "another process is started")
        with connections(url, supervisor) as again:
            for connection in again:
                assert np.array_equal(loaded(connection.ask("GET", "/v1/tensors/x")[1]), X)
                answer = connection.ask("POST", "/v1/graphs/g", npy_bytes(X), NPY_BOTH)
                assert np.array_equal(loaded(answer[1]), X + X)
            assert again[0].ask("DELETE", "/v1/tensors/x")[0] == again[1].ask("DELETE", "/v1/graphs/g")[0] == 204


def test_processes_are_replaced_without_losing_a_request() -> None:
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (url, supervisor):
        failures, done, ended = list[BaseException](), Counter[int](), threading.Event()

        def call(number: int) -> None:
            with Client(url) as tp:
                while not ended.is_set():
                    try:
                        assert np.array_equal(tp.tile(X, (1, 1, 2)), np.tile(X, (1, 1, 2)))
                    except Exception as error:  # noqa: BLE001 # whatever is raised is a lost request
                        failures.append(error)
                    done[number] += 1

        with Client(url) as tp:
            tp.put(X, "x")
            callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
            for caller in callers:
                caller.start()
            try:
                before = server_processes(supervisor)
                os.kill(supervisor, signal.SIGUSR2)
                eventually(lambda: not before & server_processes(supervisor), "all are replaced", 60)
                seen = Counter(done)
                eventually(lambda: all(done[number] > seen[number] + 5 for number in range(3)), "all go on")
            finally:
                ended.set()
                for caller in callers:
                    caller.join()
            assert failures == []
            assert len(server_processes(supervisor)) == 2
            assert np.array_equal(tp.tensors()[0].get(), X)


def test_the_processes_end_with_their_supervisor() -> None:
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (_, supervisor):
        ordered = server_processes(supervisor)
        folder = shared_folder(ordered)
        assert folder.is_dir()
    assert not remaining(ordered)
    assert not folder.exists()
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (_, supervisor):
        orphans = server_processes(supervisor)
        folder = shared_folder(orphans)
        os.kill(supervisor, signal.SIGKILL)
        assert not remaining(orphans)
        assert not folder.exists()  # the last of them has removed it


def test_what_a_killed_server_has_left_is_removed_by_the_next_one() -> None:
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (url, supervisor):
        processes = server_processes(supervisor)
        folder = shared_folder(processes)
        assert folder.stat().st_mode & 0o777 == 0o700, "nobody else may look into it"
        with Client(url) as tp:
            tp.put(X, "x")
        for each in (supervisor, *processes):
            os.kill(each, signal.SIGKILL)
        assert not remaining(processes)
        assert folder.is_dir()
    with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy") as (url, supervisor):
        assert not folder.exists()
        own = shared_folder(server_processes(supervisor))
        with live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="numpy"):
            assert own.is_dir()  # which is in use
        with Client(url) as tp:
            tp.put(X, "x")


def test_what_keeps_a_process_from_starting_is_said_once() -> None:
    with (
        pytest.raises(RuntimeError, match="backend 'directml' was requested and cannot be opened") as raised,
        live_process(TENSORPOST_WORKERS=2, TENSORPOST_BACKEND="directml"),
    ):
        pass
    assert str(raised.value).count("NoBackend:") == 1


@pytest.mark.parametrize("setting", ["TENSORPOST_CUDA_SHARED_MEMORY"])
def test_what_several_processes_cannot_do_is_refused(setting: str) -> None:
    with (
        pytest.raises(RuntimeError, match=f"--workers 2 .* and {setting} do not go together"),
        live_process(before="", TENSORPOST_WORKERS=2, **{setting: "1"}),
    ):
        pass
