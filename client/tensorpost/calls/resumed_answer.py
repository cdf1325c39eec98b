"""`ResumedAnswer`: the outputs of a call as they arrive, over another connection if one breaks.

The rows that are missing are asked for anew, with the tag of the call that began (`bodies/answer_rows.py`), so that the
bytes that are received are those of one answer, or an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..bodies.answer_rows import OutputRows, answer_tag, call_digest
from ..network.deadline import Deadline
from ..transport.http1 import PIECE_BYTES, Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport, worth_retrying
from ..transport.progress import Progress
from ..transport.response import Response
from ..values.problems import CallChanged, IncompleteBody, InvalidParameter, TensorpostError
from .caller_arrays import RequestTemplate, wire_form

if TYPE_CHECKING:
    from ..values.datatypes import DataType

RESUMED_BYTES = 16 << 20
"""The smallest output that is resumed; a smaller one is as soon asked for again as a whole."""
_PATIENCE_SECONDS = 30.0  # from a break until the next byte
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 2.0  # doubled each time
_INLINE_BYTES = 1 << 16  # of a body whose digest takes less time than a thread
_DIGEST_PIECE_BYTES = 1 << 22
_LOOK_SECONDS = 0.002  # at whether a digest is there
_ALTERED = {
    "call": (
        "the inputs have changed since the call began; leave them as they are until the last byte has arrived, or call "
        "again"
    ),
    "backend": "another backend would compute the rest, and its results may differ in the last digits; call again",
}


class ResumedAnswer:
    """A response to a call, whose outputs are received in order; made by `ask`.

    Attributes:
        metadata: what the answer says of itself: backend, device.
        response: the response that is received at present.
    """

    def __init__(
        self, transport: Transport | ManyServers, rows: OutputRows | None, request: Request, deadline: Deadline,
        response: Response,
    ) -> None:  # fmt: skip
        self._transport, self._rows, self._request, self._deadline = transport, rows, request, deadline
        self.response, self.metadata = response, dict[str, str]()
        self._received, self._resumed_at = 0, -1
        self._digest: RequestDigest | None = None

    @classmethod
    async def ask(
        cls, transport: Transport | ManyServers, template: RequestTemplate, request: Request, *, sealed: bool = False,
        digest: RequestDigest | None = None, rows: OutputRows | None = None,
    ) -> Self:  # fmt: skip
        """Send the request of a call and read the head of its answer.

        Args:
            transport: the way to the server.
            template: the requests of this operation.
            request: the request.
            sealed: take the digest of the inputs at once, since the caller may change them before the last byte has
                arrived; else they are read when the connection breaks.
            digest: this digest, if it is there already.
            rows: the rows of the output that are asked for, which the template has as its output; None for all.

        Raises:
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        resumed = _resumable(template, rows)
        if digest is None and sealed and transport.retries and resumed is not None:
            digest = RequestDigest(request)
        deadline = transport.deadline()
        if request.report is not None:
            request.report = _WholeProgress(request.report)
        try:
            answer = cls(transport, resumed, request, deadline, await transport.ask(request, deadline=deadline))
            answer._digest = digest
            await answer._enter([wire_form(slot) for slot in template.outputs])
            if digest is not None:
                await digest.done(transport)
        except BaseException:
            if digest is not None:
                digest.stop()
            raise
        return answer

    @classmethod
    async def ask_from(
        cls, transport: Transport | ManyServers, template: RequestTemplate, request: Request, digest: RequestDigest,
        begin: int, backend: str,
    ) -> Self:  # fmt: skip
        """Ask for the rest of an answer of which another process received a part.

        Args:
            transport: the way to the server.
            template: the requests of this operation, which has one packed output.
            request: the request, as that process sent it.
            digest: its digest, which is done.
            begin: bytes of the output that are there.
            backend: what computed them, as that answer said.

        Raises:
            CallChanged: another backend would compute the rest.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        (slot,), deadline = template.outputs, transport.deadline()
        whole = OutputRows.of(slot.layout)
        rows = whole.after(begin)
        if request.report is not None:
            request.report = _WholeProgress(request.report, slot.layout.size_in_bytes)
        asked = _request_of_rows(request, rows, rows.begin_byte, str(digest.value), backend)
        resumed = _resumable(template, whole)
        answer = cls(transport, resumed, request, deadline, await transport.ask(asked, deadline=deadline))
        answer._digest, answer._received = digest, begin
        await answer._enter([(slot.layout.data_type, rows.layout.sizes)])
        await answer._skip(begin - rows.begin_byte)
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._digest is not None:
            self._digest.stop()
        await self.response.__aexit__(kind, error, traceback)

    async def _enter(self, tensors: Sequence[tuple[DataType, tuple[int, ...]]]) -> None:
        """Read the head of the response, which is closed if it is not that of these tensors."""
        try:
            self.metadata = dict(await self.response.frame_head(tensors))
        except BaseException as error:
            await self.response.__aexit__(type(error), error, None)
            raise

    async def fill(self, memory: memoryview) -> None:
        """Receive the next bytes of the outputs until this memory is full.

        Raises:
            IncompleteBody: the connection broke, and the rest could not be had.
            CallChanged: it broke, and the rest would be of another answer.
        """
        at = 0
        while at < len(memory):
            try:
                count = await self.response.receive(memory[at : at + PIECE_BYTES])
                if not count:  # only without Content-Length: the frame's head announced more than came
                    raise self.response.incomplete()
            except IncompleteBody as error:
                await self._resume(error)
            else:
                at += count
                self._received += count

    async def finish(self) -> None:
        """Read to the end of the body and release the connection."""
        await self.response.finish()

    # ---- after a break -----------------------------------------------------------------------------------------------

    async def _resume(self, broken: IncompleteBody) -> None:
        """Ask for the rows that are missing, until their answer begins.

        Raises:
            IncompleteBody: this call cannot be resumed, or nothing more came for too long.
            CallChanged: the rest would be of another answer.
        """
        whole = self._rows
        if whole is None or not self._transport.retries or "backend" not in self.metadata:
            raise broken
        await self.response.__aexit__(type(broken), broken, None)
        until, wait = time.monotonic() + _PATIENCE_SECONDS, _FIRST_WAIT_SECONDS
        rows = whole.after(self._received)
        arrived = rows.begin_byte - whole.begin_byte
        if self._resumed_at == self._received:  # a connection that breaks before each first byte is no help
            raise broken
        self._resumed_at = self._received
        if self._digest is None:
            self._digest = RequestDigest(self._request)
        await self._digest.done(self._transport)
        if (digest := self._digest.value) is None:
            raise broken
        request = _request_of_rows(self._request, rows, arrived, digest, self.metadata["backend"])
        while True:
            try:
                self.response = await self._transport.ask(request, deadline=self._deadline)
                await self._enter([(rows.layout.data_type, rows.layout.sizes)])
                break
            except CallChanged as error:
                reason = _ALTERED.get(str(error.extra.get("reason")), error.detail)
                raise CallChanged(f"{broken.detail.partition(';')[0]}, and {reason}", extra=error.extra) from broken
            except InvalidParameter:
                raise broken from None  # a server that knows no rows
            except TensorpostError as error:
                may_pass = worth_retrying(error) or isinstance(error, IncompleteBody)
                if not may_pass or time.monotonic() + wait > until or wait >= self._deadline.left:
                    raise broken from error
            await self._transport.runtime.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        await self._skip(self._received - arrived)

    async def _skip(self, count: int) -> None:
        """Receive bytes that have arrived before: the first part of a row."""
        scratch = memoryview(bytearray(min(count, PIECE_BYTES)))
        while count:
            try:
                got = await self.response.receive(scratch[:count])
            except IncompleteBody as error:
                await self._resume(error)
                return
            count -= got


def _request_of_rows(sent: Request, rows: OutputRows, arrived: int, digest: str, backend: str) -> Request:
    """The request for the rows that are missing, after so many bytes of the answer."""
    path, _, query = sent.target.partition("?")
    chosen = [item for item in query.split("&") if item and not item.startswith("rows=")]
    if not any(item.startswith("backend=") for item in chosen):
        chosen.append(f"backend={backend.partition('+')[0]}")
    target = f"{path}?{'&'.join([*chosen, f'rows={rows}'])}"
    if isinstance(sent.report, _WholeProgress):
        sent.report.before = arrived
    return Request(
        sent.method, target, (*sent.fields, ("if-range", answer_tag(digest, backend))), sent.body, sent.report
    )


class _WholeProgress:
    """Tells how far the whole answer has come, whichever part of it a response has; sending it again is not told.

    Args:
        report: the function that is told.
        whole: bytes of the whole answer, if its first part was received by another process.

    Attributes:
        before: bytes of the answer before this part; 0 for the first.
    """

    def __init__(self, report: Callable[[Progress], None], whole: int = 0) -> None:
        self._report, self._received, self._whole, self._joins, self.before = report, 0, whole, bool(whole), 0

    def __call__(self, progress: Progress) -> None:
        """Tell of a part."""
        if not self.before and not self._joins:
            self._received, self._whole = progress.received, progress.to_receive or 0
            self._report(progress)
        elif progress.received or self._joins:
            # Each part has a head of its own, and a part of a row comes twice.
            self._received = min(self._whole, max(self._received, self.before + progress.received))
            self._report(Progress(progress.sent, progress.to_send, self._received, self._whole))


def _resumable(template: RequestTemplate, rows: OutputRows | None) -> OutputRows | None:
    """The rows of an answer, if it is one that is resumed: one packed output that is large enough.

    Args:
        template: the requests of the operation.
        rows: the rows that are asked for; None for all of the output.
    """
    if len(template.outputs) != 1 or not template.may_resume:
        return None
    layout = template.outputs[0].layout
    if not layout.packed or layout.size_in_bytes < RESUMED_BYTES:
        return None
    return rows or OutputRows.of(layout)


class RequestDigest:
    """The digest of a request, which a thread computes if the body is large.

    Attributes:
        value: the digest; None until it is done, and if it could not be computed.
    """

    def __init__(self, request: Request) -> None:
        path, _, query = request.target.partition("?")
        named: Mapping[str, str] = dict(request.fields)
        fields = [named.get(name, "") for name in ("content-type", "tensorpost-shape", "tensorpost-dtype")]
        self._stopped, self._done = threading.Event(), threading.Event()
        self.value: str | None = None

        def compute() -> None:
            try:
                self.value = call_digest(path, query, fields, self._pieces(request))
            finally:
                self._done.set()

        if request.content_length <= _INLINE_BYTES:
            compute()
        else:
            threading.Thread(target=compute, name="tensorpost-digest", daemon=True).start()

    def _pieces(self, request: Request) -> Iterator[memoryview]:
        for view in request.body:
            for start in range(0, view.nbytes, _DIGEST_PIECE_BYTES):
                if self._stopped.is_set():
                    return
                yield view[start : start + _DIGEST_PIECE_BYTES]

    async def done(self, transport: Transport | ManyServers) -> None:
        """Wait until it is there."""
        while not self._done.is_set():
            await transport.runtime.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Nobody needs it any more."""
        self._stopped.set()
