"""HTTP/2 (RFC 9113) for requests of gRPC: each thing that a caller can send has a bound.

A stream is a request and its response. Of its body a caller may send `WINDOW_BYTES` unasked; more when `receive_into`
has memory for it. Header blocks are bounded in bytes, coded and decoded; streams of a connection in number; frames that
carry nothing (settings, pings, resets, empty ones) by a rate, beyond which the connection ends with ENHANCE_YOUR_CALM.
While a caller does not read, few of its calls are computed (`CallSlots`), and while the transport holds bytes for it,
nothing more is read from it. Its end is then looked for (`closed_by_peer`): the transport would not notice it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PING,
    PREFACE,
    PUSH,
    RESET,
    SETTINGS,
    WINDOW,
    WINDOW_BYTES,
    ConnectionFault,
    ErrorCode,
    frame,
    goaway_frame,
    head_at,
    header_block,
    increment_of,
    request_fields,
    reset_frame,
    settings_frame,
    settings_of,
    window_frame,
    without_padding,
)
from .hpack import Fields, HeaderDecoder, InvalidHeaderBlock
from .http2_stream import MOST_EMPTY_FRAMES, MOST_STREAMS, MOST_WRITTEN, Http2Shared, Stream, StreamConnection
from .peer_close import closed_by_peer

MOST_HEADER_BYTES = 16_384
"""Largest header block, coded and decoded: what gRPC's own servers take."""

_CONNECTION_WINDOW = 4 << 20  # bytes of all bodies of a connection that may be on their way
_MOST_TAKEN = 16.0  # requests of a connection that are taken in one turn of the event loop
_FRAME_COST, _BLOCK_BYTE_COST = 1 / 16, 1 / 1024  # a frame, and a byte of a header block, as parts of a request
_EMPTY_FRAMES_PER_SECOND = 1000.0
_EMPTY_COST = 1 / 8  # of a frame that carries nothing, more than that of others: it is answered, or changes windows
_SETTINGS_COST = 10  # of settings, which a caller sends once or twice
_RESET_COST = 10  # of a reset, which has begun a request: a hundred in a second

_log = logging.getLogger(__name__)


