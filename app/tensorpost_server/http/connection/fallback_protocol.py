"""uvicorn's httptools protocol with a bound on requests sent ahead; everything else is as uvicorn has it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .request_parser import MOST_QUEUED


class _TooManyAhead(Exception):
    """Raised in a callback of the parser, to stop it."""


class FallbackProtocol(HttpToolsProtocol):
    """Closes a connection whose caller sends more requests ahead than `MOST_QUEUED`.

    uvicorn parses all that one read brought, and keeps objects of a request for each 18 bytes sent.
    """

    def on_headers_complete(self) -> None:
        """A head is complete."""
        super().on_headers_complete()
        if len(self.pipeline) > MOST_QUEUED:
            self.transport.abort()
            raise _TooManyAhead

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not a request, unless the connection is closed."""
        if not self.transport.is_closing():
            super().send_400_response(msg)
