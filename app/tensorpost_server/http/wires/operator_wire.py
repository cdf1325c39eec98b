"""The wire of operators and ONNX nodes: an operation in query, frame or JSON, and tensors in one of the media types."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from tensorpost import frame
from tensorpost.bodies.answer_rows import read_rows
from tensorpost.bodies.frame import HeadReader, NpyHeadReader
from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.strings import StringCall, StringTable, has_strings
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    BodyMismatch,
    InvalidDescriptor,
    InvalidJson,
    InvalidParameter,
    TensorMismatch,
    TensorpostError,
    Violation,
)

from ..background_threads import CallerThreads
from ..calls.byte_strings import read_strings
from ..calls.call import AnnouncedTensor, Answer, Call, CallFormat, Encoded, OpenSink
from ..declared_pictures import DeclaredInputs, as_declared, channel_violations, explain, other_media_type
from ..encoded_bodies import Npz, Picture
from ..media_types import IMAGE_TYPES, MediaType, RequestFormat, require_parts
from ..multipart import ModelTensors, Multipart, StagedTensors
from ..request_body import MOST_VALUE_BYTES, whole_json
from .call_parser import (
    MOST_JSON_CONTAINERS,
    CallInput,
    CallParser,
    Dialect,
    as_document,
    has_parameter,
    npy_tensor,
    numbered_names,
    read_document,
    read_query,
)
from .dialects import takes_long
from .graph_dialect import GraphDialect, GraphParser, read_outputs
from .held_inputs import (
    MEMBER,
    CallerTensors,
    HeldInput,
    HeldReference,
    may_refer,
    references_in_metadata,
    references_in_query,
)
from .kept_answer import KeepRequest, KeptAnswer
from .operator_answer import OperatorAnswer
from .staged_calls import GivenTensor, StagedCall, stage_call, stage_of_model
from .stored_dialect import StoredDialect, StoredParser
from .wire import ReadContext

ParsedHead = TypeVar("ParsedHead")


class OperatorWire:
    """`POST /v1/operators/{operator}` and `POST /v1/onnx/{op_type}`. See `Wire`."""

    __slots__ = (
        "_dialect", "_held", "_in_query", "_keep", "_kept", "_operator", "_parser", "_slow_threads", "_tensors",
        "takes_long",
    )  # fmt: skip

    needs_devices = True

    def __init__(self, dialect: Dialect, operator: str, tensors: CallerTensors) -> None:
        self._dialect, self._operator, self._tensors = dialect, operator, tensors
        self._held: list[HeldInput] = []
        self._in_query: frozenset[str] = frozenset()
        self._keep: KeepRequest | None = None
        self._kept: KeptAnswer | None = None
        self._slow_threads: CallerThreads | None = None
        self._parser: CallParser | None = dialect(operator) if isinstance(dialect, StoredDialect) else None
        self.takes_long = takes_long(dialect, operator)

    @property
    def key(self) -> Hashable:
        return self._dialect, self._operator

    def format(self, fields: Mapping[bytes, bytes], length: int) -> RequestFormat:
        """See `Wire.format`: the media types."""
        if isinstance(self._dialect, GraphDialect) and self._dialect.of_model:
            require_parts(fields)
        return RequestFormat.from_headers(fields, length)

    async def open(self, slow_threads: CallerThreads) -> str | None:
        """See `Wire.open`: the parser of the operator's calls."""
        self._slow_threads = slow_threads
        if self._parser is None:
            self._parser = await slow_threads.run(self.takes_long, self._dialect, self._operator)
        return self._operator if self.takes_long else None

    async def open_sinks(self, answer: Answer) -> Sequence[OpenSink | None]:
        """See `Wire.open_sinks`: every output goes into the body, or all of them are kept."""
        if not isinstance(answer, KeptAnswer):
            return [None] * len(answer.sinks)
        assert self._slow_threads is not None
        self._kept = answer
        return await answer.open(self._slow_threads)

    async def finish_sinks(self) -> None:
        """See `Wire.finish_sinks`: outputs that are kept get their names."""
        if self._kept is not None:
            await self._kept.finish()

    def close(self) -> None:
        """See `Wire.close`: held tensors."""
        if self._kept is not None:
            self._kept.close()
        self._tensors.close()

    async def read(self, context: ReadContext, format_: CallFormat) -> Call:
        assert isinstance(format_, RequestFormat)
        assert self._parser is not None
        if has_parameter(context.query, "keep") or may_refer(context.query):
            await self._read_held(context, self._parser)
        media_type, body, settings, threads = format_.request, context.body, context.settings, context.parsing
        if self.takes_long:
            threads = context.slow_threads
        if media_type is MediaType.JSON:
            text = await whole_json(body, settings, context.reserve)
            context.watch.start()
            sent: Any = await threads.run(context.large, read_json, text, max_containers=MOST_JSON_CONTAINERS)
            arrays = await self._take_references(sent, context)
            return await threads.run(context.large, self._of_json, sent, arrays, context.query, format_)
        if media_type is MediaType.MULTIPART:
            return await self._of_parts(context, format_)
        if media_type is MediaType.NPZ or (media_type in IMAGE_TYPES and body.length):
            return await self._of_encoded(context, format_)
        if not context.head_has_arrived:
            context.reserve(min(body.length, settings.max_head_bytes))
        if media_type is MediaType.FRAME:
            return await self._of_frame(context, format_, threads)
        name, tensors = self._npy_tensor(empty=not body.length), list[AnnouncedTensor]()
        if name is None:
            await body.receive_into([])  # refuses a body that is not empty
        elif format_.raw is not None:
            row, shape = format_.raw
            tensors.append(AnnouncedTensor(name, row, shape, format_.raw.size_in_bytes))
            if body.length != format_.raw.size_in_bytes:
                raise BodyMismatch(
                    f"Content-Length is {body.length:,}, but {row.numpy_name} of shape {list(shape)} has "
                    f"{format_.raw.size_in_bytes:,} bytes"
                )
        else:
            npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
            await body.feed(npy, threads)
            head = _finished(npy.finish)
            tensors.append(AnnouncedTensor(name, head.data_type, head.shape, head.body_bytes))
        return await threads.run(
            context.large, self._parse, context.query, format_, tensors, None, self._values_of_held()
        )

    # ---- held tensors ------------------------------------------------------------------------------------------------

    async def _read_held(self, context: ReadContext, parser: CallParser) -> None:
        """Find the held tensors that the query refers to, and the names that outputs are to be kept by."""
        parameters = read_query(context.query)
        references = references_in_query(parser, parameters)
        self._in_query = frozenset(references)
        self._keep = KeepRequest.of(parameters)
        if self._keep is not None:
            self._tensors.check_keep()
            for name in [each for each in self._keep.names if each is not None]:
                await self._tensors.store.check_new(self._tensors.owner, name, replaces=self._keep.replaces)
        await self._use(references, context)

    async def _use(self, references: Mapping[str, HeldReference], context: ReadContext) -> None:
        if len(references) > MOST_TENSORS:
            raise InvalidParameter(
                f"{len(references):,} inputs refer to held tensors; at most {MOST_TENSORS:,} tensors are read here"
            )
        for name, reference in references.items():
            if any(each.name == name for each in self._held):
                raise InvalidParameter(f"the input {name[:60]!r} refers to two held tensors; send one")
            self._held.append(await self._tensors.read(name, reference, context))

    async def _take_references(self, sent: object, context: ReadContext) -> Mapping[str, Any]:
        """The tensors of a JSON call without those that refer to held tensors, which are found."""
        tensors: object = cast("Mapping[str, object]", sent).get("tensors") if isinstance(sent, Mapping) else None
        arrays: dict[str, object] = {**cast("Mapping[str, object]", tensors)} if isinstance(tensors, Mapping) else {}
        found = {name: HeldReference.of_document(value, ("tensors", name)) for name, value in arrays.items()}
        references = {name: reference for name, reference in found.items() if reference is not None}
        await self._use(references, context)
        return {name: value for name, value in arrays.items() if name not in references}

    def _npy_tensor(self, *, empty: bool) -> str | None:
        """The name of the tensor in a body of one; see `npy_tensor`. Held inputs are not in the body."""
        return None if self._held and empty else npy_tensor(self._inputs_in_body, empty=empty)

    @property
    def _inputs_in_body(self) -> Sequence[CallInput]:
        """The inputs that refer to no held tensor."""
        assert self._parser is not None
        held = {each.name for each in self._held}
        return [each for each in self._parser.inputs if each.name not in held] if held else self._parser.inputs

    def _values_of_held(self) -> dict[str, Any]:
        """The elements of held tensors that are part of the operation."""
        held = [each.announced for each in self._held if self._parser and each.name in self._parser.value_names]
        for tensor in held:
            _refuse_large_value(tensor)
        names = {tensor.name for tensor in held}
        return {each.name: each.layout.view(each.data) for each in self._held if each.name in names}

    def _parse(
        self, query: str, format_: RequestFormat, tensors: Sequence[AnnouncedTensor],
        document: str | Mapping[str, Any] | None = None, values: Mapping[str, Any] | None = None,
        memory: list[memoryview] | None = None, *, id_: str | None = None, encoded: Encoded | None = None,
        table: StringTable | None = None,
    ) -> Call:  # fmt: skip
        """The call of these tensors; see `CallParser.parse` and `Call`."""
        assert self._parser is not None
        parameters, keep, rows = self._parameters(query)
        if self._held:
            known = {tensor.name for tensor in tensors}
            if twice := [each.name for each in self._held if each.name in known]:
                raise InvalidParameter(f"the input {twice[0]!r} is in the body, and refers to a held tensor as well")
            tensors = [*tensors, *[each.announced for each in self._held]]
        if isinstance(document, str) or document is None:
            document = read_document(document, self._parser.document_name)
        graph, options, rest = self._parser.parse(parameters, tensors, document, values or {})
        sizes = {slot.name: slot.layout.size_in_bytes for slot in graph.inputs}
        held = [each.data if sizes.get(each.name, math.inf) >= len(each.data) else each.data[: sizes[each.name]]
                for each in self._held]  # fmt: skip
        strings = None
        if not graph.output_names and has_strings(graph.operation):
            strings = StringCall(cast("OnnxNode", graph.operation), table or StringTable())
            memory = None if memory is None else read_strings(strings, tensors, memory)
        if memory is not None:
            memory, held = [*memory, *held], []
        tags, stored = [each.tag for each in self._held], None
        if isinstance(self._dialect, StoredDialect):
            stored = self._dialect.stored
            tags.append(stored.tag)
        answered = self._answered(format_, id_, rows, keep)
        if rest is not None:
            left = StagedCall(rest, [each.name for each in tensors], tensors, options, answered, rows, tags)
            return stage_call(graph, options, tensors, left, memory=memory, encoded=encoded, held=held)
        return Call(
            graph, options, tensors, answered(graph), memory, encoded, strings, rows=rows, stored=stored, held=held,
            stored_tags=tags, is_repeatable=not self._held and keep is None,
        )  # fmt: skip

    def _answered(
        self, format_: RequestFormat, id_: str | None, rows: tuple[int, int | None] | None, keep: KeepRequest | None
    ) -> Callable[[Graph], Answer]:
        """Makes the answer of a graph: its outputs in the body, or kept."""
        if keep is not None:
            return lambda graph: KeptAnswer(graph, keep, self._tensors)
        return lambda graph: OperatorAnswer.of(format_, graph, id_, rows)

    def _parameters(self, query: str) -> tuple[dict[str, str], KeepRequest | None, tuple[int, int | None] | None]:
        """The parameters of the operation, what outputs are kept, and which rows are wanted."""
        parameters = read_query(query)
        for name in self._in_query:
            del parameters[name]
        keep = KeepRequest.of(parameters)
        if keep is not None:
            self._tensors.check_keep()
        rows = None if (text := parameters.pop("rows", None)) is None else read_rows(text)
        return parameters, keep, rows

    # ---- the media types ---------------------------------------------------------------------------------------------

    async def _of_frame(self, context: ReadContext, format_: RequestFormat, threads: CallerThreads) -> Call:
        assert self._parser is not None
        body, most = context.body, context.settings.max_head_bytes
        reader = HeadReader(max_head_bytes=most, content_length=body.length, max_tensors=MOST_TENSORS)
        await body.feed(reader, threads)
        head = _finished(reader.finish)
        tensors = [AnnouncedTensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in head.tensors]
        await self._use(references_in_metadata(head.metadata.get(MEMBER)), context)
        memory, values = None, self._values_of_held()
        needed = [tensor for tensor in tensors if tensor.name in self._parser.value_names]
        for tensor in needed:
            _refuse_large_value(tensor)
        if needed:
            # The caller chooses the order of the tensors, so the large one may come before the small ones.
            ticket = context.reserve(head.body_bytes)
            memory = [ticket.memory(tensor.size_in_bytes) for tensor in tensors]
            await body.receive_into(memory)
            values |= self._values(tensors, memory)
        document, id_ = head.metadata.get(self._parser.document_name), head.metadata.get("id")
        return await threads.run(
            context.large, self._parse, context.query, format_, tensors, document, values, memory, id_=id_
        )

    async def _of_encoded(self, context: ReadContext, format_: RequestFormat) -> Call:
        """Receive a picture or an npz archive, and parse the call from its head; only small inputs are decoded."""
        assert self._parser is not None
        body, settings, threads = context.body, context.settings, context.slow_threads
        name = None if format_.request is MediaType.NPZ else self._npy_tensor(empty=False)
        context.reserve(2 * body.length)  # as it arrives, and as what reads it holds it
        content = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
        context.watch.start()
        if format_.request is MediaType.NPZ:
            encoded: Encoded = await threads.run(
                True, Npz.read, content, settings, partial(numbered_names, self._inputs_in_body)
            )
        elif name is None:
            raise TensorMismatch("the operator takes no tensors, and the body is a picture; send an empty body")
        else:
            media_type = format_.request.value
            encoded = await threads.run(True, Picture.read, content, media_type, name, format_.read, settings)
        inputs = self._parser.declared(None)
        encoded = as_declared(encoded, inputs)
        _refuse_channels(self._parser, [encoded], inputs)
        values = await self._decoded_values(encoded, threads)

        def parse(sent: Encoded) -> Call:
            return self._parse(context.query, format_, _announced(sent), None, values, encoded=sent)

        try:
            return await threads.run(len(encoded.tensors) > 1, parse, encoded)
        except InvalidDescriptor as error:
            explain(error, [encoded], inputs, in_parts=False)
            if isinstance(encoded, Picture) and self._parser.document_name == "op":
                error.detail += await threads.run(True, _about_body, encoded, parse)
            raise
        except InvalidParameter as error:
            explain(error, [encoded], inputs, in_parts=False)
            raise
        except TensorMismatch as error:
            if format_.request is MediaType.NPZ:
                error.detail += "; an npz archive's arrays have these names, or all are without names and in this order"
            raise

    async def _of_parts(self, context: ReadContext, format_: RequestFormat) -> Call:
        """Receive a body of parts, and parse the call from their heads."""
        assert self._parser is not None
        body, settings, threads, parser = context.body, context.settings, context.slow_threads, self._parser
        context.reserve(2 * body.length)  # as it arrives, and as what reads it holds it
        content = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
        context.watch.start()
        of_model = parser if isinstance(parser, GraphParser) and parser.of_model else None
        texts = [parser.document_name] if of_model is None else ["model"]
        parts = await threads.run(True, Multipart.read, content, format_.boundary, texts, format_.read, settings)
        if of_model is not None:
            held = {each.name: (each.layout, each.data) for each in self._held}
            found = await threads.run(True, ModelTensors.read, parts, read_outputs(context.query), held)
            if isinstance(found, StagedTensors):
                return await self._of_stage(context, format_, found, of_model)
            names = found.graph.inputs  # without inputs that the wanted outputs do not need
            self._held = [replace(each, name=names[each.name]) for each in self._held if each.name in names]
            return await self._call_of_parts(context, format_, found, found.graph.document)
        text = parts.texts.get(parser.document_name)
        document = read_document(None if text is None else _utf8(text), parser.document_name)
        inputs = parser.declared(document)
        parts = parts.declared(inputs)
        _refuse_channels(parser, parts.parts, inputs)
        try:
            return await self._call_of_parts(context, format_, parts, document)
        except (InvalidDescriptor, InvalidParameter) as error:
            explain(error, parts.parts, inputs, in_parts=True)
            raise

    async def _call_of_parts(
        self, context: ReadContext, format_: RequestFormat, encoded: Encoded, document: Mapping[str, Any] | None
    ) -> Call:
        threads, tensors = context.slow_threads, _announced(encoded)
        values = await self._decoded_values(encoded, threads)
        return await threads.run(
            len(tensors) > 1, self._parse, context.query, format_, tensors, document, values, encoded=encoded
        )

    async def _decoded_values(self, encoded: Encoded, threads: CallerThreads) -> dict[str, Any]:
        """The elements of the tensors that are part of the operation, which are small."""
        assert self._parser is not None
        values = self._values_of_held()
        for index, tensor in enumerate(_announced(encoded)):
            if tensor.name in self._parser.value_names:
                _refuse_large_value(tensor)
                block = memoryview(bytearray(tensor.size_in_bytes))
                await threads.run(True, encoded.decode_into, [block], index)
                values |= self._values([tensor], [block])
        return values

    async def _of_stage(
        self, context: ReadContext, format_: RequestFormat, found: StagedTensors, parser: GraphParser
    ) -> Call:
        """The call of the first part of a model, whose inputs are all decoded: what is left may read them."""
        parts, stage = found
        parameters, keep, rows = self._parameters(context.query)
        options = parser.options_of(parameters)
        sizes = [row.item_size * math.prod(shape) for _, row, shape in parts.tensors]
        constants = [*stage.graph.weights.values(), *stage.rest.initializers.values()]
        ticket = context.reserve(sum(sizes) + sum([array.nbytes for array in constants]))  # some are not aligned
        memory = [ticket.memory(size) for size in sizes]
        await context.slow_threads.run(True, parts.decode_into, memory)
        given = {
            name: GivenTensor(Layout.row_major(row, shape), block)
            for (name, row, shape), block in zip(parts.tensors, memory, strict=True)
        }
        given |= {each.name: GivenTensor(each.layout, each.data) for each in self._held}
        answered, tags = self._answered(format_, None, rows, keep), [each.tag for each in self._held]
        return await context.slow_threads.run(
            True, stage_of_model, stage, given, options, parser.most_nodes, answered, rows, tags
        )  # fmt: skip

    def _of_json(self, body: object, sent_arrays: Mapping[str, Any], query: str, format_: RequestFormat) -> Call:
        """Parse `{"op": {...}, "tensors": {"input": {"dtype", "shape", "data"}}, "id": ...}`.

        Args:
            body: the document.
            sent_arrays: its tensors, without those that refer to held tensors.
            query: the query.
            format_: the media types.
        """
        assert self._parser is not None
        member = self._parser.document_name
        expected = '{"op": {...}, "tensors": {"input": {"dtype": "F32", "shape": [...], "data": [...]}}}'
        expected = expected.replace("op", member)
        example = expected
        if member == "op":
            example = '{"tensors": {"%s": {"dtype": "F32", "shape": [2, 2], "data": [1, 2, 3, 4]}}}'
            example %= next(iter(numbered_names(self._parser.inputs, 1)), "input")
        if not isinstance(body, Mapping):
            raise InvalidDescriptor.of([Violation("document", (), f"the body must be {example}", None, expected)])
        members = cast("Mapping[str, Any]", body)
        violations = [
            Violation("document", (key,), f"there is no member {key[:60]!r} in a JSON call", None, expected)
            for key in members
            if key not in (member, "tensors", "id")
        ]
        sent: Any = members.get("tensors")
        if not isinstance(sent, Mapping):
            message = f"tensors must name each, as in {example}"
            violations.append(Violation("document", ("tensors",), message, sent, expected))
        elif len(cast("Mapping[str, Any]", sent)) > MOST_TENSORS:
            count = len(cast("Mapping[str, Any]", sent))
            message = f"has {count:,} tensors; at most {MOST_TENSORS:,} are read here"
            violations.append(
                Violation("tensor-count", ("tensors",), message, count, f"at most {MOST_TENSORS} tensors")
            )
        if not isinstance(members.get("id"), (str, type(None))):
            violations.append(Violation("document", ("id",), "id must be text", members.get("id"), "text"))
        if violations:
            raise InvalidDescriptor.of(violations)
        strings = set[str]()
        arrays = {
            name: frame.tensor_from_json(content, path=("tensors", name)) for name, content in sent_arrays.items()
        }
        table = StringTable()
        for name, array in arrays.items():
            if array.dtype.kind == "O":
                strings.add(name)
                arrays[name] = table.numbers_of_array(name, array)
        tensors = [
            AnnouncedTensor(name, data_type("str" if name in strings else a.dtype), a.shape, a.nbytes)
            for name, a in arrays.items()
        ]
        # by way of uint8, since memoryview has no bfloat16
        memory = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values()]
        document = None if members.get(member) is None else as_document(members[member], member)
        values = self._values(tensors, memory) | self._values_of_held()
        try:
            return self._parse(query, format_, tensors, document, values, memory, id_=members.get("id"), table=table)
        except InvalidDescriptor as error:
            in_op = member == "op" and document is not None  # a graph's paths begin at the root already
            raise type(error).of([_from_root(each, arrays, in_op=in_op) for each in error.violations]) from None

    def _values(self, tensors: Sequence[AnnouncedTensor], memory: Sequence[memoryview]) -> dict[str, Any]:
        """The elements of the tensors that are part of the operation."""
        assert self._parser is not None
        return {
            tensor.name: Layout.row_major(tensor.data_type, tensor.shape).view(block)
            for tensor, block in zip(tensors, memory, strict=True)
            if tensor.name in self._parser.value_names
        }


