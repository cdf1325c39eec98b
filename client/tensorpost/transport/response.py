"""Reads a response's body: frames, documents, and problem documents as exceptions.

A frame is believed only after its head agreed with the operation and with Content-Length, and its bytes are written
into the memory that was given and nowhere else. What no tensorpost server answers is a `ServerFault`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, cast

from ..bodies.frame import ALSO_READ, MEDIA_TYPE, FrameHead, HeadReader
from ..bodies.strict_json import read_json
from ..values.datatypes import DataType
from ..values.problems import (
    ConnectionProblem,
    IncompleteBody,
    InvalidRequest,
    RequestTimeout,
    ServerFault,
    TensorpostError,
    Unauthenticated,
    from_problem,
)
from .api_key import KEY_ADVICE
from .http1 import PIECE_BYTES, Request
from .progress import Progress
from .tracing import CallSpan

_HEAD_READ_BYTES = 1 << 12  # of a frame's head, at a time
_DOCUMENT_READ_BYTES = 1 << 16  # of a document, at a time
_MOST_JSON_BYTES = 1 << 24
_MOST_PROBLEM_BYTES = 1 << 20
_LONGEST_QUOTE = 200  # characters of an unreadable error that are shown


class Response(ABC):
    """A response whose head has arrived. Reads its body; an error says how much had arrived when the connection broke.

    Attributes:
        headers: names in lower case, values of repeated ones joined by commas.
        when_closed: called when the response is closed.
        span: OpenTelemetry span of the call, ended when the response is closed; None without OpenTelemetry.
    """

    def __init__(self, request: Request) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.span: CallSpan | None = None
        self.when_closed: Callable[[], None] | None = None
        self._request = request
        self._received = 0

    @abstractmethod
    async def read_into(self, target: memoryview) -> int:
        """Receive some bytes of the body into this memory; 0 at its end, `ConnectionProblem` if it breaks off."""

    @abstractmethod
    async def close(self) -> None:
        """Keep the connection if the response was read to its end, close it otherwise."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self.span is not None:
            self.span.end(self.status, error)
        if self.when_closed is not None:
            self.when_closed()
        await self.close()

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @cached_property
    def expected(self) -> int | None:
        """Bytes of the body, as Content-Length says."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    @property
    def _media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def fault(self, detail: str) -> ServerFault:
        """The error of an answer that a tensorpost server does not give."""
        return ServerFault(detail, status=self.status, request_id=self.request_id)

    # ---- bytes -------------------------------------------------------------------------------------------------------

    async def receive(self, target: memoryview) -> int:
        """Read some bytes into this memory; 0 at the end of a complete body, an error at that of an incomplete one."""
        try:
            count = await self.read_into(target)
        except RequestTimeout as error:
            error.detail = f"{error.detail}, after {self._progress()} of the answer"
            error.extra.update(received=self._received, expected=self.expected)
            error.status, error.request_id = self.status, self.request_id
            raise
        except ConnectionProblem as error:
            raise self.incomplete() from error
        if count == 0 and self.expected is not None and self._received < self.expected:
            raise self.incomplete()
        self._received += count
        if count and self._request.report and self.status < 300:
            sent = self._request.content_length
            self._request.report(Progress(sent, sent, self._received, self.expected))
        return count

    def _progress(self) -> str:
        known = f" of {self.expected:,}" if self.expected is not None else ""
        return f"{self._received:,}{known} bytes"

    def incomplete(self) -> IncompleteBody:
        """The error of an answer that ended too early."""
        return IncompleteBody(
            f"the connection broke after {self._progress()} of the answer; what was received is incomplete",
            extra={"received": self._received, "expected": self.expected},
            status=self.status,
            request_id=self.request_id,
        )

    async def fill(self, memory: memoryview) -> None:
        """Read until this memory is full."""
        at = 0
        while at < len(memory):
            count = await self.receive(memory[at : at + PIECE_BYTES])
            if count == 0:  # only without Content-Length: the frame's head announced more than came
                raise self.incomplete()
            at += count

    async def finish(self) -> None:
        """Read to the end of the body and release the connection."""
        if await self.receive(memoryview(bytearray(1))):
            raise self.fault("the answer is longer than its head says")

    async def read(self, limit: int = _MOST_PROBLEM_BYTES) -> bytearray:
        """The whole body, or its first `limit` bytes and a little more."""
        body, piece = bytearray(), memoryview(bytearray(_DOCUMENT_READ_BYTES))
        while len(body) <= limit and (count := await self.receive(piece)):
            body += piece[:count]
        return body

    # ---- frames ------------------------------------------------------------------------------------------------------

    async def frame_head(self, wanted: Sequence[tuple[DataType, tuple[int, ...]]]) -> Mapping[str, str]:
        """Read the head of a frame that must hold exactly tensors of these types and shapes; returns its metadata."""
        head = await self.any_frame_head()
        carried = [(entry.data_type, entry.shape) for entry in head.tensors]
        if carried != [*wanted]:
            holds, has = ([(row.numpy_name, shape) for row, shape in tensors[:4]] for tensors in (carried, wanted))
            raise self.fault(f"the answer holds {holds}; the operation's outputs are {has}")
        return head.metadata

    async def any_frame_head(self) -> FrameHead:
        """Read the head of a frame."""
        encoding = self.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self.fault(f"the answer is compressed ({encoding[:40]}), although identity was asked for")
        self._require_type("a frame", MEDIA_TYPE, *ALSO_READ)
        reader, piece = HeadReader(content_length=self.expected), memoryview(bytearray(_HEAD_READ_BYTES))
        try:
            while reader.head is None and (count := await self.receive(piece[: reader.missing])):
                reader.feed(piece[:count])
            return reader.finish()
        except InvalidRequest as error:
            # The server's mistake, not the caller's: an InvalidRequest would say the wrong thing.
            raise self.fault(f"the answer is not a readable frame: {error.detail}") from error

    def _require_type(self, what: str, *media_types: str) -> None:
        if (actual := self._media_type) not in media_types:
            raise self.fault(
                f"the answer is {actual[:60] or 'of no type'}, not {what} ({media_types[0]}); is there a tensorpost "
                "server there?"
            )

    # ---- documents ---------------------------------------------------------------------------------------------------

    async def json(self) -> Any:
        """The body as JSON."""
        self._require_type("JSON", "application/json")
        body = await self.read(_MOST_JSON_BYTES)
        try:
            return read_json(body, max_bytes=_MOST_JSON_BYTES)
        except InvalidRequest as error:
            raise self.fault(f"the answer is not readable JSON: {error.detail}") from error

    async def error(self) -> TensorpostError:
        """What a response that is not a success reports."""
        try:
            body = await self.read()
        except (IncompleteBody, RequestTimeout):
            body = bytearray()  # the status alone says more than how its explanation broke off
        problem = self._problem_document(body)
        request_id = self.request_id or problem.get("request_id")
        error = from_problem(problem, self.status, request_id if isinstance(request_id, str) else None)
        if isinstance(error, Unauthenticated):
            error.detail = error.detail.replace(Unauthenticated.SEND_KEY, KEY_ADVICE)
        seconds = _retry_after(self.headers)
        if seconds is not None:
            error.extra["retry_after_seconds"] = seconds
        return error

    def _problem_document(self, body: bytearray) -> Mapping[str, Any]:
        """The RFC 9457 document of an error, or one made up for errors from something in front of the server."""
        if self._media_type in ("application/problem+json", "application/json"):
            try:
                document: object = read_json(body, max_bytes=_MOST_PROBLEM_BYTES)
            except InvalidRequest:
                document = None  # shown as the text that it is
            if isinstance(document, dict):
                return cast("dict[str, Any]", document)
        if 300 <= self.status < 400:
            target = self.headers.get("location", "nowhere")[:_LONGEST_QUOTE]
            return {"detail": f"redirected to {target}; redirects are not followed, use the server's own URL"}
        text = body[: 4 * _LONGEST_QUOTE].decode("utf-8", "replace")
        if self._media_type == "text/html":
            text = re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
        said = " ".join(text.split())[:_LONGEST_QUOTE]
        return {
            "detail": f"HTTP status {self.status}, and not in the words of a tensorpost server: there is another web "
            "server at this URL, or a proxy in front of it answered" + (f": {said}" if said else "")
        }


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of `Retry-After` (RFC 9110 section 10.2.3). A date counts from the answer's own `Date`."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    from email.utils import parsedate_to_datetime  # here, because it is rarely needed and takes a while to load

    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None  # absent, or no date: as good as absent
