"""`/v1/devices`: which devices are here, which are not and why, and what is in use on them."""

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
    """Every device, or why it cannot be used; how large a plan must be for `auto` to prefer it; what is in use now."""
    pool = service_of(request).opened()
    return JSONResponse({"default": pool.default, "devices": [asdict(status) for status in pool.status()]})
