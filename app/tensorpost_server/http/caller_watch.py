"""Ends the work for a request when its caller closes the connection."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from starlette.types import Receive

from .request_body import ClientDisconnected


class CallerWatch:
    """Cancels the task of a request when its caller disconnects; a context manager around the work.

    Leaving it by this cancellation raises `ClientDisconnected`. A cancellation by anybody else stays one.
    """

    __slots__ = ("_receive", "_task", "_waiting")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._waiting: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None  # None unless it is to be cancelled

    def start(self) -> None:
        """Start to watch. The whole body must have been received; nothing else may call `receive` afterwards."""
        if self._waiting is None:
            self._task = asyncio.current_task()
            self._waiting = asyncio.ensure_future(_disconnect(self._receive))
            self._waiting.add_done_callback(self._cancel)

    def stop(self) -> None:
        """Stop watching; called before the last part of a response, because servers report a disconnect after it."""
        self._task = None
        if self._waiting is not None:
            self._waiting.cancel()

    def _cancel(self, waiting: asyncio.Future[None]) -> None:
        if self._task is not None and not waiting.cancelled():
            self._task.cancel(_GONE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, waiting = self._task, self._waiting
        if task is None or waiting is None:
            return  # not started, or stopped
        gone = waiting.done()
        self.stop()
        if gone and isinstance(error, asyncio.CancelledError) and not task.uncancel():
            raise ClientDisconnected from None


_GONE = "the caller closed the connection"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
