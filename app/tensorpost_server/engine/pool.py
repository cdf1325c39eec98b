"""The worker pool: one worker per device, which alone runs plans on it, slice by slice.

The unit of work is a slice, not a request: a device is busy only while it computes, never while a slow caller sends or
receives, and requests take turns. Each request may have a few slices computed ahead of what has been sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.problems import (
    DeviceLost,
    InvalidParameter,
    NoBackend,
    OutOfDeviceMemory,
    TensorpostError,
    nearest,
)

from ..backends import BACKENDS, Backend, CannotOpen, DeviceOptions, Plan, Run, load_backend
from .inline import Inline
from .plan import make_plan

__all__ = ["DeviceStatus", "Place", "Pool", "Worker"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

INLINE = Inline(bytes=256 * 1024, work=256 * 1024)
"""What is small for workers that were told nothing else."""

TRIALS = 20
"""Rounds when a device's speed is measured; the least counts."""

IDLE_SECONDS = 30.0
RETRY_AFTER_SECONDS = 1


def _nobody(_reason: str) -> None:
    """Tell nobody that a device was lost."""


class Worker:
    """Owns one device and the threads that may touch it.

    Args:
        backend: the opened device.
        slices_ahead: slices of a request that may be computed before they can be sent.
        idle_seconds: how long nothing must have run before memory kept for reuse is given back.
        retry_after_seconds: what a caller is told to wait when the device has no memory left.
        when_lost: called with the reason, on any thread, when the device fails for good; at most a few times.

    Attributes:
        inline: what is small enough for `run_now`.
        minimum_work: plans that read fewer elements are not worth the way to this device and back.
        lost: why the device can never be used again by this process; None while it can.
        queued_bytes: bytes in and out of all requests that were given to it and are not done.
    """

    def __init__(
        self,
        backend: Backend,
        slices_ahead: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
        when_lost: Callable[[str], object] = _nobody,
    ) -> None:
        self.backend = backend
        self.slices_ahead = slices_ahead
        self.inline = INLINE
        self.minimum_work = 0
        self.lost: str | None = None
        self.queued_bytes = 0
        self._idle_seconds = idle_seconds
        self._retry_after_seconds = retry_after_seconds
        self._when_lost = when_lost
        self._short_until = 0.0
        self._requests = 0
        self._trimming: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(backend.threads, thread_name_prefix=f"tensorpost-{backend.name}")

    # ---- what a choice is made by ------------------------------------------------------------------------------------

    def is_small(self, plan: Plan) -> bool:
        """Whether `run_now` is the right way: a hop to a thread would cost more than the computation."""
        return (
            self.backend.inline
            and max(plan.output_bytes, plan.input_bytes) <= self.inline.bytes
            and plan.work <= self.inline.work
        )

    def refuses(self, plan: Plan) -> str | None:
        """Why it cannot run the plan; None if it can."""
        return self.lost or self.backend.refuses(plan)

    def pays(self, plan: Plan) -> bool:
        """Whether `auto` should prefer it: the plan is large enough, and the device was not full a moment ago."""
        return plan.work >= self.minimum_work and (not self._short_until or time.monotonic() > self._short_until)

    def expect(self, plan: Plan) -> Place:
        """A place in this worker's queue from now until it is left; used on the event loop's thread only."""
        size_in_bytes = plan.input_bytes + plan.output_bytes
        self.queued_bytes += size_in_bytes
        self._requests += 1
        if self._trimming is not None:
            self._trimming.cancel()
            self._trimming = None
        return Place(self, size_in_bytes)

    def leave(self, size_in_bytes: int) -> None:
        """Count a request no longer; called by its place."""
        self.queued_bytes -= size_in_bytes
        self._requests -= 1
        if not self._requests and not self.backend.inline and self.lost is None:
            loop = asyncio.get_running_loop()
            self._trimming = loop.call_later(self._idle_seconds, self._trim)

    # ---- running -----------------------------------------------------------------------------------------------------

    def run_now(self, plan: Plan, inputs: Sequence[memoryview], head: bytes = b"") -> bytes:
        """The whole output of a small plan, computed on the caller's thread; behind `head`."""
        run = self.backend.start(plan, inputs)
        try:
            if plan.slices.whole is not None and plan.output.layout.packed:
                return b"".join((head, run.compute(0)))
            parts: list[bytes | memoryview] = [head]
            for index in range(len(plan.slices)):
                parts.append(run.compute(index))
                if plan.slices.has_gaps:
                    parts += _zeros(plan.slices.piece(index).padding)
            return b"".join(parts)
        finally:
            run.close()

    async def run_once(self, plan: Plan, inputs: Sequence[memoryview], head: bytes = b"") -> bytes:
        """As `run_now`, on a thread of this worker. If the caller is cancelled, what runs is waited for."""
        running = self._threads.submit(self._watched, self.run_now, plan, inputs, head)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            await _to_the_end(_over(running))
            raise

    async def run(self, plan: Plan, inputs: Sequence[memoryview]) -> AsyncGenerator[memoryview]:
        """The output's bytes in order, made while earlier ones are being sent.

        Close the generator to stop early: slices not begun are dropped, and the one being computed is waited for.
        """
        run = await self._start(plan, inputs)
        ahead: deque[Future[memoryview]] = deque()
        asked, count = 0, len(plan.slices)
        try:
            for index, piece in enumerate(plan.slices):
                while asked < min(count, index + 1 + self.slices_ahead):
                    ahead.append(self._threads.submit(self._watched, run.compute, asked))
                    asked += 1
                yield await asyncio.wrap_future(ahead[0])
                ahead.popleft()
                for zeros in _zeros(piece.padding):
                    yield zeros
        finally:
            await _to_the_end(self._finish(run, ahead))

    async def _start(self, plan: Plan, inputs: Sequence[memoryview]) -> Run:
        """Start a run; if the caller is cancelled meanwhile, it is closed again before the cancellation goes on."""
        starting = self._threads.submit(self._watched, self.backend.start, plan, inputs)
        try:
            return await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            await _to_the_end(self._abandon(starting))
            raise

    async def _abandon(self, starting: Future[Run]) -> None:
        """Wait for a run that nobody wants any more, since it reads the inputs until it is started, and close it."""
        if starting.cancel():
            return
        with suppress(Exception):  # a run that could not start has nothing to close, and its caller is gone
            run = await asyncio.wrap_future(starting)
            await self._on_thread(run.close)

    async def _finish(self, run: Run, ahead: Sequence[Future[memoryview]]) -> None:
        """Drop the slices not begun, wait for the others, then close the run."""
        # A slice that is being computed cannot be interrupted, and reads the inputs until it is done.
        running = [asyncio.wrap_future(future) for future in ahead if not future.cancel()]
        await asyncio.gather(*running, return_exceptions=True)
        await self._on_thread(run.close)

    def _on_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _trim(self) -> None:
        self._trimming = None
        self._threads.submit(self._watched, self.backend.trim)

    def _watched(self, call: Callable[..., T], *args: Any) -> T:
        """Call the backend on this thread, and note what its failure says about the device."""
        if self.lost is not None:
            raise DeviceLost(self.lost, extra=self._patience)
        try:
            return call(*args)
        except OutOfDeviceMemory as error:
            self._short_until = time.monotonic() + self._retry_after_seconds
            error.extra.update(self._patience)
            raise
        except DeviceLost as error:
            error.extra.update(self._patience)
            if self.lost is None:
                self.lost = error.detail
                self._when_lost(error.detail)
            raise

    @property
    def _patience(self) -> dict[str, Any]:
        return {"retry_after_seconds": self._retry_after_seconds}

    def time_once(self, plan: Plan, inputs: Sequence[memoryview]) -> float:
        """Seconds from here to a thread of this worker, through the plan, and back. Blocks."""
        return _seconds(lambda: self._threads.submit(self._watched, self.run_now, plan, inputs).result())

    def close(self) -> None:
        """Finish what runs and give the device back."""
        if self._trimming is not None:
            self._trimming.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.backend.close()


