"""Running a call: parse, plan, reserve memory, receive tensors, compute, respond; in this order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

from starlette.types import Receive, Scope, Send

from tensorpost.onnx.strings import has_string_outputs, numbers_node
from tensorpost.problems import DeadlineExceeded, NoBackend, NotAcceptable, ReceiveTimeout, TensorpostError

from ..engine import QueueSlot, Stages, StartFunction, Ticket, Worker
from ..planning import make_plan
from ..settings import Settings
from .access.access_control import QUOTA, ByteQuota
from .call_cache import (
    MOST_KEY_BYTES,
    CallFormat,
    PreparedCall,
    PreparedHead,
    Replay,
    RequestKey,
    WholeMessages,
    received_tensors,
)
from .caller_address import caller_of
from .caller_watch import CallerWatch
from .connection.receive_into import arrived_bytes, receive_into
from .dialects import takes_long
from .error_responses import is_out_of_memory, out_of_memory
from .headers import FRAMING, Framing, content_length, wait_seconds
from .media_types import MediaType, RequestFormat
from .observability.request_record import CLIENT_DISCONNECTED, Observation
from .parse_call import Dialect, ReadBody, ReadCall, read_call
from .parse_threads import INLINE_JSON_ELEMENTS, INLINE_QUERY_BYTES, INLINE_TEXT_BYTES
from .request_body import ClientDisconnected, RequestBody, receive_chunked
from .responses import (
    BUFFERED_MEDIA_TYPES,
    JSON_BYTES_PER_TEXT_BYTE,
    ResponseSender,
    backend_name,
    check_output,
    json_elements,
    response_head,
    slices_bytes,
    text_bytes,
    whole_response,
    whole_response_bytes,
)
from .service import Service

__all__ = ["Execution"]

_log = logging.getLogger(__name__)


class Execution:
    """One request that runs an operator.

    Args:
        service: the service of the application.
        scope: the ASGI scope of the request, with its id.
        fields: the header fields in it, by name.
        dialect: the dialect of the request's path.
        operator: name in the path.
        whole: the server's extension; None if it has none, or if middleware may want to see the messages.
        observation: takes note of what becomes known.
    """

    __slots__ = (
        "_assigned_bytes", "_body", "_caller", "_dialect", "_fields", "_limit", "_observation", "_operator", "_parsing",
        "_queue_slot", "_quota", "_scope", "_service", "_slow_threads", "_start", "_ticket", "_upload_ended", "_wait",
        "_whole", "sender",
    )  # fmt: skip

    def __init__(
        self, service: Service, scope: Scope, fields: Mapping[bytes, bytes], dialect: Dialect, operator: str,
        whole: WholeMessages | None, observation: Observation,
    ) -> None:  # fmt: skip
        self._service, self._scope, self._fields = service, scope, fields
        self._dialect, self._operator = dialect, operator
        self._whole, self._observation = whole, observation
        self._caller = caller_of(scope)
        self._quota: ByteQuota | None = scope.get(QUOTA)
        self._parsing, self._slow_threads = (
            service.parsing.for_caller(self._caller),
            service.slow_threads.for_caller(self._caller),
        )
        self._wait = wait_seconds(fields.get(b"prefer"))
        self._limit = asyncio.timeout(self._wait)
        self._upload_ended = False  # to make room for others
        self._body: RequestBody | None = None
        self._ticket: Ticket | None = None
        self._queue_slot: QueueSlot | None = None
        self._assigned_bytes = 0  # what the admission ticket reserves: the call's memory, and its worker's for it
        self._start: StartFunction | None = None
        self.sender: ResponseSender | None = None

    @property
    def begun(self) -> bool:
        """Whether the response has begun; from then on its status cannot change."""
        return self.sender is not None and self.sender.begun

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request with 200, or raise before the first byte of a response.

        Raises:
            TensorpostError: the call is refused, or the machine has no memory for it now.
        """
        try:
            async with self._limit:
                with CallerWatch(receive) as watch:
                    await self._run(receive, send, watch)
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

    def _observe(self) -> None:
        observation, sender = self._observation, self.sender
        if self._body is not None:
            observation.received_bytes = self._body.received
        if sender is not None and sender.begun:
            observation.status, observation.sent_bytes, observation.slices = 200, sender.sent_bytes, sender.slices
            if not sender.complete:
                observation.reason = observation.reason or CLIENT_DISCONNECTED

    async def _run(self, receive: Receive, send: Send, watch: CallerWatch) -> None:
        service, stages = self._service, Stages()
        settings, fields = service.settings, self._fields
        self._observation.stages = stages.milliseconds
        service.workers()  # refuses while there are none, before anything of the body is read
        chunks: bytearray | None = None
        framing: Framing = self._scope[FRAMING]
        if framing.chunked:
            self._format_of(settings.max_body_bytes)  # refuses what is not read here, before any of it is received
            chunks = await receive_chunked(
                receive, settings.max_body_bytes, settings.receive_timeout_seconds, self._reserve
            )
            length = len(chunks)
        else:
            length = content_length(framing.length, settings.max_body_bytes)
        format_ = self._format_of(length)
        sender = self.sender = ResponseSender(
            send, self._scope["tensorpost.request_id"], stages, settings.send_timeout_seconds, self._whole, watch
        )
        key = RequestKey(self._dialect, self._operator, format_, self._scope["query_string"], length)
        body = self._body = RequestBody(
            receive, length, settings.receive_timeout_seconds, receive_into(self._scope), arrived_bytes(self._scope)
        )
        if chunks is not None:
            body.supply(memoryview(chunks).toreadonly())
        elif self._whole is not None:
            body.supply(self._whole.receive())
        prepared, read = await self._prepare(key, body, stages, watch)
        # A trace context is another one in each request, so no later head would be the same.
        if self._whole is not None and chunks is None and format_.may_replay and b"traceparent" not in fields:
            sender.replay = Replay(service, key, fields.get(b"x-request-id"), self._scope)
        if self._quota is not None:
            self._quota.reserve(self._response_bytes(prepared))
        stages.done("plan")
        worker = self._assign(prepared)
        stages.done("admit")
        memory = await self._receive_tensors(prepared, read, body, worker)
        stages.done("receive")
        inputs = [memory[index] for index in prepared.order]
        head = prepared.heads.get(worker)
        if head is not None and head.inline:
            await sender.whole(head, worker.run_now(prepared.plan, inputs, head.body_head))
            return
        watch.start()
        while True:
            try:
                await self._respond(prepared, format_, worker, inputs)
                return
            except NoBackend:
                # Some devices know only when they are asked to begin (DirectML). They refuse the plan from then on.
                if sender.begun:
                    raise
                before, worker = worker, self._assign(prepared)
                if worker is before:
                    raise

    def _response_bytes(self, prepared: PreparedCall) -> int:
        """Bytes of the response's body, as far as they are known before it is computed."""
        return prepared.plan.output_bytes

    def _assign(self, prepared: PreparedCall) -> Worker:
        """Choose a worker, enter its queue and reserve the memory that the call takes with it; again if it refuses.

        Raises:
            NoBackend: no worker can run the plan.
            LimitExceeded: it would take too long there, or more memory than there is.
            TooBusy: the memory is not free now.
        """
        plan, options = prepared.plan, prepared.options
        worker = self._service.workers().choose(plan, options.backend, options.device)
        worker.costs.check(plan, "TENSORPOST_MAX_SECONDS")
        self._observation.backend = backend_name(worker, plan)
        self._observation.opset_version = plan.operation.opset_version
        before, self._queue_slot = self._queue_slot, worker.enqueue(plan)
        if before is not None:
            before.release()
        missing = prepared.memory_bytes + worker.backend.held_bytes(plan) - self._assigned_bytes
        if missing > 0 or self._ticket is None:
            self._reserve(max(0, missing))
            self._assigned_bytes += max(0, missing)
        return worker

    async def _receive_tensors(
        self, prepared: PreparedCall, read: ReadBody, body: RequestBody, worker: Worker
    ) -> list[memoryview]:
        """The tensors in the order of the body, in memory that this worker reads fastest."""
        memory, ticket = read.memory, self._ticket
        assert ticket is not None
        if read.encoded is not None:
            memory = [ticket.memory(size, worker.backend.host_memory) for size in prepared.sizes]
            await self._slow_threads.run(True, read.encoded.decode_into, memory)
        if memory is None:
            complete = body.complete if prepared.aligned and worker.is_small(prepared.plan) else None
            memory = None if complete is None else received_tensors(complete, prepared.sizes)
        if memory is None:
            memory = [ticket.memory(size, worker.backend.host_memory) for size in prepared.sizes]
            await body.receive_into(memory)
        ticket.uploaded()
        return memory

    def _format_of(self, length: int) -> CallFormat:
        """How the request is read and its response is written."""
        return RequestFormat.from_headers(self._fields, length)

    async def _prepare(
        self, key: RequestKey, body: RequestBody, stages: Stages, watch: CallerWatch
    ) -> tuple[PreparedCall, ReadBody]:
        """The planned call, from the call cache if it is there; and what parsing it read of the body."""
        settings, format_ = self._service.settings, key.format
        assert isinstance(format_, RequestFormat)
        slow = takes_long(self._dialect, self._operator)
        threads = self._slow_threads if slow else self._parsing
        # Refuses an unknown operator before anything of the body is read.
        parser = await threads.run(slow, self._dialect, self._operator)
        if slow:
            self._observation.operator = self._operator  # the package onnx knows it, so no caller made it up
        head, prepared = await self._known_call(key, body, stages)
        if prepared is not None:
            return prepared, ReadBody()
        has_long_head = not head and body.length > INLINE_TEXT_BYTES and format_.request is not MediaType.RAW
        large = slow or has_long_head or len(key.query) > INLINE_QUERY_BYTES
        read = await read_call(
            body, format_, parser, key.query.decode("latin-1"), settings, self._reserve, threads,
            self._slow_threads, watch, head_has_arrived=bool(head), large=large,
        )  # fmt: skip
        stages.done("head")
        prepared = await threads.run(large, _plan, read, format_, settings)
        if read.memory is None:
            self._keep_call(key, head, prepared)
        return prepared, ReadBody(read.memory, read.encoded)

    async def _known_call(
        self, key: RequestKey, body: RequestBody, stages: Stages
    ) -> tuple[bytes, PreparedCall | None]:
        """The head of the body, empty if it is not worth a cache entry, and the call that the cache holds for it."""
        if not key.format.may_replay:
            return b"", None
        begin = await body.peek()
        head = bytes(begin[: key.format.head_length(begin)])
        prepared = self._service.calls.get((key, head)) if head else None
        if prepared is not None:
            body.skip(len(head))
            stages.done("head")
        return head, prepared

    def _keep_call(self, key: RequestKey, head: bytes, prepared: PreparedCall) -> None:
        """Put a call into the cache, if its head is worth it."""
        if head and len(key.query) + len(head) <= MOST_KEY_BYTES:
            self._service.calls.put((key, head), prepared)

    async def _respond(
        self, prepared: PreparedCall, format_: CallFormat, worker: Worker, inputs: Sequence[memoryview]
    ) -> None:
        """Compute the outputs on this worker and send them; until then, the caller is watched."""
        plan, sender = prepared.plan, self.sender
        assert sender is not None
        assert isinstance(format_, RequestFormat)
        if format_.response in BUFFERED_MEDIA_TYPES:
            # `check_output` has limited it, so it fits in memory.
            output = await self._whole_output(prepared, worker, inputs)
            is_text = format_.response is MediaType.JSON
            threads = self._parsing if is_text else self._slow_threads
            large = not is_text or json_elements(plan) > INLINE_JSON_ELEMENTS
            if prepared.strings is not None:
                self._reserve(JSON_BYTES_PER_TEXT_BYTE * text_bytes(prepared, output))
            whole, body = await threads.run(large, whole_response, prepared, format_, worker, output)
            if len(body) <= self._service.settings.slice_bytes:
                await sender.whole(whole, body)
            else:
                await sender.stream(whole, _pieces(body, self._service.settings.slice_bytes))
            return
        head = prepared.heads.get(worker)
        if head is None:
            head = prepared.heads[worker] = response_head(prepared, worker, format_.response)
        await self._send_binary(head, prepared, worker, inputs)

    async def _whole_output(self, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview]) -> bytes:
        """The bytes of all outputs, one after the other."""
        return b"".join([block async for block in self._slices(prepared, worker, inputs)])

    async def _send_binary(
        self, head: PreparedHead, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview]
    ) -> None:
        """Send the head, and the outputs as they are computed."""
        plan, sender, trace = prepared.plan, self.sender, self._observation.trace
        assert sender is not None
        if head.inline:
            # The first time, backends make tables and compile, which may take long, so a thread does it.
            timeline = None if trace is None else trace.timeline
            await sender.whole(
                head, await worker.run_once(plan, inputs, head.body_head, caller=self._caller, timeline=timeline)
            )
            return
        await sender.stream(head, self._slices(prepared, worker, inputs))

    def _slices(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview]
    ) -> AsyncGenerator[memoryview]:
        """The outputs' bytes, computed while earlier ones are being sent."""
        trace = self._observation.trace
        timeline = None if trace is None else trace.timeline
        return worker.run(prepared.plan, inputs, caller=self._caller, timeline=timeline, start=self._start)

    def _reserve(self, size_in_bytes: int) -> Ticket:
        """Admit the request with this much memory, or reserve more for it if it is admitted already."""
        if self._upload_ended:
            raise self._deadline_error()
        if self._ticket is None:
            self._ticket = self._service.admission.admit(size_in_bytes, self._caller)
            body = self._body
            if body is not None and body.arrived() < body.length:
                self._ticket.uploading(body.length, body.arrived, self._end_upload)
        else:
            self._ticket.grow(size_in_bytes)
        return self._ticket

    def _end_upload(self) -> None:
        """End the request, whose body came too slowly; admission has taken its ticket."""
        self._upload_ended = True
        self._limit.reschedule(asyncio.get_running_loop().time())

    def _deadline_error(self) -> TensorpostError:
        """The error of a request that was ended before its response began."""
        body = self._body
        if self._upload_ended and body is not None:
            return ReceiveTimeout(
                f"others needed the memory of this request, and its body came slowest: {body.arrived():,} of "
                f"{body.length:,} bytes (setting TENSORPOST_SLOW_UPLOAD_SECONDS)"
            )
        return DeadlineExceeded(
            f"the answer did not begin within the {self._wait} s that the request would wait for it (Prefer: wait)"
        )


