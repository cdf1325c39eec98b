"""What a row of the soak found, and the calls that its rows share."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tests.support.http_app import NPY, Answer, Wire, npy_bytes, request_bytes

T = TypeVar("T")

LOCAL = {"host": "localhost"}
LIVE = request_bytes("GET", "/v2/health/live", headers=LOCAL | {"content-length": None})
TILE = "/v1/operators/tile?repeats=2"
SMALL = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY | LOCAL)
LIVE_SECONDS = 0.05
"""The time within which 99 of 100 questions of liveness must be answered."""
TIMES = 3.0
"""The factor by which nobody may move the 99th percentile of another caller's small calls."""
FLOOR_SECONDS = 0.002
"""A 99th percentile below it is taken for this much: it is the operating system's, not the service's."""

_PROCESSES = multiprocessing.get_context("fork")  # Linux only, as the soak is


@dataclass(frozen=True)
class Finding:
    """A line of the table.

    Attributes:
        done: what was done, with counts.
        seen: what was seen.
        holds: whether that is as it should be; None if it could not be tried here, and `seen` says why.
    """

    done: str
    seen: str
    holds: bool | None


@contextlib.contextmanager
def beside(*targets: Callable[[], object]) -> Iterator[None]:
    """Run each in a process of its own, with low priority, until the end of the block."""

    def run(target: Callable[[], object]) -> None:
        os.nice(10)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        target()

    processes = [_PROCESSES.Process(target=run, args=(target,), daemon=True) for target in targets]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def in_processes(jobs: Sequence[Callable[[], T]], meanwhile: Callable[[], object]) -> list[T]:
    """The results of jobs that run in a process each and can be pickled; the other is called ten times a second."""
    with ProcessPoolExecutor(len(jobs), mp_context=_PROCESSES) as pool:
        running = [pool.submit(job) for job in jobs]
        while not all(each.done() for each in running):
            meanwhile()
            time.sleep(0.1)
        return [each.result() for each in running]


@dataclass(frozen=True)
class Latency:
    """Seconds that questions of liveness and small calls took."""

    live: list[float]
    small: list[float]

    @property
    def live_p99(self) -> float:
        """The 99th percentile of the questions of liveness, seconds."""
        return float(np.quantile(self.live, 0.99))

    @property
    def small_p99(self) -> float:
        """The 99th percentile of the small calls, seconds."""
        return float(np.quantile(self.small, 0.99))

    def __str__(self) -> str:
        return f"liveness p99 {self.live_p99 * 1e3:.1f} ms, small resize p99 {self.small_p99 * 1e3:.1f} ms"

    @property
    def milliseconds(self) -> str:
        """Both, in words."""
        return f"{self.live_p99 * 1e3:.1f} and {self.small_p99 * 1e3:.1f} ms"

    def holds_beside(self, floor: Latency) -> bool:
        """Whether an attack moved it by no more than it may, from what it is where another server is attacked."""
        live = self.live_p99 <= max(LIVE_SECONDS, TIMES * floor.live_p99)
        return live and self.small_p99 <= TIMES * max(FLOOR_SECONDS, floor.small_p99)


def ask(port: int, data: bytes) -> Answer:
    """One request on a connection of its own."""
    with contextlib.closing(Wire("127.0.0.1", port)) as wire:
        wire.send(data)
        return wire.answer()


def well_behaved(port: int, seconds: float, *, new_connections: bool = False) -> Latency:
    """Ask for liveness and for a small resize of float64 in turn, a few hundred times a second.

    Each resize is another one, so that none of them was seen lately.

    Raises:
        AssertionError: an answer is not 200.
    """
    body = npy_bytes(np.arange(4096, dtype=np.float64).reshape(64, 64), "float64")
    took = Latency([], [])
    wires = [Wire("127.0.0.1", port), Wire("127.0.0.1", port)]
    end, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end or number < 10:
            sizes = f"{32 + number % 61},{32 + number // 61 % 61}"
            path = f"/v1/onnx/Resize?opset=19&mode=linear&sizes={sizes}"
            small = request_bytes("POST", path, body, NPY | LOCAL)
            for index, (seconds_of, data) in enumerate(((took.live, LIVE), (took.small, small))):
                begin = time.perf_counter()
                if new_connections:
                    wires[index].close()
                    wires[index] = Wire("127.0.0.1", port)
                wires[index].send(data)
                answer = wires[index].answer()
                seconds_of.append(time.perf_counter() - begin)
                assert answer.status == 200, answer
            number += 1
            time.sleep(0.002)
    finally:
        for wire in wires:
            wire.close()
    return took


def settled(port: int, seconds: float = 30.0) -> dict[str, int]:
    """What a server has in use when it has had time to notice that callers have gone; empty if it is nothing."""
    end = time.monotonic() + seconds
    while True:
        said = ask(port, request_bytes("GET", "/v1/limits", headers=LOCAL)).json()
        used = {**said["in_use"], "lent_bytes": said["large_blocks"]["lent_bytes"]}
        used = {name: value for name, value in used.items() if value}
        if not used or time.monotonic() > end:
            return used
        time.sleep(0.05)


def processor_seconds(process: int) -> float:
    """Processor time that a process has used."""
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:  # noqa: PTH123 # read often; no object for it
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
