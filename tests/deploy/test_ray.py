"""The service on Ray Serve, and one operator over a cluster: several nodes, all of them raylets of this machine.

Run where ray is installed (`make ray-test`); skipped elsewhere. The figures that it prints are in docs/deploy.md.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import NPY
from tests.support.live_server import live_server
from tests.support.processes import descendants
from tests.support.ray_cluster import patiently, replica_processes, replicas_of, running, until

from tensorpost import Client, OperatorDesc, Progress, TensorpostError, distributed, parse_operator
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import TooBusy, Unavailable

ray: Any = pytest.importorskip("ray", reason="needs ray: make ray-test")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own libraries
PORT = 18321
URL = f"http://127.0.0.1:{PORT}"
MEGABYTES = [int(text) for text in os.environ.get("BODY_MEGABYTES", "64,256").split(",")]
JOB_MEGABYTES = int(os.environ.get("JOB_MEGABYTES", "512"))
STORE = 300 << 20  # bytes of each node's object store


def tile(x: np.ndarray[Any, Any], repeats: tuple[int, ...]) -> OperatorDesc:
    tensor = {"DataType": "FLOAT32", "Sizes": list(x.shape)}
    return parse_operator({"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": list(repeats)}}, complete=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes little, and two nodes."""
    importlib.import_module("tensorpost_server.ray")  # it chooses HAProxy, unless RAY_SERVE_ENABLE_HA_PROXY is 0
    slow = (
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S",
    )
    for name in slow:
        os.environ.setdefault(name, "120")  # a busy machine starts a process in half a minute
    os.environ |= {"TENSORPOST_ACCESS_LOG": "off", "TENSORPOST_ALLOW_ANONYMOUS": "1", "TENSORPOST_BACKEND": "numpy"}
    new_cluster: Any = importlib.import_module("ray.cluster_utils").Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    nodes = patiently(lambda: new_cluster(initialize_head=True, head_node_args=head))
    nodes.extra = [patiently(lambda: nodes.add_node(num_cpus=1, object_store_memory=STORE)) for _ in range(2)]
    ray.init(address=nodes.address, configure_logging=False, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def tile_job() -> tuple[OnnxNode, np.ndarray[Any, Any], Callable[[int], np.ndarray[Any, Any]]]:
    """4 MiB again and again; the function gives a plane of the output, by hand."""
    x = np.arange(1 << 20, dtype=np.float32).reshape(1, 1024, 1024)
    inputs = {"input": x, "repeats": [JOB_MEGABYTES // 4, 1, 1]}
    return OnnxNode.of("Tile", inputs, opset=13), x, lambda _: x[0]


def resize_job() -> tuple[OnnxNode, np.ndarray[Any, Any], Callable[[int], np.ndarray[Any, Any]]]:
    """Pictures of small integers, 16 times as wide and high: what is between them are fractions that float32 holds."""
    x = np.random.default_rng(5).integers(0, 256, (max(1, JOB_MEGABYTES // 64), 256, 256)).astype(np.float32)
    inputs = {"X": x, "scales": [1, 16, 16]}
    at = np.clip((np.arange(256 * 16) + 0.5) / 16 - 0.5, 0, 255)
    low = np.floor(at).astype(int)
    high, weight = np.minimum(low + 1, 255), (at - low).astype(np.float32)

    def plane(index: int) -> np.ndarray[Any, Any]:
        rows = x[index][low] * (1 - weight)[:, None] + x[index][high] * weight[:, None]
        return rows[:, low] * (1 - weight) + rows[:, high] * weight

    return OnnxNode.of("Resize", inputs, opset=19, mode="linear"), x, plane


def peaks(found: dict[int, int]) -> None:
    """Note the most resident bytes that each process of a task has had, by its id."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                (most,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                found[pid] = int(most) << 10


@pytest.mark.parametrize("job", [tile_job, resize_job])
def test_a_job_is_computed_by_all_nodes_and_a_lost_one_is_made_up_for(cluster: Any, tmp_path: Path, job: Any) -> None:
    node, x, plane = job()
    lost: list[int] = []
    resident: dict[int, int] = {}

    def progress(so_far: Progress) -> None:
        peaks(resident)
        assert so_far.to_receive is not None
        if so_far.received >= so_far.to_receive // 2 and not lost:
            lost.append(so_far.received)
            cluster.remove_node(cluster.extra.pop(), allow_graceful=False)

    begin = time.monotonic()
    y = distributed.run(node, x, store=tmp_path / "y", chunk_bytes=16 << 20, progress=progress)
    seconds = time.monotonic() - begin

    assert y.metadata.zarr_format == 3
    assert y.nbytes >= JOB_MEGABYTES << 20
    assert lost
    assert max(resident.values()) < 600 << 20
    for index in range(y.shape[0]):
        assert np.array_equal(y[index], plane(index)), index
    shutil.rmtree(tmp_path / "y")
    print(f"\n{node.op_type} into Zarr: {y.nbytes / 1e6:,.0f} MB in {seconds:.1f} s, every element right;", end=" ")
    print(f"a node killed after {lost[0] >> 20} MiB; ", end="")
    print(f"MiB that its {len(resident)} processes had resident: {sorted(most >> 20 for most in resident.values())}")
    cluster.extra.append(patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE)))


def test_a_graph_is_computed_by_all_nodes_and_a_lost_one_is_made_up_for(cluster: Any, tmp_path: Path) -> None:
    """What is repeated, scaled and rounded lies in Zarr, two outputs of it; by NumPy the same."""
    x = np.arange(1 << 20, dtype=np.float32).reshape(1, 1024, 1024) % 4096
    graph = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", "h", "w"]}},
        "constants": {"two": {"dtype": "F32", "shape": [1], "data": [2]}},
        "nodes": [
            {"name": "up", "type": "TILE", "inputs": "x", "desc": {"Repeats": [JOB_MEGABYTES // 8, 1, 1]}},
            {"name": "half", "op_type": "Div", "inputs": ["up", "two"]},
            {"name": "f", "op_type": "Cast", "inputs": ["half"], "attributes": {"to": "float16"}},
            {"name": "neg", "op_type": "Neg", "inputs": ["half"]},
        ],
        "outputs": {"f": "f", "neg": "neg"},
    }
    lost: list[int] = []

    def progress(so_far: Progress) -> None:
        assert so_far.to_receive is not None
        if so_far.received >= so_far.to_receive // 2 and not lost:
            lost.append(so_far.received)
            cluster.remove_node(cluster.extra.pop(), allow_graceful=False)

    begin = time.monotonic()
    found = distributed.run_graph(graph, {"x": x}, store=tmp_path / "y", chunk_bytes=16 << 20, progress=progress)
    seconds = time.monotonic() - begin

    assert lost
    assert found["f"].shape == found["neg"].shape == (JOB_MEGABYTES // 8, 1024, 1024)
    for index in range(JOB_MEGABYTES // 8):
        assert np.array_equal(found["f"][index], (x[0] / 2).astype(np.float16)), index
        assert np.array_equal(found["neg"][index], -x[0] / 2), index
    made = sum([each.nbytes for each in found.values()])
    shutil.rmtree(tmp_path / "y")
    print(f"\na graph into Zarr: {made / 1e6:,.0f} MB in {seconds:.1f} s, every element right;", end=" ")
    print(f"a node killed after {lost[0] >> 20} MiB")
    cluster.extra.append(patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE)))


def test_without_a_store_the_chunks_are_references(cluster: Any) -> None:
    x = np.arange(1 << 20, dtype=np.float32).reshape(1, 1024, 1024)
    parts = distributed.run(tile(x, (4, 1, 1)), x, chunk_bytes=1 << 20)
    assert [box[0] for box, _ in parts] == [(i // 4, i // 4 + 1) for i in range(16)]
    assert np.array_equal(np.concatenate(ray.get([ref for _, ref in parts]), axis=1).reshape(4, 1024, 1024)[3], x[0])


def proxied() -> int:
    """Replicas that HAProxy knows and can reach; it learns of them one by one, and until then Serve's proxy answers."""
    if os.environ["RAY_SERVE_ENABLE_HA_PROXY"] == "0":
        return 2
    lines = urllib.request.urlopen("http://127.0.0.1:8404/stats;csv").read().decode().splitlines()
    return sum(",SERVE_REPLICA_" in line and ",UP," in line for line in lines)


@pytest.fixture(scope="module")
def service(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two replicas, by the real `serve run`."""
    from tensorpost_server.ray import serve

    serve.start("HeadOnly", {"host": "127.0.0.1", "port": PORT})
    command = [Path(sys.executable).with_name("serve"), "run", "--address", cluster.address]
    command += ["tensorpost_server.ray:application", "replicas=2", "cpus=0.6"]  # one fits on each node
    log = tmp_path_factory.mktemp("ray") / "serve-run.log"
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            until(lambda: running(serve) == 2)
            with Client(URL) as tp:
                until(tp.ready)
            until(lambda: proxied() == 2)
            yield URL
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def deploy(**arguments: Any) -> None:
    """Other replicas in the place of those of `service`."""
    from tensorpost_server.ray import application, serve

    serve.run(application(arguments), route_prefix="/")  # by the name that `serve run` gave


def replicas(url: str) -> dict[str, float]:
    """By replica, told apart by when it began: calls that it has answered."""
    found: dict[str, float] = {}
    with ThreadPoolExecutor(8) as threads:  # at once: HAProxy gives all to one that has fewest connections
        texts = threads.map(lambda _: urllib.request.urlopen(f"{url}/metrics").read().decode(), range(80))
    for text in texts:
        (began,) = re.findall(r"^process_start_time_seconds (\S+)", text, re.MULTILINE)
        counts = re.findall(r'^tensorpost_requests_total\{[^}]*operator="TILE"[^}]*\} (\S+)', text, re.MULTILINE)
        found[began] = sum(map(float, counts))
    return found


def test_two_replicas_share_the_calls(service: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with Client(service) as tp, ThreadPoolExecutor(8) as threads:
        for y in threads.map(lambda _: tp.tile(x, (2, 2)), range(40)):
            assert np.array_equal(y, np.tile(x, (2, 2)))
        assert tp.devices()["default"] == "numpy"
        with pytest.raises(TensorpostError, match="cuda"):
            tp.tile(x, (2, 2), backend="cuda")
    split = replicas(service)

    print(f"\nof 40 calls: {sorted(split.values())}")
    assert len(split) == 2
    assert min(split.values()) >= 5


@pytest.mark.parametrize("megabytes", MEGABYTES)
def test_large_bodies_beside_a_plain_server(service: str, megabytes: int) -> None:
    x = np.ones(megabytes << 18, np.float32)
    taken: dict[str, list[float]] = {"Ray": [], "direct": [], "httptools": []}
    with (
        live_server(TENSORPOST_BACKEND="numpy", TENSORPOST_HTTP_PROTOCOL="direct") as direct,
        live_server(TENSORPOST_BACKEND="numpy", TENSORPOST_HTTP_PROTOCOL="httptools") as httptools,  # uvicorn's own
        Client(service, timeout=120) as on_ray,
        Client(direct) as on_direct,
        Client(httptools) as on_httptools,
    ):
        for _ in range(8):
            for name, tp in (("Ray", on_ray), ("direct", on_direct), ("httptools", on_httptools)):
                begin = time.perf_counter()
                y = tp.tile(x, (1,))
                taken[name].append(time.perf_counter() - begin)
                assert np.array_equal(x, y)
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    ratios = {name: seconds[name] / seconds["Ray"] for name in ("direct", "httptools")}
    print(
        f"\n{megabytes} MiB, median seconds of 8:", {name: round(each, 2) for name, each in seconds.items()}, end="; "
    )
    print("Ray's rate, of theirs:", {name: round(each, 2) for name, each in ratios.items()})
    assert min(ratios.values()) > 0.2


def test_another_address_than_that_of_the_running_serve_is_refused(service: str, cluster: Any) -> None:
    command = [sys.executable, "-m", "tensorpost", "serve", "--ray", "1", "--port", str(PORT + 1)]
    variables = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run(command, check=False, env=variables, capture_output=True, text=True, timeout=120)

    assert done.returncode != 0
    assert f"listens on 127.0.0.1:{PORT}, not 127.0.0.1:{PORT + 1}" in done.stderr
    with Client(service) as tp:
        assert tp.ready()


@contextmanager
def load(url: str, threads: int, megabytes: int) -> Iterator[tuple[Counter[str], list[Exception]]]:
    """Calls, each with so large an output, from several threads until the block ends; those right, and failures."""
    x = np.arange(megabytes << 17, dtype=np.float32)
    expected = np.tile(x, 2)
    calls, failures, stop = Counter[str](), list[Exception](), threading.Event()

    def call() -> None:
        with Client(url, retries=8, timeout=30) as tp:
            while not stop.is_set():
                try:
                    assert np.array_equal(tp.tile(x, (2,)), expected)
                    calls["right"] += 1
                except TensorpostError as error:
                    failures.append(error)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(call) for _ in range(threads)]
        try:
            yield calls, failures
        finally:
            stop.set()
        for future in futures:
            future.result()


def test_a_node_that_is_lost_under_load_fails_no_call(service: str, cluster: Any) -> None:
    (node, *_) = [node for node in cluster.extra if replicas_of(node)]  # the other replica may be at the head
    before = replicas(service)
    with load(service, threads=2, megabytes=1) as (calls, failures):
        time.sleep(3)
        cluster.extra.remove(node)
        cluster.remove_node(node, allow_graceful=False)
        time.sleep(12)
    lost = before.keys() - replicas(service).keys()

    print(f"\na node killed under load: {calls['right']} calls right, {len(failures)} failed {failures[:1]}")
    assert len(lost) == 1
    assert calls["right"] > 10
    assert failures == []


def tile_request(megabytes: int) -> dict[str, Any]:
    """So many MiB to `/v1/operators/tile`, by plain HTTP."""
    body = io.BytesIO()
    np.save(body, np.ones(megabytes << 18, np.float32))
    headers = {**NPY, "Accept": NPY["content-type"]}
    return {"method": "POST", "url": "/v1/operators/tile?repeats=4", "body": body.getvalue(), "headers": headers}


def refused(url: str, megabytes: int, error: type[TensorpostError], status: int) -> None:
    """The SDK raises this error, and by plain HTTP there is the server's own problem document."""
    with Client(url, retries=0) as tp, pytest.raises(error) as raised:
        tp.tile(np.ones(megabytes << 18, np.float32), (4,))
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        connection.request(**tile_request(megabytes))
        answer = connection.getresponse()
        problem = json.loads(answer.read())

    assert answer.status == problem["status"] == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["type"] == f"urn:tensorpost:problem:{error.code}"
    assert problem["request_id"] == answer.headers["X-Request-ID"]
    assert int(answer.headers["Retry-After"]) == problem["retry_after_seconds"] >= 3
    assert raised.value.extra["retry_after_seconds"] >= 3


def test_refusals_are_the_replicas_own(service: str) -> None:
    # One caller may hold one request. A forged address is none of another caller.
    deploy(replicas=1, cpus=0.6, settings={"max_requests": 2, "caller_share": 0.5, "retry_after_seconds": 3})
    with Client(service) as tp:
        until(lambda: [limit["value"] for limit in tp.limits()["limits"] if limit["name"] == "max_requests"] == [2])
    with closing(http.client.HTTPConnection(service.removeprefix("http://"), timeout=60)) as connection:
        forged = tile_request(32)
        forged["headers"]["X-Forwarded-For"] = "203.0.113.7"
        connection.request(**forged)
        answer = connection.getresponse()
        refused(service, 32, TooBusy, 429)  # while this one is not read
        assert len(answer.read()) > 128 << 20

    own = replica_processes(os.getpid())
    for pid in own:  # no memory for a request: the address space that they have, and little more
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
    refused(service, 96, Unavailable, 503)
    for pid in own:
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with Client(service) as tp:
        assert tp.tile(np.ones(96 << 18, np.float32), (4,)).all()


def test_a_replica_is_added_while_bytes_wait(service: str) -> None:
    from tensorpost_server.ray import serve

    deploy(replicas=1, cpus=0.6)  # autoscaling begins with as many as there are
    deploy(replicas=1, most_replicas=2, queued_bytes=1 << 20, cpus=0.6)
    until(lambda: running(serve) == 1)
    began = time.monotonic()
    with load(service, threads=6, megabytes=32) as (calls, failures):
        until(lambda: running(serve) == 2)
        seconds = time.monotonic() - began
        time.sleep(10)
    split = replicas(service)

    print(
        f"\na second replica after {seconds:.0f} s of load: {calls['right']} calls right, {len(failures)} failed",
        end="",
    )
    print(f" {failures[:1]}; calls of each: {sorted(split.values())}")
    assert failures == []
    assert len(split) == 2
    assert min(split.values()) > 0


def test_the_recipe_with_dask_as_the_page_has_it() -> None:
    pytest.importorskip("dask", reason="needs dask: make ray-test")
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "dask" in text]
    names: dict[str, Any] = {}
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        exec(block.replace("http://127.0.0.1:8000", url), names)  # the page's own lines
        names["tp"].close()

    x, result = names["x"].compute(scheduler="synchronous"), names["result"]
    assert result.shape == (8, 1024, 1024)
    # Pixel centres are aligned: the second of two along an axis is 3/4 of its source and 1/4 of the next one.
    assert np.allclose(result[:, 1, 1], (9 * x[:, 0, 0] + 3 * x[:, 0, 1] + 3 * x[:, 1, 0] + x[:, 1, 1]) / 16, atol=1e-6)
