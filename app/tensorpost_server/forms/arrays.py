"""`Lines`, `BoxFunction` and `Array`: functions of arrays, for operators that are no other form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.values.datatypes import ML_DTYPES
from tensorpost.values.layout import Layout

from .base import Box, BoxForm, Reads, blocks, extents, go_on
from .float16 import widen
from .index_ranges import IndexRange

REDUCTION_WEIGHT = 32
"""A slice of a reduction reads 2 Mi elements: with its small output in one slice, only one core would compute."""

LONG_LINE = 1 << 19  # elements; slices of the usual length would cut a longer one, and each compute it anew
LINES_AT_ONCE = 1 << 18  # elements of lines that are computed together, and of an output that is never made as a whole
NEIGHBOURS = 128  # lines side by side that are computed together, 512 bytes of a row


def bits_of(array: Any) -> Any:
    """The array, or of types that NumPy has by `ml_dtypes` only its bits as unsigned integers."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.name in ML_DTYPES else array


@dataclass(frozen=True, slots=True)
class Array:
    """All outputs together, by any function of whole arrays.

    Attributes:
        function: `(xp, *inputs, **parameters) -> array or sequence of arrays`, a function of a module; the outputs may
            have another integer type than the operation's outputs, and are cast.
        inputs: how many input tensors there are.
        total_work: elements read and combined, all outputs together.
        parameters: keyword arguments, as pairs, hashable.
        scratch: bytes that the function takes beside inputs and outputs.
        library: the library that computes it, in host memory only, so that devices refuse it; empty for any array
            library.
        index_range: what the elements of an input must lie in; None if any are allowed.
        of_bits: elements of the types that NumPy has by `ml_dtypes` only are given as unsigned integers of the same
            bits, so that any array library moves them; outputs of the same type are made of such.
    """

    function: Callable[..., Any]
    inputs: int
    total_work: int
    parameters: tuple[tuple[str, Any], ...] = ()
    scratch: int = 0
    library: str = ""
    index_range: IndexRange | None = None
    of_bits: bool = False

    computed_whole = True
    input_sizes = ()
    cut_weight = 1
    least_slice_work = 0
    reads_again = False

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """See `Form.operand`: as it lies."""
        return layout

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        return self.scratch

    def localized(self, box: Box, output: int = 0) -> None:
        """See `Form.localized`: None."""

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: all of every input."""
        return (None,) * self.inputs

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: the first output stands for all of them, which are made together."""
        return max(math.prod(extents(box)), 0 if output else self.total_work)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`; computes everything to give a part. Backends call `compute` once instead."""
        out[...] = self.compute(xp, inputs)[output][tuple([slice(*span) for span in box])]

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        with np.errstate(all="ignore"):  # infinities and NaN are results like others; integers wrap
            given = [*map(bits_of, inputs)] if self.of_bits else inputs
            made: Any = self.function(xp, *given, **dict(self.parameters))
        if self.of_bits and given[0] is not inputs[0]:
            made = made.view(inputs[0].dtype)
        return made if isinstance(made, tuple) else (made,)  # pyright: ignore[reportUnknownVariableType] # of arrays


@dataclass(frozen=True, slots=True)
class Lines(BoxForm):
    """A function along whole lines of an input: every output element depends on the lines through its coordinate.

    Attributes:
        function: `(xp, x, out, *others, **parameters)`: from lines of the input, and what of the other inputs belongs
            to them, to lines of an output, written into `out`.
        axes: the axes that the lines run along; input and output have equal sizes along all other axes.
        sizes: the input's sizes.
        outputs: the sizes of each output.
        parameters: keyword arguments for each output, as pairs, hashable.
        scratch_per_element: bytes that the function takes for each element that it reads.
        passes: how often it reads an element.
        others: the sizes of the other inputs: the input's, or 1 instead of some.
        reduction: SUM, AVERAGE, MAX or MIN if that is all that the function computes of a line, which has elements;
            backends may have loops of their own.
    """

    function: Callable[..., None]
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    parameters: tuple[tuple[tuple[str, Any], ...], ...]
    scratch_per_element: int = 0
    passes: int = 1
    others: tuple[tuple[int, ...], ...] = ()
    reduction: str = ""

    reads_again = True

    @property
    def cut_weight(self) -> int:
        """See `Form.cut_weight`: a reduction's slices read nothing twice, and its output is small."""
        reduces = all(sizes[axis] == 1 for sizes in self.outputs for axis in self.axes)
        return REDUCTION_WEIGHT if reduces else 1

    @property
    def takes_prologue(self) -> bool:
        """Whether an expression may make its input, some lines at a time: a reduction of lines that stay in a cache.

        Where lines lie side by side, some neighbours fit too: of fewer, the parts of rows that are read are too short.
        """
        if self.reduction not in ("SUM", "AVERAGE", "MAX", "MIN") or 0 in self.sizes:
            return False
        length = math.prod([self.sizes[axis] for axis in self.axes])
        side_by_side = math.prod(self.sizes[max(self.axes, default=-1) + 1 :])
        return length * min(side_by_side, NEIGHBOURS) <= LINES_AT_ONCE

    def through(self, box: Box) -> Lines:
        """The form of the lines through a box of the first output: a tensor of these lines is its input."""
        return replace(self, sizes=tuple(extents(self.reads(box)[0] or ())), outputs=(tuple(extents(box)),))

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: that of the lines through the box, and those of the result."""
        lines = self.work(box, output) // self.passes
        return lines * self.scratch_per_element + math.prod(extents(box)) * 8

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the lines through the box."""
        lines = tuple([(0, self.sizes[axis]) if axis in self.axes else span for axis, span in enumerate(box)])
        ones = [tuple([(0, 1) if n == 1 else at for n, at in zip(one, lines, strict=True)]) for one in self.others]
        return (lines, *ones)

    def work(self, box: Box, output: int = 0) -> int:
        read = self.reads(box)[0]
        assert read is not None
        return max(math.prod(extents(box)), self.passes * math.prod(extents(read)))

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`. Where the box holds parts of lines only, the lines are computed and the part is kept."""
        sizes, spans = self.outputs[output], list(enumerate(box))
        wanted = tuple([(0, sizes[axis]) if axis in self.axes else span for axis, span in spans])
        if xp is np and inputs[0].dtype == np.float16 and box == wanted:
            # A few lines at a time, for what they are widened to takes memory.
            firsts = tuple([(0, 1) if axis in self.axes else span for axis, span in spans])
            length = math.prod([self.sizes[axis] for axis in self.axes])  # 0 of lines without elements
            for part in blocks(firsts, max(1, LINES_AT_ONCE // max(1, length))):
                go_on()
                lines = tuple([wanted[axis] if axis in self.axes else span for axis, span in enumerate(part)])
                at = [slice(start - low, stop - low) for (start, stop), (low, _) in zip(lines, box, strict=True)]
                self._fill(xp, inputs, lines, out[tuple(at)], output)
        elif box == wanted:
            self._fill(xp, inputs, box, out, output)
        else:
            whole = xp.empty(extents(wanted), out.dtype)
            self._fill(xp, inputs, wanted, whole, output)
            at = [slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, wanted, strict=True)]
            out[...] = whole[tuple(at)]

    def _fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int) -> None:
        lines, *others = [
            x[tuple([slice(*span) for span in read or ()])] for x, read in zip(inputs, self.reads(box), strict=True)
        ]
        if xp is np and lines.dtype == np.float16:
            lines = widen(np, lines)  # NumPy takes several times as long; functions compute in float32 anyway
        with np.errstate(all="ignore"):  # infinities and NaN are results like others; integers wrap
            self.function(xp, lines, out, *others, **dict(self.parameters[output]))


def cut_by_lines(lines: Lines, strides: Sequence[int], data_type: str) -> Lines | Array:
    """The form itself, or one that makes the only output as a whole, if slices of a large one would cut the lines.

    Args:
        lines: the form, of an output of the input's sizes.
        strides: strides of the output, in whose order it is cut.
        data_type: NumPy name of the output's type.
    """
    count = math.prod(lines.sizes)
    along = [strides[axis] for axis in lines.axes if lines.sizes[axis] > 1]
    across = [strides[axis] for axis, size in enumerate(lines.sizes) if axis not in lines.axes and size > 1]
    length = math.prod([lines.sizes[axis] for axis in lines.axes])
    whole = not along or not across or min(across) > max(along)  # slices hold whole lines, if these are short
    if count <= LINES_AT_ONCE or (whole and length <= LONG_LINE):
        return lines
    scratch = max(LINES_AT_ONCE, length) * (lines.scratch_per_element + 8)
    parameters = (("lines", lines), ("data_type", data_type))
    return Array(_by_lines, 1 + len(lines.others), lines.passes * count, parameters, scratch)


def _by_lines(xp: ModuleType, *inputs: Any, lines: Lines, data_type: str) -> Any:
    made = xp.empty(lines.sizes, data_type)
    length = math.prod([lines.sizes[axis] for axis in lines.axes])
    firsts = tuple([(0, 1 if axis in lines.axes else size) for axis, size in enumerate(lines.sizes)])
    for part in blocks(firsts, max(1, LINES_AT_ONCE // length)):
        go_on()
        box = tuple([(0, lines.sizes[axis]) if axis in lines.axes else span for axis, span in enumerate(part)])
        lines.fill(xp, inputs, box, made[tuple([slice(*span) for span in box])])
    return made


@dataclass(frozen=True, slots=True)
class BoxFunction(BoxForm):
    """A function that fills any box of an output: elements picked by an index tensor, products, sequences.

    Attributes:
        function: `(xp, inputs, box, out, **parameters)`, a function of a module.
        inputs: how many input tensors there are.
        parameters: keyword arguments, as pairs, hashable.
        work_per_element: elements read and combined for one output element.
        least_work: elements that are read in the same time as a box takes, however small it is.
        scratch: bytes that the function takes beside inputs and result, for any box.
        block: elements that are computed at a time on the CPU, whatever the box, so that temporaries stay small; 0 for
            the whole box.
        outputs: how many outputs there are; of several the function is told the number, as `output`.
        least_slice_work: see `Form.least_slice_work`.
        index_range: what the elements of an input must lie in; None if any are allowed.
        of_bits: see `Array.of_bits`; so is the output.
    """

    function: Callable[..., None]
    inputs: int
    parameters: tuple[tuple[str, Any], ...] = ()
    work_per_element: int = 1
    least_work: int = 0
    scratch: int = 0
    block: int = 0
    outputs: int = 1
    least_slice_work: int = 0
    index_range: IndexRange | None = None
    of_bits: bool = False

    reads_again = True

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        return self.scratch

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: all of every input."""
        return (None,) * self.inputs

    def work(self, box: Box, output: int = 0) -> int:
        return math.prod(extents(box)) * self.work_per_element + self.least_work

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        parameters = dict(self.parameters) | ({"output": output} if self.outputs > 1 else {})
        if self.of_bits:
            *inputs, out = [*map(bits_of, (*inputs, out))]
        with np.errstate(all="ignore"):
            if xp is not np or not self.block or out.size <= self.block:
                self.function(xp, inputs, box, out, **parameters)
                return
            for part in blocks(box, self.block):
                go_on()
                where = [slice(low - start, high - start) for (low, high), (start, _) in zip(part, box, strict=True)]
                self.function(xp, inputs, part, out[tuple(where)], **parameters)