def _utf8(text: memoryview) -> str:
    try:
        return bytes(text).decode()
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the document is not UTF-8: {error.reason} at byte {error.start}") from None


def _announced(encoded: Encoded) -> list[AnnouncedTensor]:
    return [AnnouncedTensor(name, row, shape, row.item_size * math.prod(shape)) for name, row, shape in encoded.tensors]


def _refuse_channels(parser: CallParser, parts: Sequence[object], inputs: DeclaredInputs) -> None:
    """Refuse pictures with other channels than their inputs have."""
    of_model = isinstance(parser, StoredParser) and parser.of_model
    violations = channel_violations(parts, inputs, "model" if of_model else "graph")
    if violations and of_model:
        raise InvalidParameter(violations[0].message)
    if violations:
        raise InvalidDescriptor.of(violations).prefixed("graph")


def _about_body(picture: Picture, parse: Callable[[Encoded], Call]) -> str:
    """What a picture is that an operator refuses, and the Content-Type with which the operator takes it."""

    def is_taken(other: Picture) -> bool:
        try:
            parse(other)
        except TensorpostError:
            return False
        return True

    ((_, row, shape),) = picture.tensors
    said = f"; the body is {row.numpy_name} of shape {list(shape)}"
    return said + other_media_type(picture, is_taken, in_parts=False)


def _finished(finish: Callable[[], ParsedHead]) -> ParsedHead:
    """What the `finish` of a reader of heads returns, or its error with what a caller of curl should change."""
    try:
        return finish()
    except BodyMismatch as error:
        if not error.extra["actual"]:
            raise BodyMismatch("the body is empty", extra=error.extra) from None
        hint = "with curl use --data-binary, which sends a file as it is"
        raise BodyMismatch(f"{error.detail}; {hint}", extra=error.extra) from None


def _refuse_large_value(tensor: AnnouncedTensor) -> None:
    if tensor.size_in_bytes > MOST_VALUE_BYTES:
        raise TensorMismatch(
            f"tensor {tensor.name!r} has {tensor.size_in_bytes:,} bytes; such an input has an entry per "
            f"dimension, at most {MOST_VALUE_BYTES:,} bytes in all"
        )


def _from_root(violation: Violation, tensors: Mapping[str, object], *, in_op: bool) -> Violation:
    """The violation with its path seen from the root of a JSON call."""
    if violation.path[1:] == ("dtype",) and violation.path[0] in tensors:
        return violation.prefixed("tensors")
    return violation.prefixed("op") if in_op else violation
