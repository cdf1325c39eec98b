"""Which of us follows the operator's page, where a case of the vectors is listed in `directml-xfails.txt`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conformance.suite import HERE, expected_failures

from .deviations import FOLLOWS, Follows

__all__ = ["XFAILS", "Listed", "listed"]

XFAILS = HERE / "directml-xfails.txt"
_RULES: tuple[tuple[Follows | str, Sequence[str]], ...] = (
    (
        "silent",
        (
            "a NaN loses against a number", "a NaN input stops", "NaN is not the largest", "NaN has no place",
            "the maximum begins with the least", "the average of no element", "a region at NaN", "a place at infinity",
            "a bound outside the type's range", "a NaN on the way is 0", "CreateOperator refuses",
        ),
    ),
    (
        "both",
        (
            "the function is less exact", "the squares are FLOAT16", "the sums are FLOAT16", "the state between steps",
            "powers go by logarithms", "the scale is the range",
        ),
    ),
    ("both: 0 and -0 are equal", ("-0 becomes 0", "a fused RELU gives -0")),
    (
        "literal",
        ("infinity times 0", "-infinity times 0", "the maximum is not taken out", "both neighbours are read"),
    ),
    (
        "tensorpost",
        ("computed by logarithms", "computed as a - b * quotient", "a number on the way overflows", "TOWARD_INFINITY"),
    ),
    ("undefined", ("an index outside",)),
)  # fmt: skip
"""By what a reason of DirectML's begins with."""


class Listed(NamedTuple):
    """Cases that are listed for one reason.

    Attributes:
        reason: without the numbers of one case.
        follows: which of us follows the page, in words.
        files: of the cases, one entry for each case.
    """

    reason: str
    follows: str
    files: Sequence[str]


def listed(text: str | None = None) -> Sequence[Listed]:
    """The reasons of the list, those of most cases first.

    Args:
        text: of the list; the checked-in one by default.

    Raises:
        ValueError: a reason of which nobody has said who follows the page.
    """
    found: Mapping[str, str] = expected_failures(Path(XFAILS).read_text("utf-8") if text is None else text)
    files: dict[str, list[str]] = {}
    for entry, reason in found.items():
        files.setdefault(_without_numbers(reason), []).append(entry.partition(" [")[0])
    rows = [Listed(reason, _follows(reason), names) for reason, names in files.items()]
    return sorted(rows, key=lambda row: (row.reason.partition(":")[0], -len(row.files), row.reason))


def _without_numbers(reason: str) -> str:
    if reason.startswith("refused, exact except ties"):
        return "refused: coordinates that float32 rounds, or ties that fall to another element"
    if reason.startswith("refused, not expressible"):
        return f"refused: {reason.partition(': ')[2]}"
    return re.sub(r", (for instance .*|\d+ units off|a unit off)$", "", reason)


def _follows(reason: str) -> str:
    kind, _, words = reason.partition(": ")
    if kind.startswith("under Wine"):
        return "no difference is expected on Windows"
    if kind == "refused":
        return "tensorpost: ONNX's text, which no descriptor expresses"
    for follows, beginnings in _RULES:
        if kind == "DirectML" and words.startswith(tuple(beginnings)):
            return FOLLOWS.get(follows, follows)  # pyright: ignore[reportArgumentType,reportCallIssue] # or words of its own
    raise ValueError(f"{reason!r}: tests/directml_device/xfail_reasons.py does not say who follows the page")
