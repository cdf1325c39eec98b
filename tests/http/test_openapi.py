"""The OpenAPI document: every example works, and it is complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.support.http_app import JSON, AppClient, assert_problem, http_app, npy_array, split_frame

from tensorpost import problems
from tensorpost.descriptors import OPERATORS
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.onnx import ONNX_OPERATORS
from tensorpost_server.http.documents.examples import graph_call

TILED = [[1, 2, 3] * 3, [4, 5, 6] * 3] * 3  # DML_TILE_OPERATOR_DESC page, 3 x 3 copies of [[1, 2, 3], [4, 5, 6]]
# Linear, half-pixel, 2 x 2 of [[1, 2, 3], [4, 5, 6]], by hand: along a row x = -0.25, 0.25, 0.75, 1.25, 1.75, 2.25
# gives 1, 1.25, 1.75, 2.25, 2.75, 3; down a column the weights of the second row are 0, 1/4, 3/4, 1.
_ROW = np.array([1, 1.25, 1.75, 2.25, 2.75, 3])
RESIZED = np.stack([_ROW, _ROW + 0.75, _ROW + 2.25, _ROW + 3])


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        stored = client.request("PUT", "/v1/graphs/small", json=graph_call()["graph"])  # which examples call
        assert stored.status_code == 201
        held = client.request("PUT", "/v1/tensors/mask", json={"dtype": "F32", "shape": [1], "data": [1]})
        assert held.status_code == 201
        yield client


@pytest.fixture(scope="module")
def document(app: AppClient) -> dict[str, Any]:
    return app.get("/openapi.json").json()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def path_of(path: str, operation: dict[str, Any]) -> str:
    """The path with the examples of its parameters in it."""
    for parameter in operation.get("parameters", []):
        if parameter.get("in") == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter.get("example", "tile"))
    return path


def filled(path: str, operation: dict[str, Any], document: dict[str, Any]) -> tuple[str, dict[str, str], str, Any]:
    """Path, query, media type and body as the page fills them in when `Execute` is pressed: nothing else is typed."""
    query: dict[str, str] = {}
    for parameter in operation.get("parameters", []):
        if "$ref" in parameter:
            parameter = document["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]  # noqa: PLW2901 # what it refers to
        value = parameter.get("example", parameter["schema"].get("default"))
        if parameter["in"] == "query" and value is not None:
            query[parameter["name"]] = value
    content = operation["requestBody"]["content"]
    media_type = next(iter(content))
    shown = content[media_type].get("example")
    several = content[media_type].get("examples", {})  # of which the page fills in the first
    if several:
        shown = next(iter(several.values()))["value"]
    return path_of(path, operation), query, media_type, shown


def test_what_the_page_fills_in_is_answered_with_200(app: AppClient, document: dict[str, Any]):
    executed: set[str] = set()
    for path, method, operation in operations(document):
        if method != "post" or path.startswith("/v2/") or "requestBody" not in operation:
            continue  # without a body there is nothing to fill in
        target, query, media_type, example = filled(path, operation, document)
        assert not query, f"{path}: the page would send {query} beside the document"
        if example is None:
            assert media_type != "application/json", f"{path}: the page would make up a document"
            continue  # a file is asked for
        answer = app.request(method, target, params=query, json=example)
        assert answer.status_code == (201 if path == "/v1/tensors" else 200), f"{path}: {answer.text}"
        executed.add(path)
        if path == "/v1/validate":
            assert answer.json()["valid"] is True
    assert len([path for path in executed if path.startswith("/v1/operators/")]) == len(OPERATORS)
    for path, expected in (("/v1/operators/tile", TILED), ("/v1/onnx/Resize", RESIZED)):
        _, _, _, example = filled(path, document["paths"][path]["post"], document)
        (tensor,) = app.post(path, json.dumps(example), JSON).json()["tensors"].values()
        np.testing.assert_array_equal(expected, np.reshape(tensor["data"], tensor["shape"])[0, 0])


def test_both_wordings_of_a_graph_are_computed(app: AppClient, document: dict[str, Any]):
    shown = document["paths"]["/v1/graphs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    x = np.reshape(shown["with names"]["value"]["tensors"]["x"]["data"], (2, 3))
    for name, expected in (("with names", np.tile(x / 2, (1, 2))), ("in DirectML's structs", TILED)):
        (tensor,) = app.post("/v1/graphs", json.dumps(shown[name]["value"]), JSON).json()["tensors"].values()
        np.testing.assert_array_equal(np.reshape(tensor["data"], tensor["shape"])[0, 0], expected)


def test_the_bodies_that_are_served_get_the_right_answer(app: AppClient):
    for name, path, query, expected in (
        ("tile", "/v1/operators/tile", "?repeats=1,1,3,3", TILED),
        ("resize", "/v1/onnx/Resize", "?opset=19&mode=linear&scales=1,1,2,2", RESIZED),
    ):
        for suffix, media_type, parameters in (
            ("npy", "application/x-npy", query),
            ("safetensors", "application/vnd.safetensors", ""),
        ):
            body = app.get(f"/v1/examples/{name}.{suffix}")
            assert body.headers["content-type"] == media_type
            answer = app.post(path + parameters, body.content, {"content-type": media_type})
            np.testing.assert_array_equal(expected, output_of(media_type, answer.content)[0, 0])


def output_of(media_type: str, body: bytes) -> Any:
    if media_type == "application/x-npy":
        return npy_array(body)
    head, buffers = split_frame(body)
    (name,) = buffers
    return np.frombuffer(buffers[name], "<f4").reshape(head[name]["shape"])


def test_every_operator_has_its_path_and_query_parameters(document: dict[str, Any]):
    for cls in OPERATORS:
        operation = document["paths"][f"/v1/operators/{cls.operator_type.lower()}"]["post"]
        named = {each["name"] for each in operation["parameters"] if "name" in each}
        assert named == {field.attribute_name for field in cls.facts.fields_by_kind["attribute"]}
        assert operation["operationId"] == f"run_{cls.operator_type.lower()}"
    for op_type in {schema.op_type for schema in ONNX_OPERATORS}:
        assert document["paths"][f"/v1/onnx/{op_type}"]["post"]["operationId"] == f"run_onnx_{op_type}"


def test_the_list_of_operators_says_what_each_does(app: AppClient, document: dict[str, Any]):
    def line(path: str) -> str:
        return document["paths"][path]["post"]["summary"]

    assert line("/v1/operators/element_wise_add") == "ELEMENT_WISE_ADD: the sum of two tensors"
    assert line("/v1/onnx/Tile").startswith("ONNX Tile: ")
    assert "ONNX" in document["info"]["description"]


def test_every_reference_is_there(document: dict[str, Any]):
    for ref in {*re.findall(r'"\$ref": "#/components/([^"]+)"', json.dumps(document))}:
        kind, _, name = ref.partition("/")
        assert name in document["components"][kind], ref
    for name in document["components"]["schemas"]:
        assert name.isidentifier()


GENERATORS = {
    "openapi-python-client": ["generate", "--path", "{document}", "--output-path", "{out}", "--meta", "none",
                              "--config", "{config}", "--fail-on-warning"],
    "datamodel-codegen": ["--input", "{document}", "--input-file-type", "openapi", "--output", "{out}.py",
                          "--formatters", "builtin", "--output-model-type", "pydantic_v2.BaseModel"],
    "openapi-typescript": ["{document}", "-o", "{out}.ts"],
}  # fmt: skip
BINARY = ("x-npy", "x-npz", "vnd.safetensors")
CONFIG = {  # its bodies are bytes, or JSON; what it formats with need not be there
    "content_type_overrides": {
        **{f"application/{name}": "application/octet-stream" for name in BINARY},
        **{f"image/{name}": "application/octet-stream" for name in ("png", "jpeg", "webp", "avif")},
    },
    "post_hooks": [],
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_generators_of_clients_have_no_warning(document: dict[str, Any], tmp_path: Path, generator: str):
    command = shutil.which(generator)
    if command is None:
        pytest.skip(f"{generator} makes a client of the OpenAPI document: `make openapi-clients` installs and runs it")
    places = {"document": tmp_path / "openapi.json", "config": tmp_path / "config.json", "out": tmp_path / "made"}
    places["document"].write_text(json.dumps(document))
    places["config"].write_text(json.dumps(CONFIG))
    arguments = [argument.format(**places) for argument in GENERATORS[generator]]

    done = subprocess.run([command, *arguments], check=False, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    assert any(tmp_path.glob("made*"))


def test_every_path_that_can_be_fetched_is_there(app: AppClient, document: dict[str, Any]):
    for path, method, operation in operations(document):
        if method == "get":
            answer = app.get(path_of(path, operation))
            assert answer.status_code == 200
            assert answer.content


def test_every_answer_is_described_as_it_is(app: AppClient, document: dict[str, Any]):
    for path, method, operation in operations(document):
        responses = operation["responses"]
        assert {"200", "201", "204"} & {*responses}, f"{method} {path}"
        assert "422" not in responses or "HTTPValidationError" not in json.dumps(responses["422"]), (
            f"{method} {path} promises FastAPI's own error shape, which it never has"
        )
    for path, method, operation in operations(document):
        if method == "get" and not path.startswith(("/v1/examples", "/metrics", "/v1/tensors/")):
            answer = app.get(path_of(path, operation))
            schema = operation["responses"]["200"]["content"][answer.headers["content-type"]]["schema"]
            jsonschema.validate(answer.json(), schema)


def test_the_example_of_a_problem_is_one_we_send(app: AppClient, document: dict[str, Any]):
    shown = document["components"]["responses"]["Problem"]["content"]
    example = shown["application/problem+json"]["example"]
    body = app.get("/v1/examples/tile.npy").content

    found = assert_problem(
        app.post("/v1/operators/tile?repeats=1,1,0,1", body), example["status"], example["type"].rpartition(":")[2]
    )

    del found["request_id"]
    assert example == found
    assert example["type"].rpartition(":")[2] in problems.problem_classes()
    jsonschema.validate(found, {"$ref": "#/components/schemas/Problem", "components": document["components"]})


def test_operation_ids_are_unique_and_everything_has_a_summary(document: dict[str, Any]):
    found = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(found) == len({*found})
    for path, method, operation in operations(document):
        assert operation["summary"], f"{method} {path}"
        assert operation["description"], f"{method} {path}"
        assert operation["tags"], f"{method} {path}"
        assert operation.get("requestBody", {"required": True})["required"] is True, f"{method} {path}"


def test_the_document_is_openapi(document: dict[str, Any]):
    assert document["openapi"].startswith("3.1")
    assert (document["info"]["title"], bool(document["info"]["version"])) == ("tensorpost", True)
    assert "curl" in document["info"]["description"]
    for path, _, operation in operations(document):
        named = [(each["name"], each["in"]) for each in operation.get("parameters", []) if "name" in each]
        assert len(named) == len({*named}), f"{path} names a parameter twice"
        assert {*re.findall(r"{(\w+)}", path)} == {name for name, where in named if where == "path"}


def test_there_is_no_page_that_needs_a_network(app: AppClient):
    for path in ("/redoc", "/docs/oauth2-redirect"):
        answer = app.get(path)
        assert answer.status_code == 404 or not re.search(r"https?://", answer.text)


@pytest.mark.parametrize(
    "path", ["/v1/operators/tile", "/v1/operators/lstm", "/v1/onnx/Resize", "/v1/validate", "/v1/operators/{operator}"]
)
def test_the_document_of_one_path_says_what_the_whole_one_says_of_it(
    app: AppClient, document: dict[str, Any], path: str
):
    alone = app.get(f"/docs/schemas{path}").json()

    assert alone["paths"] == {path: document["paths"][path]}
    assert alone["info"] == document["info"]
    for kind, components in alone["components"].items():
        for name, component in components.items():
            assert component == document["components"][kind][name]
    referred = {*re.findall(r'"\$ref": "#/components/([^"]+)"', json.dumps(alone))}
    assert referred == {f"{kind}/{name}" for kind, components in alone["components"].items() for name in components}


def test_texts_of_parameters_and_fields_say_more_than_names(document: dict[str, Any]):
    for path, _, operation in operations(document):
        for parameter in operation.get("parameters", []):
            if path.startswith("/v1/operators/") and "name" in parameter and parameter["in"] == "query":
                text = parameter["description"].partition(": ")[2]
                assert len(text.split()) > 1, f"{path} {parameter}"
    for cls in OPERATORS:
        name = pascal_case(cls.operator_type.lower())
        schema = document["components"]["schemas"][f"{name}Desc"]
        for field, described in schema["properties"].items():
            assert len(described["description"].split()) > 1, f"{name} {field}"
