"""`tensorpost bench`: how long calls of several sizes take from here, and which part of it is the server's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..calls.caller_arrays import tile_call
from ..client import Client

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of the tensors that are sent; twice as many come back."""


def measured(client: Client, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each size: Tile, twice along the only axis, called over and over, one call at a time.

    Args:
        client: the client that makes the calls.
        seconds: how long each size is called; once at least, after one call that is not counted.

    Yields:
        `sent_bytes`, `received_bytes`, `calls`, `median_ms` and `slowest_ms` of whole calls, `server_ms` (the median of
        what Server-Timing adds up to) and `bytes_per_second` sent and received at the median.
    """
    for size in SIZES:
        call = tile_call(np.zeros(size // 4, np.float32), 2)
        client.run(call.operation, call.array)
        whole: list[float] = []
        server: list[float] = []
        end = time.perf_counter() + seconds
        while not whole or time.perf_counter() < end:
            begin = time.perf_counter()
            result = client.call(call.operation, call.array)
            whole.append((time.perf_counter() - begin) * 1e3)
            server.append(sum(result.server_timing.values()))
        median = statistics.median(whole)
        yield {
            "sent_bytes": size,
            "received_bytes": 2 * size,
            "calls": len(whole),
            "median_ms": round(median, 3),
            "slowest_ms": round(max(whole), 3),
            "server_ms": round(statistics.median(server), 3),
            "bytes_per_second": round(3 * size / median * 1e3),
        }
