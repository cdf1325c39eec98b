"""Threads that help the one that computes a box: all of them take parts of it until none is left.

A helper that is awake joins within a microsecond. After a job it looks for another one for `LOOKING_SECONDS`, then it
sleeps until one comes; so an idle server uses no processor. Nobody waits for a helper that has not begun, and helpers
leave as soon as so many threads compute as may.
"""

from __future__ import annotations

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

LOOKING_SECONDS = 3e-5  # after a job: several times what passes between two slices of a call
MOST_HELPERS = 7
_AWAIT_SECONDS = 5e-5  # between two looks for a helper that gets no processor
_LOOKS_TIMED = 1000
# Words of `kernels/thread_kernels.py`.
J_WAITING = 6
T_MOST, T_HELPERS, T_AT, T_PITCH = 16, 17, 24, 8


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
        self._asleep: list[SimpleQueue[bool]] = []
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
        if parts > 1 and self.count:
            self._wake(parts - 1)
        self._kernels["compute"](address)
        while job[J_WAITING]:
            time.sleep(_AWAIT_SECONDS)
            self._kernels["await_helpers"](address)

    def _wake(self, most: int) -> None:
        if not self._all:
            with self._lock:
                if not self._all:
                    self._start()
        for _ in range(min(most, len(self._asleep))):
            try:
                self._asleep.pop().put(True)
            except IndexError:  # another thread woke the last one
                return

    def _start(self) -> None:
        looks, kernel = self._looks(), self._kernels["help_threads"]
        self._memory[T_HELPERS] = self.count
        for number in range(1, self.count + 1):
            begin: SimpleQueue[bool] = SimpleQueue()
            args = (kernel, self._memory, (number, looks), begin, self._asleep)  # not this object, which ends them
            threading.Thread(target=_help, args=args, name=f"tensorpost-helper_{number}", daemon=True).start()
            self._asleep.append(begin)
            self._all.append(begin)

    def _looks(self) -> int:
        """How often a helper looks for a job in `LOOKING_SECONDS`."""
        parameters, best = array("q", (self._address, 1, _LOOKS_TIMED)), float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            self._kernels["help_threads"](parameters.buffer_info()[0])
            best = min(best, time.perf_counter() - begin)
        return int(_LOOKS_TIMED * LOOKING_SECONDS / best) + 1


def _help(
    kernel: CompiledKernel, memory: NDArray[Any], rest: tuple[int, int],
    begin: SimpleQueue[bool], asleep: list[SimpleQueue[bool]],
) -> None:  # fmt: skip
    parameters = array("q", (memory.ctypes.data, *rest))
    while begin.get():
        kernel(parameters.buffer_info()[0])
        asleep.append(begin)


def _end(helpers: list[SimpleQueue[bool]]) -> None:
    for begin in helpers:
        begin.put(False)
