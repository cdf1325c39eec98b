"""Models that Triton's clients load, and a folder as Triton's model repository."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import AppClient, Serving, http_app, serving

from tensorpost.problems import InvalidParameter
from tensorpost_server import commands

triton_http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
triton_grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
onnx = pytest.importorskip("onnx", reason="models for these tests are made by the package onnx")

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def model(expression: str = "Neg(x)", sizes: str = "n, 3") -> bytes:
    """The file of a model of one node."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    m (float[{sizes}] x) => (float[{sizes}] y) {{ y = {expression} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def given(module: Any) -> Any:
    return module.InferInput("x", list(X.shape), "FP32").set_data_from_numpy(X)


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


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def load(app: AppClient, name: str, parameters: dict[str, Any] | None = None, **options: Any) -> Any:
    body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
    return app.request("POST", f"/v2/repository/models/{name}/load", content=body, **options)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def infer(app: AppClient, name: str, **options: Any) -> Any:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}]}
    return app.request("POST", f"/v2/models/{name}/infer", json=request, **options)


def answer(app: AppClient, name: str) -> Any:
    said = infer(app, name)
    assert said.status_code == 200, said.text
    return np.float32(said.json()["outputs"][0]["data"]).reshape(X.shape)


# ---- tritonclient ----------------------------------------------------------------------------------------------------


def test_tritonclient_loads_a_model_with_its_configuration(triton: tuple[Any, Any]) -> None:
    client, module = triton
    config = {
        "name": "loaded", "platform": "onnxruntime_onnx", "backend": "onnxruntime", "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3], "format": "FORMAT_NONE"}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["-1", "3"]}],
        "version_policy": {"latest": {"num_versions": 1}}, "instance_group": [], "parameters": {},
    }  # fmt: skip
    client.load_model("loaded", config=json.dumps(config), files={"file:3/model.onnx": model()})
    assert client.is_model_ready("loaded")
    assert client.is_model_ready("loaded", "3")
    assert not client.is_model_ready("loaded", "1")
    for version in ("", "3"):
        found = client.infer("loaded", [given(module)], version)
        np.testing.assert_array_equal(found.as_numpy("y"), -X)
    as_dict = {} if module is triton_http else {"as_json": True}
    assert found.get_response(**as_dict)["model_version"] == "3"
    assert client.get_model_metadata("loaded", **as_dict)["versions"] == ["3"]
    (counts,) = client.get_inference_statistics("loaded", **as_dict)["model_stats"]
    assert counts["version"] == "3"
    index = client.get_model_repository_index(**as_dict)
    entries = index if module is triton_http else index["models"]
    assert {"name": "loaded", "version": "3"} in [
        {key: each.get(key) for key in ("name", "version")} for each in entries
    ]

    client.load_model("loaded", files={"file:4/model.onnx": model("Abs(x)")})
    np.testing.assert_array_equal(client.infer("loaded", [given(module)], "4").as_numpy("y"), np.abs(X))
    with pytest.raises(Exception, match="no version '3'; it has version 4 only"):
        client.infer("loaded", [given(module)], "3")
    client.load_model("loaded")
    client.unload_model("loaded")
    with pytest.raises(Exception, match="unknown model 'loaded'"):
        client.infer("loaded", [given(module)])


def test_its_own_configuration_can_be_loaded_again(triton: tuple[Any, Any]) -> None:
    client, module = triton
    client.load_model("again", files={"file:1/model.onnx": model()})
    said = client.get_model_config("again", **({} if module is triton_http else {"as_json": True}))
    said = said.get("config", said)
    client.load_model("again", config=json.dumps(said), files={"file:1/model.onnx": model()})
    np.testing.assert_array_equal(client.infer("again", [given(module)]).as_numpy("y"), -X)


def test_a_file_larger_than_a_message_without_tensors(triton: tuple[Any, Any]) -> None:
    client, module = triton
    rows = 1 << 16
    table = onnx.helper.make_tensor(
        "w", onnx.TensorProto.FLOAT, [rows, 3], np.ones((rows, 3), np.float32).tobytes(), True
    )
    graph = onnx.parser.parse_graph("m (int64[2] i) => (float[2, 3] y) { y = Gather(w, i) }")
    graph.initializer.append(table)
    file = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    client.load_model("table", files={"file:1/model.onnx": file.SerializeToString()})
    tensor = module.InferInput("i", [2], "INT64").set_data_from_numpy(np.array([0, rows - 1]))
    np.testing.assert_array_equal(client.infer("table", [tensor]).as_numpy("y"), np.ones((2, 3)))
    client.unload_model("table")


