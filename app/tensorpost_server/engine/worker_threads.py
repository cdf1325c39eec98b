"""The threads of a worker, which take calls from its fair queue, a turn at a time.

There are so many places for calls that compute. A call that has computed for a turn (`TURN_SECONDS`) gives its place to
what waits, and waits in the queue for its next turn: its thread sleeps meanwhile, and another thread takes its place
(`pause`, called between two blocks of the computation); so does a call within its turn, if what waits takes less than
half of what is left of it. A call that does not come to the end of a block loses its place after `OVERDUE_SECONDS` of
processor time: it goes on, and the operating system shares the processors, until it pauses or ends. So nobody waits for
a computation of another caller, whatever it computes.

Processor time, since a call whose thread gets no processor is not long: displaced, it would leave still less to each.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from ..forms.base import TURN_SECONDS, Abandoned
from .fair_queue import FairQueue, Flow

T = TypeVar("T")

OVERDUE_SECONDS = TURN_SECONDS
"""Processor time for which a call that does not pause keeps its place while others wait, from when that is noticed."""

_OVERDUE_TIMES = 4
"""How many times as long, by the clock, a call keeps its place that uses less processor time, or where none is told.

As many times more for every call that goes on without a place, since these take processors from it."""

MOST_OVERDUE = 16
"""Calls that go on without a place, at most. Long calls take the places of no more than there are places."""

MOST_THREADS = 64
"""Threads of a worker, most of which sleep, from which on no further long call begins before one has ended."""


class _Place(enum.Enum):
    HELD = enum.auto()
    LOST = enum.auto()  # it took too long, and goes on without
    GIVEN = enum.auto()  # it waits, for its turn or for something else than a processor


class _QueuedCall:
    """A call that waits for a thread, runs on one, or waits for its next turn there."""

    __slots__ = ("args", "call", "calls", "cost", "future", "noticed", "place", "since", "thread", "turn_begins")

    def __init__(self, calls: Calls | None, cost: float, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.calls, self.cost, self.call, self.args = calls, cost, call, args
        self.future: Future[Any] = Future()
        self.place = _Place.HELD
        self.since = 0.0  # it has the place, by `time.monotonic`
        self.thread = 0  # that runs it
        self.noticed: tuple[float, float] | None = None  # that others wait for its place: by the clock, processor time
        self.turn_begins: threading.Event | None = None  # set for a call that has begun and waits for its turn

    @property
    def seconds_left(self) -> float:
        """What it will compute from now on, by its estimate; as long as a turn if it has taken longer than that."""
        left = self.cost - (time.monotonic() - self.since)
        return left if left > 0 else TURN_SECONDS

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


_TELLS_PROCESSOR_TIME = hasattr(time, "pthread_getcpuclockid")  # of another thread; Linux


class _RunningCall(threading.local):
    call: _QueuedCall | None = None


class WorkerThreads:
    """Threads that run calls in the order of a `FairQueue`. They are started when they are needed.

    Args:
        count: places: calls that compute at the same time.
        name: what the names of the threads begin with.
        extra_small: whether one more thread runs only the calls of requests that were opened as small: they do not wait
            for a slice to end, and the operating system shares the processors.
        lower_priority: whether the others have a lower priority than the thread that starts them (Linux).
        turns: whether calls lose their place to others that wait; no more than `count` calls run at any time otherwise.

    Attributes:
        wanted: see `Turns.wanted`.
    """

    def __init__(self, count: int, name: str, *, extra_small: bool, lower_priority: bool, turns: bool = False) -> None:
        self._count, self._name = count, name
        self.wanted = False
        # Absolute, since a thread that is started by one of these inherits its priority.
        self._priority = _lower_priority() if lower_priority and sys.platform == "linux" else None
        self._has_extra, self._turns = extra_small, turns
        self._queue: FairQueue[_QueuedCall] = FairQueue()
        self._urgent: deque[_QueuedCall] = deque()
        self._threads: list[threading.Thread] = []
        self._running: list[_QueuedCall] = []  # those that have a place
        self._overdue: list[_QueuedCall] = []  # those that lost it
        self._asleep = 0  # threads whose calls wait, for their turn or for something else
        self._extra: threading.Thread | None = None
        self._extra_running: _QueuedCall | None = None
        self._watcher: threading.Thread | None = None
        self._watcher_idle = False
        self._idle = 0
        self._extra_idle = False
        self._stopping = False
        self._current = _RunningCall()
        lock = threading.Lock()
        self._any_waits, self._small_waits = threading.Condition(lock), threading.Condition(lock)
        self._one_waits_long = threading.Condition(lock)
        self._lock = lock

    @property
    def longest_seconds(self) -> float:
        """How long the call that has computed the longest has neither paused nor returned; 0 if there is none."""
        with self._lock:
            running = [*self._running, *self._overdue]
            running += [] if self._extra_running is None else [self._extra_running]
        return time.monotonic() - min([call.since for call in running]) if running else 0.0

    def open(self, caller: str, *, small: bool = False) -> Calls:
        """Begin the calls of a request; see `FairQueue.open`."""
        with self._lock:
            return self._queue.open(caller, small=small)

    def close(self, calls: Calls) -> None:
        """End the calls of a request: those that have not begun are cancelled and leave the queue. Called once.

        One that waits for its next turn gets it at once; whoever closes the request has told it to stop.
        """
        with self._lock:
            dropped = self._queue.close(calls)
            for each in dropped:
                self._begin_turn(each)
        for each in dropped:
            each.future.cancel()

    def submit(self, calls: Calls, cost: float, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call for a thread, in the request's turn.

        Args:
            calls: the request's calls.
            cost: estimate of the call's time, seconds.
            call: the function.
            args: the function's arguments.

        Raises:
            RuntimeError: the threads were stopped.
        """
        waiting = _QueuedCall(calls, min(cost, TURN_SECONDS), call, args)
        with self._lock:
            self._queue.add(calls, waiting.cost, waiting)
            if calls.small and self._has_extra and not self._stopping:
                if self._extra is None:
                    self._extra = self._start(self._run_small, "small")
                    return waiting.future
                if self._extra_idle:
                    self._extra_idle = False
                    self._small_waits.notify()
                    return waiting.future
            self._wake_one(waiting.cost)
        return waiting.future

    def submit_first(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a short call before all others, for example one that releases resources.

        Raises:
            RuntimeError: the threads were stopped.
        """
        waiting = _QueuedCall(None, 0.0, call, args)
        with self._lock:
            self._urgent.append(waiting)
            self._wake_one(0.0)
        return waiting.future

    def stop(self) -> None:
        """Cancel what waits, and wait for the calls that run; those that wait for their turn are abandoned."""
        with self._lock:
            self._stopping = True
            dropped = [*self._urgent]
            self._urgent.clear()
            while (waiting := self._queue.take()) is not None:
                dropped.append(waiting)
            for each in dropped:  # one that was handed the next turn waits among the urgent ones
                self._begin_turn(each)
            self._any_waits.notify_all()
            self._small_waits.notify_all()
            self._one_waits_long.notify_all()
            threads = [*self._threads, *[each for each in (self._extra, self._watcher) if each is not None]]
        for each in dropped:
            each.future.cancel()
        for thread in threads:
            thread.join()

    # ---- turns, of calls that run: see `Turns` -----------------------------------------------------------------------

    def pause(self, left: float = 0.0) -> None:
        """See `Turns.pause`; called by a call that these threads run, elsewhere without effect."""
        call, turn_begins = self._current.call, None
        if call is None or call.calls is None:
            return
        with self._lock:
            self.wanted = False
            alone = not (self._urgent or self._queue.has_others(call.calls))
            # A request that has been closed meanwhile gets no more turns: its call goes on, and finds that it must end.
            if self._stopping or call.calls.closed or (alone and call.place is _Place.HELD):
                self._take_place(call)
            elif left > 0 and call.place is _Place.HELD and not self._is_shorter(call):
                self.wanted = any(each is not call and self._is_shorter(each) for each in self._running)
            elif self._waits_for_turn(call, call.calls, call.seconds_left if left > 0 else TURN_SECONDS):
                turn_begins = call.turn_begins
        if turn_begins is not None:
            turn_begins.wait()
            call.turn_begins = None
        if self._stopping:
            raise Abandoned

    def leave(self) -> None:
        call = self._current.call
        if call is None or call.calls is None:
            return
        with self._lock:
            if call.place is _Place.HELD and len(self._threads) < MOST_THREADS:
                self._running.remove(call)
                call.place = _Place.GIVEN
                self._asleep += 1
                if not self._stopping:
                    self._wake_one(TURN_SECONDS)

    def _is_shorter(self, call: _QueuedCall) -> bool:
        """Whether something waits that takes less than half of what is left of a call. The caller holds the lock."""
        if self._urgent:
            return True
        most = call.seconds_left / 2
        return self._queue.has_any(lambda flow: flow.cost < most and self._may_begin(flow))

    def _waits_for_turn(self, call: _QueuedCall, calls: Calls, cost: float) -> bool:
        """Queue a call that runs for its next turn; False if it has that now. The caller holds the lock."""
        held = call.place is _Place.HELD
        self._charge(call)
        call.cost = cost
        self._queue.put_back(calls, cost, call)
        handed: _QueuedCall | None = None
        if held or len(self._running) < self._count:
            handed = None if self._urgent else self._queue.take(self._may_begin)
            if handed is call:
                self._take_place(call)
                return False
        if held:
            self._running.remove(call)
        if call.place is _Place.LOST:
            self._overdue.remove(call)
        if call.place is not _Place.GIVEN:
            self._asleep += 1
        call.place, call.turn_begins = _Place.GIVEN, threading.Event()
        if handed is not None:
            self._urgent.appendleft(handed)
        self._wake_one(cost)
        return True

    def _take_place(self, call: _QueuedCall) -> None:
        """Note that the call computes from now on. The caller holds the lock."""
        if call.place is _Place.LOST:
            self._overdue.remove(call)
        if call.place is _Place.GIVEN:
            self._asleep -= 1
        if call not in self._running:
            self._running.append(call)
        call.place, call.since, call.noticed = _Place.HELD, time.monotonic(), None

    def _charge(self, call: _QueuedCall) -> None:
        """Count the time that a call has computed instead of its estimate. The caller holds the lock."""
        if call.calls is not None and call.place is not _Place.GIVEN:
            self._queue.charge(call.calls, time.monotonic() - call.since - call.cost)

    def _begin_turn(self, call: _QueuedCall) -> bool:
        """Let a call that waits for its turn go on; False if it has not begun yet. The caller holds the lock."""
        if call.turn_begins is None:
            return False
        self._take_place(call)
        call.turn_begins.set()
        return True

    def _may_begin(self, flow: Calls) -> bool:
        """Whether the next call of a flow may be taken now: it has begun, is short, or may become overdue as well."""
        if flow.begun or flow.small:
            return True
        overdue = [each.calls for each in self._overdue if each.calls is not None]
        if flow in overdue:  # its estimate has been wrong
            return False
        own = sum([calls.caller is flow.caller for calls in overdue])
        return _is_short(flow) or (own < self._count and len(self._threads) < MOST_THREADS)

    def _watch(self) -> None:
        """Take the place of calls that have had it for too long while others wait."""
        with self._lock:
            while not self._stopping:
                if not (self._urgent or len(self._queue)) or len(self._running) < self._count:
                    self._watcher_idle = True
                    self._one_waits_long.wait()
                    self._watcher_idle = False
                longest = _OVERDUE_TIMES * (1 + len(self._overdue)) * OVERDUE_SECONDS
                for call in [call for call in self._running if _is_overdue(call, longest)]:
                    self._displace(call)
                self._one_waits_long.wait(OVERDUE_SECONDS / 5)  # whatever happens meanwhile: it must not cost much

    def _displace(self, call: _QueuedCall) -> None:
        """Take a call's place for what waits, if that may have it. The caller holds the lock."""
        if call.calls is None or len(self._overdue) >= MOST_OVERDUE:
            return
        few = len(self._overdue) < self._count
        self._overdue.append(call)
        if not (
            self._urgent
            or self._queue.has_any(
                lambda flow: flow is not call.calls and (few or _is_short(flow)) and self._may_begin(flow)
            )
        ):
            self._overdue.remove(call)
            return
        self._running.remove(call)
        call.place = _Place.LOST
        self._wake_one(TURN_SECONDS)

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _wake_one(self, cost: float) -> None:
        """Start or wake a thread for a call of this cost, which was queued. The caller holds the lock."""
        if self._stopping:
            raise RuntimeError("the threads of this worker were stopped")
        if len(self._running) >= self._count:
            if self._turns:
                for each in self._running:
                    if cost < each.cost / 2:
                        self.wanted = True
                self._wake_watcher()
        elif self._idle:
            self._idle -= 1  # here, not when it wakes: the next call must not count on the same thread
            self._any_waits.notify()
        elif len(self._threads) - self._asleep - len(self._overdue) < self._count:
            self._threads.append(self._start(self._run_any, str(len(self._threads))))

    def _wake_watcher(self) -> None:
        """Have the places watched, since calls wait for them. The caller holds the lock."""
        if self._watcher_idle:
            self._watcher_idle = False
            self._one_waits_long.notify()
        elif self._watcher is None:
            self._watcher = self._start(self._watch, "watch")

    def _start(self, target: Callable[[], None], suffix: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{self._name}_{suffix}", daemon=True)
        thread.start()
        return thread

    def _next(self) -> _QueuedCall | None:
        """The next call that may begin or go on; None if there is none, or no place. The caller holds the lock."""
        if len(self._running) >= self._count:
            return None
        if self._urgent:
            return self._urgent.popleft()
        limited = self._overdue or len(self._threads) >= MOST_THREADS
        return self._queue.take(self._may_begin if limited else None)

    def _run_any(self) -> None:
        if self._priority is not None:
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)
        thread, current = threading.get_ident(), self._current
        call: _QueuedCall | None = None
        while True:
            with self._lock:
                if call is not None:
                    if call.calls is not None:
                        self._charge(call)
                    (self._overdue if call.place is _Place.LOST else self._running).remove(call)
                    call = None  # it holds the result, and the request's memory
                while (call := self._next()) is None:
                    if self._stopping:
                        return
                    if self._idle >= self._count:  # more were needed for calls that slept
                        self._threads.remove(threading.current_thread())
                        return
                    self._idle += 1
                    self._any_waits.wait()
                if call.turn_begins is not None:
                    self._begin_turn(call)
                    call = None  # it goes on, on its own thread
                    continue
                self._running.append(call)
                call.since, call.thread = time.monotonic(), thread
                if self._turns and len(self._running) >= self._count and len(self._queue):  # since a place was free
                    self._wake_watcher()
            current.call = call
            call.run()
            current.call = None

    def _run_small(self) -> None:
        while True:
            with self._lock:
                while (call := self._queue.take(_is_small)) is None:
                    if self._stopping:
                        return
                    self._extra_idle = True
                    self._small_waits.wait()
                self._extra_running, call.since = call, time.monotonic()
            call.run()
            self._extra_running = None
            del call


def _is_overdue(call: _QueuedCall, longest: float) -> bool:
    """Whether a call has had its place for too long since this was asked first. The caller holds the lock.

    So its thread is there, since that takes the lock before it ends.
    """
    now = time.monotonic()
    used = time.clock_gettime(time.pthread_getcpuclockid(call.thread)) if _TELLS_PROCESSOR_TIME else 0.0
    if call.noticed is None:
        call.noticed = now, used
        return False
    seen, used_then = call.noticed
    least = 0.9 * OVERDUE_SECONDS  # asked every so often, and meanwhile a thread uses a little less than passes
    return used - used_then >= least or now - seen >= longest


def _lower_priority() -> int:
    return min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)


def _is_short(flow: Calls) -> bool:
    return flow.small or flow.cost < TURN_SECONDS


def _is_small(flow: Calls) -> bool:
    return flow.small and not flow.begun
