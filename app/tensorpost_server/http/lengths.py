"""Content-Length: every body here has one, so that its size can be judged before any of it is read."""

from __future__ import annotations

from starlette.requests import Request

from tensorpost.problems import InvalidParameter, LengthRequired, LimitExceeded

from .service import Service

__all__ = ["content_length"]


def content_length(request: Request, service: Service) -> int:
    """The body's length in bytes.

    Raises:
        LengthRequired: there is none (RFC 9110, section 8.6; 411).
        InvalidParameter: it is not a number.
        LimitExceeded: it is larger than `max_body_bytes`.
    """
    text = request.headers.get("content-length")
    if text is None:
        raise LengthRequired(
            "there is no Content-Length; send the body's length, so that it can be checked before it is read "
            "(chunked bodies are not taken)"
        )
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise InvalidParameter(f"Content-Length {text[:40]!r} is not a number of bytes")
    limit = service.settings.max_body_bytes
    if int(text) > limit:
        raise LimitExceeded.of("the request body", int(text), limit, "TENSORPOST_MAX_BODY_BYTES")
    return int(text)
