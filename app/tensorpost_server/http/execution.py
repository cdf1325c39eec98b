"""Running a call: head, plan, admission, tensors, kernel, answer; in this order, and nothing before its turn."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorpost import datatypes, frame
from tensorpost.frame import HeadReader, NpyHeadReader
from tensorpost.layout import Layout
from tensorpost.problems import InvalidFrame, LimitExceeded, NotAcceptable
from tensorpost.strict_json import read_json

from ..backends import Plan
from ..engine import Stages, Ticket, Worker, make_plan
from .calls import Call, Dialect, Tensor
from .forms import Form, answer_form, refuse_encoding, request_form, tensors_of_document
from .lengths import content_length
from .service import Service
from .streams import Body, CallerGone, send_stream, send_whole

__all__ = ["Execution"]

_U8 = datatypes.data_type("U8")
_EMPTY = memoryview(b"")
_MOST_VALUE_BYTES = 2 * 64 * 8  # a roi has two float64 for each of at most 64 dimensions


@dataclass(slots=True)
class _Arrived:
    """A call, and how far its body has been read.

    Attributes:
        call: what is asked for.
        id: the caller's id for it.
        tensors: what the body announces, in the order of its bytes.
        memory: the tensors' bytes, if understanding the call took reading them; else None.
        ticket: what was lent out for that.
    """

    call: Call
    id: str | None
    tensors: Sequence[Tensor]
    memory: list[memoryview] | None
    ticket: Ticket | None = None


class Execution(Response):
    """Reads a call, runs it, and streams the answer; plain ASGI, so that no layer in between buffers a body.

    Args:
        scope: the ASGI scope of the request.
        name: the operator's name in the path.
        dialect: how to read it.
    """

    def __init__(self, scope: Scope, name: str, dialect: Dialect) -> None:
        # Response's own __init__ would make headers and a body; these are made when the answer is known.
        self.background = None
        self._name, self._dialect = name, dialect
        self._headers = Headers(scope=scope)
        self._query: str = scope["query_string"].decode("latin-1")
        self._service: Service = scope["app"].state.service
        self._stages = Stages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or raise a problem before the first byte of an answer."""
        del scope
        settings, stages, admission = self._service.settings, self._stages, self._service.admission
        pool = self._service.workers()
        length = content_length(self._headers, settings.max_body_bytes)
        body = Body(receive, length, settings.receive_timeout_seconds)
        form = request_form(self._headers.get("content-type"))
        refuse_encoding(self._headers.get("content-encoding"))
        answer = answer_form(self._headers.get("accept"), form)
        self._dialect.check_name(self._name)
        try:
            with ExitStack() as tickets:
                arrived = await self._read_call(body, form, tickets)
                stages.done("head")
                plan = make_plan(arrived.call.subject, settings.slice_bytes)
                self._check_output(plan, answer)
                options = arrived.call.options
                worker = pool.choose(plan, options.backend, options.device)
                tickets.enter_context(worker.expect(plan))
                stages.done("plan")
                needed = self._bytes_needed(plan, arrived)
                if arrived.ticket is None:
                    arrived.ticket = tickets.enter_context(admission.admit(needed))
                else:
                    arrived.ticket.grow(needed)
                stages.done("admit")
                if arrived.memory is None:
                    lend, source = arrived.ticket.memory, worker.backend.host_memory
                    arrived.memory = [lend(tensor.size_in_bytes, source) for tensor in arrived.tensors]
                    await body.into(arrived.memory)
                stages.done("receive")
                by_name = {tensor.name: m for tensor, m in zip(arrived.tensors, arrived.memory, strict=True)}
                inputs = [by_name[slot.name] for slot in plan.inputs]
                await self._answer(send, receive, arrived, plan, worker, inputs, answer)
        except CallerGone:
            return

    async def _read_call(self, body: Body, form: Form, tickets: ExitStack) -> _Arrived:
        """Everything before the tensors' bytes; and those too, where they are needed to understand the call."""
        settings = self._service.settings
        if form is Form.JSON:
            document = read_json(await body.whole(settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"))
            text, arrays, tensors, id_ = tensors_of_document(document)
            memory = [np.ascontiguousarray(array).data.cast("B") if array.size else _EMPTY for array in arrays]
            return self._understood(tensors, text, id_, memory)
        if form is Form.NPY:
            lone = self._dialect.lone_tensor(self._name, self._query)
            npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
            await body.head(npy)
            head = npy.finish()
            return self._understood([Tensor(lone, head.data_type, head.shape, head.body_bytes)], None, None)
        reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.head(reader)
        frame_head = reader.finish()
        tensors = [Tensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in frame_head.tensors]
        memory = ticket = None
        values = self._dialect.value_names(self._name, self._query)
        if any(tensor.name in values for tensor in tensors):
            for tensor in tensors:
                if tensor.name in values and tensor.size_in_bytes > _MOST_VALUE_BYTES:
                    raise InvalidFrame(
                        f"tensor {tensor.name!r} has {tensor.size_in_bytes:,} bytes; such an input has an entry per "
                        f"dimension, at most {_MOST_VALUE_BYTES:,} bytes in all"
                    )
            # The body's order is the sender's, so the tensor that is worked on may come before the small ones.
            ticket = tickets.enter_context(self._service.admission.admit(frame_head.body_bytes))
            memory = [ticket.memory(tensor.size_in_bytes) for tensor in tensors]
            await body.into(memory)
        metadata = frame_head.metadata
        arrived = self._understood(tensors, metadata.get("op"), metadata.get("id"), memory)
        arrived.ticket = ticket
        return arrived

    def _understood(
        self,
        tensors: Sequence[Tensor],
        document: str | None,
        id_: str | None,
        memory: list[memoryview] | None = None,
    ) -> _Arrived:
        values: dict[str, Any] = {}
        if memory is not None:
            names = self._dialect.value_names(self._name, self._query)
            for tensor, block in zip(tensors, memory, strict=True):
                if tensor.name in names:
                    values[tensor.name] = Layout.row_major(tensor.data_type, tensor.shape).view(block)
        call = self._dialect.understand(self._name, self._query, tensors, document, values)
        return _Arrived(call, id_, tensors, memory)

    def _check_output(self, plan: Plan, answer: Form) -> None:
        """Refuse an output that is too large, or that the answer's form cannot hold, before memory is taken."""
        settings, layout = self._service.settings, plan.output.layout
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

    def _bytes_needed(self, plan: Plan, arrived: _Arrived) -> int:
        """Inputs as they arrive, and as many slices as may exist at the same time."""
        settings = self._service.settings
        inputs = 0 if arrived.memory is not None else sum([tensor.size_in_bytes for tensor in arrived.tensors])
        slices = min(len(plan.slices), settings.slices_ahead + 2)
        return inputs + min(plan.output_bytes, slices * settings.slice_bytes)

    async def _answer(
        self, send: Send, receive: Receive, arrived: _Arrived, plan: Plan, worker: Worker,
        inputs: Sequence[memoryview], answer: Form,
    ) -> None:  # fmt: skip
        layout, backend = plan.output.layout, worker.backend
        if answer is Form.JSON:
            # Small: `_check_output` bounded it.
            data = b"".join([block async for block in worker.run(plan, inputs)])
            document = self._about(arrived, worker) | {"op": json.loads(arrived.call.document)}
            document["tensors"] = {plan.output.name: frame.tensor_to_json(layout.view(data))}
            head, length = json.dumps(document, allow_nan=False).encode(), 0
        else:
            head, length = self._head(arrived, plan, worker, answer), layout.size_in_bytes
        headers = [
            (b"content-type", answer.value.encode()),
            (b"content-length", str(len(head) + length).encode()),
            (b"tensorpost-backend", backend.name.encode()),
            (b"tensorpost-device", backend.device.encode()),
        ]
        if answer is Form.JSON:
            await send_whole(send, headers, head, self._stages)
        elif worker.is_small(plan):
            await send_whole(send, headers, head + worker.run_now(plan, inputs), self._stages)
        else:
            slices: AsyncGenerator[memoryview] = worker.run(plan, inputs)
            timeout = self._service.settings.send_timeout_seconds
            await send_stream(send, receive, headers, head, slices, self._stages, timeout)

    def _head(self, arrived: _Arrived, plan: Plan, worker: Worker, answer: Form) -> bytes:
        """The bytes before the output's."""
        layout = plan.output.layout
        if answer is Form.NPY:
            return frame.encode_npy_head(layout.data_type, layout.sizes)
        row, sizes = (layout.data_type, layout.sizes) if layout.packed else (_U8, (layout.size_in_bytes,))
        return frame.encode_head([(plan.output.name, row, sizes)], self._about(arrived, worker))

    @staticmethod
    def _about(arrived: _Arrived, worker: Worker) -> dict[str, Any]:
        """What an answer says about itself; with it, a saved frame explains itself."""
        about = {"op": arrived.call.document, "backend": worker.backend.name, "device": worker.backend.device}
        return about if arrived.id is None else about | {"id": arrived.id}
