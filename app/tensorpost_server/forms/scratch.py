"""Memory for blocks that are computed one after the other: fresh memory costs a page fault for each of its pages."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

KEPT = 8  # blocks that are kept for the next call
BYTES = 4 << 20  # of each
_ALIGNMENT = 64

_free: list[NDArray[np.uint8]] = []


class Scratch:
    """Arrays one after the other in a block of memory, until `reset`; new memory once the block is full."""

    __slots__ = ("_memory", "_used")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._used = memory, 0

    def reset(self) -> None:
        """The arrays that were made so far are not used any more."""
        self._used = 0

    def empty(self, sizes: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """An array of undefined content."""
        kind = np.dtype(dtype)
        begin, end = self._used, self._used + math.prod(sizes) * kind.itemsize
        if end > len(self._memory):
            return np.empty(sizes, kind)
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return self._memory[begin:end].view(kind).reshape(sizes)


@contextmanager
def scratch() -> Generator[Scratch]:
    """Inside, memory of this thread alone."""
    try:
        memory = _free.pop()
    except IndexError:
        memory = np.empty(BYTES, np.uint8)
    try:
        yield Scratch(memory)
    finally:
        if len(_free) < KEPT:
            _free.append(memory)
