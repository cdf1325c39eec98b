"""Named stages of a request and how long each took. HTTP turns them into Server-Timing; metrics can listen too."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["STAGES", "Stages"]

STAGES = ("head", "plan", "admit", "receive", "compute")
"""In order: read the head, make the plan, reserve memory, receive the tensors, compute the first slice."""


@dataclass(slots=True)
class Stages:
    """Milliseconds per stage of one request."""

    milliseconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Time the block as the stage of this name, one of `STAGES`."""
        assert name in STAGES
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.milliseconds[name] = (time.perf_counter() - begin) * 1e3
