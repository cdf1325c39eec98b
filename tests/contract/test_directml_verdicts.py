"""Descriptors that DirectML itself was asked about: it is the judge, and every difference is known by name."""

from __future__ import annotations

from tests.directml_device.differences import difference_of
from tests.directml_device.validation import Judged, kept, ours
from tests.support.batches import each

JUDGED = kept()
OPERATORS = sorted({item.operator for item in JUDGED})


@each("operator", OPERATORS)
def test_what_directml_accepts_is_accepted_and_nothing_else(operator: str) -> None:
    unexplained: list[Judged] = []
    for item in JUDGED:
        if item.operator == operator:
            codes = ours(item.operator, item.fields)
            if item.accepted == bool(codes) and difference_of(item, codes) is None:
                unexplained.append(item)
    assert not unexplained, f"{len(unexplained)}, the first: {unexplained[0]} {ours(operator, unexplained[0].fields)}"


def test_every_operator_has_both_kinds() -> None:
    assert len(OPERATORS) >= 34
    for operator in OPERATORS:
        assert {item.accepted for item in JUDGED if item.operator == operator} == {True, False}
