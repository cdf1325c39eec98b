"""The application. `create_app` builds it; devices are opened when it starts and given back when it stops."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from tensorpost.values.problems import TensorpostError

from . import machine
from .backends import DeviceOptions
from .child_processes.libraries import close_libraries, open_libraries
from .child_processes.pictures import PICTURES
from .engine import Admission, InlineLimits, Pool
from .engine.buffer_pool import KEEP_SECONDS, BufferPool
from .http.access.access_control import AccessControl
from .http.caller_address import TrustedProxies
from .http.documents import docs_pages, examples, playground
from .http.documents.openapi import expanded
from .http.error_responses import (
    REFUSALS,
    answer_disconnected,
    answer_error,
    answer_http_exception,
    answer_out_of_memory,
    answer_unexpected,
)
from .http.grpc.grpc_service import GrpcServer
from .http.observability.access_log import AccessLog, console_line, json_line
from .http.observability.log_format import log_format
from .http.observability.metrics import RequestMetrics
from .http.observability.request_record import OBSERVE_REFUSAL
from .http.observability.traces import Traces
from .http.open_inference.model_operation import resolve_presets
from .http.open_inference.models import ModelCatalogue
from .http.open_inference.shared_memory import SharedMemory
from .http.operator_dispatch import OperatorDispatch
from .http.request_body import ClientDisconnected
from .http.routes import (
    export_routes,
    graph_routes,
    inference_routes,
    metrics_routes,
    operator_routes,
    service_routes,
    tensor_routes,
)
from .http.service import FREED_QUESTION, Service
from .http.wires.cluster_stores import Cluster
from .http.wires.graph_repository import GRAPHS_QUESTION, USES_QUESTION
from .http.wires.shared_graphs import FOLDER_QUESTION
from .settings import Settings
from .shared.process_group import ProcessGroup

_DESCRIPTION = """\
POST a DirectML operator descriptor or an ONNX node, and a tensor's bytes; the result comes back as raw bytes.

    curl --fail-with-body 'localhost:8000/v1/operators/tile?repeats=1,1,3,3' -H 'content-type: application/x-npy' \\
      --data-binary @x.npy -o y.npy
"""


_WORTH_FREEING = 64 << 20
"""Bytes by which the process must have grown for unused memory to be looked for."""

_log = logging.getLogger(__name__)

_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's switches (0.165): it would ask three times per request if OpenTelemetry is on, and knows no replays."""


def open_pool(
    settings: Settings, backend: str, when_lost: Callable[[str], object], group: ProcessGroup | None = None
) -> Pool:
    """Open every device as the settings say; see `Pool.open`.

    Args:
        settings: limits and choices.
        backend: the default for requests that name none.
        when_lost: called with the reason, on any thread, when a device fails for good.
        group: the processes among which devices are divided; None if there is one.
    """
    group = ProcessGroup() if group is None else group
    options = DeviceOptions(
        threads={
            # Each may use all cores, unless somebody has said how many there are to be.
            name: group.share_of(threads) if "numpy_threads" in settings.model_fields_set else threads
            for name, threads in settings.threads_by_backend().items()
        },
        cuda_memory_bytes=settings.cuda_memory_bytes,
        cuda_pinned_bytes=settings.cuda_pinned_bytes,
        directml_debug=settings.directml_debug,
        directml_seconds=settings.directml_seconds,
        place=group.place % group.processes,  # a successor has the devices of the process that it replaces
        processes=group.processes,
    )
    return Pool.open(
        backend,
        options,
        settings.slices_ahead,
        minimum_work=settings.auto_minimum_work,
        idle_seconds=settings.idle_seconds,
        retry_after_seconds=settings.retry_after_seconds,
        when_lost=when_lost,
    )


def _operation_id(route: APIRoute) -> str:
    """The name of the function, which is what generated clients call."""
    return route.name


