"""Nodes that end ONNX Runtime, or have it take memory and time that no tensor announces: the server goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.attacks.test_work_attacks import slowest_health_check
from tests.support.http_app import PATIENCE, eventually
from tests.support.live_server import live_process
from tests.support.processes import descendants, remaining

pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")

FRAME = {"content-type": "application/vnd.safetensors"}
MIB = 1 << 20
BUDGET = 1024 * MIB
ONES = np.ones((1, 1, 8, 8), np.float32)
KERNEL = 1_500_000
ENDLESS = f"/v1/onnx/LpPool?opset=11&kernel_shape={KERNEL}&pads={KERNEL - 1},{KERNEL - 1}"
"""A window of one and a half million elements, of which 700 are not padding, at as many places."""

Server = tuple[httpx.Client, int]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        live_process(TENSORPOST_MEMORY_BYTES=BUDGET, TENSORPOST_MAX_SECONDS=5, TENSORPOST_NUMPY_THREADS=2) as (
            url,
            pid,
        ),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client, pid


def run(client: httpx.Client, path: str, tensors: Mapping[str, Any] | None = None) -> httpx.Response:
    return client.post(f"/v1/onnx/{path}", content=save(dict(tensors or {})), headers=FRAME)


def resident(process: int) -> int:
    """Memory of a process and of those that it started, bytes; what they share counts in each."""
    total = 0
    for pid in (process, *descendants(process)):
        with suppress(OSError), open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 # read often
            total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and reason."""
    document = answer.json()
    return answer.status_code, document["type"].rpartition(":")[2], document.get("reason", "")


@pytest.mark.parametrize(
    ("path", "tensors"),
    [
        ("RandomUniform?opset=1&shape=3&low=1&high=-1", {}),
        ("RandomUniformLike?opset=1&low=1&high=-1", {"input": np.ones(3, np.float32)}),
        ("RandomNormal?opset=1&shape=3&scale=-1", {}),
        ("RandomNormalLike?opset=1&scale=0", {"input": np.ones(3, np.float32)}),
    ],
)
def test_a_node_that_trips_an_assertion_ends_its_process_only(
    server: Server, path: str, tensors: Mapping[str, Any]
) -> None:
    client, _ = server
    method = run if tensors else lambda client, path: client.post(f"/v1/onnx/{path}")  # no body: 108 bytes in all

    seen = [problem(method(client, path, *([tensors] if tensors else []))) for _ in range(3)]

    assert seen == [(422, "library-failed", "ended")] * 2 + [(422, "library-failed", "refused")]
    assert client.get("/v2/health/live").status_code == 200
    assert run(client, "Det", {"X": np.eye(2, dtype=np.float32)}).status_code == 200


def test_the_server_itself_loads_neither_library(server: Server) -> None:
    client, pid = server
    assert run(client, "Det", {"X": np.eye(2, dtype=np.float32)}).status_code == 200

    for process, loaded in ((pid, False), *[(child, True) for child in descendants(pid)]):
        maps = Path(f"/proc/{process}/maps").read_text("ascii", "replace")
        assert ("/onnxruntime/" in maps or "/onnx/" in maps) == loaded

    devices = client.get("/v1/devices").json()["libraries"]
    assert {library["name"]: library["processes"] >= 1 for library in devices} == {
        "onnx": True, "onnxruntime": True, "pillow": False,
    }  # fmt: skip
    assert 'tensorpost_library_processes{library="onnxruntime"}' in client.get("/metrics").text


def test_a_constant_by_value_is_not_computed_before_admission(server: Server) -> None:
    """Its size stands in the query: 14 refused requests of 246 bytes made the server grow by 5.4 GB."""
    client, pid = server
    assert run(client, "Det", {"X": np.eye(2, dtype=np.float32)}).status_code == 200
    before = resident(pid)

    statuses: set[int] = set()
    for index in range(14):
        node = {"opset": 17, "inputs": {"size": [100_000_000 + index]}}
        body = save({}, {"op": json.dumps(node)})
        statuses.add(client.post("/v1/onnx/HannWindow", content=body, headers=FRAME).status_code)

    assert statuses == {413}
    assert resident(pid) - before < 100 * MIB


def test_validating_a_constant_by_value_computes_nothing(server: Server) -> None:
    client, pid = server
    before = resident(pid)

    def attack(client: httpx.Client) -> list[httpx.Response]:
        documents = [{"op_type": "HannWindow", "opset": 17, "inputs": {"size": [100_000_000 + n]}} for n in range(3)]
        json_type = {"content-type": "application/json"}
        return [client.post("/v1/validate", content=json.dumps(node), headers=json_type) for node in documents]

    answers, slowest = slowest_health_check(str(client.base_url), attack)

    assert all(answer.json()["valid"] for answer in answers)
    assert slowest < 2  # it was 5 s, on an idle machine 1.5 s
    assert resident(pid) - before < 100 * MIB


