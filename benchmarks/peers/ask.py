"""A client program that is told on its standard input what to ask, and says on its standard output what it took."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .jobs import compare, tensor

Array = np.ndarray[Any, Any]
Call = Callable[[Array], Array]


def converse(name: str, connect: Callable[[], Call]) -> None:
    """Serve commands, one JSON text a line, until the input ends.

    `{"do": "check", "job": ...}` compares an answer, `{"do": "call", "job": ...}` only gets one, and
    `{"do": "load", "connections": n, "seconds": s}` makes the small job from so many threads.

    Args:
        name: the product's name, for messages.
        connect: makes a connection, and gives the call that asks for a Tile over it.
    """
    call = connect()
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, float] = {}
        if command["do"] == "check":
            compare(name, command["job"], call(_kept(command["job"])))
        elif command["do"] == "call":
            call(_kept(command["job"]))
        else:
            answer = _load(connect, int(command["connections"]), float(command["seconds"]))
        print(json.dumps(answer), flush=True)


def _load(connect: Callable[[], Call], connections: int, seconds: float) -> dict[str, float]:
    """Requests per second, and within how many seconds half and 99 % of them were answered."""
    x, took = tensor("small"), list[float]()
    connected = threading.Barrier(connections + 1, timeout=60)

    def work() -> None:
        call = connect()  # here, because clients that are built on gevent belong to one thread
        call(x)
        connected.wait()
        while (begun := time.perf_counter()) < end:
            call(x)
            took.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    end = float("inf")
    connected.wait()
    begin = time.perf_counter()
    end = begin + seconds
    for thread in threads:
        thread.join()
    p50, p99 = np.quantile(took, [0.5, 0.99])
    return {"rate": len(took) / (time.perf_counter() - begin), "p50": float(p50), "p99": float(p99)}


_tensors: dict[str, Array] = {}


def _kept(job: str) -> Array:
    if job not in _tensors:
        _tensors[job] = tensor(job)
    return _tensors[job]
