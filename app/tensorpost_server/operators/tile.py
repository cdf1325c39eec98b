"""Tile as a form: whole copies of the input, laid side by side."""

from __future__ import annotations

from collections.abc import Sequence

from tensorpost.descriptors import TileOperatorDesc

from ..forms import Copies, Copy, Loop
from .registry import form_of_class


@form_of_class(TileOperatorDesc)
def tile_form(desc: TileOperatorDesc) -> Copies:
    """`Output[c] = Input[c mod Input.Sizes]` (DML_TILE_OPERATOR_DESC)."""
    return tile(desc.input_tensor.sizes, desc.repeats)


def tile(sizes: Sequence[int], repeats: Sequence[int]) -> Copies:
    """Copies of a tensor of these sizes, `repeats[i]` of them along axis i; no element if one of either is 0."""
    loops: list[Loop] = []
    for axis, (size, copies) in enumerate(zip(sizes, repeats, strict=True)):
        if copies > 1:
            loops.append(Loop(copies, (axis, size), ()))
        if size > 1:
            loops.append(Loop(size, (axis, 1), ((axis, 1),)))
    start = (0,) * len(sizes)
    empty = 0 in sizes or 0 in repeats
    return Copies((len(sizes),), (() if empty else (Copy(0, start, start, tuple(loops)),),))
