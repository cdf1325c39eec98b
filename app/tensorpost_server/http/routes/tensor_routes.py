"""`/v1/tensors`: holding tensors, listing and deleting them. Reading one is dispatched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tensorpost import frame
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidParameter

from ...backends import SharingBackend
from ...engine import Ticket
from ..background_threads import CallerThreads
from ..caller_address import caller_of
from ..caller_watch import CallerWatch
from ..calls.prepared_call import prepare
from ..connection.receive_into import arrived_bytes, receive_into
from ..headers import FRAMING, Framing, content_length, header_fields
from ..observability.request_record import observation_of
from ..open_inference.region_upload import RegionUpload
from ..request_body import RequestBody, receive_chunked
from ..service import service_of
from ..wires.call_parser import read_query, refuse_unknown
from ..wires.held_inputs import CallerTensors
from ..wires.kept_answer import replace_of
from ..wires.operator_answer import OperatorAnswer
from ..wires.tensor_read import TensorReadWire
from ..wires.tensor_store import TensorPlace
from ..wires.tensor_upload import UploadContext, receive_tensor, upload_format
from .json_document import JsonDocument

router = APIRouter(tags=["tensors"])

_Receive: TypeAlias = Callable[[Ticket, Callable[[Layout], Awaitable[memoryview]]], Awaitable[None]]
"""Receives a tensor: with the request's memory, into memory that it asks for."""

_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "example": "mask"}
_BOX = {"name": "box", "in": "query", "schema": {"type": "string"}, "example": "0:10,:,::2"}
_REPLACE = {"name": "replace", "in": "query", "schema": {"type": "boolean", "default": False}}
_RAW = [
    {
        "name": "data_type",
        "in": "query",
        "schema": {"type": "string"},
        "description": "Of raw bytes: FLOAT32.",
    },
    {"name": "sizes", "in": "query", "schema": {"type": "string"}, "description": "Of raw bytes: 1,3,64,64."},
]
_REGION = [
    {
        "name": "region",
        "in": "query",
        "schema": {"type": "string"},
        "description": "A region of shared memory that has the elements, instead of the body; they are copied.",
    },
    {"name": "offset", "in": "query", "schema": {"type": "integer", "minimum": 0}},
]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"}, "example": {"dtype": "F32", "shape": [2, 2], "data": [1, 2, 3, 4]}
        },
        frame.NPY_MEDIA_TYPE: _BINARY,
        frame.MEDIA_TYPE: _BINARY,
        "application/x-npz": _BINARY,
        "application/octet-stream": _BINARY,
        "image/png": _BINARY,
        "image/jpeg": _BINARY,
    },
}  # fmt: skip


@router.get("/v1/tensors", summary="List the held tensors")
async def list_tensors(request: Request) -> JsonDocument:
    """The caller's held tensors, with type, sizes, bytes, where they lie, age and idle time."""
    service = service_of(request)
    sharing = {
        key: worker.backend
        for key, worker in service.opened().workers.items()
        if isinstance(worker.backend, SharingBackend)
    }
    described: list[dict[str, Any]] = []
    for tensor in await service.tensors.listed(service.owner_of(request.scope)):
        data = service.tensors.data_of(tensor)
        copies = [key for key, backend in sharing.items() if data is not None and backend.has_copy(data)]
        described.append(tensor.describe(copies))
    return JsonDocument({"tensors": described})


@router.post(
    "/v1/tensors", summary="Hold a tensor under a new name", status_code=201,
    openapi_extra={"parameters": [*_RAW, *_REGION], "requestBody": _BODY},
)  # fmt: skip
async def hold_new_tensor(request: Request) -> JsonDocument:
    """The same as `PUT /v1/tensors/{name}`, with a name that the server makes; `Location` has it."""
    return await _hold(request, None)


@router.put(
    "/v1/tensors/{name}",
    summary="Hold a tensor",
    responses={
        200: {"description": "It took the place of another tensor."},
        201: {"description": "There was none of this name.", "content": {"application/json": {"schema": {}}}},
    },
    openapi_extra={"parameters": [_NAME, _REPLACE, *_RAW, *_REGION], "requestBody": _BODY},
)
async def hold_tensor(request: Request) -> JsonDocument:
    """Keep a tensor for calls that refer to it by its name: `?input=@NAME`, or in JSON `{"tensor": NAME}`.

    The body is any that an input may be, with one tensor; or `region` names a region of shared memory. A tensor of this
    name is replaced only with `replace=true`; else the answer is 409. Calls that read the old one are finished with it.
    What is not used for an hour (TENSORPOST_HELD_TENSOR_IDLE_SECONDS) is freed.
    """
    return await _hold(request, request.path_params["name"])


