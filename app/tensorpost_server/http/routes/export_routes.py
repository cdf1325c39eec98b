"""`/v1/tensors/{name}/exports`: held tensors for programs that use the same CUDA device; no element is sent."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tensorpost.values.problems import InvalidParameter

from ...backends import SharingBackend
from ...engine import Worker
from ..headers import header_fields
from ..open_inference.cuda_region import sharing_worker
from ..service import Service, service_of
from ..wires.call_parser import read_query, refuse_unknown
from ..wires.tensor_store import OpenTensor
from .json_document import JsonDocument

router = APIRouter(tags=["tensors"])

_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "example": "mask"}
_EXPORT = {"name": "export", "in": "path", "required": True, "schema": {"type": "string"}}
_DEVICE = {"name": "device", "in": "query", "schema": {"type": "integer", "minimum": 0}}


@router.post(
    "/v1/tensors/{name}/exports",
    summary="Share a held tensor on a CUDA device",
    status_code=201,
    openapi_extra={"parameters": [_NAME, _DEVICE]},
)
async def export_tensor(request: Request) -> JsonDocument:
    """Copy a held tensor on a CUDA device, for a program on this host that opens the copy by its handle.

    `raw_handle` is a `cudaIpcMemHandle_t`; the tensor, packed, begins with that memory. The copy is the caller's until
    `DELETE` or for a minute; whoever has it open must close it before. `device` is the server's number of the device;
    without it, one that has a copy already, or the first.
    """
    service = service_of(request)
    owner = _owner(request)
    parameters = read_query(request.url.query)
    device = parameters.pop("device", None)
    refuse_unknown(parameters, ["device"])
    tensor = await service.tensors.use(owner, request.path_params["name"])
    try:
        export = await service.exports.make(tensor, _worker(service, tensor, device))
    finally:
        tensor.release()
    location = {"Location": f"/v1/tensors/{tensor.held.name}/exports/{export.id}"}
    return JsonDocument(export.describe(tensor), 201, location)


@router.delete(
    "/v1/tensors/{name}/exports/{export}",
    summary="End an export",
    status_code=204,
    response_class=Response,
    openapi_extra={"parameters": [_NAME, _EXPORT]},
)
async def end_export(request: Request) -> Response:
    """Free the copy of an export; the program that had it open has closed it."""
    service = service_of(request)
    service.exports.end(_owner(request), request.path_params["name"], request.path_params["export"])
    return Response(status_code=204)


def _owner(request: Request) -> str:
    """The caller, who may use CUDA shared memory.

    Raises:
        NoBackend: CUDA shared memory is off.
        Forbidden: the caller is not on this host.
    """
    service = service_of(request)
    service.regions.check(request.scope, header_fields(request.scope["headers"]), "cuda")
    return service.owner_of(request.scope)


def _worker(service: Service, tensor: OpenTensor, device: str | None) -> Worker:
    """The device that a query names, or the best one.

    Raises:
        NoBackend: there is no CUDA device here.
        InvalidParameter: there is not this one.
    """
    pool = service.workers()
    if device is not None:
        if not (device.isascii() and device.isdigit() and len(device) < 9):
            raise InvalidParameter(f"device is {device[:40]!r}; it must be a number from 0 up")
        return sharing_worker(pool, int(device))
    sharing = [worker for worker in pool.workers.values() if isinstance(worker.backend, SharingBackend)]
    having = [worker for worker in sharing if cast("SharingBackend", worker.backend).has_copy(tensor.data)]
    return (having or sharing or [sharing_worker(pool, 0)])[0]
