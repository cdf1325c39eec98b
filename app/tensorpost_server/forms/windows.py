"""Windows that slide over the last dimensions: which entries they read, and `WindowFunction`, which reduces them.

Batch and channels are the first two dimensions; an axis counts from the third one on. A window reads the entries
`o * stride + k * dilation - start` for the output o, k its taps; entries outside the input are padding. Transposed, the
input i reaches the outputs `i * stride + k * dilation - start`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BoxFunction
from .base import Box, blocks, extents, go_on
from .scratch import ScratchBlock

BLOCK = 1 << 18  # elements read or made at a time on the CPU, unless one window has more
DEVICE_BLOCK = 1 << 24  # the same on a device

Move = tuple[slice, slice]
"""Entries of an axis that are read, and the entries of the result that they belong to, in the same order."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a window slides; one entry for each axis.

    Attributes:
        taps: elements of the window.
        strides: distance between one window and the next, elements.
        dilations: distance between the window's elements.
        start: entries of padding before the input; negative where the input begins later.
        transposed: whether inputs spread over outputs instead of outputs reading inputs.
    """

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    start: tuple[int, ...]
    transposed: bool = False

    def region(self, sizes: Sequence[int], spans: Box) -> Box:
        """What outputs inside `spans` read of an input of these sizes; nothing (low = high) where that is padding."""
        return tuple(
            [self._region(axis, size, span) for axis, (size, span) in enumerate(zip(sizes, spans, strict=True))]
        )

    def _region(self, axis: int, size: int, span: tuple[int, int]) -> tuple[int, int]:
        stride, start = self.strides[axis], self.start[axis]
        reach, (first, end) = (self.taps[axis] - 1) * self.dilations[axis], span
        if self.transposed:
            low, high = -((reach - first - start) // stride), (end - 1 + start) // stride + 1
        else:
            low, high = first * stride - start, (end - 1) * stride + reach - start + 1
        low = min(max(low, 0), size)
        return low, max(low, min(high, size))

    def inside(self, region: Box) -> Window:
        """The same window over a part of the input."""
        lows = [
            low * stride if self.transposed else -low for (low, _), stride in zip(region, self.strides, strict=True)
        ]
        return replace(self, start=tuple([start - low for start, low in zip(self.start, lows, strict=True)]))

    def moves(self, axis: int, size: int, span: tuple[int, int]) -> Iterator[tuple[int, Move]]:
        """Each tap that reads anything, with what it reads, and which outputs of the span that is for."""
        for tap in self._taps(axis, size, span):
            offset = tap * self.dilations[axis] - self.start[axis]
            inner, outer = ((0, size), span) if self.transposed else (span, (0, size))
            stride = self.strides[axis]
            low = max(inner[0], -((offset - outer[0]) // stride))
            high = min(inner[1], (outer[1] - 1 - offset) // stride + 1)
            if low < high:
                begin = low * stride + offset - outer[0]
                far = slice(begin, begin + (high - low - 1) * stride + 1, stride)
                near = slice(low - inner[0], high - inner[0])
                yield tap, (near, far) if self.transposed else (far, near)

    def all_moves(self, sizes: Sequence[int], spans: Box) -> Iterator[tuple[tuple[int, Move], ...]]:
        """`moves` of all axes, for each combination of taps that reads anything."""
        axes = [self.moves(axis, size, span) for axis, (size, span) in enumerate(zip(sizes, spans, strict=True))]
        return itertools.product(*axes)

    def reads(self, spans: Box) -> Box:
        """What outputs inside `spans` read, with the padding around the input; not for transposed windows."""
        axes = zip(spans, self.taps, self.strides, self.dilations, self.start, strict=True)
        return tuple(
            [
                (low * stride - start, (high - 1) * stride + (taps - 1) * dilation - start + 1)
                for (low, high), taps, stride, dilation, start in axes
            ]
        )

    def view(
        self, x: NDArray[Any], spans: Box, widened: Callable[[ModuleType, Any], Any], memory: ScratchBlock
    ) -> NDArray[Any]:
        """What each window reads, 0 for padding, as a read-only array: batch x channels x taps x outputs.

        Args:
            x: batch x channels x the whole input.
            spans: which outputs.
            widened: function from `(numpy, part)` of the input to the elements in another type.
            memory: where a part with padding is copied to.
        """
        region, reads = self.region(x.shape[2:], spans), self.reads(spans)
        part = widened(np, x[(slice(None), slice(None), *[slice(*span) for span in region])])
        if reads != region:
            padded = memory.empty((*part.shape[:2], *extents(reads)), part.dtype)
            padded.fill(0)
            inside = [slice(low - at, high - at) for (low, high), (at, _) in zip(region, reads, strict=True)]
            padded[(..., *inside)] = part
            part = padded
        head, tail = part.strides[:2], part.strides[2:]
        steps = [
            step * apart for apart in (self.dilations, self.strides) for step, apart in zip(tail, apart, strict=True)
        ]
        sizes = (*part.shape[:2], *self.taps, *extents(spans))
        return np.lib.stride_tricks.as_strided(part, sizes, (*head, *steps), writeable=False)

    def _taps(self, axis: int, size: int, span: tuple[int, int]) -> range:
        """The taps that read an entry of the input for any output of the span; all others read padding."""
        stride, dilation, start, (first, end) = self.strides[axis], self.dilations[axis], self.start[axis], span
        low = start + (first - (size - 1) * stride if self.transposed else -(end - 1) * stride)
        high = start + (end - 1 if self.transposed else size - 1 - first * stride)
        return range(max(0, -(-low // dilation)), min(self.taps[axis], high // dilation + 1))

    def rays(self, axis: int, size: int, span: tuple[int, int]) -> Iterator[tuple[int, slice]]:
        """Each output of the span with the entries of its window; transposed, each input with those it reaches."""
        (first, end), limits = ((0, size), span) if self.transposed else (span, (0, size))
        dilation = self.dilations[axis]
        for at in range(first, end):
            begin = at * self.strides[axis] - self.start[axis] - limits[0]
            low = max(0, -(begin // dilation))
            high = min(self.taps[axis], (limits[1] - limits[0] - 1 - begin) // dilation + 1)
            if low < high:
                yield at - first, slice(begin + low * dilation, begin + (high - 1) * dilation + 1, dilation)

    def has_fewer_taps(self, axis: int, size: int, span: tuple[int, int]) -> bool:
        """Whether at most as many taps read anything as the span has outputs (the axis has inputs, if transposed)."""
        return len(self._taps(axis, size, span)) <= (size if self.transposed else span[1] - span[0])

    def count(self, xp: ModuleType, axis: int, size: int, span: tuple[int, int]) -> Any:
        """How many entries of an input of this size each output's window has, as an int64 array."""
        begin = xp.arange(span[0], span[1]) * self.strides[axis] - self.start[axis]
        low = xp.maximum(-(begin // self.dilations[axis]), 0)
        high = xp.minimum((size - 1 - begin) // self.dilations[axis] + 1, self.taps[axis])
        return xp.maximum(high - low, 0)

    def slide(self, xp: ModuleType, x: Any, spans: Box, reduction: tuple[Any, Any, Any]) -> Any:
        """The reduction of every window, axis by axis, with an array operation per tap or per output.

        Args:
            xp: the array library.
            x: array of any rank, whose last axes the window slides over.
            spans: which outputs.
            reduction: a function of two arrays (with `out`), one of an array along an axis (without a meaning for
                transposed windows), and the result of nothing.
        """
        combine, reduce, nothing = reduction
        for axis in range(len(spans)):  # whole rows first, so that fewer elements are left for strided reads
            at, span, size = axis - len(spans) + x.ndim, spans[axis], x.shape[axis - len(spans)]
            made = xp.full((*x.shape[:at], span[1] - span[0], *x.shape[at + 1 :]), nothing, x.dtype)
            head = (slice(None),) * at
            if self.has_fewer_taps(axis, size, span):
                for _, (read, write) in self.moves(axis, size, span):
                    go_on()
                    target = made[(*head, write)]
                    combine(target, x[(*head, read)], out=target)
            else:
                for one, many in self.rays(axis, size, span):
                    go_on()
                    if self.transposed:
                        target = made[(*head, many)]
                        combine(target, x[(*head, slice(one, one + 1))], out=target)
                    else:
                        made[(*head, one)] = reduce(x[(*head, many)], axis=at)
            x = made
        return x


@dataclass(frozen=True, slots=True)
class WindowFunction(BoxFunction):
    """A `BoxFunction` of the windows of its first input, channel by channel, computed in blocks of limited memory.

    Attributes:
        function: `(xp, inputs, box, out, output, window, **parameters)`; fills any box of an output.
        window: the window, over the input's spatial dimensions.
        sizes: the input's spatial sizes.
        bytes_per_element: memory that the function takes for each element that it reads or makes.
    """

    window: Window = Window((), (), (), ())
    sizes: tuple[int, ...] = ()
    bytes_per_element: int = 8

    def _elements(self, shape: Sequence[int]) -> int:
        """Upper bound of the elements that are read, or made after some of the axes, for outputs of this shape."""
        window, read = self.window, list[int]()
        for axis, (size, extent) in enumerate(zip(self.sizes, shape[2:], strict=True)):
            reach = (window.taps[axis] - 1) * window.dilations[axis]
            stride = window.strides[axis]
            whole = (extent + reach) // stride + 2 if window.transposed else (extent - 1) * stride + reach + 1
            read.append(min(size, whole))
        images, *axes = math.prod(shape[:2]), (read, shape[2:]), (shape[2:], read)  # either end may come first
        return images * max([math.prod([*a[:step], *b[step:]]) for a, b in axes for step in range(len(read) + 1)])

    def _block(self, shape: Sequence[int], most: int) -> Box:
        """The first of the blocks that a box of this shape is computed in."""
        whole = tuple([(0, extent) for extent in shape])
        elements = max(1, math.prod(shape))
        return next(iter(blocks(whole, max(1, most * elements // max(1, self._elements(shape))))))

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: two steps of a block along the axes."""
        shape = extents(box)
        if 0 in shape:
            return 0
        return 2 * self.bytes_per_element * self._elements(extents(self._block(shape, BLOCK)))

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: every axis reads each of its windows; an array operation takes as long as 1000 elements."""
        shape, calls, work = extents(box), 0, 0
        for axis, (taps, size) in enumerate(zip(self.window.taps, self.sizes, strict=True)):
            read = min(taps, size)
            calls += min(read, shape[2 + axis])
            work += read
        return math.prod(shape) * self.work_per_element * max(1, work) + 1000 * calls + self._elements(shape)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        block = extents(self._block(extents(box), BLOCK if xp is np else DEVICE_BLOCK))
        parameters = dict(self.parameters)
        with np.errstate(all="ignore"):
            for part in blocks(box, math.prod(block)):
                go_on()
                target = out[
                    tuple([slice(low - at, high - at) for (low, high), (at, _) in zip(part, box, strict=True)])
                ]
                self.function(xp, inputs, part, target, output=output, window=self.window, **parameters)
