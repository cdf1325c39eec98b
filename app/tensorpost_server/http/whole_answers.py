"""uvicorn's httptools protocol, offering `tensorpost.answer_whole`: see `answering.py`."""

from __future__ import annotations

from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .answering import EXTENSION

__all__ = ["WholeAnswers"]


class WholeAnswers(HttpToolsProtocol):
    """To be used, or derived from, as `uvicorn.Config(http=...)`. On the wire it is uvicorn's own, byte for byte."""

    def on_headers_complete(self) -> None:
        """A request begins."""
        super().on_headers_complete()
        cycle = self.cycle
        # The application's first step comes later, in a task, and so sees this.
        if cycle.scope is self.scope and not cycle.access_log:
            extensions = self.scope.setdefault("extensions", {})
            extensions[EXTENSION] = {"answer_whole": partial(_answer_whole, cycle)}


def _answer_whole(cycle: RequestResponseCycle, lines: bytes, body: bytes) -> bool:
    """What `RequestResponseCycle.send` does with the two messages of an answer, where there is nothing special."""
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    usual = b"".join([b"%b: %b\r\n" % field for field in cycle.default_headers])
    cycle.transport.write(b"HTTP/1.1 200 OK\r\n%b%b\r\n%b" % (usual, lines, body))
    cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True
