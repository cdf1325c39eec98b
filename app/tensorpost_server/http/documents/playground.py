"""The page at `/`, the playground: the static files of the folder `playground`, served as they are.

The page calls the public API only, and loads nothing from anywhere else. Its Content-Security-Policy is that of every
page here (`access/browser_requests.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).parents[2] / "playground"
# Not asked of the system, whose table of media types may call JavaScript text/plain; browsers refuse such modules.
_MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
_PATHS: Mapping[str, Path] = {
    "/": _FOLDER / "index.html",
    **{f"/playground/{file.name}": file for file in _FOLDER.iterdir() if file.suffix in _MEDIA_TYPES},
}
PLAYGROUND_PATHS = frozenset(_PATHS)
"""Paths of the page and its files. They want no key, since they tell nothing about this server."""

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: bytes
    media_type: str
    etag: str


@cache
def _read(path: str) -> _StaticFile:
    file = _PATHS[path]
    content = file.read_bytes()
    return _StaticFile(
        content, _MEDIA_TYPES.get(file.suffix, "text/html"), f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    )


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/playground/{name}", methods=["GET", "HEAD"])
async def playground_file(request: Request) -> Response:
    """A file of the page; 304 if the browser has it already (RFC 9110, section 13.1.2)."""
    name = request.path_params.get("name")
    path = "/" if name is None else f"/playground/{name}"
    if path not in _PATHS:
        raise HTTPException(404)
    file = _read(path)
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
