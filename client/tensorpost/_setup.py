"""From a client's arguments to where its calls go and how often they are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ._checks import shown, text, whole_number
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
    limits: Limits,
    retries: int,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | bool,
    uds: str | None,
) -> tuple[Origin, RetryPolicy]:
    """Check the arguments that both clients have.

    Raises:
        InvalidParameter: one is malformed.
    """
    text("base_url", base_url, f"a URL, for instance {DEFAULT_URL!r}")
    times = whole_number("retries", retries, 0)
    if not isinstance(cast("object", limits), Limits):
        raise InvalidParameter(
            f"limits is {shown(limits)}; it must be tensorpost.Limits, for instance Limits(max_connections=10)"
        )
    if uds is not None:
        text("uds", uds, "the path of a Unix socket as a text, or None")
    if not isinstance(cast("object", tls), bool):
        import ssl

        if not isinstance(tls, ssl.SSLContext):
            raise InvalidParameter(f"tls is {shown(tls)}; it must be an ssl.SSLContext, True or False")
    origin = Origin.parse(
        base_url,
        headers={**_OURS, **_lower_case(headers)},
        timeout=Timeout.of(timeout),
        tls=tls,
        uds=uds,
    )
    return origin, RetryPolicy(times)


def _lower_case(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidParameter(
            f"headers is {shown(headers)}; it must be a mapping from names to texts, for instance "
            '{"Authorization": "Bearer ..."}'
        )
    for name, value in cast("Mapping[object, object]", headers).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidParameter(f"header {shown(name)} is {shown(value)}; its name and its value must be texts")
    return {name.lower(): value for name, value in cast("Mapping[str, str]", headers).items()}
