"""The answer to a call of one operator, in one of the media types: npy, raw, a frame, JSON, npz, or a picture."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost import datatypes, frame
from tensorpost.bodies.answer_rows import OutputRows
from tensorpost.bodies.images import WORKING_BYTES_PER_PIXEL, image_formats, unwritable
from tensorpost.bodies.json_tensor import json_type
from tensorpost.descriptors import TileOperatorDesc
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot
from tensorpost.values.problems import InvalidParameter, LimitExceeded, NotAcceptable

from ...child_processes.pictures import encode_picture
from ...engine import Worker
from ...planning import Plan
from ...settings import Settings
from ..calls.byte_strings import decode_strings
from ..calls.call import PreparedHead, Sink, prepared_head
from ..json_numbers import JSON_BYTES_PER_ELEMENT, json_numbers
from ..media_types import IMAGE_TYPES, MediaType, RequestFormat
from ..raw_tensor import raw_tensor_fields

_OF_SEVERAL = frozenset((MediaType.FRAME, MediaType.JSON, MediaType.NPZ))
"""Media types of any number of tensors."""

_SELF_DESCRIBED = _OF_SEVERAL | {MediaType.NPY}
"""Media types that say shape and type in the body."""

_OF_ROWS = (MediaType.NPY, MediaType.FRAME, MediaType.RAW)
"""Media types of some rows of an output."""

_U8 = datatypes.data_type("U8")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorAnswer:
    """See `Answer`.

    Attributes:
        format: its media type.
        graph: what is computed.
        id: the id that the caller gave its call.
        rows: begin and end of the rows that it has; None for all of each output.
        refusal: why no media type that the caller accepts can hold the outputs; None if one can, which is then that of
            `format`.
    """

    format: RequestFormat
    graph: Graph
    id: str | None
    rows: tuple[int, int | None] | None = None
    refusal: str | None = None

    @classmethod
    def of(
        cls, format_: RequestFormat, graph: Graph, id_: str | None, rows: tuple[int, int | None] | None = None
    ) -> OperatorAnswer:
        """The answer in the first media type that the caller accepts and that can hold the outputs."""
        if format_.unacceptable is not None:
            return cls(format_, graph, id_, rows, format_.unacceptable)
        first = None
        for choice in format_.choices:
            reason = _refusal(choice, graph, is_part=rows is not None)
            if reason is None:
                return cls(choice, graph, id_, rows)
            first = first or reason
        return cls(format_, graph, id_, rows, first)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """See `Answer.sinks`: all in the body."""
        return tuple([Sink(is_text=_is_text(slot)) for slot in self.graph.output_slots])

    @property
    def streams(self) -> bool:
        return self.format.response is not MediaType.JSON and not self.encodes

    @property
    def encodes(self) -> bool:
        return self.format.response is MediaType.NPZ or self.format.response in IMAGE_TYPES

    def check(self, plan: Plan, settings: Settings) -> None:
        """See `Answer.check`: several outputs, a data type, a shape, or strides that the media type cannot hold."""
        if self.refusal is not None:
            raise NotAcceptable(self.refusal)
        if self.format.response in IMAGE_TYPES:
            shape = _picture_shape(plan.outputs[0].layout.sizes, self.format.written.layout)
            assert shape is not None, "else it is refused"
            if shape[0] * shape[1] > settings.max_image_pixels:
                raise LimitExceeded.of(
                    "the output as a picture", shape[0] * shape[1], settings.max_image_pixels,
                    "TENSORPOST_MAX_IMAGE_PIXELS", f"pixels, so accept {MediaType.NPY.value} for it",
                )  # fmt: skip
        elements = self.json_elements(plan)
        if elements > settings.max_json_elements:
            raise LimitExceeded.of(
                "the output as JSON numbers", elements, settings.max_json_elements,
                "TENSORPOST_MAX_JSON_ELEMENTS",
                f"elements, so accept {MediaType.NPY.value} or {MediaType.FRAME.value} for it",
            )  # fmt: skip

    def json_elements(self, plan: Plan) -> int:
        if self.format.response is not MediaType.JSON:
            return 0
        return sum([math.prod(slot.layout.sizes) for slot in plan.outputs])

    def working_bytes(self, plan: Plan) -> int:
        """See `Answer.working_bytes`: the outputs, the encoded body, and what its encoder takes."""
        media_type = self.format.response
        if media_type is MediaType.JSON:
            return self.json_elements(plan) * JSON_BYTES_PER_ELEMENT
        if media_type is MediaType.NPZ:
            return 3 * plan.output_bytes
        if media_type in IMAGE_TYPES:
            pixels = math.prod(plan.outputs[0].layout.sizes)  # one channel at least
            return 3 * plan.output_bytes + pixels * WORKING_BYTES_PER_PIXEL
        return 0

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        """See `Answer.head`. A frame has its tensors in binding order."""
        media_type, body_head = self.format.response, b""
        rows = None if self.rows is None else OutputRows.of(plan.outputs[0].layout, *self.rows)
        slots = plan.outputs if rows is None else (replace(plan.outputs[0], layout=rows.layout),)
        if media_type is MediaType.NPY:
            layout = slots[0].layout
            body_head = frame.encode_npy_head(layout.data_type, layout.sizes)
        elif media_type is MediaType.FRAME:
            about = self._about(plan, worker)
            if rows is not None:
                about["rows"] = f"{rows.begin}:{rows.end}/{rows.count}"
            body_head = frame.encode_head([_frame_entry(slot) for slot in slots], {**self._document(), **about})
        length = len(body_head) + (plan.output_bytes if rows is None else rows.size_in_bytes)
        inline = rows is None and worker.is_small(plan)
        return self._head(plan, worker, body_head, length, inline=inline, layout=slots[0].layout)

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        """See `Answer.whole`: JSON, an archive, or a picture."""
        media_type = self.format.response
        if media_type is MediaType.JSON:
            body = self._json(plan, worker, outputs)
        else:
            arrays = {slot.name: slot.layout.view(data) for slot, data in zip(plan.outputs, outputs, strict=True)}
            is_archive = media_type is MediaType.NPZ
            body = _npz_body(arrays) if is_archive else _picture_body(next(iter(arrays.values())), self.format)
        return self._head(plan, worker, b"", len(body), inline=False), body

    def _json(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> bytes:
        tensors: list[bytes] = []
        for slot, asked, data in zip(plan.outputs, self.graph.output_slots, outputs, strict=True):
            if _is_text(asked):
                sizes = asked.layout.sizes
                texts = [element.decode() for element in decode_strings(memoryview(data), math.prod(sizes), slot.name)]
                members = {"dtype": "string", "shape": list(sizes), "data": texts}
                text = json.dumps(members, ensure_ascii=False).encode()
            else:
                text = tensor_json(slot.layout.view(data))
            tensors.append(b"%b: %b" % (json.dumps(slot.name).encode(), text))
        op = {member: json.loads(text) for member, text in self._document().items()}
        document = {**op, **self._about(plan, worker)}
        begin = json.dumps(document, allow_nan=False).encode()[:-1]
        return b'%b, "tensors": {%b}}\n' % (begin, b", ".join(tensors))

    def _document(self) -> dict[str, str]:
        """The operation that was understood; nothing for a graph, whose document the caller has."""
        return {} if self.graph.output_names else {"op": self.graph.operation.to_document_text()}

    def _about(self, plan: Plan, worker: Worker) -> dict[str, str]:
        """What an answer says of itself beside the operation: backend, device, and the call's id."""
        about = {"backend": worker.computed_by(plan), "device": worker.backend.device}
        return about if self.id is None else about | {"id": self.id}

    def _head(
        self, plan: Plan, worker: Worker, body_head: bytes, length: int, *, inline: bool, layout: Layout | None = None
    ) -> PreparedHead:
        media_type, fields = self.format.response, ()
        if media_type not in _SELF_DESCRIBED:
            layout = layout or plan.outputs[0].layout
            fields = raw_tensor_fields(layout.data_type, layout.sizes)
        return prepared_head(plan, worker, media_type.value, body_head, length, inline=inline, fields=fields)


