"""What a flow asks for, and what it is told: requests, heads of answers, and the steps between.

A call is a generator, a `Flow`. It yields steps: send this request, read into this memory, wait, hand this block to the
caller. Whoever drives it performs each step over a blocking or an asyncio transport and sends back what came of it, or
throws in the `ConnectionProblem` that came instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from ._answers import Progress
from .problems import ConnectionProblem

__all__ = [
    "PIECE_BYTES",
    "AnswerHead",
    "Flow",
    "HandOut",
    "Meter",
    "Read",
    "Report",
    "Request",
    "Send",
    "Step",
    "Wait",
    "resume",
]

PIECE_BYTES = 1 << 20  # the smallest piece at which sending and receiving reach full speed
_SMALL_BODY_BYTES = 1 << 16  # a body up to this is joined into one piece: one packet train instead of two

T = TypeVar("T")
Report: TypeAlias = Callable[[Progress], None]


class Meter:
    """Counts a call's bytes and tells the caller's `progress` function."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._sent = self._to_send = 0

    def sending(self, sent: int, to_send: int) -> None:
        self._sent, self._to_send = sent, to_send
        if self._report:
            self._report(Progress(sent, to_send))

    def receiving(self, received: int, to_receive: int | None) -> None:
        if self._report:
            self._report(Progress(self._sent, self._to_send, received, to_receive))


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request.

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
    meter: Meter = field(default_factory=lambda: Meter(None))

    @property
    def content_length(self) -> int:
        """Bytes of the body."""
        return sum(view.nbytes for view in self.body)

    def pieces(self) -> Iterator[memoryview]:
        """The body in views of at most `PIECE_BYTES`, from the start each time; resumed when a piece has been sent."""
        total, sent = self.content_length, 0
        self.meter.sending(0, total)
        views = self.body if total > _SMALL_BODY_BYTES else (memoryview(b"".join(self.body)),)
        for view in views:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                yield piece
                sent += piece.nbytes
                self.meter.sending(sent, total)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers (names in lower case, repeated ones joined by commas) of an answer."""

    status: int
    headers: Mapping[str, str]

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; comes back with its `AnswerHead`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the answer's next bytes into this memory; comes back with how many, 0 only at the answer's end."""

    into: memoryview


@dataclass(frozen=True, slots=True)
class Wait:
    """Let go of the answer, and wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give this block to the caller."""

    block: memoryview


Step: TypeAlias = Send | Read | Wait | HandOut
Flow: TypeAlias = Generator[Step, Any, T]


def resume(flow: Flow[Any], outcome: object) -> Step:
    """Tell a flow what came of its last step, a `ConnectionProblem` included; returns the next one.

    Raises:
        StopIteration: the flow has ended; `value` is its result.
    """
    return flow.throw(outcome) if isinstance(outcome, ConnectionProblem) else flow.send(outcome)
