"""Named stages of a request and how long each took. HTTP turns them into Server-Timing."""

from __future__ import annotations

import time

STAGES = ("head", "plan", "admit", "receive", "compute")
"""The stages in order: read the head, make the plan, reserve memory, receive the tensors, compute the first slice."""


class Stages:
    """The durations of one request's stages, counted from its creation.

    Attributes:
        milliseconds: the duration of each stage, in the order in which they ended.

    Examples:
        >>> stages = Stages()
        >>> stages.done("head")
        >>> list(stages.milliseconds)
        ['head']
    """

    __slots__ = ("_last", "milliseconds")

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, stage: str) -> None:
        """End a stage, one of `STAGES`; the next one begins."""
        assert stage in STAGES
        now = time.perf_counter()
        self.milliseconds[stage] = (now - self._last) * 1e3
        self._last = now

    def __str__(self) -> str:
        """The value of a Server-Timing header (W3C Server Timing)."""
        return ", ".join([f"{stage};dur={took:.3f}" for stage, took in self.milliseconds.items()])