class Place:
    """A request's place in a worker's queue, until it is left."""

    __slots__ = ("_size_in_bytes", "_worker")

    def __init__(self, worker: Worker, size_in_bytes: int) -> None:
        self._worker = worker
        self._size_in_bytes = size_in_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """The request is done, or given up. Once."""
        self._worker.leave(self._size_in_bytes)


async def _over(running: Future[Any]) -> None:
    """Wait until it does not run any more; nobody wants its result."""
    if not running.cancel():
        with suppress(Exception):
            await asyncio.wrap_future(running)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await the work even if this task is cancelled meanwhile, and only then let the cancellation go on."""
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


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device, or why there is none.

    Attributes:
        name: the backend.
        index: which of its devices; None for a backend that could not be opened at all.
        device: the device in words; None if it could not be opened.
        reason: why it cannot be used; None if it can.
        auto: whether `auto` may choose it.
        threads: slices it computes at the same time.
        minimum_work: elements that a plan must read for `auto` to prefer it; 0 for processors.
        queued_bytes: bytes in and out of the requests it has to do now.
        gauges: what else is in use now, by name.
    """

    name: str
    index: int | None
    device: str | None
    reason: str | None
    auto: bool
    threads: int
    minimum_work: int
    queued_bytes: int
    gauges: Mapping[str, int]


