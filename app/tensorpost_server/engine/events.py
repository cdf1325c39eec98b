"""Named stages of a request and how long each took. HTTP turns them into Server-Timing; metrics can listen too."""

from __future__ import annotations

import itertools
import time
from functools import lru_cache

__all__ = ["STAGES", "Stages"]

STAGES = ("head", "plan", "admit", "receive", "compute")
"""In order: read the head, make the plan, reserve memory, receive the tensors, compute the first slice."""


class Stages:
    """The times at which the stages of one request ended, counted from its creation.

    Example:
        >>> stages = Stages()
        >>> stages.done("head")
        >>> list(stages.milliseconds)
        ['head']
    """

    __slots__ = ("_moments", "_names")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._moments = [time.perf_counter()]

    def done(self, stage: str) -> None:
        """End a stage, one of `STAGES`; the next one begins."""
        assert stage in STAGES
        self._names.append(stage)
        self._moments.append(time.perf_counter())

    @property
    def milliseconds(self) -> dict[str, float]:
        """How long each stage took, in the order they ended."""
        return dict(zip(self._names, self._took(), strict=True))

    def __str__(self) -> str:
        """The value of a Server-Timing header (W3C Server Timing)."""
        return _template(tuple(self._names)) % tuple(self._took())

    def _took(self) -> list[float]:
        return [(end - begin) * 1e3 for begin, end in itertools.pairwise(self._moments)]


@lru_cache(maxsize=64)  # few sequences of stages occur; only the numbers differ
def _template(stages: tuple[str, ...]) -> str:
    return ", ".join(f"{stage};dur=%.3f" for stage in stages)
