"""`JsonDocument`: the JSON that the endpoints answer with."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class JsonDocument(JSONResponse):
    """JSON that ends with a line feed, so that a shell's prompt does not follow it on the same line."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"