def test_a_refused_file_is_named_in_the_clients_own_exception(triton: tuple[Any, Any]) -> None:
    client, _ = triton
    for files, says in (
        ({"file:1/model.onnx": b"nothing"}, "model"),
        ({"file:1/model.plan": model()}, "file:VERSION/NAME"),
        ({"file:0/model.onnx": model()}, "file:VERSION/NAME"),
        ({"file:1/../model.onnx": model()}, "file:VERSION/NAME"),
        (
            {"file:1/model.onnx": model(), "file:01/weights.onnx": model()},
            "loaded from one file, and version 1 has two",
        ),
    ):
        with pytest.raises(Exception, match=says):
            client.load_model("refused", files=files)
    assert not client.is_model_ready("refused")


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"name": "other"}, "config.name"),
        ({"platform": "tensorrt_plan"}, "config.platform"),
        ({"backend": "python"}, "config.backend"),
        ({"instance_group": [{"count": 2}]}, "instance_group"),
        ({"input": [{"name": "z"}]}, r"config.input\[0\].name"),
        ({"input": [{"name": "x", "data_type": "TYPE_INT8"}]}, "TYPE_FP32"),
        ({"input": [{"name": "x", "dims": [2, 3]}]}, r"\[-1, 3\]"),
        ({"output": [{"name": "y", "reshape": {"shape": [1]}}]}, "reshape"),
        ({"max_batch_size": -1}, "config.max_batch_size"),
        ({"max_batch_size": 4, "input": [{"name": "x", "dims": [-1, 3]}]}, "without the first size"),
        ({"version_policy": {"latest": {"num_versions": 0}}}, "config.version_policy"),
        ({"version_policy": {"latest": {"count": 2}}}, "config.version_policy"),
        ({"version_policy": {"latest": 2}}, "config.version_policy"),
        ({"version_policy": {"latest": {}, "all": {}}}, "config.version_policy"),
        ({"version_policy": {"newest": {}}}, "config.version_policy"),
        ({"version_policy": {"specific": {}}}, "config.version_policy"),
        ({"version_policy": {"specific": {"versions": []}}}, "config.version_policy"),
        ({"version_policy": {"specific": {"versions": [2, "2x"]}}}, "config.version_policy"),
        ({"version_policy": {"specific": {"versions": [2, 4294967296]}}}, "config.version_policy"),
        ({"version_policy": {"specific": {"versions": [1]}}}, "names version 1, and the model has the versions 2"),
        ({"default_model_filename": "other.onnx"}, "default_model_filename"),
        ({"dynamic_batching": {}}, "max_batch_size"),
        ({"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [4]}}, "preferred_batch_size"),
        ({"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": -1}}, "max_queue_delay"),
        ({"input": [{"name": "x", "dims": ["-\u00b2", 3]}]}, "dims"),
        ({"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": "\u00b2"}}, "max_queue_delay"),
        ({"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": "--5"}}, "max_queue_delay"),
        ([], "JSON object"),
    ],
)  # fmt: skip
def test_a_configuration_that_contradicts_the_model(app: AppClient, config: Any, says: str) -> None:
    refused = load(app, "m", {"file:2/model.onnx": encoded(model()), "config": json.dumps(config)})
    assert refused.status_code == 400, refused.text
    assert re.search(says, refused.json()["error"])
    assert app.get("/v1/graphs").json() == {"graphs": []}
    assert app.service.admission.bytes_in_flight == 0


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"unload_dependents": True}, "'unload_dependents'"),
        ({"config": {}}, "config must be a text"),
        ({"file:1/model.onnx": "%%%"}, "base64"),
        ({"file:1/model.onnx": 1}, "base64"),
    ],
)
def test_parameters_of_another_form(app: AppClient, parameters: dict[str, Any], says: str) -> None:
    refused = load(app, "m", parameters)
    assert refused.status_code == 400
    assert says in refused.json()["error"]


