"""Named stages of a request and how long each took. HTTP turns them into Server-Timing; metrics can listen too."""

from __future__ import annotations

import time

__all__ = ["STAGES", "Stages"]

STAGES = ("head", "plan", "admit", "receive", "compute")
"""In order: read the head, make the plan, reserve memory, receive the tensors, compute the first slice."""


class Stages:
    """When the stages of one request ended, from when it was made.

    Example:
        >>> stages = Stages()
        >>> stages.done("head")
        >>> list(stages.milliseconds)
        ['head']
    """

    __slots__ = ("_begun", "_ended")

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        self._begun = time.perf_counter()

    def done(self, stage: str) -> None:
        """End a stage, one of `STAGES`; the next one begins."""
        assert stage in STAGES
        self._ended[stage] = time.perf_counter()

    @property
    def milliseconds(self) -> dict[str, float]:
        """How long each stage took, in the order they ended."""
        took: dict[str, float] = {}
        since = self._begun
        for stage, ended in self._ended.items():
            took[stage] = (ended - since) * 1e3
            since = ended
        return took

    def __str__(self) -> str:
        """As the value of a Server-Timing header (W3C Server Timing)."""
        return ", ".join([f"{stage};dur={took:.3f}" for stage, took in self.milliseconds.items()])
