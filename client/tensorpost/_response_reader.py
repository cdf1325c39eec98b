"""Reads a response's body: frames, documents, and the exceptions that it reports.

A frame is believed only after its head agreed with the operation and with Content-Length, and its bytes are written
into the memory that was given and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ._arrays import Call, wire_form
from ._http1 import PIECE_BYTES, Request, ResponseHead
from ._results import Progress
from ._runtime import Deadline
from ._socket_sender import Response, Sender
from .frame import ALSO_READ, MEDIA_TYPE, FrameHead, HeadReader
from .problems import (
    ConnectionProblem,
    IncompleteBody,
    InvalidRequest,
    RequestTimeout,
    ServerFault,
    TensorpostError,
    from_problem,
)
from .strict_json import read_json

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["ResponseReader", "ask"]

_SMALL_BODY_BYTES = 1 << 16  # of a body that is no tensor, read at a time
_HEAD_READ_BYTES = 1 << 12  # enough for the head of a frame with one tensor, and little to copy if data follows it
_MOST_JSON_BYTES = 1 << 24  # of an answer that is a document
_MOST_PROBLEM_BYTES = 1 << 20  # of an error
_LONGEST_QUOTE = 200  # characters of an unreadable error that are shown


async def ask(sender: Sender, request: Request, deadline: Deadline) -> ResponseReader:
    """Send a request and begin to read its response; one that reports an error is read and raised."""
    response = await sender.send(request, deadline)
    if 200 <= response.head.status < 300:
        return ResponseReader(response, request)
    try:
        raise await ResponseReader(response, None).error()
    finally:
        await response.close()


class ResponseReader:
    """A response whose head came: how far its body has come, and what to say when it breaks off."""

    def __init__(self, response: Response, request: Request | None) -> None:
        self.head = response.head
        self.close = response.close
        self._response = response
        self._request = request
        self._received = 0
        self._pushed_back = memoryview(b"")  # read together with a frame's head, but belonging to the tensors
        length = self.head.headers.get("content-length", "")
        self._expected = int(length) if length.isdecimal() else None

    def fault(self, detail: str) -> ServerFault:
        """An answer that a tensorpost server does not give."""
        return ServerFault(detail, status=self.head.status, request_id=self.head.request_id)

    async def _some(self, target: memoryview) -> int:
        """Read some bytes; 0 at the end of a complete body, an error at the end of an incomplete one."""
        try:
            count = await self._response.read_into(target)
        except RequestTimeout as error:
            error.detail = f"{error.detail}, after {self._progress()} of the answer"
            error.extra.update(received=self._received, expected=self._expected)
            error.status, error.request_id = self.head.status, self.head.request_id
            raise
        except ConnectionProblem as error:
            raise self._incomplete() from error
        if count == 0:
            if self._expected is not None and self._received < self._expected:
                raise self._incomplete()
            return 0
        self._received += count
        if self._request and self._request.report:
            sent = self._request.content_length
            self._request.report(Progress(sent, sent, self._received, self._expected))
        return count

    def _progress(self) -> str:
        known = f" of {self._expected:,}" if self._expected is not None else ""
        return f"{self._received:,}{known} bytes"

    def _incomplete(self) -> IncompleteBody:
        return IncompleteBody(
            f"the connection broke after {self._progress()} of the answer; what was received is incomplete",
            extra={"received": self._received, "expected": self._expected},
            status=self.head.status,
            request_id=self.head.request_id,
        )

    async def fill(self, memory: memoryview) -> None:
        """Read until this memory is full."""
        at = min(len(self._pushed_back), len(memory))
        memory[:at] = self._pushed_back[:at]
        self._pushed_back = self._pushed_back[at:]
        while at < len(memory):
            count = await self._some(memory[at : at + PIECE_BYTES])
            if count == 0:  # only without Content-Length: the frame's head announced more than came
                raise self._incomplete()
            at += count

    async def finish(self) -> None:
        """See the end of the body, which sets the connection free for the next request.

        Raises:
            ServerFault: the body goes on.
        """
        if self._received == self._expected and not self._pushed_back:
            return
        if self._pushed_back or await self._some(memoryview(bytearray(1))):
            raise self.fault("the answer is longer than its head says")

    async def frame_head(self, call: Call) -> Mapping[str, str]:
        """Read the head of a frame that must hold exactly the call's outputs, in this order; returns its metadata.

        Raises:
            ServerFault: another media type, a malformed frame, or other tensors than the operation's.
        """
        encoding = self.head.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self.fault(f"the answer is compressed ({encoding[:40]}), although identity was asked for")
        if self.head.media_type not in (MEDIA_TYPE, *ALSO_READ):
            raise self._no("a frame", MEDIA_TYPE)
        scratch = memoryview(bytearray(_HEAD_READ_BYTES))
        count = await self._some(scratch)
        # The head is most often the one of the last answer, which was found right.
        known, metadata, total = call.last_answer
        if known and bytes(scratch[: len(known)]) == known and self._expected == total and count >= len(known):
            self._pushed_back = scratch[len(known) : count]
            return metadata
        frame = await self._new_frame_head(scratch, count)
        wanted = [wire_form(slot) for slot in call.outputs]
        found = [(entry.data_type, entry.shape) for entry in frame.tensors]
        if found != wanted:
            holds, has = ([(row.numpy_name, shape) for row, shape in tensors[:4]] for tensors in (found, wanted))
            raise self.fault(f"the answer holds {holds}; the operation's outputs are {has}")
        if frame.head_bytes <= count:
            call.last_answer = bytes(scratch[: frame.head_bytes]), frame.metadata, frame.total_bytes
        return frame.metadata

    async def _new_frame_head(self, scratch: memoryview, count: int) -> FrameHead:
        reader = HeadReader(content_length=self._expected)
        try:
            while True:
                if count == 0:
                    reader.finish()
                taken = reader.feed(scratch[:count])
                self._pushed_back = scratch[taken:count]
                if reader.head is not None:
                    return reader.head
                count = await self._some(scratch)
        except InvalidRequest as error:
            # The server's mistake, not the caller's: an InvalidRequest would say the wrong thing.
            raise self.fault(f"the answer is no readable frame: {error.detail}") from error

    def _no(self, what: str, media_type: str) -> ServerFault:
        found = self.head.media_type[:60] or "of no type"
        return self.fault(f"the answer is {found}, not {what} ({media_type}); is there a tensorpost server there?")

    async def json(self) -> Any:
        """The body as JSON.

        Raises:
            ServerFault: another media type, or no JSON.
        """
        if self.head.media_type != "application/json":
            raise self._no("JSON", "application/json")
        raw = await self._bounded(_MOST_JSON_BYTES)
        try:
            return read_json(raw, max_bytes=_MOST_JSON_BYTES)
        except InvalidRequest as error:
            raise self.fault(f"the answer is no readable JSON: {error.detail}") from error

    async def drain(self) -> None:
        """Read the body and forget it, so that the connection can be used again."""
        await self._bounded(_MOST_PROBLEM_BYTES)

    async def error(self) -> TensorpostError:
        """The exception for an answer that is not a success."""
        try:
            raw = await self._bounded(_MOST_PROBLEM_BYTES)
        except (IncompleteBody, RequestTimeout):
            raw = bytearray()  # the status alone says more than how its explanation broke off
        problem = _problem_document(self.head, raw)
        request_id = self.head.request_id or problem.get("request_id")
        error = from_problem(problem, self.head.status, request_id if isinstance(request_id, str) else None)
        after = _retry_after(self.head.headers)
        if after is not None:
            error.extra["retry_after_seconds"] = after
        return error

    async def _bounded(self, limit: int) -> bytearray:
        """The whole body, or its first `limit` bytes and a little more."""
        raw = bytearray()
        scratch = memoryview(bytearray(_SMALL_BODY_BYTES))
        while len(raw) <= limit:
            count = await self._some(scratch)
            if count == 0:
                break
            raw += scratch[:count]
        return raw


def _problem_document(head: ResponseHead, raw: bytearray) -> Mapping[str, Any]:
    """The RFC 9457 document of an error, or one made up for errors from something in front of the server."""
    if head.media_type in ("application/problem+json", "application/json"):
        try:
            found: object = read_json(raw, max_bytes=_MOST_PROBLEM_BYTES)
        except InvalidRequest:
            found = None  # shown as the text that it is
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    if 300 <= head.status < 400:
        where = head.headers.get("location", "nowhere")[:_LONGEST_QUOTE]
        return {"detail": f"redirected to {where}; redirects are not followed, use the server's own URL"}
    text = " ".join(raw[: 4 * _LONGEST_QUOTE].decode("utf-8", "replace").split())[:_LONGEST_QUOTE]
    said = f": {text}" if text else ""
    return {"detail": f"HTTP status {head.status} without a problem document{said}"}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of `Retry-After` (RFC 9110 section 10.2.3). A date counts from the answer's own `Date`."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    from email.utils import parsedate_to_datetime  # here, because it is rarely needed and takes a while to load

    try:
        until: datetime = parsedate_to_datetime(text)
        return max(0.0, (until - parsedate_to_datetime(headers.get("date", ""))).total_seconds())
    except (TypeError, ValueError):
        return None  # absent, or no date: as good as absent
