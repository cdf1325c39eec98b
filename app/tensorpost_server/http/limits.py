"""`/v1/limits`: every limit with its value, and what is in use now."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from ..settings import ENVIRONMENT_PREFIX, Settings
from .service import service_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/limits", tags=["service"])

_NOT_LIMITS = ("host", "port", "backend", "http_protocol")


@router.get("", summary="List the limits")
async def list_limits(request: Request) -> JSONResponse:
    """Each limit's value, the variable that sets it and its reason; beside it, the memory lent out and kept now."""
    service = service_of(request)
    values = service.settings.model_dump()
    limits = [
        {
            "name": name,
            "value": values[name],
            "setting": ENVIRONMENT_PREFIX + name.upper(),
            "description": info.description,
        }
        for name, info in Settings.model_fields.items()
        if name not in _NOT_LIMITS
    ]
    in_use = {
        "bytes_in_flight": service.admission.bytes_in_flight,
        "requests_in_flight": service.admission.requests_in_flight,
    }
    blocks = service.admission.blocks
    memory = {"lent_bytes": blocks.lent_bytes, "kept_bytes": blocks.kept_bytes}
    return JSONResponse({"limits": limits, "in_use": in_use, "large_blocks": memory})
