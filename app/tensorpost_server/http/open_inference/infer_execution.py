"""Running an inference: the same steps, memory, queues and body path as a call of `/v1`."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from tensorpost.json_tensor import tensor_from_json
from tensorpost.layout import Layout
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.strings import StringCall, StringTable, has_strings, numbers_node
from tensorpost.problems import InvalidFrame, InvalidParameter, LimitExceeded

from ...engine import Stages, Worker
from ...planning import Plan, make_plan
from ...settings import Settings
from ..access.browser_requests import NO_SNIFFING
from ..call_cache import MOST_KEY_BYTES, CallFormat, PreparedCall, PreparedHead, RequestKey, WholeMessages, field_lines
from ..caller_watch import CallerWatch
from ..dialects import DIALECTS
from ..execution import Execution
from ..observability.request_record import Observation
from ..parse_call import MOST_VALUE_BYTES, AnnouncedTensor, ReadBody, RunOptions
from ..parse_threads import INLINE_JSON_ELEMENTS, INLINE_TEXT_BYTES
from ..request_body import RequestBody
from ..responses import JSON_BYTES_PER_ELEMENT, JSON_BYTES_PER_TEXT_BYTE, backend_name, check_limits, slices_bytes
from ..service import Service
from .byte_strings import decode_strings, encode_strings
from .content_coding import Coding, compressed, decompressed, request_coding, response_coding
from .infer_request import InferInput, InferRequest, RegionPart, read_infer_request, refuse
from .infer_response import ResponseForm, json_data, response_form
from .models import Model
from .shared_memory import Region
from .translation import announced, operation_of, output_type, small_tensor_names

__all__ = ["InferExecution", "InferFormat"]

_INLINE_COPY_BYTES = 256 * 1024  # of shared memory, on the event loop's thread: some 50 microseconds
_TEXT_BYTES = 160  # memory of a string and its places in lists and the table, beside its bytes
_JSON_LENGTH = b"inference-header-content-length"


class InferFormat(NamedTuple):
    """What the header fields of an inference say about its body and its response; see `CallFormat`.

    Attributes:
        json_bytes: length of the JSON part, which the tensors' bytes follow; None if the whole body is JSON.
        content_coding: of the request's body; None for none.
        response_coding: of the response's body; None for none.
    """

    json_bytes: int | None
    content_coding: Coding | None
    response_coding: Coding | None

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes], length: int) -> InferFormat:
        """The format that the header fields name.

        Raises:
            InvalidParameter: Inference-Header-Content-Length is no number, or more than the body has.
            UnsupportedMediaType: another Content-Encoding than gzip and deflate.
        """
        sent, coding = fields.get(_JSON_LENGTH), request_coding(fields.get(b"content-encoding"))
        json_bytes = None
        if sent is not None:
            digits = sent.strip()
            if not digits.isdigit() or len(digits) > 18:
                raise InvalidParameter(
                    f"Inference-Header-Content-Length {sent[:40].decode('latin-1')!r} is no number of bytes"
                )
            json_bytes = int(digits)
            if coding is None and json_bytes > length:
                raise InvalidParameter(
                    f"Inference-Header-Content-Length is {json_bytes:,}, but the body has {length:,} bytes"
                )
        return cls(json_bytes, coding, response_coding(fields.get(b"accept-encoding")))

    @property
    def may_replay(self) -> bool:
        """See `CallFormat.may_replay`."""
        return bool(self.json_bytes) and self.content_coding is None and self.response_coding is None

    def head_length(self, begin: bytes | memoryview) -> int:
        """See `CallFormat.head_length`."""
        length = self.json_bytes or 0
        return length if self.may_replay and length <= MOST_KEY_BYTES and length <= len(begin) else 0


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInference(PreparedCall):
    """A planned inference.

    Attributes:
        form: how the outputs come back.
        timeout: how long it may wait until its answer begins, seconds; None for as long as it takes.
    """

    form: ResponseForm | None = None
    timeout: float | None = None


class _JsonPart:
    """Collects the JSON part of a body from pieces; see `HeadCollector`."""

    def __init__(self, length: int) -> None:
        self.head: bytes | None = None
        self.wanted = length
        self._collected = bytearray()

    @property
    def missing(self) -> int:
        return self.wanted - len(self._collected)

    def feed(self, data: bytes | memoryview) -> int:
        part = memoryview(data)[: self.missing]
        self._collected += part
        if not self.missing:
            self.head = bytes(self._collected)
        return len(part)


class InferExecution(Execution):
    """One inference. See `Execution`.

    Args:
        service: of the application.
        scope: the ASGI scope of the request, with its id.
        fields: the header fields in it, by name.
        model: that is called.
        whole: as for `Execution`.
        observation: takes note of what becomes known.
    """

    __slots__ = ("_model", "_regions")

    def __init__(
        self, service: Service, scope: Scope, fields: Mapping[bytes, bytes], model: Model, whole: WholeMessages | None,
        observation: Observation,
    ) -> None:  # fmt: skip
        super().__init__(service, scope, fields, DIALECTS[model.dialect], model.name, whole, observation)
        self._model = model
        self._regions: list[Region] = []  # in use

    async def run(self, receive: Receive, send: Send) -> None:
        """See `Execution.run`."""
        try:
            await super().run(receive, send)
        finally:
            for region in self._regions:
                region.release()

    def _use(self, part: RegionPart) -> Region:
        """Use a region of shared memory until the request ends."""
        regions = self._service.inference.regions
        region = regions.use(part, regions.check(self._scope, self._fields))
        self._regions.append(region)
        return region

    def _format_of(self, length: int) -> InferFormat:
        return InferFormat.of(self._fields, length)

    async def _prepare(
        self, key: RequestKey, body: RequestBody, stages: Stages, watch: CallerWatch
    ) -> tuple[PreparedCall, ReadBody]:
        del watch  # the tensors of most requests come after this
        format_ = cast("InferFormat", key.format)
        calls, settings, threads = self._service.calls, self._service.settings, self._service.parsing
        coded = format_.content_coding is not None
        if format_.content_coding is not None:
            body = await self._plain_body(body, format_.content_coding)
        json_bytes = body.length if format_.json_bytes is None else format_.json_bytes
        if json_bytes > body.length:
            raise InvalidParameter(
                f"Inference-Header-Content-Length is {json_bytes:,}, but the plain body has {body.length:,} bytes"
            )
        if json_bytes > settings.max_json_bytes:
            raise LimitExceeded.of(
                "the JSON part", json_bytes, settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES",
                "bytes, so send tensors as binary data",
            )  # fmt: skip
        head = b""
        large = json_bytes > INLINE_TEXT_BYTES
        if json_bytes:
            if not coded and format_.may_replay:
                begin = await body.peek()
                length = format_.head_length(begin)
                head = bytes(begin[:length])
                prepared = calls.get((key, head)) if length else None
                if prepared is not None:
                    body.skip(length)
                    stages.done("head")
                    self._limit_wait(cast("PreparedInference", prepared).timeout)
                    return prepared, ReadBody()
            self._reserve(json_bytes)
            part = _JsonPart(json_bytes)
            await body.feed(part, threads)
            if part.head is None:
                raise InvalidFrame("the body ends within its JSON part")
            request = await threads.run(large, read_infer_request, part.head, body.length - json_bytes)
        else:
            request = _raw_request(self._model, body.length)
        self._limit_wait(request.timeout)
        small = small_tensor_names(self._model, request.inputs)
        for tensor in request.inputs:
            if tensor.name in small and tensor.packed_bytes > MOST_VALUE_BYTES:
                raise InvalidFrame(
                    f"tensor {tensor.name!r} has {tensor.packed_bytes:,} bytes; an attribute has at most "
                    f"{MOST_VALUE_BYTES:,}"
                )
        memory: dict[str, memoryview] = {}
        table = StringTable()
        if coded or small or any(tensor.binary_bytes is None or _is_text(tensor) for tensor in request.inputs):
            memory = await self._read_tensors(request, body, table)
        stages.done("head")
        prepared = await threads.run(
            large, _prepare_inference, self._model, request, memory, small, table, format_.response_coding, settings
        )
        if head and not memory and len(key.query) + len(head) <= MOST_KEY_BYTES:
            calls.put((key, head), prepared)
        found = [memory[tensor.name] for tensor in request.inputs if tensor.name not in small] if memory else None
        return prepared, ReadBody(found)

    async def _plain_body(self, body: RequestBody, coding: Coding) -> RequestBody:
        """The body without its coding."""
        settings = self._service.settings
        self._reserve(body.length)
        data = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
        plain = await decompressed(data, coding, settings.max_body_bytes, self._reserve, self._service.parsing)
        found = RequestBody(body.receive, len(plain), settings.receive_timeout_seconds)
        found.supply(plain)
        return found

    async def _read_tensors(
        self, request: InferRequest, body: RequestBody, table: StringTable
    ) -> dict[str, memoryview]:
        """The bytes of every input, from wherever they are; of strings the numbers that stand for them."""
        sizes = {tensor.name: tensor.binary_bytes or 0 for tensor in request.inputs if tensor.binary_bytes is not None}
        ticket = self._reserve(sum(sizes.values()))
        memory = {name: ticket.memory(size) for name, size in sizes.items()}
        await body.receive_into([*memory.values()])
        for tensor in request.inputs:
            if tensor.region is not None:
                region = self._use(tensor.region)
                ticket.grow(tensor.packed_bytes)
                memory[tensor.name] = block = ticket.memory(tensor.packed_bytes)
                large = len(block) > _INLINE_COPY_BYTES
                await self._service.parsing.run(large, region.read_into, block, tensor.region.offset)
        for index, tensor in enumerate(request.inputs):
            if _is_text(tensor):
                count = math.prod(tensor.shape)
                ticket.grow(count * _TEXT_BYTES + len(memory.get(tensor.name, b"")))
                raw = memory.get(tensor.name)
                memory[tensor.name] = await self._service.parsing.run(True, _numbers_of, tensor, raw, index, table)
            elif tensor.data is not None:
                memory[tensor.name] = _from_json(tensor, index)
        return memory

    def _limit_wait(self, seconds: float | None) -> None:
        """Let the request end after so many seconds, unless its answer has begun."""
        if seconds is not None:
            end = asyncio.get_running_loop().time() + seconds
            before = self._limit.when()
            self._limit.reschedule(end if before is None else min(before, end))

    async def _respond(
        self, prepared: PreparedCall, format_: CallFormat, worker: Worker, inputs: Sequence[memoryview]
    ) -> None:
        del format_
        assert isinstance(prepared, PreparedInference)
        form, plan, sender = prepared.form, prepared.plan, self.sender
        assert form is not None
        assert sender is not None
        if form.streams:
            head = prepared.heads.get(worker)
            if head is None:
                head = prepared.heads[worker] = _streaming_head(form, plan, worker)
            await self._send_binary(head, prepared, worker, inputs)
            return
        targets = [None if output.region is None else self._use(output.region) for output in form.outputs]
        kept = [bytearray() for _ in form.outputs]
        index = at = 0
        async for block in self._slices(prepared, worker, inputs):
            left = block
            while left.nbytes:
                output = form.outputs[index]
                part, left = left[: output.size_in_bytes - at], left[output.size_in_bytes - at :]
                region = targets[index]
                if region is not None and output.region is not None and not output.is_text:
                    large = len(part) > _INLINE_COPY_BYTES
                    await self._service.parsing.run(large, region.write, part, output.region.offset + at)
                elif output.wanted:
                    kept[index] += part
                at += len(part)
                if at == output.size_in_bytes:
                    index, at = index + 1, 0
        if prepared.strings is not None:
            await self._put_strings(form, prepared.strings.table, kept, targets)
        large = sum(map(len, kept)) > 1 << 20 or form.json_elements > INLINE_JSON_ELEMENTS
        await sender.whole(*await self._service.parsing.run(large, _whole_response, form, plan, worker, kept))

    async def _put_strings(
        self, form: ResponseForm, table: StringTable, kept: list[bytearray], targets: Sequence[Region | None]
    ) -> None:
        """Put strings in the place of the numbers in the outputs that were kept."""
        for index, output in enumerate(form.outputs):
            if not output.is_text or not output.wanted:
                continue
            numbers = np.frombuffer(kept[index], np.int64)
            size = table.total_bytes(numbers) + 4 * numbers.size
            most = self._service.settings.max_output_bytes
            if size > most:
                raise LimitExceeded.of("the output", size, most, "TENSORPOST_MAX_OUTPUT_BYTES")
            self._reserve(JSON_BYTES_PER_TEXT_BYTE * size)
            data = await self._service.parsing.run(True, _encoded, table, numbers)
            region, part = targets[index], output.region
            if region is not None and part is not None:
                if size > part.size:
                    refuse(("outputs", index), f"the region should be at least {size:,} bytes to hold the results")
                region.write(memoryview(data), part.offset)
            else:
                kept[index] = bytearray(data)

    def _slices(
        self, prepared: PreparedCall, worker: Worker, inputs: Sequence[memoryview]
    ) -> AsyncGenerator[memoryview]:
        slices = super()._slices(prepared, worker, inputs)
        if cast("PreparedInference", prepared).timeout is None:
            return slices
        return self._without_limit(slices)

    async def _without_limit(self, slices: AsyncGenerator[memoryview]) -> AsyncGenerator[memoryview]:
        """The slices; with the first one the wait is over."""
        try:
            async for block in slices:
                self._limit.reschedule(None)
                yield block
        finally:
            await slices.aclose()


def _raw_request(model: Model, length: int) -> InferRequest:
    """The request that a body without any JSON stands for.

    Raises:
        InvalidParameter: the model has not one input with at most one free size.
    """
    free = [size for tensor in model.inputs for size in tensor.shape if size < 0]
    if len(model.inputs) != 1 or len(free) > 1:
        raise InvalidParameter(
            f"model {model.name!r} takes no raw request: it needs one input with at most one free size; send the JSON "
            "part, or make a preset with a shape"
        )
    tensor = model.inputs[0]
    known = tensor.data_type.item_size
    for size in tensor.shape:
        known *= size if size >= 0 else 1
    count, rest = divmod(length, known) if known else (0, length)
    if rest or (not free and count != 1):
        refuse(("inputs", 0), f"a raw body of model {model.name!r} has {known:,} bytes", length, f"{known:,} bytes")
    shape = tuple([count if size < 0 else size for size in tensor.shape])
    return InferRequest(
        "", {}, (InferInput(tensor.name, tensor.data_type, shape, binary_bytes=length),), binary_output=True
    )


def _from_json(tensor: InferInput, index: int) -> memoryview:
    """The bytes of a tensor that came as JSON."""
    path = ("inputs", index)
    document = {"dtype": tensor.data_type.open_inference, "shape": list(tensor.shape), "data": _leaves(tensor.data)}
    array = np.ascontiguousarray(tensor_from_json(document, path=path))
    return array.reshape(-1).view(np.uint8).data  # memoryview has no bfloat16


def _is_text(tensor: InferInput) -> bool:
    return not tensor.data_type.item_size


def _numbers_of(tensor: InferInput, raw: memoryview | None, index: int, table: StringTable) -> memoryview:
    """The numbers that stand for the elements of a BYTES tensor."""
    count = math.prod(tensor.shape)
    if raw is not None:
        elements = decode_strings(raw, count, tensor.name)
    else:
        leaves = _leaves(tensor.data)
        if len(leaves) != count or not all(isinstance(leaf, str) for leaf in leaves):
            message = f"has {len(leaves):,} elements; {count:,} texts were expected"
            refuse(("inputs", index, "data"), message, None, f"{count:,} texts")
        elements = [leaf.encode() for leaf in cast("list[str]", leaves)]
    return table.numbers(elements).view(np.uint8).data


def _encoded(table: StringTable, numbers: NDArray[np.int64]) -> bytes:
    return encode_strings(table.strings(numbers))


def _leaves(data: object) -> list[object]:
    """The elements in a row, however they nest."""
    found: list[object] = []
    left = [data]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(reversed(cast("list[object]", node)))
        else:
            found.append(node)
    return found


def _prepare_inference(
    model: Model, request: InferRequest, memory: Mapping[str, memoryview], small: frozenset[str],
    table: StringTable, coding: Coding | None, settings: Settings,
) -> PreparedInference:  # fmt: skip
    """Translate and plan an inference.

    Raises:
        InvalidRequest: it is malformed.
        LimitExceeded: the plan is above a limit.
    """
    worked_on = [tensor for tensor in request.inputs if tensor.name not in small]
    values = {tensor.name: _values(tensor, memory[tensor.name]) for tensor in request.inputs if tensor.name in small}
    tensors = [announced(model, tensor) for tensor in worked_on]
    operation, options = operation_of(model, request.parameters, tensors, values)
    strings = StringCall(cast("OnnxNode", operation), table) if has_strings(operation) else None
    plan = make_plan(operation if strings is None else numbers_node(strings.node), settings.slice_bytes)
    check_limits(plan, settings)
    rows = [output_type(model, worked_on, slot.layout.data_type) for slot in operation.outputs]
    form = response_form(model, request, plan.outputs, rows, coding, settings.max_json_elements)
    return _prepared(options, plan, form, tensors, bool(memory), request.timeout, strings, settings)


def _prepared(
    options: RunOptions, plan: Plan, form: ResponseForm, tensors: Sequence[AnnouncedTensor],
    in_memory: bool, timeout: float | None, strings: StringCall | None, settings: Settings,
) -> PreparedInference:  # fmt: skip
    sizes = tuple([tensor.size_in_bytes for tensor in tensors])
    index_of = {tensor.name: index for index, tensor in enumerate(tensors)}
    order = tuple([index_of[slot.name] for slot in plan.inputs])
    starts = [*itertools.accumulate(sizes, initial=0)]
    aligned = all(
        starts[at] % slot.layout.data_type.item_size == 0 for at, slot in zip(order, plan.inputs, strict=True)
    )
    memory_bytes = slices_bytes(plan, settings) + (0 if in_memory else sum(sizes))
    if not form.streams:
        memory_bytes += sum([output.size_in_bytes for output in form.outputs if output.region is None])
        memory_bytes += form.json_elements * JSON_BYTES_PER_ELEMENT
        memory_bytes += plan.output_bytes if form.coding else 0
    return PreparedInference(
        plan, options, form.id or None, sizes, order, aligned, memory_bytes, strings=strings, form=form, timeout=timeout
    )


def _values(tensor: InferInput, block: memoryview) -> NDArray[Any]:
    return Layout.row_major(tensor.data_type, tensor.shape).view(block)


def _streaming_head(form: ResponseForm, plan: Plan, worker: Worker) -> PreparedHead:
    body_head, json_bytes = form.head()
    length = len(body_head) + plan.output_bytes
    return _head(form, plan, worker, body_head, json_bytes, length, inline=worker.is_small(plan))


def _head(
    form: ResponseForm, plan: Plan, worker: Worker, body_head: bytes, json_bytes: int, length: int, *, inline: bool
) -> PreparedHead:
    fields = [
        (b"content-type", b"application/octet-stream" if json_bytes else b"application/json"),
        (b"content-length", str(length).encode()),
        (NO_SNIFFING[0].lower().encode(), NO_SNIFFING[1].encode()),
        (b"tensorpost-backend", backend_name(worker, plan).encode()),
        (b"tensorpost-device", worker.backend.device.encode()),
    ]
    if json_bytes:
        fields.append((_JSON_LENGTH, str(json_bytes).encode()))
    if form.coding is not None:
        fields.append((b"content-encoding", form.coding.encode()))
    return PreparedHead(tuple(fields), field_lines(fields), body_head, inline)


def _whole_response(
    form: ResponseForm, plan: Plan, worker: Worker, kept: Sequence[bytearray]
) -> tuple[PreparedHead, bytes]:
    """The response made of all outputs; `kept` holds the bytes of each that is in the body."""
    data: list[str | None] = []
    binary: list[bytearray] = []
    for each, own in zip(form.outputs, kept, strict=True):
        as_json = each.wanted and not each.binary and each.region is None
        data.append(json_data(each, memoryview(own)) if as_json else None)
        if each.wanted and each.binary:
            binary.append(own)
    body_head, json_bytes = form.head(data, [len(own) for own in kept])
    parts = [body_head, *binary]
    body = b"".join(parts) if form.coding is None else compressed(parts, form.coding)
    return _head(form, plan, worker, b"", json_bytes, len(body), inline=False), body
