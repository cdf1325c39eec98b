"""`/v1/devices`: which backends are here, which are not, and why."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from .service import service_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/devices", tags=["service"])


@router.get("", summary="List the devices")
async def list_devices(request: Request) -> JSONResponse:
    """Every backend: its device, or the reason why it could not be opened; and which one `auto` tries first."""
    pool = service_of(request).workers()
    return JSONResponse({"default": pool.default, "devices": [asdict(status) for status in pool.status()]})
