"""An ASGI extension: the application names memory, and the server receives the body straight into it.

ASGI's `receive` returns bytes that have already been copied. A server that can do better offers
`scope["extensions"]["tensorpost.receive_into"] = {"receive_into": callable}` in the scope of a request (ASGI 3.0,
"Extensions"), and may add `"arrived_bytes": callable`; `direct_body.py` is one. Where it is absent, `receive` does the
same with more copies. Both may be used on one request, in any order: each byte of the body is delivered once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.types import Scope

RECEIVE_INTO = "tensorpost.receive_into"
"""The extension's name in `scope["extensions"]`."""


class ReceiveInto(Protocol):
    """Receives the next bytes of a body into memory."""

    async def __call__(self, views: Sequence[memoryview], least: int, timeout: float) -> int:
        """Wait for bytes and write them into the views, in order.

        Nothing is written to the views after this has returned or was cancelled.

        Args:
            views: writable, contiguous memory of bytes.
            least: the bytes to wait for; more are written if they have arrived and the views have room.
            timeout: the longest pause between two parts, seconds.

        Returns:
            Bytes written. Fewer than `least` if the body ended, or if nothing came for `timeout` seconds; bytes that
            came before are in the views.

        Raises:
            ConnectionResetError: the caller closed the connection.
        """
        ...


def receive_into(scope: Scope) -> ReceiveInto | None:
    """The extension of this request; None if its server has none, or sees no gain for this body."""
    extensions: dict[str, dict[str, Any]] = scope.get("extensions") or {}
    return extensions.get(RECEIVE_INTO, {}).get("receive_into")


def arrived_bytes(scope: Scope) -> Callable[[], int] | None:
    """What says how many bytes of this body have arrived; None without the extension."""
    extensions: dict[str, dict[str, Any]] = scope.get("extensions") or {}
    return extensions.get(RECEIVE_INTO, {}).get("arrived_bytes")
