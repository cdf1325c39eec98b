"""The threads of a worker, which take calls from its fair queue."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from .fair_queue import FairQueue, Flow

__all__ = ["Calls", "WorkerThreads"]

T = TypeVar("T")


class _QueuedCall:
    """A call that waits for a thread."""

    __slots__ = ("args", "call", "future")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args = call, args
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call(*self.args)
        except BaseException as error:  # noqa: BLE001 # whoever waits for the future gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


Calls: TypeAlias = Flow[_QueuedCall]
"""The calls of one request, from `WorkerThreads.open` until `WorkerThreads.close`."""


_NICER = 5
"""How much lower the priority of threads that compute or parse on processors is. They want processors for seconds; the
event loop's thread wants one for a moment, thousands of times a second, and small calls are one slice."""


class WorkerThreads:
    """Threads that run calls in the order of a `FairQueue`. They are started when they are needed.

    Args:
        count: calls that run at the same time.
        name: what the names of the threads begin with.
        extra_small: whether one more thread runs only the calls of requests that were opened as small: they do not wait
            for a slice to end, and the operating system shares the processors.
        lower_priority: whether the others have a lower priority than the thread that starts them (Linux).
    """

    def __init__(self, count: int, name: str, *, extra_small: bool, lower_priority: bool) -> None:
        self._count, self._name = count, name
        self._lower_priority = lower_priority
        self._has_extra = extra_small
        self._queue: FairQueue[_QueuedCall] = FairQueue()
        self._urgent: deque[_QueuedCall] = deque()
        self._threads: list[threading.Thread] = []
        self._extra: threading.Thread | None = None
        self._idle = 0
        self._extra_idle = False
        self._stopping = False
        lock = threading.Lock()
        self._any_waits, self._small_waits = threading.Condition(lock), threading.Condition(lock)
        self._lock = lock

    def open(self, caller: str, *, small: bool = False) -> Calls:
        """Begin the calls of a request; see `FairQueue.open`."""
        with self._lock:
            return self._queue.open(caller, small=small)

    def close(self, calls: Calls) -> None:
        """End the calls of a request: those that have not begun are cancelled and leave the queue. Called once."""
        with self._lock:
            dropped = self._queue.close(calls)
        for each in dropped:
            each.future.cancel()

    def submit(self, calls: Calls, cost: float, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call for a thread, in the request's turn.

        Raises:
            RuntimeError: the threads were stopped.
        """
        waiting = _QueuedCall(call, args)
        with self._lock:
            self._queue.add(calls, cost, waiting)
            if calls.small and self._has_extra and not self._stopping:
                if self._extra is None:
                    self._extra = self._start(self._run_small, "small")
                    return waiting.future
                if self._extra_idle:
                    self._extra_idle = False
                    self._small_waits.notify()
                    return waiting.future
            self._wake_one()
        return waiting.future

    def submit_first(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a short call before all others, for example one that releases resources.

        Raises:
            RuntimeError: the threads were stopped.
        """
        waiting = _QueuedCall(call, args)
        with self._lock:
            self._urgent.append(waiting)
            self._wake_one()
        return waiting.future

    def stop(self) -> None:
        """Cancel what waits, and wait for the calls that run."""
        with self._lock:
            self._stopping = True
            dropped = [*self._urgent]
            self._urgent.clear()
            while (waiting := self._queue.take()) is not None:
                dropped.append(waiting)
            self._any_waits.notify_all()
            self._small_waits.notify_all()
        for each in dropped:
            each.future.cancel()
        for thread in (*self._threads, *([self._extra] if self._extra is not None else [])):
            thread.join()

    def _wake_one(self) -> None:
        """Start or wake a thread for the queue. The caller holds the lock."""
        if self._stopping:
            raise RuntimeError("the threads of this worker were stopped")
        if self._idle:
            self._idle -= 1  # here, not when it wakes: the next call must not count on the same thread
            self._any_waits.notify()
        elif len(self._threads) < self._count:
            self._threads.append(self._start(self._run_any, str(len(self._threads))))

    def _start(self, target: Callable[[], None], suffix: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{self._name}_{suffix}", daemon=True)
        thread.start()
        return thread

    def _run_any(self) -> None:
        if sys.platform == "linux" and self._lower_priority:  # where a priority is a thread's own
            os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))
        while True:
            with self._lock:
                while (call := self._urgent.popleft() if self._urgent else self._queue.take()) is None:
                    if self._stopping:
                        return
                    self._idle += 1
                    self._any_waits.wait()
            call.run()
            del call  # it holds the result, and the request's memory

    def _run_small(self) -> None:
        while True:
            with self._lock:
                while (call := self._queue.take(small_only=True)) is None:
                    if self._stopping:
                        return
                    self._extra_idle = True
                    self._small_waits.wait()
            call.run()
            del call
