"""Several versions of a model at once: what tritonclient loads and runs, and a folder as Triton's model repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import AppClient, Serving, http_app, serving

from tensorpost.problems import InvalidParameter

triton_http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
triton_grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
onnx = pytest.importorskip("onnx", reason="models for these tests are made by the package onnx")

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
EXPRESSIONS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    1: ("Neg(x)", np.negative),
    2: ("Abs(x)", np.abs),
    3: ("Relu(x)", lambda x: np.maximum(x, 0)),
    10: ("Mul(x, x)", np.square),
}
SIDE = 512
ALL = json.dumps({"version_policy": {"all": {}}})


def model(version: int) -> bytes:
    """The file of a version."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    m (float[n, 3] x) => (float[n, 3] y) {{ y = {EXPRESSIONS[version][0]} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def files(*versions: int) -> dict[str, bytes]:
    return {f"file:{version}/model.onnx": model(version) for version in versions}


def given(module: Any, x: Any = X) -> Any:
    return module.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)


def assert_answers(client: Any, module: Any, name: str, version: int, *, named: bool = True) -> None:
    """The version answers; asked for by its number, or because none is."""
    for _ in range(3):  # the third is replayed
        found = client.infer(name, [given(module)], str(version) if named else "")
        np.testing.assert_array_equal(found.as_numpy("y"), EXPRESSIONS[version][1](X))
        as_dict = {} if module is triton_http else {"as_json": True}
        assert found.get_response(**as_dict)["model_version"] == str(version)


