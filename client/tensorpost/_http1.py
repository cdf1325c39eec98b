"""HTTP/1.1 without a socket: a request's bytes, and the response in the bytes that come.

Only what this SDK needs of RFC 9110 and 9112, strictly: lines end in CRLF, no header is folded over several lines, no
protocol is upgraded, a body has a Content-Length, or chunks, or the end of the connection. Anything else is refused.
Where a response is taken, h11 takes it for the same (`tests/client/test_http1.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

from ._origin import Origin
from ._results import Progress
from .problems import ConnectionProblem

__all__ = ["PIECE_BYTES", "SMALL_BODY_BYTES", "Fields", "Request", "Response", "ResponseParser", "encode_head"]

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined with its head: one packet train instead of two
_MOST_HEAD_BYTES = 1 << 16  # of the response's head with the informational ones before it; of a chunk's line

Fields: TypeAlias = tuple[tuple[str, str], ...]
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_VALUE = r"(?:[!-~\x80-\xff]+(?:[\t ]+[!-~\x80-\xff]+)*)?"  # RFC 9110 section 5.5
_FIELD = re.compile(rf"\r\n({_NAME}):[\t ]*({_VALUE})[\t ]*(?=\r\n|\Z)")
_REQUEST_LINE = re.compile(rf"{_NAME} [!-~]+ HTTP/1\.1")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?(?=\r\n|\Z)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t -~\x80-\xff]*)?")  # RFC 9112 section 7.1
_TRAILERS = re.compile(rf"(?:\r\n{_NAME}:[\t ]*{_VALUE}[\t ]*)*".encode("latin-1"))
_UNTIL_CLOSE = 1 << 62  # bytes left of a body that ends with the connection


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
        report: told what was sent; told what is received by the reader of the response.
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


class Response(Protocol):
    """A response whose head came, and whose body is being received.

    Attributes:
        status: the status code.
        headers: names in lower case, values of repeated ones joined by commas.
    """

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read_into(self, target: memoryview) -> int:
        """Receive some bytes of the body into this memory; 0 at its end.

        Raises:
            RequestTimeout: silence for longer than the timeout, or the end of the call's time.
            ConnectionProblem: the connection broke before the end of the body.
            RuntimeError: the response was closed, or is of the process that this one was forked from.
        """
        ...

    async def close(self) -> None:
        """Keep the connection if the response was read to its end, close it otherwise."""


class ResponseParser:
    """Reads the response to a GET or a POST from the bytes that a connection gives.

    What has a syntax is fed. Bytes of the body may bypass the parser: `straight` says how many of them the socket may
    receive into the caller's memory, so that tensor bytes are copied once, from the socket into their array.

    Attributes:
        status: the status code; 0 until the head came.
        headers: see `Response`.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._buffer, self._start = b"", 0  # what was fed, and up to where it was taken
        self._head_bytes = 0  # of the informational heads so far
        self._left = 0  # bytes of the body, or of the current chunk, that were not given out
        self._chunk_end: bytes | None = None  # what stands before the next chunk's line; None if there are no chunks
        self._complete = self._until_close = self._keep_alive = False
        self.status = 0
        self.headers: Mapping[str, str] = {}

    @property
    def reusable(self) -> bool:
        """Whether the connection can serve another request: the response is complete, and nothing came beyond it."""
        return self._keep_alive and self._complete and self._start == len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection; none mean that the server closed it.

        Raises:
            ConnectionProblem: the connection ended inside the response, or this is no HTTP/1.1.
        """
        if not data:
            self.received(0)
        self._buffer, self._start = self._buffer[self._start :] + data, 0
        while not self.status and self._read_head():
            pass

    def take(self, target: memoryview) -> int | None:
        """Give out bytes of the body that were fed: how many, 0 at its end, None if more must come first.

        Raises:
            ConnectionProblem: malformed chunks.
        """
        while not self._left:
            if self._complete:
                return 0
            if not self._read_chunk_head():
                return None
        start, count = self._start, min(len(self._buffer) - self._start, len(target), self._left)
        if not count:
            return None
        target[:count] = self._buffer[start : start + count]
        self._start += count
        self.received(count)
        return count

    def straight(self, size: int) -> int:
        """How many bytes of the body the socket may receive into memory of this size; 0 if they must be fed."""
        return 0 if self._start < len(self._buffer) else min(size, self._left)

    def received(self, count: int) -> None:
        """So many bytes of the body were given out; 0 if the server closed the connection.

        Raises:
            ConnectionProblem: the connection ended inside the response.
        """
        if count:
            self._left -= count
            self._complete = not self._left and self._chunk_end is None
        elif self._until_close:
            self._left, self._complete = 0, True
        else:
            missing = "before the end of its answer" if self.status else "without an answer"
            raise ConnectionProblem(f"{self._origin} closed the connection {missing}")

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
        fields = _FIELD.findall(text)
        if not _STATUS_LINE.match(text) or len(fields) != text.count("\r\n"):
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
        self._expect_body(status, headers)
        self._keep_alive = (
            text[7] == "1" and not self._until_close and "close" not in headers.get("connection", "").lower()
        )
        self.status, self.headers = status, headers
        return False

    def _expect_body(self, status: int, headers: Mapping[str, str]) -> None:
        """How the body ends: RFC 9112 section 6.3."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise self._no_http("its answer has another Transfer-Encoding than chunked, or also a Content-Length")
        if length is not None and not _LENGTH.fullmatch(length):
            raise self._no_http("its answer has no single Content-Length")
        if status in (204, 304) or length is not None:  # RFC 9110 section 6.4.1: these never have a body
            self._left = 0 if status in (204, 304) else int(length or 0)
            self._complete = not self._left
        elif coding is not None:
            self._chunk_end = b""
        else:
            self._until_close, self._left = True, _UNTIL_CLOSE

    def _read_chunk_head(self) -> bool:
        """Read the line before a chunk, or all that follows the last one; False if it has not come whole."""
        assert self._chunk_end is not None
        buffer, start = self._buffer, self._start
        line = start + len(self._chunk_end)
        end = buffer.find(b"\r\n", line)
        found = _CHUNK_LINE.fullmatch(buffer, line, max(end, line))
        if not self._chunk_end.startswith(buffer[start:line]) or (end >= 0 and not found):
            raise self._no_http("its answer has a malformed chunk")
        if found and (size := int(found[1], 16)):
            self._left, self._start, self._chunk_end = size, end + 2, b"\r\n"
            return True
        if found and (after := buffer.find(b"\r\n\r\n", end)) >= 0:
            if not _TRAILERS.fullmatch(buffer, end, after):
                raise self._no_http("its answer has malformed trailers")
            self._start, self._complete = after + 4, True
            return True
        if len(buffer) - start > _MOST_HEAD_BYTES:
            raise self._no_http("its answer has a chunk with too long a line")
        return False