@router.get(
    "/v1/tensors/{name}",
    summary="Read a held tensor, or a part of it",
    response_class=Response,
    responses={200: {"description": "The elements.", "content": {frame.NPY_MEDIA_TYPE: _BINARY}}},
    openapi_extra={"parameters": [_NAME, _BOX]},
)
async def read_tensor(request: Request) -> Response:
    """The elements, in the form that `Accept` names; npy without it.

    `box` takes a part as NumPy slices it, an item for each axis: start:stop:step with steps above 0, or an index, which
    drops the axis.
    """
    # `OperatorDispatch` answers GET before the routing; HEAD comes here, and nothing is computed for it.
    service, scope = service_of(request), request.scope
    tensors = CallerTensors.of(service.tensors, service.owner_of(scope), scope)
    wire = TensorReadWire(request.path_params["name"], tensors)
    try:
        format_ = wire.format(header_fields(scope["headers"]), 0)
        call = await wire.call(request.url.query, format_)
        prepared = prepare(call, service.settings)
        worker = service.opened().choose(prepared.plan, prepared.options.backend)
        if not prepared.answer.streams:  # its length is known when it has been written
            assert isinstance(call.answer, OperatorAnswer)
            response = Response(media_type=call.answer.format.response.value)
            del response.headers["content-length"]
            return response
        head = prepared.answer.head(prepared.plan, worker)
        fields = {name.decode(): value.decode() for name, value in head.headers}
        return Response(headers=fields)
    finally:
        wire.close()


@router.delete(
    "/v1/tensors/{name}",
    summary="Delete a held tensor",
    status_code=204,
    response_class=Response,
    openapi_extra={"parameters": [_NAME]},
)
async def delete_tensor(request: Request) -> Response:
    """Free a held tensor; calls that read it are finished."""
    service = service_of(request)
    await service.tensors.delete(service.owner_of(request.scope), request.path_params["name"])
    return Response(status_code=204)


async def _hold(request: Request, name: str | None) -> JsonDocument:
    service, fields, owner = service_of(request), header_fields(request.scope["headers"]), _owner(request)
    parameters = read_query(request.url.query)
    replaces = replace_of(parameters)
    service.workers()  # refuses when a device was lost: the process ends, and only other ones would have the tensor
    if replaces and fields.get(b"if-none-match", b"").strip() == b"*":
        raise InvalidParameter("If-None-Match: * and replace=true contradict each other; send one of them")
    if name is not None:
        await service.tensors.check_new(owner, name, replaces=replaces)
    region = RegionUpload.of(parameters)
    receive = _from_body(request, fields, parameters) if region is None else _from_region(request, fields, region)
    refuse_unknown(parameters, ["replace", "data_type", "sizes", "region", "offset"])
    places: list[TensorPlace] = []

    async def room(layout: Layout) -> memoryview:
        places.append(await service.tensors.place(owner, name, layout, replaces=replaces))
        return places[0].memory

    with service.admission.admit(0, caller_of(request.scope)) as ticket, CallerWatch(request.receive):
        try:
            await receive(ticket, room)
            tensor, was_replaced = await places[0].finish()
        finally:
            for place in places:
                place.close()
    location = {"Location": f"/v1/tensors/{tensor.name}"}
    return JsonDocument(tensor.describe(), 200 if was_replaced else 201, location)


def _owner(request: Request) -> str:
    return service_of(request).owner_of(request.scope)


def _from_body(request: Request, fields: Mapping[bytes, bytes], parameters: dict[str, str]) -> _Receive:
    """What receives the tensor of a body."""
    service, scope = service_of(request), request.scope
    settings, caller, framing = service.settings, caller_of(scope), scope[FRAMING]
    assert isinstance(framing, Framing)
    limit, pause = settings.max_body_bytes, settings.receive_timeout_seconds
    length = limit if framing.chunked else content_length(framing.length, limit)
    format_ = upload_format(fields, parameters, length)

    async def receive(ticket: Ticket, room: Callable[[Layout], Awaitable[memoryview]]) -> None:
        if framing.chunked:
            content = await receive_chunked(request.receive, limit, pause, ticket.grow)
            body = RequestBody(request.receive, len(content), pause)
            body.supply(memoryview(content).toreadonly())
        else:
            body = RequestBody(request.receive, length, pause, receive_into(scope), arrived_bytes(scope))
        slow, parsing = CallerThreads(service.slow_threads, caller), CallerThreads(service.parsing, caller)
        try:
            await receive_tensor(UploadContext(body, ticket, room, settings, parsing, slow), format_)
        finally:
            if (observation := observation_of(scope)) is not None:
                observation.received_bytes = body.received

    return receive


def _from_region(request: Request, fields: Mapping[bytes, bytes], region: RegionUpload) -> _Receive:
    """What receives the tensor of a region of shared memory."""
    service, scope = service_of(request), request.scope
    framing = scope[FRAMING]
    assert isinstance(framing, Framing)
    if framing.chunked or framing.length:
        raise InvalidParameter(
            "the elements come from the region, so the request has no body; leave out the body, or region",
            extra={"parameter": "region"},
        )
    owner = service.regions.check(scope, fields)

    async def receive(ticket: Ticket, room: Callable[[Layout], Awaitable[memoryview]]) -> None:
        del ticket
        threads = CallerThreads(service.slow_threads, caller_of(scope))
        await region.receive(service.regions, owner, room, threads)

    return receive
