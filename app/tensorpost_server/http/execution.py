"""Running a call: read, plan, reserve memory, receive tensors, compute, answer; in this order, whatever the wire."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from starlette.types import Receive, Scope, Send

from tensorpost.bodies.answer_rows import OutputRows
from tensorpost.values.problems import DeadlineExceeded, LimitExceeded, NoBackend, ReceiveTimeout, TensorpostError

from ..backends import DeviceMemory, KeptMemory, RunInput, SharingBackend
from ..engine import Pool, QueueSlot, Stages, StepTimes, Ticket, Worker
from ..planning import Plan
from .access.access_control import QUOTA, RequestQuota
from .background_threads import INLINE_JSON_ELEMENTS, INLINE_QUERY_BYTES, INLINE_TEXT_BYTES, CallerThreads
from .bounded_cache import MOST_KEY_BYTES
from .caller_address import caller_of
from .caller_watch import CallerWatch
from .calls.byte_strings import encode_strings
from .calls.call import Call, CallRest, DeviceSource, OpenSink
from .calls.prepared_call import PreparedCall, RequestKey, prepare, received_tensors
from .connection.receive_into import arrived_bytes, receive_into
from .connection.whole_messages import WholeMessages
from .error_responses import is_out_of_memory, out_of_memory, route_path
from .headers import FRAMING, Framing, content_length, wait_seconds
from .observability.request_record import CLIENT_DISCONNECTED, Observation
from .replay import Replay
from .request_body import ClientDisconnected, RequestBody, receive_chunked
from .response_sender import ResponseSender
from .row_answers import check_tag, part_of
from .service import Service
from .wires.call_parser import has_parameter
from .wires.wire import Wire

JSON_BYTES_PER_TEXT_BYTE = 8
"""Memory of a byte of a string on its way out: the string, its text with escapes, and twice that while it is joined."""

_FEW_STEPS = 2
"""Steps up to which the event loop asks backends how they compute a plan; a new step takes up to 1.3 ms."""

_LONG_BYTES = 1 << 20  # of collected outputs, which take long to join

_log = logging.getLogger(__name__)


class Execution:
    """One request that computes something. It is a `ReadContext` for its wire.

    Attributes are those of `ReadContext`, and:
        sender: sends the answer; None before the body's length is known.
    """

    __slots__ = (
        "_assigned_bytes", "_caller", "_fields", "_limit", "_observation", "_queue_slot", "_quota", "_scope",
        "_service", "_ticket", "_upload_ended", "_wait", "_whole", "_wire", "body", "head_has_arrived", "large",
        "parsing", "query", "sender", "settings", "slow_threads", "watch",
    )  # fmt: skip

    body: RequestBody
    watch: CallerWatch

    def __init__(
        self, service: Service, scope: Scope, fields: Mapping[bytes, bytes], wire: Wire, whole: WholeMessages | None,
        observation: Observation,
    ) -> None:  # fmt: skip
        self._service, self._scope, self._fields, self._wire = service, scope, fields, wire
        self._whole, self._observation = whole, observation
        self._caller = caller_of(scope)
        self._quota: RequestQuota | None = scope.get(QUOTA)
        self.settings, self.query = service.settings, scope["query_string"].decode("latin-1")
        self.parsing = CallerThreads(service.parsing, self._caller)
        self.slow_threads = CallerThreads(service.slow_threads, self._caller)
        self.head_has_arrived = self.large = False
        self._wait = wait_seconds(fields.get(b"prefer"))
        self._limit = asyncio.timeout(self._wait)
        self._upload_ended = False  # to make room for others
        self._ticket: Ticket | None = None
        self._queue_slot: QueueSlot | None = None
        self._assigned_bytes = 0  # what the admission ticket reserves: the call's memory, and its worker's for it
        self.sender: ResponseSender | None = None

    @property
    def begun(self) -> bool:
        """Whether the answer has begun; from then on its status cannot change."""
        return self.sender is not None and self.sender.begun

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request with 200, or raise before the first byte of a response.

        Raises:
            TensorpostError: the call is refused, or the machine has no memory for it now.
        """
        try:
            async with self._limit:
                with CallerWatch(receive) as self.watch:
                    await self._run(receive, send)
        except ClientDisconnected:
            self._observation.reason = CLIENT_DISCONNECTED
        except TimeoutError:
            if not self._limit.expired():
                raise
            if self.begun:
                self._observation.reason = DeadlineExceeded.code
                return  # a response that is not complete makes the server close the connection
            raise self._deadline_error() from None
        except (MemoryError, OSError, RuntimeError) as error:
            if self.begun or not is_out_of_memory(error):
                raise
            _log.warning("request %s: %r", self._scope["tensorpost.request_id"], error)
            raise out_of_memory(self._service.settings.retry_after_seconds) from error
        finally:
            self._observe()
            if self._queue_slot is not None:
                self._queue_slot.release()
            if self._ticket is not None:
                self._ticket.release()
            if self._quota is not None:
                self._quota.end()
            self._wire.close()

    def _observe(self) -> None:
        observation, sender = self._observation, self.sender
        if sender is not None:
            observation.received_bytes = self.body.received
        if sender is not None and sender.begun:
            observation.status, observation.sent_bytes, observation.slices = 200, sender.sent_bytes, sender.slices
            if not sender.complete:
                observation.reason = observation.reason or CLIENT_DISCONNECTED

    async def _run(self, receive: Receive, send: Send) -> None:
        service, settings, fields, stages = self._service, self.settings, self._fields, Stages()
        self._observation.stages = stages.milliseconds
        self._pool()  # refuses while there are none, before anything of the body is read
        chunks: bytearray | None = None
        framing: Framing = self._scope[FRAMING]
        if framing.chunked:
            # Refuses what is not read here, before any of it is received.
            self._wire.format(fields, settings.max_body_bytes)
            chunks = await receive_chunked(
                receive, settings.max_body_bytes, settings.receive_timeout_seconds, self.reserve
            )
            length = len(chunks)
        else:
            length = content_length(framing.length, settings.max_body_bytes)
        format_ = self._wire.format(fields, length)
        self.body = body = RequestBody(
            receive, length, settings.receive_timeout_seconds, receive_into(self._scope), arrived_bytes(self._scope)
        )
        sender = self.sender = ResponseSender(
            send, self._scope["tensorpost.request_id"], stages, settings.send_timeout_seconds, self._whole, self.watch
        )
        if has_parameter(self.query, "rows"):
            body.keep()  # for the call's digest
            if chunks is None and receive_into(self._scope) is None:
                self.reserve(length)  # its parts are kept beside the tensors that are made of them
        if chunks is not None:
            body.supply(memoryview(chunks).toreadonly())
        elif self._whole is not None:
            body.supply(self._whole.receive())
        self._observation.operator = await self._wire.open(self.slow_threads) or self._observation.operator
        key = RequestKey(self._wire.key, format_, self._scope["query_string"], length)
        prepared, call = await self._prepare(key, stages)
        while call is not None and call.rest is not None:
            prepared, call = await self._after_part(prepared, call, call.rest)
        prepared = self._planned_for_device(prepared)
        if prepared.plan.is_graph:
            self._observation.steps = StepTimes(prepared.plan)
            if self._quota is not None:
                self._quota.compute_nodes(len(prepared.plan.graph.nodes))
        replay: Replay | None = None
        # A trace context is another one in each request, so no later head would be the same.
        if self._whole is not None and chunks is None and format_.may_replay and b"traceparent" not in fields:
            sender.replay = replay = Replay(service, key, fields.get(b"x-request-id"), self._scope)
        if self._quota is not None:
            sizes = [slot.layout.size_in_bytes for slot in prepared.plan.outputs]
            if prepared.rows is not None:
                sizes = [prepared.rows.size_in_bytes]
            in_body = zip(sizes, prepared.answer.sinks, strict=True)
            self._quota.reserve(sum([size for size, sink in in_body if sink.in_body]))
        sinks = await self._wire.open_sinks(prepared.answer)
        sources: Sequence[memoryview | DeviceSource] | None = None if call is None else call.memory
        if len(prepared.plan.steps) > _FEW_STEPS:
            await self.slow_threads.run(True, _ask_backends, service, prepared.plan)
        prepared, sources = await self._place(prepared, sources, sinks)
        stages.done("plan")
        worker = self._assign(prepared)
        stages.done("admit")
        memory = await self._receive_tensors(prepared, call, sources, worker)
        stages.done("receive")
        inputs = [memory[index] for index in prepared.order]
        head = prepared.heads.get(worker)
        if head is not None and head.inline and not self._is_joined(prepared, worker):
            if replay is not None and prepared.aligned and self._wait is None:
                memory_bytes = self._assigned_bytes + body.length - sum(prepared.sizes)
                sender.receive = partial(replay.receive, memory_bytes)
            whole = prepared.respond_now(worker, _in_host_memory(inputs), head, self._observation.steps)
            await sender.whole(*whole)
            return
        self.watch.start()
        while True:
            try:
                await self._respond(prepared, worker, inputs, sinks)
                return
            except NoBackend:
                # Some devices know only when they are asked to begin (DirectML). They refuse the plan from then on.
                if sender.begun:
                    raise
                before, worker = worker, self._assign(prepared)
                if worker is before:
                    raise

    # ---- the call ----------------------------------------------------------------------------------------------------

    async def _prepare(self, key: RequestKey, stages: Stages) -> tuple[PreparedCall, Call | None]:
        """The planned call, and the call itself unless the call cache knew the planned one."""
        body, format_, head = self.body, key.format, b""
        if format_.may_replay:
            begin = await body.peek()
            head = bytes(begin[: format_.head_length(begin)])
        prepared = self._service.calls.get((key, head)) if head else None
        if prepared is not None:
            body.skip(len(head))
            stages.done("head")
            self._limit_wait(prepared.timeout)
            return prepared, None
        self.head_has_arrived = bool(head)
        text_bytes = 0 if head else format_.text_bytes(body.length)
        is_long = text_bytes > INLINE_TEXT_BYTES or len(key.query) > INLINE_QUERY_BYTES
        self.large = self._wire.takes_long or is_long
        call = await self._wire.read(self, format_)
        self._limit_wait(call.timeout)
        stages.done("head")
        threads = self.slow_threads if self._wire.takes_long else self.parsing
        has_devices = self._pool().has_devices
        prepared = await threads.run(self.large, partial(prepare, has_devices=has_devices), call, self.settings)
        stays = prepared.stored is None or prepared.stored.is_kept  # else nobody would take the call out again
        repeats = call.memory is None and call.is_repeatable and stays
        if head and repeats and len(key.query) + len(head) <= MOST_KEY_BYTES:
            self._service.calls.put((key, head), prepared)
        return prepared, call

    async def _after_part(self, prepared: PreparedCall, call: Call, rest: CallRest) -> tuple[PreparedCall, Call]:
        """Compute a part of a call, and plan what is left with its results; the caller is watched meanwhile."""
        if self._quota is not None:
            self._quota.compute_nodes(len(prepared.plan.graph.nodes) + 1)  # the request is a node of the last part
        prepared = replace(self._planned_for_device(prepared), timeout=None)  # of the answer, which comes later
        nowhere = [None] * len(prepared.plan.outputs)
        sources = None if call.memory is None else [await self._to_host(each) for each in call.memory]
        worker = self._assign(prepared)
        memory = await self._receive_tensors(prepared, call, sources, worker)
        self.watch.start()
        outputs = await self._collect(prepared, worker, [memory[index] for index in prepared.order], nowhere)
        results = {slot.name: slot.layout.view(data) for slot, data in zip(prepared.plan.outputs, outputs, strict=True)}
        blocks = _in_host_memory([each.data if isinstance(each, KeptMemory) else each for each in memory])
        left = await self.slow_threads.run(True, rest.call, blocks, results)
        stays = prepared.plan.output_bytes + (sum(prepared.sizes) if call.memory is None else 0)
        self._assigned_bytes -= stays  # what was for slices and temporaries is there for the next part
        planned = partial(prepare, left, self.settings, has_devices=self._service.workers().has_devices)
        after = await self.slow_threads.run(True, planned)
        names = (*prepared.plan.computed_before, worker.computed_by(prepared.plan))
        return replace(after, plan=replace(after.plan, computed_before=names)), left

    async def _to_host(self, source: memoryview | DeviceSource) -> memoryview:
        """The bytes of an input in host memory."""
        if isinstance(source, memoryview):
            return source
        size = source.memory.nbytes
        block = self.reserve(size).memory(size)
        await source.read_into(block)
        return block

    def _planned_for_device(self, prepared: PreparedCall) -> PreparedCall:
        """The call as a device computes it, if one is to compute what a library computes on processors.

        The device's backend is named in it from then on: no processor computes such a plan.
        """
        device = prepared.device
        if device is None:
            return prepared
        options = device.options
        try:
            worker = self._service.workers().choose(device.plan, options.backend, options.device)
        except NoBackend:
            return prepared
        if worker.backend.inline:
            return prepared
        return replace(device, options=replace(options, backend=worker.backend.name))

    async def _place(
        self, prepared: PreparedCall, sources: Sequence[memoryview | DeviceSource] | None,
        sinks: Sequence[OpenSink | None],
    ) -> tuple[PreparedCall, Sequence[memoryview | DeviceSource] | None]:  # fmt: skip
        """The call for the device that its tensors lie on, unless the caller wants another or this one refuses it.

        Tensors of other devices, and those that another backend works on, pass through host memory.
        """
        on_devices = [source.worker for source in sources or () if not isinstance(source, memoryview)]
        on_devices += [sink.worker for sink in sinks if sink is not None and sink.worker is not None]
        if not on_devices:
            return prepared, sources
        plan, options, worker = prepared.plan, prepared.options, on_devices[0]
        wanted, index = options.backend or self._service.workers().default, worker.backend.index
        runs = wanted in ("auto", worker.backend.name) and options.device in (None, index)
        runs = runs and worker.refusal_reason(plan) is None
        checked = {prepared.order[index] for index in plan.checked_inputs}  # read in host memory
        placed: list[memoryview | DeviceSource] = []
        for at, source in enumerate(sources or ()):
            stays = not isinstance(source, memoryview) and runs and source.worker is worker and at not in checked
            placed.append(source if stays else await self._to_host(source))
        if runs:
            prepared = replace(prepared, options=replace(options, backend=worker.backend.name, device=index))
        return prepared, None if sources is None else placed

    def _pool(self) -> Pool:
        return self._service.workers() if self._wire.needs_devices else self._service.opened()

    def _assign(self, prepared: PreparedCall) -> Worker:
        """Choose a worker, enter its queue and reserve the memory that the call takes with it; again if it refuses."""
        plan, options = prepared.plan, prepared.options
        worker = self._pool().choose(plan, options.backend, options.device)
        worker.costs.check(plan, "TENSORPOST_MAX_SECONDS")
        self._observation.backend = worker.computed_by(plan)
        self._observation.opset_version = plan.opset_version
        before, self._queue_slot = self._queue_slot, worker.enqueue(plan)
        if before is not None:
            before.release()
        held = 0 if self._is_joined(prepared, worker) else worker.backend.held_bytes(plan)
        missing = prepared.memory_bytes + held - self._assigned_bytes
        if missing > 0 or self._ticket is None:
            self.reserve(max(0, missing))
            self._assigned_bytes += max(0, missing)
        return worker

    async def _receive_tensors(
        self, prepared: PreparedCall, call: Call | None, sources: Sequence[memoryview | DeviceSource] | None,
        worker: Worker,
    ) -> Sequence[RunInput]:  # fmt: skip
        """The tensors in the order of the body, in memory that this worker reads fastest."""
        body, ticket = self.body, self._ticket
        assert ticket is not None
        if sources is not None:
            ticket.uploaded()
            return [source if isinstance(source, memoryview) else source.memory for source in sources]
        encoded = None if call is None else call.encoded
        memory: list[memoryview] | None = None
        if encoded is None and prepared.aligned and worker.is_small(prepared.plan) and body.complete is not None:
            memory = received_tensors(body.complete, prepared.sizes)
        if memory is None:
            memory = [ticket.memory(size, worker.backend.host_memory) for size in prepared.sizes]
            if encoded is not None:
                await self.slow_threads.run(True, encoded.decode_into, memory)
            else:
                await body.receive_into(memory)
        ticket.uploaded()
        if call is None or not call.held:
            return memory
        keeps = isinstance(worker.backend, SharingBackend)
        return [*memory, *[KeptMemory(data) if keeps else data for data in call.held]]

    # ---- the answer --------------------------------------------------------------------------------------------------

    async def _respond(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[RunInput],
        sinks: Sequence[OpenSink | None],
    ) -> None:  # fmt: skip
        """Compute the outputs on this worker and send them; until then, the caller is watched."""
        plan, answer, sender = prepared.plan, prepared.answer, self.sender
        assert sender is not None
        if answer.streams:
            if prepared.rows is not None:
                await self._respond_rows(prepared, prepared.rows, worker, inputs)
                return
            head = prepared.heads.get(worker)
            if head is None:
                head = prepared.heads[worker] = answer.head(plan, worker)
            if self._is_joined(prepared, worker) and plan.output_bytes <= self.settings.slice_bytes:
                blocks = [bytes(block) async for block in self._slices(prepared, worker, inputs)]
                await sender.whole(head, b"".join([head.body_head, *blocks]))
            elif head.inline or worker.runs_once(plan):
                # The first time, backends make tables and compile, which may take long, so a thread does it.
                observation = self._observation
                timeline = None if observation.trace is None else observation.trace.timeline
                body = await worker.run_once(
                    plan, _in_host_memory(inputs), head.body_head, caller=self._caller, timeline=timeline,
                    steps=observation.steps,
                )  # fmt: skip
                await sender.whole(head, body)
            else:
                await sender.stream(head, self._slices(prepared, worker, inputs))
            return
        outputs = await self._collect(prepared, worker, inputs, sinks)
        await self._wire.finish_sinks()
        is_long = sum(map(len, outputs)) > _LONG_BYTES
        elements = answer.json_elements(plan)
        threads = self.slow_threads if answer.encodes or (is_long and not elements) else self.parsing
        large = answer.encodes or is_long or elements > INLINE_JSON_ELEMENTS
        head, body = await threads.run(large, answer.whole, plan, worker, outputs)
        if head.inline:
            prepared.heads[worker] = head
        if len(body) <= self.settings.slice_bytes:
            await sender.whole(head, body)
        else:
            await sender.stream(head, _pieces(body, self.settings.slice_bytes))

    async def _respond_rows(
        self, prepared: PreparedCall, rows: OutputRows, worker: Worker, inputs: Sequence[RunInput]
    ) -> None:
        """Send some rows of the output, with the tag of the answer that they are of.

        Raises:
            CallChanged: the caller has a tag of another call, or of another backend.
        """
        tag = await check_tag(
            route_path(self._scope), self.query, self._fields, self.body.received_views,
            worker.computed_by(prepared.plan), self.parsing, prepared.stored_tags,
        )  # fmt: skip
        head = prepared.answer.head(prepared.plan, worker)
        tagged = replace(head, headers=(*head.headers, (b"etag", tag.encode())))
        assert self.sender is not None
        first = prepared.plan.slices.piece(0).begin
        await self.sender.stream(
            tagged, part_of(self._slices(prepared, worker, inputs), rows.begin_byte - first, rows.size_in_bytes)
        )

    async def _collect(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[RunInput],
        sinks: Sequence[OpenSink | None],
    ) -> list[bytearray]:  # fmt: skip
        """The bytes of each output that goes into the body; the others are written to their sinks."""
        plan, wanted = prepared.plan, prepared.answer.sinks
        sizes = [slot.layout.size_in_bytes for slot in plan.outputs]
        # Strings are known when all of their numbers are.
        kept = [
            bytearray(size if sink.in_body or (sink.wanted and sink.is_text) else 0)
            for sink, size in zip(wanted, sizes, strict=True)
        ]
        targets = self._device_targets(prepared, worker, sinks)
        index = at = 0
        async for block in self._slices(prepared, worker, inputs, targets):
            left = block  # empty where the device puts the outputs in place
            while left.nbytes:
                part, left = left[: sizes[index] - at], left[sizes[index] - at :]
                sink = sinks[index]
                if kept[index]:
                    kept[index][at : at + len(part)] = part
                elif sink is not None:
                    await sink.write(part, at)
                at += len(part)
                if at == sizes[index]:
                    index, at = index + 1, 0
        if prepared.strings is not None:
            for index, sink in enumerate(wanted):
                if sink.wanted and sink.is_text:
                    kept[index] = await self._strings(prepared, kept[index], sinks[index])
        return kept

    async def _strings(self, prepared: PreparedCall, numbers: bytearray, sink: OpenSink | None) -> bytearray:
        """The strings that an output's numbers stand for, as `encode_strings` writes them; empty if a sink has them."""
        assert prepared.strings is not None
        strings, most = prepared.strings, self.settings.max_output_bytes
        count, size = strings.size_of(numbers)
        if size > most:
            raise LimitExceeded.of("the output", size, most, "TENSORPOST_MAX_OUTPUT_BYTES")
        self.reserve(JSON_BYTES_PER_TEXT_BYTE * size)
        data = await self.parsing.run(count > INLINE_JSON_ELEMENTS, lambda: encode_strings(strings.written(numbers)))
        if sink is None:
            return bytearray(data)
        await sink.write(memoryview(data), 0)
        return bytearray()

    def _device_targets(
        self, prepared: PreparedCall, worker: Worker, sinks: Sequence[OpenSink | None]
    ) -> list[DeviceMemory | None] | None:
        """Where the worker's device puts the outputs; None if some are wanted elsewhere."""
        if not isinstance(worker.backend, SharingBackend) or prepared.plan.slices.has_gaps:
            return None
        targets: list[DeviceMemory | None] = []
        for slot, wanted, sink in zip(prepared.plan.outputs, prepared.answer.sinks, sinks, strict=True):
            if not wanted.wanted:
                targets.append(None)
            elif sink is None or sink.worker is not worker or wanted.is_text:
                return None
            else:
                targets.append(sink.device_memory(slot.layout.size_in_bytes))
        return targets

    def _slices(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None = None,
    ) -> AsyncGenerator[memoryview]:  # fmt: skip
        """The outputs' bytes, computed while earlier ones are being sent."""
        in_host_memory = _in_host_memory(inputs)
        if targets is None and self._is_joined(prepared, worker) and len(in_host_memory) == len(inputs):
            slices = self._joined(prepared, worker, in_host_memory)
        else:
            slices = self._run_alone(prepared, worker, inputs, targets)
        return slices if prepared.timeout is None else self._without_limit(slices)

    def _run_alone(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[RunInput],
        targets: Sequence[DeviceMemory | None] | None = None,
    ) -> AsyncGenerator[memoryview]:  # fmt: skip
        observation = self._observation
        timeline = None if observation.trace is None else observation.trace.timeline
        return worker.run(
            prepared.plan, inputs, caller=self._caller, timeline=timeline, steps=observation.steps, targets=targets
        )

    def _is_joined(self, prepared: PreparedCall, worker: Worker) -> bool:
        """Whether the call waits for others, to be computed with them; small ones are computed at once."""
        return prepared.joins and not worker.is_small(prepared.plan)

    async def _joined(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview]
    ) -> AsyncGenerator[memoryview]:
        """The outputs' bytes, computed together with other calls."""
        service, door = self._service, type(self._wire)
        counted_by = service.owner_of(self._scope), door
        part = await service.batches.run(prepared, worker, inputs, self._caller, counted_by, self.reserve)
        if part is None:
            self.reserve(worker.backend.held_bytes(prepared.plan))
            async with aclosing(self._run_alone(prepared, worker, inputs)) as slices:
                async for block in slices:
                    yield block
            return
        self._observation.steps, self._observation.is_joined = part.steps, not part.is_first
        for block in part.pieces(self.settings.slice_bytes):
            yield block

    async def _without_limit(self, slices: AsyncGenerator[memoryview]) -> AsyncGenerator[memoryview]:
        """The slices; with the first one the call's wait is over."""
        try:
            async for block in slices:
                self._limit.reschedule(None)
                yield block
        finally:
            await slices.aclose()

    # ---- memory and time ---------------------------------------------------------------------------------------------

    def _limit_wait(self, seconds: float | None) -> None:
        """Let the request end after `seconds`, unless its answer has begun; None sets no limit."""
        if seconds is not None:
            self._wait = seconds if self._wait is None else min(seconds, self._wait)
            end = asyncio.get_running_loop().time() + seconds
            self._limit.reschedule(min(end, self._limit.when() or math.inf))

    def reserve(self, size_in_bytes: int) -> Ticket:
        """Admit the request with this much memory, or reserve more for it if it is admitted already."""
        if self._upload_ended:
            raise self._deadline_error()
        if self._ticket is None:
            self._ticket = self._service.admission.admit(size_in_bytes, self._caller)
            if self.sender is not None and self.body.arrived() < self.body.length:
                self._ticket.uploading(self.body.length, self.body.arrived, self._end_upload)
        else:
            self._ticket.grow(size_in_bytes)
        return self._ticket

    def _end_upload(self) -> None:
        """End the request, whose body came too slowly; admission has taken its ticket."""
        self._upload_ended = True
        self._limit.reschedule(asyncio.get_running_loop().time())

    def _deadline_error(self) -> TensorpostError:
        """The error of a request that was ended before its response began."""
        if self._upload_ended:
            body = self.body
            return ReceiveTimeout(
                f"others needed the memory of this request, and its body came slowest: {body.arrived():,} of "
                f"{body.length:,} bytes (setting TENSORPOST_SLOW_UPLOAD_SECONDS)"
            )
        return DeadlineExceeded(
            f"the answer did not begin within the {self._wait:g} s that the request would wait for it (Prefer: wait)"
        )


def _ask_backends(service: Service, plan: Plan) -> None:
    """Have every backend find out how it computes the plan, and keep it for when the event loop asks."""
    for worker in service.workers().workers.values():
        worker.computed_by(plan)


async def _pieces(body: bytes, size_in_bytes: int) -> AsyncGenerator[memoryview]:
    """The body in pieces, so that no caller has to take all of it in the time for one."""
    whole = memoryview(body)
    for at in range(0, len(whole), size_in_bytes):
        yield whole[at : at + size_in_bytes]


def _in_host_memory(inputs: Sequence[RunInput]) -> list[memoryview]:
    """The inputs of a small plan, all of which are in host memory: only processors have small plans."""
    return [block for block in inputs if isinstance(block, memoryview)]
