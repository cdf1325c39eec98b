"""`GET /metrics`: what was counted, and what is in use now, for Prometheus."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tensorpost.problems import NotFound

from ...machine import resident_memory
from ...settings import setting_variable
from ..service import Service, service_of
from .metrics import CONTENT_TYPE, METRICS, Sample, exposition

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

__all__ = ["router"]

router = APIRouter()
_STARTED = time.time()


@router.get("/metrics", summary="Read the metrics", tags=["service"], response_class=Response)
async def read_metrics(request: Request) -> Response:
    """Every metric of docs/operations.md in Prometheus's text format 0.0.4; 404 if a setting turned them off."""
    service = service_of(request)
    if service.metrics is None or service.records is None:
        raise NotFound(f"metrics are turned off here (setting {setting_variable('metrics')})")
    service.records.flush()
    text = exposition([*service.metrics.samples(), *_state(service), *_process()])
    return Response(text, media_type=CONTENT_TYPE)


def _state(service: Service) -> Iterator[Sample]:
    """What is in use now."""
    admission = service.admission
    buffers = admission.buffers
    numbers = {
        "tensorpost_requests_in_flight": admission.requests_in_flight,
        "tensorpost_requests_limit": admission.max_requests,
        "tensorpost_memory_reserved_bytes": admission.bytes_in_flight,
        "tensorpost_memory_limit_bytes": admission.memory_bytes,
        "tensorpost_buffer_pool_lent_bytes": buffers.allocated_bytes,
        "tensorpost_buffer_pool_kept_bytes": buffers.kept_bytes,
        "tensorpost_buffer_pool_reused_total": buffers.reused,
        "tensorpost_ready": int(service.ready),
        "tensorpost_access_lines_dropped_total": 0 if service.access_log is None else service.access_log.dropped,
        "tensorpost_traces_dropped_total": 0 if service.traces is None else service.traces.dropped,
    }
    for name, value in numbers.items():
        yield Sample(name, (), value)
    yield Sample("tensorpost_build_info", (version("tensorpost"), platform.python_version()), 1)
    pool = service.pool
    if pool is None:
        return
    for worker in pool.workers.values():
        labels = worker.backend.name, str(worker.backend.index)
        yield Sample("tensorpost_device_busy_seconds", labels, round(worker.busy_seconds, 3))
    for status in pool.status():
        if status.index is None or status.device is None:
            continue  # it was never there
        labels = status.name, str(status.index)
        yield Sample("tensorpost_device_up", labels, int(status.reason is None))
        yield Sample("tensorpost_device_queue_bytes", labels, status.queued_bytes)
        for name, value in status.gauges.items():
            if (metric := f"tensorpost_{name}") in METRICS:
                yield Sample(metric, labels, value)


def _process() -> Iterator[Sample]:
    """What Prometheus's own libraries say of every process, by the same names."""
    yield Sample("process_start_time_seconds", (), round(_STARTED, 3))
    yield Sample("process_cpu_seconds_total", (), round(time.process_time(), 3))
    with suppress(OSError, AttributeError, ValueError):  # there is no /proc, or it is not Linux's
        if (resident := resident_memory()) is not None:
            yield Sample("process_resident_memory_bytes", (), resident)
        yield Sample("process_open_fds", (), len([*Path("/proc/self/fd").iterdir()]))
    if resource is not None:
        yield Sample("process_max_fds", (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
