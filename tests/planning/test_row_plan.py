"""`plan_of_rows`: the slices that hold some rows, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from tensorpost.bodies.answer_rows import OutputRows
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidParameter
from tensorpost_server.planning import make_plan, plan_of_rows

X = np.zeros((1, 1, 25, 64), np.float32)
TILE = OnnxNode.of("Tile", {"input": X, "repeats": [1, 1, 4, 4]}, opset=13)  # 100 rows of 1 KiB


@pytest.mark.parametrize(
    ("begin", "end", "count"), [(0, 100, 25), (0, 1, 1), (3, 4, 1), (4, 5, 1), (3, 5, 2), (99, 100, 1), (4, 8, 1)]
)
def test_as_few_slices_as_hold_the_rows(begin: int, end: int, count: int) -> None:
    plan = make_plan(TILE, 4096)  # 25 slices of 4 rows
    rows = OutputRows.of(plan.outputs[0].layout, begin, end)
    part = plan_of_rows(plan, rows)
    pieces = [*part.slices]
    assert (len(part.slices), len(pieces)) == (count, count)
    assert pieces[0].begin <= rows.begin_byte
    assert pieces[-1].begin + pieces[-1].computed >= rows.begin_byte + rows.size_in_bytes
    assert part.work == plan.work * count // 25


def test_rows_of_several_outputs_are_refused() -> None:
    x = np.zeros((64, 64), np.float32)
    plan = make_plan(OnnxNode.of("TopK", {"X": x, "K": [64]}, opset=11, axis=0), 4096)
    with pytest.raises(InvalidParameter, match="has the outputs Values, Indices"):
        plan_of_rows(plan, OutputRows.of(plan.outputs[0].layout, 0, 1))
