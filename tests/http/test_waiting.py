"""Waiting with a time limit: as `asyncio.wait_for`, whatever the awaitable does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from tensorpost_server.http.waiting import within


async def at_once() -> int:
    return 7


async def after_turns(turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return turns


async def later(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "later"


async def fails(turns: int) -> None:
    await after_turns(turns)
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("work", "result"), [(at_once, 7), (lambda: after_turns(5), 5), (lambda: later(0.01), "later")]
)
def test_the_result(work: Any, result: Any):
    assert asyncio.run(within(work(), 5)) == result


@pytest.mark.parametrize("turns", [0, 3])
def test_an_error_is_passed_on(turns: int):
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(within(fails(turns), 5))


def test_too_long_is_a_timeout_and_the_work_is_cancelled():
    seen: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(within(stubborn(), 0.05))
    assert seen == ["cancelled"]
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("swallowed", [False, True], ids=["passed on", "answered"])
def test_a_cancellation_reaches_the_work(swallowed: bool):
    seen: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            if not swallowed:
                raise
        return "answered"

    async def run() -> None:
        task = asyncio.ensure_future(within(work(), 60))
        await asyncio.sleep(0.01)
        task.cancel()
        if swallowed:
            assert await task == "answered"
        else:
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert seen == ["cancelled"]


def test_what_it_waits_for_may_be_a_future():
    async def run() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, "done")
        awaitable: Awaitable[str] = future
        return await within(awaitable, 5)

    assert asyncio.run(run()) == "done"
