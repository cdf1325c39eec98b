"""The plan of some rows of an output."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace

from tensorpost.bodies.answer_rows import OutputRows
from tensorpost.values.problems import InvalidParameter

from .plan import Plan
from .slices import SliceRange, Slices


def plan_of_rows(plan: Plan, rows: OutputRows) -> Plan:
    """The plan that computes these rows only, and what lies beside them in the same slices.

    Stages are computed in full, since every slice may read all of them.

    Raises:
        InvalidParameter: it has several outputs.
    """
    slices = plan.slices
    if not isinstance(slices, Slices):
        names = ", ".join([slot.name for slot in plan.outputs])
        raise InvalidParameter(
            f"rows select from a single output, and {plan.operator} has the outputs {names}; leave rows out, or ask "
            "for one of them",
            extra={"parameter": "rows"},
        )
    every, end = range(len(slices)), rows.begin_byte + rows.size_in_bytes
    first = bisect_right(every, rows.begin_byte, key=lambda index: slices.piece(index).begin) - 1
    stop = bisect_left(every, end, key=lambda index: slices.piece(index).begin)
    in_stages = sum([stage.work for stage in plan.stages])
    work = in_stages + (plan.work - in_stages) * (stop - first) // len(slices)
    return replace(plan, slices=SliceRange(slices, first, stop), work=work)
