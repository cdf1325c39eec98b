"""Running a call: head, plan, admission, tensors, kernel, answer; in this order, and nothing before its turn."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorpost import datatypes, frame
from tensorpost.frame import HeadReader, NpyHeadReader
from tensorpost.layout import Layout
from tensorpost.problems import LimitExceeded, NotAcceptable
from tensorpost.strict_json import read_json

from ..backends import Plan
from ..engine import Stages, Worker, make_plan
from .calls import Call, Dialect, Tensor
from .forms import Form, answer_form, request_form, tensors_of_document
from .lengths import content_length
from .service import Service, service_of
from .streams import Body, CallerGone, send_stream

__all__ = ["Execution"]

_U8 = datatypes.data_type("U8")


@dataclass(slots=True)
class _Arrived:
    """A call, and how far its body has been read.

    Attributes:
        call: what is asked for.
        tensors: what the body announces, in the order of its bytes.
        memory: the tensors' bytes, if understanding the call took reading them; else None.
    """

    call: Call
    tensors: Sequence[Tensor]
    memory: list[memoryview] | None


class Execution(Response):
    """Reads a call, runs it, and streams the answer; plain ASGI, so that no layer in between buffers a body.

    Args:
        request: the request.
        name: the operator's name in the path.
        dialect: how to read it.
    """

    def __init__(self, request: Request, name: str, dialect: Dialect) -> None:
        super().__init__()
        self._request, self._name, self._dialect = request, name, dialect
        self._service: Service = service_of(request)
        self._stages = Stages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or raise a problem before the first byte of an answer."""
        del scope
        request, settings, stages = self._request, self._service.settings, self._stages
        pool = self._service.workers()
        body = Body(receive, content_length(request, self._service), settings.receive_timeout_seconds)
        form = request_form(request.headers.get("content-type"))
        answer = answer_form(request.headers.get("accept"), form)
        self._dialect.check_name(self._name)
        try:
            with ExitStack() as tickets:
                with stages.stage("head"):
                    arrived = await self._read_call(body, form, tickets)
                with stages.stage("plan"):
                    plan = make_plan(arrived.call.subject, settings.slice_bytes)
                    self._check_output(plan, answer)
                    worker = pool.choose(plan, arrived.call.options.backend)
                with stages.stage("admit"):
                    ticket = self._service.admission.admit(self._bytes_needed(plan, arrived))
                    tickets.enter_context(ticket)
                with stages.stage("receive"):
                    if arrived.memory is None:
                        arrived.memory = [ticket.memory(tensor.size_in_bytes) for tensor in arrived.tensors]
                        await body.into(arrived.memory)
                by_name = {tensor.name: m for tensor, m in zip(arrived.tensors, arrived.memory, strict=True)}
                inputs = [by_name[slot.name] for slot in plan.inputs]
                await self._answer(send, receive, arrived.call, plan, worker, inputs, answer)
        except CallerGone:
            return

    async def _read_call(self, body: Body, form: Form, tickets: ExitStack) -> _Arrived:
        """Everything before the tensors' bytes; and those too, where they are needed to understand the call."""
        query, settings = self._request.url.query, self._service.settings
        if form is Form.JSON:
            document = read_json(await body.whole(settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"))
            text, arrays, tensors, id_ = tensors_of_document(document)
            memory = [np.ascontiguousarray(array).data.cast("B") if array.size else _EMPTY for array in arrays]
            return self._understood(query, tensors, text, id_, memory)
        if form is Form.NPY:
            lone = self._dialect.lone_tensor(self._name, query)
            npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
            await body.head(npy)
            head = npy.finish()
            return self._understood(query, [Tensor(lone, head.data_type, head.shape, head.body_bytes)], None, None)
        reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.head(reader)
        frame_head = reader.finish()
        tensors = [Tensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in frame_head.tensors]
        memory = None
        if any(tensor.name in self._dialect.value_names(self._name, query) for tensor in tensors):
            # The body's order is the sender's, so the tensor that is worked on may come before the small ones.
            ticket = tickets.enter_context(self._service.admission.admit(frame_head.body_bytes))
            memory = [ticket.memory(tensor.size_in_bytes) for tensor in tensors]
            await body.into(memory)
        metadata = frame_head.metadata
        return self._understood(query, tensors, metadata.get("op"), metadata.get("id"), memory)

    def _understood(
        self, query: str, tensors: Sequence[Tensor], document: str | None, id_: str | None,
        memory: list[memoryview] | None = None,
    ) -> _Arrived:  # fmt: skip
        values: dict[str, Any] = {}
        if memory is not None:
            names = self._dialect.value_names(self._name, query)
            for tensor, block in zip(tensors, memory, strict=True):
                if tensor.name in names:
                    values[tensor.name] = Layout.row_major(tensor.data_type, tensor.shape).view(block)
        subject, options = self._dialect.understand(self._name, query, tensors, document, values)
        return _Arrived(Call(subject, options, id_), tensors, memory)

    def _check_output(self, plan: Plan, answer: Form) -> None:
        """Refuse an output that is too large, or that the answer's form cannot hold, before memory is taken."""
        settings, layout = self._service.settings, plan.output.layout
        if plan.output_bytes > settings.max_output_bytes:
            raise LimitExceeded.of(
                "the output", plan.output_bytes, settings.max_output_bytes, "TENSORPOST_MAX_OUTPUT_BYTES"
            )
        if answer is not Form.FRAME and not layout.packed:
            raise NotAcceptable(
                f"{answer.value} holds packed tensors only, and OutputTensor has strides or padding; "
                f"accept {Form.FRAME.value}"
            )
        elements = plan.output_bytes // max(1, layout.data_type.item_size)
        if answer is Form.JSON and elements > settings.max_json_elements:
            raise LimitExceeded.of(
                "the output as JSON numbers", elements, settings.max_json_elements, "TENSORPOST_MAX_JSON_ELEMENTS",
                f"elements, so accept {Form.NPY.value} or {Form.FRAME.value} for it;",
            )  # fmt: skip

    def _bytes_needed(self, plan: Plan, arrived: _Arrived) -> int:
        """Inputs as they arrive, and as many slices as may exist at the same time."""
        settings = self._service.settings
        inputs = 0 if arrived.memory is not None else sum(tensor.size_in_bytes for tensor in arrived.tensors)
        slices = min(len(plan.slices), settings.slices_ahead + 2)
        return inputs + min(plan.output_bytes, slices * settings.slice_bytes)

    async def _answer(
        self, send: Send, receive: Receive, call: Call, plan: Plan, worker: Worker, inputs: Sequence[memoryview],
        answer: Form,
    ) -> None:  # fmt: skip
        layout, backend = plan.output.layout, worker.backend
        about: dict[str, Any] = {"op": self._dialect.document(call.subject)}
        about |= {"backend": backend.name, "device": backend.device}
        if call.id is not None:
            about["id"] = call.id
        slices = worker.run(plan, inputs)
        length = layout.size_in_bytes
        if answer is Form.JSON:
            with self._stages.stage("compute"):
                data = b"".join([bytes(block) async for block in slices])  # small: `_check_output` bounded it
            tensor = frame.tensor_to_json(layout.view(data))
            head = json.dumps({**about, "tensors": {plan.output.name: tensor}}, allow_nan=False).encode()
            slices, length = _nothing(), 0
        elif answer is Form.NPY:
            head = frame.encode_npy_head(layout.data_type, layout.sizes)
        else:
            data_type, sizes = (layout.data_type, layout.sizes) if layout.packed else (_U8, (layout.size_in_bytes,))
            metadata = {**about, "op": json.dumps(about["op"], separators=(",", ":"))}
            head = frame.encode_head([(plan.output.name, data_type, sizes)], metadata)
        headers = [
            (b"content-type", answer.value.encode()),
            (b"content-length", str(len(head) + length).encode()),
            (b"tensorpost-backend", backend.name.encode()),
            (b"tensorpost-device", backend.device.encode()),
        ]
        timeout = self._service.settings.send_timeout_seconds
        await send_stream(send, receive, headers, [memoryview(head)], slices, self._stages, timeout)


_EMPTY = memoryview(b"")


async def _nothing() -> AsyncGenerator[memoryview]:
    for block in ():
        yield block
