"""`SqueezedLines`: a reduction whose output has no axes along the lines, as NumPy's without `keepdims`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .arrays import Lines
from .base import Box, BoxForm, Reads
from .fused_lines import FusedLines


@dataclass(frozen=True, slots=True)
class SqueezedLines(BoxForm):
    """The same elements as those of the reduction with axes of 1, in the same order.

    Attributes:
        lines: the reduction, of an expression if there is one before it.
    """

    lines: Lines | FusedLines

    reads_again = True

    @property
    def cut_weight(self) -> int:
        """See `Form.cut_weight`."""
        return self.lines.cut_weight

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that the output lacks."""
        return self.lines.axes if isinstance(self.lines, Lines) else self.lines.lines.axes

    def with_axes(self, box: Box) -> Box:
        """A box of the output, as one of the reduction's with axes of 1."""
        spans, axes = iter(box), self.axes
        return tuple([(0, 1) if axis in axes else next(spans) for axis in range(len(box) + len(axes))])

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`."""
        return self.lines.reads(self.with_axes(box), output)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`."""
        return self.lines.work(self.with_axes(box), output)

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`."""
        return self.lines.scratch_bytes(self.with_axes(box), output)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`."""
        self.lines.fill(xp, inputs, self.with_axes(box), xp.expand_dims(out, self.axes), output)
