"""Array expressions computed in blocks on processors, so that others get their turns in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .base import blocks, go_on, whole_box

BLOCK = 1 << 20  # elements: a millisecond or so; a slice of the usual size is one block


def in_blocks(xp: ModuleType, function: Callable[..., Any], out: Any, *arrays: Any) -> Any:
    """Write `function(*arrays)` into `out`, a block at a time on processors; element by element, so no bit changes.

    Args:
        xp: the array library.
        function: computes each element from the elements of the arrays at the same place.
        out: array to write; may be one of `arrays`.
        arrays: arrays of the output's rank, with its sizes or 1.

    Returns:
        `out`.
    """
    if xp is not np or out.size <= BLOCK:
        _write(function, arrays, out)
        return out
    for part in blocks(whole_box(out.shape), BLOCK):
        go_on()
        read = [
            x[tuple([slice(*span) if size > 1 else slice(None) for span, size in zip(part, x.shape, strict=True)])]
            for x in arrays
        ]
        _write(function, read, out[tuple([slice(*span) for span in part])])
    return out


def _write(function: Callable[..., Any], arrays: Sequence[Any], out: Any) -> None:
    if isinstance(function, np.ufunc):  # without a copy
        function(*arrays, out)
    else:
        out[...] = function(*arrays)


def same(x: Any) -> Any:
    """The array itself: with `in_blocks`, a copy in the type of `out`."""
    return x


def accumulate(xp: ModuleType, x: Any, out: Any, *, sums: bool, wide: Any) -> None:
    """Write the running sums or products of `x` along the last axis, in the type `wide`, one block after the other.

    Every element is the one before it and one more, in whatever blocks, so no bit depends on them.
    """
    function = xp.cumsum if sums else xp.cumprod
    length, lines = x.shape[-1], math.prod(x.shape[:-1])
    width = max(1, BLOCK // max(1, lines))
    if xp is not np or length <= width:
        out[...] = function(x, axis=-1, dtype=wide)
        return
    before: Any = None
    for start in range(0, length, width):
        go_on()
        part = x[..., start : start + width].astype(wide)
        if before is not None:
            (np.add if sums else np.multiply)(before, part[..., :1], out=part[..., :1])
        made = function(part, axis=-1, dtype=wide)
        out[..., start : start + width] = made
        before = made[..., -1:].copy()
