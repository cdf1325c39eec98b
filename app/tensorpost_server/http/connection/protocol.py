"""HTTP/1.1 for uvicorn, with large bodies received into the application's memory and limits on slow callers.

`DirectProtocol` is uvicorn's httptools protocol with these differences:

1. A body whose length is known and large is counted here and not parsed: after the head the parser is dropped, and a
   new one starts with the first byte after the body. So the body's bytes may take any way into memory.
2. After such a head nothing is read until the application asks, by ASGI's `receive` or by the extension of
   `receive_into.py`, for which the transport reads into the application's memory (`asyncio.BufferedProtocol`).
3. The application's memory is written to only while the application waits for it, and never with bytes after the end of
   the body: those belong to the next request.
4. Heads are limited in bytes and time; bodies and responses must move at a lowest rate; the rest of a body that was
   answered early is read and discarded up to a limit. Beyond these the connection is closed.
5. A malformed request is refused after the responses before it, never in the middle of one. A disconnect is reported to
   all requests of the connection.
6. A few requests are read ahead of the responses before them (`MOST_QUEUED`); the rest of a pipeline stays unparsed, in
   one read's bytes and in the socket.
7. Requests of different addresses begin in turn, a few in each turn of the event loop (`request_turns.py`).
8. A request that arrives in one read, and whose head is the same, byte for byte, as that of a request that was answered
   through the extension of `call_cache.py`, is answered by its `Replay`.

Everything else, small and chunked bodies included, is uvicorn's. Over TLS `receive_into` is not offered: decryption
copies the bytes anyway.

What the bytes are that arrive next is a state; `connection_states.py` lists every change. The state of a response is
uvicorn's (`RequestResponseCycle`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tensorpost.problems import (
    InvalidParameter,
    InvalidRequest,
    LimitExceeded,
    ReceiveTimeout,
    TensorpostError,
    TooBusy,
)

from ...settings import ENVIRONMENT_PREFIX
from ..call_cache import MOST_KEY_BYTES, WHOLE_MESSAGES, BoundedCache, ReplayFunction, WholeMessages
from ..error_responses import problem_document, status_of
from ..headers import header_fields, request_framing, request_id
from ..observability.request_record import OBSERVE_REFUSAL
from .connection_budget import HEALTH_PATHS, ConnectionBudget
from .connection_states import TRANSITIONS, Event, IncomingRequest, Reading
from .receive_into import RECEIVE_INTO, MemoryReceiver, move_bytes
from .request_turns import RequestTurns
from .timeouts import ConnectionLimits, ConnectionMonitor, RateMeter

__all__ = ["DirectProtocol", "protocol_class"]

DIRECT_BYTES = 64 * 1024
"""Bodies from this size on are counted here. A smaller one often comes with its head, and switching costs more."""

LINGER_SECONDS = 5.0
"""How long bytes are read and discarded after a last response. Closing at once would make the system send a reset,
which can overtake the response (RFC 9112, section 9.6)."""

MOST_QUEUED = 8
"""Requests of a connection that are parsed while an earlier one is answered. One hides the time until the next; eight
are room to spare. uvicorn parses all that it reads, and keeps objects of a request for 18 bytes sent."""

MOST_FIELDS = 100
"""Header fields of a request, and trailer fields of a body. Each costs objects that are much larger than the
shortest field."""

_CHUNKED_PART_BYTES = 512
_HEAD_END = b"\r\n\r\n"
_INFERENCE_TARGET = re.compile(rb"(?:https?://[^/]*)?/v2(?:[/?]|$)", re.IGNORECASE)
HALF_CLOSED_SECONDS = 5.0
"""How long a caller that sends no more is waited for with the first byte of a response. It has closed one side of the
connection, or has gone: TCP does not tell which before something is sent."""

_MOST_REPLAYS = 1024
_FIELD_OVERHEAD = 4  # ": " and CRLF

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ServerShare:
    """What the connections of one server share.

    Attributes:
        monitor: looks for slow connections.
        budget: how many connections there may be.
        turns: when their requests begin, and end with their connection.
        replays: by the HTTP head, what answers the next request, and the length of its body.
    """

    monitor: ConnectionMonitor
    budget: ConnectionBudget
    turns: RequestTurns
    replays: BoundedCache[bytes, tuple[ReplayFunction, int]]


_SHARED: WeakKeyDictionary[ServerState, _ServerShare] = WeakKeyDictionary()


def protocol_class(limits: ConnectionLimits) -> type[DirectProtocol]:
    """`DirectProtocol` with these limits, for `uvicorn.Config(http=...)`."""
    return cast("type[DirectProtocol]", type("DirectProtocol", (DirectProtocol,), {"limits": limits}))


class _HeldFlow(FlowControl):
    """Flow control whose reading nobody resumes while it is held.

    Attributes:
        held: whether bytes wait here that are parsed before any further ones are read.
    """

    held = False

    def resume_reading(self) -> None:
        """Read on, unless it is held."""
        if not self.held:
            super().resume_reading()


class _RequestRefused(Exception):
    """Raised in a callback of the parser, to stop it."""


class DirectProtocol(HttpToolsProtocol):
    """See the module. `uvicorn.Config(http=DirectProtocol)` uses the default limits.

    Attributes:
        limits: of every connection of this class.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._application = cast("ASGIApp", self.app)
        if (shared := _SHARED.get(server_state)) is None:
            limits = self.limits
            budget = ConnectionBudget(limits.connections, limits.connections_per_address)
            monitor = ConnectionMonitor(server_state.connections, budget, self.loop, limits.interval)
            shared = _SHARED[server_state] = _ServerShare(
                monitor, budget, RequestTurns(self.loop), BoundedCache(_MOST_REPLAYS)
            )
        self._shared = shared
        self.url = b""  # of the request that came last, as far as it came
        self._meter = RateMeter()
        self._address: str | None = None  # of the caller; a Unix socket has none
        self._health_only = False  # there was no room for this connection
        self._receiver = MemoryReceiver(self)
        self._reading = Reading.IDLE
        self._request = IncomingRequest()
        self._active: RequestResponseCycle | None = None  # the request that the application answers now
        self._refusal: tuple[int, TensorpostError] | None = None  # with its status, from Event.REFUSE on
        self._linger_timer: asyncio.TimerHandle | None = None
        self._half_closed = False
        self._last_replay = 0.0  # the loop's time
        self._backlog = b""  # read, and not parsed before a place for a request is free
        self._unparsed_bytes = 0  # fed to the parser since it last completed a head or found a part of a body
        self._discarded_bytes = 0
        self._arrived_bytes = 0
        self._write_pauses = 0  # how often the transport's buffer was full

    def _change(self, event: Event) -> None:
        self._reading = TRANSITIONS[self._reading, event]

    @property
    def _counting(self) -> bool:
        return self._reading is Reading.COUNTED

    @property
    def unread(self) -> int:
        """Bytes of a counted body that have not arrived."""
        return self._request.unread

    # ---- the transport's callbacks -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as uvicorn narrows it
        """A caller has connected."""
        super().connection_made(transport)
        self.flow = self._flow = _HeldFlow(transport)
        self._shared.monitor.start()
        self._address = self.client[0] if self.client else None
        has_room = self._shared.budget.add(self, self._address)
        self._health_only = not has_room
        if has_room is None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. Ending a request costs as much as beginning one, so it waits for its turn too."""
        cycles = [cycle for cycle in (self._active, *[queued for queued, _ in self.pipeline]) if cycle is not None]
        unfinished = [cycle for cycle in cycles if not cycle.response_complete]
        for cycle in unfinished:
            cycle.disconnected = True
        if unfinished:
            self._shared.turns.begin(self._address, partial(self._end_requests, unfinished, exc))
        else:
            self._end_requests(unfinished, exc)

    def _end_requests(self, unfinished: Sequence[RequestResponseCycle], exc: Exception | None) -> None:
        """Tell all requests of a connection that it is closed, and let its objects be freed."""
        for cycle in unfinished:
            cycle.message_event.set()
        self._shared.budget.remove(self)
        self._unset_keepalive_if_required()  # uvicorn leaves it after a reset, and with it all of this
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self.pipeline.clear()
        self._backlog = b""
        self._receiver.wake()
        self._receiver = cast("Any", None)  # which refers to this: that cycle would wait for the garbage collector

    def data_received(self, data: bytes) -> None:
        """Bytes came while the application waited for none in its memory."""
        self._arrived_bytes += len(data)
        if self._backlog:
            self._backlog += data  # asyncio's transport on Windows delivers a read that was under way
            return
        if self._reading is Reading.IDLE:
            head_end = data.find(_HEAD_END) + len(_HEAD_END)
            head = data[:head_end] if head_end > 3 and data[0] not in b"\r\n" else b""  # a request may begin with CRLF
            if head and not self._health_only and self._replay(head, data[head_end:]):
                return
            self._request = IncomingRequest(head, len(data) - head_end)
            self._change(Event.REQUEST_BEGINS)
        self._unset_keepalive_if_required()
        if self._is_discarded(len(data)):
            return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse bytes of requests, as long as there are places for requests."""
        at = 0
        while at < len(data):
            if self._counting:
                at += self._take_body(data[at:] if at else data)
                continue
            if len(self.pipeline) >= MOST_QUEUED:
                self._hold(data[at:])
                return
            end = self._end_of_part(data, at)
            part = data[at:end] if at or end < len(data) else data
            self._unparsed_bytes += len(part)
            try:
                self.parser.feed_data(part)
                at = end
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # The upgrade is declined (RFC 9110, section 7.8); the parser has stopped after the head.
                at += upgrade.args[0]
                self.parser = self._new_parser()
            except httptools.HttpParserError:
                self.send_400_response("this is not a request of HTTP/1.1")
                return
            if self._counting:
                self.parser = self._new_parser()  # for the bytes after the body
            elif self._unparsed_bytes > self.limits.head_bytes:
                self._refuse_head()
                return
        if self._counting:
            self._pause_body()

    def _end_of_part(self, data: bytes, at: int) -> int:
        """Where to stop parsing, so that few requests are parsed at once: the end of a body, or of the next head."""
        body = self._request.unparsed_body
        if body:
            return min(at + body, len(data))
        # An empty line in a chunk ends no head; many small parts would take the parser long.
        cycle = self._current
        least = _CHUNKED_PART_BYTES if cycle is not None and cycle.more_body else 0
        end = data.find(_HEAD_END, at + least)
        return len(data) if end < 0 else end + len(_HEAD_END)

    def _hold(self, data: bytes) -> None:
        """Keep these bytes, and read none, until a response is complete."""
        self._backlog = data
        self.flow.pause_reading()
        self._flow.held = True

    def _release(self) -> bytes:
        """End `_hold`; the bytes that were kept."""
        data, self._backlog = self._backlog, b""
        self._flow.held = False
        return data

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] # uvicorn's never keeps it open
        """The caller sends no more. Complete requests are answered, then the connection is closed.

        Returns:
            Whether the transport stays open for that.
        """
        active = self._active
        is_due = active is not None and not active.response_complete and not (active is self.cycle and active.more_body)
        if not is_due or self._reading is Reading.LINGERING or not self.transport.can_write_eof():
            return False
        if not self._half_closed:
            self._half_closed = True
            self._linger_timer = self.loop.call_later(HALF_CLOSED_SECONDS, self._end_half_closed)
        return True

    def _end_half_closed(self) -> None:
        """Give a caller up that sends no more, if its response has not begun; else writing shows if it is there."""
        active = self._active
        if active is not None and not active.response_started:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._write_pauses += 1
        super().pause_writing()

    # ---- the parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._request.begun:
            self._request = IncomingRequest()
        self._request.begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer field."""
        if len(self.headers) >= MOST_FIELDS:
            self._refuse_head(f"more than {MOST_FIELDS} fields")
            raise _RequestRefused
        # The parser leaves white space after the value, which is no part of it (RFC 9110, section 5.5).
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """A head is complete: check its limits, and decide how its body is read."""
        size = len(self.url) + sum([len(name) + len(value) + _FIELD_OVERHEAD for name, value in self.headers])
        if size > self.limits.head_bytes:
            self._refuse_head()
            raise _RequestRefused
        try:
            framing = request_framing(header_fields(self.headers), self.parser.get_http_version())
        except InvalidParameter as error:
            self._refuse(error)
            raise _RequestRefused from None
        if self._health_only and not self.url.startswith(HEALTH_PATHS):
            self._refuse(TooBusy("too busy: no connection is free; try again", extra={"retry_after_seconds": 1}))
            raise _RequestRefused
        upgrade = self.parser.should_upgrade()
        if upgrade and framing.chunked and not self._should_upgrade():
            # The parser would take the chunks for the next request.
            self._refuse(InvalidRequest("a chunked body with Upgrade is not taken; leave out one of the two"))
            raise _RequestRefused
        self._discarded_bytes = self._unparsed_bytes = 0
        length = framing.length or 0
        if length > self.limits.drain_bytes:
            self.app = cast("Any", self._close_if_unread)
        super().on_headers_complete()
        self.app = cast("Any", self._application)
        cycle = self._current
        if cycle is None or cycle.scope is not self.scope:
            return  # it becomes a WebSocket
        if not upgrade:
            self.headers = []  # trailer fields come here later; the application has seen the header fields
        request, large = self._request, length >= DIRECT_BYTES
        request.content_length = length
        request.into_memory = large and self.scheme == "http"
        if length and (large or upgrade):
            request.unread = length
            self._change(Event.COUNTED_BODY)
        else:
            request.unparsed_body = length
        if not self.pipeline:
            self._active = cycle
        if self._health_only:
            cycle.keep_alive = False
        scope = cast("dict[str, Any]", self.scope)
        if request.into_memory:
            extension = {
                "receive_into": partial(self._receive_into, cycle),
                "arrived_bytes": lambda: request.content_length - request.unread,
            }
            scope.setdefault("extensions", {})[RECEIVE_INTO] = extension
        elif not (self.config.access_log and cycle.access_log):  # uvicorn writes its log where it sends
            whole = WholeMessages(partial(_receive_whole, cycle), partial(self._send_whole, cycle))
            scope.setdefault("extensions", {})[WHOLE_MESSAGES] = {"whole_messages": whole}

    def on_body(self, body: bytes) -> None:
        """The parser has found a part of a body."""
        self._unparsed_bytes = 0
        if self._reading is Reading.COUNTED:
            self._request.unread -= len(body)
        elif self._request.unparsed_body:
            self._request.unparsed_body -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has completed a request."""
        if self._request.unread:
            return  # an upgrade was declined, and the parser has not looked at the body
        if self._reading is Reading.COUNTED:
            self._change(Event.BODY_ENDS)
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Give a request to the application when it has its turn."""
        self._shared.turns.begin(self._address, partial(self._begin, cycle, app))

    def _begin(self, cycle: RequestResponseCycle, app: Any) -> bool:
        """Give it to the application now; False if its caller has gone."""
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)
        return not cycle.disconnected

    # ---- counted bodies ----------------------------------------------------------------------------------------------

    async def _receive_into(
        self, cycle: RequestResponseCycle, views: Sequence[memoryview], least: int, timeout: float
    ) -> int:
        """See `ReceiveInto`."""
        if cycle.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        count, room = move_bytes(cycle.body, views)
        if count >= least or not room or not cycle.more_body:
            return count
        if cycle.disconnected or cycle.response_complete:
            raise ConnectionResetError
        # More is to come, so this body is the one that arrives, and it is counted here.
        assert cycle is self.cycle
        assert self._reading is Reading.COUNTED
        assert self._receiver.installed
        try:
            count += await self._receiver.receive(room, least - count, timeout)
        finally:
            if self._reading is Reading.COUNTED:
                self._pause_body()
        if cycle.disconnected:
            raise ConnectionResetError
        return count

    def body_received(self, count: int) -> None:
        """So many bytes of the body were written to the application's memory; called by the receiver."""
        self._arrived_bytes += count
        self._request.unread -= count
        if not self._request.unread:
            self._end_body()

    def _take_body(self, data: bytes) -> int:
        """Append the bytes that belong to the body; return their number."""
        request = self._request
        count = min(request.unread, len(data))
        request.unread -= count
        super().on_body(data if count == len(data) else data[:count])
        if not request.unread:
            self._end_body()
        return count

    def _end_body(self) -> None:
        self._change(Event.BODY_ENDS)
        if self._receiver.installed:
            self.flow.pause_reading()
            self.transport.set_protocol(self)
            self._receiver.uninstall()
            self.flow.resume_reading()
        super().on_message_complete()

    def _pause_body(self) -> None:
        """Read no further of this body until the application asks, or has answered."""
        if self.transport.is_closing():
            return
        if not self.cycle.response_complete:
            self.flow.pause_reading()
        if self._receiver.installed:
            return
        if self._request.into_memory:
            # uvloop looks at the kind of protocol when reading starts, not when the protocol is set.
            paused = self.flow.read_paused
            self.flow.pause_reading()
            self.transport.set_protocol(self._receiver)
            self._receiver.install()
            if not paused:
                self.flow.resume_reading()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn does: bytes after a request that asks to close must not spoil its response.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def _current(self) -> RequestResponseCycle | None:
        """The request whose bytes arrive, or arrived last; uvicorn's type says that there always is one."""
        return self.cycle

    # ---- whole responses and replays ---------------------------------------------------------------------------------

    def _send_whole(
        self, cycle: RequestResponseCycle, lines: bytes, body: bytes, replay: ReplayFunction | None = None
    ) -> bool:
        """See `SendWhole`: what uvicorn's `send` does with the two messages, where nothing is special."""
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        cycle.response_started = True
        self._write_whole(lines, body)
        cycle.response_complete = True
        cycle.message_event.set()
        request = self._request
        head, length = request.head, request.content_length
        # Only a request that was a read of its own: then these bytes, and no others, are its head.
        alone = cycle is self.cycle and request.after_head == length
        if replay is not None and alone and 0 < len(head) <= MOST_KEY_BYTES:
            self._shared.replays.put(head, (replay, length))
        cycle.waiting_for_100_continue = False
        cycle.on_response()
        return True

    def _replay(self, head: bytes, body: bytes) -> bool:
        """Answer a request whose head is known; False if the application has to."""
        known = self._shared.replays.get(head)
        if known is None or len(body) != known[1] or self.flow.write_paused or self.transport.is_closing():
            return False
        response = known[0](body)
        if response is None:
            return False
        self._write_whole(*response)
        self.server_state.total_requests += 1
        self._last_replay = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True

    def _write_whole(self, lines: bytes, body: bytes) -> None:
        usual = b"".join([b"%b: %b\r\n" % field for field in self.server_state.default_headers])
        self.transport.write(b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (usual, lines, body))

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long, except for replays, which do not touch this timer."""
        left = self._last_replay + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    # ---- the ends of responses and of connections --------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """A response is complete; the next one may begin."""
        following = self.pipeline[-1][0] if self.pipeline else None
        backlog = self._release() if self._backlog else b""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if following is not None:
            self._active = following
            if self._reading is Reading.COUNTED and following is self.cycle:
                self._pause_body()
        elif self._reading is Reading.PARSED and not self.cycle.more_body and not self._head_has_begun():
            self._change(Event.ALL_ANSWERED)
        if self._refusal is not None and (following is None or following.more_body):
            self._answer_refusal()
        if backlog:
            self._parse(backlog)
        if self._half_closed and (self._active is None or self._active.response_complete or self._active.more_body):
            self.transport.close()

    async def _close_if_unread(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, for a body too long to be discarded: a response before its end is the connection's last."""
        cycle, closing = self.cycle, False
        if cycle.scope is not scope:  # its body is complete, and the next request's is arriving
            await self._application(scope, receive, send)
            return

        async def send_or_linger(message: Message) -> None:
            nonlocal closing
            unread = self.unread if cycle is self.cycle else 0
            if message["type"] == "http.response.start" and unread > self.limits.drain_bytes:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                closing = True
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if last and closing and unread:
                cycle.keep_alive = True  # uvicorn would close at once, and lose the response
                await send(message)
                self._linger()
            else:
                await send(message)

        await self._application(scope, receive, send_or_linger)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request."""
        if self._refusal is None:
            self._refuse(InvalidRequest(msg))

    def _refuse_head(self, excess: str | None = None) -> None:
        limit, setting = self.limits.head_bytes, f"{ENVIRONMENT_PREFIX}MAX_HTTP_HEAD_BYTES"
        excess = excess or f"more than {limit:,} bytes (setting {setting})"
        self._refuse(LimitExceeded(f"the head of this request has {excess}; send a shorter one"), 431)

    def _refuse(self, error: TensorpostError, status: int | None = None) -> None:
        """Answer a request that cannot be given to the application, then close. Responses before it come first."""
        self._refusal = (status or status_of(error), error)
        if (observe := self.app_state.get(OBSERVE_REFUSAL)) is not None:
            observe(self._refusal[0])
        self._change(Event.REFUSE)
        self._answer_refusal()

    def _answer_refusal(self) -> None:
        assert self._refusal is not None
        if self.transport.is_closing() or self._reading is Reading.LINGERING:
            return
        active = self._active
        if active is not None and not active.response_complete:
            if active is not self.cycle or not active.more_body:
                self.flow.pause_reading()
                return
            # The error is in this request's own body.
            active.disconnected = True
            active.message_event.set()
            if active.response_started:
                self.transport.abort()
                return
        status, error = self._refusal
        id_ = request_id(dict(self.headers).get(b"x-request-id") if self._head_has_begun() else None)
        is_inference = _INFERENCE_TARGET.match(self.url) is not None
        status, media_type, problem = problem_document(error, status, id_, is_inference=is_inference)
        body = json.dumps(problem, ensure_ascii=False).encode() + b"\n"
        fields = [*self.server_state.default_headers, (b"content-type", media_type.encode())]
        fields += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        fields += [(b"x-request-id", id_.encode()), (b"x-content-type-options", b"nosniff")]
        if "retry_after_seconds" in error.extra:
            fields.append((b"retry-after", str(error.extra["retry_after_seconds"]).encode()))
        lines = [b"%b: %b\r\n" % field for field in fields]
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.transport.write(b"".join([start, *lines, b"\r\n", body]))
        self._linger()

    def _linger(self) -> None:
        """Close the sending side; the connection is closed when the caller has closed its side, or soon."""
        self._unset_keepalive_if_required()
        transport = self.transport
        if transport.is_closing():
            return
        if not transport.can_write_eof():  # TLS has no half-closed connections
            transport.close()
            return
        self._change(Event.LAST_RESPONSE)
        self._discarded_bytes = 0
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, transport.abort)
        transport.write_eof()
        self.flow.resume_reading()

    def _is_discarded(self, count: int) -> bool:
        """Whether bytes that arrived are not read; too many bytes for nothing abort the connection."""
        ended = self._reading in (Reading.REFUSED, Reading.LINGERING)
        cycle = self._current
        if ended or (cycle is not None and cycle.response_complete and cycle.more_body):
            self._discarded_bytes += count
            if self._discarded_bytes > self.limits.drain_bytes:
                self.transport.abort()
                return True
        return ended

    def shutdown(self) -> None:
        """The server stops: the response that is being made is the last one."""
        if self._active is not None:
            self._active.keep_alive = False
        super().shutdown()

    # ---- slow callers ------------------------------------------------------------------------------------------------

    def _head_has_begun(self) -> bool:
        """Whether a head has begun and is not complete."""
        # uvicorn makes the scope at its start and the cycle at its end.
        scope, cycle = cast("object", self.scope), self._current
        return scope is not None and (cycle is None or cycle.scope is not scope)

    @property
    def is_idle(self) -> bool:
        """See `BudgetedConnection`."""
        cycle = self._current
        return (cycle is None or cycle.response_complete) and not self.transport.is_closing()

    def close_idle(self) -> None:
        """See `BudgetedConnection`."""
        self.transport.close()

    def check(self, now: float) -> None:
        """Close the connection if the caller is too slow; called by the monitor.

        Args:
            now: the loop's time, seconds.
        """
        phase = self._phase()
        if phase is None:
            self._meter.reset()
            return
        name, identity, moved, window = phase
        if not self._meter.is_too_slow((name, identity), moved, now, window, self.limits.bytes_per_second):
            return
        self._meter.reset()
        if name != "head":
            _log.info("closed the connection of %s: its %s moved too slowly", self.client, name)
            self.transport.abort()
        elif self._head_has_begun():
            setting = f"{ENVIRONMENT_PREFIX}HEAD_TIMEOUT_SECONDS"
            seconds = self.limits.head_seconds
            self._refuse(ReceiveTimeout(f"no whole request head came in {seconds:g} s (setting {setting})"))
        else:
            self.transport.close()

    def _phase(self) -> tuple[str, object, int, float] | None:
        """What the caller has to do now: its name, its identity, bytes moved, and the window of their rate in seconds.

        None if it is the server's turn, or the connection is idle.
        """
        transport, cycle, limits = self.transport, self._current, self.limits
        closing = transport.is_closing()
        if closing or self.flow.write_paused:
            unsent = transport.get_write_buffer_size()
            if closing and unsent and cycle is not None and not cycle.response_complete:
                transport.abort()  # the response will never be complete
                return None
            return "response", self._write_pauses, -unsent, 2 * limits.send_seconds
        if self._reading is Reading.LINGERING or self.flow.read_paused:
            return None
        if cycle is not None and cycle.more_body:
            return "body", cycle, self._arrived_bytes, 2 * limits.receive_seconds
        # uvicorn's timer for an idle connection ends with the first byte of the next request, but not if that came
        # before the response was complete
        if (cycle is None or cycle.response_complete) and (
            self.timeout_keep_alive_task is None or self._head_has_begun()
        ):
            return "head", cycle, 0, limits.head_seconds
        return None


def _receive_whole(cycle: RequestResponseCycle) -> bytes | None:
    """See `WholeMessages.receive`."""
    if cycle.more_body or cycle.disconnected or cycle.response_complete:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    return body
