"""The numba backend, opened; its tests are skipped where it cannot be, with the reason that opening it gave."""

from __future__ import annotations

import pytest

from tensorpost_server.backends.numba_ import NumbaBackend


@pytest.fixture(scope="module")
def numba() -> NumbaBackend:
    """The backend."""
    try:
        return NumbaBackend(threads=2)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"the backend numba cannot be opened here: {type(error).__name__}: {error}")
