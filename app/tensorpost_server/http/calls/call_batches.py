"""Dynamic batching: calls of a stored graph that wait are computed together, as one call with all of their rows.

While one batch of a graph is computed, calls of it wait, and are the next batch. A graph may also let a call wait for
others when nothing runs (`max_queue_delay_microseconds`). Rows of the joined outputs go to the calls that they are of.
A batch that fails is computed again call by call, so that only the call that is wrong gets the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorpost.values.layout import Layout
from tensorpost.values.problems import TensorpostError

from ...engine import Admission, StepTimes, Worker
from ...planning import Plan, make_device_plan, make_plan
from ...settings import Settings
from ..background_threads import CallerThreads
from ..bounded_cache import BoundedCache
from .call import KeptGraph
from .prepared_call import PreparedCall

_MOST_QUEUES = 256
_MOST_PLANS = 64  # of a queue, by their rows
_LONG_BYTES = 1 << 20  # of inputs, which take long to join

_log = logging.getLogger(__name__)


class JoinedPart(NamedTuple):
    """The outputs of one call of a batch.

    Attributes:
        blocks: the bytes of each output.
        steps: the times of the batch's steps.
        is_first: whether no call before it in the batch has the same caller and came by the same door.
    """

    blocks: Sequence[memoryview]
    steps: StepTimes
    is_first: bool

    def pieces(self, size_in_bytes: int) -> Iterator[memoryview]:
        """The bytes of the outputs in order, in pieces of at most this size."""
        for block in self.blocks:
            for at in range(0, len(block), size_in_bytes):
                yield block[at : at + size_in_bytes]


class _QueueKey(NamedTuple):
    """What calls have in common that can be joined."""

    stored: Hashable
    worker: Worker
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _WaitingCall:
    """A call that waits for its outputs.

    Attributes:
        counted_by: whose batches it is counted among: the caller, and the door.
        since: when it came, by the event loop's clock.
        reserve: reserves memory for it.
        reserved: bytes that were reserved for its part of a batch.
        answer: its outputs; None if it is to be computed alone.
    """

    prepared: PreparedCall
    inputs: Sequence[memoryview]
    rows: int
    caller: str
    counted_by: Hashable
    since: float
    reserve: Callable[[int], object]
    reserved: int
    answer: asyncio.Future[JoinedPart | None]


@dataclass(slots=True, eq=False)
class _CallQueue:
    """The calls that can be joined.

    Attributes:
        waiting: the calls that wait for a batch.
        computed: the calls of the batch that is computed.
        task: computes it.
        lent_bytes: bytes of calls that left the batch while it is computed, whose memory it uses to its end.
        timer: begins the next batch; None if that was not asked for.
        plans: plans of batches by their rows.
    """

    key: _QueueKey
    waiting: list[_WaitingCall] = field(default_factory=list[_WaitingCall])
    computed: Sequence[_WaitingCall] = ()
    lent_bytes: int = 0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    plans: BoundedCache[int, Plan] = field(default_factory=lambda: BoundedCache[int, Plan](_MOST_PLANS))


class CallBatches:
    """Joins calls. Used from the event loop's thread only.

    Args:
        settings: how outputs are cut.
        admission: the memory budget.
        threads: the threads that plan and join what is large.
    """

    def __init__(self, settings: Settings, admission: Admission, threads: CallerThreads) -> None:
        self._settings, self._admission, self._threads = settings, admission, threads
        self._queues: dict[_QueueKey, _CallQueue] = {}

    @property
    def computed_calls(self) -> int:
        """How many calls the batches have that are computed now."""
        return sum([len(queue.computed) for queue in self._queues.values()])

    async def run(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview], caller: str, counted_by: Hashable,
        reserve: Callable[[int], object],
    ) -> JoinedPart | None:  # fmt: skip
        """Compute a call with others that wait. If it is cancelled, the others go on.

        Args:
            prepared: the call; `PreparedCall.joins` says that it can be joined.
            worker: the worker that it was given to.
            inputs: its tensors, in the order of the plan's inputs.
            caller: whose call it is.
            counted_by: whose batches it is counted among: the caller, and the door.
            reserve: reserves memory for the call, bytes.

        Returns:
            Its outputs; None if it is to be computed alone.
        """
        stored, plan = prepared.stored, prepared.plan
        assert stored is not None
        if not stored.is_kept:
            return None  # nothing of it is kept here either
        rows, reserved = plan.inputs[0].layout.sizes[0], plan.input_bytes + plan.output_bytes
        try:
            reserve(reserved)  # for its rows of the joined tensors
        except TensorpostError:
            return None
        queue = self._queue(_QueueKey(
            stored, worker,
            tuple([(each.name, each.layout.data_type.numpy_name, each.layout.sizes[1:]) for each in plan.inputs]),
            tuple([each.name for each in plan.outputs]),
        ))  # fmt: skip
        loop = asyncio.get_running_loop()
        call = _WaitingCall(
            prepared, inputs, rows, caller, counted_by, loop.time(), reserve, reserved, loop.create_future()
        )
        queue.waiting.append(call)
        self._go_on(queue)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._leave(queue, call)
            raise

    def forget(self, stored: KeptGraph) -> None:
        """Drop the plans of a graph that is not kept any more; calls that wait are computed alone."""
        for key in [key for key in self._queues if key.stored is stored]:
            queue = self._queues.pop(key)
            if queue.timer is not None:
                queue.timer.cancel()
            for call in queue.waiting:
                _answer(call, None)
            queue.waiting.clear()

    # ---- queues ------------------------------------------------------------------------------------------------------

    def _queue(self, key: _QueueKey) -> _CallQueue:
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _MOST_QUEUES:
                idle = [other for other, each in self._queues.items() if each.task is None and not each.waiting]
                if idle:
                    del self._queues[idle[0]]
            queue = self._queues[key] = _CallQueue(key)
        return queue

    def _go_on(self, queue: _CallQueue) -> None:
        """Begin the next batch now, or when its first call has waited long enough."""
        if queue.task is not None or not queue.waiting:
            return
        settings = queue.waiting[0].prepared.stored
        assert settings is not None
        assert settings.batches is not None
        loop, batches = asyncio.get_running_loop(), settings.batches
        waits_until = queue.waiting[0].since + (batches.max_queue_delay_microseconds or 0) / 1e6
        is_full = sum([call.rows for call in queue.waiting]) >= batches.max_batch_size
        if queue.timer is not None:
            queue.timer.cancel()
        # Not at once: calls that arrived together are read in the same turn of the event loop.
        queue.timer = loop.call_at(loop.time() if is_full else max(waits_until, loop.time()), self._begin, queue)

    def _begin(self, queue: _CallQueue) -> None:
        queue.timer = None
        if queue.task is not None or not queue.waiting:
            return
        stored = queue.waiting[0].prepared.stored
        assert stored is not None
        assert stored.batches is not None
        left, joined = stored.batches.max_batch_size, list[_WaitingCall]()
        while queue.waiting and queue.waiting[0].rows <= left:
            joined.append(queue.waiting.pop(0))
            left -= joined[-1].rows
        queue.computed = joined
        queue.task = asyncio.ensure_future(self._compute(queue, joined))

    def _leave(self, queue: _CallQueue, call: _WaitingCall) -> None:
        """Take note that a call does not want its outputs any more."""
        if call in queue.waiting:
            queue.waiting.remove(call)
        elif queue.task is not None and call in queue.computed:
            self._admission.lend(call.reserved)
            queue.lent_bytes += call.reserved
            if all(each.answer.done() for each in queue.computed):
                queue.task.cancel()

    # ---- a batch -----------------------------------------------------------------------------------------------------

    async def _compute(self, queue: _CallQueue, calls: Sequence[_WaitingCall]) -> None:
        """Compute a batch, and answer its calls."""
        try:
            for call, part in zip(calls, await self._parts(queue, calls), strict=True):
                _answer(call, part)
        except Exception as error:  # noqa: BLE001 # whatever it is, each call meets it again if it is its own
            _log.info("a batch of %d calls is computed call by call: %r", len(calls), error)
        finally:
            for call in calls:
                _answer(call, None)
            self._admission.return_lent(queue.lent_bytes)
            queue.task, queue.computed, queue.lent_bytes = None, (), 0
            self._go_on(queue)

    async def _parts(self, queue: _CallQueue, calls: Sequence[_WaitingCall]) -> list[JoinedPart]:
        """The outputs of each call of a batch.

        Raises:
            TensorpostError: one of the calls is wrong, or there is no memory for all of them together.
        """
        worker, first, buffers = queue.key.worker, calls[0], self._admission.buffers
        stored = first.prepared.stored
        assert stored is not None
        plan = first.prepared.plan if len(calls) == 1 else await self._plan(queue, calls, stored)
        worker.costs.check(plan, "TENSORPOST_MAX_SECONDS")
        held, payer = worker.backend.held_bytes(plan), next(call for call in calls if not call.answer.done())
        payer.reserve(held)
        payer.reserved += held
        inputs = first.inputs
        if len(calls) > 1:
            joined = [
                worker.backend.host_memory(slot.layout.size_in_bytes) or buffers.allocate(slot.layout.size_in_bytes)
                for slot in plan.inputs
            ]
            await self._threads.run(
                plan.input_bytes > _LONG_BYTES, _join, joined, [call.inputs for call in calls]
            )  # fmt: skip
            inputs = joined
        steps = StepTimes(plan)
        outputs = [
            [buffers.allocate(slot.layout.size_in_bytes) for slot in call.prepared.plan.outputs] for call in calls
        ]
        target = _in_order([blocks[place] for place in range(len(plan.outputs)) for blocks in outputs])
        next(target)
        async with aclosing(worker.run(plan, inputs, caller=first.caller, steps=steps)) as slices:
            async for block in slices:
                target.send(block)
        stored.count_batch(len(calls))
        parts, counted = list[JoinedPart](), set[Hashable]()
        for call, blocks in zip(calls, outputs, strict=True):
            is_first = not call.answer.done() and call.counted_by not in counted
            if is_first:
                counted.add(call.counted_by)
            parts.append(JoinedPart(blocks, steps, is_first))
        return parts

    async def _plan(self, queue: _CallQueue, calls: Sequence[_WaitingCall], stored: KeptGraph) -> Plan:
        rows = sum([call.rows for call in calls])
        plan = queue.plans.get(rows)
        if plan is None:
            slots = calls[0].prepared.plan.inputs
            sent = {slot.name: _with_rows(slot.layout, rows) for slot in slots}

            def make() -> Plan:
                graph, slice_bytes = stored.graph_of(sent, queue.key.outputs), self._settings.slice_bytes
                on_device = None if queue.key.worker.backend.inline else make_device_plan(graph, slice_bytes)
                return on_device or make_plan(graph, slice_bytes)

            plan = await self._threads.run(True, make)
            queue.plans.put(rows, plan)
        return plan


def _with_rows(layout: Layout, rows: int) -> Layout:
    """The layout of a tensor with another number of rows."""
    return Layout.row_major(layout.data_type, (rows, *layout.sizes[1:]))


def _answer(call: _WaitingCall, part: JoinedPart | None) -> None:
    """Give a call its outputs, unless it has them or does not want them any more."""
    if not call.answer.done():
        call.answer.set_result(part)


def _join(targets: Sequence[memoryview], tensors: Sequence[Sequence[memoryview]]) -> None:
    """Copy tensors one after the other: rows are the outermost axis."""
    for place, target in enumerate(targets):
        at = 0
        for inputs in tensors:
            part = inputs[place]
            target[at : at + len(part)] = part
            at += len(part)


def _in_order(targets: Sequence[memoryview]) -> Generator[None, memoryview]:
    """Takes the bytes of the outputs of a batch as they come, and copies them to the calls that they are of.

    Args:
        targets: memory for each call's rows, in the order of the bytes: all rows of the first output, then the next.
    """
    block = yield
    for target in targets:
        at = 0
        while at < len(target):
            if not block:
                block = yield
            part = block[: len(target) - at]
            target[at : at + len(part)] = part
            at, block = at + len(part), block[len(part) :]
    while True:
        yield
