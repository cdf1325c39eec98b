"""What every section of the benchmark is given, and what it may say besides its tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Bench:
    """A run as its sections see it.

    Attributes:
        quick: fewer and smaller calls; about two minutes for everything.
        peers: folder of the other products' environments; see benchmarks/peers.
        gibibytes: size of the output whose memory is watched.
        notes: how something was measured.
        left_out: what could not be compared, and why.
    """

    quick: bool = False
    peers: Path | None = None
    gibibytes: float = 1.0
    notes: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        """Say how something was measured; once is enough."""
        if text not in self.notes:
            self.notes.append(text)

    def leave_out(self, what: str) -> None:
        """Name what could not be compared, and why; at once and in the results."""
        if what not in self.left_out:
            self.left_out.append(what)
            print(f"left out: {what}", flush=True)

    @staticmethod
    def doing(what: str) -> None:
        """Say on standard error what takes the time."""
        print(f"... {what}", file=sys.stderr, flush=True)
