"""The short way to an execution: past the router, for the two paths that carry tensors.

FastAPI's routing and dependency machinery takes longer than a small operator does (benchmarks/service.py). The routes
stay, for the documentation and for anyone who mounts them elsewhere; they answer the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorpost.problems import TensorpostError

from .calls import Dialect
from .execution import Execution
from .problems import answer_error

__all__ = ["Door"]


class Door:
    """ASGI middleware that runs `POST {prefix}{name}` itself and passes everything else on.

    Args:
        app: what is behind.
        prefixes: path up to the operator's name, and the dialect spoken there.
    """

    def __init__(self, app: ASGIApp, prefixes: Mapping[str, Dialect]) -> None:
        self.app = app
        self.prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an operator, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"].removeprefix(scope.get("root_path", ""))
            for prefix, dialect in self.prefixes.items():
                name = path[len(prefix) :]
                if name and path.startswith(prefix) and "/" not in name:
                    await self._run(Execution(scope, name, dialect), scope, receive, send)
                    return
        await self.app(scope, receive, send)

    @staticmethod
    async def _run(execution: Execution, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await execution(scope, receive, send_and_note)
        except TensorpostError as error:
            if started:
                raise  # there is no honest status any more; the connection breaks
            await answer_error(Request(scope), error)(scope, receive, send)
