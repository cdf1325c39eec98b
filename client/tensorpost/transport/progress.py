"""How far a call has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come, in bytes of the request's and the answer's body (heads of frames included).

    A retry starts again at 0 sent bytes.

    Attributes:
        sent: bytes of the request handed to the operating system.
        to_send: bytes of the whole request.
        received: bytes of the answer received.
        to_receive: bytes of the whole answer; None until its headers are here.
    """

    sent: int
    to_send: int
    received: int = 0
    to_receive: int | None = None