@dataclass(slots=True)
class Pool:
    """All workers of this server.

    Attributes:
        default: the backend used when a request names none: `auto` or a name.
        workers: by key: the backend's name, with `:` and the index for backends that may have several devices. In the
            order of `BACKENDS`.
        refused: by key: what could not be opened, each with its reason.
        lost: which device failed for good and why; None if none did.
        when_lost: called with the same on any thread.
    """

    default: str
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    lost: str | None = None
    when_lost: Callable[[str], object] = _nobody

    @classmethod
    def open(
        cls,
        default: str,
        options: DeviceOptions,
        slices_ahead: int,
        *,
        minimum_work: int | None = None,
        idle_seconds: float = IDLE_SECONDS,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
        when_lost: Callable[[str], object] = _nobody,
    ) -> Pool:
        """Open every device that can be opened; a forced default that cannot is an error, not a fallback.

        Args:
            default: `auto` or a backend's name.
            options: what devices may take.
            slices_ahead: as for `Worker`.
            minimum_work: elements that a plan must read for `auto` to prefer a device with memory of its own; None
                measures it (`_measured_minimum`).
            idle_seconds: as for `Worker`.
            retry_after_seconds: as for `Worker`.
            when_lost: as in the attributes.

        Raises:
            InvalidParameter: the default names no backend.
            NoBackend: the default backend cannot be opened.
        """
        pool = cls(default)
        pool._known(default)
        with ExitStack() as unless_opened:
            unless_opened.callback(pool.close)
            for name, row in BACKENDS.items():
                try:
                    loaded: Any = load_backend(name)
                    threads = options.threads.get(name, 1)
                    found = loaded.open_all(options) if row.several else [(0, loaded(threads=threads))]
                    for index, opened in found:
                        key = f"{name}:{index}" if row.several else name
                        if isinstance(opened, CannotOpen):
                            pool.refused[key] = str(opened)
                        else:
                            pool.workers[key] = Worker(
                                opened,
                                slices_ahead,
                                idle_seconds=idle_seconds,
                                retry_after_seconds=retry_after_seconds,
                                when_lost=pool._lose,
                            )
                except (ImportError, OSError, RuntimeError) as error:
                    pool.refused[name] = _sentence(error)
            pool._try_devices(minimum_work)
            pool.when_lost = when_lost
            if default != "auto" and not pool._keys(default):
                raise NoBackend(f"backend {default!r} was asked for and cannot be opened: {pool._reasons(default)}")
            unless_opened.pop_all()
        return pool

    def choose(self, plan: Plan, wanted: str | None = None, device: int | None = None) -> Worker:
        """The worker that runs this plan.

        A backend that is named is forced, and so is a device: there is no falling back. Otherwise (`auto`) it is the
        first backend of the table that can run the plan exactly and is worth it: a device with memory of its own is
        passed over while another can do a small plan. Among several devices of a backend it is the one with the fewest
        queued bytes.

        Args:
            plan: what to run.
            wanted: `auto` or a backend's name; None for the default.
            device: which of the backend's devices; None for any.

        Raises:
            InvalidParameter: there is no such backend, or a device is named without one.
            NoBackend: none is available here, or each refuses the plan; the reasons are in `extra["refused"]`.
        """
        wanted = self.default if wanted is None else wanted
        if wanted != "auto":
            self._known(wanted)
        elif device is not None:
            raise InvalidParameter(
                f"device {device} of which backend? name it as well, as in backend=cuda&device={device}",
                extra={"parameter": "device"},
            )
        best: Worker | None = None
        best_pays = False
        refused: dict[str, str] = {}
        for key, worker in self.workers.items():
            name = worker.backend.name
            if (name != wanted) if wanted != "auto" else not BACKENDS[name].auto:
                continue
            if device is not None and worker.backend.index != device:
                continue
            reason = worker.refuses(plan)
            if reason is not None:
                refused[key] = reason
                continue
            pays = worker.pays(plan)
            same = best is not None and best_pays == pays and best.backend.name == name
            if best is None or pays > best_pays or (same and worker.queued_bytes < best.queued_bytes):
                best, best_pays = worker, pays
        if best is not None:
            return best
        if device is None:
            refused |= {key: why for key, why in self.refused.items() if wanted in ("auto", _backend_of(key))}
        elif not refused:
            refused = self._no_such_device(wanted, device)
        reasons = "; ".join(f"{key}: {reason}" for key, reason in refused.items())
        raise NoBackend(f"no backend here can run {plan.operator}: {reasons}", extra={"refused": refused})

    def status(self) -> list[DeviceStatus]:
        """Every device of every backend in the table, open or not."""
        found: list[DeviceStatus] = []
        for name, row in BACKENDS.items():
            for key, reason in self.refused.items():
                if _backend_of(key) == name:
                    index = int(key.partition(":")[2]) if ":" in key else None
                    found.append(DeviceStatus(name, index, None, reason, row.auto, 0, 0, 0, {}))
            for key in self._keys(name):
                worker = self.workers[key]
                backend = worker.backend
                found.append(
                    DeviceStatus(
                        name, backend.index, backend.device, worker.lost, row.auto, backend.threads,
                        worker.minimum_work, worker.queued_bytes, backend.gauges(),
                    )
                )  # fmt: skip
        return found

    def close(self) -> None:
        """Close every worker."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self.when_lost(reason)

    def _keys(self, name: str) -> list[str]:
        return [key for key in self.workers if _backend_of(key) == name]

    def _reasons(self, name: str) -> str:
        return "; ".join(reason for key, reason in self.refused.items() if _backend_of(key) == name)

    def _no_such_device(self, name: str, device: int) -> dict[str, str]:
        key = f"{name}:{device}"
        if key in self.refused:
            return {key: self.refused[key]}
        if name in self.refused:
            return {name: self.refused[name]}
        known = [self.workers[key].backend.index for key in self._keys(name)]
        known += [int(key.partition(":")[2]) for key in self.refused if _backend_of(key) == name]
        there = "is only device 0" if known == [0] else f"are devices {', '.join(map(str, sorted(known)))}"
        return {key: f"there is no device {device} of {name} here; there {there}"}

    def _try_devices(self, minimum_work: int | None) -> None:
        """Let every device with memory of its own do something small, and say how large a plan must be to pay there.

        One that fails is closed and refused: it would fail the first request as well.
        """
        for key, worker in [(key, worker) for key, worker in self.workers.items() if not worker.backend.inline]:
            try:
                measured = self._measured_minimum(worker)
            except Exception as error:  # noqa: BLE001 # CuPy's, ONNX Runtime's, ours: no reason to stop the others
                self.refused[key] = f"it opened, but failed its first Tile: {_sentence(error)}"
                _log.warning("%s is not used: %s", key, self.refused[key])
                self.lost = None
                self.workers.pop(key).close()
            else:
                worker.minimum_work = measured if minimum_work is None else minimum_work

    def _measured_minimum(self, worker: Worker) -> int:
        """How many elements a processor copies in the time that this device needs for almost nothing.

        The least of some rounds each. The device's share is a hop to its thread, a KiB up, a kernel, a few KiB down;
        the processor's is the first one that `auto` may choose. What large tensors need for the bus is left out, since
        their way over the network takes longer and happens at the same time.
        """
        row = [memoryview(bytes(1024))]
        almost_nothing, small = _tile(4), _tile(256)
        device = min(worker.time_once(almost_nothing, row) for _ in range(TRIALS))
        processors = [w for w in self.workers.values() if w.backend.inline and BACKENDS[w.backend.name].auto]
        if not processors:
            return 0
        processor = min(_seconds(processors[0].run_now, small, row) for _ in range(TRIALS))
        return int(small.work * device / processor)

    @staticmethod
    def _known(name: str) -> str:
        names = ["auto", *BACKENDS]
        if name not in names:
            guess = nearest(name, names)
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names)}"
            raise InvalidParameter(f"there is no backend {name[:60]!r}; {hint}", extra={"parameter": "backend"})
        return name


def _backend_of(key: str) -> str:
    return key.partition(":")[0]


def _sentence(error: Exception) -> str:
    """What went wrong; our own sentences stand alone, others need the kind of error with them."""
    ours = isinstance(error, (CannotOpen, TensorpostError))
    return str(error) if ours else f"{type(error).__name__}: {error}"


def _tile(rows: int) -> Plan:
    """So many copies of a row of 1 KiB."""
    return make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 256)), (rows, 1)), INLINE.bytes)


def _seconds(call: Callable[..., object], *args: object) -> float:
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin
