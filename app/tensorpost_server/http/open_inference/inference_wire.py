"""The wire of inferences: `POST /v2/models/{model}/infer`, with tensors as bytes, as JSON, or in shared memory."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from starlette.types import Scope

from tensorpost.bodies.json_tensor import tensor_from_json
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.strings import StringCall, StringTable, has_strings
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidFrame, InvalidParameter, LimitExceeded, TensorMismatch

from ...backends import DeviceMemory
from ...engine import Worker
from ..background_threads import CallerThreads
from ..calls.byte_strings import decode_strings, read_strings
from ..calls.call import Answer, Call, CallFormat, DeviceSource, OpenSink
from ..request_body import MOST_VALUE_BYTES, RequestBody
from ..wires.call_parser import read_query
from ..wires.held_inputs import CallerTensors, HeldReference
from ..wires.staged_calls import StagedCall, stage_call
from ..wires.wire import ReadContext
from .content_coding import Coding, decompressed
from .cuda_region import CudaRegion
from .infer_format import InferFormat, JsonPart
from .infer_request import InferInput, InferRequest, RegionPart, read_infer_request, refuse
from .inference_answer import InferenceAnswer, OutputForm, output_forms
from .model_operation import announced, graph_of, output_type
from .models import Model
from .shared_memory import INLINE_COPY_BYTES, AnyRegion, SharedMemory, read_region

_TEXT_BYTES = 160  # memory of a string and its places in lists and the table, beside its bytes

_PARAMETERS_OF_V1 = ("backend", "device", "keep", "replace", "rows")


CODEC = "tensorpost.inference_codec"
"""The key of the request's `InferenceCodec` in the ASGI scope; without it, heads are JSON."""


class InferenceCodec(Protocol):
    """How the heads of inferences and of their answers are written."""

    @property
    def key(self) -> bytes:
        """What decides the meaning of a request beside its head and the length of its body."""
        ...

    def read(self, head: bytes, binary_bytes: int) -> InferRequest:
        """Read the head of a request.

        Raises:
            InvalidRequest: it is malformed.
        """
        ...

    def answer(
        self, model: Model, id_: str, outputs: tuple[OutputForm, ...], coding: Coding | None
    ) -> InferenceAnswer:  # fmt: skip
        """The answer, whose head is written alike; see `InferenceAnswer`."""
        ...


class JsonCodec:
    """Heads are JSON. See `InferenceCodec`."""

    key = b"json"

    def read(self, head: bytes, binary_bytes: int) -> InferRequest:
        return read_infer_request(head, binary_bytes)

    def answer(
        self, model: Model, id_: str, outputs: tuple[OutputForm, ...], coding: Coding | None
    ) -> InferenceAnswer:  # fmt: skip
        return InferenceAnswer(model.name, model.version, id_, outputs, coding)


_JSON = JsonCodec()


