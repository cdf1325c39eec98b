"""Responses to calls: which outputs can be written, their heads, and sending them whole or slice by slice."""

from __future__ import annotations

import asyncio
import json
import math
import zipfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.types import Message, Send

from tensorpost import datatypes, frame
from tensorpost.descriptors import TileOperatorDesc
from tensorpost.images import WORKING_BYTES_PER_PIXEL, image_formats, unwritable
from tensorpost.json_tensor import json_type
from tensorpost.operation import Slot
from tensorpost.problems import InvalidParameter, LimitExceeded, NotAcceptable

from ..child_processes.pictures import encode_picture
from ..engine import Stages, Worker
from ..planning import Plan
from ..settings import Settings
from .access.browser_requests import NO_SNIFFING
from .call_cache import PreparedCall, PreparedHead, ReplayFunction, WholeMessages, changing_field_lines, field_lines
from .caller_watch import CallerWatch
from .json_numbers import json_numbers
from .media_types import IMAGE_TYPES, MediaType, RequestFormat
from .raw_tensor import raw_tensor_fields
from .request_body import ClientDisconnected

__all__ = [
    "BUFFERED_MEDIA_TYPES",
    "JSON_BYTES_PER_TEXT_BYTE",
    "ResponseSender",
    "backend_name",
    "check_limits",
    "check_output",
    "json_elements",
    "response_head",
    "slices_bytes",
    "tensor_json",
    "text_bytes",
    "whole_response",
    "whole_response_bytes",
]

JSON_BYTES_PER_ELEMENT = 96
"""Memory of an element on its way to JSON: a Python number, its place in a list, and two texts of 26 characters."""

JSON_BYTES_PER_TEXT_BYTE = 8
"""The same of a byte of a string: the string, its text with escapes, and twice that while it is joined."""

BUFFERED_MEDIA_TYPES = IMAGE_TYPES | {MediaType.JSON, MediaType.NPZ}
"""Media types that are written when the whole output is there; the others are streamed."""

_OF_SEVERAL = frozenset((MediaType.FRAME, MediaType.JSON, MediaType.NPZ))
"""Media types of any number of tensors."""

_SELF_DESCRIBED = _OF_SEVERAL | {MediaType.NPY}
"""Media types that say shape and type in the body."""

_U8 = datatypes.data_type("U8")


def check_output(plan: Plan, format_: RequestFormat, settings: Settings) -> None:
    """Refuse outputs that are too large, or that the media type cannot hold, before memory is reserved.

    Raises:
        LimitExceeded: output bytes, work, pixels or JSON elements are above their limits.
        NotAcceptable: the media type cannot hold several outputs, a data type, a shape, or strides and padding.
    """
    check_limits(plan, settings)
    media_type = format_.response
    if media_type not in _OF_SEVERAL and len(plan.outputs) != 1:
        names = ", ".join([slot.name for slot in plan.outputs])
        raise NotAcceptable(
            f"{media_type.value} holds one tensor, and {plan.operator} has the outputs {names}; "
            f"accept {MediaType.FRAME.value} or {MediaType.NPZ.value}"
        )
    for slot in plan.outputs:
        row = slot.layout.data_type
        if (
            (media_type in (MediaType.NPY, MediaType.NPZ) and row.numpy_name == "bfloat16")
            or (media_type is MediaType.FRAME and row.safetensors is None)
            or (media_type is MediaType.JSON and row.numpy_name.startswith("complex"))
        ):
            raise NotAcceptable(f"{media_type.value} cannot hold {row.numpy_name}; accept another media type")
        if media_type is not MediaType.FRAME and not slot.layout.packed:
            raise NotAcceptable(
                f"{media_type.value} holds packed tensors only, and {slot.name} has strides or padding; "
                f"accept {MediaType.FRAME.value}"
            )
    if media_type in IMAGE_TYPES:
        _check_picture(plan, format_, settings)
    if media_type is MediaType.JSON:
        elements = json_elements(plan)
        if elements > settings.max_json_elements:
            raise LimitExceeded.of(
                "the output as JSON numbers", elements, settings.max_json_elements,
                "TENSORPOST_MAX_JSON_ELEMENTS",
                f"elements, so accept {MediaType.NPY.value} or {MediaType.FRAME.value} for it",
            )  # fmt: skip


