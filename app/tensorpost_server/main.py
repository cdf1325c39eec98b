"""The application. `create_app` builds it; devices are opened when it starts and given back when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from tensorpost.problems import TensorpostError

from .backends import DeviceOptions
from .engine import Admission, Pool
from .http import devices, examples, health, limits, onnx, operators, validate
from .http.directml import DirectmlDialect
from .http.door import Door
from .http.middleware import RequestId
from .http.problems import answer_error, answer_http_exception, answer_nobody, answer_unexpected
from .http.service import Service
from .http.streams import CallerGone
from .settings import Settings

__all__ = ["create_app", "open_pool"]

_DESCRIPTION = """\
POST a DirectML operator descriptor and a tensor's bytes; the result comes back as raw bytes.

    curl 'localhost:8000/v1/operators/tile?repeats=1,1,3,3' -H 'content-type: application/x-npy' \\
      --data-binary @x.npy -o y.npy
"""


def open_pool(settings: Settings, backend: str, when_lost: Callable[[str], object]) -> Pool:
    """Open every device as the settings say; see `Pool.open`.

    Args:
        settings: limits and choices.
        backend: the default for requests that name none.
        when_lost: called with the reason, on any thread, when a device fails for good.
    """
    options = DeviceOptions(
        threads={"numpy": settings.numpy_threads},
        cuda_memory_bytes=settings.cuda_memory_bytes,
        cuda_pinned_bytes=settings.cuda_pinned_bytes,
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


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the application. Opens nothing: no device, no socket, no file.

    Args:
        settings: default: read from the environment.

    Example:
        `uvicorn --factory tensorpost_server.main:create_app`
    """
    settings = Settings() if settings is None else settings
    service = Service(settings, Admission(settings.memory_bytes, settings.max_requests, settings.retry_after_seconds))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        del app
        loop = asyncio.get_running_loop()
        service.pool = open_pool(settings, settings.backend, partial(loop.call_soon_threadsafe, service.device_lost))
        try:
            yield
        finally:
            service.draining = True
            service.pool.close()
            service.pool = None

    app = FastAPIOffline(
        title="tensorpost",
        version=version("tensorpost"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for module in (operators, onnx, validate, examples, devices, limits, health):
        app.include_router(module.router)
    app.add_exception_handler(TensorpostError, answer_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(CallerGone, answer_nobody)
    app.add_exception_handler(Exception, answer_unexpected)
    # The last one added is the outermost.
    app.add_middleware(Door, prefixes={"/v1/operators/": DirectmlDialect(), "/v1/onnx/": onnx.OnnxDialect()})
    app.add_middleware(RequestId)
    return app
