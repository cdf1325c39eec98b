"""Requests that are refused before the application has them: what is wrong with a head, and the response."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus

import httptools

from tensorpost.problems import InvalidParameter, InvalidRequest, LimitExceeded, TensorpostError

from ...settings import ENVIRONMENT_PREFIX
from ..error_responses import problem_document, status_of
from ..headers import Framing, header_fields, request_framing

__all__ = ["MOST_FIELDS", "Refusal", "checked_framing", "head_too_large", "refusal_of"]

MOST_FIELDS = 100
"""Header fields of a request, and trailer fields of a body. Each costs objects that are much larger than the
shortest field."""

_FIELD_OVERHEAD = 4  # ": " and CRLF
_INFERENCE_TARGET = re.compile(rb"(?:https?://[^/]*)?/v2(?:[/?]|$)", re.IGNORECASE)


class Refusal(Exception):
    """Why a request is refused; raised in a callback of the parser, which stops it. The status is the error's own."""

    def __init__(self, error: TensorpostError, status: int | None = None) -> None:
        super().__init__(str(error))
        self.error, self.status = error, status or status_of(error)

    def response(self, default_headers: Sequence[tuple[bytes, bytes]], target: bytes, id_: str) -> bytes:
        """The response as it is sent, the connection's last one.

        Args:
            default_headers: the header fields of all responses of the server.
            target: the target of the request, as far as it came; the Open Inference Protocol has errors of its own.
            id_: the id of the request.
        """
        is_inference = _INFERENCE_TARGET.match(target) is not None
        status, media_type, problem = problem_document(self.error, self.status, id_, is_inference=is_inference)
        body = json.dumps(problem, ensure_ascii=False).encode()
        fields = [*default_headers, (b"content-type", media_type.encode())]
        fields += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        fields += [(b"x-request-id", id_.encode()), (b"x-content-type-options", b"nosniff")]
        if "retry_after_seconds" in self.error.extra:
            fields.append((b"retry-after", str(self.error.extra["retry_after_seconds"]).encode()))
        lines = [b"%b: %b\r\n" % field for field in fields]
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        return b"".join([start, *lines, b"\r\n", body])


def refusal_of(error: httptools.HttpParserError) -> Refusal:
    """Why the parser has stopped: the refusal that a callback has raised, or bytes that are no request."""
    cause = error.__context__
    return cause if isinstance(cause, Refusal) else Refusal(InvalidRequest("this is not a request of HTTP/1.1"))


def head_too_large(limit: int, excess: str | None = None) -> Refusal:
    """The refusal of a head with more than it may have: more bytes than the limit, or this excess."""
    excess = excess or f"more than {limit:,} bytes (setting {ENVIRONMENT_PREFIX}MAX_HTTP_HEAD_BYTES)"
    return Refusal(LimitExceeded(f"the head of this request has {excess}; send a shorter one"), 431)


def checked_framing(target: bytes, headers: Sequence[tuple[bytes, bytes]], http_version: str, limit: int) -> Framing:
    """How the body of a request ends (`request_framing`), if its head is no larger than the limit in bytes.

    Raises:
        Refusal: it is larger, or `request_framing` refuses it.
    """
    if len(target) + sum([len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers]) > limit:
        raise head_too_large(limit)
    try:
        return request_framing(header_fields(headers), http_version)
    except InvalidParameter as error:
        raise Refusal(error) from None