def _check_picture(plan: Plan, format_: RequestFormat, settings: Settings) -> None:
    """Refuse an output that is not a picture, or none of this format; the message names the forms that hold it."""
    slot, media_type, (layout, dtype) = plan.outputs[0], format_.response, format_.written
    sizes, row = slot.layout.sizes, slot.layout.data_type
    is_scaled = row.numpy_name in ("float32", "float16") and dtype is not None
    shape = _picture_shape(sizes, layout)
    if shape is None or (row.dtype.kind == "f" and not is_scaled):
        also = "; for pictures of 0 to 1 write image/png; dtype=float32" if shape is not None else ""
        raise NotAcceptable(
            f"the output is {row.numpy_name} of shape {list(sizes)}, and {media_type.value} with layout={layout} holds "
            f"one picture of uint8 or uint16 with 1 to 4 channels{also}; accept {MediaType.NPY.value} for any tensor; "
            f"{format_.written.axes}"
        )
    stored = np.dtype(np.uint8) if is_scaled else row.dtype
    reason = unwritable(stored, shape, media_type.name)
    if reason is not None:
        others = [each for each in IMAGE_TYPES if unwritable(stored, shape, each.name) is None]
        names = sorted([each.value for each in others if each.name in image_formats()])
        axes = "" if names else f"; {format_.written.axes}"
        hint = _repeated_channels(plan, layout)
        raise NotAcceptable(f"{reason}{hint}; accept {' or '.join([*names, MediaType.NPY.value])}{axes}")
    if shape[0] * shape[1] > settings.max_image_pixels:
        raise LimitExceeded.of(
            "the output as a picture", shape[0] * shape[1], settings.max_image_pixels, "TENSORPOST_MAX_IMAGE_PIXELS",
            f"pixels, so accept {MediaType.NPY.value} for it",
        )  # fmt: skip


def _picture_shape(sizes: Sequence[int], layout: str) -> tuple[int, int, int] | None:
    """Height, width and channels of a tensor that is one picture, with or without a batch of 1; None of any other."""
    sizes = sizes[1:] if len(sizes) == 4 and sizes[0] == 1 else sizes
    if len(sizes) == 2:
        return sizes[0], sizes[1], 1
    if len(sizes) != 3:
        return None
    return (sizes[0], sizes[1], sizes[2]) if layout == "NHWC" else (sizes[1], sizes[2], sizes[0])


def _repeated_channels(plan: Plan, layout: str) -> str:
    """A hint with the repeats in the right order, for a Tile whose repeats are in the order of the other layout."""
    desc = plan.operation
    if not isinstance(desc, TileOperatorDesc) or len(desc.repeats) != 4:
        return ""
    (count, *others), channels = desc.repeats, 1 if layout == "NCHW" else 3
    meant = [count, others[2], *others[:2]] if layout == "NCHW" else [count, *others[1:], others[0]]
    if desc.repeats[channels] == 1 or meant[channels] != 1:
        return ""
    had, has = desc.input_tensor.sizes[channels], desc.output_tensor.sizes[channels]
    given, wanted = (",".join(map(str, repeats)) for repeats in (desc.repeats, meant))
    return f"; repeats={given} repeats the channels as well, {had} become {has}; write repeats={wanted}"


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
    """Number of elements of all outputs, for the limit of JSON answers."""
    return sum([math.prod(slot.layout.sizes) for slot in plan.outputs])


def response_head(prepared: PreparedCall, worker: Worker, media_type: MediaType) -> PreparedHead:
    """The head of an npy, raw or frame response that this worker computes. A frame has its tensors in binding order."""
    plan = prepared.plan
    if media_type is MediaType.NPY:
        layout = plan.outputs[0].layout
        body_head = frame.encode_npy_head(layout.data_type, layout.sizes)
    elif media_type is MediaType.RAW:
        body_head = b""
    else:
        body_head = frame.encode_head([_frame_entry(slot) for slot in plan.outputs], _metadata(prepared, worker))
    return _head(worker, plan, media_type, body_head, len(body_head) + plan.output_bytes, inline=worker.is_small(plan))


def _frame_entry(slot: Slot) -> tuple[str, datatypes.DataType, tuple[int, ...]]:
    """A tensor in a frame; one with strides or padding travels as its raw bytes."""
    layout = slot.layout
    return (slot.name, layout.data_type, layout.sizes) if layout.packed else (slot.name, _U8, (layout.size_in_bytes,))


def whole_response_bytes(plan: Plan, media_type: MediaType) -> int:
    """Memory that `whole_response` takes, bytes: the outputs, the encoded body, and the encoder's working memory."""
    if media_type is MediaType.JSON:
        return json_elements(plan) * JSON_BYTES_PER_ELEMENT
    if media_type is MediaType.NPZ:
        return 3 * plan.output_bytes
    if media_type in IMAGE_TYPES:
        pixels = math.prod(plan.outputs[0].layout.sizes)  # one channel at least
        return 3 * plan.output_bytes + pixels * WORKING_BYTES_PER_PIXEL
    return 0


