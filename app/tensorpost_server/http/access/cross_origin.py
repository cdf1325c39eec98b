"""CORS: what a browser must be told before it lets a page of another origin read an answer.

Which origins may is the setting `allowed_origins`; without it nothing of this is sent.

Source: WHATWG Fetch, section 3.2 (HTTP CORS protocol).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Send

_EXPOSED = (
    "Content-Length, Inference-Header-Content-Length, Retry-After, Server-Timing, Tensorpost-Backend, "
    "Tensorpost-Device, Tensorpost-Dtype, Tensorpost-Shape, X-Request-ID"
)
_FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1000}")
_MAX_AGE = "600"  # seconds for which a browser need not ask again; most keep no answer for longer


def is_preflight(method: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks if a page may send a request, which it does without the page's key."""
    return method == "OPTIONS" and b"origin" in fields and b"access-control-request-method" in fields


def preflight_response(fields: Mapping[bytes, bytes], methods: str) -> Response:
    """The answer to that question, for an origin that is allowed."""
    headers = {"Access-Control-Allow-Methods": methods, "Access-Control-Max-Age": _MAX_AGE}
    wanted = fields.get(b"access-control-request-headers", b"").decode("latin-1")
    if _FIELD_NAMES.fullmatch(wanted):
        headers["Access-Control-Allow-Headers"] = wanted
    if fields.get(b"access-control-request-private-network") == b"true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=headers)


def send_for_origin(send: Send, origin: str) -> Send:
    """Send, with the header fields that let pages of this origin read the answer."""

    async def send_allowed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = _EXPOSED
            headers.add_vary_header("Origin")
        await send(message)

    return send_allowed