def counts(client: Any, module: Any, name: str, version: str = "") -> dict[str, int]:
    """Successful inferences of each version that the statistics show."""
    said = client.get_inference_statistics(name, version, **({} if module is triton_http else {"as_json": True}))
    return {each["version"]: int(each.get("inference_count", 0)) for each in said["model_stats"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy", grpc_port=0) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: Serving) -> Iterator[tuple[Any, Any]]:
    """A client of either transport, with its module."""
    module = triton_http if request.param == "http" else triton_grpc
    port = server.port if request.param == "http" else server.app.state.grpc_port
    with closing(module.InferenceServerClient(f"127.0.0.1:{port}")) as client:
        yield client, module


# ---- tritonclient ----------------------------------------------------------------------------------------------------


def test_tritonclient_runs_each_version(triton: tuple[Any, Any]) -> None:
    client, module = triton
    as_dict = {} if module is triton_http else {"as_json": True}
    client.load_model("net", config=ALL, files=files(10, 2, 1))
    assert client.get_model_metadata("net", **as_dict)["versions"] == ["1", "2", "10"]
    for version in (1, 2, 10):
        assert client.is_model_ready("net", str(version))
        assert client.get_model_metadata("net", str(version), **as_dict)["name"] == "net"
        assert_answers(client, module, "net", version)
    assert_answers(client, module, "net", 10, named=False)
    assert not client.is_model_ready("net", "3")
    with pytest.raises(Exception, match="'net' has no version '3'; it has the versions 1, 2, 10"):
        client.infer("net", [given(module)], "3")

    index = client.get_model_repository_index(**as_dict)
    entries = index if module is triton_http else index["models"]
    rows = [(each["version"], each["state"]) for each in entries if each["name"] == "net"]
    assert rows == [("1", "READY"), ("2", "READY"), ("10", "READY")]
    config = client.get_model_config("net", **as_dict)
    policy = config.get("config", config)["version_policy"]
    assert [int(each) for each in policy["specific"]["versions"]] == [1, 2, 10]

    client.unload_model("net")
    for version in ("", "1", "10"):
        assert not client.is_model_ready("net", version)
    with pytest.raises(Exception, match="unknown model 'net'"):
        client.infer("net", [given(module)], "1")


def test_statistics_are_by_version(triton: tuple[Any, Any]) -> None:
    client, module = triton
    name = f"counted_{module.__name__.rpartition('.')[2]}"
    client.load_model(name, config=ALL, files=files(1, 2))
    assert_answers(client, module, name, 1)
    for _ in range(2):
        assert_answers(client, module, name, 2, named=False)
    with pytest.raises(Exception, match="has no version"):
        client.infer(name, [given(module)], "3")
    assert counts(client, module, name) == {"1": 3, "2": 6}
    assert counts(client, module, name, "1") == {"1": 3}
    client.load_model(name, config=ALL, files=files(1, 2, 3))
    assert_answers(client, module, name, 3, named=False)
    assert counts(client, module, name) == {"1": 3, "2": 6, "3": 3}
    client.unload_model(name)


def test_the_configuration_chooses_the_versions(triton: tuple[Any, Any]) -> None:
    client, module = triton
    for policy, served in (
        (None, ["10"]),
        ({"latest": {"num_versions": 1}}, ["10"]),
        ({"latest": {"num_versions": 2}}, ["3", "10"]),
        ({"latest": {"num_versions": 9}}, ["1", "3", "10"]),
        ({"specific": {"versions": [3, "1"]}}, ["1", "3"]),
        ({"all": {}}, ["1", "3", "10"]),
    ):
        config = json.dumps({} if policy is None else {"version_policy": policy})
        client.load_model("chosen", config=config, files=files(1, 3, 10))
        for _ in range(2):
            said = client.get_model_metadata("chosen", **({} if module is triton_http else {"as_json": True}))
            assert said["versions"] == served
            # its own configuration, alone or with the same files, changes nothing
            found = client.get_model_config("chosen", **({} if module is triton_http else {"as_json": True}))
            client.load_model("chosen", config=json.dumps(found.get("config", found)))
        assert_answers(client, module, "chosen", int(served[-1]), named=False)
    client.load_model("chosen", config=json.dumps({"version_policy": {"specific": {"versions": [3]}}}))
    assert not client.is_model_ready("chosen", "10")
    assert_answers(client, module, "chosen", 3, named=False)
    client.unload_model("chosen")


def test_a_config_alone_is_of_all_versions(triton: tuple[Any, Any]) -> None:
    client, module = triton
    client.load_model("rows", config=ALL, files=files(1, 2))
    client.load_model("rows", config=json.dumps({"max_batch_size": 1}))
    for version in ("1", "2"):
        said = client.get_model_config("rows", version, **({} if module is triton_http else {"as_json": True}))
        assert said.get("config", said)["max_batch_size"] == 1
        with pytest.raises(Exception, match="at most 1 rows"):
            client.infer("rows", [given(module)], version)
    client.unload_model("rows")


# ---- calls that were planned before ----------------------------------------------------------------------------------


def test_a_new_version_answers_calls_that_name_none(server: Serving) -> None:
    with closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")) as client:
        client.load_model("grows", files=files(1))
        assert_answers(client, triton_http, "grows", 1, named=False)
        assert_answers(client, triton_http, "grows", 1)
        with http_of(server) as app:
            assert app.request("PUT", "/v1/graphs/grows?version=2", content=model(2)).status_code == 201
            assert_answers(client, triton_http, "grows", 1)  # planned again, with the same head as before
            assert_answers(client, triton_http, "grows", 2, named=False)
            assert app.request("DELETE", "/v1/graphs/grows?version=2").status_code == 204
        assert_answers(client, triton_http, "grows", 1, named=False)
        client.unload_model("grows")


def http_of(server: Serving) -> Any:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    return httpx.Client(base_url=server.url)


# ---- dynamic batching ------------------------------------------------------------------------------------------------


def product(factor: int) -> bytes:
    """The file of a version that is not computed at once: the elements of each row in reverse order, times a factor."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    m (float[n, {SIDE}] x) => (float[n, {SIDE}] y) {{ y = MatMul(x, w) }}"""
    found = onnx.parser.parse_model(text)
    weights = factor * np.eye(SIDE, dtype=np.float32)[::-1]
    found.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return found.SerializeToString()


def test_batches_have_calls_of_one_version(server: Serving) -> None:
    batching = {"max_queue_delay_microseconds": 10_000_000}  # each batch begins when it is full
    config = {"version_policy": {"all": {}}, "max_batch_size": 4, "dynamic_batching": batching}

    def ask(call: int) -> Any:
        x = np.full((1, SIDE), call, np.float32)
        with closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")) as client:
            return client.infer("batched", [given(triton_http, x)], str(1 + call % 2)).as_numpy("y")

    with closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")) as client:
        client.load_model(
            "batched", config=json.dumps(config), files={f"file:{each}/model.onnx": product(each) for each in (1, 2)}
        )
        with ThreadPoolExecutor(8) as threads:
            for call, found in enumerate(threads.map(ask, range(8))):
                np.testing.assert_array_equal(found, np.full((1, SIDE), call * (1 + call % 2)))
        entries = server.service.graphs.versions("", "batched")
        assert [(each.version, each.joined_calls, each.batches_computed) for each in entries] == [(1, 4, 1), (2, 4, 1)]
        client.unload_model("batched")


# ---- the folder ------------------------------------------------------------------------------------------------------


def write(folder: Path, path: str, content: bytes) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def versions(app: AppClient, name: str) -> list[str]:
    found = app.get(f"/v2/models/{name}")
    return found.json()["versions"] if found.status_code == 200 else []


def infer(app: AppClient, path: str) -> Any:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}]}
    said = app.request("POST", f"/v2/models/{path}/infer", json=request)
    assert said.status_code == 200, said.text
    return np.float32(said.json()["outputs"][0]["data"]).reshape(X.shape)


