"""HTTP/1.1 without a socket: a request's bytes, and the response in the bytes that come.

Only what this SDK needs of RFC 9110 and 9112, strictly: lines end in CRLF, no header is folded over several lines, no
protocol is upgraded, a body has a Content-Length, or chunks, or the end of the connection. Anything else is refused.
Where a response is taken, h11 takes it for the same (`tests/client/test_http1.py`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ._origin import Origin
from ._results import Progress
from .problems import ConnectionProblem

__all__ = ["PIECE_BYTES", "SMALL_BODY_BYTES", "Fields", "Request", "ResponseHead", "ResponseParser", "encode_head"]

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined with its head: one packet train instead of two
_MOST_HEAD_BYTES = 1 << 16  # of the response's head with the informational ones before it; of a chunk's line
_NO_BODY = (204, 304)  # RFC 9110 section 6.4.1: whatever their headers say

Fields: TypeAlias = tuple[tuple[str, str], ...]
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_VALUE = r"(?:[!-~\x80-\xff]+(?:[\t ]+[!-~\x80-\xff]+)*)?"  # RFC 9110 section 5.5
_FIELD = re.compile(rf"\r\n({_NAME}):[\t ]*({_VALUE})[\t ]*(?=\r\n|\Z)")
_REQUEST_LINE = re.compile(rf"{_NAME} [!-~]+ HTTP/1\.1")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?(?=\r\n|\Z)")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t -~\x80-\xff]*)?")  # RFC 9112 section 7.1
_LENGTH = re.compile(r"[0-9]{1,18}")


@lru_cache(maxsize=256)  # the next call's head is most often the same
def encode_head(method: str, target: str, *fields: Fields) -> bytes:
    """The bytes of a request's head.

    Raises:
        ValueError: a method, target, header name or value that would break the head.
    """
    line, pairs = f"{method} {target} HTTP/1.1", [pair for group in fields for pair in group]
    lines = "".join([f"\r\n{name}: {value}" for name, value in pairs])
    if not _REQUEST_LINE.fullmatch(line) or _FIELD.findall(lines) != pairs:
        raise ValueError(f"no valid request head: {line + lines!r:.200}")
    return f"{line}{lines}\r\n\r\n".encode("latin-1")


@dataclass(slots=True)
class Request:
    """A request to the server of an `Origin`.

    Attributes:
        method: `GET` or `POST`.
        target: path and query below the server's base URL.
        fields: headers, names in lower case; without Host and Content-Length.
        body: flat views of the bytes, in order.
        report: told what was sent; told what is received by who reads the response.
    """

    method: str
    target: str
    fields: Fields
    body: tuple[memoryview, ...] = ()
    report: Callable[[Progress], None] | None = None

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return sum([view.nbytes for view in self.body])

    def pieces(self) -> Iterator[memoryview]:
        """The body in views of at most `PIECE_BYTES`; each is resumed when its bytes have been sent.

        The views are those of the caller's memory, never joined, so that a large body can be sent again.
        """
        sent, total = 0, self.content_length
        if self.report:
            self.report(Progress(0, total))
        for view in self.body:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                yield piece
                sent += piece.nbytes
                if self.report and (total > SMALL_BODY_BYTES or sent == total):
                    self.report(Progress(sent, total))


@dataclass(slots=True)
class ResponseHead:
    """Status and headers (names in lower case, values of repeated ones joined by commas) of a response."""

    status: int
    headers: Mapping[str, str]

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _State(enum.Enum):
    """What the next bytes are, and the states that may follow."""

    HEAD = "a head; HEAD again after an informational one, or LENGTH, CHUNK_LINE, UNTIL_CLOSE, COMPLETE"
    LENGTH = "body, as much as is left of Content-Length; COMPLETE"
    CHUNK_LINE = "the size of a chunk; CHUNK, or TRAILERS after the last one"
    CHUNK = "body, as much as is left of the chunk; CHUNK_END"
    CHUNK_END = "the end of a chunk's last line; CHUNK_LINE"
    TRAILERS = "headers after the last chunk, ignored; COMPLETE"
    UNTIL_CLOSE = "body, until the connection is closed; COMPLETE"
    COMPLETE = "no part of this response"


_HEAD, _LENGTH_BODY, _UNTIL_CLOSE, _COMPLETE = _State.HEAD, _State.LENGTH, _State.UNTIL_CLOSE, _State.COMPLETE
_BODY = (_LENGTH_BODY, _State.CHUNK, _UNTIL_CLOSE)


class ResponseParser:
    """Reads one response from the bytes that a connection gives.

    What has a syntax is fed. Bytes of the body may bypass the parser: `straight` names the memory that the socket may
    receive into, so that tensor bytes are copied once, from the socket into their array.

    Attributes:
        head: the response's head once it came.
        status_line: the first line of the head.
        fields: the headers as they came.
    """

    def __init__(self, origin: Origin, method: str) -> None:
        self._origin, self._method = origin, method
        self._state = _HEAD
        self._buffer, self._start = b"", 0  # what was fed, and up to where it was taken
        self._left = 0  # bytes of a body with Content-Length, or of a chunk
        self._head_bytes = 0  # of heads, or trailers, so far
        self._keep_alive = False
        self.head: ResponseHead | None = None
        self.status_line = ""
        self.fields: list[tuple[str, str]] = []

    @property
    def reusable(self) -> bool:
        """Whether the connection can serve another request: the response is complete, and nothing came beyond it."""
        return self._keep_alive and self._state is _COMPLETE and self._start == len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection; none mean that the server closed it.

        Raises:
            ConnectionProblem: the connection ended inside the response, or this is no HTTP/1.1.
        """
        if not data:
            self.received(0)
        rest = self._buffer[self._start :]
        self._buffer, self._start = rest + data if rest else data, 0
        while self._state is _HEAD and self._read_head():
            pass

    def take(self, target: memoryview) -> int | None:
        """Give out bytes of the body that were fed: how many, 0 at its end, None if more must come first.

        Raises:
            ConnectionProblem: chunks that are none.
        """
        while self._state not in _BODY:
            if self._state is _COMPLETE:
                return 0
            if not self._read_line():
                return None
        start, count = self._start, min(len(self._buffer) - self._start, len(target))
        if self._state is not _UNTIL_CLOSE:
            count = min(count, self._left)
        if not count:
            return None
        target[:count] = self._buffer[start : start + count]
        self._start += count
        self.received(count)
        return count

    def straight(self, size: int) -> int:
        """How many bytes of the body the socket may receive into memory of this size; 0 if they must be fed."""
        if self._state not in _BODY or self._start < len(self._buffer):
            return 0
        return size if self._state is _UNTIL_CLOSE else min(size, self._left)

    def received(self, count: int) -> None:
        """So many bytes of the body were given out; 0 if the server closed the connection.

        Raises:
            ConnectionProblem: the connection ended inside the response.
        """
        if self._state is _UNTIL_CLOSE:
            if not count:
                self._state, self._keep_alive = _COMPLETE, False
        elif count:
            self._left -= count
            if not self._left:
                self._state = _COMPLETE if self._state is _LENGTH_BODY else _State.CHUNK_END
        elif self._state is _HEAD:
            raise ConnectionProblem(f"{self._origin} closed the connection without an answer")
        else:
            raise ConnectionProblem(f"{self._origin} closed the connection before the end of its answer")

    def _no_http(self, why: str) -> ConnectionProblem:
        return ConnectionProblem(f"what answered at {self._origin} does not speak HTTP/1.1 ({why})")

    def _read_head(self) -> bool:
        """Read the next head; whether another one may follow in what was fed."""
        buffer, start = self._buffer, self._start
        if not buffer.startswith(b"HTTP/1."[: len(buffer) - start], start):
            raise self._no_http(f"its answer begins with {buffer[start : start + 20]!r}")
        end = buffer.find(b"\r\n\r\n", start)
        size = (len(buffer) if end < 0 else end + 4) - start
        if self._head_bytes + size > _MOST_HEAD_BYTES:
            raise self._no_http(f"the head of its answer has more than {_MOST_HEAD_BYTES} bytes")
        if end < 0:
            return False
        text = buffer[start:end].decode("latin-1")
        line, fields = _STATUS_LINE.match(text), _FIELD.findall(text)
        if line is None or len(fields) != text.count("\r\n"):
            raise self._no_http("the head of its answer is malformed")
        self._start += size
        self._head_bytes += size
        status = int(text[9:12])
        if status < 200:  # informational: the response comes after it
            if status == 101:
                raise self._no_http("it changes the protocol")
            return self._start < len(buffer)
        headers = {name.lower(): value for name, value in fields}
        if len(headers) < len(fields):
            for key in headers:
                headers[key] = ", ".join([value for name, value in fields if name.lower() == key])
        self.head, self.status_line, self.fields = ResponseHead(status, headers), line[0], fields
        self._keep_alive = text[7] == "1" and "close" not in headers.get("connection", "").lower()
        self._state = self._state_after(status, headers)
        return False

    def _state_after(self, status: int, headers: Mapping[str, str]) -> _State:
        """How the body ends: RFC 9112 section 6.3."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise self._no_http("its answer has another Transfer-Encoding than chunked, or also a Content-Length")
        if length is not None and not _LENGTH.fullmatch(length):
            raise self._no_http("its answer has no single Content-Length")
        self._left, self._head_bytes = int(length or 0), 0
        if self._method == "HEAD" or status in _NO_BODY or length is not None:
            return _LENGTH_BODY if self._left and self._method != "HEAD" and status not in _NO_BODY else _COMPLETE
        return _UNTIL_CLOSE if coding is None else _State.CHUNK_LINE

    def _read_line(self) -> bool:
        """Read the next line of CHUNK_LINE, CHUNK_END or TRAILERS; False if it has not come whole."""
        end = self._buffer.find(b"\r\n", self._start)
        self._head_bytes = 0 if self._state is not _State.TRAILERS else self._head_bytes + max(0, end - self._start)
        if self._head_bytes + (len(self._buffer) - self._start if end < 0 else 0) > _MOST_HEAD_BYTES:
            raise self._no_http("its answer has a chunk with too long a line")
        if end < 0:
            return False
        line, self._start = self._buffer[self._start : end], end + 2
        if self._state is _State.CHUNK_LINE and (chunk := _CHUNK_LINE.fullmatch(line)):
            self._left = int(chunk[1], 16)
            self._state = _State.CHUNK if self._left else _State.TRAILERS
        elif self._state is _State.CHUNK_END and not line:
            self._state = _State.CHUNK_LINE
        elif self._state is _State.TRAILERS and (not line or _FIELD.fullmatch("\r\n" + line.decode("latin-1"))):
            self._state = _State.TRAILERS if line else _COMPLETE
        else:
            raise self._no_http("its answer has a malformed chunk")
        return True
