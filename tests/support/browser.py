"""Headless Chromium for tests of the page at `/`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["MISSING", "NODE", "open_browser"]

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("TENSORPOST_CHROMIUM") or next(filter(None, map(shutil.which, _PROGRAMS)), None)
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None

MISSING = (
    None if CHROMIUM and HAS_PLAYWRIGHT
    else "no Playwright: pip install playwright" if CHROMIUM
    else "no Chromium: apt-get install chromium, or name its program in TENSORPOST_CHROMIUM"
)  # fmt: skip
"""Why there is no browser here; None if there is one."""

# Without a sandbox of its own, which root cannot have, and without connections of Chromium's own.
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the browser; its profile is new and empty."""
    from playwright.sync_api import sync_playwright  # not installed everywhere

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_FLAGS])
        try:
            yield browser
        finally:
            browser.close()


def _node() -> str | None:
    """A Node.js to run copied JavaScript with: the system's, or the one in Playwright's package."""
    found = importlib.util.find_spec("playwright")
    if found is None or found.origin is None:
        return shutil.which("node")
    name = "node.exe" if sys.platform == "win32" else "node"
    return shutil.which("node") or os.path.join(os.path.dirname(found.origin), "driver", name)  # noqa: PTH118, PTH120 # text, as which() gives


NODE = _node()
