"""Content-Length: every body here has one, so that its size can be judged before any of it is read."""

from __future__ import annotations

from tensorpost.problems import InvalidParameter, LengthRequired, LimitExceeded

__all__ = ["content_length"]


def content_length(value: bytes | None, limit: int) -> int:
    """The body's length in bytes.

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
