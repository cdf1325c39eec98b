"""Held tensors of several replicas on a Ray cluster of several nodes, all of this machine; one of them is killed.

Run where ray is installed (`make ray-test`); skipped elsewhere. The figures that it prints are in docs/deploy.md.
"""

from __future__ import annotations

import http.client
import importlib
import io
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.support.live_server import live_server
from tests.support.ray_cluster import patiently, ports_of, replicas_of, running, until

from tensorpost import Client

ray: Any = pytest.importorskip("ray", reason="needs ray: make ray-test")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own libraries
PORT = 18331
STORE = 400 << 20  # bytes of each node's object store
MOST = 40
INDEX = f"index of default, tensorpost {version('tensorpost')}"
NPY = "application/x-npy"
SMALL = np.arange(12, dtype=np.float32).reshape(3, 4)  # lies in the index
LARGE = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)  # lies in an object store


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def array(self) -> Any:
        assert self.status == 200, self.body
        return np.load(io.BytesIO(self.body))

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, array: Any = None, document: Any = None) -> Answer:
    """A request to the replica that listens there, not through the proxy."""
    body = io.BytesIO()
    headers = {"Accept": f"{NPY}, application/json;q=0.5"}
    if array is not None:
        np.save(body, array)
        headers["Content-Type"] = NPY
    if document is not None:
        body.write(json.dumps(document).encode())
        headers["Content-Type"] = "application/json"
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, body.getvalue(), headers)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())


def put(port: int, name: str, array: Any, query: str = "") -> Answer:
    return ask(port, "PUT", f"/v1/tensors/{name}{query}", array)


def get(port: int, name: str) -> Answer:
    return ask(port, "GET", f"/v1/tensors/{name}")


def scaled(factor: float) -> dict[str, Any]:
    """A graph that multiplies by a number."""
    return {
        "inputs": {"x": {}},
        "constants": {"factor": {"dtype": "F32", "shape": [1], "data": [factor]}},
        "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "factor"]}],
        "outputs": {"y": "y"},
    }


def store(port: int, name: str, factor: float, query: str = "") -> Answer:
    return ask(port, "PUT", f"/v1/graphs/{name}{query}", document=scaled(factor))


def call(port: int, name: str, query: str = "") -> Answer:
    return ask(port, "POST", f"/v1/graphs/{name}{query}", SMALL)


def metric(port: int, name: str = "tensorpost_requests_total") -> float:
    """The sum of a metric of a replica."""
    text = ask(port, "GET", "/metrics").body.decode()
    return sum(
        [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    )


def held_bytes(port: int) -> float:
    return metric(port, "tensorpost_held_tensor_bytes")


def names(port: int) -> list[str]:
    return [each["name"] for each in ask(port, "GET", "/v1/tensors").document["tensors"]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without replicas, and two nodes with room for one each."""
    importlib.import_module("tensorpost_server.ray")  # it chooses HAProxy, unless RAY_SERVE_ENABLE_HA_PROXY is 0
    for name in ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"):
        os.environ.setdefault(name, "120")  # a busy machine starts a process in half a minute
    os.environ |= {"TENSORPOST_ACCESS_LOG": "off", "TENSORPOST_ALLOW_ANONYMOUS": "1", "TENSORPOST_BACKEND": "numpy"}
    new_cluster: Any = importlib.import_module("ray.cluster_utils").Cluster
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    nodes = patiently(lambda: new_cluster(initialize_head=True, head_node_args=head))
    nodes.extra = [patiently(lambda: nodes.add_node(num_cpus=1, object_store_memory=STORE)) for _ in range(2)]
    ray.init(address=nodes.address, configure_logging=False, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def service(cluster: Any) -> Iterator[Any]:
    """Two replicas, one on each node."""
    from tensorpost_server.ray import application, serve

    serve.start("HeadOnly", {"host": "127.0.0.1", "port": PORT})
    serve.run(application({"replicas": 2, "cpus": 0.6, "settings": {"max_held_tensors": MOST}}), route_prefix="/")
    yield cluster
    serve.shutdown()


def port_of(node: Any) -> int:
    """Where the replica of a node listens, when it does."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [port for process in replicas_of(node) for port in ports_of(process)]
        return bool(found)

    until(is_there)
    return found[0]


@pytest.fixture
def ports(service: Any) -> tuple[int, int]:
    """The ports of both replicas, which hold nothing."""
    until(lambda: all(replicas_of(node) for node in service.extra))
    first, second = [port_of(node) for node in service.extra]
    for name in names(first):
        ask(first, "DELETE", f"/v1/tensors/{name}")
    for graph in ask(first, "GET", "/v1/graphs").document["graphs"]:
        ask(first, "DELETE", f"/v1/graphs/{graph['name']}")
    return first, second


@pytest.mark.parametrize("x", [SMALL, LARGE, LARGE[:0]], ids=["small", "large", "empty"])
def test_what_one_replica_holds_the_other_one_has(ports: tuple[int, int], x: np.ndarray[Any, Any]) -> None:
    first, second = ports

    assert put(first, "x", x).status == 201
    assert np.array_equal(get(second, "x").array, x)
    head = ask(second, "HEAD", "/v1/tensors/x")
    assert (head.status, int(head.headers["content-length"])) == (200, len(get(first, "x").body))
    (listed,) = ask(second, "GET", "/v1/tensors").document["tensors"]
    assert (listed["name"], listed["sizes"], listed["size_in_bytes"]) == ("x", [*x.shape], x.nbytes)
    assert 0 <= listed["age_seconds"] < 60
    assert put(second, "x", x).status == 409
    assert np.array_equal(ask(second, "POST", "/v1/onnx/Neg?X=@x").array, -x)
    kept = ask(second, "POST", "/v1/onnx/Neg?X=@x&keep=y")
    assert [each["name"] for each in kept.document["tensors"].values()] == ["y"]
    assert np.array_equal(get(first, "y").array, -x)
    assert ask(second, "DELETE", "/v1/tensors/x").status == 204
    gone = get(first, "x")
    assert (gone.status, gone.document["reason"]) == (410, "deleted")
    assert get(first, "never").status == 404
    assert names(first) == names(second) == ["y"]


def test_after_the_answer_of_a_put_each_replica_has_what_was_put(ports: tuple[int, int]) -> None:
    for turn in range(40):
        here, there = ports if turn % 2 else ports[::-1]
        x = np.full((1 << 8 if turn % 3 else 1 << 16,), turn, np.float32)
        assert put(here, "x", x, "?replace=true").status == (200 if turn else 201)
        assert np.array_equal(get(there, "x").array, x)


def test_a_quota_counts_what_all_replicas_hold(ports: tuple[int, int]) -> None:
    for number in range(MOST):
        assert put(ports[number % 2], f"x{number}", SMALL).status == 201
    for port in ports:
        refused = put(port, "one-more", SMALL)
        assert (refused.status, refused.document["setting"]) == (507, "TENSORPOST_MAX_HELD_TENSORS")
    assert ask(ports[0], "DELETE", "/v1/tensors/x0").status == 204
    assert put(ports[1], "one-more", SMALL).status == 201


def test_half_of_the_object_stores_is_the_limit_of_all(ports: tuple[int, int]) -> None:
    x = np.zeros(150 << 20, np.uint8)
    answers = [put(ports[0], f"x{number}", x) for number in range(5)]
    assert [answer.status for answer in answers] == [201] * 4 + [507]  # three nodes of 400 MiB
    assert "--object-store-memory" in answers[4].document["detail"]
    for number in range(4):
        assert ask(ports[1], "DELETE", f"/v1/tensors/x{number}").status == 204
    until(lambda: put(ports[1], "y", x, "?replace=true").status < 300)


def test_callers_through_the_proxy_find_what_they_hold(ports: tuple[int, int]) -> None:
    """Eight callers at once; each request of one may go to another replica than the request before."""

    def call_again(number: int) -> None:
        with Client(f"http://127.0.0.1:{PORT}") as tp:
            for turn in range(5):
                x = np.full((64, 1024 * (number % 2) + 1), number * 100 + turn, np.float32)
                with tp.put(x) as held:
                    y = tp.multiply(held, -1, keep=True)
                    assert np.array_equal(tp.add(held, held), 2 * x)
                    assert np.array_equal(y[3:5], -x[3:5])

    before = {each: metric(each) for each in ports}
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(call_again, range(8)))
    assert max(metric(each) - before[each] for each in ports) < 200  # so both have answered
    until(lambda: [names(port) for port in ports] == [[], []])
    until(lambda: [held_bytes(port) for port in ports] == [0, 0])  # of the reads that have ended, too


def test_what_one_replica_stores_the_other_one_calls(ports: tuple[int, int]) -> None:
    first, second = ports

    assert store(first, "scaled", 2).status == 201
    assert np.array_equal(call(second, "scaled").array, 2 * SMALL)
    for turn in range(3, 10):
        here, there = ports if turn % 2 else ports[::-1]
        assert store(here, "scaled", turn).status == 200
        assert np.array_equal(call(there, "scaled").array, turn * SMALL)
    assert store(second, "scaled", 20, "?version=2").status == 201
    assert np.array_equal(call(first, "scaled").array, 20 * SMALL)
    assert np.array_equal(call(first, "scaled", "?version=1").array, 9 * SMALL)
    described = [ask(port, "GET", "/v1/graphs/scaled").document for port in ports]
    assert [(each["version"], each["versions"]) for each in described] == [(2, [1, 2])] * 2
    assert ask(first, "DELETE", "/v1/graphs/scaled?version=2").status == 204
    assert np.array_equal(call(second, "scaled").array, 9 * SMALL)
    assert ask(second, "DELETE", "/v1/graphs/scaled").status == 204
    assert call(first, "scaled").status == 404
    for turn in range(10):
        here, there = ports if turn % 2 else ports[::-1]
        assert store(here, "again", turn, "?version=2").status == 201
        assert call(there, "again").status == 200
        assert ask(there if turn % 3 else here, "DELETE", "/v1/graphs/again").status == 204
    for port in ports:
        assert ask(port, "GET", "/v1/limits").document["in_use"] == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_graphs_changed_at_once_are_the_same_in_all_replicas(ports: tuple[int, int]) -> None:
    def versions(port: int) -> list[tuple[int, str]]:
        graphs = ask(port, "GET", "/v1/graphs").document["graphs"]
        return [(each["version"], each["digest"]) for each in graphs if each["name"] == "raced"]

    def change(number: int) -> int:
        port = ports[number % 2]
        if number % 6 == 5:
            return ask(port, "DELETE", "/v1/graphs/raced").status
        return store(port, "raced", 2 + number, f"?version={number % 3 + 1}" if number % 4 else "").status

    with ThreadPoolExecutor(12) as threads:
        for _ in range(6):
            stored = [*threads.map(lambda number: store(ports[number % 2], "raced", 2 + number).status, range(12))]
            assert {*stored} <= {200, 201}
            first, second = [versions(port) for port in ports]
            assert first == second != []
            assert np.array_equal(*[call(port, "raced").array for port in ports])
            assert {*threads.map(change, range(12))} <= {200, 201, 204, 404}
            first, second = [versions(port) for port in ports]
            assert first == second
    ask(ports[0], "DELETE", "/v1/graphs/raced")


def test_the_calls_of_a_graph_are_counted_together(ports: tuple[int, int]) -> None:
    assert store(ports[0], "counted", 2).status == 201
    for port, count in zip(ports, (2, 3), strict=True):
        for _ in range(count):
            assert call(port, "counted").status == 200

    def counts() -> list[int]:
        return [ask(port, "GET", "/v1/graphs").document["graphs"][0]["calls"] for port in ports]

    until(lambda: counts() == [5, 5])  # replicas tell it every few seconds


def test_what_a_replica_has_received_outlives_it(service: Any, ports: tuple[int, int]) -> None:
    first, second = ports
    for name, x in (("small", SMALL), ("large", LARGE)):
        assert put(first, name, x).status == 201
    assert store(first, "graph", 2).status == 201
    (process,) = replicas_of(service.extra[0])
    os.kill(process, signal.SIGKILL)

    began = time.monotonic()
    assert store(second, "another", 3).status == 201
    print(f"\na graph stored after a replica was killed: {time.monotonic() - began:.1f} s")
    assert np.array_equal(get(second, "large").array, LARGE)
    assert np.array_equal(get(second, "small").array, SMALL)
    until(lambda: replicas_of(service.extra[0]) not in ([], [process]))
    new = port_of(service.extra[0])
    until(lambda: answers(new))
    assert np.array_equal(ask(new, "POST", "/v1/onnx/Neg?X=@large").array, -LARGE)
    assert np.array_equal(call(new, "graph").array, 2 * SMALL)
    assert np.array_equal(call(new, "another").array, 3 * SMALL)


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/v2/health/ready").status == 200
    except OSError:
        return False


def test_what_lay_on_a_lost_node_is_gone_and_says_so(service: Any, ports: tuple[int, int]) -> None:
    first, second = ports
    for name in ("read", "unread", "listed"):
        assert put(first, name, LARGE).status == 201
    assert put(first, "small", SMALL).status == 201
    assert put(second, "elsewhere", LARGE).status == 201
    assert np.array_equal(get(second, "read").array, LARGE)  # so this node has a copy
    lost = service.extra.pop(0)
    service.remove_node(lost, allow_graceful=False)

    began = time.monotonic()
    gone = get(second, "unread")
    print(
        f"\na tensor of a killed node: {gone.status} after {time.monotonic() - began:.1f} s: {gone.document['detail']}"
    )
    assert (gone.status, gone.document["reason"]) == (410, "lost")
    assert "was lost with the machine" in gone.document["detail"]
    assert ask(second, "POST", "/v1/onnx/Neg?X=@unread").status == 410
    assert np.array_equal(get(second, "read").array, LARGE)
    assert np.array_equal(get(second, "elsewhere").array, LARGE)
    assert np.array_equal(get(second, "small").array, SMALL)
    until(lambda: names(second) == ["elsewhere", "read", "small"])
    assert put(second, "unread", SMALL).status == 201
    service.extra.insert(0, patiently(lambda: service.add_node(num_cpus=1, object_store_memory=STORE)))


def test_with_the_index_all_is_gone_and_the_service_goes_on(ports: tuple[int, int]) -> None:
    first, second = ports
    until(lambda: answers(first))
    for name in ("known", "unknown"):
        assert put(first, name, LARGE).status == 201
    assert np.array_equal(get(second, "known").array, LARGE)
    assert store(first, "graph", 2).status == 201
    ray.kill(ray.get_actor(INDEX, namespace="tensorpost"))

    gone = get(second, "known")
    assert (gone.status, gone.document["reason"]) == (410, "lost")
    missing = get(first, "unknown")
    assert missing.status == 404
    assert "was lost with the index of this Ray cluster" in missing.document["detail"]
    assert np.array_equal(ask(first, "POST", "/v1/onnx/Neg", SMALL).array, -SMALL)
    assert put(first, "known", LARGE).status == 201
    assert np.array_equal(get(second, "known").array, LARGE)
    until(lambda: [call(port, "graph").status for port in ports] == [404, 404])
    assert store(second, "graph", 3).status == 201
    assert np.array_equal(call(first, "graph").array, 3 * SMALL)


def test_the_time_beside_a_server_without_ray(ports: tuple[int, int]) -> None:
    taken: dict[tuple[str, str], list[float]] = {}
    large = np.ones(64 << 18, np.float32)
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        plain = int(url.rpartition(":")[2])
        for port in (ports[0], plain):
            assert put(port, "x", SMALL).status == 201
            assert put(port, "y", LARGE).status == 201
        calls: dict[str, tuple[str, Any]] = {
            "call with the tensor in the body": ("", SMALL),
            "call with @x, in the index": ("?X=@x", None),
            "call with @y[0], in an object store": ("?X=@y[0]", None),
        }
        for turn in range(240):
            for where, port in (("Ray", ports[turn % 2]), ("plain", plain)):
                for what, (query, body) in calls.items():
                    began = time.perf_counter()
                    answer = ask(port, "POST", f"/v1/onnx/Neg{query}", body)
                    taken.setdefault((where, what), []).append(time.perf_counter() - began)
                    assert answer.status == 200
        for turn in range(9):
            for where, port in (("Ray", ports[turn % 2]), ("plain", plain)):
                began = time.perf_counter()
                answer = put(port, "large", large, "?replace=true")
                taken.setdefault((where, "PUT of 64 MiB"), []).append(time.perf_counter() - began)
                assert answer.status in (200, 201)
                began = time.perf_counter()
                assert put(port, "small", SMALL, "?replace=true").status in (200, 201)
                taken.setdefault((where, "PUT of 48 bytes"), []).append(time.perf_counter() - began)
    for (where, what), seconds in sorted(taken.items(), key=lambda each: each[0][::-1]):
        print(f"\n{what}, {where}: median {statistics.median(seconds) * 1000:.2f} ms of {len(seconds)}", end="")
    print()


def test_the_index_ends_some_time_after_the_last_replica(service: Any) -> None:
    from tensorpost_server.ray import serve

    serve.delete("default")
    until(lambda: not running(serve))
    began = time.monotonic()

    def is_gone() -> bool:
        try:
            ray.get_actor(INDEX, namespace="tensorpost")
        except ValueError:
            return True
        return False

    until(is_gone)
    print(f"\nthe index ended {time.monotonic() - began:.0f} s after the last replica")
