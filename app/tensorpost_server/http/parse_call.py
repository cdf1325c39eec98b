"""Parse a request into a `ReadCall`: query, announced tensors and document, in one of the dialects (DirectML, ONNX)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from starlette.datastructures import QueryParams

from tensorpost import frame
from tensorpost.datatypes import DataType, data_type
from tensorpost.descriptors import FeatureLevel
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.frame import HeadReader, NpyHeadReader
from tensorpost.layout import Layout
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.strings import StringCall, StringTable, has_strings
from tensorpost.operation import Operation
from tensorpost.problems import (
    BodyMismatch,
    InvalidDescriptor,
    InvalidJson,
    InvalidParameter,
    LimitExceeded,
    TensorMismatch,
    Violation,
    json_path,
    nearest,
)
from tensorpost.strict_json import read_json

from ..engine import Ticket
from ..settings import Settings
from .caller_watch import CallerWatch
from .encoded_bodies import Encoded, Npz, Picture
from .media_types import IMAGE_TYPES, MediaType, RequestFormat
from .parse_threads import INLINE_TEXT_BYTES, CallerThreads
from .request_body import RequestBody

__all__ = [
    "MOST_JSON_CONTAINERS",
    "MOST_VALUE_BYTES",
    "AnnouncedTensor",
    "CallParser",
    "Dialect",
    "ReadBody",
    "ReadCall",
    "RunOptions",
    "match_names",
    "parse_document",
    "parse_query",
    "query_number",
    "read_call",
    "whole_json",
]

ParsedHead = TypeVar("ParsedHead")

MOST_JSON_CONTAINERS = 16_384
"""Arrays and objects in a JSON body. A thousand tensors have 3 each; the rest is for data that nests like its shape."""

JSON_MEMORY_FACTOR = 24
"""Bytes that a byte of a long JSON text may become: an object takes 64 bytes and a place in an array, for `{},`."""

_MOST_PARAMETERS = 64  # in a query; an operator has at most 30 attributes
MOST_VALUE_BYTES = 2 * 64 * 8
"""Bytes of a tensor that is part of an operation; a roi has two float64 for each of at most 64 dimensions."""


@dataclass(frozen=True, slots=True)
class AnnouncedTensor:
    """A tensor as the head of a body announces it."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    size_in_bytes: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a caller chooses besides the operator.

    Attributes:
        backend: `auto` or a backend's name; None for the server's default.
        device: index of one of the backend's devices; None for any.
        feature_level: DirectML feature level to validate at; None for the newest.
    """

    backend: str | None = None
    device: int | None = None
    feature_level: FeatureLevel | None = None


class CallParser(Protocol):
    """Parses calls of one operator in one dialect."""

    def tensor_names(self, count: int) -> list[str]:
        """The names of this many tensors in the operator's order; fewer if it takes fewer."""
        ...

    def npy_tensor(self, *, empty: bool) -> str | None:
        """The name of the tensor in an npy body: the only one that is required, or the only one there is.

        None if the body must be empty: the operator takes no tensor, or an optional one is left out.

        Args:
            empty: whether the body is.

        Raises:
            TensorMismatch: the operator requires several tensors.
        """
        ...

    @property
    def value_names(self) -> frozenset[str]:
        """Names of tensors whose elements, not only their shapes, decide what is computed."""
        ...

    def parse(
        self, query: str, tensors: Sequence[AnnouncedTensor], document: str | None, values: Mapping[str, Any]
    ) -> tuple[Operation, RunOptions]:
        """Parse a call into a valid operation and how to run it.

        Args:
            query: the query string, undecoded.
            tensors: what the body announces, in the order of its bytes.
            document: the operation's JSON text, if the body has one.
            values: the elements of the tensors in `value_names`, as arrays.

        Raises:
            InvalidRequest: any of them is malformed, or they contradict each other.
        """
        ...


Dialect = Callable[[str], CallParser]
"""Maps an operator's name in the path to its parser; raises UnknownOperator. Each dialect has a path of its own."""


# ---- reading a body --------------------------------------------------------------------------------------------------


class ReadCall(NamedTuple):
    """A valid call and what its body told about it; nothing has been planned or computed yet.

    Attributes:
        operation: the operator with its attributes and the descriptions of its tensors.
        options: backend, device and feature level.
        id: the caller's id of the call.
        tensors: what the body announces, in the order of its bytes.
        memory: the bytes of these tensors, if they were read to parse the call; else None.
        encoded: the body, if it was received and its tensors are to be decoded; else None.
        strings: the call with strings, if it works on any; numbers stand for them in the memory.
    """

    operation: Operation
    options: RunOptions
    id: str | None
    tensors: Sequence[AnnouncedTensor]
    memory: list[memoryview] | None
    encoded: Encoded | None = None
    strings: StringCall | None = None


