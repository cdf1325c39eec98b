"""How much may be computed on the event loop's thread: what takes no longer than asking another thread to do it.

A hop to a thread and back costs the loop some 50 microseconds, a small operator far less. A long computation on the
loop's thread, on the other hand, keeps every other connection waiting. Where the two meet depends on the machine, so
both are measured when the server starts, within a few milliseconds; settings can say it instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

__all__ = ["Inline", "measure_inline"]

HOPS = 2
"""A plan is small if it takes at most as long as so many hops: then the loop gains little from being free meanwhile."""
LEAST, MOST = 16 * 1024, 1024 * 1024
"""Bounds of both limits, so that a moment in which the machine was busy cannot do harm."""

_ROUNDS = 15
_BLOCK = 128 * 1024  # bytes copied, and elements gathered, to see how fast that is


@dataclass(frozen=True, slots=True)
class Inline:
    """The largest plan that is computed on the event loop's thread.

    Attributes:
        bytes: of its inputs together, and of its output.
        work: elements that it reads and adds up.
    """

    bytes: int
    work: int


async def measure_inline() -> Inline:
    """Time hops, copies and sums on this machine, now, on the running loop. Takes 2 to 5 ms."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        hops: list[float] = []
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            await loop.run_in_executor(threads, _nothing)
            hops.append(time.perf_counter() - begin)
    patience = HOPS * median(hops)
    source, target = np.zeros(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)
    numbers = np.zeros(_BLOCK // 8, np.float32)
    places = np.arange(numbers.size)[::-1].copy()
    copying = _shortest(lambda: np.copyto(target, source)) / _BLOCK
    summing = _shortest(lambda: numbers.take(places) + numbers) / (2 * numbers.size)
    return Inline(_bounded(patience / copying), _bounded(patience / summing))


def _nothing() -> None:
    """What is to be done on the other thread."""


def _shortest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few calls."""
    times: list[float] = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _bounded(value: float) -> int:
    """A power of two near the value, within the bounds: more digits would be noise."""
    return min(MOST, max(LEAST, 1 << (max(1, int(value)).bit_length() - 1)))
