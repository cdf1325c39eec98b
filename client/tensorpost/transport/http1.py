"""HTTP/1.1 without a socket: the bytes of a request, and the head and the framing of a response.

Only what this SDK needs of RFC 9110 and 9112, strictly: lines end in CRLF, no header is folded over several lines, no
protocol is upgraded, a body has a Content-Length, or chunks, or the end of the connection. Anything else is refused.
Where a response is taken, h11 takes it for the same (`tests/client/test_http1.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..network.origin import Origin
from ..values.problems import ConnectionProblem
from .progress import Progress

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined with its head: one packet train instead of two
MOST_HEAD_BYTES = 1 << 16  # of the response's head with the informational ones before it; of a chunk's line
UNTIL_CLOSE = 1 << 62  # the length of a body that ends with the connection

FieldLines: TypeAlias = tuple[tuple[str, str], ...]
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_VALUE = r"(?:[!-~\x80-\xff]+(?:[\t ]+[!-~\x80-\xff]+)*)?"  # RFC 9110 section 5.5
_FIELD = re.compile(rf"\r\n({_NAME}):[\t ]*({_VALUE})[\t ]*(?=\r\n|\Z)")
_REQUEST_LINE = re.compile(rf"{_NAME} [!-~]+ HTTP/1\.1")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?(?=\r\n|\Z)")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t -~\x80-\xff]*)?")  # RFC 9112 section 7.1
TRAILER = re.compile(rf"{_NAME}:[\t ]*{_VALUE}[\t ]*".encode("latin-1"))
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(slots=True)
class Request:
    """A request to the server of an `Origin`.

    Attributes:
        target: path and query below the server's base URL.
        fields: headers, names in lower case; without Host and Content-Length.
        body: flat views of the bytes, in order.
        report: told what was sent; told what is received by the reader of the response.
    """

    method: str
    target: str
    fields: FieldLines
    body: tuple[memoryview, ...] = ()
    report: Callable[[Progress], None] | None = None

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return sum([view.nbytes for view in self.body])

    def head(self, origin: Origin) -> bytes:
        """The bytes of the request's head.

        Raises:
            ValueError: a method, target, header name or value that would break the head.
        """
        length = (("content-length", str(self.content_length)),) if self.body else ()
        return encode_head(self.method, origin.prefix + self.target, origin.fields, self.fields, length)

    def pieces(self, head: bytes = b"") -> Iterator[memoryview]:
        """A head and the body, in views of at most `PIECE_BYTES`; each is resumed when its bytes have been sent.

        Those of a large body are views of the caller's memory, never joined, so that it can be sent again.
        """
        sent, total, views = -len(head), self.content_length, (memoryview(head), *self.body)
        if total <= SMALL_BODY_BYTES:
            views = (memoryview(b"".join(views)),)
        if self.report:
            self.report(Progress(0, total))
        for view in views:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                yield piece
                sent += piece.nbytes
                if self.report and sent > 0:
                    self.report(Progress(sent, total))


@lru_cache(maxsize=256)  # the next call's head is most often the same
def encode_head(method: str, target: str, *fields: FieldLines) -> bytes:
    """The bytes of a request's head; see `Request.head`."""
    line, pairs = f"{method} {target} HTTP/1.1", [pair for group in fields for pair in group]
    lines = "".join([f"\r\n{name}: {value}" for name, value in pairs])
    if not _REQUEST_LINE.fullmatch(line) or _FIELD.findall(lines) != pairs:
        raise ValueError(f"no valid request head: {line!r:.200}")  # not the fields, which may hold an API key
    return f"{line}{lines}\r\n\r\n".encode("latin-1")


def no_http(origin: Origin, why: str) -> ConnectionProblem:
    """The error of a response that is not HTTP/1.1, or of a kind that is not taken here."""
    return ConnectionProblem(f"what answered at {origin} does not speak HTTP/1.1 ({why})")


def no_answer(origin: Origin) -> ConnectionProblem:
    """The error of a connection that was closed before a byte of an answer came."""
    hint = "; if it serves https, write https://" if origin.scheme == "http" and origin.uds is None else ""
    return ConnectionProblem(f"{origin} closed the connection without an answer{hint}")


class HttpHead(NamedTuple):
    """The head of a response.

    Attributes:
        headers: names in lower case, values of repeated ones joined by commas.
        head_bytes: length of this head and of the informational ones before it, bytes.
        body_bytes: length of the body, bytes; `UNTIL_CLOSE`, or None if it comes in chunks.
        keep_alive: whether the connection may serve another request.
    """

    status: int
    headers: Mapping[str, str]
    head_bytes: int
    body_bytes: int | None
    keep_alive: bool


def read_head(data: bytes, origin: Origin) -> HttpHead | None:
    """The head with which a response to a GET or a POST begins; None if it has not come whole.

    Raises:
        ConnectionProblem: it is malformed or larger than `MOST_HEAD_BYTES`, or its body has no certain end.
    """
    start = 0
    while True:
        if not data.startswith(b"HTTP/1."[: len(data) - start], start):
            raise no_http(origin, f"its answer begins with {data[start : start + 20]!r}")
        end = data.find(b"\r\n\r\n", start)
        if (len(data) if end < 0 else end + 4) > MOST_HEAD_BYTES:
            raise no_http(origin, f"the head of its answer has more than {MOST_HEAD_BYTES} bytes")
        if end < 0:
            return None
        text = data[start:end].decode("latin-1")
        fields = _FIELD.findall(text)
        if not _STATUS_LINE.match(text) or len(fields) != text.count("\r\n"):
            raise no_http(origin, "the head of its answer is malformed")
        start, status = end + 4, int(text[9:12])
        if status == 101:
            raise no_http(origin, "it changes the protocol")
        if status >= 200:  # otherwise it is informational, and the response's own head comes after it
            break
    headers = {name.lower(): value for name, value in fields}
    if len(headers) < len(fields):
        for key in headers:
            headers[key] = ", ".join([value for name, value in fields if name.lower() == key])
    body_bytes = _body_bytes(status, headers, origin)
    closes = text[7] == "0" or body_bytes == UNTIL_CLOSE or "close" in headers.get("connection", "").lower()
    return HttpHead(status, headers, start, body_bytes, not closes)


def _body_bytes(status: int, headers: Mapping[str, str], origin: Origin) -> int | None:
    """How the body ends: RFC 9112 section 6.3."""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (coding.lower() != "chunked" or length is not None):
        raise no_http(origin, "its answer has another Transfer-Encoding than chunked, or also a Content-Length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise no_http(origin, "its answer has no single Content-Length")
    if status in (204, 304):  # RFC 9110 section 6.4.1: no body, whatever the headers say
        return 0
    return int(length) if length is not None else UNTIL_CLOSE if coding is None else None
