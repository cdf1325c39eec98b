"""The conformance suite on the same sessions, run by ONNX Runtime's CPU provider: every check of it, no exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.conformance.test_backends import *  # noqa: F403 # every test of the suite, whatever their names

from tensorpost_server.backends.directml import DirectmlBackend

pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python")


@pytest.fixture(scope="module")
def backend() -> Iterator[DirectmlBackend]:
    opened = DirectmlBackend(provider="CPUExecutionProvider")
    yield opened
    opened.close()