def _is_text(slot: Slot) -> bool:
    return slot.layout.data_type.numpy_name == "str"


def _frame_entry(slot: Slot) -> tuple[str, datatypes.DataType, tuple[int, ...]]:
    """A tensor in a frame; one with strides or padding travels as its raw bytes."""
    layout = slot.layout
    return (slot.name, layout.data_type, layout.sizes) if layout.packed else (slot.name, _U8, (layout.size_in_bytes,))


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
                row = datatypes.data_type(array.dtype)
                if row.in_ml_dtypes:  # which NumPy would write as void
                    file.write(frame.encode_npy_head(row, array.shape))
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                else:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _picture_body(array: NDArray[Any], format_: RequestFormat) -> bytes:
    shape = _picture_shape(array.shape, format_.written.layout)
    assert shape is not None, "else it is refused"
    if format_.written.layout == "NCHW" and array.ndim > 2:
        array = np.moveaxis(array, -3, -1)
    array = array.reshape(shape)
    if array.dtype.kind == "f":
        # The nearest of 0 to 255; what is outside of 0 to 1 is limited, and NaN is 0.
        scaled = np.nan_to_num(np.clip(array.astype(np.float32), 0, 1), nan=0)
        array = np.rint(np.multiply(scaled, 255, out=scaled), out=scaled).astype(np.uint8)
    return encode_picture(array, format_.response.name)


