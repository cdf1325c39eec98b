"""How far a call, or a series of calls, has come."""

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


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far `Client.map` has come.

    Attributes:
        done: results that were handed out.
        total: results that there will be; None if the inputs do not say how many they are.
    """

    done: int
    total: int | None = None
