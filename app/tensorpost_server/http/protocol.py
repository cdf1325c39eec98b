"""HTTP/1.1 for uvicorn: large bodies go from the socket into the application's memory, and nobody can hold on for ever.

`DirectProtocol` is uvicorn's httptools protocol with these differences. The rules:

1. A body whose length is known and not small is counted here, not in the parser: after the head the parser is given up,
   and a new one starts with the first byte behind the body. So the body's bytes may take any way in.
2. After such a head nothing is read until the application asks: by ASGI's `receive`, or by the extension of
   `receiving.py`, which makes the transport read into the memory it is given (`asyncio.BufferedProtocol`).
3. Memory that was lent for receiving is written to only while the application waits for it, and never beyond the end of
   the body: what follows belongs to the next request.
4. Heads are bounded in bytes and time; bodies and answers must move at a lowest rate; a body nobody wants is thrown
   away up to a bound. Beyond these the connection ends, and with it all it held.
5. A bad request is refused after the answers before it, never in the middle of one. Who hangs up is gone for all
   requests of the connection.

6. A request that comes whole, with nothing before or behind it, and whose head is the same, byte for byte, as that of
   one that was answered at once (`answering.py`), is answered by what that answer left behind. The same bytes mean the
   same, so there is nothing to parse.

Everything else, small and chunked bodies included, is uvicorn's. Over TLS the extension is not offered: the bytes are
copied by the decryption anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ..settings import ENVIRONMENT_PREFIX
from . import answering, receiving
from .answering import AnswerAgain
from .connection_limits import Limits, Watch, Watched
from .remembered import Remembered
from .sink import Sink, move

__all__ = ["DirectProtocol", "protocol_class"]

DIRECT_BYTES = 64 * 1024
"""Bodies from this size on are counted here. A smaller one often comes with its head, and switching costs more."""

LINGER_SECONDS = 5.0
"""How long what still comes is thrown away after a last answer. Closing at once would make the system send a reset,
which can overtake the answer (RFC 9112, section 9.6)."""

_MOST_KNOWN, _MOST_KNOWN_BYTES = 1024, 1 << 20
_KNOWN_OVERHEAD = 512  # bytes of the objects kept with a head

_FIELD_OVERHEAD = 4  # ": " and CRLF

_log = logging.getLogger(__name__)


def protocol_class(limits: Limits) -> type[DirectProtocol]:
    """`DirectProtocol` with these limits, for `uvicorn.Config(http=...)`."""
    return cast("type[DirectProtocol]", type("DirectProtocol", (DirectProtocol,), {"limits": limits}))


class _Refused(Exception):
    """Raised in a callback of the parser, to stop it."""


class DirectProtocol(HttpToolsProtocol, Watched):
    """See the module. `uvicorn.Config(http=DirectProtocol)` uses the default limits.

    Attributes:
        limits: of every connection of this class.
    """

    limits: ClassVar[Limits] = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._application = cast("ASGIApp", self.app)
        self._known = _known_heads(server_state)
        self._idle = True  # whether the next byte begins a request, and no answer is being made
        self._begins = (b"", 0)  # the head that the piece to be parsed begins with, and how many bytes follow it there
        self._head = (b"", 0)  # the same for the request that came last, if it was the first of its piece
        self._length = 0  # of that request's body, as its head says
        self._answered = 0.0  # when a request was answered without parsing it
        self._active: RequestResponseCycle | None = None  # whose application runs; `cycle` is whose bytes come in
        self._left = 0  # bytes of the current body that are still to come and are counted here
        self._direct = False  # whether the current body may be received into memory
        self._sink: Sink | None = None
        self._quiet = 0  # bytes since a head was complete or a part of a body came: of a head, trailers or chunk sizes
        self._refusal: tuple[int, str] | None = None  # of a request behind one that is being answered
        self._thrown_away = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._arrived = 0  # bytes received on this connection
        self._pauses = 0  # times the transport said that its buffer is full
        self._mark: tuple[object, float, int] = (None, 0.0, 0)  # what goes on, since when, and bytes moved by then

    # ---- the transport's callbacks -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as uvicorn narrows it
        """A caller is there."""
        super().connection_made(transport)
        Watch.of(self.server_state, self.loop, self.limits.tick).wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone; so it is for the requests that it sent ahead."""
        for cycle in (self._active, *[queued for queued, _ in self.pipeline]):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._unset_keepalive_if_required()  # uvicorn leaves it after a reset, and with it all of this
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._sink is not None:
            self._sink.wake()

    def data_received(self, data: bytes) -> None:
        """Bytes came while no memory was lent for them."""
        self._arrived += len(data)
        self._begins = (b"", 0)
        if self._idle:
            end = data.find(b"\r\n\r\n") + 4
            if end > 3 and data[0] not in b"\r\n":  # empty lines before a request are skipped
                head = data[:end]
                if self._answer_again(head, data[end:]):
                    return
                self._begins = (head, len(data) - end)
            self._idle = False
        self._unset_keepalive_if_required()
        if self._is_thrown_away(len(data)):
            return
        if self._left:
            data = self._take_body(data)
        self._quiet += len(data)
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # Not taken (RFC 9110, section 7.8); the parser has stopped behind the head, body or no body.
                data = data[upgrade.args[0] :]
                self.parser = self._new_parser()
                if self._left:
                    data = self._take_body(data)
                continue
            except httptools.HttpParserError:
                self.send_400_response("This is not a request of HTTP/1.1.")
                return
            break
        if self._left:
            self._hold_back()
        elif self._quiet > self.limits.head_bytes:
            self._refuse_head()

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write."""
        self._pauses += 1
        super().pause_writing()

    # ---- the parser's callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head, self._begins = self._begins, (b"", 0)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is complete: bound it, and see to whom its body goes."""
        size, length, chunked = len(self.url), 0, False
        for name, value in self.headers:
            size += len(name) + len(value) + _FIELD_OVERHEAD
            if name == b"content-length":
                length = int(value) if value.isdigit() else 0  # the parser has refused what is no number
            elif name == b"transfer-encoding":
                chunked = True
        if size > self.limits.head_bytes:
            self._refuse_head()
            raise _Refused
        upgrade = self.parser.should_upgrade()
        if upgrade and chunked and not self._should_upgrade():
            # The parser would take the chunks for the next request.
            self._refuse(400, "A chunked body with Upgrade is not taken; leave out one of the two.")
            raise _Refused
        self._thrown_away = self._quiet = 0
        self._length = length
        direct = length >= DIRECT_BYTES
        if length > self.limits.drain_bytes:
            self.app = cast("Any", self._close_if_unread)
        super().on_headers_complete()
        self.app = cast("Any", self._application)
        cycle = self._current
        if cycle is None or cycle.scope is not self.scope:
            return  # it becomes a WebSocket
        if not upgrade:
            self.headers = []  # trailer fields come here later; the application has seen the header fields
        self._left = length if direct or upgrade else 0
        self._direct = direct and self.scheme == "http"
        if not self.pipeline:
            self._active = cycle
        scope = cast("dict[str, Any]", self.scope)
        if self._direct:
            scope.setdefault("extensions", {})[receiving.EXTENSION] = {
                "receive_into": partial(self._receive_into, cycle)
            }
        elif not (self.config.access_log and cycle.access_log):  # uvicorn writes its log where it sends
            scope.setdefault("extensions", {})[answering.EXTENSION] = {
                "answer_whole": partial(self._answer_whole, cycle)
            }

    def on_body(self, body: bytes) -> None:
        """A part of a body, by way of the parser."""
        self._quiet = 0
        if self._left:
            self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser is done with a request."""
        if not self._left:  # else an upgrade is asked for, and the parser has not looked at the body
            super().on_message_complete()

    # ---- receiving into memory ---------------------------------------------------------------------------------------

    async def _receive_into(
        self, cycle: RequestResponseCycle, views: Sequence[memoryview], least: int, timeout: float
    ) -> int:
        """See `ReceiveInto`."""
        if cycle.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        filled, rest = move(cycle.body, views)
        if filled >= least or not rest or not cycle.more_body:
            return filled
        if cycle.disconnected or cycle.response_complete:
            raise ConnectionResetError
        # More is to come, so this is the body at which the connection is, and it is counted here.
        assert cycle is self.cycle
        assert self._left
        sink = self._sink
        assert sink is not None
        assert sink.installed
        waiter: asyncio.Future[None] = self.loop.create_future()
        sink.lend(rest, least - filled, waiter)
        self.flow.resume_reading()
        timer = self.loop.call_later(timeout, sink.look, timeout)
        sink.timer = timer
        try:
            await waiter
        finally:
            filled += sink.take_back()
            if self._left:
                self._hold_back()
        if cycle.disconnected:
            raise ConnectionResetError
        return filled

    def body_came(self, count: int) -> None:
        """So many bytes of the body went into lent memory; called by the sink."""
        self._arrived += count
        self._left -= count
        if not self._left:
            self._body_is_complete()

    def _take_body(self, data: bytes) -> bytes:
        """Append to the body what belongs to it; the rest of the data."""
        count = min(self._left, len(data))
        self._left -= count
        super().on_body(data if count == len(data) else data[:count])
        if not self._left:
            self._body_is_complete()
        return data[count:]

    def _body_is_complete(self) -> None:
        sink = self._sink
        if sink is not None and sink.installed:
            self.flow.pause_reading()
            self.transport.set_protocol(self)
            sink.end()
            self.flow.resume_reading()
        super().on_message_complete()

    def _hold_back(self) -> None:
        """Read no further of this body until the application asks, or has answered."""
        if self.transport.is_closing():
            return
        if not self.cycle.response_complete:
            self.flow.pause_reading()
        if self._sink is None or not self._sink.installed:
            self.parser = self._new_parser()  # for what follows the body
            if self._direct:
                self._install_sink()

    def _install_sink(self) -> None:
        if self._sink is None:
            self._sink = Sink(self)
        # uvloop looks at the kind of protocol when reading starts, not when the protocol is set.
        paused = self.flow.read_paused
        self.flow.pause_reading()
        self.transport.set_protocol(self._sink)
        self._sink.begin()
        if not paused:
            self.flow.resume_reading()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn does: bytes behind a request that asks to close must not spoil its answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def _current(self) -> RequestResponseCycle | None:
        """The request whose bytes come in, or came last; uvicorn's type says that there always is one."""
        return self.cycle

    @property
    def left(self) -> int:
        """Bytes of the current body that are still to come and are counted here."""
        return self._left

    # ---- answers at once ---------------------------------------------------------------------------------------------

    def _answer_whole(
        self, cycle: RequestResponseCycle, lines: bytes, body: bytes, again: AnswerAgain | None = None
    ) -> bool:
        """See `AnswerWhole`: what uvicorn's `send` does with an answer's two messages, where nothing is special."""
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        cycle.response_started = True
        self._write_whole(lines, body)
        cycle.response_complete = True
        cycle.message_event.set()
        head, behind = self._head
        # Only a request that was a piece of its own: then these bytes, and no others, are its head.
        if again is not None and head and behind == self._length and cycle is self.cycle:
            self._known.put(head, (again, behind), len(head) + _KNOWN_OVERHEAD)
        cycle.waiting_for_100_continue = False
        cycle.on_response()
        return True

    def _answer_again(self, head: bytes, body: bytes) -> bool:
        """Answer a request of a known head; False if it has to go the usual way."""
        known = self._known.get(head)
        if known is None or len(body) != known[1] or self.flow.write_paused or self.transport.is_closing():
            return False
        if self._refusal is not None or self._linger_timer is not None:
            return False
        answer = known[0](body)
        if answer is None:
            return False
        self._write_whole(*answer)
        self.server_state.total_requests += 1
        self._answered = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True

    def _write_whole(self, lines: bytes, body: bytes) -> None:
        usual = b"".join([b"%b: %b\r\n" % field for field in self.server_state.default_headers])
        self.transport.write(b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (usual, lines, body))

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long, unless it was answered without touching this timer."""
        left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    # ---- answers, early and late -------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is complete; the next one may begin."""
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.transport.is_closing():
            return
        self._idle = following is None and not self.cycle.more_body and not self._head_is_begun()
        if following is not None:
            self._active = following
            if self._left and following is self.cycle:
                self._hold_back()
        if self._refusal is not None and (following is None or following.more_body):
            self._refuse(*self._refusal)

    async def _close_if_unread(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, for a body that is too long to be thrown away: an answer before its end is the last one."""
        cycle, closing = self.cycle, False
        if cycle.scope is not scope:  # its body is complete, and the next request's is coming
            await self._application(scope, receive, send)
            return

        async def send_or_linger(message: Message) -> None:
            nonlocal closing
            unread = self._left if cycle is self.cycle else 0
            if message["type"] == "http.response.start" and unread > self.limits.drain_bytes:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                closing = True
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if last and closing and unread:
                cycle.keep_alive = True  # uvicorn would close at once, and lose the answer
                await send(message)
                self._linger()
            else:
                await send(message)

        await self._application(scope, receive, send_or_linger)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        if self._refusal is None:
            self._refuse(400, msg)

    def _refuse_head(self) -> None:
        limit = self.limits.head_bytes
        setting = f"{ENVIRONMENT_PREFIX}MAX_HTTP_HEAD_BYTES"
        self._refuse(431, f"The head of this request has more than {limit:,} bytes (setting {setting}).")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer what cannot be given to the application, then hang up. Answers before it come first."""
        self._refusal = (status, sentence)
        if self.transport.is_closing() or self._linger_timer is not None:
            return
        active = self._active
        if active is not None and not active.response_complete:
            if active is not self.cycle or not active.more_body:
                self.flow.pause_reading()
                return
            # What is wrong is in its own body.
            active.disconnected = True
            active.message_event.set()
            if active.response_started:
                self.transport.abort()
                return
        fields = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8")]
        fields += [(b"content-length", str(len(sentence)).encode()), (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % field for field in fields]
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.transport.write(b"".join([start, *lines, b"\r\n", sentence.encode()]))
        self._linger()

    def _linger(self) -> None:
        """Say that nothing more will be sent; hang up when the caller has, or soon."""
        self._unset_keepalive_if_required()
        transport = self.transport
        if transport.is_closing():
            return
        if not transport.can_write_eof():  # TLS has no half-closed connections
            transport.close()
            return
        self._thrown_away = 0
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, transport.abort)
        transport.write_eof()
        self.flow.resume_reading()

    def _is_thrown_away(self, count: int) -> bool:
        """Whether bytes that came are of no use to anybody; too many of them end the connection."""
        lingering = self._linger_timer is not None
        cycle = self._current
        refused = self._refusal is not None
        if lingering or refused or (cycle is not None and cycle.response_complete and cycle.more_body):
            self._thrown_away += count
            if self._thrown_away > self.limits.drain_bytes:
                self.transport.abort()
                return True
        return lingering or refused

    def shutdown(self) -> None:
        """The server stops: the answer that is being made is the last one."""
        if self._active is not None:
            self._active.keep_alive = False
        super().shutdown()

    # ---- limits ------------------------------------------------------------------------------------------------------

    def _head_is_begun(self) -> bool:
        """Whether a head has begun and is not complete."""
        # uvicorn makes the scope at its start and the cycle at its end.
        scope, cycle = cast("object", self.scope), self._current
        return scope is not None and (cycle is None or cycle.scope is not scope)

    def check(self, now: float) -> None:
        """Hang up if the caller takes too long over what goes on."""
        transport, cycle, limits = self.transport, self._current, self.limits
        closing = transport.is_closing()
        if closing or self.flow.write_paused:
            waiting = transport.get_write_buffer_size()
            if closing and waiting and cycle is not None and not cycle.response_complete:
                transport.abort()  # it will never be whole
                return
            what, moved, window = ("answer", self._pauses), -waiting, 2 * limits.send_seconds
        elif self._linger_timer is not None or self.flow.read_paused:
            self._mark = (None, 0.0, 0)
            return
        elif cycle is not None and cycle.more_body:
            what, moved, window = ("body", cycle), self._arrived, 2 * limits.receive_seconds
        elif (cycle is None or cycle.response_complete) and (
            # uvicorn's timer for an idle connection ends with the first byte of the next request, but not if that came
            # before the answer was complete
            self.timeout_keep_alive_task is None or self._head_is_begun()
        ):
            what, moved, window = ("head", cycle), 0, limits.head_seconds
        else:
            self._mark = (None, 0.0, 0)
            return
        known, since, before = self._mark
        if known != what:
            self._mark = (what, now, moved)
        elif now - since >= window:
            if moved - before >= max(1, limits.bytes_per_second * window):
                self._mark = (what, now, moved)
            else:
                self._give_up(what[0])

    def _give_up(self, what: str) -> None:
        self._mark = (None, 0.0, 0)
        if what != "head":
            _log.info("hung up on %s: its %s moved too slowly", self.client, what)
            self.transport.abort()
        elif self._head_is_begun():
            setting = f"{ENVIRONMENT_PREFIX}HEAD_TIMEOUT_SECONDS"
            self._refuse(408, f"No whole request head came in {self.limits.head_seconds:g} s (setting {setting}).")
        else:
            self.transport.close()


_KNOWN: WeakKeyDictionary[ServerState, Remembered[bytes, tuple[AnswerAgain, int]]] = WeakKeyDictionary()


def _known_heads(state: ServerState) -> Remembered[bytes, tuple[AnswerAgain, int]]:
    """Heads of requests that this server answered at once, with what answers the next one and its body's length."""
    if (found := _KNOWN.get(state)) is None:
        found = _KNOWN[state] = Remembered(_MOST_KNOWN, _MOST_KNOWN_BYTES)
    return found
