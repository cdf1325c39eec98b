"""Bodies of one tensor that is to be held, in any form that an input has, received into memory that was granted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorpost import frame
from tensorpost.bodies.frame import HeadReader, NpyHeadReader
from tensorpost.bodies.strict_json import read_json
from tensorpost.values.datatypes import DataType, data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import BodyMismatch, InvalidParameter, TensorMismatch

from ...engine import Ticket
from ...settings import Settings
from ..background_threads import CallerThreads
from ..encoded_bodies import Npz, Picture
from ..media_types import IMAGE_TYPES, MediaType, RequestFormat
from ..multipart import Multipart
from ..raw_tensor import DTYPE_FIELD, SHAPE_FIELD
from ..request_body import RequestBody, whole_json
from .call_parser import MOST_JSON_CONTAINERS

_INLINE_COPY_BYTES = 256 * 1024  # some 50 microseconds


class UploadContext(NamedTuple):
    """What receiving a tensor uses.

    Attributes:
        body: the request's.
        ticket: the request's memory beside the tensor.
        room: returns memory for a tensor of this type and these sizes, or refuses it.
    """

    body: RequestBody
    ticket: Ticket
    room: Callable[[Layout], Awaitable[memoryview]]
    settings: Settings
    parsing: CallerThreads
    slow_threads: CallerThreads


def upload_format(fields: Mapping[bytes, bytes], parameters: dict[str, str], length: int) -> RequestFormat:
    """How the body is read. Of raw bytes, `data_type` and `sizes` of the query say what they are.

    Args:
        fields: the header fields.
        parameters: the query's, of which both are taken.
        length: bytes of the body.

    Raises:
        UnsupportedMediaType: there is no Content-Type, or none that is read here.
        InvalidParameter: raw bytes without a type or sizes, or these of another body.
    """
    given = {
        field.lower().encode(): parameters.pop(name).encode()
        for name, field in (("data_type", DTYPE_FIELD), ("sizes", SHAPE_FIELD))
        if name in parameters
    }
    known = {name: value for name, value in fields.items() if name != b"accept"}
    if given and MediaType.RAW.value.encode() != fields.get(b"content-type", b"").strip():
        raise InvalidParameter(
            f"data_type and sizes describe raw bytes; send them as Content-Type: {MediaType.RAW.value}",
            extra={"parameter": "data_type"},
        )
    if twice := [name for name in given if name in known]:
        raise InvalidParameter(f"{twice[0].decode()} is sent in the query and as a header field; send it once")
    return RequestFormat.from_headers({**known, **given}, length)


async def receive_tensor(context: UploadContext, format_: RequestFormat) -> None:
    """Receive the tensor.

    Raises:
        TensorMismatch: the body has none, several, or one of strings.
        TensorpostError: the body is malformed, or there is no room.
    """
    body, settings, media_type = context.body, context.settings, format_.request
    if not body.length and format_.raw is None:
        raise BodyMismatch("the body is empty; it holds the tensor that is to be held")
    if media_type is MediaType.JSON:
        await _of_json(context)
    elif media_type in IMAGE_TYPES or media_type in (MediaType.NPZ, MediaType.MULTIPART):
        await _of_encoded(context, format_)
    elif format_.raw is not None:
        row, shape = format_.raw
        if body.length != format_.raw.size_in_bytes:
            raise BodyMismatch(
                f"the body has {body.length:,} bytes, but {row.numpy_name} of sizes {list(shape)} has "
                f"{format_.raw.size_in_bytes:,}"
            )
        await body.receive_into([await _room(context, row, shape)])
    elif media_type is MediaType.FRAME:
        context.ticket.grow(min(body.length, settings.max_head_bytes))
        reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.feed(reader, context.parsing)
        entries = reader.finish().tensors
        _one([entry.name for entry in entries])
        await body.receive_into([await _room(context, entries[0].data_type, entries[0].shape)])
    else:
        npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.feed(npy, context.parsing)
        head = npy.finish()
        await body.receive_into([await _room(context, head.data_type, head.shape)])


async def _of_json(context: UploadContext) -> None:
    """`{"dtype": "F32", "shape": [2], "data": [1, 2]}`."""
    text = await whole_json(context.body, context.settings, context.ticket.grow)
    sent = await context.slow_threads.run(True, read_json, text, max_containers=MOST_JSON_CONTAINERS)
    array = await context.slow_threads.run(True, frame.tensor_from_json, sent)
    if array.dtype.kind == "O":
        raise TensorMismatch("the tensor holds strings; held tensors are numbers")
    memory = await _room(context, data_type(array.dtype), array.shape)
    await context.slow_threads.run(
        len(memory) > _INLINE_COPY_BYTES, np.copyto,
        np.frombuffer(memory, np.uint8), np.ascontiguousarray(array).reshape(-1).view(np.uint8),
    )  # fmt: skip


async def _of_encoded(context: UploadContext, format_: RequestFormat) -> None:
    """A picture, or an npz archive or parts with one array."""
    body, settings, threads, media_type = context.body, context.settings, context.slow_threads, format_.request
    context.ticket.grow(2 * body.length)  # as it arrives, and as what reads it holds it
    content = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
    if media_type is MediaType.NPZ:
        encoded = await threads.run(True, Npz.read, content, settings, _numbered)
    elif media_type is MediaType.MULTIPART:
        encoded = await threads.run(True, Multipart.read, content, format_.boundary, [], format_.read, settings)
    else:
        encoded = await threads.run(True, Picture.read, content, media_type.value, "tensor", format_.read, settings)
    _one([name for name, _, _ in encoded.tensors])
    ((_, row, shape),) = encoded.tensors
    context.ticket.grow(encoded.working_bytes)
    await threads.run(True, encoded.decode_into, [await _room(context, row, shape)])


def _numbered(count: int) -> list[str]:
    return [f"arr_{index}" for index in range(count)]


def _one(names: Sequence[str]) -> None:
    if len(names) != 1:
        found = ", ".join([repr(name[:60]) for name in names[:8]]) or "none"
        raise TensorMismatch(
            f"the body must have one tensor, which is then held by its name in the path; it has {found}"
        )


async def _room(context: UploadContext, row: DataType, shape: Sequence[int]) -> memoryview:
    if not row.item_size:
        raise TensorMismatch("the tensor holds strings; held tensors are numbers")
    return await context.room(Layout.row_major(row, shape))
