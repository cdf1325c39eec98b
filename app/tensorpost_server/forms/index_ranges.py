"""Indices outside of their axis, and lengths beyond it, which are errors: found before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.problems import InvalidDescriptor, Violation, counted

_BLOCK = 1 << 20  # indices that are compared at a time, when it is known that one is outside


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Where the elements of an integer tensor have to lie: from `-length` to `length - 1` of the axis that they index.

    Of lengths of sequences it is from 0 to the axis's length (`counts`).

    Attributes:
        operator: the node's name, for the message.
        input: which input of the form holds the indices.
        axes: the axes that are indexed: one, or one for each number of the index tuples along the last dimension.
        lengths: how many elements each of these axes has.
        counts: the name of the input if its elements count the first elements of the axis; empty if they are indices.
    """

    operator: str
    input: int
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    counts: str = ""

    def check(self, indices: Any) -> None:
        """Refuse the first index that is outside of its axis.

        Args:
            indices: the array of the input.

        Raises:
            InvalidDescriptor: one is outside; the violation's code is `index-out-of-bounds`.
        """
        if not indices.size:
            return
        rows = indices.reshape(-1, len(self.lengths))
        columns = [rows[:, at] for at in range(len(self.lengths))]
        lowest, highest = self._ends()
        if all(
            low <= int(column.min()) and int(column.max()) <= high
            for column, low, high in zip(columns, lowest.tolist(), highest.tolist(), strict=True)
        ):
            return
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            outside = np.flatnonzero((part < lowest) | (part > highest))
            if outside.size:
                raise self._refusal(indices, start * len(lowest) + int(outside[0]))

    def _ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lowest and the highest legal number for each axis."""
        lengths = np.asarray(self.lengths, np.int64)
        return (0 * lengths, lengths) if self.counts else (-lengths, lengths - 1)

    def _refusal(self, indices: Any, place: int) -> InvalidDescriptor:
        at = place % len(self.lengths)
        axis, length, index = self.axes[at], self.lengths[at], int(indices.reshape(-1)[place])
        where = tuple([int(entry) for entry in np.unravel_index(place, indices.shape)])
        name = self.counts or "indices"
        written = f"{name}[{', '.join(map(str, where))}]" if where else name
        reach = f"0 to {length}" if self.counts else f"{-length} to {length - 1}" if length else "no index"
        message = f"{written} is {index}, but axis {axis} of data has {counted(length, 'element')}; valid: {reach}"
        source = f"ONNX {self.operator}: indices out of bounds are an error"
        return InvalidDescriptor.of(
            [Violation("index-out-of-bounds", ("inputs", name, *where), message, index, reach, source)]
        )
