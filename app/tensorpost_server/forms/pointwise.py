"""`Pointwise`: every output element is one expression of the inputs' elements at the same coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from .base import Box, BoxForm, Reads, extents, go_on
from .expression import Expression, evaluate

__all__ = ["Pointwise"]

BLOCK = 1 << 15  # elements computed at a time, so that temporaries stay in a CPU's second-level cache


@dataclass(frozen=True, slots=True)
class Pointwise(BoxForm):
    """An expression over inputs that all have the output's sizes; broadcasts are strides of 0.

    Elements of each input are converted to its type in `types`, the expression is computed, and the result is converted
    to the output's type once: float16 and float32 to nearest even, integers modulo their range.

    Attributes:
        expression: the formula.
        types: NumPy names of the types that the elements of each input are converted to first.
        computed_in: NumPy name of the type that constants have.
    """

    expression: Expression
    types: tuple[str, ...]
    computed_in: str

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the same box."""
        del output
        return (box,) * len(self.types)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`."""
        del output
        return math.prod(extents(box))

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`. Computed in blocks on the CPU, whole on a device."""
        del output
        part = tuple([slice(*span) for span in box])
        arrays = [x[part] for x in inputs]
        with np.errstate(all="ignore"):  # infinities and NaN are results like others; integers wrap
            if xp is not np or out.size <= BLOCK:
                self._fill(xp, arrays, out)
                return
            flat = _flat([*arrays, out])
            rows = max(1, BLOCK // max(1, flat[-1][0].size))
            for start in range(0, len(flat[-1]), rows):
                go_on()
                block = slice(start, start + rows)
                self._fill(xp, [array[block] for array in flat[:-1]], flat[-1][block])

    def _fill(self, xp: ModuleType, arrays: Sequence[Any], out: Any) -> None:
        operands = [array.astype(name, copy=False) for array, name in zip(arrays, self.types, strict=True)]
        compute = np.dtype(self.computed_in)
        if out.dtype == compute:
            evaluate(xp, self.expression, operands, compute, out)
        else:
            out[...] = evaluate(xp, self.expression, operands, compute)


def _flat(arrays: Sequence[Any]) -> list[Any]:
    """The arrays as rows that a block consists of: one-dimensional where all are contiguous."""
    if all(array.flags.c_contiguous for array in arrays):
        return [array.reshape(-1) for array in arrays]
    return list(arrays)
