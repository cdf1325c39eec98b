"""`GET /metrics`: what was counted, and what is in use now, for Prometheus."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version

from fastapi import APIRouter
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from tensorpost.values.problems import NotFound

from ...child_processes.libraries import LIBRARIES
from ...child_processes.process_pool import END_REASONS
from ...settings import setting_variable
from ..background_threads import CallerThreads
from ..observability.joined_metrics import JoinedMetrics
from ..observability.metrics import METRICS, Sample, SampleCollector
from ..service import Service, service_of

METRICS_QUESTION = "metrics"
"""What a process asks the others for; `own_metrics` is the answer."""

router = APIRouter()


@router.get("/metrics", summary="Read the metrics", tags=["service"], response_class=Response)
async def read_metrics(request: Request) -> Response:
    """Every metric of docs/operations.md as Prometheus's text, or OpenMetrics if `Accept` names it; 404 if off."""
    service = service_of(request)
    if service.metrics is None or service.records is None:
        raise NotFound(f"metrics are turned off here (setting {setting_variable('metrics')})")
    encode, content_type = _encoder(",".join(request.headers.getlist("accept")))
    async with service.scraping:  # those that wait hold no samples, which may be megabytes
        if service.group.is_shared:
            own, others = await asyncio.gather(own_metrics(service), service.group.siblings.ask(METRICS_QUESTION))
            live = dict([own, *others])
            ended = [] if service.kept_metrics is None else service.kept_metrics.read(live.keys())
            joined = JoinedMetrics([*live.values()], ended)
            text = await CallerThreads(service.parsing, "metrics").run(True, encode, joined)
        else:
            text = await _written_metrics(service, encode)
    return Response(text, headers={"Vary": "Accept"}, media_type=content_type)


async def own_metrics(service: Service) -> tuple[str, str]:
    """The name of this process and its metrics, which are kept for when it has ended; for one that joins them."""
    text, kept = (await _written_metrics(service, generate_latest)).decode(), service.kept_metrics
    if kept is None:
        return "", text
    await CallerThreads(service.parsing, "metrics").run(True, kept.write, text)
    return kept.name, text


async def _written_metrics(service: Service, encode: Callable[[Collector], bytes]) -> bytes:
    """The metrics of this process in an encoding of prometheus-client's."""
    assert service.metrics is not None
    assert service.records is not None
    service.records.flush()
    samples = [*service.metrics.samples(), *_state(service)]
    # Off the event loop's thread: with every operator in use it takes 21 ms as text and 36 ms as OpenMetrics.
    return await CallerThreads(service.parsing, "metrics").run(True, _written, samples, encode)


def _written(samples: list[Sample], encode: Callable[[Collector], bytes]) -> bytes:
    """The samples and the figures of the process in an encoding of prometheus-client's."""
    registry = CollectorRegistry()
    registry.register(SampleCollector(samples))
    ProcessCollector(registry=registry)
    return encode(registry)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What writes the format that `Accept` asks for, and its media type."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a version that is no number with numbers
        return choose_encoder("")


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
        "tensorpost_held_tensors": service.tensors.count,
        "tensorpost_held_tensor_bytes": service.tensors.size_in_bytes,
        "tensorpost_ready": int(service.ready),
        "tensorpost_access_lines_dropped_total": 0 if service.access_log is None else service.access_log.dropped,
        "tensorpost_traces_dropped_total": 0 if service.traces is None else service.traces.dropped,
    }
    for name, value in numbers.items():
        yield Sample(name, (), value)
    for reason, count in service.tensors.dropped.items():
        yield Sample("tensorpost_held_tensors_dropped_total", (reason,), count)
    yield Sample("tensorpost_build_info", (version("tensorpost"), platform.python_version()), 1)
    for state in [library.state for library in LIBRARIES]:
        yield Sample("tensorpost_library_processes", (state.name,), state.processes)
        for reason in END_REASONS:
            yield Sample("tensorpost_library_processes_ended_total", (state.name, reason), state.ended.get(reason, 0))
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