class InferenceWire:
    """See `Wire`."""

    __slots__ = ("_codec", "_fields", "_model", "_regions", "_scope", "_slow_threads", "_tensors", "_used")

    takes_long = False
    needs_devices = True

    def __init__(
        self, model: Model, regions: SharedMemory, tensors: CallerTensors, scope: Scope, fields: Mapping[bytes, bytes]
    ) -> None:
        self._model, self._regions, self._tensors = model, regions, tensors
        self._scope, self._fields = scope, fields
        self._codec: InferenceCodec = scope.get(CODEC) or _JSON
        self._used: list[AnyRegion] = []
        self._slow_threads: CallerThreads | None = None

    @property
    def key(self) -> Hashable:
        return self._model.stored or self._model.name, self._codec.key

    def format(self, fields: Mapping[bytes, bytes], length: int) -> InferFormat:
        """See `Wire.format`: the length of the JSON part, and the content codings."""
        return InferFormat.from_headers(fields, length)

    async def open(self, slow_threads: CallerThreads) -> None:
        """See `Wire.open`: the model was found when the request was routed."""
        self._slow_threads = slow_threads

    def close(self) -> None:
        """See `Wire.close`: the regions of shared memory, and held tensors."""
        self._tensors.close()
        for region in self._used:
            region.release()

    async def open_sinks(self, answer: Answer) -> Sequence[OpenSink | None]:
        """See `Wire.open_sinks`: regions of shared memory."""
        assert isinstance(answer, InferenceAnswer)
        assert self._slow_threads is not None
        return [
            None if output.region is None
            else RegionSink(self._use(output.region), output.region, index, self._slow_threads)
            for index, output in enumerate(answer.outputs)
        ]  # fmt: skip

    async def finish_sinks(self) -> None:
        """See `Wire.finish_sinks`: the regions have their bytes."""

    def _use(self, part: RegionPart) -> AnyRegion:
        """Use a region of shared memory until the request ends."""
        region = self._regions.use(part, self._regions.check(self._scope, self._fields))
        self._used.append(region)
        return region

    async def read(self, context: ReadContext, format_: CallFormat) -> Call:
        assert isinstance(format_, InferFormat)
        if context.query:
            _refuse_parameters(self._model, context.query)
        settings, body = context.settings, context.body
        if format_.content_coding is not None:
            body = await _plain_body(context, format_.content_coding)
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
        if json_bytes:
            context.reserve(json_bytes)
            part = JsonPart(json_bytes)
            await body.feed(part, context.parsing)
            if part.head is None:
                raise InvalidFrame("the body ends within its JSON part")
            binary_bytes = body.length - json_bytes
            request = await context.parsing.run(context.large, self._codec.read, part.head, binary_bytes)
        else:
            request = _raw_request(self._model, body.length)
        small_tensors = self._model.small_tensors
        small = frozenset([tensor.name for tensor in request.inputs if tensor.name in small_tensors])
        for tensor in request.inputs:
            if tensor.name in small and tensor.packed_bytes > MOST_VALUE_BYTES:
                raise TensorMismatch(
                    f"tensor {tensor.name!r} has {tensor.packed_bytes:,} bytes; an attribute has at most "
                    f"{MOST_VALUE_BYTES:,}"
                )
        memory: dict[str, memoryview | DeviceSource] = {}
        table, is_decompressed = StringTable(), body is not context.body
        if is_decompressed or small or any(each.binary_bytes is None or each.is_text for each in request.inputs):
            memory = await self._read_tensors(context, request, body, table, small)
        return await context.parsing.run(
            context.large, self._call, request, memory, small, table, format_.response_coding
        )

    def _call(
        self, request: InferRequest, memory: Mapping[str, memoryview | DeviceSource], small: frozenset[str],
        table: StringTable, coding: Coding | None,
    ) -> Call:  # fmt: skip
        """The call that a request means."""
        model, worked_on = self._model, [tensor for tensor in request.inputs if tensor.name not in small]
        values = {
            tensor.name: Layout.row_major(tensor.data_type, tensor.shape).view(cast("memoryview", memory[tensor.name]))
            for tensor in request.inputs
            if tensor.name in small
        }
        tensors = [announced(model, tensor) for tensor in worked_on]
        graph, options, rest = graph_of(model, request.parameters, tensors, values)
        strings = None
        if not graph.output_names and has_strings(graph.operation):
            strings = StringCall(cast("OnnxNode", graph.operation), table)

        def answered(graph: Graph) -> Answer:
            rows = [output_type(model, worked_on, slot.layout.data_type) for slot in graph.output_slots]
            return self._codec.answer(model, request.id, output_forms(request, graph.output_slots, rows), coding)

        held = [memory[tensor.name] for tensor in worked_on] if memory else None
        if strings is not None and held is not None:
            held = read_strings(strings, tensors, held)
        if rest is not None:
            left = StagedCall(
                rest, [each.name for each in tensors], tensors, options, answered, timeout=request.timeout
            )
            return stage_call(graph, options, tensors, left, memory=held, timeout=request.timeout)
        stored = None if model.stored is None else model.stored.stored
        return Call(graph, options, tensors, answered(graph), held, None, strings, request.timeout, stored=stored)

    async def _read_tensors(
        self, context: ReadContext, request: InferRequest, body: RequestBody, table: StringTable, small: frozenset[str]
    ) -> dict[str, memoryview | DeviceSource]:
        """The bytes of every input, from wherever they are; of strings the numbers that stand for them."""
        sizes = {tensor.name: tensor.binary_bytes or 0 for tensor in request.inputs if tensor.binary_bytes is not None}
        ticket = context.reserve(sum(sizes.values()))
        memory = {name: ticket.memory(size) for name, size in sizes.items()}
        on_devices: dict[str, memoryview | DeviceSource] = {}
        await body.receive_into([*memory.values()])
        for tensor in request.inputs:
            if tensor.region is not None:
                region = self._use(tensor.region)
                if isinstance(region, CudaRegion) and not tensor.is_text and tensor.name not in small:
                    on_devices[tensor.name] = RegionSource(region, tensor.region)
                    continue
                ticket.grow(tensor.region.size)
                memory[tensor.name] = block = ticket.memory(tensor.region.size)
                await read_region(region, block, tensor.region.offset, context.slow_threads)
            elif tensor.held is not None:
                memory[tensor.name] = await self._held(context, tensor, tensor.held)
            elif tensor.content is not None:
                memory[tensor.name] = memoryview(tensor.content)
        for index, tensor in enumerate(request.inputs):
            if tensor.is_text:
                count = math.prod(tensor.shape)
                ticket.grow(count * _TEXT_BYTES + len(memory.get(tensor.name, b"")))
                raw = memory.get(tensor.name)
                memory[tensor.name] = await context.parsing.run(True, _numbers_of_strings, tensor, raw, index, table)
            elif tensor.data is not None:
                memory[tensor.name] = await context.parsing.run(context.large, _elements_from_json, tensor, index)
        return on_devices | memory

    async def _held(self, context: ReadContext, tensor: InferInput, reference: HeldReference) -> memoryview:
        """The bytes of an input that is a held tensor."""
        held = await self._tensors.read(tensor.name, reference, context)
        if held.layout.data_type is not tensor.data_type:
            found, said = held.layout.data_type.open_inference, tensor.data_type.open_inference
            refuse(reference.place, f"the held tensor {reference.name[:60]!r} is {found}, and the input says {said}")
        return held.data


