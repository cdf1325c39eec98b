"""HTTP/1.1 without a socket: a request's bytes, and the response in the bytes that come.

Only what this SDK needs of RFC 9110 and 9112, strictly: lines end in CRLF, no header is folded over several lines, no
protocol is upgraded, a body has a Content-Length, or chunks, or the end of the connection. Anything else is refused.
Where a response is taken, h11 takes it for the same (`tests/client/test_http1.py`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from ._origin import Origin
from ._results import Progress
from .problems import ConnectionProblem

__all__ = [
    "PIECE_BYTES",
    "SMALL_BODY_BYTES",
    "ProgressMeter",
    "Report",
    "Request",
    "ResponseHead",
    "ResponseParser",
    "encode_request_head",
]

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined with its head: one packet train instead of two
_MOST_HEAD_BYTES = 1 << 16  # of the response's head and the informational ones before it; of trailers
_MOST_CHUNK_LINE_BYTES = 1 << 12
_NO_BODY = (204, 304)  # RFC 9110 section 6.4.1: whatever their headers say

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_TEXT = rb"[\t -~\x80-\xff]*"  # RFC 9110 section 5.5
_TRIMMED = rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?"
_REQUEST_HEAD = re.compile(
    _TOKEN + rb" [!-~]+ HTTP/1\.1\r\n(?:" + _TOKEN + rb": " + _TRIMMED + rb"\r\n)+\r\n"
)  # RFC 9112 sections 3 and 5
_FIELDS = rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*"
_RESPONSE_HEAD = re.compile(rb"HTTP/1\.[01] [1-9][0-9]{2}(?: " + _TEXT + rb")?\r\n" + _FIELDS)
_FIELD = re.compile(_TOKEN + rb":" + _TEXT)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;" + _TEXT + rb")?")  # RFC 9112 section 7.1; extensions ignored
_LENGTH = re.compile(r"[0-9]{1,18}")

Report: TypeAlias = Callable[[Progress], None]


class ProgressMeter:
    """Counts a call's bytes for the caller's `progress` function."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._sent = self._to_send = 0

    def sending(self, sent: int, to_send: int) -> None:
        if self._report:
            self._sent, self._to_send = sent, to_send
            self._report(Progress(sent, to_send))

    def receiving(self, received: int, to_receive: int | None) -> None:
        if self._report:
            self._report(Progress(self._sent, self._to_send, received, to_receive))


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server of an `Origin`.

    Attributes:
        method: `GET` or `POST`.
        target: path and query below the server's base URL.
        headers: names in lower case; without Host and Content-Length.
        body: flat views of the bytes, in order.
        meter: told what was sent.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: tuple[memoryview, ...] = ()
    meter: ProgressMeter = field(default_factory=lambda: ProgressMeter(None))

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return sum([view.nbytes for view in self.body])

    def pieces(self, head: bytes = b"") -> Iterator[memoryview]:
        """A head and the body in views of at most `PIECE_BYTES`; each is resumed when its bytes have been sent.

        The views of a large body are those of the caller's memory, never joined, so that it can be sent again.
        """
        total = self.content_length
        self.meter.sending(0, total)
        if total <= SMALL_BODY_BYTES:
            if joined := b"".join((head, *self.body)):
                yield memoryview(joined)
                self.meter.sending(total, total)
            return
        if head:
            yield memoryview(head)
        sent = 0
        for view in self.body:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                yield piece
                sent += piece.nbytes
                self.meter.sending(sent, total)


