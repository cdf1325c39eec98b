"""`Pointwise`: every output element is one expression of the inputs' elements at the same coordinate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Self

import numpy as np

from tensorpost.values.layout import Layout

from .base import Box, BoxForm, Reads, coalesced, extents, go_on
from .expression import FUNCTIONS, Expression, FunctionCall, evaluate
from .float16 import narrow, widen

BLOCK = 1 << 15  # elements computed at a time, so that temporaries stay in a CPU's second-level cache
LARGE_BLOCK = 1 << 21  # where there are no temporaries: a block of small integers takes less time than its Python


@dataclass(frozen=True, slots=True)
class Pointwise(BoxForm):
    """An expression over inputs that have the output's sizes, or 1 instead of some; `Plan.operands` repeats the latter.

    Elements of each input are converted to its type in `types`, the expression is computed, and the result is converted
    to the output's type once: float16 and float32 to nearest even, integers modulo their range.

    Attributes:
        expression: the formula.
        types: NumPy names of the types that the elements of each input are converted to first.
        computed_in: NumPy name of the type that constants have.
        of_bits: elements of every tensor are taken as unsigned integers of the same bits.
        repeats: whether some object stands in the expression several times, which is then computed once.
        input_sizes: the sizes of every packed input, in the output's rank, with 1 where it is repeated, if they are not
            all the output's. The plan makes strides of 0 of them.
    """

    expression: Expression
    types: tuple[str, ...]
    computed_in: str
    of_bits: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    repeats: bool = False

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """See `Form.operand`: broadcast to the output's sizes."""
        return layout.broadcast(sizes)

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the same box, of the operands."""
        return (box,) * len(self.types)

    def localized(self, box: Box, output: int = 0) -> Self:
        """See `Form.localized`: the form itself."""
        return self

    def work(self, box: Box, output: int = 0) -> int:
        return math.prod(extents(box))

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`. Computed in blocks on the CPU, whole on a device."""
        part = (*[slice(*span) for span in box], ...)  # of rank 0, too, an array and not a number
        arrays = [x[part] for x in inputs]
        if self.of_bits:
            *arrays, out = [array.view(f"u{array.dtype.itemsize}") for array in (*arrays, out)]
        with np.errstate(all="ignore"):  # infinities and NaN are results like others; integers wrap
            most = LARGE_BLOCK if out.size > BLOCK and self._is_one_call(arrays, out) else BLOCK
            if xp is not np or out.size <= most:
                go_on()
                self._fill(xp, arrays, out)
                return
            for *block, target in _blocks([*arrays, out], most):
                go_on()
                self._fill(xp, block, target)

    def _is_one_call(self, arrays: Sequence[Any], out: Any) -> bool:
        """Whether one function of NumPy's reads the inputs and writes the output."""
        if not isinstance(self.expression, FunctionCall) or not isinstance(
            FUNCTIONS[self.expression.function].numpy, str
        ):
            return False
        inner = any(isinstance(argument, FunctionCall) for argument in self.expression.arguments)
        types = [array.dtype.name for array in arrays]
        return not inner and types == list(self.types) and out.dtype.name == self.computed_in

    def _fill(self, xp: ModuleType, arrays: Sequence[Any], out: Any) -> None:
        operands = [_converted(xp, array, name) for array, name in zip(arrays, self.types, strict=True)]
        compute, known = _dtype(self.computed_in), dict[int, Any]() if self.repeats else None
        if out.dtype == compute:
            evaluate(xp, self.expression, operands, compute, out, known)
            return
        made = evaluate(xp, self.expression, operands, compute, None, known)
        if out.dtype.type is np.float16 and made.dtype.type is np.float32 and made.flags.c_contiguous:
            narrow(xp, made, out)
        else:
            out[...] = made


_dtype = lru_cache(maxsize=64)(np.dtype)


def _converted(xp: ModuleType, array: Any, name: str) -> Any:
    if array.dtype.type is np.float16 and name == "float32":
        return widen(xp, array)
    return array.astype(_dtype(name), copy=False)


def _blocks(arrays: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """Arrays of one shape, cut alike into blocks of about `most` elements; each block lies together where they do."""
    rank = arrays[0].ndim
    order = sorted(range(rank), key=lambda axis: -abs(arrays[-1].strides[axis]))
    axes = coalesced([(arrays[0].shape[axis], *[array.strides[axis] for array in arrays]) for axis in order])
    shape = [axis[0] for axis in axes]
    views = [array.transpose(order).reshape(shape) for array in arrays]
    cut, inside = len(shape) - 1, 1
    while cut and inside * shape[cut] <= most:
        inside *= shape[cut]
        cut -= 1
    rows = max(1, most // inside)
    for outer in np.ndindex(*shape[:cut]):
        for start in range(0, shape[cut], rows):
            yield [view[(*outer, slice(start, start + rows))] for view in views]
