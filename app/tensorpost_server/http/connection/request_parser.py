"""The parser of requests: how much of a pipeline it is fed, its limits, and the refusals of what is no request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tensorpost.values.problems import InvalidParameter, InvalidRequest, LimitExceeded, TensorpostError, TooBusy

from ...settings import ENVIRONMENT_PREFIX
from ..error_responses import problem_document, status_of
from ..headers import Framing, header_fields, request_framing
from .connection_budget import HEALTH_PATHS

MOST_QUEUED = 8
"""Requests of a connection that are parsed while an earlier one is answered. One hides the time until the next; eight
are room to spare. uvicorn parses all that it reads, and keeps objects of a request for 18 bytes sent."""

HEAD_END = b"\r\n\r\n"
"""What ends the head of a request."""

MOST_FIELDS = 100
"""Header fields of a request, and trailer fields of a body. Each costs objects that are much larger than the
shortest field."""

_CHUNKED_PART_BYTES = 512
_FIELD_OVERHEAD = 4  # ": " and CRLF
_INFERENCE_TARGET = re.compile(rb"(?:https?://[^/]*)?/v2(?:[/?]|$)", re.IGNORECASE)


class Refusal(Exception):
    """Why a request is refused; raised in a callback of the parser, which stops it. The status is the error's own."""

    def __init__(self, error: TensorpostError, status: int | None = None) -> None:
        super().__init__(str(error))
        self.error, self.status = error, status or status_of(error)

    def response(self, default_headers: Sequence[tuple[bytes, bytes]], target: bytes, id_: str) -> bytes:
        """The response as it is sent, the connection's last one."""
        is_inference = _INFERENCE_TARGET.match(target) is not None
        status, media_type, problem = problem_document(self.error, self.status, id_, is_inference=is_inference)
        body = json.dumps(problem, ensure_ascii=False).encode() + b"\n"
        fields = [*default_headers, (b"content-type", media_type.encode())]
        fields += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        fields += [(b"x-request-id", id_.encode()), (b"x-content-type-options", b"nosniff")]
        if "retry_after_seconds" in self.error.extra:
            fields.append((b"retry-after", str(self.error.extra["retry_after_seconds"]).encode()))
        lines = [b"%b: %b\r\n" % field for field in fields]
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        return b"".join([start, *lines, b"\r\n", body])


def head_too_large(most: str) -> Refusal:
    """The refusal of a head with more than that."""
    return Refusal(LimitExceeded(f"the head of this request has more than {most}; send a shorter one"), 431)


class BacklogFlowControl(FlowControl):
    """Flow control that reads nothing while bytes wait that are parsed before any further ones are read."""

    backlog = b""

    def resume_reading(self) -> None:
        """Read on, unless bytes wait."""
        if not self.backlog:
            super().resume_reading()


class RequestParser(httptools.HttpRequestParser):
    """httptools' parser, with a limit on the bytes of a head.

    Attributes:
        unparsed_bytes: bytes that it was fed since it last completed a head or found a part of a body.
    """

    def __init__(self, connection: object, head_bytes: int) -> None:
        super().__init__(connection)
        # As uvicorn does: bytes after a request that asks to close must not spoil its response.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._head_bytes = head_bytes
        self.unparsed_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse bytes of requests.

        Raises:
            Refusal: a callback has raised it, the bytes are no request, or they are a head that is too long.
            httptools.HttpParserUpgrade: after a head that asks to upgrade; the first argument is its end.
        """
        self.unparsed_bytes += len(data)
        try:
            self.feed_data(data)
        except httptools.HttpParserError as error:
            if isinstance(cause := error.__context__, Refusal):
                raise cause from None
            raise Refusal(InvalidRequest("this is not an HTTP/1.1 request")) from None
        if self.unparsed_bytes > self._head_bytes:
            raise self._too_long()

    def _too_long(self) -> Refusal:
        return head_too_large(f"{self._head_bytes:,} bytes (setting {ENVIRONMENT_PREFIX}MAX_HTTP_HEAD_BYTES)")

    def framing(
        self, target: bytes, headers: Sequence[tuple[bytes, bytes]], *, health_only: bool, declines_upgrade: bool
    ) -> Framing:
        """How the body of a request ends, whose head is complete (`request_framing`).

        Raises:
            Refusal: the request cannot be given to the application.
        """
        if len(target) + sum([len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers]) > self._head_bytes:
            raise self._too_long()
        try:
            framing = request_framing(header_fields(headers), self.get_http_version())
        except InvalidParameter as error:
            raise Refusal(error) from None
        if health_only and not target.startswith(HEALTH_PATHS):
            raise Refusal(TooBusy("too busy: no connection is free; try again", extra={"retry_after_seconds": 1}))
        if declines_upgrade and framing.chunked:
            # The parser would take the chunks for the next request.
            raise Refusal(InvalidRequest("a chunked body with Upgrade is not accepted; leave out one of the two"))
        return framing


def end_of_part(data: bytes, start: int, unparsed_body: int, cycle: RequestResponseCycle | None) -> int:
    """Where to stop parsing, so that few requests are parsed at once: the end of a body, or of the next head."""
    if unparsed_body:
        return min(start + unparsed_body, len(data))
    # An empty line in a chunk ends no head; many small parts would take the parser long.
    in_body = cycle is not None and cycle.more_body
    end = data.find(HEAD_END, start + (_CHUNKED_PART_BYTES if in_body else 0))
    return len(data) if end < 0 else end + len(HEAD_END)
