"""How each backend computes DirectML's operators and how near its results are, as the test vectors found it.

`conformance.json` is written by `python -m tests.support.docs_tables`, which asks the backends' planners about every
case of `tests/vectors`; a test compares it with them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

CONFORMANCE = Path(__file__).with_suffix(".json")

Way = Literal["fused", "arrays", "library"]
"""What computes a case: tensorpost's kernels, an array library's functions, or a library's whole operator."""


class Conformance(TypedDict):
    """What the vectors say of one operator.

    Members:
        ulp: largest difference of an element over the cases, in units in its last place; 0 if there is none.
        absolute: largest difference of an element over the cases, as a number; 0 if there is none.
        backends: how many of the cases each backend computes in which way, by backend.
    """

    cases: int
    ulp: float
    absolute: float
    backends: Mapping[str, Mapping[Way, int]]


@cache
def _all() -> Mapping[str, Conformance]:
    return json.loads(CONFORMANCE.read_text(encoding="utf-8"))


def conformance_of(operator_type: str, backends: Collection[str]) -> Conformance:
    """The row of an operator, for example of `TILE`, with these of its backends only."""
    row = _all()[operator_type]
    ways = {name: ways_of_backend for name, ways_of_backend in row["backends"].items() if name in backends}
    return Conformance(cases=row["cases"], ulp=row["ulp"], absolute=row["absolute"], backends=ways)