def test_a_repository_serves_what_its_policy_says(tmp_path: Path) -> None:
    for version in (1, 2, 3, 10):
        write(tmp_path, f"net/{version}/model.onnx", model(version))
    config = tmp_path / "net/config.json"
    with http_app(backend="numpy", graphs=tmp_path) as app:
        assert versions(app, "net") == ["10"]
        kept = {}
        for policy, served in (
            ({"latest": {"num_versions": 2}}, [3, 10]),
            ({"all": {}}, [1, 2, 3, 10]),
            ({"specific": {"versions": [3, 1]}}, [1, 3]),
        ):
            config.write_text(json.dumps({"version_policy": policy}))
            assert app.request("POST", "/v2/repository/models/net/load").status_code == 200
            assert versions(app, "net") == [str(version) for version in served]
            for version in served:
                np.testing.assert_array_equal(infer(app, f"net/versions/{version}"), EXPRESSIONS[version][1](X))
            np.testing.assert_array_equal(infer(app, "net"), EXPRESSIONS[served[-1]][1](X))
            kept[len(served)] = app.service.admission.bytes_in_flight
        assert kept[2] < kept[4]
        config.write_text(json.dumps({"version_policy": {"specific": {"versions": [4]}}}))
        refused = app.request("POST", "/v2/repository/models/net/load")
        assert refused.status_code == 400
        assert (
            "config.json: config.version_policy names version 4, and the model has the versions 1, 2, 3, 10"
            in (refused.json()["error"])
        )
        assert versions(app, "net") == ["1", "3"]
        config.unlink()
        app.service.graphs.reload()
        assert versions(app, "net") == ["10"]
        write(tmp_path, "net/11/model.onnx", model(2))
        app.service.graphs.reload()
        np.testing.assert_array_equal(infer(app, "net"), np.abs(X))
    assert app.service.admission.bytes_in_flight == 0


def test_a_broken_version_that_is_not_served_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "net/1/model.onnx", b"nothing")
    write(tmp_path, "net/2/model.onnx", model(2))
    with http_app(backend="numpy", graphs=tmp_path) as app:
        np.testing.assert_array_equal(infer(app, "net"), np.abs(X))
    write(tmp_path, "net/config.json", ALL.encode())
    with pytest.raises(InvalidParameter, match=r"1.model\.onnx"), http_app(backend="numpy", graphs=tmp_path):
        pass


def test_a_configuration_is_compared_with_each_version(tmp_path: Path) -> None:
    write(tmp_path, "net/1/model.onnx", model(1))
    write(tmp_path, "net/2/other.onnx", model(2))
    write(tmp_path, "net/config.json", b'{"version_policy": {"all": {}}, "default_model_filename": "model.onnx"}')
    with (
        pytest.raises(InvalidParameter, match=r"config\.json.*default_model_filename"),
        http_app(backend="numpy", graphs=tmp_path),
    ):
        pass