@pytest.mark.parametrize(
    ("query", "roi", "expected"),
    [
        ("sampling_ratio=160", [0, 0, 4, 4], {(413, "limit-exceeded", "")}),
        # How many samples there are is said by a tensor, so its process meets a limit, of memory or of time.
        ("sampling_ratio=0", [0, 0, 1e6, 1e6], {(422, "library-failed", "memory"), (413, "limit-exceeded", "")}),
    ],
)
def test_samples_of_a_region_take_no_more_than_the_budget(
    server: Server, query: str, roi: list[float], expected: set[tuple[int, str, str]]
) -> None:
    client, pid = server
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    tensors = {
        "X": np.ones((1, 1, 4, 4), np.float32), "rois": np.array([roi], np.float32), "batch_indices": np.zeros(1, "i8")
    }  # fmt: skip
    answer = run(client, f"RoiAlign?opset=16&output_height=64&output_width=64&{query}", tensors)
    done.set()
    watcher.join()

    assert problem(answer) in expected, answer.text
    assert peak[0] < BUDGET
    assert (
        run(client, "RoiAlign?opset=16&sampling_ratio=2", tensors | {"rois": np.ones((1, 4), "f4")}).status_code == 200
    )


def test_windows_count_in_the_work_that_is_refused(server: Server) -> None:
    """Two requests of a few KB held every thread for longer than TENSORPOST_MAX_SECONDS."""
    client, _ = server
    for path in (ENDLESS, ENDLESS.replace("LpPool?opset=11", "MaxPool?opset=12&outputs=2")):
        answer = client.post(path, content=save({"X": np.ones((1, 1, 700), "f4")}), headers=FRAME)

        assert problem(answer)[0] == 413, answer.text
        assert "TENSORPOST_MAX_WORK" in answer.text


# ---- several nodes in one call ---------------------------------------------------------------------------------------


def partition(
    client: httpx.Client, nodes: list[dict[str, Any]], tensors: Mapping[str, Any], fields: Mapping[str, str] = FRAME
) -> httpx.Response:
    """A graph of nodes that ONNX Runtime computes together."""
    read = {name for node in nodes for name in node["inputs"]}
    document = {
        "inputs": {name: {} for name in tensors}, "nodes": nodes,
        "outputs": {node["name"]: node["name"] for node in nodes if node["name"] not in read},
    }  # fmt: skip
    return client.post("/v1/graphs", content=save(dict(tensors), {"graph": json.dumps(document)}), headers=fields)


def node(name: str, op_type: str, *inputs: str, opset: int = 17, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "op_type": op_type, "opset": opset, "inputs": [*inputs], "attributes": attributes}


def test_a_partition_that_trips_an_assertion_ends_its_process_only(server: Server) -> None:
    client, _ = server
    nodes = [
        node("pooled", "MaxPool", "x", kernel_shape=[2, 2]),
        node("noise", "RandomNormalLike", "pooled", scale=0.0),
    ]

    seen = [problem(partition(client, nodes, {"x": ONES})) for _ in range(3)]

    assert seen == [(422, "library-failed", "ended")] * 2 + [(422, "library-failed", "refused")]
    assert client.get("/v2/health/live").status_code == 200
    nodes[1] = node("noise", "RandomNormalLike", "pooled", scale=1.0)
    assert partition(client, nodes, {"x": ONES}).status_code == 200


def test_what_goes_between_the_nodes_of_a_partition_is_admitted(server: Server) -> None:
    """Of 64 KiB a tensor of 1 GiB between two convolutions, which makes 64 KiB again."""
    client, pid = server
    x = np.ones((1, 1, 128, 128), np.float32)
    wide, narrow = np.ones((16_384, 1, 1, 1), "f4"), np.ones((1, 16_384, 1, 1), "f4")
    before = resident(pid)

    answer = partition(
        client, [node("wide", "Conv", "x", "a"), node("narrow", "Conv", "wide", "b")], {"x": x, "a": wide, "b": narrow}
    )

    assert problem(answer)[:2] == (413, "limit-exceeded"), answer.text
    assert "TENSORPOST_MEMORY_BYTES" in answer.text
    assert resident(pid) - before < 100 * MIB


