"""What an operator is to the rest of the server: a kernel that fills any box of its output.

A kernel is a frozen, picklable value made from a descriptor once. It holds no arrays. `xp` is the array library to
compute with, `numpy` or `cupy`; kernels use only what both have.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

__all__ = ["Abandoned", "Box", "Kernel", "go_on", "stoppable"]

Box = tuple[tuple[int, int], ...]
"""Half-open ranges of output coordinates, one per dimension: a rectangular part of the output."""


class Kernel(Protocol):
    """An operator with its attributes, ready to run on arrays."""

    def work(self, sizes: Sequence[int]) -> int:
        """About how many elements are read and added up for an output of these sizes; at least as many as it has."""
        ...

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any) -> None:
        """Compute the output's elements inside `box` into `out`.

        Args:
            xp: the array library, `numpy` or `cupy`.
            inputs: the whole input tensors as arrays of their sizes, in binding order; possibly strided, read-only.
            box: which part of the output.
            out: array of the box's shape and the output's dtype; possibly strided, its old content undefined.
        """
        ...


class Abandoned(Exception):  # no error: nobody waits for the result any more
    """A computation ended early because nobody wants its result."""


class _Stop(threading.local):
    event: threading.Event | None = None


_STOP = _Stop()


@contextmanager
def stoppable(stop: threading.Event) -> Generator[None]:
    """What this thread computes inside may end early, by `Abandoned`, once `stop` is set."""
    before, _STOP.event = _STOP.event, stop
    try:
        yield
    finally:
        _STOP.event = before


def go_on() -> None:
    """Kernels call it between two blocks.

    Raises:
        Abandoned: nobody wants the result any more.
    """
    if _STOP.event is not None and _STOP.event.is_set():
        raise Abandoned
