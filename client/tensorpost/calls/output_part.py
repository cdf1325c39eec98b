"""The part of an output that a call asks for: `rows=np.s_[128:256]`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ..bodies.answer_rows import OutputRows
from ..values.checks import shown, whole_number
from ..values.operation import Slot
from ..values.problems import InvalidParameter
from ..values.sentences import named
from .caller_arrays import RequestTemplate


def row_bounds(rows: object) -> tuple[int, int | None]:
    """The first of the rows that a slice asks for, and the one after the last; None for all that follow.

    Raises:
        InvalidParameter: it is not a slice of whole numbers from 0 on, with a step of 1.
    """
    given = cast("slice[object, object, object]", rows)
    if not isinstance(rows, slice) or given.step not in (None, 1):
        raise InvalidParameter(
            f"rows is {shown(cast('object', rows))}; it must be a slice without a step, as in np.s_[128:256], "
            "slice(128, 256) or np.s_[128:]"
        )
    hint = ", counted from the first row"
    begin = 0 if given.start is None else whole_number("the start of rows", given.start, 0, hint)
    end = None if given.stop is None else whole_number("the stop of rows", given.stop, 0, hint)
    return begin, end


def part_template(template: RequestTemplate, rows: slice) -> tuple[RequestTemplate, OutputRows]:
    """The template of requests for some rows of an operation's only output, and the rows.

    Raises:
        InvalidParameter: there are several outputs, or no such rows.
    """
    begin, end = row_bounds(rows)
    if len(template.outputs) != 1:
        names = ", ".join([slot.name for slot in template.outputs])
        raise InvalidParameter(
            named("rows")
            + f" select from a single output, and {template.name} has the outputs {names}; leave "
            + named("rows")
            + " out, or run a graph with one of them as its only output"
        )
    (slot,) = template.outputs
    part = OutputRows.of(slot.layout, begin, end)
    return replace(template, outputs=(Slot(slot.name, part.layout),)), part
