"""The way of a request into the application: an id and a caller for every one; operators run before FastAPI's routing.

FastAPI's routing and dependency injection take longer than a small operator (benchmarks/small.py). Its routes for
operators exist for the OpenAPI document only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorpost.problems import TensorpostError

from .call_cache import whole_messages
from .dialects import DIALECTS
from .error_responses import answer_error
from .execution import Execution
from .headers import header_fields, request_id
from .parse_call import Dialect
from .service import Service

__all__ = ["OperatorDispatch"]


class OperatorDispatch:
    """ASGI middleware that runs `POST {path of a dialect}/{operator}` and passes everything else on.

    It sets `scope["tensorpost.request_id"]` and the header `X-Request-ID` of every response, and refuses callers that
    `AccessControl` does not let in.

    Args:
        app: the application inside.
        service: of the application.
    """

    __slots__ = ("_app", "_service")

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an operator, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fields = header_fields(scope["headers"])
        id_ = scope["tensorpost.request_id"] = request_id(fields.get(b"x-request-id"))
        path, root = scope["path"], scope.get("root_path", "")
        path = path[len(root) :] if path.startswith(f"{root}/") else path
        try:
            send = self._service.access.admit(scope, fields, path, send)
        except TensorpostError as error:
            await answer_error(Request(scope), error)(scope, receive, send)
            return
        if scope["method"] == "POST":
            path, _, name = path.rpartition("/")
            dialect = DIALECTS.get(path)
            if dialect is not None and name:
                await _run_operator(self._service, dialect, name, fields, scope, receive, send)
                return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = id_
            await send(message)

        await self._app(scope, receive, send_with_id)


async def _run_operator(
    service: Service, dialect: Dialect, name: str, fields: Mapping[bytes, bytes],
    scope: Scope, receive: Receive, send: Send,
) -> None:  # fmt: skip
    """Run an operator, and answer errors that are refusals; unexpected ones are the application's to answer."""
    execution = Execution(service, scope, fields, dialect, name, whole_messages(scope) if service.replays else None)
    try:
        await execution.run(receive, send)
        return
    except asyncio.CancelledError:
        # uvicorn cancels what is not done when the time to stop is over, and logs a traceback of what is raised.
        if not service.draining:
            raise
        if execution.begun:
            return
        response = answer_error(Request(scope), service.stopped())
        response.headers["Connection"] = "close"
    except TensorpostError as error:
        if execution.begun:
            raise  # the status has been sent; the connection breaks instead
        response = answer_error(Request(scope), error)
    await response(scope, receive, send)