class ReadBody(NamedTuple):
    """What parsing a call left of its body; both are None where the tensors' bytes are yet to be received.

    Attributes:
        memory: the bytes of the tensors, if they were read; see `ReadCall`.
        encoded: the body whose tensors are to be decoded; see `ReadCall`.
    """

    memory: list[memoryview] | None = None
    encoded: Encoded | None = None


async def read_call(
    body: RequestBody, format_: RequestFormat, parser: CallParser, query: str, settings: Settings,
    reserve: Callable[[int], Ticket], threads: CallerThreads, slow_threads: CallerThreads, watch: CallerWatch, *,
    head_has_arrived: bool, large: bool,
) -> ReadCall:  # fmt: skip
    """Read and parse a call up to its tensors' bytes; and those as well where the operation depends on them.

    Args:
        body: the request's body, nothing of which has been consumed.
        format_: how to read it.
        parser: the operator's parser.
        query: the query string, undecoded.
        settings: the limits.
        reserve: admits the request, or reserves more for it, in bytes.
        threads: parse what is large.
        slow_threads: read pictures and npz.
        watch: started as soon as the whole body has been received here.
        head_has_arrived: whether the head is short and already in memory, so that nothing is reserved for it.
        large: whether the call is parsed on a thread.

    Raises:
        TensorpostError: the call is malformed, too large, or the memory is not there now.
    """
    media_type = format_.request
    if media_type is MediaType.JSON:
        text = await whole_json(body, settings, reserve)
        watch.start()
        return await threads.run(large, _parse_json, text, parser, query)
    if media_type is MediaType.NPZ or (media_type in IMAGE_TYPES and body.length):
        return await _read_encoded(body, format_, parser, query, settings, reserve, slow_threads, watch)
    if not head_has_arrived:
        reserve(min(body.length, settings.max_head_bytes))
    if media_type is not MediaType.FRAME:
        name = parser.npy_tensor(empty=not body.length)
        if name is None:
            await body.receive_into([])  # refuses a body that is not empty
            return ReadCall(*await threads.run(large, parser.parse, query, [], None, {}), None, [], [])
        if format_.raw is not None:
            row, shape = format_.raw
            tensors = [AnnouncedTensor(name, row, shape, format_.raw.size_in_bytes)]
            if body.length != tensors[0].size_in_bytes:
                raise BodyMismatch(
                    f"Content-Length is {body.length:,}, but {row.numpy_name} of shape {list(shape)} has "
                    f"{tensors[0].size_in_bytes:,} bytes"
                )
            return ReadCall(*await threads.run(large, parser.parse, query, tensors, None, {}), None, tensors, None)
        npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.feed(npy, threads)
        head = _finished(npy.finish)
        tensors = [AnnouncedTensor(name, head.data_type, head.shape, head.body_bytes)]
        return ReadCall(*await threads.run(large, parser.parse, query, tensors, None, {}), None, tensors, None)
    reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length, max_tensors=MOST_TENSORS)
    await body.feed(reader, threads)
    frame_head = _finished(reader.finish)
    tensors = [AnnouncedTensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in frame_head.tensors]
    memory, values = None, {}
    needed = [tensor for tensor in tensors if tensor.name in parser.value_names]
    for tensor in needed:
        _refuse_large_value(tensor)
    if needed:
        # The caller chooses the order of the tensors, so the large one may come before the small ones.
        ticket = reserve(frame_head.body_bytes)
        memory = [ticket.memory(tensor.size_in_bytes) for tensor in tensors]
        await body.receive_into(memory)
        values = _values(parser, tensors, memory)
    metadata = frame_head.metadata
    call = await threads.run(large, parser.parse, query, tensors, metadata.get("op"), values)
    return ReadCall(*call, metadata.get("id"), tensors, memory)


def _finished(finish: Callable[[], ParsedHead]) -> ParsedHead:
    """What the `finish` of a reader of heads returns, or its error with what a caller of curl should change."""
    try:
        return finish()
    except BodyMismatch as error:
        if not error.extra["actual"]:
            raise BodyMismatch("the body is empty", extra=error.extra) from None
        hint = "with curl use --data-binary, which sends a file as it is"
        raise BodyMismatch(f"{error.detail}; {hint}", extra=error.extra) from None


