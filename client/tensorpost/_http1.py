"""One HTTP/1.1 exchange without a socket: the request's head to send, the answer's bytes to be fed.

h11 reads and writes everything that has a syntax. Only the body of an answer with a Content-Length, which has none,
goes past it: `straight` names the memory that the socket may be read into directly, so that tensor bytes are copied
once, between the socket and their array.
"""

from __future__ import annotations

from functools import lru_cache

import h11

from ._origin import Origin
from ._steps import AnswerHead, Request
from .problems import ConnectionProblem

__all__ = ["HttpExchange", "exchange_of"]

_LONGEST_HEAD_BYTES = 1 << 16
_NO_BODY = (204, 304)  # RFC 9110 section 6.4.1: whatever their headers say


def exchange_of(origin: Origin, request: Request) -> HttpExchange:
    """The exchange of a request to this server."""
    headers = {"host": origin.authority, **origin.headers, **request.headers}
    if request.body:
        headers["content-length"] = str(request.content_length)
    return HttpExchange(origin, _event(request.method, origin.prefix + request.target, tuple(headers.items())))


@lru_cache(maxsize=256)  # proving a head right takes longer than sending it, and the next call's is the same
def _event(method: str, target: str, fields: tuple[tuple[str, str], ...]) -> h11.Request:
    return h11.Request(method=method, target=target, headers=list(fields))


class HttpExchange:
    """A request and the answer to it.

    Args:
        origin: the server, for messages.
        request: the request's head; CONNECT and upgrades are not exchanges.

    Attributes:
        request_head: the bytes to send before the request's body.
        head: the answer's head, once enough was fed.
        response: the same as h11 has it: every header by itself, with the version and the reason.
        reusable: whether the connection can serve another request: the answer was read to its end, and the server
            keeps the connection open. (Whether the request was sent to its end is the sender's to know.)
    """

    def __init__(self, origin: Origin, request: h11.Request) -> None:
        self._origin = origin
        self._method = request.method
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD_BYTES)
        sent = self._h11.send(request)
        assert sent is not None
        self.request_head: bytes = sent
        self.head: AnswerHead | None = None
        self.response: h11.Response | None = None
        self._keep_alive = False
        self._left: int | None = None  # bytes of a body with Content-Length that have not been given out
        self._here = memoryview(b"")  # bytes of the body that have come and have not been given out
        self._ended = False

    @property
    def complete(self) -> bool:
        """Whether the body was given out to its end."""
        return self._ended

    @property
    def left(self) -> int | None:
        """Bytes of the body that have not been given out; None without a Content-Length."""
        return self._left

    @property
    def waiting(self) -> bool:
        """Whether bytes of the body have come, with the head for instance, and were not given out."""
        return bool(self._here)

    @property
    def reusable(self) -> bool:
        return self._ended and self._keep_alive

    def feed(self, data: bytes) -> None:
        """Take what the socket gave; nothing means that the server closed the connection.

        For the head, and for bodies that `straight` does not let pass.

        Raises:
            ConnectionProblem: the connection ended before the answer's head, or it is no HTTP.
        """
        if self.head is None and not data:
            raise ConnectionProblem(f"{self._origin} closed the connection without an answer")
        assert self._left is None, "a body with a Content-Length is read straight"
        try:
            self._h11.receive_data(data)
            if self.head is None:
                self._read_head()
        except h11.RemoteProtocolError as error:
            raise self._no_http(error) from error

    def _no_http(self, error: h11.RemoteProtocolError) -> ConnectionProblem:
        return ConnectionProblem(f"what answered at {self._origin} does not speak HTTP/1.1 ({str(error)[:100]})")

    def _read_head(self) -> None:
        event = self._h11.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = self._h11.next_event()
        if not isinstance(event, h11.Response):
            return
        headers: dict[str, str] = {}
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.head, self.response = AnswerHead(event.status_code, headers), event
        asked_to_close = "close" in headers.get("connection", "").lower()
        self._keep_alive = event.http_version >= b"1.1" and not asked_to_close
        bodiless = event.status_code in _NO_BODY or self._method == b"HEAD"
        if "content-length" in headers and "transfer-encoding" not in headers and not bodiless:
            self._left = int(headers["content-length"])
            rest, _ = self._h11.trailing_data
            self._here = memoryview(rest)[: self._left]
            # Bytes beyond the answer were not asked for; whatever they are, they are no answer to the next request.
            self._keep_alive = self._keep_alive and len(rest) <= self._left
            self._ended = self._left == 0

    def take(self, into: memoryview) -> int | None:
        """Give out bytes of the body that have come: how many, 0 at its end, None if more must come first.

        Raises:
            ConnectionProblem: the connection ended inside the body, or it is no HTTP.
        """
        if not self._here and self._left is None and not self._ended:
            self._next_part()
        if self._here:
            count = min(len(into), len(self._here))
            into[:count] = self._here[:count]
            self._here = self._here[count:]
            self._count(count)
            return count
        return 0 if self._ended else None

    def _next_part(self) -> None:
        """Chunked, or ended by the end of the connection: h11 knows which."""
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise self._no_http(error) from error
        if isinstance(event, h11.Data):
            self._here = memoryview(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self._ended = True
            self._keep_alive = self._keep_alive and self._h11.trailing_data == (b"", False)

    def straight(self, into: memoryview) -> memoryview | None:
        """The part of this memory that the socket may be read into; None if the bytes must be fed instead."""
        return None if self._left is None else into[: self._left]

    def received_straight(self, count: int) -> None:
        """So many bytes were read into that memory."""
        self._count(count)

    def _count(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            self._ended = self._left == 0
