"""The states of a connection that reads requests, every change between them, and the request whose bytes arrive."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .direct_body import DirectBody


class Reading(enum.Enum):
    """What the bytes are that arrive next on a connection."""

    IDLE = "the beginning of a request, while no response is outstanding"
    REPLAYED = "the rest of a body of known length, after a known head; its replay answers"
    PARSED = "a head, or a small or chunked body: they go to the parser"
    DIRECT = "a body of known length that is counted and not parsed"
    REFUSED = "discarded: a refusal waits for the responses before it"
    LINGERING = "discarded: the last response has been sent"


class Event(enum.Enum):
    """What changes a connection's `Reading`."""

    REQUEST_BEGINS = "the first bytes of a request that is not replayed"
    KNOWN_HEAD = "the first bytes of a request that is replayed when all of it has come"
    REPLAY_ENDS = "that request is answered, or goes to the parser from its beginning"
    DIRECT_BODY = "a head is complete, and its body will be counted"
    BODY_ENDS = "the last byte of a counted body"
    ALL_ANSWERED = "a response is complete, and no other request has begun"
    REFUSE = "a request cannot be given to the application"
    LAST_RESPONSE = "a response after which the connection ends has been sent"


TRANSITIONS: Mapping[tuple[Reading, Event], Reading] = {
    (Reading.IDLE, Event.REQUEST_BEGINS): Reading.PARSED,
    (Reading.IDLE, Event.KNOWN_HEAD): Reading.REPLAYED,
    (Reading.REPLAYED, Event.REPLAY_ENDS): Reading.IDLE,
    (Reading.PARSED, Event.DIRECT_BODY): Reading.DIRECT,
    (Reading.DIRECT, Event.BODY_ENDS): Reading.PARSED,
    (Reading.PARSED, Event.ALL_ANSWERED): Reading.IDLE,
    (Reading.PARSED, Event.REFUSE): Reading.REFUSED,
    (Reading.REFUSED, Event.LAST_RESPONSE): Reading.LINGERING,
    (Reading.DIRECT, Event.LAST_RESPONSE): Reading.LINGERING,
}
"""The state after an event; a pair that is not listed cannot happen."""


@dataclass(slots=True)
class IncomingRequest:
    """The request whose bytes arrive, or arrived last.

    Attributes:
        head: the bytes of its head, if they began a read; else empty.
        after_head: the number of bytes after that head in the same read.
        begun: whether the parser has begun it.
        in_head: whether its head has begun and is not complete.
        content_length: the length of its body in bytes, as its head says; 0 for a chunked body.
        unparsed_body: bytes of a small body of known length that the parser has not had.
        direct_body: the body, if it is counted and not parsed.
    """

    head: bytes = b""
    after_head: int = 0
    begun: bool = False
    in_head: bool = False
    content_length: int = 0
    unparsed_body: int = 0
    direct_body: DirectBody | None = None

    @property
    def unread(self) -> int:
        """Bytes of a counted body that have not arrived."""
        return 0 if self.direct_body is None else self.direct_body.unread
