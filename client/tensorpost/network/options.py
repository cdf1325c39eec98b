"""Timeouts and connection limits. The names are those of httpx's `Timeout` and `Limits`; `total` is ours."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ..values.problems import InvalidParameter

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "TENSORPOST_URL"
DEFAULT_RETRIES = 2
DEFAULT_BLOCK_BYTES = 1 << 20
DEFAULT_CHUNK_BYTES = 16 << 20
NO_HEADERS: Mapping[str, str] = {}
DEFAULT_TIMEOUT_SECONDS = 60.0  # of silence; an answer's head waits for the first part of the computation only
_CONNECT_SECONDS = 5.0  # a server that is there answers the handshake at once, however long it computes
_LONGEST_SECONDS = 1_000_000.0  # more than eleven days; some systems count no further than 24
_HINT = f"; it must be more than 0 and at most {_LONGEST_SECONDS:,.0f} seconds, or None to wait for ever"


class _Unset(enum.Enum):
    """No value at all, where None means something."""

    UNSET = "unset"


_UNSET = _Unset.UNSET


@dataclass(frozen=True, slots=True, init=False)
class Timeout:
    """The longest waits of a call, in seconds; None waits for ever. `Timeout(5)` is 5 in every phase.

    Args:
        timeout: wait of every phase that is not named; connecting never waits for more than 5 seconds.

    Attributes:
        connect: wait for a connection to be made. Default 5.
        read: wait between two parts of an answer, its head included. Default 60.
        write: wait for the server to take the next part of a request. Default 60.
        pool: wait for one of `Limits.max_connections` to be free. Default 60.
        total: time of the whole call, retries and their waits included; for a stream until its last block, what the
            caller does between blocks included. Not interrupted are name lookups by the operating system, nor, through
            httpx, the receiving of one part. Default None.

    Raises:
        InvalidParameter: a wait is not a positive number of at most a million seconds.
    """

    connect: float | None
    read: float | None
    write: float | None
    pool: float | None
    total: float | None

    def __init__(
        self,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        *,
        connect: float | _Unset | None = _UNSET,
        read: float | _Unset | None = _UNSET,
        write: float | _Unset | None = _UNSET,
        pool: float | _Unset | None = _UNSET,
        total: float | None = None,
    ) -> None:
        if timeout is not None and not _is_positive(timeout):
            raise InvalidParameter(f"timeout is {timeout!r}{_HINT}")
        first = _CONNECT_SECONDS if timeout is None else min(_CONNECT_SECONDS, timeout)
        phases = {"connect": connect, "read": read, "write": write, "pool": pool, "total": total}
        for name, value in phases.items():
            seconds = value if not isinstance(value, _Unset) else first if name == "connect" else timeout
            if seconds is not None and not _is_positive(seconds):
                raise InvalidParameter(f"timeout's {name} is {seconds!r}{_HINT}")
            object.__setattr__(self, name, seconds)

    @classmethod
    def from_value(cls, timeout: float | Timeout | None) -> Timeout:
        """A number is the longest silence in every phase, but connecting never waits for more than 5 seconds.

        Raises:
            InvalidParameter: no positive number, and no `Timeout`.
        """
        if isinstance(timeout, Timeout):
            return timeout
        if timeout is not None and not _is_positive(timeout):
            raise InvalidParameter(
                f"timeout is {timeout!r}{_HINT}; for a wait of its own in each phase, write "
                "tensorpost.Timeout(connect=..., read=..., write=..., pool=..., total=...)"
            )
        return cls(timeout)


def _is_positive(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= _LONGEST_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many connections a client has.

    Attributes:
        max_connections: calls at the same time; one more waits for at most `Timeout.pool` seconds. None for any number.
            Default 100.
        max_keepalive_connections: idle connections kept for the next call. None for as many as there were, 0 for none.
            Default 20.
        keepalive_expiry: seconds after which an idle connection is closed instead of used again; None for never.
            Default 60, less than a tensorpost server's 75.

    Raises:
        InvalidParameter: a limit is not a number of its kind.
    """

    max_connections: int | None = 100
    max_keepalive_connections: int | None = 20
    keepalive_expiry: float | None = 60.0

    def __post_init__(self) -> None:
        lowest = (("max_connections", 1), ("max_keepalive_connections", 0))
        for name, least in lowest:
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < least):
                raise InvalidParameter(f"{name} is {count!r}; it must be a whole number of at least {least}, or None")
        if self.keepalive_expiry is not None and not _is_positive(self.keepalive_expiry):
            raise InvalidParameter(f"keepalive_expiry is {self.keepalive_expiry!r}{_HINT}")


DEFAULT_LIMITS = Limits()
