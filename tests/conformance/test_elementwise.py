"""Every element-wise operator on every backend: the numbers of `math` and exact integers, in any layout."""

from __future__ import annotations

import pytest
from tests.conformance.suite import check_bytes
from tests.support.elementwise_oracles import FORMULAS, packed_case, types_of
from tests.support.vectors import all_hold

from tensorpost_server.backends import Backend


@pytest.mark.parametrize("operator", FORMULAS)
def test_numbers_of_every_type_and_rank(backend: Backend, operator: str):
    types = types_of(operator)
    cases = [
        packed_case(operator, data_type, attributes, rank=1 + (number + place) % 8)
        for number, data_type in enumerate(types)
        for place, attributes in enumerate(FORMULAS[operator].attributes)
    ]
    all_hold(cases, lambda case: check_bytes(backend, case))