@dataclass(frozen=True, slots=True)
class RegionSource:
    """An input in a region of a device. See `DeviceSource`."""

    region: CudaRegion
    part: RegionPart

    @property
    def worker(self) -> Worker:
        return self.region.worker

    @property
    def memory(self) -> DeviceMemory:
        return self.region.part(self.part.offset, self.part.size)

    async def read_into(self, target: memoryview) -> None:
        await self.region.read_into(target, self.part.offset)


@dataclass(frozen=True, slots=True)
class RegionSink:
    """A region that an output goes to. See `OpenSink`."""

    region: AnyRegion
    part: RegionPart
    output: int
    slow_threads: CallerThreads

    @property
    def worker(self) -> Worker | None:
        return self.region.worker if isinstance(self.region, CudaRegion) else None

    def device_memory(self, size_in_bytes: int) -> DeviceMemory:
        assert isinstance(self.region, CudaRegion)
        return self.region.part(self.part.offset, size_in_bytes)

    async def write(self, block: memoryview, begin: int) -> None:
        end = begin + len(block)
        if end > self.part.size:
            refuse(("outputs", self.output), f"the region should be at least {end:,} bytes to hold the results")
        if isinstance(self.region, CudaRegion):
            await self.region.write(block, self.part.offset + begin)
        else:
            large = len(block) > INLINE_COPY_BYTES
            await self.slow_threads.run(large, self.region.write, block, self.part.offset + begin)


async def _plain_body(context: ReadContext, coding: Coding) -> RequestBody:
    """The body without its coding."""
    settings, body = context.settings, context.body
    context.reserve(body.length)
    data = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
    plain = await decompressed(data, coding, settings.max_body_bytes, context.reserve, context.slow_threads)
    plain_body = RequestBody(body.receive, len(plain), settings.receive_timeout_seconds)
    plain_body.supply(plain)
    return plain_body


def _raw_request(model: Model, length: int) -> InferRequest:
    """The request that a body without any JSON stands for."""
    free = [size for tensor in model.inputs for size in tensor.shape if size < 0]
    fixed = math.prod([size for tensor in model.inputs for size in tensor.shape if size >= 0])
    is_text = any(not tensor.data_type.item_size for tensor in model.inputs)
    if len(model.inputs) != 1 or len(free) > 1 or (is_text and fixed != 1):
        raise InvalidParameter(
            f"model {model.name!r} takes no raw request: it needs one input with at most one free size, of strings a "
            "single one; send the JSON part, or make a preset with a shape"
        )
    tensor, count = model.inputs[0], 1
    if not is_text:
        known = fixed * tensor.data_type.item_size
        count, rest = divmod(length, known) if known else (0, length)
        if rest or (not free and count != 1):
            refuse(("inputs", 0), f"a raw body of model {model.name!r} has {known:,} bytes", length, f"{known:,} bytes")
    shape = tuple([count if size < 0 else size for size in tensor.shape])
    return InferRequest(
        "", {}, (InferInput(tensor.name, tensor.data_type, shape, binary_bytes=length),), binary_output=True
    )


def _refuse_parameters(model: Model, query: str) -> None:
    """Refuse parameters of the query that mean something in `/v1`; others are the protocol's users' own.

    Raises:
        InvalidParameter: there is one.
    """
    names = (*_PARAMETERS_OF_V1, *[tensor.name for tensor in model.inputs])
    if (found := next((name for name in read_query(query) if name in names), None)) is not None:
        raise InvalidParameter(
            f"an inference has no query parameter {found[:60]!r}; options and references to held tensors go into the "
            "JSON part, and keep and rows go with /v1",
            extra={"parameter": found[:60]},
        )


def _elements_from_json(tensor: InferInput, index: int) -> memoryview:
    """The bytes of a tensor that came as JSON."""
    path = ("inputs", index)
    document = {"dtype": tensor.data_type.open_inference, "shape": list(tensor.shape), "data": _leaves(tensor.data)}
    array = np.ascontiguousarray(tensor_from_json(document, path=path))
    return array.reshape(-1).view(np.uint8).data  # memoryview has no bfloat16


def _numbers_of_strings(tensor: InferInput, raw: memoryview | None, index: int, table: StringTable) -> memoryview:
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


def _leaves(data: object) -> list[object]:
    """The elements in a row, however they nest."""
    leaves: list[object] = []
    left = [data]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(reversed(cast("list[object]", node)))
        else:
            leaves.append(node)
    return leaves
