"""Descriptors that DirectML itself was asked about: it is the judge, and every difference is known by name."""

from __future__ import annotations

from functools import cache

from tests.directml_device.differences import DIFFERENCES, Difference, difference_of
from tests.directml_device.validation import Judged, kept, ours
from tests.support.batches import each

from tensorpost.descriptors import OPERATORS as CLASSES

JUDGED = kept()
OPERATORS = sorted({item.operator for item in JUDGED})


@cache
def differing(operator: str) -> list[tuple[Judged, Difference | None]]:
    """The descriptors on which the verdicts differ, each with the known difference that it is of."""
    found = [(item, ours(item.operator, item.fields)) for item in JUDGED if item.operator == operator]
    return [(item, difference_of(item, codes)) for item, codes in found if item.accepted == bool(codes)]


@each("operator", OPERATORS)
def test_what_directml_accepts_is_accepted_and_nothing_else(operator: str) -> None:
    unexplained = [item for item, known in differing(operator) if known is None]
    assert not unexplained, f"{len(unexplained)}, the first: {unexplained[0]} {ours(operator, unexplained[0].fields)}"


def test_every_operator_has_both_kinds() -> None:
    assert sorted(cls.operator_type for cls in CLASSES) == OPERATORS
    for operator in OPERATORS:
        assert {item.accepted for item in JUDGED if item.operator == operator} == {True, False}


def test_every_known_difference_is_seen() -> None:
    seen = {known for operator in OPERATORS for _, known in differing(operator)}
    assert [known.what for known in DIFFERENCES if known not in seen] == []
