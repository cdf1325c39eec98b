"""Responses to calls: which outputs can be written, their heads, and sending them whole or slice by slice."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.types import Message, Send

from tensorpost import datatypes, frame
from tensorpost.json_tensor import tensor_to_json_text
from tensorpost.operation import Slot
from tensorpost.problems import LimitExceeded, NotAcceptable

from ..engine import Stages, Worker
from ..planning import Plan
from ..settings import Settings
from .access.browser_requests import NO_SNIFFING
from .call_cache import PreparedCall, PreparedHead, ReplayFunction, WholeMessages, changing_field_lines, field_lines
from .caller_watch import CallerWatch
from .media_types import MediaType
from .request_body import ClientDisconnected

__all__ = [
    "JSON_BYTES_PER_ELEMENT",
    "JSON_BYTES_PER_TEXT_BYTE",
    "ResponseSender",
    "backend_name",
    "check_limits",
    "check_output",
    "json_elements",
    "json_response",
    "response_head",
    "slices_bytes",
    "text_bytes",
]

JSON_BYTES_PER_ELEMENT = 96
"""Memory of an element on its way to JSON: a Python number, its place in a list, and two texts of 26 characters."""

JSON_BYTES_PER_TEXT_BYTE = 8
"""The same of a byte of a string: the string, its text with escapes, and twice that while it is joined."""

_U8 = datatypes.data_type("U8")


def check_output(plan: Plan, media_type: MediaType, settings: Settings) -> None:
    """Refuse outputs that are too large, or that the media type cannot hold, before memory is reserved.

    Raises:
        LimitExceeded: output bytes, work or JSON elements are above their limits.
        NotAcceptable: the media type cannot hold several outputs, a data type, or strides and padding.
    """
    check_limits(plan, settings)
    if media_type is MediaType.NPY and len(plan.outputs) != 1:
        names = ", ".join([slot.name for slot in plan.outputs])
        raise NotAcceptable(
            f"{media_type.value} holds one tensor, and {plan.operator} has the outputs {names}; "
            f"accept {MediaType.FRAME.value}"
        )
    for slot in plan.outputs:
        row = slot.layout.data_type
        if (
            (media_type is MediaType.NPY and row.numpy_name == "bfloat16")
            or (media_type is MediaType.FRAME and row.safetensors is None)
            or (media_type is MediaType.JSON and row.numpy_name.startswith("complex"))
        ):
            raise NotAcceptable(f"{media_type.value} cannot hold {row.numpy_name}; accept another form")
        if media_type is not MediaType.FRAME and not slot.layout.packed:
            raise NotAcceptable(
                f"{media_type.value} holds packed tensors only, and {slot.name} has strides or padding; "
                f"accept {MediaType.FRAME.value}"
            )
    if media_type is MediaType.JSON:
        elements = json_elements(plan)
        if elements > settings.max_json_elements:
            raise LimitExceeded.of(
                "the output as JSON numbers", elements, settings.max_json_elements,
                "TENSORPOST_MAX_JSON_ELEMENTS",
                f"elements, so accept {MediaType.NPY.value} or {MediaType.FRAME.value} for it",
            )  # fmt: skip


def check_limits(plan: Plan, settings: Settings) -> None:
    """Refuse outputs that are too large, or too much work.

    Raises:
        LimitExceeded: output bytes or work are above their limits.
    """
    if plan.output_bytes > settings.max_output_bytes:
        raise LimitExceeded.of(
            "the output", plan.output_bytes, settings.max_output_bytes, "TENSORPOST_MAX_OUTPUT_BYTES"
        )
    if plan.work > settings.max_work:
        raise LimitExceeded.of(
            "the work of this operator", plan.work, settings.max_work, "TENSORPOST_MAX_WORK", "elements to add up,"
        )


def slices_bytes(plan: Plan, settings: Settings) -> int:
    """Memory of as many slices as may exist at the same time."""
    count = min(len(plan.slices), settings.slices_ahead + 2)
    return min(plan.output_bytes, count * settings.slice_bytes)


def json_elements(plan: Plan) -> int:
    """Elements of all outputs, which JSON writes one by one."""
    return sum([math.prod(slot.layout.sizes) for slot in plan.outputs])


def response_head(prepared: PreparedCall, worker: Worker, media_type: MediaType) -> PreparedHead:
    """The head of an npy or frame response that this worker computes. A frame has its tensors in binding order."""
    plan = prepared.plan
    if media_type is MediaType.NPY:
        layout = plan.outputs[0].layout
        body_head = frame.encode_npy_head(layout.data_type, layout.sizes)
    else:
        body_head = frame.encode_head([_frame_entry(slot) for slot in plan.outputs], _metadata(prepared, worker))
    return _head(worker, plan, media_type, body_head, len(body_head) + plan.output_bytes, inline=worker.is_small(plan))


def _frame_entry(slot: Slot) -> tuple[str, datatypes.DataType, tuple[int, ...]]:
    """A tensor in a frame; one with strides or padding travels as its raw bytes."""
    layout = slot.layout
    return (slot.name, layout.data_type, layout.sizes) if layout.packed else (slot.name, _U8, (layout.size_in_bytes,))


def json_response(prepared: PreparedCall, worker: Worker, outputs: bytes) -> tuple[PreparedHead, bytes]:
    """Head and body of a JSON response; `outputs` holds the bytes of the outputs, one after the other."""
    tensors: list[str] = []
    data, strings = memoryview(outputs), prepared.strings
    for slot, asked in zip(prepared.plan.outputs, prepared.operation.outputs, strict=True):
        array = slot.layout.view(data[: slot.layout.size_in_bytes])
        if strings is not None and asked.layout.data_type.numpy_name == "str":
            texts = [element.decode() for element in strings.table.strings(array)]
            text = json.dumps({"dtype": "string", "shape": list(array.shape), "data": texts}, ensure_ascii=False)
        else:
            text = tensor_to_json_text(array)
        tensors.append(f"{json.dumps(slot.name)}: {text}")
        data = data[slot.layout.size_in_bytes :]
    metadata = _metadata(prepared, worker)
    document = json.dumps(metadata | {"op": json.loads(metadata["op"])}, allow_nan=False)
    body = f'{document[:-1]}, "tensors": {{{", ".join(tensors)}}}}}'.encode()
    return _head(worker, prepared.plan, MediaType.JSON, b"", len(body), inline=True), body


def text_bytes(prepared: PreparedCall, outputs: bytes) -> int:
    """Bytes of the strings in the outputs, whose numbers these are."""
    total, data = 0, memoryview(outputs)
    assert prepared.strings is not None
    for slot, asked in zip(prepared.plan.outputs, prepared.operation.outputs, strict=True):
        if asked.layout.data_type.numpy_name == "str":
            total += prepared.strings.table.total_bytes(slot.layout.view(data[: slot.layout.size_in_bytes]))
        data = data[slot.layout.size_in_bytes :]
    return total


def _metadata(prepared: PreparedCall, worker: Worker) -> dict[str, Any]:
    """What a response says about itself, so that a saved frame explains itself."""
    document = prepared.operation.to_document_text()
    metadata = {"op": document, "backend": backend_name(worker, prepared.plan), "device": worker.backend.device}
    return metadata if prepared.id is None else metadata | {"id": prepared.id}


def backend_name(worker: Worker, plan: Plan) -> str:
    """The name of the backend, and the library that does its work where that is another one."""
    return worker.backend.name + (f"+{plan.library}" if plan.library else "")


def _head(
    worker: Worker, plan: Plan, media_type: MediaType, body_head: bytes, length: int, *, inline: bool
) -> PreparedHead:
    headers = (
        (b"content-type", media_type.value.encode()),
        (b"content-length", str(length).encode()),
        (NO_SNIFFING[0].lower().encode(), NO_SNIFFING[1].encode()),
        (b"tensorpost-backend", backend_name(worker, plan).encode()),
        (b"tensorpost-device", worker.backend.device.encode()),
    )
    return PreparedHead(headers, field_lines(headers), body_head, inline)


class ResponseSender:
    """Sends the response to one call.

    Args:
        send: the ASGI channel.
        request_id: of the request.
        stages: of the request; `compute` is added here.
        timeout: longest wait for the caller to take a part, seconds.
        whole: the server's extension; None if it has none, or middleware may want to see the messages.
        watch: cancels the request's task when its caller disconnects.

    Attributes:
        begun: whether the response has begun; from then on its status cannot change.
        complete: whether all of it was handed to the server.
        sent_bytes: of the body, until now.
        slices: of the output that were sent, until now.
        replay: handed to the server with a small response; None if it cannot be replayed.
    """

    __slots__ = (
        "_request_id", "_send", "_stages", "_timeout", "_watch", "_whole", "begun", "complete", "replay", "sent_bytes",
        "slices",
    )  # fmt: skip

    def __init__(
        self, send: Send, request_id: str, stages: Stages, timeout: float, whole: WholeMessages | None,
        watch: CallerWatch,
    ) -> None:  # fmt: skip
        self._send, self._request_id, self._stages, self._timeout = send, request_id, stages, timeout
        self._whole, self._watch = whole, watch
        self.begun = self.complete = False
        self.sent_bytes = self.slices = 0
        self.replay: ReplayFunction | None = None

    async def whole(self, head: PreparedHead, body: bytes) -> None:
        """Send a small, complete body, `head.body_head` included.

        Raises:
            ClientDisconnected: the caller did not take it in time.
        """
        self._watch.stop()
        self._stages.done("compute")
        self.begun = True
        if self._whole is not None:
            lines = head.lines + changing_field_lines(self._request_id, self._stages)
            if self._whole.send(lines, body, self.replay):
                self.sent_bytes, self.slices, self.complete = len(body), 1, True
                return
        await self._send(self._start(head))
        self.slices = 1
        await self._send_part(body, more=False)

    async def stream(self, head: PreparedHead, slices: AsyncGenerator[memoryview]) -> None:
        """Send a body slice by slice.

        The first slice is computed before the status line is sent, so that a failure until then gets its own status.

        Args:
            head: complete, with Content-Length.
            slices: the output.

        Raises:
            ClientDisconnected: the caller did not take a part in time.
        """
        async with aclosing(slices):
            block = await anext(slices, None)
            self._stages.done("compute")
            self.begun = True
            await self._send(self._start(head))
            await self._send_part(head.body_head)
            while block is not None:
                await self._send_part(block)
                self.slices += 1
                block = await anext(slices, None)
            self._watch.stop()
            await self._send_part(b"", more=False)

    def _start(self, head: PreparedHead) -> Message:
        changing = [(b"x-request-id", self._request_id.encode()), (b"server-timing", str(self._stages).encode())]
        return {"type": "http.response.start", "status": 200, "headers": [*head.headers, *changing]}

    async def _send_part(self, part: bytes | memoryview, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._send({"type": "http.response.body", "body": part, "more_body": more})
                self.sent_bytes += len(part)
                self.complete = not more
        except TimeoutError:
            raise ClientDisconnected from None  # a response that is not complete makes the server close the connection
