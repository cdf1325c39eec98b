"""The whole body of a request that stores something, in admitted memory."""

from __future__ import annotations

from starlette.requests import Request

from ...engine import Ticket
from ...settings import Settings
from ..headers import FRAMING, Framing, content_length
from ..request_body import RequestBody, receive_chunked


async def receive_whole(request: Request, settings: Settings, ticket: Ticket) -> bytes:
    """Receive the body; its bytes are reserved before they are read.

    Raises:
        LimitExceeded: it is longer than TENSORPOST_MAX_BODY_BYTES.
        TooBusy: the memory is not there now.
        ReceiveTimeout: it comes too slowly.
    """
    framing: Framing = request.scope[FRAMING]
    limit, pause = settings.max_body_bytes, settings.receive_timeout_seconds
    if framing.chunked:
        return bytes(await receive_chunked(request.receive, limit, pause, ticket.grow))
    length = content_length(framing.length, limit)
    ticket.grow(length)
    return await RequestBody(request.receive, length, pause).whole(limit, "TENSORPOST_MAX_BODY_BYTES")
