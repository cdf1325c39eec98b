"""The end of a connection: its last response must arrive, although the caller still sends or sends no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .connection_states import IncomingRequest

LINGER_SECONDS = 5.0
"""How long bytes are read and discarded after a last response. Closing at once would make the system send a reset,
which can overtake the response (RFC 9112, section 9.6)."""

HALF_CLOSED_SECONDS = 5.0
"""How long a caller that sends no more is waited for with the first byte of a response. It has closed one side of the
connection, or has gone: TCP does not tell which before something is sent."""


class LingeringClose:
    """Closes one side of a connection after the other, and discards what is not read any more.

    Attributes:
        discarded_bytes: bytes that were discarded since the last head, or since the last response.
        half_closed_timer: runs, or ran, from the moment on when the caller sent no more; else None.
    """

    __slots__ = ("_flow", "_linger_timer", "_loop", "_most", "_transport", "discarded_bytes", "half_closed_timer")

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, loop: asyncio.AbstractEventLoop, most_discarded: int
    ) -> None:
        self._transport, self._flow, self._loop, self._most = transport, flow, loop, most_discarded
        self._linger_timer: asyncio.TimerHandle | None = None
        self.half_closed_timer: asyncio.TimerHandle | None = None
        self.discarded_bytes = 0

    def linger(self) -> bool:
        """Close the sending side; the connection is closed when the caller has closed its side, or soon.

        Returns:
            False if the connection is closed already, or at once: TLS has no half-closed connections.
        """
        if self._transport.is_closing():
            return False
        if not self._transport.can_write_eof():
            self._transport.close()
            return False
        self.discarded_bytes = 0
        self._linger_timer = self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        self._transport.write_eof()
        self._flow.resume_reading()
        return True

    def half_close(self, give_up: Callable[[], object]) -> None:
        """Start the half-closed timer, which calls `give_up` after HALF_CLOSED_SECONDS."""
        if self.half_closed_timer is None:
            self.half_closed_timer = self._loop.call_later(HALF_CLOSED_SECONDS, give_up)

    def discard(self, count: int) -> bool:
        """Count bytes that nobody reads; whether there were too many, and the connection is aborted."""
        self.discarded_bytes += count
        if too_many := self.discarded_bytes > self._most:
            self._transport.abort()
        return too_many

    def cancel(self) -> None:
        """End the timers: the connection is closed."""
        for timer in (self._linger_timer, self.half_closed_timer):
            if timer is not None:
                timer.cancel()


def closing_if_unread(
    application: ASGIApp, cycle: RequestResponseCycle, request: IncomingRequest, most_discarded: int,
    linger: Callable[[], None],
) -> ASGIApp:  # fmt: skip
    """The application, for a body too long to be discarded: a response before its end is the connection's last.

    `linger` is called after such a response.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        closing = False

        async def send_or_linger(message: Message) -> None:
            nonlocal closing
            if message["type"] == "http.response.start" and request.unread > most_discarded:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                closing = True
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            lingers = last and closing and request.unread > 0
            if lingers:
                cycle.keep_alive = True  # uvicorn would close at once, and lose the response
            await send(message)
            if lingers:
                linger()

        await application(scope, receive, send_or_linger)

    return wrapped
