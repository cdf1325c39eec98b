"""Runs the suite on every backend in `BACKENDS` that computes, and marks its known failures.

A new backend comes in by its row in `BACKENDS` alone. Where its device or library is not there, its tests are skipped
with the reason that opening it gave. What it is known to fail stands in `<backend>-xfails.txt`, if it has such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.suite import COMPUTING, expected_failures

from tensorpost_server.backends import load_backend

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=COMPUTING)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An opened backend."""
    try:
        opened = load_backend(request.param)(threads=2)  # pyright: ignore[reportCallIssue] # a Protocol has no constructor
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"the backend {request.param} cannot be opened here: {type(error).__name__}: {error}")
    yield opened
    opened.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the known failures; a strict mark, so that an entry that starts to pass is a failure."""
    ours = [item for item in items if isinstance(item, pytest.Function) and HERE in item.path.parents]
    for name in COMPUTING:
        path = HERE / f"{name}-xfails.txt"
        known = expected_failures(path.read_text()) if path.is_file() else {}
        mine = {_entry_of(item): item for item in ours if _backend_of(item) == name}
        for entry in known.keys() & mine.keys():
            mine[entry].add_marker(pytest.mark.xfail(reason=known[entry], strict=True))


def _backend_of(item: pytest.Function) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("backend")


def _entry_of(item: pytest.Function) -> str:
    """The item's name in a list of known failures: `test_name` or `test_name [case]`."""
    case = item.callspec.params.get("case")
    return item.originalname if case is None else f"{item.originalname} [{case}]"
