"""Responses that are written in one piece, and the replays that give them without the application (`replay.py`)."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..bounded_cache import MOST_KEY_BYTES, BoundedCache
from .connection_states import IncomingRequest
from .whole_messages import ReplayFunction, WholeMessages


class ReplayCache(BoundedCache[bytes, tuple[ReplayFunction, int]]):
    """Replays by the head of a request, each with the length of the body of such a request."""

    def keep(self, request: IncomingRequest, replay: ReplayFunction) -> None:
        """Keep the replay of a request that was a read of its own: then these bytes, and no others, are its head."""
        if 0 < len(request.head) <= MOST_KEY_BYTES and request.after_head == request.content_length:
            self.put(request.head, (replay, request.content_length))

    def answer(
        self, head: bytes, body: bytes, address: str | None, transport: asyncio.Transport, flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
    ) -> bool:  # fmt: skip
        """Answer a request whose head is known; False if the application has to."""
        known = self.get(head)
        if known is None or len(body) != known[1] or flow.write_paused or transport.is_closing():
            return False
        response = known[0](body, address)
        if response is None:
            return False
        transport.write(_whole_response(default_headers, response[0], response[1]))
        return True


def _whole_response(default_headers: list[tuple[bytes, bytes]], lines: bytes, body: bytes) -> bytes:
    """A response 200 as it is sent: the server's header fields, the header lines of this response, the body."""
    usual = b"".join([b"%b: %b\r\n" % field for field in default_headers])
    return b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (usual, lines, body)


def whole_messages_of(cycle: RequestResponseCycle, request: IncomingRequest, replays: ReplayCache) -> WholeMessages:
    """The extension `WholeMessages` of a request."""

    def receive() -> bytes | None:
        """See `WholeMessages.receive`."""
        if cycle.more_body or cycle.disconnected or cycle.response_complete:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def send(lines: bytes, body: bytes, replay: ReplayFunction | None = None) -> bool:
        """See `SendWhole`: what uvicorn's `send` does with the two messages, where nothing is special."""
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        cycle.response_started = True
        cycle.transport.write(_whole_response(cycle.default_headers, lines, body))
        cycle.response_complete = True
        cycle.message_event.set()
        if replay is not None:
            replays.keep(request, replay)
        cycle.waiting_for_100_continue = False
        cycle.on_response()
        return True

    return WholeMessages(receive, send)
