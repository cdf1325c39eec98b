"""`/v2/health`: is the process alive, and will it serve? Open Inference Protocol, health endpoints."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from .service import service_of

__all__ = ["router"]

router = APIRouter(prefix="/v2/health", tags=["health"])


@router.get("/live", summary="Is the process alive?")
async def live() -> JSONResponse:
    """200 as long as the event loop answers."""
    return JSONResponse({"live": True})


@router.get("/ready", summary="Will requests be served?")
async def ready(request: Request) -> JSONResponse:
    """200 if requests will be served; 503 while starting or draining."""
    is_ready = service_of(request).ready
    return JSONResponse({"live": True, "ready": is_ready}, 200 if is_ready else 503)