@lru_cache(maxsize=256)  # the next call's head is most often the same
def encode_request_head(method: str, target: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    """The bytes of a request's head.

    Raises:
        ValueError: a method, target, header name or value that would break the head.
    """
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in fields], "", ""]
    head = "\r\n".join(lines).encode("latin-1")
    if not _REQUEST_HEAD.fullmatch(head) or head.count(b"\r\n") != len(lines) - 1:  # a value may hold more lines
        raise ValueError(f"no valid request head: {head[:200]!r}")
    return head


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response.

    Attributes:
        status: three digits.
        headers: names in lower case, values of repeated ones joined by commas.
    """

    status: int
    headers: Mapping[str, str]

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _State(enum.Enum):
    """What the next bytes are. Each state but the last lists its successors."""

    HEAD = "a head: HEAD again after an informational one, LENGTH, CHUNK_LINE, UNTIL_CLOSE or COMPLETE"
    LENGTH = "body, as many bytes as are left of Content-Length: COMPLETE"
    CHUNK_LINE = "the size of a chunk: CHUNK, or TRAILERS after the last one"
    CHUNK = "body, as many bytes as are left of the chunk: CHUNK_END"
    CHUNK_END = "the line's end after a chunk: CHUNK_LINE"
    TRAILERS = "headers after the last chunk, which are ignored: COMPLETE"
    UNTIL_CLOSE = "body, until the connection is closed: COMPLETE"
    COMPLETE = "of no response; the connection is not used again"


_BODY = (_State.LENGTH, _State.CHUNK, _State.UNTIL_CLOSE)


class ResponseParser:
    """Reads one response from the bytes that a connection gives.

    The head, and what surrounds chunks, is fed; bytes of the body may bypass the parser: `straight` names the memory
    that the socket may receive into, so that tensor bytes are copied once, from the socket into their array.

    Args:
        origin: the server, for messages.
        method: of the request; a response to `HEAD` has no body.

    Attributes:
        head: the response's head once it came.
        head_text: the same as it came, without its last line end.
    """

    def __init__(self, origin: Origin, method: str) -> None:
        self._origin, self._method = origin, method
        self._state = _State.HEAD
        self._buffer = bytearray()  # what was fed; taken up to `_start`
        self._start = 0
        self._left = 0  # bytes of a body with Content-Length, or of a chunk
        self._heads_bytes = 0
        self._keep_alive = False
        self.head: ResponseHead | None = None
        self.head_text = ""

    @property
    def complete(self) -> bool:
        """Whether the body was given out to its end."""
        return self._state is _State.COMPLETE

    @property
    def reusable(self) -> bool:
        """Whether the server lets the connection serve another request, and sent nothing beyond this response."""
        return self._keep_alive and self._state is _State.COMPLETE and self._start == len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection; none mean that the server closed it.

        Raises:
            ConnectionProblem: the connection ended inside the response, or this is no HTTP/1.1.
        """
        if not data:
            self.received(0)
            return
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data
        while self._state is _State.HEAD and self._read_head():
            pass

    def take(self, target: memoryview) -> int | None:
        """Give out bytes of the body that were fed: how many, 0 at its end, None if more must come first.

        Raises:
            ConnectionProblem: chunks that are none.
        """
        while self._state not in _BODY:
            if self._state is _State.COMPLETE:
                return 0
            if not self._read_line():
                return None
        available = len(self._buffer) - self._start
        if not available:
            return None
        count = min(available, len(target))
        if self._state is not _State.UNTIL_CLOSE:
            count = min(count, self._left)
        end = self._start + count
        target[:count] = self._buffer[self._start : end]
        self._start = end
        self._count(count)
        return count

    def straight(self, target: memoryview) -> memoryview | None:
        """The part of this memory that the socket may be read into; None if the bytes must be fed instead."""
        if self._state is _State.UNTIL_CLOSE:
            return target
        return target[: self._left] if self._state in _BODY else None

    def received(self, count: int) -> None:
        """So many bytes were received straight; 0 if the server closed the connection.

        Raises:
            ConnectionProblem: the connection ended inside the response.
        """
        if count:
            self._count(count)
        elif self._state is _State.HEAD:
            raise ConnectionProblem(f"{self._origin} closed the connection without an answer")
        elif self._state is _State.UNTIL_CLOSE:
            self._state, self._keep_alive = _State.COMPLETE, False
        else:
            raise ConnectionProblem(f"{self._origin} closed the connection before the end of its answer")

    def _count(self, count: int) -> None:
        if self._state is not _State.UNTIL_CLOSE:
            self._left -= count
            if self._left == 0:
                self._state = _State.COMPLETE if self._state is _State.LENGTH else _State.CHUNK_END

    def _no_http(self, why: str) -> ConnectionProblem:
        return ConnectionProblem(f"what answered at {self._origin} does not speak HTTP/1.1 ({why})")

    # ---- lines -------------------------------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        """Read the next head; whether another one follows in what was fed."""
        buffer, start = self._buffer, self._start
        if not buffer.startswith(b"HTTP/1."[: len(buffer) - start], start):
            raise self._no_http(f"its answer begins with {bytes(buffer[start : start + 20])!r}")
        end = buffer.find(b"\r\n\r\n", start)
        if self._heads_bytes + (len(buffer) if end < 0 else end) - start > _MOST_HEAD_BYTES:
            raise self._no_http(f"the head of its answer has more than {_MOST_HEAD_BYTES} bytes")
        if end < 0:
            return False
        if not _RESPONSE_HEAD.fullmatch(buffer, start, end + 2):
            raise self._no_http("the head of its answer is malformed")
        text = buffer[start:end].decode("latin-1")
        self._start = end + 4
        self._heads_bytes += self._start - start
        status = int(text[9:12])
        if status < 200:  # informational: the response comes after it
            if status == 101:
                raise self._no_http("it changes the protocol")
            return self._start < len(buffer)
        headers: dict[str, str] = {}
        for line in text.split("\r\n")[1:]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip("\t ")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.head, self.head_text = ResponseHead(status, headers), text
        asked_to_close = "close" in headers.get("connection", "").lower()
        self._keep_alive = text[7] == "1" and not asked_to_close
        self._state = self._body_state(status, headers)
        return False

    def _body_state(self, status: int, headers: Mapping[str, str]) -> _State:
        """How the body ends: RFC 9112 section 6.3."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise self._no_http("its answer has a Transfer-Encoding beside chunked, or also a Content-Length")
        if length is not None and not _LENGTH.fullmatch(length):
            raise self._no_http("its answer has no single Content-Length")
        if self._method == "HEAD" or status in _NO_BODY:
            return _State.COMPLETE
        if coding is not None:
            return _State.CHUNK_LINE
        if length is None:
            return _State.UNTIL_CLOSE
        self._left = int(length)
        return _State.LENGTH if self._left else _State.COMPLETE

    def _read_line(self) -> bool:
        """Read the next line of CHUNK_LINE, CHUNK_END or TRAILERS; False if it has not come whole."""
        end = self._buffer.find(b"\r\n", self._start)
        most = _MOST_HEAD_BYTES - self._heads_bytes if self._state is _State.TRAILERS else _MOST_CHUNK_LINE_BYTES
        if (len(self._buffer) if end < 0 else end) - self._start > most:
            raise self._no_http("its answer has a chunk with too long a line")
        if end < 0:
            return False
        line, self._start = bytes(self._buffer[self._start : end]), end + 2
        if self._state is _State.CHUNK_LINE and (chunk := _CHUNK_LINE.fullmatch(line)):
            self._left = int(chunk[1], 16)
            self._state = _State.CHUNK if self._left else _State.TRAILERS
            self._heads_bytes = 0
        elif self._state is _State.CHUNK_END and not line:
            self._state = _State.CHUNK_LINE
        elif self._state is _State.TRAILERS and not line:
            self._state = _State.COMPLETE
        elif self._state is _State.TRAILERS and _FIELD.fullmatch(line):
            self._heads_bytes += len(line) + 2
        else:
            raise self._no_http("its answer has a malformed chunk")
        return True
