"""The event loop for Windows: asyncio's, but it goes on accepting after a caller that was gone too soon.

asyncio's own Proactor loop closes its listening socket when a connection ends before it was accepted (CPython's issue
93821), so that one caller who connects and resets would stop the server.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

PAUSE_SECONDS = 0.01
"""Pause before the next try, so that an error that stays does not keep the processor busy."""

T = TypeVar("T")


async def accept_next(accept: Callable[[], Awaitable[T]], is_closed: Callable[[], bool]) -> T:
    """The next connection that is there; those that ended before are passed over.

    Raises:
        OSError: the listening socket is closed.
    """
    while True:
        try:
            return await accept()
        except OSError:
            if is_closed():
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, for `uvicorn.Config(loop=...)`; asyncio's usual one on other systems."""
    if sys.platform != "win32":
        return asyncio.new_event_loop()

    class Proactor(asyncio.IocpProactor):
        def accept(self, listener: Any) -> Any:
            once = super().accept
            return asyncio.ensure_future(accept_next(lambda: once(listener), lambda: listener.fileno() == -1))

    return asyncio.ProactorEventLoop(Proactor())
