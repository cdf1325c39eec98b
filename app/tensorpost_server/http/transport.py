"""Which HTTP protocol and event loop uvicorn is given here: the best there is, by name, and why.

Nothing is chosen silently: `tensorpost doctor` shows the choice, and `tensorpost serve` warns when it is the slow one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from tensorpost.problems import InvalidParameter

from ..settings import ENVIRONMENT_PREFIX, Settings

if TYPE_CHECKING:
    import asyncio

__all__ = ["Transport", "choose_transport"]


@dataclass(frozen=True, slots=True)
class Transport:
    """What uvicorn is given.

    Attributes:
        http: `direct` is `DirectProtocol`; the others are uvicorn's.
        loop: the event loop.
        missing: packages that would make it faster and are not installed.
        settings: for the protocol's limits.
    """

    http: Literal["direct", "httptools", "h11"]
    loop: Literal["uvloop", "asyncio"]
    missing: tuple[str, ...]
    settings: Settings

    @property
    def protocol(self) -> type[asyncio.Protocol] | Literal["httptools", "h11"]:
        """For `uvicorn.Config(http=...)`."""
        if self.http != "direct":
            return self.http
        # They import uvicorn and httptools; the latter may not be there.
        from .connection_limits import Limits
        from .protocol import protocol_class

        return protocol_class(Limits.of(self.settings))

    @property
    def words(self) -> str:
        """What it means, for people."""
        ways = {
            "direct": "bodies go straight into their memory; slow and endless callers are cut off",
            "httptools": "uvicorn's own protocol: bodies are copied several times, and slow callers are not cut off",
            "h11": "uvicorn's slow protocol: bodies are copied several times, and slow callers are not cut off",
        }
        missing = f" (not installed: {', '.join(self.missing)})" if self.missing else ""
        return f"{self.http} on {self.loop}: {ways[self.http]}{missing}"


def choose_transport(settings: Settings) -> Transport:
    """The protocol that the settings name, or the best there is.

    Raises:
        InvalidParameter: the settings name one whose package is not installed.
    """
    wished = settings.http_protocol
    faster = ("httptools",) if sys.platform == "win32" else ("httptools", "uvloop")  # uvloop is not made for Windows
    missing = tuple(name for name in faster if find_spec(name) is None)
    if "httptools" in missing and wished in ("direct", "httptools"):
        raise InvalidParameter(
            f"{ENVIRONMENT_PREFIX}HTTP_PROTOCOL is {wished!r}, which needs httptools: install tensorpost[server], "
            "or choose auto or h11"
        )
    best = "h11" if "httptools" in missing else "direct"
    loop = "asyncio" if "uvloop" in missing or sys.platform == "win32" else "uvloop"
    return Transport(best if wished == "auto" else wished, loop, missing, settings)
