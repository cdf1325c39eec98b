"""Runs the suite on every backend in `BACKENDS` that computes, and marks its known failures.

A new backend comes in by its row in `BACKENDS` alone. Where its device or library is not there, its tests are skipped
with the reason that opening it gave. What it is known to fail stands in `<backend>-xfails.txt`, if it has such a file:
whole tests here, single cases of a vectors file in test_backends.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.suite import COMPUTING, known_failures

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


CPU = tuple(name for name in COMPUTING if name not in ("cuda", "directml"))


@pytest.fixture(scope="module", params=["+".join(CPU), *[name for name in COMPUTING if name not in CPU]])
def backends(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Opened backends, each of which checks a case that is drawn once: those of the CPU, or another one."""
    opened: list[Any] = []
    reasons: list[str] = []
    for name in request.param.split("+"):
        try:
            opened.append(load_backend(name)(threads=2))  # pyright: ignore[reportCallIssue] # a Protocol has no constructor
        except (ImportError, OSError, RuntimeError) as error:
            reasons.append(f"the backend {name} cannot be opened here: {type(error).__name__}: {error}")
    if not opened:
        pytest.skip("; ".join(reasons))
    yield opened
    for backend in opened:
        backend.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of DirectML, and those that fail as a whole.

    The latter by a strict mark, so that an entry that starts to pass is a failure.
    """
    for item in items:
        if not isinstance(item, pytest.Function) or HERE not in item.path.parents:
            continue
        callspec = getattr(item, "callspec", None)
        if callspec and "directml" in (callspec.params.get("backend"), callspec.params.get("backends")):
            item.add_marker(pytest.mark.directml_device)
        reason = known_failures(callspec.params.get("backend", "")).get(item.originalname) if callspec else None
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