def test_loading_has_the_limits_and_the_scope_of_storing(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    writer = {"authorization": f"Bearer {commands.add_key(file, 'writer', scopes=('run', 'graphs'))}"}
    reader = {"authorization": f"Bearer {commands.add_key(file, 'reader')}"}
    parameters = {"file:1/model.onnx": encoded(model())}
    with http_app(backend="numpy", keys_file=file, max_stored_graphs=1) as app:
        assert load(app, "m", parameters, headers=reader).status_code == 403
        assert load(app, "m", parameters, headers=writer).status_code == 200
        assert infer(app, "m", headers=writer).status_code == 200
        assert infer(app, "m", headers=reader).status_code == 404
        refused = load(app, "other", parameters, headers=writer)
        assert refused.status_code == 413
        assert "TENSORPOST_MAX_STORED_GRAPHS" in refused.json()["error"]
    with http_app(backend="numpy", max_body_bytes=1000) as app:
        refused = load(app, "m", {"file:1/model.onnx": "A" * 2000})
        assert refused.status_code == 413
        assert "TENSORPOST_MAX_BODY_BYTES" in refused.json()["error"]


def test_a_configuration_alone_changes_what_is_loaded(app: AppClient) -> None:
    assert load(app, "m", {"file:5/model.onnx": encoded(model())}).status_code == 200
    kept = app.service.admission.bytes_in_flight
    for most, status in ((1, 400), (2, 200), (0, 200), (1, 400)):
        assert load(app, "m", {"config": json.dumps({"max_batch_size": most})}).status_code == 200
        for _ in range(2):  # a call that was planned before the change is not repeated
            assert infer(app, "m/versions/5").status_code == status
        assert app.get("/v2/models/m/config").json()["max_batch_size"] == most
    assert app.service.admission.bytes_in_flight == kept
    refused = load(app, "m", {"config": json.dumps({"version_policy": {"specific": {"versions": [1]}}})})
    assert "versions" in refused.json()["error"]
    assert load(app, "gone", {"config": "{}"}).status_code == 404


def test_an_operator_keeps_its_name(app: AppClient) -> None:
    refused = load(app, "tile", {"file:1/model.onnx": encoded(model())})
    assert refused.status_code == 400
    assert "'tile' is the name of another model" in refused.json()["error"]


# ---- the folder ------------------------------------------------------------------------------------------------------


def write(folder: Path, path: str, content: bytes) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_the_newest_version_of_a_folder_is_served(tmp_path: Path) -> None:
    write(tmp_path, "net/2/model.onnx", model("Abs(x)"))
    write(tmp_path, "net/10/model.onnx", model())
    write(tmp_path, "net/config.json", b'{"name": "net", "platform": "onnxruntime_onnx"}')
    write(tmp_path, "plain.onnx", model("Relu(x)"))
    write(tmp_path, "lost+found/readme.txt", b"no model")
    with http_app(backend="numpy", graphs=tmp_path) as app:
        assert [each["name"] for each in app.get("/v1/graphs").json()["graphs"]] == ["net", "plain"]
        np.testing.assert_array_equal(answer(app, "net/versions/10"), -X)
        np.testing.assert_array_equal(answer(app, "plain/versions/1"), np.maximum(X, 0))
        refused = infer(app, "net/versions/2")
        assert (refused.status_code, refused.json()["error"]) == (
            404, "the stored graph 'net' has no version '2'; it has version 10 only",
        )  # fmt: skip
        write(tmp_path, "net/11/model.onnx", model("Abs(x)"))
        write(tmp_path, "new/1/model.onnx", model())
        np.testing.assert_array_equal(answer(app, "net/versions/10"), -X)

        assert load(app, "net").status_code == 200
        np.testing.assert_array_equal(answer(app, "net/versions/11"), np.abs(X))
        assert infer(app, "new").status_code == 404
        assert load(app, "new").status_code == 200
        np.testing.assert_array_equal(answer(app, "new"), -X)
        np.testing.assert_array_equal(answer(app, "plain"), np.maximum(X, 0))
        assert load(app, "nowhere").status_code == 404
        for parameters in ({"file:1/model.onnx": encoded(model())}, {"config": "{}"}):
            refused = load(app, "net", parameters)
            assert refused.status_code == 405
            assert "TENSORPOST_GRAPHS" in refused.json()["error"]
        (tmp_path / "new/1/model.onnx").unlink()
        (tmp_path / "new/1").rmdir()
        assert load(app, "new").status_code == 404
        assert app.service.graphs.find("", "net").version == 11


def test_a_configuration_of_triton_s_that_is_not_read_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "net/1/model.onnx", model())
    write(tmp_path, "net/config.pbtxt", b"max_batch_size: 8")
    with http_app(backend="numpy", graphs=tmp_path) as app:
        np.testing.assert_array_equal(answer(app, "net"), -X)
    assert "config.pbtxt is not read" in caplog.text
    caplog.clear()
    config = {"max_batch_size": 8, "dynamic_batching": {}, "input": [{"name": "x", "dims": [3]}]}
    write(tmp_path, "net/config.json", json.dumps(config).encode())
    with http_app(backend="numpy", graphs=tmp_path) as app:
        said = app.get("/v2/models/net/config").json()
        assert (said["max_batch_size"], said["dynamic_batching"]) == (8, {"max_queue_delay_microseconds": 0})
        assert [tensor["dims"] for tensor in said["input"]] == [[3]]
    assert "config.pbtxt" not in caplog.text


def test_a_broken_version_is_refused_by_path_and_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "net/1/model.onnx", model())
    with http_app(backend="numpy", graphs=tmp_path) as app:
        write(tmp_path, "net/2/model.onnx", b"nothing")
        refused = load(app, "net")
        assert refused.status_code == 400
        assert str(Path("net", "2", "model.onnx")) in refused.json()["error"]
        np.testing.assert_array_equal(answer(app, "net"), -X)


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("net/1/other.onnx", b"", "must contain one model"),
        ("net/config.json", b'{"name": "other"}', "config.name"),
        ("net.onnx", b"", "two graphs of one name"),
    ],
)
def test_a_repository_with_a_mistake_is_said_at_the_start(tmp_path: Path, path: str, content: bytes, says: str) -> None:
    write(tmp_path, "net/1/model.onnx", model())
    write(tmp_path, path, content or model())
    with pytest.raises(InvalidParameter, match=says), http_app(backend="numpy", graphs=tmp_path):
        pass
