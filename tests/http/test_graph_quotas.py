"""A key's quotas count a graph: a request for each node, and the bytes that travel."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tests.support.http_app import FRAME, JSON, NPY, assert_problem, http_app, npy_bytes, request_bytes, serving
from tests.support.watched_steps import chain, tensor_in_json

from tensorpost.bodies.frame import encode_head
from tensorpost.values.datatypes import data_type
from tensorpost_server import commands
from tensorpost_server.http.access import access_control

ONE = {"tensors": {"x": tensor_in_json(1)}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the clock of the quotas shows."""
    seconds = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: seconds[0], time=time.time)
    monkeypatch.setattr(access_control, "time", clock)
    return seconds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def key(file: Path, *, requests_per_minute: int | None = None, bytes_per_minute: int | None = None) -> dict[str, str]:
    made = commands.add_key(file, "anna", requests_per_minute=requests_per_minute, bytes_per_minute=bytes_per_minute)
    return {"authorization": f"Bearer {made}"}


def test_a_node_counts_as_a_request(file: Path, now: list[float]) -> None:
    headers = {**JSON, **key(file, requests_per_minute=6)}
    with http_app(keys_file=file) as app:

        def ask(graph: Any) -> Any:
            return app.post("/v1/graphs", json.dumps({"graph": graph, **ONE}), headers)

        assert ask(chain("a", "b", "c", "d")).status_code == 200  # of 6, 2 are left
        assert ask(chain("a", "b", "c", "d")).status_code == 200  # 2 too many
        refused = ask(chain("a"))
        assert assert_problem(refused, 429, "quota-exceeded")["retry_after_seconds"] == 30  # 3, one each 10 s
        now[0] += 30
        assert [ask(chain("a")).status_code for _ in range(2)] == [200, 429]


def test_a_refused_graph_counts_as_one_request(file: Path, now: list[float]) -> None:
    headers = {**JSON, **key(file, requests_per_minute=3)}
    broken = chain("a", "b", "c", "d") | {"outputs": {"y": "e"}}
    with http_app(keys_file=file) as app:
        found = [app.post("/v1/graphs", json.dumps({"graph": broken, **ONE}), headers).status_code for _ in range(4)]
    assert found == [422, 422, 422, 429]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that the protocol could replay, whether it was."""
    done, replay = list[bool](), access_control.AccessControl._replay

    def watched(self: access_control.AccessControl, *arguments: Any) -> Any:
        response = replay(self, *arguments)
        done.append(response is not None)
        return response

    monkeypatch.setattr(access_control.AccessControl, "_replay", watched)
    return done


def test_replays_count_their_nodes(file: Path, now: list[float], replayed: list[bool]) -> None:
    """Also where another graph of as many bytes came with the same HTTP head before."""
    heads = [
        encode_head([("x", data_type("float32"), (2,))], {"graph": json.dumps(graph)})
        for graph in (chain("a", "b"), chain("x" * 41))
    ]
    assert len(heads[0]) == len(heads[1])
    headers = {**FRAME, **key(file, requests_per_minute=20)}
    two, one = [request_bytes("POST", "/v1/graphs", head + bytes(8), headers) for head in heads]
    with serving(keys_file=file) as server, server.wire() as wire:

        def ask(request: bytes) -> int:
            wire.send(request)
            return wire.answer().status

        found = [ask(request) for request in (two, two, one, one, two, two, two, two, two, two, two, two)]
    assert found == [200] * 11 + [429]  # 2, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20
    assert replayed[-3:] == [True, True, False]


def test_graphs_at_once_do_not_exceed_a_quota_together(file: Path, now: list[float]) -> None:
    path = f"/v1/graphs?graph={quote(json.dumps(chain('a', 'b', 'c', 'd')))}"
    request = request_bytes("POST", path, npy_bytes([1, 2]), {**NPY, **key(file, requests_per_minute=3)})
    with serving(keys_file=file) as server, server.wire() as one, server.wire() as two:
        for wire in (one, two):
            wire.send(request[:-4])
        time.sleep(0.3)  # both are let in, and take one request each
        one.send(request[-4:])
        two.send(request[-4:])
        answers = [one.answer(), two.answer()]
    assert sorted([answer.status for answer in answers]) == [200, 429]
    (refused,) = [answer for answer in answers if answer.status == 429]
    assert "used up its 3 requests a minute" in assert_problem(refused, 429, "quota-exceeded")["detail"]


def test_only_bytes_that_travel_count(file: Path, now: list[float]) -> None:
    """An intermediate result of 4 MiB, of which 8 bytes come back."""
    nodes = [
        {"name": "wide", "op_type": "Tile", "inputs": {"input": "x", "repeats": [1, 1 << 19]}},
        {"name": "sum", "op_type": "ReduceSum", "inputs": {"data": "wide", "axes": [1]}},
    ]
    graph = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "sum"}}
    body = npy_bytes(np.ones((2, 1), np.float32))
    path = f"/v1/graphs?graph={quote(json.dumps(graph))}"
    answer_bytes = len(npy_bytes(np.ones((2, 1), np.float32)))
    headers = {**NPY, **key(file, bytes_per_minute=3 * (len(body) + answer_bytes) - 1)}
    with http_app(keys_file=file) as app:
        found = [app.post(path, body, headers) for _ in range(4)]
    assert [answer.status_code for answer in found] == [200, 200, 200, 429]
    assert {len(answer.content) for answer in found[:3]} == {answer_bytes}
