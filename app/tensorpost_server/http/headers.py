"""Header fields of a request: by name, the length of the body, the caller and its patience, the request's id."""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from starlette.types import Scope

from tensorpost.problems import InvalidParameter, LengthRequired, LimitExceeded

__all__ = ["caller_of", "content_length", "header_fields", "request_id", "wait_seconds"]

_WAIT = re.compile(rb"(?:^|[,;])[ \t]*wait[ \t]*=[ \t]*\"?([0-9]{1,9})\"?[ \t]*(?=$|[,;])", re.IGNORECASE)
_HARMLESS_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}")


def header_fields(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Header fields by their lower-case names; a field that was sent several times is joined with commas.

    A list (Accept) means the same in one line or in several. Of a field that is no list (Content-Length), two lines
    make a value that no reader takes, so the request is refused instead of read in one of two ways.

    Source: RFC 9110, sections 5.2 and 5.3.

    Args:
        headers: as ASGI has them, with names in lower case.
    """
    fields = dict(headers)
    if len(fields) != len(headers):
        lists: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            lists.setdefault(name, []).append(value)
        fields = {name: b", ".join(values) for name, values in lists.items()}
    return fields


def content_length(value: bytes | None, limit: int) -> int:
    """The body's length in bytes. Every body has one, so that its size is judged before any of it is read.

    Args:
        value: the header field; None if there is none.
        limit: the setting `max_body_bytes`.

    Raises:
        LengthRequired: there is none (RFC 9110, section 8.6; 411).
        InvalidParameter: it is not a number.
        LimitExceeded: it is larger than the limit.
    """
    if value is None:
        raise LengthRequired(
            "there is no Content-Length; send the body's length, so that it can be checked before it is read "
            "(chunked bodies are not taken)"
        )
    if not value.isdigit() or len(value) > 20:
        raise InvalidParameter(f"Content-Length {value[:40].decode('latin-1')!r} is not a number of bytes")
    length = int(value)
    if length > limit:
        raise LimitExceeded.of("the request body", length, limit, "TENSORPOST_MAX_BODY_BYTES")
    return length


def wait_seconds(prefer: bytes | None) -> int | None:
    """How long the caller waits for its answer, seconds: `wait` of the field `Prefer`; None if it does not say.

    What cannot be understood is no preference (RFC 7240, sections 2 and 4.3).
    """
    found = None if prefer is None else _WAIT.search(prefer)
    return None if found is None else int(found[1])


def caller_of(scope: Scope) -> str:
    """Whose request it is, for turns and budgets: what access control says, else the peer's address.

    Addresses of one IPv6 network of 64 bits are one caller, since a host has as many as it likes (RFC 6177).
    """
    client: tuple[str, int] | None = scope.get("client")
    caller: str = scope.get("tensorpost.caller") or (client[0] if client else "local")
    return _network(caller) if ":" in caller else caller


@lru_cache(maxsize=1024)
def _network(address: str) -> str:
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:  # no address
        return address


def request_id(sent: bytes | None) -> str:
    """The caller's `X-Request-ID` if its characters are harmless in a log, else a new one of 128 random bits."""
    if sent is not None and _HARMLESS_ID.fullmatch(sent):
        return sent.decode("ascii")
    return f"{random.getrandbits(128):032x}"  # an id is no secret, and this takes half the time of `secrets`
