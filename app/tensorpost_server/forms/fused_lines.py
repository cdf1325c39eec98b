"""`FusedLines`: a reduction of what an expression makes, which never exists as a whole.

Both are computed as each is by itself, so the bytes are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from .arrays import Lines
from .base import Box, BoxForm, Form, Reads, blocks, extents, whole_box
from .pointwise import Pointwise

DEVICE_BLOCK = 1 << 26  # elements of the expression that a device makes at a time: 256 MiB, in no budget

FillPart = Callable[[Form, Sequence[Any], Box, Any], None]
"""Computes a box of a form's only output: the form, its inputs, the box, the array that the box is written into."""


@dataclass(frozen=True, slots=True)
class FusedLines(BoxForm):
    """The inputs are those of the expression, in the sizes of the lines: whoever makes the form repeats elements.

    Attributes:
        prologue: the expression, which makes float32.
        lines: the reduction; see `Lines.takes_prologue`.
    """

    prologue: Pointwise
    lines: Lines

    reads_again = True

    @property
    def cut_weight(self) -> int:
        """See `Form.cut_weight`: that of the reduction, so that slices are those of the reduction by itself."""
        return self.lines.cut_weight

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the lines through the box."""
        return self.lines.reads(box) * len(self.prologue.types)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: that of the reduction."""
        return self.lines.work(box)

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: the lines, and what the reduction takes."""
        return 4 * math.prod(self.room(box)) + self.lines.scratch_bytes(box)

    def room(self, box: Box) -> list[int]:
        """Sizes of the array that holds the lines through a box.

        Two where one entry of several is read: elements lie side by side then only if they do in the whole tensor, and
        the order of sums depends on that.
        """
        (read,) = self.lines.reads(box)
        assert read is not None
        return [max(stop - start, min(size, 2)) for (start, stop), size in zip(read, self.lines.sizes, strict=True)]

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`."""
        self.fill_parts(xp, inputs, box, out, lambda form, arrays, part, made: form.fill(xp, arrays, part, made))

    def fill_parts(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, fill: FillPart) -> None:
        """`fill`, where a backend's own function computes the expression and the reduction.

        Args:
            xp: the array library.
            inputs: see `Form.fill`.
            box: which part of the output.
            out: see `Form.fill`.
            fill: the function.
        """
        if xp is not np:
            length = math.prod([self.lines.sizes[axis] for axis in self.lines.axes])
            for part in blocks(box, max(1, DEVICE_BLOCK // length)):
                within = [slice(low - start, high - start) for (low, high), (start, _) in zip(part, box, strict=True)]
                self._fill_box(xp, inputs, part, out[tuple(within)], fill)
            return
        self._fill_box(xp, inputs, box, out, fill)

    def _fill_box(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, fill: FillPart) -> None:
        (read,) = self.lines.reads(box)
        assert read is not None
        made = xp.empty(self.room(box), "float32")[tuple([slice(size) for size in extents(read)])]
        fill(self.prologue, inputs, read, made)
        fill(self.lines.through(box), [made], whole_box(extents(box)), out)