class Http2Connection(StreamConnection, asyncio.Protocol):
    """A connection of a caller. See `StreamConnection`."""

    def __init__(self, shared: Http2Shared) -> None:
        super().__init__(shared)
        self._decoder = HeaderDecoder(MOST_HEADER_BYTES)
        self._rest = PREFACE  # bytes that have not come of the preface, then those of a frame that is not complete
        self._has_preface = False
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and header block that is not complete
        self._last = 0  # the largest number of a stream
        self._taken, self._held = 0.0, False  # in this turn of the loop, and whether the rest waits for another
        self._requests = dict[Fields, Mapping[bytes, bytes] | None]()
        self._window = _CONNECTION_WINDOW
        self._unacknowledged = 0
        self._credit_since = shared.loop.time()
        self._closing = False
        self._moved = 0
        self._stalled_since: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that is not answered."""
        return not self.streams and not self.transport.is_closing()

    # ---- the transport's callbacks -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller has connected, and TLS is agreed on."""
        self.transport = cast("asyncio.Transport", transport)
        peer: object = transport.get_extra_info("peername")
        self.peer = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None  # pyright: ignore[reportUnknownArgumentType]
        tls: Any = transport.get_extra_info("ssl_object")
        self.shared.connections.add(self)
        proxies = self.shared.limits.proxies
        counted = None if self.peer is None or (proxies and proxies.trusts(self.peer[0])) else self.peer[0]
        has_room = self.shared.budget.add(self, counted)
        self.health_only = not has_room
        if has_room is None or (tls is not None and tls.selected_alpn_protocol() != "h2"):  # RFC 9113, section 3.2
            self.transport.abort()
            return
        self.shared.monitor.start()
        settings = (
            (MAX_CONCURRENT_STREAMS, MOST_STREAMS), (MAX_FRAME_SIZE, FRAME_BYTES),
            (MAX_HEADER_LIST_SIZE, MOST_HEADER_BYTES),
        )  # fmt: skip
        self.write(settings_frame(settings) + window_frame(0, _CONNECTION_WINDOW - WINDOW_BYTES))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; its requests are cancelled."""
        self.shared.connections.discard(self)
        self.shared.budget.remove(self)
        self.slots.close()
        streams = [*self.streams.values()]
        self.streams.clear()
        for stream in streams:
            stream.out.clear()
            if stream.task is not None:  # ending a request costs as much as beginning one
                self.shared.turns.begin(self._address, stream.task.cancel)
        self._make_progress()

    def pause_writing(self) -> None:
        """The caller does not read: nothing more is read from it either."""
        self._writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The caller reads again."""
        self._writable = True
        if not self._held and not self.transport.is_closing():
            self.transport.resume_reading()
        self._flush_all()

    def data_received(self, data: bytes) -> None:
        """Bytes of frames came."""
        if self._closing:
            return
        if self._held:  # asyncio's transport delivers a read that was under way
            self._rest += data
            return
        self._taken = 0.0
        try:
            if not self._has_preface:
                data = self._without_preface(data)
                if not data:
                    return
            self._rest = self._frames(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            _log.info("a connection of gRPC from %s was ended: %s", self.peer, fault)
            self.go_away(fault.code)
            self.transport.close()
            return
        if self._taken >= _MOST_TAKEN and not self._held:
            self._held = True
            self.transport.pause_reading()
            self.shared.turns.begin(self._address, self._take_rest)

    def _take_rest(self) -> bool:
        """Go on with what has arrived, in another turn of the event loop; False if the connection is closed."""
        if self.transport.is_closing():
            return False
        if self._ends_with_its_caller():
            return True
        self._held = False
        if self._writable:
            self.transport.resume_reading()
        self.data_received(b"")
        return True

    def _without_preface(self, data: bytes) -> bytes:
        count = min(len(self._rest), len(data))
        if data[:count] != self._rest[:count]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the preface of HTTP/2 is missing")
        self._rest = self._rest[count:]
        if not self._rest:
            self._has_preface, self._rest = True, b""
        return data[count:]

    # ---- frames in ---------------------------------------------------------------------------------------------------

    def _frames(self, data: bytes) -> bytes:
        """Take all frames that are complete; the bytes after them."""
        at, end, view = 0, len(data), memoryview(data)
        while end - at >= HEAD_BYTES and self._taken < _MOST_TAKEN:
            length, kind, flags, number = head_at(data, at)
            after = at + HEAD_BYTES + length
            if after > end:
                break
            self._taken += _FRAME_COST
            if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is not continued")
            self._frame(kind, flags, number, view[at + HEAD_BYTES : after])
            at = after
            if self._closing:
                return b""
        return data[at:]

    def _frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        if kind == DATA:
            self._data(flags, number, payload)
        elif kind == HEADERS:
            self._header_block(number, flags, header_block(flags, payload))
        elif kind == CONTINUATION:
            self._spend()
            if self._block is None:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "nothing is continued")
            _, begun, block = self._block
            self._header_block(number, begun | flags & END_HEADERS, payload, block)
        elif kind == WINDOW:
            self._more_window(number, payload)
        elif kind == SETTINGS:
            self._settings(flags, number, payload)
        elif kind == PING:
            self._spend()
            if len(payload) != 8 or number:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a ping is malformed")
            if not flags & ACK:
                self.write(frame(PING, ACK, 0, payload))
        elif kind == RESET:
            self._spend(_RESET_COST if number in self.streams else 1)
            if len(payload) != 4 or not 0 < number <= self._last:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a reset is malformed")
            if (stream := self._forget(number)) is not None and stream.task is not None:
                stream.task.cancel()
        elif kind == PUSH:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a caller pushes nothing")
        else:  # priorities, the end of the connection, and what is not known (section 5.5)
            self._spend()

    def _spend(self, cost: float = 1) -> None:
        """Count a frame that carries nothing."""
        self._taken += _EMPTY_COST
        now = self.shared.loop.time()
        more = (now - self._credit_since) * _EMPTY_FRAMES_PER_SECOND
        self._credit, self._credit_since = min(MOST_EMPTY_FRAMES, self._credit + more) - cost, now
        if self._credit < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _data(self, flags: int, number: int, payload: memoryview) -> None:
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than the connection's window")
        self._unacknowledged += size
        if self._unacknowledged >= _CONNECTION_WINDOW // 2:
            self.write(window_frame(0, self._unacknowledged))
            self._window += self._unacknowledged
            self._unacknowledged = 0
        if not size and not flags & END_STREAM:
            self._spend()
        stream = self.streams.get(number)
        if stream is None:
            if not 0 < number <= self._last:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "bytes of a request that has not begun")
            return  # of one that was answered already
        if stream.ended:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "bytes after the end of a request")
        stream.window -= size
        if stream.window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than the request's window")
        data = without_padding(flags, payload)
        if data:
            self._credit += 1  # it may well be answered by a ping (how gRPC measures a line)
            stream.take(data)
        if flags & END_STREAM:
            stream.end_body()

    def _header_block(self, number: int, flags: int, part: memoryview, begun: bytearray | None = None) -> None:
        block = bytearray(part) if begun is None else begun
        if begun is not None:
            block += part
        if len(block) > MOST_HEADER_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        self._block = None if flags & END_HEADERS else (number, flags, block)
        if self._block is not None:
            return
        self._taken += _BLOCK_BYTE_COST * len(block)
        if number <= self._last and number not in self.streams:  # trailers of a request that was answered already
            self._spend(1 + len(block) / 32)
        try:
            fields = self._decoder.decode(bytes(block))
        except InvalidHeaderBlock as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        stream = self.streams.get(number)
        if stream is not None:  # trailers
            if stream.ended or not flags & END_STREAM:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a second head of a request")
            stream.end_body()
            return
        if number % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a request has an even number")
        if number <= self._last:
            return
        self._last = number
        self._taken += 1
        if fields in self._requests:
            request = self._requests[fields]
        else:
            self._requests.clear()  # of one that comes again and again there is one
            request = self._requests[fields] = request_fields(fields)
        if request is None:
            self._spend()
            self.write(reset_frame(number, ErrorCode.PROTOCOL_ERROR))
        elif len(self.streams) >= MOST_STREAMS or self.shared.draining:
            self._spend()
            self.write(reset_frame(number, ErrorCode.REFUSED_STREAM))
        else:
            stream = self.streams[number] = Stream(self, number, request, self._initial_window)
            stream.ended = bool(flags & END_STREAM)
            self.shared.turns.begin(self._address, partial(self._begin, stream, number))

    def _begin(self, stream: Stream, number: int) -> bool:
        """Let the application answer a request; False if it, or the connection, ended before its turn."""
        if self.streams.get(number) is not stream or self.transport.is_closing():
            return False
        if self._ends_with_its_caller():
            return True
        stream.task = self.shared.loop.create_task(self._answer(stream))
        return True

    async def _answer(self, stream: Stream) -> None:
        try:
            await self.shared.turns.in_turn(self._address, self.shared.handle(stream))
        except asyncio.CancelledError as error:
            # The frames refer to answers, until garbage is collected.
            raise error.with_traceback(None)  # noqa: B904 # it is the same exception
        finally:
            stream.task = None  # its exception refers to frames that refer to the stream, and to memory

    def _ends_with_its_caller(self) -> bool:
        """Abort if the caller has closed the connection, which the transport does not tell while it does not read."""
        reads = self._writable and not self._held
        if reads or self.transport.is_closing() or not closed_by_peer(self.transport):
            return False
        self.transport.abort()
        return True

    @property
    def _address(self) -> str | None:
        return None if self.peer is None else self.peer[0]

    def _settings(self, flags: int, number: int, payload: memoryview) -> None:
        self._spend(_SETTINGS_COST + len(payload) // 6)  # each entry may change the window of every request
        if number or len(payload) % 6 or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "settings are malformed")
        if flags & ACK:
            return
        for setting, value in settings_of(payload):
            if setting == INITIAL_WINDOW_SIZE:
                for stream in self.streams.values():
                    stream.send_window += value - self._initial_window
                self._initial_window = value
            elif setting == MAX_FRAME_SIZE:
                self._largest_frame = min(value, MOST_WRITTEN)
        self.write(frame(SETTINGS, ACK, 0, b""))
        self._flush_all()

    def _more_window(self, number: int, payload: memoryview) -> None:
        self._spend()
        more = increment_of(payload)
        if number == 0:
            self._send_window += more
            if self._send_window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._flush_all()
        elif (stream := self.streams.get(number)) is not None:
            stream.send_window += more
            if stream.send_window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a request's window is too large")
            self._flush(stream, number)
        elif number > self._last:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window of a request that has not begun")

    # ---- its end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close when the requests are answered that have begun; those that wait for their bodies are ended."""
        self.go_away()
        for stream in self.streams.values():
            if stream.waits and not stream.in_body:
                stream.fail("room")
        if not self.streams:
            self.transport.close()

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Say that no later request is answered."""
        self._closing = self._closing or code is not ErrorCode.NO_ERROR
        self.write(goaway_frame(self._last, code))

    # ---- time --------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """End what is too slow, or idle for too long."""
        limits = self.shared.limits
        if self._ends_with_its_caller():
            return
        for stream in [*self.streams.values()]:
            stream.check(now, self.shared)
        unsent = self.transport.get_write_buffer_size()
        moved = self._written - unsent
        if unsent or any(stream.out for stream in self.streams.values()):
            window = 2 * limits.send_seconds
            if self._stalled_since is None:
                self._stalled_since, self._moved = now, moved
            elif now - self._stalled_since >= window:
                if moved - self._moved < max(1, limits.bytes_per_second * window):
                    self.transport.abort()
                self._stalled_since, self._moved = now, moved
            return
        self._stalled_since = None
        if not self.streams:
            idle = now - self._idle_since
            seconds = self.shared.keep_alive_seconds if self._last else limits.head_seconds
            if idle >= seconds + limits.interval:
                self.transport.close()
            elif idle >= seconds:
                self.go_away()  # a request that is under way is then sent again, on another connection
