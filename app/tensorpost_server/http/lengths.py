"""Content-Length: every body here has one, so that its size can be judged before any of it is read."""

from __future__ import annotations

from starlette.datastructures import Headers

from tensorpost.problems import InvalidParameter, LengthRequired, LimitExceeded

__all__ = ["content_length"]


def content_length(headers: Headers, limit: int) -> int:
    """The body's length in bytes.

    Args:
        headers: the request's.
        limit: the setting `max_body_bytes`.

    Raises:
        LengthRequired: there is none (RFC 9110, section 8.6; 411).
        InvalidParameter: it is not a number.
        LimitExceeded: it is larger than the limit.
    """
    text = headers.get("content-length")
    if text is None:
        raise LengthRequired(
            "there is no Content-Length; send the body's length, so that it can be checked before it is read "
            "(chunked bodies are not taken)"
        )
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise InvalidParameter(f"Content-Length {text[:40]!r} is not a number of bytes")
    if int(text) > limit:
        raise LimitExceeded.of("the request body", int(text), limit, "TENSORPOST_MAX_BODY_BYTES")
    return int(text)
