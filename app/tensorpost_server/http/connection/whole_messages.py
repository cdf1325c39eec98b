"""The ASGI extension `tensorpost.whole_messages` (ASGI 3.0, "Extensions"): a request and its response, each whole.

`receive` returns a body that has arrived without waiting for it, and `send` takes a response in one call. ASGI's own
`send` takes it in two messages, and servers write each to the socket: two system calls, and two packets for the caller
to wake up for. A server offers it as `scope["extensions"]["tensorpost.whole_messages"] = {"whole_messages":
WholeMessages(...)}`; `whole_responses.py` makes it. Where it is absent or declines, ASGI's channels do the same.
Middleware that wants to see messages removes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from starlette.types import Scope

WHOLE_MESSAGES = "tensorpost.whole_messages"
"""The extension's name in `scope["extensions"]`."""

_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")

ReplayFunction = Callable[[bytes, str | None], tuple[bytes, bytes, int] | None]
"""Answers a body, from this peer's address (None on a Unix socket), with the header lines and the body of a response
200, and how many requests of its key's quota it counts as; None to let the application answer."""


class Reception(Protocol):
    """Memory that a body is received into, and the answer to it; `end` is called in any case.

    Attributes:
        memory: room for the whole body.
    """

    memory: memoryview

    def answer(self) -> tuple[bytes, bytes, int] | None:
        """The answer to the body that is in the memory now; see `ReplayFunction`. Called once at most."""
        ...

    def end(self) -> None:
        """Let go of the memory; a second call does nothing."""
        ...


ReceiveFunction = Callable[[int, str | None], Reception | None]
"""Takes memory for a body of this many bytes, from this peer's address; None to let the application receive it."""


class SendWhole(Protocol):
    """Sends a response 200."""

    def __call__(
        self, lines: bytes, body: bytes, replay: ReplayFunction | None = None, receive: ReceiveFunction | None = None
    ) -> bool:
        """Write the whole response, if that can be done now.

        Args:
            lines: the header fields as `field_lines` writes them, Content-Length among them.
            body: the response's body, as long as Content-Length says.
            replay: answers a later request with the same HTTP head; None if there is no such function.
            receive: takes the body of such a request if it arrives in parts; None if the application has to.

        Returns:
            False if nothing was done and ASGI's `send` must be used: the caller is slow or gone, or this is the
            connection's last response.
        """
        ...


class WholeMessages(NamedTuple):
    """The extension of one request.

    Attributes:
        receive: returns the body if all of it has arrived and none was received, else None.
        send: sends a response.
    """

    receive: Callable[[], bytes | None]
    send: SendWhole


def whole_messages(scope: Scope) -> WholeMessages | None:
    """The extension of this request; None if its server has none."""
    extensions: dict[str, dict[str, Any]] | None = scope.get("extensions")
    extension = extensions.get(WHOLE_MESSAGES) if extensions else None
    return None if extension is None else extension["whole_messages"]


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as they are sent (RFC 9110, section 5).

    Raises:
        ValueError: a name or value that would end its line, or the head.
    """
    lines: list[bytes] = []
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is not a header field")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)
