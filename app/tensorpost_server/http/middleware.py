"""Plain ASGI middleware. Nothing here wraps or buffers a body."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestId"]

_USABLE_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}")


class RequestId:
    """Gives every request an id: the caller's `X-Request-ID` if it is harmless, else a new one; echoes it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set `scope["tensorpost.request_id"]` and the answer's header."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode("ascii") if _USABLE_ID.fullmatch(given) else secrets.token_hex(16)
        scope["tensorpost.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)
