"""Versions of stored graphs over `/v1`: stored beside each other, called by number or as the newest, deleted."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, NPY, AppClient, assert_problem, http_app, npy_bytes

X = np.array([[1, -2, 3]], np.float32)
RESULTS = {"Neg": -X, "Abs": np.abs(X), "Relu": np.maximum(X, 0)}


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def store(app: AppClient, target: str, op_type: str) -> Any:
    graph = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", 3]}},
        "nodes": [{"name": "y", "op_type": op_type, "inputs": ["x"]}],
        "outputs": {"y": "y"},
    }
    return app.request("PUT", f"/v1/graphs/{target}", content=json.dumps(graph).encode(), headers=JSON)


def call(app: AppClient, target: str) -> Any:
    file = io.BytesIO()
    np.save(file, X)
    return app.post(f"/v1/graphs/{target}", file.getvalue(), NPY)


def assert_computes(app: AppClient, target: str, op_type: str) -> None:
    for _ in range(3):  # the third is replayed, where the server replays
        said = call(app, target)
        assert said.status_code == 200, said.text
        np.testing.assert_array_equal(np.load(io.BytesIO(said.content)), RESULTS[op_type])


def listed(app: AppClient) -> list[tuple[str, int]]:
    return [(each["name"], each["version"]) for each in app.get("/v1/graphs").json()["graphs"]]


def test_versions_are_stored_beside_each_other(app: AppClient) -> None:
    first = store(app, "net", "Neg")
    assert (first.status_code, first.headers["location"], first.json()["version"]) == (201, "/v1/graphs/net", 1)
    assert_computes(app, "net", "Neg")
    second = store(app, "net?version=3", "Abs")
    assert (second.status_code, second.headers["location"]) == (201, "/v1/graphs/net?version=3")
    assert (second.json()["version"], second.json()["versions"]) == (3, [1, 3])
    assert store(app, "net?version=2", "Relu").status_code == 201
    assert listed(app) == [("net", 1), ("net", 2), ("net", 3)]

    assert_computes(app, "net", "Abs")
    for version, op_type in (("1", "Neg"), ("2", "Relu"), ("3", "Abs")):
        assert_computes(app, f"net?version={version}", op_type)
        said = app.get(f"/v1/graphs/net?version={version}").json()
        assert (said["version"], said["versions"]) == (int(version), [1, 2, 3])
        assert said["document"]["nodes"][0]["op_type"] == op_type
    assert app.get("/v1/graphs/net").json()["version"] == 3

    assert store(app, "net?version=2", "Neg").status_code == 200
    assert_computes(app, "net?version=2", "Neg")
    assert_computes(app, "net", "Abs")


def test_an_unknown_version_names_those_that_exist(app: AppClient) -> None:
    store(app, "net", "Neg")
    store(app, "net?version=4", "Abs")
    for method in ("GET", "POST", "DELETE"):
        for version in ("2", "01", "x", "-1"):
            problem = assert_problem(app.request(method, f"/v1/graphs/net?version={version}"), 404, "graph-not-found")
            assert problem["detail"] == f"the stored graph 'net' has no version '{version}'; it has the versions 1, 4"
            assert problem["versions"] == [1, 4]
    problem = assert_problem(call(app, "nets?version=1"), 404, "graph-not-found")
    assert "did you mean 'net'?" in problem["detail"]


def test_deleting_a_version_and_all_of_them(app: AppClient) -> None:
    for version, op_type in ((1, "Neg"), (2, "Abs"), (3, "Relu")):
        store(app, f"net?version={version}", op_type)
    assert_computes(app, "net", "Relu")
    assert app.request("DELETE", "/v1/graphs/net?version=3").status_code == 204
    assert_computes(app, "net", "Abs")
    assert app.request("DELETE", "/v1/graphs/net").status_code == 204
    assert listed(app) == []
    assert app.service.admission.bytes_in_flight == 0
    assert_problem(call(app, "net?version=1"), 404, "graph-not-found")


def test_storing_without_a_version_replaces_all(app: AppClient) -> None:
    store(app, "net", "Neg")
    alone = app.service.admission.bytes_in_flight
    store(app, "net?version=2", "Abs")
    replaced = store(app, "net", "Neg")
    assert (replaced.status_code, replaced.json()["versions"]) == (200, [1])
    assert_computes(app, "net", "Neg")
    assert app.service.admission.bytes_in_flight == alone


@pytest.mark.parametrize("target", ["net", "net?version=2"])
def test_rows_of_another_version_are_not_the_rest_of_an_answer(app: AppClient, target: str) -> None:
    store(app, "net", "Neg")
    body = npy_bytes(np.tile(X, (4, 1)))
    tag = app.post("/v1/graphs/net?rows=0:1", body, NPY).headers["etag"]
    same = app.post("/v1/graphs/net?rows=1:3", body, {**NPY, "if-range": tag})
    assert (same.status_code, same.headers["etag"]) == (200, tag)
    store(app, target, "Abs")
    assert_problem(app.post("/v1/graphs/net?rows=1:3", body, {**NPY, "if-range": tag}), 412, "call-changed")


@pytest.mark.parametrize("version", ["0", "01", "-1", "1.0", "x", "", "2147483648", "\u00b2"])
def test_a_version_that_cannot_be_stored(app: AppClient, version: str) -> None:
    problem = assert_problem(store(app, f"net?version={version}", "Neg"), 400, "invalid-parameter")
    assert "it must be a whole number from 1 to 2,147,483,647" in problem["detail"]
    assert listed(app) == []


def test_a_digest_has_no_versions(app: AppClient) -> None:
    content = json.dumps({"inputs": {"x": {}}, "nodes": [], "outputs": {}}).encode()
    refused = app.request("PUT", "/v1/graphs?version=2", content=content, headers=JSON)
    assert "a version needs a name" in assert_problem(refused, 400, "invalid-parameter")["detail"]


def test_each_version_counts_under_the_limits() -> None:
    with http_app(backend="numpy", max_stored_graphs=2) as app:
        store(app, "net", "Neg")
        assert store(app, "net?version=2", "Abs").status_code == 201
        refused = assert_problem(store(app, "net?version=3", "Relu"), 413, "limit-exceeded")
        assert "TENSORPOST_MAX_STORED_GRAPHS" in refused["detail"]
        assert store(app, "net?version=2", "Relu").status_code == 200
        assert store(app, "net", "Neg").status_code == 200
        assert store(app, "other", "Neg").status_code == 201


def test_versions_that_nobody_calls_are_dropped(app: AppClient) -> None:
    store(app, "net", "Neg")
    store(app, "net?version=2", "Abs")
    assert_computes(app, "net", "Abs")
    newest = app.service.graphs.find("", "net")
    newest.used -= 2 * app.service.settings.stored_graph_idle_seconds
    assert_computes(app, "net", "Neg")
    assert listed(app) == [("net", 1)]


def test_a_version_of_the_server_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(
        json.dumps({"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": ["x"]}],
                    "outputs": {"y": "y"}}))  # fmt: skip
    with http_app(backend="numpy", graphs=tmp_path) as app:
        assert_computes(app, "net?version=1", "Neg")
        assert_problem(store(app, "net?version=2", "Abs"), 405, "method-not-allowed")
        assert_problem(app.request("DELETE", "/v1/graphs/net?version=1"), 405, "method-not-allowed")


@pytest.mark.parametrize(("method", "target"), [("DELETE", "net"), ("PUT", "net?version=2")])
def test_a_call_that_was_under_way_is_not_planned_for_later(app: AppClient, method: str, target: str) -> None:
    """Its plan would hold the weights of a graph that is gone, or answer for a version that is not the newest."""
    store(app, "net", "Neg")
    document = app.get("/v1/graphs/net").json()["document"]
    file = io.BytesIO()
    np.save(file, X)
    content = file.getvalue()

    async def changed_meanwhile() -> Any:
        async def body() -> AsyncIterator[bytes]:
            changed = await app.client.request(method, f"/v1/graphs/{target}", content=json.dumps(document).encode())
            assert changed.status_code in (201, 204)
            yield content

        headers = {**NPY, "content-length": str(len(content))}
        return await app.client.post("/v1/graphs/net", content=body(), headers=headers)

    said = app.run(changed_meanwhile())
    np.testing.assert_array_equal(np.load(io.BytesIO(said.content)), -X)
    assert [prepared.stored for _, prepared in app.service.calls.items() if prepared.stored is not None] == []


def test_the_parameter_is_refused_where_it_means_nothing(app: AppClient) -> None:
    store(app, "net", "Neg")
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}],
               "parameters": {"version": "1"}}  # fmt: skip
    refused = app.request("POST", "/v2/models/net/infer", json=request)
    assert refused.status_code == 400
    assert "'version'" in refused.json()["error"]
