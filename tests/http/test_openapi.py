"""The OpenAPI document and the documentation page: every example works, and nothing needs another host."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.support.http_app import AppClient, assert_problem, http_app, npy_array, split_frame

from tensorpost import problems

TILED = [[1, 2, 3] * 3, [4, 5, 6] * 3] * 3  # DML_TILE_OPERATOR_DESC page, 3 x 3 copies of [[1, 2, 3], [4, 5, 6]]
# Linear, half-pixel, 2 x 2 of [[1, 2, 3], [4, 5, 6]], by hand: along a row x = -0.25, 0.25, 0.75, 1.25, 1.75, 2.25
# gives 1, 1.25, 1.75, 2.25, 2.75, 3; down a column the weights of the second row are 0, 1/4, 3/4, 1.
_ROW = np.array([1, 1.25, 1.75, 2.25, 2.75, 3])
RESIZED = np.stack([_ROW, _ROW + 0.75, _ROW + 2.25, _ROW + 3])
EXPECTED = {"tile": TILED, "resize": RESIZED}


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
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
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter.get("example", "tile"))
    return path


def bodies(app: AppClient, media_type: str, content: dict[str, Any]) -> Iterator[tuple[str, bytes, str]]:
    """Name, body and summary of each example, external ones fetched."""
    if "example" in content:
        yield "example", json.dumps(content["example"]).encode(), ""
    for name, example in content.get("examples", {}).items():
        if "externalValue" in example:
            fetched = app.get(example["externalValue"])
            assert (200, media_type) == (fetched.status_code, fetched.headers["content-type"])
            yield name, fetched.content, example["summary"]
        else:
            yield name, json.dumps(example["value"]).encode(), example["summary"]


def test_every_example_of_a_body_gets_the_right_answer(app: AppClient, document: dict[str, Any]):
    seen: set[tuple[str, str]] = set()
    for path, method, operation in operations(document):
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            examples = list(bodies(app, media_type, content))
            assert examples, f"{method} {path} has no example of {media_type}"
            for name, body, summary in examples:
                query = re.search(r"\((\?[^)]*)\)", summary)
                target = path_of(path, operation) + (query[1] if query else "")
                answer = app.request(method, target, content=body, headers={"content-type": media_type})
                assert answer.status_code == 200, f"{target}: {answer.text}"
                assert media_type == answer.headers["content-type"]
                if path == "/v1/validate":
                    assert answer.json()["valid"] is True
                else:
                    np.testing.assert_array_equal(EXPECTED[name], output_of(media_type, answer.content)[0, 0])
                seen.add((path, media_type))
    forms = ("application/x-npy", "application/vnd.safetensors", "application/json")
    doors = ("/v1/operators/{operator}", "/v1/onnx/{op_type}")
    assert {("/v1/validate", "application/json"), *((door, form) for door in doors for form in forms)} == seen


def output_of(media_type: str, body: bytes) -> Any:
    if media_type == "application/x-npy":
        return npy_array(body)
    if media_type == "application/json":
        (tensor,) = json.loads(body)["tensors"].values()
        return np.reshape(tensor["data"], tensor["shape"])
    head, buffers = split_frame(body)
    (name,) = buffers
    return np.frombuffer(buffers[name], "<f4").reshape(head[name]["shape"])


def test_every_example_of_a_parameter_is_understood(app: AppClient, document: dict[str, Any]):
    for path, method, operation in operations(document):
        query = {
            parameter["name"]: parameter.get("example") or next(iter(parameter["examples"].values()))["value"]
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query"
        }
        if not query:
            continue
        content = operation["requestBody"]["content"]
        media_type = "application/x-npy" if "application/x-npy" in content else "application/json"
        ((_, body, _),) = bodies(app, media_type, content[media_type])

        answer = app.request(
            method, path_of(path, operation), params=query, content=body, headers={"content-type": media_type}
        )

        assert answer.status_code == 200, f"{path}: {answer.text}"


def test_every_path_that_can_be_fetched_is_there(app: AppClient, document: dict[str, Any]):
    for path, method, operation in operations(document):
        if method == "get":
            answer = app.get(path_of(path, operation))
            assert answer.status_code == 200
            assert answer.content


def test_every_answer_is_described_as_it_is(app: AppClient, document: dict[str, Any]):
    for path, method, operation in operations(document):
        responses = operation["responses"]
        assert "200" in responses, f"{method} {path}"
        assert "422" not in responses or "HTTPValidationError" not in json.dumps(responses["422"]), (
            f"{method} {path} promises FastAPI's own error shape, which it never has"
        )
    for path, method, operation in operations(document):
        if method == "get" and not path.startswith(("/v1/examples", "/metrics")):
            answer = app.get(path_of(path, operation))
            schema = operation["responses"]["200"]["content"][answer.headers["content-type"]]["schema"]
            jsonschema.validate(answer.json(), schema)


def test_the_example_of_a_problem_is_one_we_send(app: AppClient, document: dict[str, Any]):
    shown = document["paths"]["/v1/operators/{operator}"]["post"]["responses"]["4XX"]["content"]
    example = shown["application/problem+json"]["example"]
    body = app.get("/v1/examples/tile.npy").content

    found = assert_problem(
        app.post("/v1/operators/tile?repeats=1,1,0,1", body), example["status"], example["type"].rpartition(":")[2]
    )

    del found["request_id"]
    assert example == found
    assert example["type"].rpartition(":")[2] in problems.problem_classes()


def test_operation_ids_are_unique_and_everything_has_a_summary(document: dict[str, Any]):
    found = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(found) == len({*found})
    for path, method, operation in operations(document):
        assert operation["summary"], f"{method} {path}"
        assert operation["description"], f"{method} {path}"
        assert operation["tags"], f"{method} {path}"


def test_the_document_is_openapi(document: dict[str, Any]):
    assert document["openapi"].startswith("3.1")
    assert (document["info"]["title"], bool(document["info"]["version"])) == ("tensorpost", True)
    assert "curl" in document["info"]["description"]
    for path, _, operation in operations(document):
        named = [(parameter["name"], parameter["in"]) for parameter in operation.get("parameters", [])]
        assert len(named) == len({*named}), f"{path} names a parameter twice"
        assert {*re.findall(r"{(\w+)}", path)} == {name for name, where in named if where == "path"}


# ---- the page --------------------------------------------------------------------------------------------------------


class Links(html.parser.HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.found += [value for name, value in attrs if name in ("src", "href") and value is not None]


def test_the_documentation_page_loads_everything_from_here(app: AppClient):
    page = app.get("/docs")
    assert page.status_code == 200
    assert not re.findall(r"https?://|//[a-z]", page.text.replace("// ", "")), "the page names another host"
    links = Links()
    links.feed(page.text)

    assert any(link.endswith(".js") for link in links.found)
    assert any(link.endswith(".css") for link in links.found)
    for link in links.found:
        assert re.match(r"/(?!/)", link), f"{link} is not on this host"
        loaded = app.get(link)
        assert loaded.status_code == 200, link
        assert loaded.content
    assert "'/openapi.json'" in page.text


def test_there_is_no_page_that_needs_a_network(app: AppClient):
    for path in ("/redoc", "/docs/oauth2-redirect"):
        answer = app.get(path)
        assert answer.status_code == 404 or not re.search(r"https?://", answer.text)


def test_the_page_works_below_a_prefix_of_a_proxy():
    # uvicorn --root-path, or X-Forwarded-Prefix: links must carry it.
    with http_app() as client:
        client.app.root_path = "/tensors"
        page = client.get("/docs").text

    assert "'/tensors/openapi.json'" in page
