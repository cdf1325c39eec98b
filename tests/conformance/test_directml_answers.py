"""Calls that DirectML itself answered: the CPU backends answer the same, or a listed deviation says why not."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tests.directml_device.conformance import Answer, computed, difference, kept
from tests.support.batches import each

from tensorpost_server.backends import load_backend

ANSWERS = [call for call in kept() if call.outputs]
OPERATORS = sorted({call.operator for call in ANSWERS})
NUMBA = pytest.param("numba", marks=pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed"))


@pytest.mark.parametrize("backend", ["numpy", NUMBA])
@each("operator", OPERATORS)
def test_answers_are_directmls(operator: str, backend: str) -> None:
    opened = load_backend(backend)()
    try:
        calls = [call for call in ANSWERS if call.operator == operator]
        unexplained = [call for call in calls if difference(call, computed(opened, call)).unexplained]
    finally:
        opened.close()
    assert not unexplained, _shown(unexplained[0])


def _shown(call: Answer) -> str:
    return f"{call.operator} {call.fields}"
