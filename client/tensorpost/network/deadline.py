"""The waits of a call, each with its end, and the errors of too long a wait."""

from __future__ import annotations

import math
import socket
import time
from typing import Literal, TypeAlias

from ..values.problems import RequestTimeout
from .origin import Origin
from .runtime import Runtime

WaitPhase: TypeAlias = Literal["connect", "read", "write", "pool"]
_SLACK_SECONDS = 0.002  # timers may fire this much before their time


class Deadline:
    """The waits of one call: each as long as the server's `Timeout` says, all within its `total` from now on.

    What raises the end of the call's time raises `RequestTimeout` with the `phase` `total`.
    """

    def __init__(self, runtime: Runtime, origin: Origin) -> None:
        self.runtime, self.origin, self._total = runtime, origin, origin.timeout.total
        self._end = math.inf if self._total is None else time.monotonic() + self._total

    def for_origin(self, origin: Origin) -> Deadline:
        """The same end, for an attempt at another of several servers."""
        other = Deadline(self.runtime, origin)
        other._end = self._end
        return other

    @property
    def left(self) -> float:
        """Seconds until the end of the call's time."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise the end of the call's time if it has come."""
        if self._total is not None and self.left <= _SLACK_SECONDS:
            said = f"the call did not end within the {self._total:g} seconds of the timeout's total"
            raise RequestTimeout(said, extra={"phase": "total"})

    def seconds(self, phase: WaitPhase) -> float | None:
        """How long a phase may wait from now on, None for ever; raises the end of the call's time."""
        seconds: float | None = getattr(self.origin.timeout, phase)
        if self._total is None:
            return seconds
        self.check()
        return self.left if seconds is None else min(seconds, self.left)

    async def wait(self, sock: socket.socket, events: int, phase: WaitPhase) -> int:
        """Wait until a socket is ready for one of these events; returns those for which it is.

        Raises:
            RequestTimeout: no socket was ready in time; the message is that of `timed_out`.
        """
        ready = await self.runtime.wait(sock, events, self.seconds(phase))
        if not ready:
            raise self.timed_out(phase)
        return ready

    def timed_out(self, phase: WaitPhase, connections: int | None = None) -> RequestTimeout:
        """The error of too long a wait; raises the end of the call's time instead if that has come."""
        self.check()
        seconds = getattr(self.origin.timeout, phase)
        # Without a timeout of ours the operating system still gives up on a peer that confirms nothing.
        long = "too long" if seconds is None else f"{seconds:g} seconds"
        if phase == "pool":
            all_of_them = f"all{f' {connections}' if connections else ''} connections"
            hint = "raise max_connections or the timeout's pool, or close streams that are not read to their end"
            said = f"{all_of_them} were in use for {long}; {hint}"
        else:
            more = " and took no more of the request" if phase == "write" else ""
            said = f"{self.origin} was silent for {long}{more}"
        return RequestTimeout(said, extra={"phase": phase})

    def wait_field(self) -> tuple[tuple[str, str], ...]:
        """The header field that tells the server how long it is waited for, in whole seconds; none without an end.

        Source: RFC 7240, section 4.3.
        """
        if self._total is None:
            return ()
        return (("prefer", f"wait={max(0, math.ceil(self.left - _SLACK_SECONDS))}"),)
