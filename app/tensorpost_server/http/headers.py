"""Header fields of a request: by name, the length of the body, and the request's id."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from tensorpost.problems import InvalidParameter, LengthRequired, LimitExceeded

__all__ = ["content_length", "header_fields", "request_id"]

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


def request_id(sent: bytes | None) -> str:
    """The caller's `X-Request-ID` if its characters are harmless in a log, else a new one of 128 random bits."""
    if sent is not None and _HARMLESS_ID.fullmatch(sent):
        return sent.decode("ascii")
    return f"{random.getrandbits(128):032x}"  # an id is no secret, and this takes half the time of `secrets`