def _refusal(format_: RequestFormat, graph: Graph, *, is_part: bool) -> str | None:
    """Why the outputs, or rows of one, cannot be written in the format's media type; None if they can."""
    media_type, slots = format_.response, graph.output_slots
    if media_type is not MediaType.JSON and any(map(_is_text, slots)):
        return f"{media_type.value} holds no strings; accept {MediaType.JSON.value}"
    if media_type not in _OF_SEVERAL and len(slots) != 1:
        names = ", ".join([slot.name for slot in slots])
        return (
            f"{media_type.value} holds one tensor, and {_name_of(graph)} has the outputs {names}; "
            f"accept {MediaType.FRAME.value} or {MediaType.NPZ.value}"
        )
    if is_part and media_type not in _OF_ROWS:
        return f"rows are sent as npy, a frame or raw bytes; accept {', '.join([each.value for each in _OF_ROWS])}"
    for slot in slots:
        row = slot.layout.data_type
        if (media_type is MediaType.FRAME and row.safetensors is None) or (
            media_type is MediaType.JSON and row.numpy_name.startswith("complex")
        ):
            return f"{media_type.value} cannot hold {row.numpy_name}; accept another media type"
        if media_type is not MediaType.FRAME and not slot.layout.packed:
            return (
                f"{media_type.value} holds packed tensors only, and {slot.name} has strides or padding; "
                f"accept {MediaType.FRAME.value}"
            )
    return _no_picture(format_, graph) if media_type in IMAGE_TYPES else None


def _name_of(graph: Graph) -> str:
    return "graph" if graph.output_names else graph.operation.name


def _no_picture(format_: RequestFormat, graph: Graph) -> str | None:
    """Why the output is not a picture, or none of this format, and the forms that hold it; None if it is one."""
    slot, media_type, (layout, dtype) = graph.output_slots[0], format_.response, format_.written
    sizes, row = slot.layout.sizes, slot.layout.data_type
    is_scaled = row.numpy_name in ("float32", "float16") and dtype is not None
    stored = np.dtype(np.uint8) if is_scaled else row.dtype
    shape = _picture_shape(sizes, layout)
    advice = ""
    turned = _picture_shape(sizes, "NHWC" if layout == "NCHW" else "NCHW")
    if turned not in (None, shape) and unwritable(stored, turned, media_type.name) is None:
        advice = f"; {format_.written.axes(media_type.value)}"
    if shape is None or (row.dtype.kind == "f" and not is_scaled):
        also = "; for pictures of 0 to 1 write image/png; dtype=float32" if shape is not None else ""
        return (
            f"the output is {row.numpy_name} of shape {list(sizes)}, and {media_type.value} with layout={layout} holds "
            f"one picture of uint8 or uint16 with 1 to 4 channels{also}; accept {MediaType.NPY.value} for any "
            f"tensor{advice}"
        )
    reason = unwritable(stored, shape, media_type.name)
    if reason is None:
        return None
    others = [each for each in IMAGE_TYPES if unwritable(stored, shape, each.name) is None]
    names = sorted([each.value for each in others if each.name in image_formats()])
    hint = _repeated_channels(graph, layout)
    return f"{reason}{hint}; accept {' or '.join([*names, MediaType.NPY.value])}{'' if hint else advice}"


def _picture_shape(sizes: Sequence[int], layout: str) -> tuple[int, int, int] | None:
    """Height, width and channels of a tensor that is one picture, with or without a batch of 1; None of any other."""
    sizes = sizes[1:] if len(sizes) == 4 and sizes[0] == 1 else sizes
    if len(sizes) == 2:
        return sizes[0], sizes[1], 1
    if len(sizes) != 3:
        return None
    return (sizes[0], sizes[1], sizes[2]) if layout == "NHWC" else (sizes[1], sizes[2], sizes[0])


def _repeated_channels(graph: Graph, layout: str) -> str:
    """A hint with the repeats in the right order, for a Tile whose repeats are in the order of the other layout."""
    desc = None if graph.output_names else graph.operation
    if not isinstance(desc, TileOperatorDesc) or len(desc.repeats) != 4:
        return ""
    (count, *others), channels = desc.repeats, 1 if layout == "NCHW" else 3
    meant = [count, others[2], *others[:2]] if layout == "NCHW" else [count, *others[1:], others[0]]
    if desc.repeats[channels] == 1 or meant[channels] != 1:
        return ""
    had, has = desc.input_tensor.sizes[channels], desc.output_tensor.sizes[channels]
    sent, wanted = (",".join(map(str, repeats)) for repeats in (desc.repeats, meant))
    return f"; repeats={sent} repeats the channels as well, {had} become {has}; write repeats={wanted}"
