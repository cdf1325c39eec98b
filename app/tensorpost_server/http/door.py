"""The short way to an execution: past routing and middleware, for the two paths that carry tensors.

FastAPI's routing and dependency machinery takes longer than a small operator does (benchmarks/small.py). The routes
stay, for the documentation and for anyone who puts middleware in front of them; they answer the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorpost.problems import TensorpostError

from .answering import answer_whole
from .calls import Dialect
from .execution import Execution
from .problems import answer_error, answer_unexpected
from .service import Service

__all__ = ["Door"]


class Door:
    """An ASGI application that runs `POST {path}/{name}` itself and passes everything else on.

    Args:
        app: what is behind.
        service: of the application.
        dialects: path before the operator's name, and the dialect spoken there.
        outermost: whether nothing is in front of it that may want to see answers.
    """

    __slots__ = ("app", "dialects", "outermost", "service")

    def __init__(
        self, app: ASGIApp, service: Service, dialects: Mapping[str, Dialect], *, outermost: bool = False
    ) -> None:
        self.outermost = outermost
        self.app = app
        self.service = service
        self.dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an operator, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "POST":
            root: str = scope.get("root_path", "")
            place, _, name = scope["path"].removeprefix(root).rpartition("/")
            dialect = self.dialects.get(place)
            if dialect is not None and name:
                whole = answer_whole(scope) if self.outermost else None
                execution = Execution(self.service, scope, name, dialect, whole)
                try:
                    await execution.run(receive, send)
                except asyncio.CancelledError:
                    # uvicorn cancels what is not done when the time to stop is over, and prints where it was.
                    if not self.service.draining:
                        raise
                    await self._stopped(execution, scope, receive, send)
                except Exception as error:  # noqa: BLE001 # all of them are answered, and all but ours raised again
                    await self._answer(execution, error, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _stopped(self, execution: Execution, scope: Scope, receive: Receive, send: Send) -> None:
        """Say that the server could not wait for the rest of a request; an answer that has begun just breaks off."""
        if execution.begun:
            return
        answer = answer_error(Request(scope), self.service.stopped())
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)

    @staticmethod
    async def _answer(execution: Execution, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what went wrong, if an answer is still possible; what the server must know goes on to it."""
        if execution.begun:
            raise error  # there is no honest status any more; the connection breaks
        if isinstance(error, TensorpostError):
            await answer_error(Request(scope), error)(scope, receive, send)
        else:
            await answer_unexpected(Request(scope), error)(scope, receive, send)
            raise error
