"""Plain ASGI middleware. Nothing here wraps or buffers a body."""

from __future__ import annotations

import random
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .fields import fields_of

__all__ = ["RequestId", "request_id_of"]

_USABLE_ID = re.compile(rb"[A-Za-z0-9._~-]{1,128}")


def request_id_of(given: bytes | None) -> str:
    """The caller's `X-Request-ID` if it is harmless, else a new one: 128 random bits, which need not be secret."""
    if given is not None and _USABLE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{random.getrandbits(128):032x}"  # an id, no secret; half the time of `secrets`


class RequestId:
    """Gives every request an id: the caller's `X-Request-ID` if it is harmless, else a new one; echoes it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set `scope["tensorpost.request_id"]` and the answer's header."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(fields_of(scope["headers"]).get(b"x-request-id"))
        scope["tensorpost.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)