def create_app(
    settings: Settings | None = None, group: ProcessGroup | None = None, cluster: Cluster | None = None
) -> FastAPI:  # fmt: skip
    """Build the application. Opens nothing: no device, no socket, no file.

    Args:
        settings: default: read from the environment.
        group: what it shares with other processes of the same server; None if there are none.
        cluster: what it shares with servers on other machines; None if there are none.

    Examples:
        `uvicorn --factory tensorpost_server.main:create_app`
    """
    settings = Settings() if settings is None else settings
    group = ProcessGroup() if group is None else group
    buffers = BufferPool(group.share_of(settings.pool_bytes))
    admission = Admission(
        settings.memory_bytes, settings.max_requests, settings.retry_after_seconds, buffers=buffers,
        caller_share=settings.caller_share, slow_upload_seconds=settings.slow_upload_seconds, counts=group.requests,
    )  # fmt: skip
    metrics = RequestMetrics() if settings.metrics else None
    models = ModelCatalogue(settings.presets)
    resolve_presets(models)
    access, regions = AccessControl(settings, group.buckets), SharedMemory(settings, group)
    proxies = TrustedProxies.from_settings(settings)
    service = Service(
        settings, admission, access, models, regions, proxies, group=group, cluster=cluster, metrics=metrics
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, object]]:
        service.replays = len(app.user_middleware) == ours  # middleware that was added may want to see every response
        service.access.open()
        service.graphs.read_folder()
        grpc_server = None if settings.grpc_port is None else GrpcServer(app, service)
        traces = Traces.open() if settings.traces else None
        loop = asyncio.get_running_loop()
        service.pool = open_pool(
            settings, settings.backend, partial(loop.call_soon_threadsafe, service.device_lost), group
        )
        for worker in service.pool.workers.values():
            worker.inline = InlineLimits(settings.inline_bytes, settings.inline_work)
            worker.costs.max_seconds = settings.max_seconds
        libraries, threads = group.share_of(settings.onnx_processes), group.share_of(settings.numpy_threads)
        open_libraries(
            libraries, max(1, threads // libraries), settings.max_seconds, group.share_of(settings.pool_bytes),
            ahead=settings.onnx_ahead,
        )  # fmt: skip
        PICTURES.seconds = settings.picture_seconds
        PICTURES.open(group.share_of(settings.picture_processes), ahead=False)
        service.observe_by(_access_log(settings), traces)
        if cluster is not None:
            await cluster.open(service.shared_graphs.synchronize)
        if service.kept_metrics is not None:
            service.kept_metrics.begin()
        await group.siblings.open({
            metrics_routes.METRICS_QUESTION: partial(metrics_routes.own_metrics, service),
            GRAPHS_QUESTION: service.shared_graphs.synchronize,
            FOLDER_QUESTION: service.shared_graphs.read_folder_graph,
            FREED_QUESTION: service.close_freed,
            USES_QUESTION: service.shared_graphs.uses,
            inference_routes.STATISTICS_QUESTION: partial(inference_routes.own_statistics, service),
        })  # fmt: skip
        await service.shared_graphs.synchronize()  # last: from now on the others say when there is something new
        trimming = asyncio.ensure_future(_trim(admission, service.sweep, synchronize=service.shared_graphs.synchronize))
        if settings.graphs is not None and hasattr(signal, "SIGHUP"):
            with suppress(ValueError, RuntimeError, NotImplementedError):  # another thread has the signals, as in tests
                loop.add_signal_handler(signal.SIGHUP, service.graphs.reload)
        try:
            if grpc_server is not None:
                await grpc_server.start()
                app.state.grpc_port = grpc_server.port
            yield {OBSERVE_REFUSAL: service.observe_refusal}
        finally:
            service.draining = True
            if grpc_server is not None:
                await grpc_server.stop()
            if service.kept_metrics is not None:
                await metrics_routes.own_metrics(service)  # the last time
            trimming.cancel()
            buffers.trim(0)
            service.regions.close()
            service.graphs.close()
            service.tensors.close()
            if cluster is not None:
                cluster.close()
            service.exports.close()
            close_libraries()  # before the threads that wait for them
            service.pool.close()
            service.pool = None
            group.close()
            service.observe_by(None)

    app = FastAPIOffline(
        title="tensorpost",
        version=version("tensorpost"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        docs_url=None,  # `documents/docs_pages.py` has it: one page of all operators takes a browser 17 s
        telemetry=_NO_TELEMETRY,
        responses=REFUSALS,
    )
    app.state.service = service
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        """The document, made when it is first asked for."""
        if not hasattr(app.state, "openapi"):
            app.state.openapi = expanded(plain())
        return app.state.openapi

    app.openapi = openapi
    app.state.general_openapi = plain
    pages = (playground,) if settings.playground else ()
    for module in (
        operator_routes,
        graph_routes,
        tensor_routes,
        export_routes,
        examples,
        service_routes,
        inference_routes,
        metrics_routes,
        docs_pages,
        *pages,
    ):
        app.include_router(module.router)
    app.add_exception_handler(TensorpostError, answer_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(MemoryError, answer_out_of_memory)
    app.add_exception_handler(ClientDisconnected, answer_disconnected)
    app.add_exception_handler(Exception, answer_unexpected)
    app.add_middleware(OperatorDispatch, service=service)
    ours = len(app.user_middleware)
    return app


def _access_log(settings: Settings) -> AccessLog | None:
    """The access log as the settings say, on standard error; None if it is off."""
    if settings.access_log == "off" or not logging.getLogger(__name__).isEnabledFor(logging.INFO):
        return None

    def write(lines: str) -> None:
        sys.stderr.write(lines)
        sys.stderr.flush()

    return AccessLog(console_line if log_format(settings) == "console" else json_line, write)


async def _trim(
    admission: Admission,
    sweep: Callable[[], object],
    seconds: float = KEEP_SECONDS / 4,
    *,
    synchronize: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Give unused memory back, for as long as the application runs; the C library's only while nothing is in flight."""
    before = machine.resident_memory() or 0
    while True:
        await asyncio.sleep(seconds)
        admission.buffers.trim()
        try:
            if synchronize is not None:
                await synchronize()
            sweep()
        except Exception:  # noqa: BLE001 # whatever it is, the next turn may succeed, and what is left is freed then
            _log.exception("what callers have left is not freed; the next try is in %g s", seconds)
        if not admission.requests_in_flight and (machine.resident_memory() or 0) > before + _WORTH_FREEING:
            with suppress(RuntimeError, MemoryError):  # no memory for a thread; the next turn tries again
                await asyncio.to_thread(machine.free_unused_memory)
            before = machine.resident_memory() or 0
