"""What a browser may ask for on behalf of a web page: hosts and origins that are let in, and headers of answers.

Any web page can make its visitor's browser send requests to this machine. With a name of its own that resolves to
127.0.0.1 (DNS rebinding) it can read the answers too, unless the Host field is looked at.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import re
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope, Send

from ...settings import Settings, setting_variable

_LOOPBACK_NAME = re.compile(r"(?:[a-z0-9-]+\.)*localhost\.?")
_LONGEST_HOST = 261  # a name of DNS, and a port
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class BrowserRequests:
    """Decides by Host and Origin whether a request is let in."""

    def __init__(self, settings: Settings) -> None:
        hosts = settings.allowed_hosts
        self._hosts = None if hosts is None else _items(hosts)
        self._origins = _items(settings.allowed_origins)
        self._host_is_allowed = functools.lru_cache(256)(self._decide_host)

    def check(self, scope: Scope, fields: Mapping[bytes, bytes]) -> None:
        """Refuse a request that a foreign web page may have made.

        Without `allowed_hosts`, a connection that came by a loopback address must name a loopback host. Of other
        connections any host is taken: the names of such a machine are not known here, and a foreign page has no key.

        Raises:
            HTTPException: 403, the Host is not allowed, or the Origin is neither the Host's nor allowed.
        """
        host, server = fields.get(b"host", b""), scope.get("server")
        address = server[0] if server and server[1] is not None else ""
        if len(host) > _LONGEST_HOST or not self._host_is_allowed(host, address):
            name = host[:80].decode("latin-1")
            raise HTTPException(403, f"the Host {name!r} is not allowed here ({setting_variable('allowed_hosts')})")
        origin = fields.get(b"origin")
        if origin is not None and not self._origin_is_allowed(origin.decode("latin-1").lower(), host):
            name = origin[:80].decode("latin-1")
            raise HTTPException(
                403, f"pages of the Origin {name!r} may not call this server ({setting_variable('allowed_origins')})"
            )

    def foreign_origin(self, fields: Mapping[bytes, bytes]) -> str | None:
        """The origin of the page that made a request, if it is another one than the Host's; None of other requests."""
        origin = fields.get(b"origin")
        if origin is None:
            return None
        text = origin.decode("latin-1")
        host = fields.get(b"host", b"").decode("latin-1").lower()
        return None if text.lower().partition("://")[2] == host != "" else text

    def _decide_host(self, host: bytes, address: str) -> bool:
        text = host.decode("latin-1").lower()
        name = text if text.endswith("]") else re.sub(r":[0-9]*$", "", text)
        if self._hosts is not None:
            return "*" in self._hosts or name in self._hosts or text in self._hosts
        return not _is_loopback(address) or not name or bool(_LOOPBACK_NAME.fullmatch(name)) or _is_loopback(name)

    def _origin_is_allowed(self, origin: str, host: bytes) -> bool:
        same = origin.partition("://")[2] == host.decode("latin-1").lower() != ""
        return same or origin in self._origins or "*" in self._origins


def _items(text: str) -> frozenset[str]:
    return frozenset(item for each in text.split(",") if (item := each.strip().lower()))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return False
    return parsed.is_loopback or (isinstance(parsed, ipaddress.IPv6Address) and str(parsed.ipv4_mapped)[:4] == "127.")


def send_with_page_policy(send: Send) -> Send:
    """Send, with a Content-Security-Policy for HTML: scripts of this server and the page's own inline ones, no other.

    The head of a page is held until its body is there, whose scripts the policy names by their SHA-256.

    Source: W3C, Content Security Policy Level 3, section 2.3.1.
    """
    page: Message | None = None

    async def send_page(message: Message) -> None:
        nonlocal page
        if message["type"] == "http.response.start":
            content_type = MutableHeaders(scope=message).get("content-type", "")
            if content_type.startswith("text/html"):
                page = message
                return
        elif page is not None:
            MutableHeaders(scope=page)["Content-Security-Policy"] = _policy(message.get("body", b""))
            await send(page)
            page = None
        await send(message)

    return send_page


def _policy(page: bytes) -> str:
    workers = "; worker-src blob:" if b"<redoc" in page else ""  # it searches in one
    digests = [hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(page)]
    scripts = "".join([f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests])
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'{workers}"
    )
