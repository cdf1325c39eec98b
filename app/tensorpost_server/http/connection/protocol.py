"""HTTP/1.1 for uvicorn, with large bodies received into the application's memory and limits on slow callers.

`DirectProtocol` is uvicorn's httptools protocol with these differences; everything else, small and chunked bodies
included, is uvicorn's. What the bytes are that arrive next is a state (`connection_states.py`).

1. A large body of known length is counted, not parsed (`direct_body.py`). Nothing of it is read until the application
   asks, by ASGI's `receive` or by the extension of `receive_into.py`; over TLS, which copies anyway, by `receive` only.
2. Heads are limited in bytes and time; bodies and responses must move at a lowest rate (`timeouts.py`); the rest of a
   body that was answered early is discarded up to a limit (`lingering_close.py`). Beyond these the connection closes.
3. A malformed request is refused after the responses before it, never in the middle of one (`request_parser.py`). A
   disconnect is reported to all requests of the connection.
4. A few requests are read ahead of the responses before them (`MOST_QUEUED`); the rest of a pipeline stays unparsed.
5. Requests of different callers' addresses are read, begin and go on in turn, a few in each turn of the event loop
   (`request_turns.py`).
6. A request whose head is the same, byte for byte, as that of a request that was answered through the extension of
   `whole_messages.py` is answered by its `Replay` (`whole_responses.py`); if its body arrives in parts, it is received
   into the memory of its call first (`replayed_body.py`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, ClassVar, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tensorpost.values.problems import ReceiveTimeout

from ...settings import setting_variable
from ..headers import header_fields, request_id
from ..observability.request_record import OBSERVE_REFUSAL
from .connection_states import TRANSITIONS, Event, IncomingRequest, Reading
from .direct_body import DirectBody, is_large
from .lingering_close import LingeringClose, closing_if_unread
from .receive_into import RECEIVE_INTO
from .replayed_body import ReplayedBody
from .request_parser import (
    HEAD_END,
    MOST_FIELDS,
    MOST_QUEUED,
    BacklogFlowControl,
    Refusal,
    RequestParser,
    end_of_part,
    head_too_large,
)
from .request_turns import MOST_READ_IN_A_TURN, READ_COST
from .shared_state import shared_state
from .timeouts import CallerPace, ConnectionLimits
from .whole_messages import WHOLE_MESSAGES
from .whole_responses import whole_messages_of, whole_response

_log = logging.getLogger(__name__)


def protocol_class(limits: ConnectionLimits) -> type[DirectProtocol]:
    """`DirectProtocol` with these limits, for `uvicorn.Config(http=...)`."""
    return cast("type[DirectProtocol]", type("DirectProtocol", (DirectProtocol,), {"limits": limits}))


class DirectProtocol(HttpToolsProtocol):
    """See the module. `uvicorn.Config(http=DirectProtocol)` uses the default limits.

    Attributes:
        pace: the rates at which the caller sends and reads.
    """

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    parser: RequestParser
    # The request whose bytes arrive, or arrived last.
    cycle: RequestResponseCycle | None  # pyright: ignore[reportIncompatibleVariableOverride] # there may be none yet

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self._shared = shared_state(server_state, self.limits, self.loop)
        self.url = b""  # of the request that came last, as far as it came
        self._address: str | None = None  # of the peer; a Unix socket has none
        self._turns_of: str | None = None  # whose turns reading takes: the peer's, or this connection's of a proxy
        self._proxies = self.limits.proxies  # None unless the peer is one of them
        self._health_only = False  # there was no room for this connection
        self._reading = Reading.IDLE
        self._request = IncomingRequest()
        self._active: RequestResponseCycle | None = None  # the request that the application answers now
        self._refusal: tuple[Refusal, str] | None = None  # with its request's id, from Event.REFUSE on
        self._last_replay = 0.0  # the loop's time
        self._replayed: ReplayedBody | None = None  # the body that is received for its replay
        self.pace = CallerPace(self.limits)
        self.parser = RequestParser(self, self.limits.head_bytes)

    def _change(self, event: Event) -> None:
        self._reading = TRANSITIONS[self._reading, event]

    @property
    def _arriving_body(self) -> DirectBody | None:
        """The counted body whose bytes arrive next."""
        return self._request.direct_body if self._reading is Reading.DIRECT else None

    @property
    def is_replaying(self) -> bool:
        """Whether the body of a known request is being received."""
        return self._replayed is not None

    @property
    def _response_is_due(self) -> bool:
        """Whether a request has arrived, all of it, whose response is not complete."""
        active = self._active
        return active is not None and not active.response_complete and not active.more_body

    # ---- the transport's callbacks -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as uvicorn narrows it
        """A caller has connected."""
        super().connection_made(transport)
        self.flow = self._flow = BacklogFlowControl(transport)
        self._close = LingeringClose(transport, self._flow, self.loop, self.limits.drain_bytes)
        self._shared.monitor.start()
        self._address = self.client[0] if self.client else None
        self._turns_of = self._address
        if self._proxies is not None and not self._proxies.trusts(self._address):
            self._proxies = None
        elif self._proxies is not None:
            self._turns_of = f"{self._address} {id(self)}"
        has_room = self._shared.budget.add(self, self._address if self._proxies is None else None)
        self._health_only = not has_room
        if has_room is None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. Ending a request costs as much as beginning one, so it waits for its turn too."""
        cycles = [self._active, *[queued for queued, _ in self.pipeline]]
        unfinished = [cycle for cycle in cycles if cycle is not None and not cycle.response_complete]
        for cycle in unfinished:
            cycle.disconnected = True
        if unfinished:
            self._shared.turns.begin(self._turns_of, partial(self._end_requests, unfinished, exc))
        else:
            self._end_requests(unfinished, exc)

    def _end_requests(self, unfinished: list[RequestResponseCycle], exc: Exception | None) -> None:
        """Tell all requests of a connection that it is closed, and let its objects be freed."""
        for cycle in unfinished:
            cycle.message_event.set()
        self._shared.budget.remove(self)
        self._unset_keepalive_if_required()  # uvicorn leaves it after a reset, and with it all of this
        self._close.cancel()
        super().connection_lost(exc)
        self.pipeline.clear()
        self._flow.backlog = b""
        if self._replayed is not None:  # it waited for its turn
            self._replayed.reception.end()
            self._replayed = None
        if (body := self._request.direct_body) is not None:
            body.wake()
            self._request.direct_body = None  # it refers to this: that cycle would wait for the garbage collector

    def data_received(self, data: bytes) -> None:
        """Bytes came while the application waited for none in its memory."""
        self.pace.arrived_bytes += len(data)
        turns, few = self._shared.turns, len(self.connections) <= MOST_READ_IN_A_TURN
        if self._flow.backlog or self._replayed is not None:
            self._flow.backlog += data  # asyncio's transport on Windows delivers a read that was under way
        elif few or self._reading is not Reading.IDLE or turns.take_room(READ_COST):
            self._take(data)
        else:
            self.flow.pause_reading()
            self._flow.backlog = data
            turns.begin(self._turns_of, self._take_backlog, READ_COST)

    def _take_backlog(self) -> bool:
        """Take the bytes of a request that has waited for its turn; False if its connection is closed."""
        data, self._flow.backlog = self._flow.backlog, b""
        if not data or self.transport.is_closing():
            return False
        self.flow.resume_reading()
        self._take(data)
        self._close_if_half_closed()
        return True

    def _take(self, data: bytes) -> None:
        """Answer a request by its replay, or parse what has arrived."""
        if self._reading is Reading.IDLE:
            head_end = data.find(HEAD_END) + len(HEAD_END)
            head = data[:head_end] if head_end > 3 and data[0] not in b"\r\n" else b""  # a request may begin with CRLF
            if head and not self._health_only and self._replay(head, data):
                return
            self._begin_request(head, len(data) - head_end)
        self._unset_keepalive_if_required()
        ended, cycle = self._reading in (Reading.REFUSED, Reading.LINGERING), self.cycle
        if ended or (cycle is not None and cycle.response_complete and cycle.more_body):
            ended = self._close.discard(len(data)) or ended
        if not ended:
            self._parse(data)

    def _begin_request(self, head: bytes, after_head: int) -> None:
        self._request = IncomingRequest(head, after_head)
        self._change(Event.REQUEST_BEGINS)

    # ---- requests that are replayed ----------------------------------------------------------------------------------

    def _replay(self, head: bytes, data: bytes) -> bool:
        """Answer a request whose head is known, now or when its body has come; False if the application has to.

        Args:
            head: its head.
            data: all that has come of it.
        """
        known = self._shared.replays.get(head)
        if known is None or self.flow.write_paused or self.transport.is_closing():
            return False
        arrived = len(data) - len(head)
        if arrived < known.length and known.receive is not None and self.scheme == "http":
            reception = known.receive(known.length, self._address)
            if reception is None:
                return False
            self._last_replay = self.loop.time()
            self._replayed = ReplayedBody(self, head, reception)
            self._change(Event.KNOWN_HEAD)
            self._replayed.begin(memoryview(data)[len(head) :])
            return True
        response = known.replay(data[len(head) :], self._address) if arrived == known.length else None
        if response is None:
            return False
        self._write_replayed(response)
        return True

    def _write_replayed(self, response: tuple[bytes, bytes, int]) -> None:
        self.transport.write(whole_response(self.server_state.default_headers, response[0], response[1]))
        self.server_state.total_requests += 1
        self._last_replay = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def body_replayable(self) -> None:
        """The body of a request that is replayed has come; reading is paused."""
        if len(self.connections) <= MOST_READ_IN_A_TURN:
            self._answer_replayable()
        else:
            self._shared.turns.begin(self._turns_of, self._answer_replayable)

    def _answer_replayable(self) -> bool:
        """Answer it by its replay, or let the application do that; False if its connection is closed."""
        body = self._replayed
        if body is None or self.transport.is_closing():
            return False
        response = None if self.flow.write_paused else body.reception.answer()
        if response is None:
            self.give_up_replay()
            return True
        self._replayed = None
        body.reception.end()
        self._change(Event.REPLAY_ENDS)
        self._write_replayed(response)
        if self._flow.backlog:
            self._shared.turns.begin(self._turns_of, self._take_backlog, READ_COST)
        else:
            self.flow.resume_reading()
            self._close_if_half_closed()
        return True

    def give_up_replay(self) -> None:
        """Parse the request that would be replayed, as far as it has come."""
        body, self._replayed = self._replayed, None
        if body is not None:
            head, arrived = body.end()
            self._change(Event.REPLAY_ENDS)
            backlog, self._flow.backlog = self._flow.backlog, b""
            self._begin_request(head, len(arrived) + len(backlog))
            self._unset_keepalive_if_required()
            if not self.transport.is_closing():
                self.flow.resume_reading()
            self._parse(b"".join((head, arrived, backlog)))

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long, except for replays, which do not touch this timer."""
        left = self._last_replay + self.timeout_keep_alive - self.loop.time()
        if left > 0 or self._flow.backlog or self._replayed:  # a request is received, or waits for its turn
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 0.1), self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _parse(self, data: bytes) -> None:
        """Parse bytes of requests, as long as there are places for requests."""
        start = 0
        while start < len(data):
            if (body := self._arriving_body) is not None:
                end = min(start + body.unread, len(data))
                super().on_body(cast("bytes", memoryview(data)[start:end]))  # which it appends to others
                count, start = end - start, end
                body.count(count)
                continue
            if len(self.pipeline) >= MOST_QUEUED:
                self.flow.pause_reading()
                self._flow.backlog = data[start:]
                return
            end = end_of_part(data, start, self._request.unparsed_body, self.cycle)
            try:
                self.parser.feed(data[start:end])
                start = end
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # The upgrade is declined (RFC 9110, section 7.8); the parser has stopped after the head.
                start += upgrade.args[0]
                self.parser = RequestParser(self, self.limits.head_bytes)
            except Refusal as refusal:
                self._refuse(refusal)
                return
            if self._arriving_body is not None:
                self.parser = RequestParser(self, self.limits.head_bytes)  # for the bytes after the body
        if (body := self._arriving_body) is not None:
            body.pause()

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] # uvicorn's never keeps it open
        """The caller sends no more; whether the transport stays open until complete requests are answered."""
        is_due = self._response_is_due or bool(self._flow.backlog) or self._replayed is not None
        stays = is_due and self._reading is not Reading.LINGERING and self.transport.can_write_eof()
        if stays:
            self._close.half_close(self._end_half_closed)
        return stays

    def _end_half_closed(self) -> None:
        """Give up a caller that sends no more, if its response has not begun; else writing shows if it is there."""
        if self._active is not None and not self._active.response_started:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.pace.write_pauses += 1
        super().pause_writing()

    # ---- the parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._request.begun:
            self._request = IncomingRequest()
        self._request.begun = self._request.in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer field."""
        if len(self.headers) >= MOST_FIELDS:
            raise head_too_large(f"{MOST_FIELDS} fields")
        # The parser leaves white space after the value, which is no part of it (RFC 9110, section 5.5).
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """A head is complete: check its limits, and decide how its body is read."""
        upgrade = self.parser.should_upgrade()
        declined = upgrade and not self._should_upgrade()
        framing = self.parser.framing(self.url, self.headers, health_only=self._health_only, declines_upgrade=declined)
        self._close.discarded_bytes = self.parser.unparsed_bytes = 0
        request = self._request
        request.content_length = length = framing.length or 0
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            return  # it becomes a WebSocket
        request.in_head = False
        if not upgrade:
            self.headers = []  # trailer fields come here later; the application has seen the header fields
        if not self.pipeline:
            self._active = cycle
        if self._health_only:
            cycle.keep_alive = False
        large = is_large(length)
        into_memory = large and self.scheme == "http"
        extensions = cast("dict[str, Any]", self.scope).setdefault("extensions", {})
        if length and (large or upgrade):
            body = request.direct_body = DirectBody(self, cycle, length, into_memory=into_memory)
            self._change(Event.DIRECT_BODY)
            if into_memory:
                extensions[RECEIVE_INTO] = {"receive_into": body.receive_into, "arrived_bytes": body.arrived_bytes}
        else:
            request.unparsed_body = length
        if not (self.config.access_log and cycle.access_log):  # which uvicorn writes where it sends
            extensions[WHOLE_MESSAGES] = {"whole_messages": whole_messages_of(cycle, request, self._shared.replays)}

    def on_body(self, body: bytes) -> None:
        """The parser has found a part of a body."""
        self.parser.unparsed_bytes = 0
        if (counted := self._arriving_body) is not None:
            counted.unread -= len(body)
        elif self._request.unparsed_body:
            self._request.unparsed_body -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has completed a request."""
        if self._request.unread:
            return  # an upgrade was declined, and the parser has not looked at the body
        if self._reading is Reading.DIRECT:
            self._change(Event.BODY_ENDS)
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Give a request to the application when it has its turn."""
        turns, address = self._shared.turns, self._address
        if self._proxies is not None:
            scope = cast("dict[str, Any]", cycle.scope)
            self._proxies.set_client(scope, header_fields(scope["headers"]))
            address = scope["client"][0] if scope["client"] else None
        turns.begin(address, partial(self._begin, cycle, turns.application(address, app)))

    def _begin(self, cycle: RequestResponseCycle, app: Any) -> bool:
        """Give it to the application now; False if its caller has gone."""
        if cycle.disconnected:
            return False
        if cycle is self.cycle and self._request.content_length > self.limits.drain_bytes:
            app = closing_if_unread(app, cycle, self._request, self.limits.drain_bytes, self._linger)
        super()._start_asgi_task(cycle, app)
        return True

    # ---- the ends of responses and of connections --------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """A response is complete; the next one may begin."""
        following = self.pipeline[-1][0] if self.pipeline else None
        backlog, self._flow.backlog = self._flow.backlog, b""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        assert cycle is not None
        if following is not None:
            self._active = following
            if (body := self._arriving_body) is not None and following is cycle:
                body.pause()
        elif self._reading is Reading.PARSED and not cycle.more_body and not self._request.in_head:
            self._change(Event.ALL_ANSWERED)
        if self._refusal is not None and (following is None or following.more_body):
            self._answer_refusal(*self._refusal)
        if backlog:
            self._parse(backlog)
        self._close_if_half_closed()

    def _close_if_half_closed(self) -> None:
        if self._close.half_closed_timer is not None and not self._response_is_due:
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a request that cannot be given to the application, then close. Responses before it come first."""
        id_ = request_id(dict(self.headers).get(b"x-request-id") if self._request.in_head else None)
        self._refusal = Refusal(refusal.error, refusal.status), id_  # without a traceback, which would refer to this
        if (observe := self.app_state.get(OBSERVE_REFUSAL)) is not None:
            observe(refusal.status, id_, self._address)
        self._change(Event.REFUSE)
        self._answer_refusal(refusal, id_)

    def _answer_refusal(self, refusal: Refusal, id_: str) -> None:
        if self.transport.is_closing() or self._reading is Reading.LINGERING:
            return
        if self._response_is_due:
            self.flow.pause_reading()
            return
        active = self._active
        if active is not None and not active.response_complete:
            # The error is in this request's own body.
            active.disconnected = True
            active.message_event.set()
            if active.response_started:
                self.transport.abort()
                return
        self.transport.write(refusal.response(self.server_state.default_headers, self.url, id_))
        self._linger()

    def _linger(self) -> None:
        """Close the connection after its last response."""
        self._unset_keepalive_if_required()
        if self._close.linger():
            self._change(Event.LAST_RESPONSE)

    def shutdown(self) -> None:
        """The server stops: the response that is being made is the last one."""
        if self._reading is Reading.IDLE:
            self._take_backlog()
        self.give_up_replay()
        if self._active is not None:
            self._active.keep_alive = False
        super().shutdown()

    # ---- slow callers ------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close the connection if the caller is too slow; `now` is the loop's time in seconds."""
        if self._replayed is not None and not self._replayed.is_complete:
            self.give_up_replay()  # this body does not come at once: the application has limits for it
        phase = self.pace.slow_phase(
            now, self.transport, self.cycle,
            writes=not self.flow.write_paused,
            reads=not (self.flow.read_paused or self._reading is Reading.LINGERING),
            # uvicorn's timer for an idle connection ends with the first byte of the next request, but not if that came
            # before the response was complete
            expects_head=self.timeout_keep_alive_task is None or self._request.in_head,
        )  # fmt: skip
        if phase == "head" and self._request.in_head:
            seconds, setting = self.limits.head_seconds, setting_variable("head_timeout_seconds")
            self._refuse(Refusal(ReceiveTimeout(f"no whole request head came in {seconds:g} s (setting {setting})")))
        elif phase == "head":
            self.transport.close()
        elif phase is not None:
            _log.info("closed the connection of %s: its %s moved too slowly", self.client, phase)
            self.transport.abort()
