"""One server and one browser for all tests of a file here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.browser import MISSING, open_browser
from tests.support.http_app import serving


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(backend="numpy") as found:
        yield found.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if MISSING is not None:
        pytest.skip(MISSING)
    with open_browser() as found:
        yield found
