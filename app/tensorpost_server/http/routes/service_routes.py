"""The endpoints that show the state of the service: devices, limits, health."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request

from tensorpost.values.library_message import without_paths

from ...child_processes.libraries import LIBRARIES
from ...settings import setting_descriptions, setting_variable
from ..service import service_of
from .json_document import JsonDocument

_LIMITS = (
    "numpy_threads", "cuda_memory_bytes", "cuda_pinned_bytes", "directml_seconds", "auto_minimum_work", "idle_seconds",
    "max_body_bytes", "max_head_bytes", "max_http_head_bytes", "max_drain_bytes", "max_json_bytes",
    "max_json_elements", "max_image_pixels", "max_output_bytes", "max_graph_nodes", "max_graph_constant_bytes",
    "max_stored_graphs", "max_stored_graph_bytes", "stored_graph_idle_seconds",
    "max_held_tensors", "max_held_tensor_bytes", "held_tensor_idle_seconds", "held_tensor_seconds",
    "max_work", "max_seconds", "memory_bytes",
    "pool_bytes", "max_requests", "onnx_processes", "caller_share", "slow_upload_seconds", "max_connections",
    "max_connections_per_address", "grpc_idle_seconds", "slice_bytes", "slices_ahead", "head_timeout_seconds",
    "min_bytes_per_second", "stuck_seconds", "inline_bytes", "inline_work", "receive_timeout_seconds",
    "send_timeout_seconds", "retry_after_seconds", "keep_alive_seconds", "shutdown_seconds", "picture_processes",
    "picture_seconds",
)  # fmt: skip
"""The settings that `/v1/limits` shows. A new one is not shown to callers unless it is added here."""

router = APIRouter()


@router.get("/v1/devices", summary="List the devices", tags=["service"])
async def list_devices(request: Request) -> JsonDocument:
    """Every device, or why it cannot be used; how large a plan must be for `auto` to prefer it; what is in use now.

    Beside them the libraries that compute in processes of their own: how many there are, and how many have ended.
    """
    pool = service_of(request).opened()
    devices = [asdict(status) for status in pool.status()]
    for device in devices:
        device["reason"] = device["reason"] and without_paths(device["reason"])
    libraries = [asdict(library.state) for library in LIBRARIES]
    return JsonDocument({"default": pool.default, "devices": devices, "libraries": libraries})


@router.get("/v1/limits", summary="List the limits", tags=["service"])
async def list_limits(request: Request) -> JsonDocument:
    """Each limit with its variable and reason; beside it, the memory in use, and each device's seconds per element."""
    service = service_of(request)
    values, descriptions = service.settings.model_dump(), setting_descriptions()
    limits = [
        {
            "name": name,
            "value": values[name],
            "setting": setting_variable(name),
            "description": descriptions.get(name),
        }
        for name in _LIMITS
    ]
    in_use = {
        "bytes_in_flight": service.admission.bytes_in_flight,
        "requests_in_flight": service.admission.requests_in_flight,
    }
    buffers = service.admission.buffers
    memory = {"lent_bytes": buffers.allocated_bytes, "kept_bytes": buffers.kept_bytes}
    workers = {} if service.pool is None else service.pool.workers
    rates = {key: dict(worker.costs.seconds_per_element) for key, worker in workers.items()}
    document = {"limits": limits, "in_use": in_use, "large_blocks": memory, "seconds_per_element": rates}
    return JsonDocument(document)


# The paths are those of the Open Inference Protocol's health endpoints.
@router.get("/v2/health/live", summary="Is the process alive?", tags=["health"])
async def live(request: Request) -> JsonDocument:
    """200 as long as the event loop answers and every device works; 503 with a `reason` if only a restart helps."""
    service = service_of(request)
    fault = None if service.pool is None else service.pool.fault(service.settings.stuck_seconds)
    if fault is None:
        return JsonDocument({"live": True})
    return JsonDocument({"live": False, "reason": without_paths(fault)}, 503)


@router.get("/v2/health/ready", summary="Will requests be served?", tags=["health"])
async def ready(request: Request) -> JsonDocument:
    """200 if requests will be served; 503 while starting or draining."""
    service = service_of(request)
    is_ready, is_live = service.ready, service.pool is None or service.pool.lost is None
    return JsonDocument({"live": is_live, "ready": is_ready}, 200 if is_ready else 503)
