"""What people do on the page at `/`, and what they see then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.http_app import eventually

__all__ = ["changed_by", "copied", "opened", "saved", "slide", "table"]


@contextlib.contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """The page, when it has shown its first result; whatever the browser complains about is an error."""
    context = browser.new_context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(url)
    page.wait_for_selector("#result[data-round]")
    yield page
    context.close()
    assert complaints == []


def changed_by(page: Any, action: Any) -> None:
    """Do something, and wait until the page has shown what follows from it."""
    before = page.get_attribute("#result", "data-round")
    action()
    page.wait_for_selector(f"#result:not(.stale):not([data-round='{before}'])")


def slide(page: Any, slider: str, value: float) -> None:
    changed_by(page, lambda: page.locator(f"[data-slider='{slider}']").fill(str(value)))


def copied(page: Any, language: str) -> str:
    page.click(f"#tab-{language}")
    page.click("#copy")
    shown = page.text_content("#code code")
    eventually(lambda: page.evaluate("navigator.clipboard.readText()") == shown, "the clipboard holds the lines")
    return shown


def saved(page: Any, figure: str) -> bytes:
    with page.expect_download() as download:
        page.click(f"{figure} .save")
    return Path(download.value.path()).read_bytes()


def table(page: Any) -> list[list[str]]:
    """The drawing of where outputs read, as the page's table says it."""
    texts = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return page.eval_on_selector_all("#taps-rows tr", texts)
