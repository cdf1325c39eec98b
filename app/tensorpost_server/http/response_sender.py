"""`ResponseSender`: sends the answer to one call, whole or slice by slice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Message, Send

from ..engine import Stages
from .caller_watch import CallerWatch
from .calls.call import PreparedHead
from .connection.whole_messages import ReceiveFunction, ReplayFunction, WholeMessages
from .request_body import ClientDisconnected


def changing_field_lines(id_: str, timing: str) -> bytes:
    """The header fields that differ between responses to the same call, as they are sent.

    Args:
        id_: the request's id.
        timing: its stages as `str(Stages)` writes them.
    """
    return f"x-request-id: {id_}\r\nserver-timing: {timing}\r\n".encode()


class ResponseSender:
    """Sends the response to one call.

    Attributes:
        begun: whether the response has begun; from then on its status cannot change.
        complete: whether all of it was handed to the server.
        sent_bytes: length of the body as far as it was sent, bytes.
        slices: how many slices of the output were sent.
        replay: handed to the server with a small response; None if it cannot be replayed.
        receive: takes the body of a later request that arrives in parts; None if the application has to.
    """

    __slots__ = (
        "_request_id", "_send", "_stages", "_timeout", "_watch", "_whole", "begun", "complete", "receive", "replay",
        "sent_bytes", "slices",
    )  # fmt: skip

    def __init__(
        self, send: Send, request_id: str, stages: Stages, timeout: float, whole: WholeMessages | None,
        watch: CallerWatch,
    ) -> None:  # fmt: skip
        self._send, self._request_id, self._stages, self._timeout = send, request_id, stages, timeout
        self._whole, self._watch = whole, watch
        self.begun = self.complete = False
        self.sent_bytes = self.slices = 0
        self.replay: ReplayFunction | None = None
        self.receive: ReceiveFunction | None = None

    async def whole(self, head: PreparedHead, body: bytes) -> None:
        """Send a small, complete body, `head.body_head` included.

        Raises:
            ClientDisconnected: the caller did not take it in time.
        """
        self._watch.stop()
        self._stages.done("compute")
        self.begun = True
        if self._whole is not None:
            lines = head.lines + changing_field_lines(self._request_id, str(self._stages))
            if self._whole.send(lines, body, self.replay, self.receive):
                self.sent_bytes, self.slices, self.complete = len(body), 1, True
                return
        await self._send(self._start(head))
        self.slices = 1
        await self._send_part(body, more=False)

    async def stream(self, head: PreparedHead, slices: AsyncGenerator[memoryview]) -> None:
        """Send a body slice by slice.

        The first slice is computed before the status line is sent, so that a failure until then gets its own status.

        Raises:
            ClientDisconnected: the caller did not take a part in time.
        """
        async with aclosing(slices):
            block = await anext(slices, None)
            self._stages.done("compute")
            self.begun = True
            await self._send(self._start(head))
            await self._send_part(head.body_head)
            while block is not None:
                await self._send_part(block)
                self.slices += 1
                block = await anext(slices, None)
            self._watch.stop()
            await self._send_part(b"", more=False)

    def _start(self, head: PreparedHead) -> Message:
        changing = [(b"x-request-id", self._request_id.encode()), (b"server-timing", str(self._stages).encode())]
        return {"type": "http.response.start", "status": 200, "headers": [*head.headers, *changing]}

    async def _send_part(self, part: bytes | memoryview, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._send({"type": "http.response.body", "body": part, "more_body": more})
                self.sent_bytes += len(part)
                self.complete = not more
        except TimeoutError:
            raise ClientDisconnected from None  # a response that is not complete makes the server close the connection
