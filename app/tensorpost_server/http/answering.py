"""An ASGI extension: a small answer, head and body, in one call and one write to the socket.

ASGI's `send` takes an answer in two messages, and servers write each to the socket as it comes: two system calls, and
two packets for the caller to wake up for. A server that can do better puts
`scope["extensions"]["tensorpost.answer_whole"] = {"answer_whole": callable}` into the scope of a request (ASGI 3.0,
"Extensions"); `http/protocol.py` is one. Where it is absent, or declines, `send` does the same. Whoever wraps `send` to
see answers takes the extension out of the scope.

With an answer comes a function that can answer the next request with the same head. A server may keep it under the
exact bytes of that head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from starlette.types import Scope

__all__ = ["EXTENSION", "AnswerAgain", "AnswerWhole", "answer_whole", "field_lines"]

EXTENSION = "tensorpost.answer_whole"
"""The extension's name in `scope["extensions"]`."""

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")


AnswerAgain = Callable[[bytes], tuple[bytes, bytes] | None]
"""From a body to the lines and the body of the answer 200; None to let the application answer."""


class AnswerWhole(Protocol):
    """Answers 200."""

    def __call__(self, lines: bytes, body: bytes, again: AnswerAgain | None = None) -> bool:
        """Write the answer, if that can be done now and at once.

        Args:
            lines: the header fields as `field_lines` writes them, Content-Length among them.
            body: as long as that says.
            again: what answers a request with the same head and a body of the same length; None if nothing does.

        Returns:
            False if nothing was done, and `send` is the way: the caller is slow or gone, or this is the connection's
            last answer.
        """
        ...


def answer_whole(scope: Scope) -> AnswerWhole | None:
    """The extension of this request; None if its server has none."""
    extensions: dict[str, dict[str, Any]] | None = scope.get("extensions")
    if not extensions:
        return None
    extension = extensions.get(EXTENSION)
    return None if extension is None else extension["answer_whole"]


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as they are sent (RFC 9110, section 5).

    Raises:
        ValueError: a name or value that would end its line, or the head.
    """
    lines: list[bytes] = []
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"{name!r}: {value!r} is no header field")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)
