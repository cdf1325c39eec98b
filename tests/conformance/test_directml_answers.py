"""Calls that DirectML itself answered: the CPU backends answer the same, or a listed deviation says why not."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
from tests.directml_device.conformance import Answer, Difference, computed, difference, kept
from tests.directml_device.deviations import DEVIATIONS
from tests.support.batches import each

from tensorpost_server.backends import load_backend

ANSWERS = [call for call in kept() if call.outputs]
OPERATORS = sorted({call.operator for call in ANSWERS})
NUMBA = pytest.param("numba", marks=pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed"))


@cache
def differences(operator: str, backend: str) -> list[tuple[Answer, Difference]]:
    """How a backend's answers differ."""
    opened = load_backend(backend)()
    try:
        return [(call, difference(call, computed(opened, call))) for call in ANSWERS if call.operator == operator]
    finally:
        opened.close()


@pytest.mark.parametrize("backend", ["numpy", NUMBA])
@each("operator", OPERATORS)
def test_answers_are_directmls(operator: str, backend: str) -> None:
    unexplained = [call for call, seen in differences(operator, backend) if seen.unexplained]
    assert not unexplained, f"{operator} {unexplained[0].fields}"


def test_every_deviation_is_seen() -> None:
    seen = {reason for operator in OPERATORS for _, one in differences(operator, "numpy") for reason in one.reasons}
    assert [known.reason for known in DEVIATIONS if known.reason not in seen] == []