def whole_response(
    prepared: PreparedCall, format_: RequestFormat, worker: Worker, outputs: bytes
) -> tuple[PreparedHead, bytes]:
    """Head and body of a response of one of `BUFFERED_MEDIA_TYPES`.

    Args:
        prepared: the call.
        format_: the media types of the call, of which the response's is used.
        worker: the worker that computed it.
        outputs: the bytes of the outputs, one after the other.
    """
    media_type, slots = format_.response, prepared.plan.outputs
    arrays: dict[str, NDArray[Any]] = {}
    data = memoryview(outputs)
    for slot in slots:
        arrays[slot.name] = slot.layout.view(data[: slot.layout.size_in_bytes])
        data = data[slot.layout.size_in_bytes :]
    if media_type is MediaType.JSON:
        body = _json_body(prepared, arrays, _metadata(prepared, worker))
    elif media_type is MediaType.NPZ:
        body = _npz_body(arrays)
    else:
        body = _picture_body(arrays[slots[0].name], format_)
    return _head(worker, prepared.plan, media_type, b"", len(body), inline=True), body


def _json_body(prepared: PreparedCall, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> bytes:
    tensors: list[bytes] = []
    for (name, array), asked in zip(arrays.items(), prepared.operation.outputs, strict=True):
        if prepared.strings is not None and asked.layout.data_type.numpy_name == "str":
            texts = [element.decode() for element in prepared.strings.table.strings(array)]
            text = json.dumps(
                {"dtype": "string", "shape": list(array.shape), "data": texts}, ensure_ascii=False
            ).encode()
        else:
            text = tensor_json(array)
        tensors.append(b"%b: %b" % (json.dumps(name).encode(), text))
    document = json.dumps({**metadata, "op": json.loads(metadata["op"])}, allow_nan=False).encode()
    return b'%b, "tensors": {%b}}\n' % (document[:-1], b", ".join(tensors))


def tensor_json(array: NDArray[Any]) -> bytes:
    """A tensor as JSON text: `{"dtype": "F32", "shape": [2], "data": [0.1, 2.0]}`.

    Raises:
        NotAcceptable: NaN or infinity, which JSON cannot represent; complex numbers, text and other types.
    """
    try:
        members = {"dtype": json_type(array).safetensors, "shape": array.shape}
    except InvalidParameter as error:
        others = f"{MediaType.NPY.value} or {MediaType.FRAME.value}"
        raise NotAcceptable(f"the output: {error.detail}, as with Accept: {others}") from None
    return b'%b, "data": [%b]}' % (json.dumps(members).encode()[:-1], json_numbers(array))


def _npz_body(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An archive as `numpy.savez` writes it, which takes no tensor of the name `file`."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _picture_body(array: NDArray[Any], format_: RequestFormat) -> bytes:
    shape = _picture_shape(array.shape, format_.written.layout)
    assert shape is not None, "checked by _check_picture"
    if format_.written.layout == "NCHW" and array.ndim > 2:
        array = np.moveaxis(array, -3, -1)
    array = array.reshape(shape)
    if array.dtype.kind == "f":
        # The nearest of 0 to 255; what is outside of 0 to 1 is limited, and NaN is 0.
        scaled = np.nan_to_num(np.clip(array.astype(np.float32), 0, 1), nan=0)
        array = np.rint(np.multiply(scaled, 255, out=scaled), out=scaled).astype(np.uint8)
    return encode_picture(array, format_.response.name)


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
    """Metadata of a response: operation document, backend, device, and the call's id; kept in a saved frame."""
    document = prepared.operation.to_document_text()
    metadata = {"op": document, "backend": backend_name(worker, prepared.plan), "device": worker.backend.device}
    return metadata if prepared.id is None else metadata | {"id": prepared.id}


def backend_name(worker: Worker, plan: Plan) -> str:
    """The name of the backend, and the library that computes the plan in its place: `numba+numpy`.

    Answers, access log, metrics and traces have this one name.
    """
    library = worker.backend.library(plan)
    return f"{worker.backend.name}+{library}" if library else worker.backend.name


def _head(
    worker: Worker, plan: Plan, media_type: MediaType, body_head: bytes, length: int, *, inline: bool
) -> PreparedHead:
    backend = backend_name(worker, plan)
    headers = (
        (b"content-type", media_type.value.encode()),
        (b"content-length", str(length).encode()),
        (NO_SNIFFING[0].lower().encode(), NO_SNIFFING[1].encode()),
        (b"tensorpost-backend", backend.encode()),
        (b"tensorpost-device", worker.backend.device.encode()),
    )
    if media_type not in _SELF_DESCRIBED:
        layout = plan.outputs[0].layout
        headers += raw_tensor_fields(layout.data_type, layout.sizes)
    return PreparedHead(headers, field_lines(headers), body_head, backend, inline)


class ResponseSender:
    """Sends the response to one call.

    Args:
        send: the ASGI channel.
        request_id: the request's id.
        stages: the request's stages; `compute` is added here.
        timeout: longest wait for the caller to take a part, seconds.
        whole: the server's extension; None if it has none, or middleware may want to see the messages.
        watch: cancels the request's task when its caller disconnects.

    Attributes:
        begun: whether the response has begun; from then on its status cannot change.
        complete: whether all of it was handed to the server.
        sent_bytes: length of the body as far as it was sent, bytes.
        slices: how many slices of the output were sent.
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
