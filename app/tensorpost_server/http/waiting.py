"""Waiting with a time limit, where mostly there is nothing to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

__all__ = ["within"]

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float) -> T:
    """The result; a timer is started only if it is not there at once.

    Bytes that have arrived are received, and bytes that fit the socket are sent, without waiting. A timer for each of
    them would cost more than they do.

    Raises:
        TimeoutError: it took longer; the wait was cancelled.
    """
    steps = awaitable.__await__()
    try:
        waited_for = next(steps)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout(seconds):
        return await _Begun(steps, waited_for)


class _Begun:
    """The rest of an awaitable whose first step was taken: what `yield from` does from there on (PEP 380)."""

    def __init__(self, steps: Generator[Any, Any, Any], waited_for: Any) -> None:
        self._steps, self._waited_for = steps, waited_for

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, waited_for = self._steps, self._waited_for
        try:
            while True:
                try:
                    sent = yield waited_for
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:  # noqa: BLE001 # a cancellation, which the awaitable must see
                    waited_for = steps.throw(error)
                else:
                    waited_for = next(steps) if sent is None else steps.send(sent)
        except StopIteration as done:
            return done.value
