"""How long a call may wait, and the errors of too long a wait."""

from __future__ import annotations

import math
import time
from typing import Literal, TypeAlias

from ._origin import Origin
from .problems import RequestTimeout

__all__ = ["Deadline", "Phase"]

Phase: TypeAlias = Literal["connect", "read", "write", "pool"]
_SLACK_SECONDS = 0.002  # timers may fire this much before their time


class Deadline:
    """The waits of one call: each as long as the server's `Timeout` says, all within its `total` from now on.

    Attributes:
        origin: the server.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin, self._total = origin, origin.timeout.total
        self._end = math.inf if self._total is None else time.monotonic() + self._total

    @property
    def left(self) -> float:
        """Seconds until the end of the call's time."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Go on only if there is time left.

        Raises:
            RequestTimeout: there is none; `extra["phase"]` is `total`.
        """
        if self._total is not None and self.left <= _SLACK_SECONDS:
            said = f"the call did not end within the {self._total:g} seconds of the timeout's total"
            raise RequestTimeout(said, extra={"phase": "total"})

    def seconds(self, phase: Phase) -> float | None:
        """The longest wait of a phase, which is never longer than what is left; None for ever. Raises as `check`."""
        seconds: float | None = getattr(self.origin.timeout, phase)
        if self._total is None:
            return seconds
        self.check()
        return self.left if seconds is None else min(seconds, self.left)

    def timed_out(self, phase: Phase, connections: int | None = None) -> RequestTimeout:
        """The error after such a wait, with how many connections there may be; raised at once as `check` does."""
        self.check()
        seconds = getattr(self.origin.timeout, phase)
        # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
        long = "too long" if seconds is None else f"{seconds:g} seconds"
        said = f"{self.origin} was silent for {long}"
        if phase == "pool":
            all_of_them = f"all{f' {connections}' if connections else ''} connections"
            said = (
                f"{all_of_them} were in use for {long}; raise max_connections or the timeout's pool, or close streams "
                "that are not read to their end"
            )
        elif phase == "write":
            said += " and took no more of the request"
        return RequestTimeout(said, extra={"phase": phase})

    def wait_field(self) -> tuple[tuple[str, str], ...]:
        """The header field that tells the server how long it is waited for, in whole seconds; none without an end.

        Source: RFC 7240, section 4.3.
        """
        if self._total is None:
            return ()
        return (("prefer", f"wait={max(0, math.ceil(self.left - _SLACK_SECONDS))}"),)
