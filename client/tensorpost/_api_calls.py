"""The calls of the service's HTTP API, as coroutines that `Client` and `AsyncClient` share.

A request's body is a tuple of views of the caller's memory, never joined, so that it can be repeated. Output memory is
taken after the head of the answer was found right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ._arrays import Call, Inputs, Outputs, call_of, check_out, output_memory, wire_inputs
from ._checks import shown, text, whole_number
from ._http1 import Request
from ._response_reader import ResponseReader, ask
from ._results import Progress, Result, ServerTiming, TensorBlock, Validation
from ._runtime import Deadline
from ._session import Session
from .descriptors import FeatureLevel
from .frame import MEDIA_TYPE
from .operation import Operation
from .problems import ConnectionProblem, InvalidParameter, Unavailable

__all__ = ["BlockStream", "compute", "document", "health", "stream", "validate"]

_ACCEPT_JSON = (("accept", "application/json"),)
_SEND_JSON = (("content-type", "application/json"), *_ACCEPT_JSON)
_FRAME = (("content-type", MEDIA_TYPE), ("accept", MEDIA_TYPE))


class CallOptions(NamedTuple):
    """What goes into an operator's request beside its inputs."""

    backend: str | None = None
    device: int | None = None
    feature_level: str | int | FeatureLevel | None = None
    progress: Callable[[Progress], None] | None = None


def _request(call: Call, inputs: Inputs, options: CallOptions) -> Request:
    body = (memoryview(call.head), *wire_inputs(call, inputs))
    if options == _NO_OPTIONS:
        return Request("POST", call.endpoint, _FRAME, body)
    backend, device, feature_level, progress = options
    query: dict[str, str] = {}
    if backend is not None:
        query["backend"] = text("backend", backend, "the name of one, as devices() lists them, or 'auto'")
    if device is not None:
        query["device"] = str(whole_number("device", device, 0, ", as devices() counts them"))
    if feature_level is not None:
        if call.endpoint.startswith("/v1/onnx/"):
            raise InvalidParameter("feature levels are DirectML's; an ONNX node has an opset instead")
        query["feature_level"] = str(FeatureLevel.parse(feature_level))
    if progress is not None and not callable(progress):
        raise InvalidParameter(f"progress is {shown(progress)}; it must be a function that takes a Progress")
    target = call.endpoint + (f"?{urlencode(query)}" if query else "")
    return Request("POST", target, _FRAME, body, progress)


_NO_OPTIONS = CallOptions()


async def compute(
    session: Session, operation: Operation, inputs: Inputs, out: Outputs, options: CallOptions
) -> Result[Any]:
    """Run an operation and receive its outputs whole.

    Raises:
        InvalidParameter: an argument is wrong; nothing was sent.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    call = call_of(operation)
    request = _request(call, inputs, options)
    given = check_out(call.outputs, out)

    async def attempt(deadline: Deadline) -> Result[Any]:
        reader = await ask(session.sender, request, deadline)
        try:
            metadata = await reader.frame_head(call)
            arrays: dict[str, NDArray[Any]] = {}
            for slot, memory in zip(call.outputs, given, strict=True):
                target, arrays[slot.name] = output_memory(slot, memory)
                await reader.fill(target)
            await reader.finish()
        finally:
            await reader.close()
        timing = ServerTiming(reader.head.headers.get("server-timing", ""))
        named = metadata.get("backend", ""), metadata.get("device", "")
        return Result(arrays, *named, timing, reader.head.request_id)

    return await session.repeated(attempt)


class BlockStream:
    """An operation's outputs block by block. The request is sent when the first block is asked for.

    Nothing is repeated once the head of the answer came.
    """

    def __init__(self, session: Session, request: Request, call: Call, block_bytes: int) -> None:
        self._session, self._request, self._call = session, request, call
        self._reader: ResponseReader | None = None
        self._left = sum([slot.layout.size_in_bytes for slot in call.outputs])
        self._places = (
            (slot, start, min(block_bytes, slot.layout.size_in_bytes - start))
            for slot in call.outputs
            for start in range(0, slot.layout.size_in_bytes, block_bytes)
        )
        self._begun = False

    async def next(self) -> memoryview | TensorBlock | None:
        """The next block, None after the last one."""
        if not self._begun:
            self._begun = True
            self._reader = await self._session.repeated(self._open)
            if self._left == 0:
                await self._reader.finish()
        place = next(self._places, None)
        if place is None or self._reader is None:
            return None
        slot, start, size = place
        data = np.empty(size, np.uint8).data  # new memory for each block: a caller may keep one while the next comes
        await self._reader.fill(data)
        self._left -= size
        if self._left == 0:
            await self._reader.finish()
        return data if len(self._call.outputs) == 1 else TensorBlock(slot.name, start, data)

    async def _open(self, deadline: Deadline) -> ResponseReader:
        reader = await ask(self._session.sender, self._request, deadline)
        try:
            await reader.frame_head(self._call)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def close(self) -> None:
        """Let go of the connection."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


def stream(
    session: Session, operation: Operation, inputs: Inputs, block_bytes: int, options: CallOptions
) -> BlockStream:
    """The stream of an operation's outputs. Raises `InvalidParameter` as `compute` does."""
    call = call_of(operation)
    block_bytes = whole_number("block_bytes", block_bytes, 1)
    return BlockStream(session, _request(call, inputs, options), call, block_bytes)


async def document(session: Session, path: str, *segments: str) -> Any:
    """GET a JSON document. `segments` are appended to the path, percent-encoded.

    Raises:
        InvalidParameter: a segment is no text.
    """
    for segment in segments:
        text("name", segment, "the name of an operator, for instance 'TILE'")
    target = "/".join([path, *(quote(segment, safe="") for segment in segments)])
    return (await _json(session, Request("GET", target, _ACCEPT_JSON)))[0]


async def _json(session: Session, request: Request) -> tuple[Any, ResponseReader]:
    async def attempt(deadline: Deadline) -> tuple[Any, ResponseReader]:
        reader = await ask(session.sender, request, deadline)
        try:
            return await reader.json(), reader
        finally:
            await reader.close()

    return await session.repeated(attempt)


async def health(session: Session, path: str) -> bool:
    """Whether a health page answers with success. No server, a busy one and one that is draining are a plain no."""
    try:
        deadline = Deadline(session.origin.timeout.total)
        reader = await ask(session.sender, Request("GET", path, _ACCEPT_JSON), deadline)
        try:
            await reader.drain()
        finally:
            await reader.close()
    except (ConnectionProblem, Unavailable):
        return False
    return True


async def validate(
    session: Session, operation: Operation | Mapping[str, Any], feature_level: str | int | FeatureLevel | None
) -> Validation:
    """Ask a server whether it would accept a descriptor."""
    if isinstance(operation, Mapping):
        try:
            body = json.dumps(operation, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidParameter(f"the operator document cannot be written as JSON: {error}") from None
    else:
        body = operation.to_document_text()
    level = "" if feature_level is None else f"?feature_level={FeatureLevel.parse(feature_level)}"
    said, reader = await _json(
        session, Request("POST", "/v1/validate" + level, _SEND_JSON, (memoryview(body.encode()),))
    )
    try:
        return Validation.from_document(said, reader.head.request_id)
    except (KeyError, TypeError, AttributeError, InvalidParameter) as error:
        raise reader.fault(f"the answer to a validation cannot be understood ({error!r})") from error
