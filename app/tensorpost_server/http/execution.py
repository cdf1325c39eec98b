"""Running a call: head, plan, admission, tensors, kernel, answer; in this order, and nothing before its turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tensorpost import datatypes, frame
from tensorpost.frame import HeadReader, NpyHeadReader
from tensorpost.layout import Layout
from tensorpost.problems import InvalidDescriptor, InvalidFrame, LimitExceeded, NoBackend, NotAcceptable
from tensorpost.strict_json import read_json

from ..engine import QueueSlot, Stages, Ticket, Worker
from ..planning import Plan, make_plan
from .again import Again, field_lines_of_one, in_place
from .answering import AnswerWhole, field_lines
from .calls import Call, Dialect, Tensor
from .fields import fields_of, text_of
from .forms import Form, answer_form, refuse_encoding, request_form, tensors_of_document
from .lengths import content_length
from .middleware import request_id_of
from .prepared import AnswerHead, Opening, OpeningKey, Prepared, head_length
from .receiving import receive_into
from .service import Service
from .streams import Body, CallerGone, send_last, send_stream

__all__ = ["Execution", "ExecutionResponse"]

_U8 = datatypes.data_type("U8")
_MOST_VALUE_BYTES = 2 * 64 * 8  # a roi has two float64 for each of at most 64 dimensions


class Execution:
    """Reads one call, runs it, and streams the answer; plain ASGI, so that no layer in between buffers a body.

    Attributes:
        begun: whether the answer has; from then on there is no honest status any more.

    Args:
        service: of the application that got the request.
        scope: the ASGI scope of the request. It gets a request id if it has none.
        name: the operator's name in the path.
        dialect: how to read it.
        whole: the server's way to take a small answer at once; None if it has none, or if something in between may
            want to see the answer.
    """

    __slots__ = (
        "_again",
        "_dialect",
        "_fields",
        "_name",
        "_place",
        "_query",
        "_receive_into",
        "_service",
        "_stages",
        "_ticket",
        "_whole",
        "begun",
        "request_id",
    )

    def __init__(
        self, service: Service, scope: Scope, name: str, dialect: Dialect, whole: AnswerWhole | None = None
    ) -> None:
        self.begun = False
        self._name, self._dialect = name, dialect
        self._fields = fields_of(scope["headers"])
        self._query: bytes = scope["query_string"]
        self._receive_into = receive_into(scope)
        self._service = service
        self._stages = Stages()
        self._ticket: Ticket | None = None
        self._place: QueueSlot | None = None
        self._whole = whole
        self._again: Again | None = None
        request_id: str | None = scope.get("tensorpost.request_id")
        if request_id is None:
            request_id = scope["tensorpost.request_id"] = request_id_of(self._fields.get(b"x-request-id"))
        self.request_id = request_id

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request, or raise a problem before the first byte of an answer."""
        try:
            await self._run(receive, send)
        except CallerGone:
            return
        finally:
            if self._place is not None:
                self._place.release()
            if self._ticket is not None:
                self._ticket.release()

    async def _run(self, receive: Receive, send: Send) -> None:
        service, stages = self._service, self._stages
        settings = service.settings
        pool = service.workers()
        length = content_length(self._fields.get(b"content-length"), settings.max_body_bytes)
        opening = self._opening()
        body = Body(receive, length, settings.receive_timeout_seconds, self._receive_into)
        prepared, memory = await self._prepared(body, opening)
        plan, options = prepared.plan, prepared.call.options
        worker = pool.choose(plan, options.backend, options.device)
        self._move_to(worker, plan)
        stages.done("plan")
        needed = prepared.memory_bytes + worker.backend.held_bytes(plan)
        if self._ticket is None:
            self._ticket = service.admission.admit(needed)
        else:
            self._ticket.grow(needed)
        stages.done("admit")
        if memory is None:
            there = body.arrived if worker.is_small(plan) else None
            memory = None if there is None else in_place(there, prepared.sizes)
            if memory is None:
                lend, source = self._ticket.memory, worker.backend.host_memory
                memory = [lend(size, source) for size in prepared.sizes]
                await body.into(memory)
        stages.done("receive")
        inputs = [memory[index] for index in prepared.order]
        while True:
            try:
                await self._answer(send, receive, prepared, opening.answer, worker, inputs)
                return
            except NoBackend:
                # Some devices know only when they are asked to begin (DirectML). They refuse the plan from then on.
                if self.begun:
                    raise
                other = pool.choose(plan, options.backend, options.device)
                if other is worker:
                    raise
                worker = other
                self._move_to(worker, plan)

    def _move_to(self, worker: Worker, plan: Plan) -> None:
        """Take a place in the queue of this worker, and leave the one that it has."""
        place, self._place = self._place, worker.enqueue(plan)
        if place is not None:
            place.release()

    async def _answer(
        self, send: Send, receive: Receive, prepared: Prepared, form: Form, worker: Worker, inputs: Sequence[memoryview]
    ) -> None:
        plan = prepared.plan
        if form is Form.JSON:
            await self._send_json(send, prepared, worker, inputs)
            return
        answer = prepared.answers.get(worker)
        if answer is not None and answer.small:
            await self._send_whole(send, answer, worker.run_now(plan, inputs, answer.head))
            return
        if answer is None:
            answer = prepared.answers[worker] = _head_of(prepared, worker, form)
        if answer.small:
            # The first time, tables are made that the next ones find; nobody knows how long that takes.
            await self._send_whole(send, answer, await worker.run_once(plan, inputs, answer.head))
            return
        slices = worker.run(plan, inputs)
        timeout = self._service.settings.send_timeout_seconds
        headers = [*answer.headers, (b"x-request-id", self.request_id.encode())]
        await send_stream(self._noting(send), receive, headers, answer.head, slices, self._stages, timeout)

    # ---- understanding -----------------------------------------------------------------------------------------------

    def _opening(self) -> Opening:
        """What path and header fields say, before anything is read."""
        fields, openings = self._fields, self._service.prepared
        content_type, accept = fields.get(b"content-type"), fields.get(b"accept")
        key: OpeningKey = (self._dialect, self._name, content_type, accept, fields.get(b"content-encoding"))
        opening = openings.openings.get(key)
        if opening is None:
            form = request_form(text_of(content_type))
            refuse_encoding(text_of(key[4]))
            answer = answer_form(text_of(accept), form)
            self._dialect.check_name(self._name)
            lone = self._dialect.lone_tensor(self._name) if form is Form.NPY else ""
            opening = Opening(self._name, self._dialect, form, answer, lone)
            openings.keep_opening(key, opening)
        return opening

    async def _prepared(self, body: Body, opening: Opening) -> tuple[Prepared, list[memoryview] | None]:
        """The call, and the tensors' bytes if understanding it took reading them."""
        key, remembered, length = None, self._service.prepared, 0
        if opening.form is not Form.JSON:
            begin = await body.peek()
            length = head_length(opening.form, begin)
            if length:
                key = (opening, self._query, body.length, bytes(begin[:length]))
                if self._whole is not None:
                    self._again = Again(self._service, opening, self._query, self._fields.get(b"x-request-id"))
                prepared = remembered.calls.get(key)
                if prepared is not None:
                    body.skip(length)
                    self._stages.done("head")
                    return prepared, None
        call, id_, tensors, memory = await self._read_call(body, opening, length)
        self._stages.done("head")
        prepared = self._planned(call, id_, tensors, opening.answer, here=memory is not None)
        if key is not None and memory is None:
            remembered.keep_call(key, prepared)
        return prepared, memory

    async def _read_call(
        self, body: Body, opening: Opening, length: int
    ) -> tuple[Call, str | None, Sequence[Tensor], list[memoryview] | None]:
        """Everything before the tensors' bytes; and those too, where they are needed to understand the call.

        `length` is that of a head which is here and short; a longer one takes a place of its own while it is read.
        """
        settings = self._service.settings
        if opening.form is Form.JSON:
            # The text and what is made of it are held from now on; their share grows with the plan.
            self._ticket = self._service.admission.admit(min(body.length, settings.max_json_bytes))
            document = read_json(await body.whole(settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"))
            text, arrays, tensors, id_ = tensors_of_document(document)
            # by way of uint8, since memoryview knows no bfloat16
            memory = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
            try:
                return self._understood(tensors, text, memory), id_, tensors, memory
            except InvalidDescriptor as error:
                raise _in_json(error, tensors, text) from None
        if not length:
            self._ticket = self._service.admission.admit(min(body.length, settings.max_head_bytes))
        if opening.form is Form.NPY:
            npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
            await body.head(npy)
            head = npy.finish()
            tensors = [Tensor(opening.lone_tensor, head.data_type, head.shape, head.body_bytes)]
            return self._understood(tensors, None), None, tensors, None
        reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.head(reader)
        frame_head = reader.finish()
        tensors = [Tensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in frame_head.tensors]
        memory = None
        values = self._dialect.value_names(self._name)
        if any(tensor.name in values for tensor in tensors):
            for tensor in tensors:
                if tensor.name in values and tensor.size_in_bytes > _MOST_VALUE_BYTES:
                    raise InvalidFrame(
                        f"tensor {tensor.name!r} has {tensor.size_in_bytes:,} bytes; such an input has an entry per "
                        f"dimension, at most {_MOST_VALUE_BYTES:,} bytes in all"
                    )
            # The body's order is the sender's, so the tensor that is worked on may come before the small ones.
            if self._ticket is None:
                self._ticket = self._service.admission.admit(frame_head.body_bytes)
            else:
                self._ticket.grow(frame_head.body_bytes)
            memory = [self._ticket.memory(tensor.size_in_bytes) for tensor in tensors]
            await body.into(memory)
        metadata = frame_head.metadata
        return self._understood(tensors, metadata.get("op"), memory), metadata.get("id"), tensors, memory

    def _understood(
        self, tensors: Sequence[Tensor], document: str | None, memory: list[memoryview] | None = None
    ) -> Call:
        values: dict[str, Any] = {}
        if memory is not None:
            names = self._dialect.value_names(self._name)
            for tensor, block in zip(tensors, memory, strict=True):
                if tensor.name in names:
                    values[tensor.name] = Layout.row_major(tensor.data_type, tensor.shape).view(block)
        return self._dialect.understand(self._name, self._query.decode("latin-1"), tensors, document, values)

    # ---- planning ----------------------------------------------------------------------------------------------------

    def _planned(
        self, call: Call, id_: str | None, tensors: Sequence[Tensor], answer: Form, *, here: bool
    ) -> Prepared:  # fmt: skip
        """The call with its plan, if that is within the limits; `here` says that the tensors hold memory already."""
        settings = self._service.settings
        plan = make_plan(call.subject, settings.slice_bytes)
        self._check_output(plan, answer)
        sizes = tuple(tensor.size_in_bytes for tensor in tensors)
        index_of = {tensor.name: index for index, tensor in enumerate(tensors)}
        # Inputs as they arrive, and as many slices as may exist at the same time.
        slices = min(len(plan.slices), settings.slices_ahead + 2)
        output = min(plan.output_bytes, slices * settings.slice_bytes)
        memory_bytes = output if here else sum(sizes) + output
        return Prepared(call, id_, plan, sizes, tuple(index_of[slot.name] for slot in plan.inputs), memory_bytes)

    def _check_output(self, plan: Plan, answer: Form) -> None:
        """Refuse an output that is too large, or that the answer's form cannot hold, before memory is taken."""
        settings, layout = self._service.settings, plan.outputs[0].layout
        if plan.output_bytes > settings.max_output_bytes:
            raise LimitExceeded.of(
                "the output", plan.output_bytes, settings.max_output_bytes, "TENSORPOST_MAX_OUTPUT_BYTES"
            )
        if plan.work > settings.max_work:
            raise LimitExceeded.of(
                "the work of this operator", plan.work, settings.max_work, "TENSORPOST_MAX_WORK", "elements to add up,"
            )
        row = layout.data_type
        if (
            (answer is Form.NPY and row.numpy_name == "bfloat16")
            or (answer is Form.FRAME and row.safetensors is None)
            or (answer is Form.JSON and row.numpy_name.startswith("complex"))
        ):
            raise NotAcceptable(f"{answer.value} cannot hold {row.numpy_name}; accept another form")
        if answer is not Form.FRAME and not layout.packed:
            raise NotAcceptable(
                f"{answer.value} holds packed tensors only, and OutputTensor has strides or padding; "
                f"accept {Form.FRAME.value}"
            )
        if answer is Form.JSON:
            elements = plan.output_bytes // max(1, layout.data_type.item_size)
            if elements > settings.max_json_elements:
                raise LimitExceeded.of(
                    "the output as JSON numbers", elements, settings.max_json_elements,
                    "TENSORPOST_MAX_JSON_ELEMENTS",
                    f"elements, so accept {Form.NPY.value} or {Form.FRAME.value} for it;",
                )  # fmt: skip

    # ---- answering ---------------------------------------------------------------------------------------------------

    async def _send_json(
        self, send: Send, prepared: Prepared, worker: Worker, inputs: Sequence[memoryview]
    ) -> None:  # fmt: skip
        # Small: `_check_output` bounded it.
        data = b"".join([block async for block in worker.run(prepared.plan, inputs)])
        document = _about(prepared, worker) | {"op": json.loads(prepared.call.document)}
        output = prepared.plan.outputs[0]
        document["tensors"] = {output.name: frame.tensor_to_json(output.layout.view(data))}
        body = json.dumps(document, allow_nan=False).encode()
        await self._send_whole(send, _answer_head(worker, Form.JSON, b"", len(body), small=True), body)

    async def _send_whole(self, send: Send, answer: AnswerHead, body: bytes) -> None:
        """Answer with a body that is small and complete."""
        self._stages.done("compute")
        request_id = self.request_id.encode()
        self.begun = True
        if self._whole is not None and self._whole(
            answer.lines + field_lines_of_one(request_id, self._stages), body, self._again
        ):
            return
        headers = [*answer.headers, (b"x-request-id", request_id), (b"server-timing", str(self._stages).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send_last(send, body, self._service.settings.send_timeout_seconds)

    def _noting(self, send: Send) -> Send:
        async def send_and_note(message: Message) -> None:
            self.begun = True
            await send(message)

        return send_and_note


class ExecutionResponse(Response):
    """An execution as the answer of a route, for applications that put something around or before it."""

    def __init__(self, execution: Execution) -> None:
        # Response's own __init__ would make headers and a body; these are made when the answer is known.
        self.background = None
        self._execution = execution

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Execution.run`."""
        del scope
        await self._execution.run(receive, send)


def _head_of(prepared: Prepared, worker: Worker, form: Form) -> AnswerHead:
    plan = prepared.plan
    layout = plan.outputs[0].layout
    if form is Form.NPY:
        head = frame.encode_npy_head(layout.data_type, layout.sizes)
    else:
        row, sizes = (layout.data_type, layout.sizes) if layout.packed else (_U8, (layout.size_in_bytes,))
        head = frame.encode_head([(plan.outputs[0].name, row, sizes)], _about(prepared, worker))
    return _answer_head(worker, form, head, len(head) + layout.size_in_bytes, small=worker.is_small(plan))


def _answer_head(worker: Worker, form: Form, head: bytes, length: int, *, small: bool) -> AnswerHead:
    headers = (
        (b"content-type", form.value.encode()),
        (b"content-length", str(length).encode()),
        (b"tensorpost-backend", worker.backend.name.encode()),
        (b"tensorpost-device", worker.backend.device.encode()),
    )
    return AnswerHead(headers, field_lines(headers), head, small)


def _about(prepared: Prepared, worker: Worker) -> dict[str, Any]:
    """What an answer says about itself; with it, a saved frame explains itself."""
    about = {"op": prepared.call.document, "backend": worker.backend.name, "device": worker.backend.device}
    return about if prepared.id is None else about | {"id": prepared.id}


def _in_json(error: InvalidDescriptor, tensors: Sequence[Tensor], document: str | None) -> InvalidDescriptor:
    """The same refusal, its places seen from the root of a JSON call."""
    names = {tensor.name for tensor in tensors}
    return type(error).of(
        [
            violation.under("tensors")
            if violation.path[1:] == ("dtype",) and violation.path[0] in names
            else violation if document is None else violation.under("op")
            for violation in error.violations
        ]
    )  # fmt: skip