async def _pieces(body: bytes, size_in_bytes: int) -> AsyncGenerator[memoryview]:
    """The body in pieces, so that no caller has to take all of it in the time for one."""
    whole = memoryview(body)
    for at in range(0, len(whole), size_in_bytes):
        yield whole[at : at + size_in_bytes]


def _plan(read: ReadCall, format_: RequestFormat, settings: Settings) -> PreparedCall:
    """Plan a call.

    Raises:
        LimitExceeded: the plan is above a limit.
        NotAcceptable: the response's media type cannot hold the output, or Accept names none that is written here.
    """
    operation = read.operation if read.strings is None else numbers_node(read.strings.node)
    plan = make_plan(operation, settings.slice_bytes)
    slots = plan.inputs
    if format_.unacceptable is not None:
        raise NotAcceptable(format_.unacceptable)
    if read.strings is not None and format_.response is not MediaType.JSON and has_string_outputs(read.strings.node):
        raise NotAcceptable(f"{format_.response.value} holds no strings; accept {MediaType.JSON.value}")
    check_output(plan, format_, settings)
    sizes = tuple([tensor.size_in_bytes for tensor in read.tensors])
    index_of = {tensor.name: index for index, tensor in enumerate(read.tensors)}
    # Inputs as they arrive, unless they hold memory already, and as many slices as may exist at the same time.
    memory_bytes = slices_bytes(plan, settings) + (0 if read.memory else sum(sizes))
    memory_bytes += whole_response_bytes(plan, format_.response)
    memory_bytes += 0 if read.encoded is None else read.encoded.working_bytes
    order = tuple([index_of[slot.name] for slot in slots])
    starts = [*itertools.accumulate(sizes, initial=0)]
    misaligned = [at for at, slot in zip(order, slots, strict=True) if starts[at] % slot.layout.data_type.item_size]
    return PreparedCall(plan, read.options, read.id, sizes, order, not misaligned, memory_bytes, strings=read.strings)
