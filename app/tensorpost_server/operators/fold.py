"""UNFOLD as copies of the windows' parts inside the image, FOLD as their sums.

Choices where the pages are silent: FLOAT16 is added up in float32 and rounded once; the elements of a window are added
in row-major order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from tensorpost import descriptors as dml

from ..forms import Box, BoxFunction, Copies, Copy, Loop, Window
from ..forms.base import go_on
from .movement import MOST_COPIES
from .registry import form_of_class

BLOCK = 1 << 15  # elements at a time, whose indices of 64 bits stay in a CPU's cache
LEAST_WORK = 2000  # elements that are added up in the time of one window element's calls

_FoldMove = tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]


class _FoldAxis(NamedTuple):
    """A spatial dimension: `place = block * stride + tap * dilation - before` is the image's element."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    blocks: int

    def inside(self, tap: int) -> tuple[int, int]:
        """The blocks, first and after the last, whose element lies in the image."""
        offset = tap * self.dilation - self.before
        return max(0, -(offset // self.stride)), min(self.blocks, (self.size - 1 - offset) // self.stride + 1)

    def whole(self) -> tuple[int, int]:
        """The taps, first and after the last, that lie inside the image in all blocks; an empty range if none."""
        first = min(self.taps, -(-self.before // self.dilation))
        last = (self.size - 1 - (self.blocks - 1) * self.stride + self.before) // self.dilation + 1
        return first, max(first, min(self.taps, last))

    def parts(self) -> list[tuple[int, int, int, int]]:
        """(first tap, taps, first block, blocks) of what lies inside the image: taps of the same blocks together."""
        first, last = self.whole()
        cut = [*range(first), *range(last, self.taps)]
        spans = [(tap, 1, *self.inside(tap)) for tap in cut]
        if last > first:
            spans.append((first, last - first, 0, self.blocks))
        return [(tap, taps, low, high - low) for tap, taps, low, high in spans if high > low]


def _axes(desc: dml.UnfoldOperatorDesc | dml.FoldOperatorDesc) -> tuple[_FoldAxis, ...]:
    fields = (desc.image[2:], desc.window_sizes, desc.strides, desc.dilations, desc.start_padding, desc.windows())
    return tuple([_FoldAxis(*numbers) for numbers in zip(*fields, strict=True)])


@form_of_class(dml.UnfoldOperatorDesc)
def unfold_form(desc: dml.UnfoldOperatorDesc) -> Copies | BoxFunction:
    """A copy for each way in which windows are cut by the image's ends; where these are many, elements by index."""
    axes = _axes(desc)
    cuts = [axis.taps - (axis.whole()[1] - axis.whole()[0]) for axis in axes]
    if math.prod([cut + 1 for cut in cuts]) > MOST_COPIES:
        return BoxFunction(_unfold, 1, (("axes", axes),), 2 * len(axes), block=BLOCK)
    batch, channels = desc.image[:2]
    window, rank = math.prod([axis.taps for axis in axes]), 2 + len(axes)
    copies: list[Copy] = []
    for parts in itertools.product(*[axis.parts() for axis in axes]):
        loops = [Loop(batch, (0, 1), ((0, 1),)), Loop(channels, (1, window), ((1, 1),))]
        source, row, column = [0] * rank, 0, 0
        for at, (axis, (tap, taps, block, blocks)) in enumerate(zip(axes, parts, strict=True)):
            place, rows, columns = 2 + at, 1, 1
            for other in axes[at + 1 :]:
                rows, columns = rows * other.taps, columns * other.blocks
            source[place] = tap * axis.dilation - axis.before + block * axis.stride
            row, column = row + tap * rows, column + block * columns
            loops.append(Loop(taps, (1, rows), ((place, axis.dilation),)))
            loops.append(Loop(blocks, (2, columns), ((place, axis.stride),)))
        copies.append(Copy(0, tuple(source), (0, row, column), tuple([loop for loop in loops if loop.extent > 1])))
    return Copies((rank,), (tuple(copies),), 0 if any(cuts) else None)


def _unfold(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axes: tuple[_FoldAxis, ...]) -> None:
    batch, rows, columns = slice(*box[0]), xp.arange(*box[1], dtype="int64"), xp.arange(*box[2], dtype="int64")
    inside = xp.ones((len(rows), len(columns)), bool)
    places: list[Any] = []
    for axis in reversed(axes):
        place = (rows % axis.taps * axis.dilation - axis.before)[:, None] + columns % axis.blocks * axis.stride
        rows, columns = rows // axis.taps, columns // axis.blocks
        inside &= (place >= 0) & (place < axis.size)
        places.insert(0, xp.clip(place, 0, axis.size - 1))
    out[...] = xp.where(inside, inputs[0][(batch, rows[:, None], *places)], xp.zeros((), out.dtype))


@form_of_class(dml.FoldOperatorDesc)
def fold_form(desc: dml.FoldOperatorDesc) -> BoxFunction:
    """Sums of the blocks' values at their places, for each element of the window."""
    work = 1 + -(-desc.input_tensor.element_count // desc.output_tensor.element_count)
    least = LEAST_WORK * math.prod(desc.window_sizes)
    scratch = desc.output_tensor.element_count * 4 if desc.output_tensor.item_size == 2 else 0
    return BoxFunction(_fold, 1, (("axes", _axes(desc)),), work, least, scratch)


def _fold(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axes: tuple[_FoldAxis, ...]) -> None:
    batch, channels, *spans = box
    _, taps, strides, dilations, before, blocks = zip(*axes, strict=True)
    x = inputs[0].reshape(len(inputs[0]), -1, *taps, *blocks)[(slice(*batch), slice(*channels))]
    made = out if out.dtype.name == "float32" else xp.empty(out.shape, "float32")
    made[...] = 0
    for tap, reads, writes in _moves(Window(taps, strides, dilations, before, transposed=True), blocks, spans):
        go_on()
        made[(..., *writes)] += x[(slice(None), slice(None), *tap, *reads)]
    if made is not out:
        out[...] = made


def _moves(
    window: Window, sizes: Sequence[int], spans: Sequence[tuple[int, int]], axis: int = 0
) -> Iterator[_FoldMove]:
    """Window elements in row-major order, each with what it reads and where that is added; never all at once."""
    if axis == len(sizes):
        yield (), (), ()
        return
    for tap, (read, write) in window.moves(axis, sizes[axis], spans[axis]):
        for taps, reads, writes in _moves(window, sizes, spans, axis + 1):
            yield (tap, *taps), (read, *reads), (write, *writes)
