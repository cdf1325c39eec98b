"""A worker: one device and the threads that alone run plans on it, slice by slice.

The unit of work is a slice, not a request: a device is busy only while it computes, never while a slow caller sends or
receives, and the slices of several callers and requests take turns by their cost (`fair_queue.py`). Each request may
have a few slices computed ahead of what has been sent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tensorpost.values.problems import DeviceLost, OutOfDeviceMemory

from ..backends import Backend, DeviceMemory, KeptMemory, Run, RunInput, SharingBackend
from ..backends.timeline import Timeline
from ..forms.base import stoppable
from ..planning import Plan
from .cost import CostMeter
from .step_times import StepTimes, TimedRun
from .worker_threads import Calls, WorkerThreads

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CALL_SECONDS = 2e-5  # of a switch to another thread and back
_BYTES_PER_SECOND = 4e9  # to the memory of a device, at least

HEALTH_CHECK_SECONDS = 1.0
IDLE_SECONDS = 30.0
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True)
class InlineLimits:
    """The largest plan that is computed on the event loop's thread instead of a thread of the worker.

    A switch to another thread and back costs some 50 microseconds, and while the loop's thread computes, no other
    connection is served. The defaults are what the measured machines computed in the time of two switches: 1 MiB
    copied, or 128 Ki elements gathered and added.

    Attributes:
        bytes: limit of the plan's inputs together, and of its outputs together, in bytes.
        work: elements that it reads and combines.
        steps: its steps, of which each takes some 10 microseconds, however small its tensors are.
    """

    bytes: int = 1 << 20
    work: int = 1 << 17
    steps: int = 4


_SMALL_WORK = 1 << 18
"""Work of a graph whose stages are computed one after the other on one thread, in elements: about a tenth of a
millisecond."""


def ignore_loss(_reason: str) -> None:
    """Do nothing: the default callback for a lost device."""


class Worker:
    """Owns one device and the threads that may touch it.

    Args:
        backend: the opened device.
        slices_ahead: slices of a request that may be computed before they can be sent.
        idle_seconds: how long nothing must have run before memory kept for reuse is given back.
        retry_after_seconds: what a caller is told to wait when the device has no memory left.
        when_lost: called with the reason, on any thread, when the device fails permanently; at most a few times.

    Attributes:
        inline: the largest plan for `run_now`.
        minimum_work: elements that a plan must read for `auto` to prefer this device, despite the transfers.
        lost: why the device can never be used again by this process; None while it can.
        queued_bytes: input and output bytes of all requests in its queue.
        costs: how long plans take here.
    """

    def __init__(
        self,
        backend: Backend,
        slices_ahead: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
        when_lost: Callable[[str], object] = ignore_loss,
    ) -> None:
        self.backend = backend
        self.slices_ahead = slices_ahead
        self.inline = InlineLimits()
        self.minimum_work = 0
        self.lost: str | None = None
        self.costs = CostMeter(backend.threads, processor=backend.inline)
        self.queued_bytes = 0
        self._idle_seconds = idle_seconds
        self._retry_after_seconds = retry_after_seconds
        self._when_lost = when_lost
        self._full_until = 0.0
        self._requests = 0
        self._trimming: asyncio.TimerHandle | None = None
        self._health_check: Future[bytes] | None = None
        self._health_check_due = 0.0
        self._health_fault: str | None = None
        # Where the event loop's thread may compute small plans, so may one thread more.
        self._threads = WorkerThreads(
            backend.threads, f"tensorpost-{backend.name}", extra_small=backend.inline, lower_priority=backend.inline,
            turns=backend.inline,
        )  # fmt: skip

    # ---- the choice of a worker --------------------------------------------------------------------------------------

    def is_small(self, plan: Plan) -> bool:
        """Whether the plan should be run by `run_now`: a switch to a thread would take longer than the computation."""
        return (
            self.backend.inline
            and not plan.libraries  # which works in another process
            and max(plan.output_bytes, plan.input_bytes) <= self.inline.bytes
            and plan.work <= self.inline.work
            and len(plan.steps) <= self.inline.steps
        )

    def runs_once(self, plan: Plan) -> bool:
        """Whether a graph should be run by `run_once`: switching threads for each stage would take longer than it."""
        small = max(plan.output_bytes, plan.input_bytes) <= self.inline.bytes
        return bool(plan.stages) and plan.is_graph and small and plan.work <= _SMALL_WORK

    def refusal_reason(self, plan: Plan) -> str | None:
        """Why it cannot run the plan; None if it can."""
        return self.lost or self.backend.refusal_reason(plan)

    def computed_by(self, plan: Plan) -> str:
        """The name of the backend, and the library that computes the plan in its place: `numba+numpy`.

        Answers, access log, metrics and traces have this one name, with those of what computed earlier parts.
        """
        library = self.backend.library(plan)
        name = f"{self.backend.name}+{library}" if library else self.backend.name
        if not plan.computed_before:
            return name
        return "+".join(dict.fromkeys("+".join([name, *plan.computed_before]).split("+")))

    def is_preferred(self, plan: Plan) -> bool:
        """Whether `auto` should prefer it: the plan is large enough, and the device has memory again if it had none."""
        has_memory = not self._full_until or time.monotonic() > self._full_until
        return plan.work >= self.minimum_work and has_memory

    def enqueue(self, plan: Plan) -> QueueSlot:
        """Count the plan in this worker's queue until the slot is released; used on the event loop's thread only."""
        size_in_bytes = plan.input_bytes + plan.output_bytes
        self.queued_bytes += size_in_bytes
        self._requests += 1
        if self._trimming is not None:
            self._trimming.cancel()
            self._trimming = None
        return QueueSlot(self, size_in_bytes)

    def dequeue(self, size_in_bytes: int) -> None:
        """Stop counting a request; called by its slot."""
        self.queued_bytes -= size_in_bytes
        self._requests -= 1
        if not self._requests and not self.backend.inline and self.lost is None:
            loop = asyncio.get_running_loop()
            self._trimming = loop.call_later(self._idle_seconds, self._trim)

    # ---- running -----------------------------------------------------------------------------------------------------

    def run_now(
        self, plan: Plan, inputs: Sequence[memoryview], head: bytes = b"", steps: StepTimes | None = None
    ) -> bytes:
        """The bytes `head`, then the whole output of a small plan, computed on the caller's thread."""
        plan.check_indices(inputs)
        run = self.backend.start(plan, inputs)
        if steps is not None:
            run = TimedRun(run, plan, steps)
        try:
            if plan.slices.whole is not None and plan.outputs[0].layout.packed:
                return b"".join((head, run.compute(0)))
            parts: list[bytes | memoryview] = [head]
            for index in range(len(plan.slices)):
                parts.append(run.compute(index))
                if plan.slices.has_gaps:
                    parts += _zeros(plan.slices.piece(index).padding)
            return b"".join(parts)
        finally:
            run.close()

    async def run_once(
        self, plan: Plan, inputs: Sequence[memoryview], head: bytes = b"", *, caller: str = "",
        timeline: Timeline | None = None, steps: StepTimes | None = None,
    ) -> bytes:  # fmt: skip
        """`run_now` on a thread of this worker. If the caller is cancelled, it is stopped, and its end awaited.

        Args:
            plan: what to run.
            inputs: bytes of the plan's inputs, in binding order.
            head: bytes to begin the result with.
            caller: whose request it is; callers take turns.
            timeline: takes note of its phases, if given.
            steps: takes note of the times of a graph's steps, if given.
        """
        calls, stop = self._threads.open(caller, small=True), threading.Event()
        run_now = self.run_now if timeline is None else timeline.timed("kernel", self.run_now)
        try:
            running = self._threads.submit(
                calls, self._cost(plan), self._watched, self._until, stop, run_now, plan, inputs, head, steps
            )
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                stop.set()
                await _shielded(_ended(running))
                raise
        finally:
            self._threads.close(calls)

    async def run(
        self, plan: Plan, inputs: Sequence[RunInput], *, caller: str = "",
        timeline: Timeline | None = None, steps: StepTimes | None = None,
        targets: Sequence[DeviceMemory | None] | None = None,
    ) -> AsyncGenerator[memoryview]:  # fmt: skip
        """The output's bytes in order, computed while earlier ones are being sent.

        Close the generator to stop early: slices that have not begun are dropped, and the slices being computed are
        awaited; a computation in NumPy ends at its next block.

        Args:
            plan: what to run.
            inputs: bytes of the plan's inputs, in binding order; those of indices are in host memory.
            caller: whose request it is; callers take turns.
            timeline: takes note of its phases, if given.
            steps: takes note of the times of a graph's steps, if given.
            targets: see `SharingBackend.start`.
        """
        calls = self._threads.open(caller)
        try:
            run = await self._start(calls, plan, inputs, targets, timeline)
            if steps is not None:
                run = TimedRun(run, plan, steps)
        except BaseException:
            self._threads.close(calls)
            raise
        ahead: deque[Future[Any]] = deque()
        timer, stop = self.costs.timer(plan), threading.Event()

        def submit(part_work: int, call: Callable[..., Any], *args: int) -> None:
            timed = timer.timed(part_work, call)
            if timeline is not None:
                timed = timeline.timed("kernel", timed)
            cost = self.costs.part_seconds(plan, part_work) + _CALL_SECONDS
            ahead.append(self._threads.submit(calls, cost, self._watched, self._until, stop, timed, *args))

        try:
            work = plan.work
            # Those of a small plan are computed with its first slice: switching threads takes longer than each of them.
            stages = plan.stages if plan.work > _SMALL_WORK else ()
            slices_ahead = self.slices_ahead if len(stages) == len(plan.stages) else 0
            together = 0  # work of the stages that are computed at once
            for stage, what in enumerate(stages):
                count = run.parts(stage)
                together += what.work
                for part in range(count):
                    submit(together // count, run.prepare, stage, part)
                    if len(ahead) > self.slices_ahead:
                        await asyncio.wrap_future(ahead[0])
                        ahead.popleft()
                if count:
                    work, together = work - together, 0
                while ahead:
                    await asyncio.wrap_future(ahead[0])
                    ahead.popleft()
                if what.checked:
                    submit(0, run.finish, stage)
                    await asyncio.wrap_future(ahead[0])
                    ahead.popleft()
                else:
                    run.finish(stage)
            asked, count = 0, len(plan.slices)
            for index, piece in enumerate(plan.slices):
                while asked < min(count, index + 1 + slices_ahead):
                    submit(work // count, run.compute, asked)
                    asked += 1
                yield await asyncio.wrap_future(ahead[0])
                ahead.popleft()
                for zeros in _zeros(piece.padding):
                    yield zeros
        finally:
            stop.set()
            self._threads.close(calls)
            await _shielded(self._finish(plan, run, ahead))

    async def _start(
        self, calls: Calls, plan: Plan, inputs: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None, timeline: Timeline | None,
    ) -> Run:  # fmt: skip
        """Start a run; if the caller is cancelled meanwhile, it is closed again before the cancellation goes on.

        Processors compute where the inputs are: nothing is moved, and a run starts at once unless it reads its indices.
        On a thread, it would wait for one turn more of another caller's computation.
        """
        if self.backend.inline and not plan.checked_inputs:
            return self._watched(self._begin, plan, inputs, targets)
        moved = 0 if self.backend.inline else plan.input_bytes  # to the memory of the device
        start = self._begin
        if timeline is not None:
            start = timeline.timed("kernel" if self.backend.inline else "upload", start)
        starting = self._threads.submit(
            calls, _CALL_SECONDS + moved / _BYTES_PER_SECOND, self._watched, start, plan, inputs, targets
        )
        try:
            return await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            await _shielded(self._abandon(plan, starting))
            raise

    def _begin(
        self,
        plan: Plan,
        inputs: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None,
    ) -> Run:
        """Start a run whose indices lie within their axes; see `SharingBackend.start`."""
        plan.check_indices([block.data if isinstance(block, KeptMemory) else block for block in inputs])
        in_host_memory = [block for block in inputs if isinstance(block, memoryview)]
        if targets is None and len(in_host_memory) == len(inputs):
            return self.backend.start(plan, in_host_memory)
        assert isinstance(self.backend, SharingBackend)
        return self.backend.start(plan, inputs, targets)

    async def _abandon(self, plan: Plan, starting: Future[Run]) -> None:
        """Await the start of a run whose caller was cancelled, since it reads the inputs until then, and close it."""
        if starting.cancel():
            return
        with suppress(Exception):  # a run that could not start has nothing to close, and its caller was cancelled
            await self._close(plan, await asyncio.wrap_future(starting))

    async def _finish(self, plan: Plan, run: Run, ahead: Sequence[Future[Any]]) -> None:
        """Await the slices that have begun, then close the run."""
        # A slice that is being computed reads the inputs until it ends.
        running = [asyncio.wrap_future(future) for future in ahead if not future.cancelled()]
        await asyncio.gather(*running, return_exceptions=True)
        await self._close(plan, run)

    async def _close(self, plan: Plan, run: Run) -> None:
        # On a processor it drops references, but outputs that were made together take a while to be unmapped.
        if self.backend.inline and not plan.stages:
            run.close()
        else:
            await asyncio.wrap_future(self._threads.submit_first(run.close))

    async def call(self, call: Callable[..., T], *args: Any) -> T:
        """Call something short of the backend on a thread of this worker, before what waits.

        If the caller is cancelled, its end is awaited: it may use the caller's memory.
        """
        running = self._threads.submit_first(self._watched, call, *args)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            await _shielded(_ended(running))
            raise

    def call_later(self, call: Callable[..., object], *args: Any) -> None:
        """`call` that nobody waits for; a failure is logged. A worker that was closed calls nothing any more."""
        with suppress(RuntimeError):  # closed; or no memory for a new thread, and the next call's thread takes it
            self._threads.submit_first(self._watched, call, *args).add_done_callback(_log_failure)

    def _trim(self) -> None:
        self._trimming = None
        self._threads.submit_first(self._watched, self.backend.trim)

    def _watched(self, call: Callable[..., T], *args: Any) -> T:
        """Call the backend on this thread; if it fails, note whether the device is lost or out of memory."""
        if self.lost is not None:
            raise DeviceLost(self.lost, extra=self._retry_after)
        try:
            return call(*args)
        except OutOfDeviceMemory as error:
            self._full_until = time.monotonic() + self._retry_after_seconds
            error.extra.update(self._retry_after)
            raise
        except DeviceLost as error:
            error.extra.update(self._retry_after)
            if self.lost is None:
                self.lost = error.detail
                self._when_lost(error.detail)
            raise

    def _until(self, stop: threading.Event, call: Callable[..., T], *args: Any) -> T:
        """Call the function; at the next block, computations in NumPy end once `stop` is set, and others get a turn."""
        # A device's run may hold a lock, for which the others would wait.
        with stoppable(stop, self._threads if self.backend.inline else None):
            return call(*args)

    def _cost(self, plan: Plan) -> float:
        """The fair queue's cost of a whole plan, seconds: what it has taken here so far, and what a call takes."""
        return self.costs.part_seconds(plan, plan.work) + _CALL_SECONDS

    @property
    def _retry_after(self) -> dict[str, Any]:
        return {"retry_after_seconds": self._retry_after_seconds}

    def time_once(self, plan: Plan, inputs: Sequence[memoryview]) -> float:
        """Seconds that the plan takes on a thread of this worker, both switches of the thread included. Blocks."""
        return timed(lambda: self._threads.submit_first(self._watched, self.run_now, plan, inputs).result())

    # ---- whether it works --------------------------------------------------------------------------------------------

    @property
    def busy_seconds(self) -> float:
        """How long the longest call of the device that has neither returned nor paused has been running; 0 if none."""
        return self._threads.longest_seconds

    def check_health(self, plan: Plan, inputs: Sequence[memoryview]) -> str | None:
        """Start a health check, a tiny plan, on a thread, at most one a second and one at a time; does not wait for it.

        Returns:
            Why the last check that has ended failed; None if it succeeded, or if only memory was missing.
        """
        if self._health_check is not None:
            if not self._health_check.done():
                return self._health_fault
            self._health_fault = None if self._health_check.cancelled() else _fault_of(self._health_check.exception())
        if self.lost is None and time.monotonic() >= self._health_check_due:
            self._health_check_due = time.monotonic() + HEALTH_CHECK_SECONDS
            with suppress(RuntimeError):  # no memory for a new thread; the next question begins another
                self._health_check = self._threads.submit_first(self._watched, self.run_now, plan, inputs)
        return self._health_fault

    def close(self) -> None:
        """Wait for running computations, then close the device."""
        if self._trimming is not None:
            self._trimming.cancel()
        self._threads.stop()
        self.backend.close()


class QueueSlot:
    """A request's slot in a worker's queue, until it is released."""

    __slots__ = ("_size_in_bytes", "_worker")

    def __init__(self, worker: Worker, size_in_bytes: int) -> None:
        self._worker = worker
        self._size_in_bytes = size_in_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Take the request out of the queue. Called once."""
        self._worker.dequeue(self._size_in_bytes)


def _fault_of(error: BaseException | None) -> str | None:
    """Why the device failed; None if it did not: memory that is missing now is not a fault of the device."""
    if error is None or isinstance(error, (OutOfDeviceMemory, MemoryError)):
        return None
    return f"{type(error).__name__}: {error}"


def _log_failure(running: Future[Any]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        _log.warning("a call whose caller has left failed: %r", error)


async def _ended(running: Future[Any]) -> None:
    """Wait until a computation has ended whose result is not needed any more."""
    if not running.cancel():
        with suppress(Exception):
            await asyncio.wrap_future(running)


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    """Await the work even if this task is cancelled meanwhile; the cancellation is raised afterwards."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


_ZEROS = memoryview(bytes(1 << 20))


def _zeros(count: int) -> list[memoryview]:
    """Padding as views of one shared block, so that a huge gap costs no memory."""
    whole, rest = divmod(count, len(_ZEROS))
    return [_ZEROS] * whole + ([_ZEROS[:rest]] if rest else [])


def timed(call: Callable[..., object], *args: object) -> float:
    """Seconds that the call takes."""
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin
