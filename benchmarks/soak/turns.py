"""What others wait beside the largest calls of each family of operators, which hold a processor's threads for long."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorpost.descriptors import operator_class
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.engine.worker import Worker
from tensorpost_server.planning import Plan, make_plan
from tensorpost_server.serving import SWITCH_SECONDS

from ..machine import BUSY, busy_cores
from .finding import Finding
from .largest_calls import LargestCall, largest_calls, tensor

__all__ = ["turns"]

THREADS, LARGE_CALLS = 2, 2
SLICE_BYTES, SLICES_AHEAD = 2 << 20, 3
WAIT_SECONDS = 0.1
"""How much longer another caller's call may take beside the largest ones than alone: the turn of one of them."""
END_SECONDS = 0.5
"""How soon a call must end whose caller has left."""
ALONE = 30  # calls without others
ELEMENTS = 300_000  # of a call that is not small enough for the event loop's thread


@dataclass
class Waits:
    """What was measured beside one call, seconds.

    Attributes:
        alone: the longest call without others.
        beside: each call beside the large ones.
        ended: how long these took to end when their callers had left.
    """

    alone: float
    beside: Sequence[float]
    ended: float


def turns(seconds: float) -> Iterator[Finding]:
    """What was found of each call; all have equal parts of the time."""
    sys.setswitchinterval(SWITCH_SECONDS)  # as in a server
    calls = [*largest_calls()]
    others = busy_cores() or 0.0
    for call in calls:
        found = asyncio.run(beside(call, seconds / len(calls)))
        longest = max(found.beside, default=0.0)
        seen = (
            f"another caller's {len(found.beside)} calls took at most {longest * 1e3:.0f} ms, median "
            f"{np.median(found.beside or [0.0]) * 1e3:.1f} ms, alone at most {found.alone * 1e3:.0f} ms; ended "
            f"{found.ended * 1e3:.0f} ms after their callers had left"
        )
        holds = longest <= WAIT_SECONDS + found.alone and found.ended <= END_SECONDS
        if others > BUSY and not holds:
            yield Finding(call.name, f"{seen}; not judged, since others kept {others:.1f} cores busy", holds=None)
        else:
            yield Finding(f"{LARGE_CALLS} calls of {call.name}", seen, holds)


async def beside(call: LargestCall, seconds: float) -> Waits:
    """Two large calls of one caller, and small ones of another one after the other."""
    worker = Worker(NumpyBackend(THREADS), SLICES_AHEAD)
    add = {"ATensor": tensor("FLOAT32", 1, 1, 1, ELEMENTS), "BTensor": tensor("FLOAT32", 1, 1, 1, ELEMENTS)}
    small = make_plan(operator_class("ELEMENT_WISE_ADD").completed(add), SLICE_BYTES)
    large, inputs = make_plan(call.operation, SLICE_BYTES), [array.data for array in call.inputs()]
    zeros = [memoryview(bytes(4 * ELEMENTS))] * 2
    try:
        alone = max([await took(worker, small, zeros) for _ in range(ALONE)])
        tasks = [asyncio.create_task(run(worker, large, inputs, "mallory")) for _ in range(LARGE_CALLS)]
        end, waits = time.perf_counter() + seconds, list[float]()
        while time.perf_counter() < end and not all(task.done() for task in tasks):
            waits.append(await took(worker, small, zeros))
            await asyncio.sleep(0.005)
        begin = time.perf_counter()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        return Waits(alone, waits, time.perf_counter() - begin)
    finally:
        worker.close()


async def took(worker: Worker, plan: Plan, inputs: Sequence[memoryview]) -> float:
    """Seconds that a call of the other caller takes."""
    begin = time.perf_counter()
    await run(worker, plan, inputs, "alice")
    return time.perf_counter() - begin


async def run(worker: Worker, plan: Plan, inputs: Sequence[memoryview], caller: str) -> None:
    """A whole call, whose answer goes nowhere."""
    answer = worker.run(plan, inputs, caller=caller)
    try:
        async for _ in answer:
            pass
    finally:
        await answer.aclose()