async def _read_encoded(
    body: RequestBody, format_: RequestFormat, parser: CallParser, query: str, settings: Settings,
    reserve: Callable[[int], Ticket], threads: CallerThreads, watch: CallerWatch,
) -> ReadCall:  # fmt: skip
    """Receive a picture or an npz archive, and parse the call from its head. Only small inputs are decoded for it."""
    name = None if format_.request is MediaType.NPZ else parser.npy_tensor(empty=False)
    reserve(2 * body.length)  # as it arrives, and as what reads it holds it
    content = await body.whole(settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES")
    watch.start()
    if format_.request is MediaType.NPZ:
        encoded: Encoded = await threads.run(True, Npz.read, content, settings, parser.tensor_names)
    elif name is None:
        raise TensorMismatch("the operator takes no tensors, and the body is a picture; send an empty body")
    else:
        media_type = format_.request.value
        encoded = await threads.run(True, Picture.read, content, media_type, name, format_.read, settings)
    tensors = [
        AnnouncedTensor(name, row, shape, row.item_size * math.prod(shape)) for name, row, shape in encoded.tensors
    ]
    values: dict[str, Any] = {}
    for index, tensor in enumerate(tensors):
        if tensor.name in parser.value_names:
            _refuse_large_value(tensor)
            block = memoryview(bytearray(tensor.size_in_bytes))
            await threads.run(True, encoded.decode_into, [block], index)
            values |= _values(parser, [tensor], [block])
    try:
        call = await threads.run(len(tensors) > 1, parser.parse, query, tensors, None, values)
    except InvalidDescriptor as error:
        if format_.request in IMAGE_TYPES:
            ((_, row, shape),) = encoded.tensors
            error.detail += f"; the body is {row.numpy_name} of shape {list(shape)}: {format_.read.axes}"
        raise
    except TensorMismatch as error:
        if format_.request is MediaType.NPZ:
            error.detail += "; an npz archive's arrays have these names, or all are without names and in this order"
        raise
    return ReadCall(*call, None, tensors, None, encoded)


def _refuse_large_value(tensor: AnnouncedTensor) -> None:
    if tensor.size_in_bytes > MOST_VALUE_BYTES:
        raise TensorMismatch(
            f"tensor {tensor.name!r} has {tensor.size_in_bytes:,} bytes; such an input has an entry per "
            f"dimension, at most {MOST_VALUE_BYTES:,} bytes in all"
        )


async def whole_json(body: RequestBody, settings: Settings, reserve: Callable[[int], object]) -> bytes:
    """The text of a JSON body. Memory is reserved for it before it is received, and then for the values made of it.

    Raises:
        LimitExceeded: it is longer than the limit, or than the memory budget.
        TooBusy: the memory is not there now.
    """
    limit, setting = settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"
    if body.length > limit:
        raise LimitExceeded.of("the JSON body", body.length, limit, setting)
    reserve(body.length)
    text = await body.whole(limit, setting)
    if body.length > INLINE_TEXT_BYTES:
        reserve(body.length * (JSON_MEMORY_FACTOR - 1))
    return text


def _values(
    parser: CallParser, tensors: Sequence[AnnouncedTensor], memory: Sequence[memoryview]
) -> dict[str, Any]:  # fmt: skip
    return {
        tensor.name: Layout.row_major(tensor.data_type, tensor.shape).view(block)
        for tensor, block in zip(tensors, memory, strict=True)
        if tensor.name in parser.value_names
    }


def _parse_json(text: bytes, parser: CallParser, query: str) -> ReadCall:
    """Parse `{"op": {...}, "tensors": {"input": {"dtype", "shape", "data"}}, "id": ...}`.

    Raises:
        InvalidDescriptor: a member is missing, unknown or malformed; paths start at the root of this document.
    """
    document: Any = read_json(text, max_containers=MOST_JSON_CONTAINERS)
    expected = '{"op": {...}, "tensors": {"input": {"dtype": "F32", "shape": [...], "data": [...]}}}'
    example = '{"tensors": {"%s": {"dtype": "F32", "shape": [2, 2], "data": [1, 2, 3, 4]}}}'
    example %= next(iter(parser.tensor_names(1)), "input")
    if not isinstance(document, Mapping):
        raise InvalidDescriptor.of([Violation("document", (), f"the body must be {example}", None, expected)])
    members = cast("Mapping[str, Any]", document)
    found = [
        Violation("document", (key,), f"there is no member {key[:60]!r} in a JSON call", None, expected)
        for key in members
        if key not in ("op", "tensors", "id")
    ]
    sent: Any = members.get("tensors")
    if not isinstance(sent, Mapping):
        found.append(Violation("document", ("tensors",), f"tensors must name each, as in {example}", sent, expected))
    elif len(cast("Mapping[str, Any]", sent)) > MOST_TENSORS:
        count = len(cast("Mapping[str, Any]", sent))
        message = f"has {count:,} tensors; at most {MOST_TENSORS:,} are read here"
        found.append(Violation("tensor-count", ("tensors",), message, count, f"at most {MOST_TENSORS} tensors"))
    if not isinstance(members.get("id"), (str, type(None))):
        found.append(Violation("document", ("id",), "id must be text", members.get("id"), "text"))
    if found:
        raise InvalidDescriptor.of(found)
    strings = set[str]()
    arrays = {
        name: frame.tensor_from_json(content, path=("tensors", name))
        for name, content in cast("Mapping[str, Any]", sent).items()
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
    operation = None if members.get("op") is None else json.dumps(members["op"])
    try:
        call = parser.parse(query, tensors, operation, _values(parser, tensors, memory))
    except InvalidDescriptor as error:
        raise type(error).of([_from_root(violation, arrays, operation) for violation in error.violations]) from None
    found = StringCall(cast("OnnxNode", call[0]), table) if has_strings(call[0]) else None
    return ReadCall(*call, members.get("id"), tensors, memory, strings=found)


def _from_root(violation: Violation, tensors: Mapping[str, object], operation: str | None) -> Violation:
    """The violation with its path seen from the root of a JSON call."""
    if violation.path[1:] == ("dtype",) and violation.path[0] in tensors:
        return violation.prefixed("tensors")
    return violation if operation is None else violation.prefixed("op")


# ---- the parts of a call that all dialects share ---------------------------------------------------------------------


def parse_query(query: str, known: Sequence[str], options: Sequence[str]) -> tuple[dict[str, str], RunOptions]:
    """Split a query into the dialect's own parameters and the options.

    Args:
        query: the query string, undecoded.
        known: the dialect's parameters; empty means that the dialect judges them itself.
        options: which of `backend`, `device` and `feature_level` there are.

    Raises:
        InvalidParameter: a parameter that is unknown, sent twice, or an option with a value that it cannot have.
    """
    count = query.count("&") + 1
    if count > _MOST_PARAMETERS:
        raise InvalidParameter(f"the query has {count:,} parameters; at most {_MOST_PARAMETERS} are read here")
    sent: dict[str, str] = {}
    for name, text in QueryParams(query).multi_items():
        if known and name not in known and name not in options:
            guess = nearest(name, [*known, *options])
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join([*known, *options])}"
            raise InvalidParameter(f"there is no query parameter {name[:60]!r}; {hint}", extra={"parameter": name[:60]})
        if name in sent:
            raise InvalidParameter(
                f"query parameter {name[:60]!r} is sent twice; separate several values by commas",
                extra={"parameter": name[:60]},
            )
        sent[name] = text
    level = sent.pop("feature_level", None) if "feature_level" in options else None
    backend = sent.pop("backend", None)
    device = sent.pop("device", None) if "device" in options else None
    if device is not None:
        query_number("device", device, "is not the number of a device; /v1/devices lists them, counted from 0")
    return sent, RunOptions(
        backend,
        None if device is None else int(device),
        None if level is None else FeatureLevel.parse(level),
    )


def query_number(name: str, text: str, refusal: str) -> int:
    """A query parameter of at most four decimal digits.

    Raises:
        InvalidParameter: it is something else; `refusal` is the rest of the sentence.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidParameter(f"{name} {text[:40]!r} {refusal}", extra={"parameter": name})
    return int(text)


def parse_document(text: str | None, repeated: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Parse a document's text; None if there is none.

    Args:
        text: JSON text.
        repeated: query parameters that must not be sent beside a document.

    Raises:
        InvalidJson: it is not JSON, or no object.
        InvalidParameter: the query has attributes as well.
    """
    if text is None:
        return None
    if repeated:
        names = ", ".join(sorted(repeated))
        raise InvalidParameter(f"the operator document is sent, so the query must not repeat it: remove {names}")
    try:
        document = read_json(text.encode(), max_containers=MOST_JSON_CONTAINERS)
    except InvalidJson as error:
        raise InvalidJson(f"{json_path(('op',))}: {error.detail}") from None
    if not isinstance(document, Mapping):
        raise InvalidJson(f"$.op must be a JSON object, not {type(document).__name__}")
    return cast("Mapping[str, Any]", document)


def match_names(
    tensors: Sequence[AnnouncedTensor], required: Sequence[str], optional: Sequence[str] = (), *, more: str = ""
) -> None:
    """Compare the names of the body's tensors with those that the operation takes.

    Args:
        tensors: what the body announces.
        required: names that must be there.
        optional: names that may be there.
        more: the first of any number of names that could follow, for the message.

    Raises:
        TensorMismatch: one is missing, or unknown.
    """
    names = [tensor.name for tensor in tensors]
    if not {*required} <= {*names} <= {*required, *optional}:
        sent = ", ".join(repr(name[:60]) for name in names[:8]) or "none"
        sent += f" and {len(names) - 8} more" if len(names) > 8 else ""
        may = f" and may have {', '.join(map(repr, optional))}" if optional else ""
        takes = ", ".join(map(repr, required)) + (f", {more!r}, ..." if more else "")
        raise TensorMismatch(f"the operator takes the tensors {takes}{may}; the body has {sent}")
