"""`/docs` and the pages that it lists: each is there, small, and loads nothing from elsewhere."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from tests.support.http_app import AppClient, http_app

from tensorpost.descriptors import OPERATORS
from tensorpost.onnx import ONNX_OPERATORS

PAGES = ("/docs", "/docs/operators/gather", "/docs/onnx/Resize", "/docs/routes/v1/validate")


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


class Links(html.parser.HTMLParser):
    """What a page leads to, and what it loads when a part is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is not None and name == "href" and tag == "a":
                self.anchors.append(value)
            elif value is not None and (name in ("src", "href") or name.startswith("data-s")):
                self.loaded.append(value)


def links_of(text: str) -> Links:
    links = Links()
    links.feed(text)
    return links


def test_the_list_has_every_route_and_operator_and_all_links_lead_somewhere(app: AppClient) -> None:
    page = app.get("/docs")
    anchors = links_of(page.text).anchors

    assert page.headers["content-type"].startswith("text/html")
    assert {f"/docs/operators/{cls.operator_type.lower()}" for cls in OPERATORS} <= set(anchors)
    assert {f"/docs/onnx/{schema.op_type}" for schema in ONNX_OPERATORS} <= set(anchors)
    routes = {unquote(each).removeprefix("/docs/routes") for each in anchors if each.startswith("/docs/routes")}
    whole = app.get("/openapi.json").json()["paths"]
    assert routes == {path for path in whole if not re.match(r"/v1/(operators|onnx)/\w+$", path)}
    for address in set(anchors):
        if address.startswith("#"):
            assert f'id="{address[1:]}"' in page.text
        else:
            assert app.get(address).status_code == 200, address


def test_the_list_is_small_and_loads_no_script(app: AppClient) -> None:
    page = app.get("/docs")
    assert len(page.content) < 100_000
    assert "<script src" not in page.text
    assert "swagger-ui" not in page.text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_everything_from_here(app: AppClient, path: str) -> None:
    page = app.get(path)
    assert page.status_code == 200
    shown = re.sub(r"<pre>.*?</pre>", "", page.text, flags=re.DOTALL)  # curl lines name the local server
    assert not re.findall(r"https?://", shown), "the page names another host"
    for link in links_of(page.text).loaded:
        assert re.match(r"/(?!/)", link), f"{link} is not on this host"
        loaded = app.get(link)
        assert loaded.status_code == 200, link
        assert loaded.content


def test_the_page_of_an_operator_has_its_fields(app: AppClient) -> None:
    page = app.get("/docs/operators/resample2").text
    for name in ("InterpolationMode", "RoundingDirection", "Scales", "InputPixelOffsets"):
        assert f"<code>{name}</code>" in page
    assert "NEAREST_NEIGHBOR, LINEAR" in page
    assert "struct DML_RESAMPLE2_OPERATOR_DESC" in page
    assert app.get("/docs/operators/RESAMPLE2").text == page


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/docs/operators/gathre", "unknown-operator"),
        ("/docs/onnx/Resise", "unknown-operator"),
        ("/docs/routes/v1/nothing", "not-found"),
        ("/docs/routes/v1/operators/tile", "not-found"),
        ("/docs/schemas/v1/operators/gathre", "not-found"),
        ("/docs/schemas/v1/onnx/{op_type}/more", "not-found"),
    ],
)
def test_what_is_not_there_is_a_problem(app: AppClient, path: str, code: str) -> None:
    answer = app.get(path)
    assert answer.status_code == 404
    assert answer.json()["type"].endswith(code)


def test_pages_work_below_a_prefix_of_a_proxy() -> None:
    # uvicorn --root-path, or X-Forwarded-Prefix: links must carry it.
    with http_app() as client:
        client.app.root_path = "/tensors"
        pages = [client.get(path) for path in PAGES]
        schema = client.get("/docs/schemas/v1/operators/tile").json()

    for page in pages:
        links = links_of(page.text)
        assert all(each.startswith(("/tensors/", "#")) for each in (*links.anchors, *links.loaded)), page.url
    assert schema["servers"] == [{"url": "/tensors"}]


@pytest.mark.parametrize("path", [*PAGES, "/docs/schemas/v1/operators/tile"])
def test_head_is_answered_without_a_body(app: AppClient, path: str) -> None:
    answer = app.request("HEAD", path)
    assert answer.status_code == 200
    assert not answer.content
