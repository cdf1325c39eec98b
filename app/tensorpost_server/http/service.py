"""The state of the service, and the endpoints that show it: devices, limits, health."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from tensorpost.values.library_message import without_paths
from tensorpost.values.problems import NotReady

from ..child_processes.libraries import LIBRARIES
from ..engine import Admission, Pool
from ..settings import Settings, setting_variable
from .access.access_control import AccessControl
from .bounded_cache import BoundedCache
from .caller_address import TrustedProxies
from .calls.prepared_call import CallKey, PreparedCall
from .observability.access_log import AccessLog
from .observability.metrics import RequestMetrics
from .observability.request_record import RecordBatch, refused_record
from .observability.traces import Traces
from .open_inference.models import ModelCatalogue
from .open_inference.shared_memory import SharedMemory
from .open_inference.statistics import ModelStatistics
from .parse_threads import ParseThreads

_MOST_CALLS = 512
_LIMITS = (
    "numpy_threads", "cuda_memory_bytes", "cuda_pinned_bytes", "directml_seconds", "auto_minimum_work", "idle_seconds",
    "max_body_bytes", "max_head_bytes", "max_http_head_bytes", "max_drain_bytes", "max_json_bytes",
    "max_json_elements", "max_image_pixels", "max_output_bytes", "max_work", "max_seconds", "memory_bytes",
    "pool_bytes", "max_requests", "onnx_processes", "caller_share", "slow_upload_seconds", "max_connections",
    "max_connections_per_address", "grpc_idle_seconds", "slice_bytes", "slices_ahead", "head_timeout_seconds",
    "min_bytes_per_second", "stuck_seconds", "inline_bytes", "inline_work", "receive_timeout_seconds",
    "send_timeout_seconds", "retry_after_seconds", "keep_alive_seconds", "shutdown_seconds", "picture_processes",
    "picture_seconds",
)  # fmt: skip
"""The settings that `/v1/limits` shows. A new one is not shown to callers unless it is added here."""

_log = logging.getLogger(__name__)


def _stop_process() -> None:
    """Ask this process to stop in order: every ASGI server handles SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


class JsonDocument(JSONResponse):
    """JSON that ends with a line feed, so that a shell's prompt does not follow it on the same line."""

    def render(self, content: Any) -> bytes:
        """See starlette."""
        return super().render(content) + b"\n"


@dataclass(slots=True)
class Service:
    """What lives as long as the application; the pool is opened when it starts and closed when it stops.

    Attributes:
        settings: the limits.
        admission: the memory budget.
        access: who may call.
        models: the models of `/v2`, by name.
        regions: shared memory that callers registered.
        proxies: peers that forward the addresses of their callers; None if there are none.
        pool: the workers; None before the start and after the stop.
        draining: whether the server is about to stop; it then says that it is not ready.
        calls: the call cache.
        replays: whether responses may be replayed; False where middleware wants to see every response.
        access_log: writes a line for each request that has ended; None if it is off.
        metrics: counts the requests that have ended; None if they are off.
        traces: makes spans of the requests that have ended; None if they are off.
        records: takes the record of each request that has ended, on every path; None if nobody wants them.
        parsing: the thread for large JSON and heads.
        scraping: held while metrics are written.
        slow_threads: threads for what may take seconds: pictures, npz, compressed bodies, the package onnx.
        model_statistics: how often each model was called.
        end: ends the process when a device failed for good, so that its supervisor starts a clean one.
    """

    settings: Settings
    admission: Admission
    access: AccessControl
    models: ModelCatalogue
    regions: SharedMemory
    proxies: TrustedProxies | None = None
    pool: Pool | None = None
    draining: bool = False
    calls: BoundedCache[CallKey, PreparedCall] = field(
        default_factory=lambda: BoundedCache[CallKey, PreparedCall](_MOST_CALLS)
    )
    replays: bool = False
    access_log: AccessLog | None = None
    metrics: RequestMetrics | None = None
    traces: Traces | None = None
    records: RecordBatch | None = None
    parsing: ParseThreads = field(default_factory=ParseThreads)
    scraping: asyncio.Lock = field(default_factory=asyncio.Lock)
    slow_threads: ParseThreads = field(default_factory=lambda: ParseThreads(2, "tensorpost-slow"))
    end: Callable[[], None] = _stop_process
    model_statistics: ModelStatistics = field(init=False)

    def __post_init__(self) -> None:
        self.model_statistics = ModelStatistics(self.models)

    @property
    def ready(self) -> bool:
        """Whether requests will be served."""
        return self.pool is not None and not self.draining and self.pool.lost is None

    def opened(self) -> Pool:
        """The pool, whether or not its devices still work.

        Raises:
            NotReady: it is not open.
        """
        if self.pool is None:
            raise self._not_ready("the server is starting or stopping; try again")
        return self.pool

    def workers(self) -> Pool:
        """The pool, to run something on.

        Raises:
            NotReady: it is not open, or a device failed for good and this process is about to end.
        """
        pool = self.opened()
        if pool.lost is not None:
            raise self._not_ready(f"this server ends, and another one should start: {without_paths(pool.lost)}")
        return pool

    def stopped(self) -> NotReady:
        """The error for a request that was not complete when the time to stop was over."""
        seconds = self.settings.shutdown_seconds
        return self._not_ready(
            f"the server was told to stop and waited {seconds} s for this request (setting "
            f"{setting_variable('shutdown_seconds')}); send it again to one that is ready"
        )

    def observe_by(self, access_log: AccessLog | None, traces: Traces | None = None) -> None:
        """Let the metrics, this access log and these traces, where they are on, know of each request that ends."""
        if self.records is not None:
            self.records.flush()
        for before in (self.access_log, self.traces):
            if before is not None:
                before.close()
        self.access_log, self.traces = access_log, traces
        observers = (self.metrics, access_log, traces, self.model_statistics)
        self.records = RecordBatch([observer.observe for observer in observers if observer is not None])

    def observe_refusal(self, status: int, id_: str, address: str | None) -> None:
        """Take note of a request that the protocol class refused, see `OBSERVE_REFUSAL`."""
        if self.records is not None:
            self.records.add(refused_record(status, id_, address))

    def device_lost(self, reason: str) -> None:
        """Log it and end the process: a failed device leaves state in the process that cannot be repaired there."""
        _log.critical("%s; this process ends", reason)
        self.end()

    def _not_ready(self, why: str) -> NotReady:
        return NotReady(why, extra={"retry_after_seconds": self.settings.retry_after_seconds})


def service_of(request: Request) -> Service:
    """The service of the application that got this request."""
    return request.app.state.service


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
    values = service.settings.model_dump()
    limits = [
        {
            "name": name,
            "value": values[name],
            "setting": setting_variable(name),
            "description": Settings.model_fields[name].description,
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
    found = {"limits": limits, "in_use": in_use, "large_blocks": memory, "seconds_per_element": rates}
    return JsonDocument(found)


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
