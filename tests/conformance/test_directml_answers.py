"""Calls that DirectML itself answered: the CPU backends answer the same, or a listed deviation says why not."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
from tests.directml_device.conformance import UNANSWERED, Answer, Difference, computed, difference, kept
from tests.directml_device.deviations import DEVIATIONS
from tests.support.batches import each
from tests.support.vectors import elements

from tensorpost.descriptors import OPERATORS as CLASSES
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


def test_every_operator_is_answered_but_for_those_with_a_reason() -> None:
    assert {*OPERATORS, *UNANSWERED} == {cls.operator_type for cls in CLASSES}
    assert not UNANSWERED.keys() & {*OPERATORS}


def test_every_deviation_is_seen() -> None:
    seen = {reason for operator in OPERATORS for _, one in differences(operator, "numpy") for reason in one.reasons}
    assert [known.reason for known in DEVIATIONS if known.reason not in seen] == []


# ---- a wrong answer is seen ------------------------------------------------------------------------------------------

MOST_EXPLAINED = 0.015
"""Of damaged answers, the share that the deviations may take for DirectML's: those of sums of very large numbers."""


def damaged(call: Answer) -> Answer | None:
    """The same with one element of the first output far from what it was; None of an empty output."""
    slot, outputs = call.desc.outputs[0], bytearray(base64.b64decode(call.outputs))
    part = outputs[: slot.layout.size_in_bytes]
    values = elements(slot, part)
    if not values.size:
        return None
    at = tuple(len(call.outputs) % size for size in values.shape)
    if values.dtype.kind == "f":
        values[at] = values[at] / 2 + 3.3 if np.isfinite(values[at]) else 1
    else:
        values[at] ^= values.dtype.type(1 << (8 * values.itemsize - 2))
    outputs[: len(part)] = part
    return replace(call, outputs=base64.b64encode(outputs).decode())


def test_a_damaged_answer_is_not_explained() -> None:
    numpy = load_backend("numpy")()
    pairs = [(call, changed) for call in ANSWERS if (changed := damaged(call)) is not None and changed != call]
    seen = [(call.operator, difference(changed, computed(numpy, call))) for call, changed in pairs]
    explained = [(operator, found.reasons) for operator, found in seen if not found.unexplained]
    assert len(seen) >= 600
    assert len(explained) <= MOST_EXPLAINED * len(seen), explained
