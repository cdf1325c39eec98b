"""Reductions of expressions by compiled loops, in blocks of lines that are much smaller than usual."""

from __future__ import annotations

import random

import pytest
from tests.conformance.test_graphs import check
from tests.support.graph_cases import drawn_reduction

from tensorpost_server.backends.numba_ import NumbaBackend, fused_lines_plan
from tensorpost_server.planning import make_plan


@pytest.mark.parametrize("most", [1, 700, 9000])
def test_blocks_give_the_bytes_of_the_nodes(numba: NumbaBackend, monkeypatch: pytest.MonkeyPatch, most: int):
    """Of one line, too, which lies side by side with nothing there."""
    del numba  # skipped where it cannot be opened
    monkeypatch.setattr(fused_lines_plan, "LINES_AT_ONCE", most)
    backend, fused = NumbaBackend(threads=1), 0
    for seed in range(60):
        chance = random.Random(seed)
        case = drawn_reduction(chance)
        fused += backend.uses_numpy(make_plan(case.read(), 1 << 20)) is None
        check(backend, case, chance.choice([64, 1000, 1 << 20]))
    assert fused > 40
