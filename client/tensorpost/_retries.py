"""When a call is worth repeating, and how long to wait first. Pure: the caller waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .problems import (
    ConnectFailed,
    ConnectionProblem,
    DeviceLost,
    NotReady,
    OutOfDeviceMemory,
    TensorpostError,
    TooBusy,
    Unavailable,
)

__all__ = ["RetryPolicy", "worth_retrying"]

FIRST_BACKOFF_SECONDS = 0.1  # doubled with every retry; a refusal for want of memory usually clears within one request


def worth_retrying(error: TensorpostError) -> bool:
    """Whether the same request may succeed a little later. Every request of this SDK may be repeated: none has effects.

    Not repeated: what the server refused for good, a certificate that is not trusted, what broke off after the first
    byte of the answer, and timeouts, since a server that is too slow is not helped by more work.
    """
    # The exact base classes are what unnamed cases become: a connection closed before any answer, and a 429 or 503
    # from something in front of the server. Their subclasses are decided one by one.
    if "certificate" in error.extra:
        return False  # it will not be another one
    passing = (ConnectFailed, TooBusy, NotReady, OutOfDeviceMemory, DeviceLost)
    return isinstance(error, passing) or type(error) in (ConnectionProblem, Unavailable)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently.

    Attributes:
        retries: attempts after the first.
        patience_seconds: the most time to spend waiting between the attempts of one call, all together.
        spread: a number from 0 to 1 for each wait, so that many clients do not retry at the same time.
    """

    retries: int
    patience_seconds: float = 30.0
    spread: Callable[[], float] = random.random

    def wait_before(self, retry: int, error: TensorpostError, waited: float) -> float | None:
        """Seconds to wait before this retry (counted from 1), or None to give up.

        The wait is what the server asked for with `Retry-After` plus up to one backoff, or between a half and a whole
        backoff if it asked for nothing. A server that asks for more than the patience that is left ends the call.
        """
        if retry > self.retries or not worth_retrying(error):
            return None
        backoff = FIRST_BACKOFF_SECONDS * 2 ** (retry - 1)
        asked = error.extra.get("retry_after_seconds")
        if isinstance(asked, (int, float)) and asked > 0:
            wait = asked + backoff * self.spread()
        else:
            wait = backoff * (1 + self.spread()) / 2
        return wait if waited + wait <= self.patience_seconds else None
