"""Header fields of a request: by name, its framing, the length of the body, the patience of the caller, its id."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensorpost.values.problems import InvalidParameter, LengthRequired, LimitExceeded

NO_SNIFFING = ("X-Content-Type-Options", "nosniff")
"""A header field of every answer: browsers take no bytes of a caller for a page or a script."""

FRAMING = "tensorpost.framing"
"""The request's `Framing` in its ASGI scope."""

SECRET = re.compile(r"tp_[A-Za-z0-9_-]{43}|eyJ[A-Za-z0-9_-]++\.eyJ[A-Za-z0-9_.-]+")
"""What looks like one of our API keys (`api_keys.new_key`) or like a token (RFC 7515, section 7.1), where neither
belongs."""

_WAIT = re.compile(rb"(?:^|[,;])[ \t]*wait[ \t]*=[ \t]*\"?([0-9]{1,9})\"?[ \t]*(?=$|[,;])", re.IGNORECASE)
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+;=%-]*|\[[0-9A-Za-z:.%]+\])(?::[0-9]{0,5})?")
_MOST_LENGTH_DIGITS = 20  # 2^64 has as many
_HARMLESS_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}")


def header_fields(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Header fields by their lower-case names; a field that was sent several times is joined with commas.

    A list (Accept) means the same in one line or in several. Of a field that is not a list (Content-Length), two lines
    make a value that no reader takes, so the request is refused instead of read in one of two ways.

    Source: RFC 9110, sections 5.2 and 5.3.
    """
    fields = dict(headers)
    if len(fields) != len(headers):
        lists: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            lists.setdefault(name, []).append(value)
        fields = {name: b", ".join(values) for name, values in lists.items()}
    return fields


class Framing(NamedTuple):
    """How a request's body ends.

    Attributes:
        length: bytes that Content-Length announces; None without it.
        chunked: whether the body comes in chunks of unknown total length.
    """

    length: int | None
    chunked: bool


def request_framing(fields: Mapping[bytes, bytes], http_version: str) -> Framing:
    """Read the fields that say where a request ends and for whom it is; the only reader of them for every protocol.

    What two readers could divide in two ways is refused, although RFC 9112, section 6.3, would let some of it pass.

    Args:
        fields: the header fields, from `header_fields`; fields sent several times are joined, and so are refused here.
        http_version: "1.0" or "1.1".

    Raises:
        InvalidParameter: no Host in HTTP/1.1, several, or one that is not a host (RFC 9112, section 3.2); a
            Content-Length that is not a number, or several (RFC 9110, section 8.6); a Transfer-Encoding other
            than chunked, beside a Content-Length, or in HTTP/1.0 (RFC 9112, section 6.1).
    """
    host = fields.get(b"host")
    if host is None and http_version != "1.0":
        raise InvalidParameter("there is no Host field; HTTP/1.1 requires exactly one")
    if host is not None and not _HOST.fullmatch(host.strip(b" \t")):
        raise InvalidParameter("the Host field is not one host with an optional port; send exactly one")
    length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise InvalidParameter(
                "the request has both Content-Length and Transfer-Encoding; send Content-Length only"
            )
        if coding.strip(b" \t").lower() != b"chunked" or http_version == "1.0":
            raise InvalidParameter("this Transfer-Encoding is not supported; send Content-Length instead")
        return Framing(None, chunked=True)
    if length is None:
        return Framing(None, chunked=False)
    digits = length.strip(b" \t")
    if not digits.isdigit() or len(digits) > _MOST_LENGTH_DIGITS:
        raise InvalidParameter(f"Content-Length {length[:40].decode('latin-1')!r} is not one number of bytes")
    return Framing(int(digits), chunked=False)


def content_length(length: int | None, limit: int) -> int:
    """The length of a body that is not chunked, in bytes; its size is judged before any of it is read.

    Raises:
        LengthRequired: there is none (RFC 9110, section 8.6; 411).
        LimitExceeded: it is larger than the limit.
    """
    if length is None:
        raise LengthRequired(
            "the request has no body: there is no Content-Length; with curl write --data-binary @x.npy, in a program "
            "send the body's length, or Transfer-Encoding: chunked where it is not known"
        )
    if length > limit:
        raise LimitExceeded.of("the request body", length, limit, "TENSORPOST_MAX_BODY_BYTES")
    return length


def wait_seconds(prefer: bytes | None) -> int | None:
    """How long the caller waits for its answer, seconds: `wait` of the field `Prefer`; None if it does not say.

    What cannot be understood is not a preference (RFC 7240, sections 2 and 4.3).
    """
    wait = None if prefer is None else _WAIT.search(prefer)
    return None if wait is None else int(wait[1])


def request_id(sent: bytes | None) -> str:
    """The caller's `X-Request-ID` if it is harmless in a log, and no secret, else a new one of 128 random bits."""
    if sent is not None and _HARMLESS_ID.fullmatch(sent) and not SECRET.search(text := sent.decode("ascii")):
        return text
    return f"{random.getrandbits(128):032x}"  # an id is not a secret, and this takes half the time of `secrets`
