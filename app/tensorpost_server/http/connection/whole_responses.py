"""Responses that are written in one piece, and the replays that give them without the application (`replay.py`)."""

from __future__ import annotations

from typing import NamedTuple

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..bounded_cache import MOST_KEY_BYTES, BoundedCache
from .connection_states import IncomingRequest
from .whole_messages import ReceiveFunction, ReplayFunction, WholeMessages


class KnownRequest(NamedTuple):
    """What answers requests whose head is known.

    Attributes:
        length: the length of the body of such a request.
        replay: answers such a body.
        receive: takes such a body if it arrives in parts; None if the application has to.
    """

    length: int
    replay: ReplayFunction
    receive: ReceiveFunction | None


class ReplayCache(BoundedCache[bytes, KnownRequest]):
    """Replays by the head of a request."""

    def keep(self, request: IncomingRequest, replay: ReplayFunction, receive: ReceiveFunction | None) -> None:
        """Keep the replay of a request whose head began a read: then these bytes, and no others, are its head.

        Requests that come in parts are replayed only with `receive`.
        """
        length = request.content_length
        is_useful = request.after_head == length or (receive is not None and request.after_head < length)
        if 0 < len(request.head) <= MOST_KEY_BYTES and is_useful:
            self.put(request.head, KnownRequest(length, replay, receive))


def whole_response(default_headers: list[tuple[bytes, bytes]], lines: bytes, body: bytes) -> bytes:
    """A response 200 as it is sent: the server's header fields, the header lines of this response, the body."""
    usual = b"".join([b"%b: %b\r\n" % field for field in default_headers])
    return b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (usual, lines, body)


def whole_messages_of(cycle: RequestResponseCycle, request: IncomingRequest, replays: ReplayCache) -> WholeMessages:
    """The extension `WholeMessages` of a request."""
    waits = cycle.waiting_for_100_continue  # with the body, for `100 Continue`

    def receive() -> bytes | None:
        """See `WholeMessages.receive`."""
        if cycle.more_body or cycle.disconnected or cycle.response_complete:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def send(
        lines: bytes, body: bytes, replay: ReplayFunction | None = None, receive: ReceiveFunction | None = None
    ) -> bool:
        """See `SendWhole`: what uvicorn's `send` does with the two messages, where nothing is special."""
        unusual = cycle.more_body or cycle.response_started or cycle.disconnected
        if unusual or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        cycle.response_started = True
        cycle.transport.write(whole_response(cycle.default_headers, lines, body))
        cycle.response_complete = True
        cycle.message_event.set()
        if replay is not None:
            replays.keep(request, replay, None if waits else receive)
        cycle.waiting_for_100_continue = False
        cycle.on_response()
        return True

    return WholeMessages(receive, send)
