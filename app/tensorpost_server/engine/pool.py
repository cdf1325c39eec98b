"""The worker pool: one worker per device, which alone runs plans on it, slice by slice.

The unit of work is a slice, not a request: a device is busy only while it computes, never while a slow caller sends or
receives, and requests take turns. Each request may have a few slices computed ahead of what has been sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorpost.problems import InvalidParameter, NoBackend, nearest

from ..backends import BACKENDS, Backend, Plan, Run, load_backend
from .inline import Inline

__all__ = ["DeviceStatus", "Pool", "Worker"]

T = TypeVar("T")

INLINE = Inline(bytes=256 * 1024, work=256 * 1024)
"""What is small for workers that were told nothing else."""


class Worker:
    """Owns one backend and the threads that may touch it.

    Attributes:
        inline: what is small enough for `run_now`.
    """

    def __init__(self, backend: Backend, slices_ahead: int) -> None:
        self.backend = backend
        self.slices_ahead = slices_ahead
        self.inline = INLINE
        self._threads = ThreadPoolExecutor(backend.threads, thread_name_prefix=f"tensorpost-{backend.name}")

    def is_small(self, plan: Plan) -> bool:
        """Whether `run_now` is the right way: a hop to a thread would cost more than the computation."""
        return max(plan.output_bytes, plan.input_bytes) <= self.inline.bytes and plan.work <= self.inline.work

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

    async def run(self, plan: Plan, inputs: Sequence[memoryview]) -> AsyncGenerator[memoryview]:
        """The output's bytes in order, made while earlier ones are being sent.

        Close the generator to stop early: slices not begun are dropped, and the one being computed is waited for.
        """
        run = await self._on_thread(self.backend.start, plan, inputs)
        ahead: deque[Future[memoryview]] = deque()
        asked, count = 0, len(plan.slices)
        try:
            for index, piece in enumerate(plan.slices):
                while asked < min(count, index + 1 + self.slices_ahead):
                    ahead.append(self._threads.submit(run.compute, asked))
                    asked += 1
                yield await asyncio.wrap_future(ahead[0])
                ahead.popleft()
                for zeros in _zeros(piece.padding):
                    yield zeros
        finally:
            await _to_the_end(self._finish(run, ahead))

    async def _finish(self, run: Run, ahead: Sequence[Future[memoryview]]) -> None:
        """Drop the slices not begun, wait for the others, then close the run."""
        # A slice that is being computed cannot be interrupted, and reads the inputs until it is done.
        running = [asyncio.wrap_future(future) for future in ahead if not future.cancel()]
        await asyncio.gather(*running, return_exceptions=True)
        await self._on_thread(run.close)

    def _on_thread(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """Finish what runs and give the device back."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.backend.close()


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
    """What became of a backend when the pool opened.

    Attributes:
        name: the backend.
        device: its device in words; None if it could not be opened.
        reason: why it could not; None if it could.
        auto: whether `auto` may choose it.
        threads: slices it computes at the same time.
    """

    name: str
    device: str | None
    reason: str | None
    auto: bool
    threads: int


@dataclass(slots=True)
class Pool:
    """All workers of this server.

    Attributes:
        default: the backend used when a request names none: `auto` or a name.
        workers: by backend name.
        refused: backends that could not be opened, each with its reason.
    """

    default: str
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def open(cls, default: str, threads: Mapping[str, int], slices_ahead: int) -> Pool:
        """Open every backend that can be opened; a forced default that cannot is an error, not a fallback.

        Raises:
            InvalidParameter: the default names no backend.
            NoBackend: the default backend cannot be opened.
        """
        pool = cls(default)
        pool._known(default)
        with ExitStack() as unless_opened:
            unless_opened.callback(pool.close)
            for name in BACKENDS:
                try:
                    backend = load_backend(name)(threads=threads.get(name, 1))  # pyright: ignore[reportCallIssue] # a Protocol has no constructor
                except (ImportError, OSError, RuntimeError) as error:
                    pool.refused[name] = f"{type(error).__name__}: {error}"
                else:
                    pool.workers[name] = Worker(backend, slices_ahead)
            if default != "auto" and default not in pool.workers:
                raise NoBackend(f"backend {default!r} was asked for and cannot be opened: {pool.refused[default]}")
            unless_opened.pop_all()
        return pool

    def choose(self, plan: Plan, wanted: str | None = None) -> Worker:
        """The worker that runs this plan: the one asked for, or with `auto` the first that can run it exactly.

        Raises:
            InvalidParameter: there is no such backend.
            NoBackend: it is not available here or refuses the plan; each reason is in `extra["refused"]`.
        """
        wanted = self._known(self.default if wanted is None else wanted)
        names = [name for name, row in BACKENDS.items() if row.auto] if wanted == "auto" else [wanted]
        refused: dict[str, str] = {}
        for name in names:
            worker = self.workers.get(name)
            reason = self.refused[name] if worker is None else worker.backend.refuses(plan)
            if worker is not None and reason is None:
                return worker
            refused[name] = reason or ""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise NoBackend(f"no backend here can run {plan.operator}: {reasons}", extra={"refused": refused})

    def status(self) -> list[DeviceStatus]:
        """Every backend in the table, open or not."""
        found: list[DeviceStatus] = []
        for name, row in BACKENDS.items():
            worker = self.workers.get(name)
            device = worker.backend.device if worker else None
            threads = worker.backend.threads if worker else 0
            found.append(DeviceStatus(name, device, self.refused.get(name), row.auto, threads))
        return found

    def close(self) -> None:
        """Close every worker."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    @staticmethod
    def _known(name: str) -> str:
        names = ["auto", *BACKENDS]
        if name not in names:
            guess = nearest(name, names)
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names)}"
            raise InvalidParameter(f"there is no backend {name[:60]!r}; {hint}", extra={"parameter": "backend"})
        return name