def test_a_partition_ends_with_its_caller() -> None:
    """Windows of one and a half million elements at as many places, and one node more: hours."""
    nodes = [
        node("p", "LpPool", "x", opset=11, kernel_shape=[KERNEL], pads=[KERNEL - 1, KERNEL - 1]),
        node("q", "MaxPool", "p", opset=11, kernel_shape=[2]),
    ]
    settings = {"MAX_SECONDS": 86_400, "MAX_WORK": 10**15, "NUMPY_THREADS": 1}
    with (
        live_process("", **{f"TENSORPOST_{name}": value for name, value in settings.items()}) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        assert run(client, "Det", {"X": np.eye(2, dtype=np.float32)}).status_code == 200  # the processes have started

        late = partition(client, nodes, {"x": np.ones((1, 1, 700), np.float32)}, FRAME | {"prefer": "wait=2"})

        assert problem(late)[:2] == (504, "deadline-exceeded"), late.text
        libraries = client.get("/v1/devices").json()["libraries"]
        assert [each["ended"]["abandoned"] for each in libraries if each["name"] == "onnxruntime"] == [1]
        assert client.get("/v2/health/live").status_code == 200


@pytest.mark.parametrize(
    ("path", "tensors"),
    [
        ("MaxPool?opset=22&kernel_shape=2,2&ceil_mode=2", {"X": ONES}),
        ("MaxPool?opset=22&kernel_shape=3,3&strides=2,2&ceil_mode=2", {"X": ONES}),
        ("AveragePool?opset=22&kernel_shape=2,2&auto_pad=SAME_UPPER&pads=1,1,1,1", {"X": ONES}),
        ("MaxPool?opset=22&kernel_shape=2,2&auto_pad=SAME_UPPER&pads=1,1,1,1", {"X": ONES}),
        ("ConvTranspose?opset=22&output_shape=1000,1000", {"X": ONES, "W": np.ones((1, 1, 3, 3), "f4")}),
        ("ConvTranspose?opset=22&output_shape=-3,4", {"X": ONES, "W": np.ones((1, 1, 3, 3), "f4")}),
        ("STFT?opset=17&frame_step=&frame_length=4", {"signal": np.ones((1, 16, 1), "f4")}),
        ("STFT?opset=17&frame_step=0&frame_length=4", {"signal": np.ones((1, 16, 1), "f4")}),
    ],
)
def test_what_inference_and_onnx_runtime_disagree_on_is_refused(
    server: Server, path: str, tensors: Mapping[str, Any]
) -> None:
    """Some versions of ONNX Runtime take some of these; then the shape is the one that was inferred."""
    client, _ = server

    answer = run(client, path, tensors)

    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        node = {"op_type": path.partition("?")[0], "opset": 22, "attributes": {}, "inputs": {}}
        assert load(answer.content)["output"].size, node
    assert client.get("/v2/health/live").status_code == 200


def test_sigterm_ends_a_server_whose_process_computes() -> None:
    """A computation of hours: its process ends at the caller's deadline; SIGTERM ends the server while it runs."""
    settings = {"MAX_SECONDS": 86_400, "MAX_WORK": 10**15, "SHUTDOWN_SECONDS": 1, "NUMPY_THREADS": 1}
    with live_process("", **{f"TENSORPOST_{name}": value for name, value in settings.items()}) as (url, pid):
        with httpx.Client(base_url=url, timeout=60) as client:
            assert (
                run(client, "Det", {"X": np.eye(2, dtype=np.float32)}).status_code == 200
            )  # the processes have started
            body = save({"X": np.ones((1, 1, 700), "f4")})
            late = client.post(ENDLESS, content=body, headers=FRAME | {"prefer": "wait=2"})
            assert problem(late)[:2] == (504, "deadline-exceeded"), late.text
            libraries = client.get("/v1/devices").json()["libraries"]
            assert [each["ended"]["abandoned"] for each in libraries if each["name"] == "onnxruntime"] == [1]
        children = compute_endlessly(url, pid)

        os.kill(pid, signal.SIGTERM)

        assert not remaining(children, PATIENCE)
        eventually(lambda: not alive(pid), "the server has ended")


def test_a_server_that_is_killed_leaves_no_process() -> None:
    settings = {"MAX_SECONDS": 86_400, "MAX_WORK": 10**15, "ONNX_AHEAD": 1}
    with live_process("", **{f"TENSORPOST_{name}": value for name, value in settings.items()}) as (url, pid):
        children = compute_endlessly(url, pid)
        assert len(children) == 3  # one for the package onnx

        os.kill(pid, signal.SIGKILL)

        assert not remaining(children, PATIENCE)


def compute_endlessly(url: str, server: int) -> set[int]:
    """Have a node computed that takes hours; the server's processes, when one is at it."""

    def call() -> None:
        with suppress(httpx.HTTPError):
            httpx.post(url + ENDLESS, content=save({"X": np.ones((1, 1, 700), "f4")}), headers=FRAME, timeout=120)

    threading.Thread(target=call, daemon=True).start()
    busy = 1.5  # processor seconds; starting takes less than one
    eventually(lambda: any(processor_seconds(child) > busy for child in descendants(server)), "a node is computed", 90)
    return descendants(server)


def processor_seconds(process: int) -> float:
    """Processor time that a process has used; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:  # noqa: PTH123 # read often
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alive(process: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:  # noqa: PTH123 # read often
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
