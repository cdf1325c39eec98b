"""Memory for blocks that are computed one after the other: fresh memory costs a page fault for each of its pages."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = 8  # blocks that are kept for the next call
BYTES = 4 << 20  # of each
_ALIGNMENT = 64

_free: list[NDArray[np.uint8]] = []


class ScratchBlock:
    """Arrays one after the other in a block of memory; new memory once the block is full."""

    __slots__ = ("_memory", "_used")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._used = memory, 0

    def empty(self, sizes: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array of undefined content."""
        made = self._array(sizes, dtype)
        self._used = min(len(self._memory), self._used + -(-made.nbytes // _ALIGNMENT) * _ALIGNMENT)
        return made

    def copied(self, array: NDArray[Any]) -> NDArray[Any]:
        """A packed copy of an array, until the next array is made or copied."""
        made = self._array(array.shape, array.dtype)
        np.copyto(made, array)
        return made

    def _array(self, sizes: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        end = self._used + math.prod(sizes) * dtype.itemsize
        if end > len(self._memory):
            return np.empty(sizes, dtype)
        return self._memory[self._used : end].view(dtype).reshape(sizes)


@contextmanager
def scratch() -> Generator[ScratchBlock]:
    """Inside, memory of this thread alone."""
    try:
        memory = _free.pop()
    except IndexError:
        memory = np.empty(BYTES, np.uint8)
    try:
        yield ScratchBlock(memory)
    finally:
        if len(_free) < KEPT:
            _free.append(memory)
