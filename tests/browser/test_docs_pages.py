"""`/docs` in a browser: it opens at once, the filter hides rows, and an operator is run from its page."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.support.browser import MISSING

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture
def page(browser: Any) -> Any:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        found = context.new_page()
        found.problems = []
        found.on("console", lambda message: found.problems.append(message.text) if message.type == "error" else None)
        found.on("pageerror", lambda error: found.problems.append(str(error)))
        yield found


def test_the_list_can_be_clicked_within_seconds(page: Any, server: str) -> None:
    page.goto(f"{server}/docs")  # the first answer of a server builds the list
    begin = time.perf_counter()
    page.goto(f"{server}/docs")
    page.click("text=GATHER_ND1")
    seconds = time.perf_counter() - begin

    page.wait_for_selector("h1:has-text('GATHER_ND1')")
    assert seconds < 5, "about 0.5 on a machine that does nothing else; as one page of Swagger UI it took 17"
    assert page.problems == []


def test_the_filter_leaves_what_has_all_words(page: Any, server: str) -> None:
    page.goto(f"{server}/docs")
    page.fill("#filter", "GATHER single")
    visible = page.locator("ul.list li:visible a").all_inner_texts()

    assert visible == ["GATHER_ELEMENTS"]
    assert page.locator("h2:visible").all_inner_texts() == ["DirectML: Data movement and reorganization"]
    page.fill("#filter", "")
    assert page.locator("ul.list li:visible").count() > 300


def test_an_operator_is_run_from_its_page(page: Any, server: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(server)))
    page.goto(f"{server}/docs/operators/tile")
    assert not [url for url in asked if "swagger" in url or "schemas" in url], "only when the part is opened"

    page.click("summary:has-text('Try it')")
    page.click("button.execute", timeout=30_000)
    page.wait_for_selector(".live-responses-table .response-col_status:has-text('200')", timeout=30_000)

    assert "/docs/schemas/v1/operators/tile" in asked
    assert "/openapi.json" not in asked
    assert page.problems == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("path", ["/docs", "/docs/operators/resample3", "/docs/onnx/Resize"])
def test_no_page_is_wider_than_the_screen(page: Any, server: str, path: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(server + path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
