"""Running an inference: the same steps, memory, queues and body path as a call of `/v1`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from tensorpost.onnx.strings import StringTable
from tensorpost.problems import InvalidFrame, InvalidParameter, LimitExceeded, TensorMismatch

from ...backends import DeviceMemory, Run, SharingBackend
from ...engine import Stages, Worker
from ...planning import Plan
from ..call_cache import CallFormat, PreparedCall, RequestKey, WholeMessages
from ..caller_watch import CallerWatch
from ..dialects import DIALECTS
from ..execution import Execution
from ..observability.request_record import Observation
from ..parse_call import MOST_VALUE_BYTES, ReadBody
from ..parse_threads import INLINE_JSON_ELEMENTS, INLINE_TEXT_BYTES
from ..request_body import RequestBody
from ..responses import JSON_BYTES_PER_TEXT_BYTE
from ..service import Service
from .byte_strings import encode_strings
from .content_coding import Coding, decompressed
from .cuda_region import CudaRegion
from .infer_format import InferFormat, JsonPart
from .infer_request import InferRequest, RegionPart, read_infer_request, refuse
from .infer_response import ResponseForm, streaming_head, whole_response
from .models import Model
from .prepared_inference import (
    PreparedInference,
    elements_from_json,
    numbers_of_strings,
    prepare_inference,
    raw_request,
)
from .shared_memory import AnyRegion
from .translation import small_tensor_names

__all__ = ["InferExecution"]

_INLINE_COPY_BYTES = 256 * 1024  # of shared memory, on the event loop's thread: some 50 microseconds
_TEXT_BYTES = 160  # memory of a string and its places in lists and the table, beside its bytes


class InferExecution(Execution):
    """One inference. See `Execution`.

    Args:
        service: the service of the application.
        scope: the ASGI scope of the request, with its id.
        fields: the header fields in it, by name.
        model: the model that is called.
        whole: the server's extension to send a whole response; see `Execution`.
        observation: takes note of what becomes known.
    """

    __slots__ = ("_device_inputs", "_in_place", "_model", "_regions", "_targets")

    def __init__(
        self, service: Service, scope: Scope, fields: Mapping[bytes, bytes], model: Model, whole: WholeMessages | None,
        observation: Observation,
    ) -> None:  # fmt: skip
        super().__init__(service, scope, fields, DIALECTS[model.dialect], model.name, whole, observation)
        self._model = model
        self._regions: list[AnyRegion] = []  # in use
        self._device_inputs: dict[str, tuple[CudaRegion, RegionPart]] = {}  # inputs that lie on a device, by name
        self._targets: list[AnyRegion | None] = []  # by output
        self._in_place = False  # whether the device puts all outputs into the caller's memory

    async def run(self, receive: Receive, send: Send) -> None:
        """See `Execution.run`."""
        try:
            await super().run(receive, send)
        finally:
            for region in self._regions:
                region.release()

    def _use(self, part: RegionPart) -> AnyRegion:
        """Use a region of shared memory until the request ends."""
        regions = self._service.inference.regions
        region = regions.use(part, regions.check(self._scope, self._fields))
        self._regions.append(region)
        return region

    def _format_of(self, length: int) -> InferFormat:
        return InferFormat.from_headers(self._fields, length)

    async def _prepare(
        self, key: RequestKey, body: RequestBody, stages: Stages, watch: CallerWatch
    ) -> tuple[PreparedCall, ReadBody]:
        del watch  # the tensors of most requests come after this
        prepared, names, read = await self._prepare_request(key, body, stages)
        form = prepared.form
        assert form is not None
        self._targets = [None if output.region is None else self._use(output.region) for output in form.outputs]
        regions = [region for region, _ in self._device_inputs.values()]
        regions += [region for region in self._targets if isinstance(region, CudaRegion)]
        return (await self._placed(prepared, names, read, regions[0].worker) if regions else prepared), read

    async def _placed(
        self, prepared: PreparedInference, names: Sequence[str], read: ReadBody, worker: Worker
    ) -> PreparedInference:
        """The inference on the device that its regions are of, unless the caller wants another or this one refuses it.

        Tensors of other regions, and those that another backend works on, pass through host memory.

        Args:
            prepared: the inference.
            names: names of the tensors in `read`.
            read: their memory; that of regions is empty, and is filled where it must be in host memory.
            worker: the worker of the regions' device.
        """
        plan, options = prepared.plan, prepared.options
        wanted, index = options.backend or self._service.workers().default, worker.backend.index
        runs = wanted in ("auto", worker.backend.name) and options.device in (None, index)
        runs = runs and worker.refusal_reason(plan) is None
        device_inputs: dict[int, DeviceMemory] = {}
        checked = -1 if plan.index_range is None else prepared.order[plan.index_range.input]  # is read on the host
        for name, (region, part) in self._device_inputs.items():
            at, size = names.index(name), prepared.sizes[names.index(name)]
            if runs and region.worker is worker and at != checked:
                device_inputs[at] = region.part(part.offset, size)
            else:
                assert read.memory is not None
                read.memory[at] = block = self._reserve(size).memory(size)
                await region.read_into(block, part.offset)
        if not runs:
            return prepared
        backend = cast("SharingBackend", worker.backend)
        targets = self._device_targets(prepared, worker)
        self._in_place = targets is not None

        def start(plan: Plan, inputs: Sequence[memoryview]) -> Run:
            blocks = [device_inputs.get(at, block) for at, block in zip(prepared.order, inputs, strict=True)]
            return backend.start_shared(plan, blocks, targets)

        self._start = start
        return replace(prepared, options=replace(options, backend=worker.backend.name, device=index))

    def _response_bytes(self, prepared: PreparedCall) -> int:
        """See `Execution._response_bytes`; what lies in shared memory is not in the response."""
        form = cast("PreparedInference", prepared).form
        assert form is not None
        return sum([output.size_in_bytes for output in form.outputs if output.wanted and output.region is None])

    def _device_targets(self, prepared: PreparedInference, worker: Worker) -> list[DeviceMemory | None] | None:
        """Where the worker's device puts the outputs; None if some are wanted elsewhere."""
        assert prepared.form is not None
        found: list[DeviceMemory | None] = []
        for output, region in zip(prepared.form.outputs, self._targets, strict=True):
            if not output.wanted:
                found.append(None)
                continue
            if not isinstance(region, CudaRegion) or region.worker is not worker or output.is_text:
                return None
            assert output.region is not None
            found.append(region.part(output.region.offset, output.size_in_bytes))
        return None if prepared.plan.slices.has_gaps else found

    async def _prepare_request(
        self, key: RequestKey, body: RequestBody, stages: Stages
    ) -> tuple[PreparedInference, list[str], ReadBody]:
        """The planned inference, the names of its tensors, and what was read of them."""
        format_ = cast("InferFormat", key.format)
        settings, threads = self._service.settings, self._parsing
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
        head, prepared = await self._known_call(key, body, stages)
        if prepared is not None:
            prepared = cast("PreparedInference", prepared)
            self._limit_wait(prepared.timeout)
            return prepared, [], ReadBody()
        large = json_bytes > INLINE_TEXT_BYTES
        if json_bytes:
            self._reserve(json_bytes)
            part = JsonPart(json_bytes)
            await body.feed(part, threads)
            if part.head is None:
                raise InvalidFrame("the body ends within its JSON part")
            request = await threads.run(large, read_infer_request, part.head, body.length - json_bytes)
        else:
            request = raw_request(self._model, body.length)
        self._limit_wait(request.timeout)
        small = small_tensor_names(self._model, request.inputs)
        for tensor in request.inputs:
            if tensor.name in small and tensor.packed_bytes > MOST_VALUE_BYTES:
                raise TensorMismatch(
                    f"tensor {tensor.name!r} has {tensor.packed_bytes:,} bytes; an attribute has at most "
                    f"{MOST_VALUE_BYTES:,}"
                )
        memory: dict[str, memoryview] = {}
        table = StringTable()
        if coded or small or any(tensor.binary_bytes is None or tensor.is_text for tensor in request.inputs):
            memory = await self._read_tensors(request, body, table, small)
        stages.done("head")
        prepared = await threads.run(
            large, prepare_inference, self._model, request, memory, small, table, format_.response_coding, settings
        )
        names = [tensor.name for tensor in request.inputs if tensor.name not in small]
        if not memory:
            self._keep_call(key, head, prepared)
            return prepared, names, ReadBody()
        return prepared, names, ReadBody([memory[name] for name in names])

    async def _plain_body(self, body: RequestBody, coding: Coding) -> RequestBody:
        """The body without its coding."""
        settings = self._service.settings
        self._reserve(body.length)
        data = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
        plain = await decompressed(data, coding, settings.max_body_bytes, self._reserve, self._slow_threads)
        found = RequestBody(body.receive, len(plain), settings.receive_timeout_seconds)
        found.supply(plain)
        return found

    async def _read_tensors(
        self, request: InferRequest, body: RequestBody, table: StringTable, small: frozenset[str]
    ) -> dict[str, memoryview]:
        """The bytes of every input, from wherever they are; of strings the numbers that stand for them.

        Inputs on a device that are worked on are empty: it is to be seen where they are wanted.
        """
        sizes = {tensor.name: tensor.binary_bytes or 0 for tensor in request.inputs if tensor.binary_bytes is not None}
        ticket = self._reserve(sum(sizes.values()))
        memory = {name: ticket.memory(size) for name, size in sizes.items()}
        await body.receive_into([*memory.values()])
        for tensor in request.inputs:
            if tensor.region is not None:
                region = self._use(tensor.region)
                if isinstance(region, CudaRegion) and not tensor.is_text and tensor.name not in small:
                    self._device_inputs[tensor.name] = (region, tensor.region)
                    memory[tensor.name] = memoryview(b"")
                    continue
                ticket.grow(tensor.region.size)
                memory[tensor.name] = block = ticket.memory(tensor.region.size)
                if isinstance(region, CudaRegion):
                    await region.read_into(block, tensor.region.offset)
                else:
                    large = len(block) > _INLINE_COPY_BYTES
                    await self._slow_threads.run(large, region.read_into, block, tensor.region.offset)
        for index, tensor in enumerate(request.inputs):
            if tensor.is_text:
                count = math.prod(tensor.shape)
                ticket.grow(count * _TEXT_BYTES + len(memory.get(tensor.name, b"")))
                raw = memory.get(tensor.name)
                memory[tensor.name] = await self._parsing.run(True, numbers_of_strings, tensor, raw, index, table)
            elif tensor.data is not None:
                memory[tensor.name] = elements_from_json(tensor, index)
        return memory

    async def _write(self, region: AnyRegion, block: memoryview, offset: int) -> None:
        """Copy bytes into a region, on a thread if that takes long."""
        if isinstance(region, CudaRegion):
            await region.write(block, offset)
        else:
            await self._slow_threads.run(len(block) > _INLINE_COPY_BYTES, region.write, block, offset)

    def _limit_wait(self, seconds: float | None) -> None:
        """Let the request end after `seconds`, unless its answer has begun; None sets no limit."""
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
                head = prepared.heads[worker] = streaming_head(form, plan, worker)
            await self._send_binary(head, prepared, worker, inputs)
            return
        kept = [bytearray() for _ in form.outputs]
        index = at = 0
        async for block in self._slices(prepared, worker, inputs):
            left = block  # empty where the device puts the outputs in place
            while left.nbytes:
                output = form.outputs[index]
                part, left = left[: output.size_in_bytes - at], left[output.size_in_bytes - at :]
                region = self._targets[index]
                if region is not None and output.region is not None and not output.is_text:
                    await self._write(region, part, output.region.offset + at)
                elif output.wanted:
                    kept[index] += part
                at += len(part)
                if at == output.size_in_bytes:
                    index, at = index + 1, 0
        if prepared.strings is not None:
            await self._put_strings(form, prepared.strings.table, kept)
        is_long = sum(map(len, kept)) > 1 << 20  # to join or to compress
        threads = self._slow_threads if is_long else self._parsing
        large = is_long or form.json_elements > INLINE_JSON_ELEMENTS
        await sender.whole(*await threads.run(large, whole_response, form, plan, worker, kept))

    async def _put_strings(self, form: ResponseForm, table: StringTable, kept: list[bytearray]) -> None:
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
            data = await self._parsing.run(True, _encoded, table, numbers)
            region, part = self._targets[index], output.region
            if region is not None and part is not None:
                if size > part.size:
                    refuse(("outputs", index), f"the region should be at least {size:,} bytes to hold the results")
                await self._write(region, memoryview(data), part.offset)
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


def _encoded(table: StringTable, numbers: NDArray[np.int64]) -> bytes:
    return encode_strings(table.strings(numbers))
