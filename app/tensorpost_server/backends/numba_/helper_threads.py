"""Threads that help the one that computes a box: all of them take parts of it until none is left.

A helper that is awake joins within a microsecond. After a job it looks for another one for `LOOKING_SECONDS`, then it
sleeps until one comes; so an idle server uses no processor. Nobody waits for a helper that has not begun, and helpers
leave as soon as so many threads compute as may.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
import weakref
from array import array
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .library import CompiledKernel

_log = logging.getLogger(__name__)

LOOKING_SECONDS = 3e-5  # after a job: several times what passes between two slices of a call
MOST_HELPERS = 7
_AWAIT_SECONDS = 5e-5  # before the second look for a helper that gets no processor; twice as long before each other one
_LONGEST_WAIT_SECONDS = 1e-3
_LOOKS_TIMED = 1000
_MOST_LOOKS = 20_000
# Words of `kernels/thread_kernels.py`.
J_WAITING = 6
T_JOB, T_COMPUTING, T_MOST, T_HELPERS, T_AT, T_PITCH = 0, 8, 16, 17, 24, 8

_Sleeping = tuple[int, SimpleQueue[bool]]
"""The number of a helper, and what wakes it."""


class HelperThreads:
    """The helpers of a backend, which are started when they are first needed.

    Args:
        kernels: the compiled ones.
        threads: how many threads compute at the same time, those that call `compute` included.

    Attributes:
        count: how many helpers there are.
    """

    def __init__(self, kernels: Mapping[str, CompiledKernel], threads: int) -> None:
        self.count = min(threads - 1, MOST_HELPERS)
        self._kernels, self._lock = kernels, threading.Lock()
        self._memory = np.zeros(T_AT + T_PITCH * (self.count + 1), np.int64)
        self._memory[T_MOST] = threads
        self._address = self._memory.ctypes.data if self.count else 0
        self._all: list[SimpleQueue[bool]] = []  # what wakes each helper, and ends it
        self._asleep: list[_Sleeping] = []  # a heap: those with low numbers may help when many threads compute
        self.close = weakref.finalize(self, _end, self._all)

    @property
    def asleep(self) -> int:
        """How many helpers sleep."""
        return len(self._asleep)

    def compute(self, parts: int, programs: int, pitch: int, room: int, blocks: Sequence[int]) -> None:
        """Run the programs of a job, with the helpers that are free. Any number of threads at once.

        Args:
            parts: how many programs there are.
            programs: address of their addresses.
            pitch: bytes of scratch memory for each thread.
            room: how many of them are for parameters.
            blocks: addresses of scratch memory for the calling thread and each helper, of the target, of the inputs.
        """
        job = array("q", (0, parts, programs, self._address, pitch, room, 0, *blocks))
        address = job.buffer_info()[0]
        if parts > 1 and self.count and not self._memory[T_JOB]:
            self._wake(min(parts, int(self._memory[T_MOST] - self._memory[T_COMPUTING])) - 1)
        raised: BaseException | None = None
        try:
            self._kernels["compute"](address)
        except BaseException as error:  # noqa: BLE001 - of a signal's handler; it is raised below
            raised = error
        wait = _AWAIT_SECONDS
        while job[J_WAITING]:  # whatever is raised: helpers read and write this memory
            try:
                time.sleep(wait)
                self._kernels["await_helpers"](address)
            except BaseException as error:  # noqa: BLE001 - as above
                raised = error
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        if raised is not None:
            raise raised

    def _wake(self, most: int) -> None:
        if most <= 0:
            return
        with self._lock:
            if not self._all and self.close.alive:
                self._start()
            for _ in range(min(most, len(self._asleep))):
                heapq.heappop(self._asleep)[1].put(True)

    def _start(self) -> None:
        looks, kernel = self._looks(), self._kernels["help_threads"]
        self._memory[T_HELPERS] = self.count
        for number in range(1, self.count + 1):
            begin: SimpleQueue[bool] = SimpleQueue()
            sleeping = number, begin
            args = (kernel, self._memory, sleeping, looks, self._asleep, self._lock)  # not this object, which ends them
            try:
                threading.Thread(target=_help, args=args, name=f"tensorpost-helper_{number}", daemon=True).start()
            except RuntimeError as error:
                _log.warning("a thread that helps to compute cannot be started: %s", error)
                return
            heapq.heappush(self._asleep, sleeping)
            self._all.append(begin)

    def _looks(self) -> int:
        """How often a helper looks for a job in `LOOKING_SECONDS`."""
        memory = np.zeros_like(self._memory)  # where nobody computes, so that no other thread ends the looking
        memory[T_MOST] = 1
        parameters, best = array("q", (memory.ctypes.data, 1, _LOOKS_TIMED)), float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            self._kernels["help_threads"](parameters.buffer_info()[0])
            best = min(best, time.perf_counter() - begin)
        return min(_MOST_LOOKS, int(_LOOKS_TIMED * LOOKING_SECONDS / best) + 1)


def _help(
    kernel: CompiledKernel, memory: NDArray[Any], sleeping: _Sleeping, looks: int,
    asleep: list[_Sleeping], lock: threading.Lock,
) -> None:  # fmt: skip
    number, begin = sleeping
    parameters = array("q", (memory.ctypes.data, number, looks))
    while begin.get():
        kernel(parameters.buffer_info()[0])
        with lock:
            heapq.heappush(asleep, sleeping)


def _end(helpers: list[SimpleQueue[bool]]) -> None:
    for begin in [*helpers]:
        begin.put(False)
