"""From a client's arguments to where its calls go and how often they are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._options import Limits, Timeout
from ._origin import Origin
from ._retries import RetryPolicy
from .problems import InvalidParameter

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

__all__ = ["DEFAULT_BLOCK_BYTES", "DEFAULT_LIMITS", "DEFAULT_RETRIES", "DEFAULT_URL", "NO_HEADERS", "set_up"]

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_RETRIES = 2
DEFAULT_LIMITS = Limits()
DEFAULT_BLOCK_BYTES = 1 << 20
NO_HEADERS: Mapping[str, str] = {}
_OURS: Mapping[str, str] = {"accept-encoding": "identity", "user-agent": "tensorpost"}


def set_up(
    base_url: str,
    timeout: float | Timeout | None,
    retries: int,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | bool,
    uds: str | None,
) -> tuple[Origin, RetryPolicy]:
    """Check the arguments that both clients have.

    Raises:
        InvalidParameter: one is malformed.
    """
    if retries < 0:
        raise InvalidParameter(f"retries is {retries}; it must be 0 or more")
    origin = Origin.parse(
        base_url,
        headers={**_OURS, **{name.lower(): value for name, value in headers.items()}},
        timeout=Timeout.of(timeout),
        tls=tls,
        uds=uds,
    )
    return origin, RetryPolicy(retries)
