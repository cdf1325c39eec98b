"""What lives as long as the application: settings, the worker pool, the memory budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from tensorpost.problems import NotReady

from ..engine import Admission, Inline, Pool
from ..settings import Settings
from .prepared import PreparedCalls

__all__ = ["Service", "service_of"]


@dataclass(slots=True)
class Service:
    """Made by `create_app`; the pool is opened when the application starts and closed when it stops.

    Attributes:
        settings: the limits.
        admission: the memory budget.
        pool: the workers; None before the start and after the stop.
        draining: whether the server is about to stop; it then says that it is not ready.
        inline: what is computed on the event loop's thread; None before the start.
        prepared: calls that were lately understood.
    """

    settings: Settings
    admission: Admission
    pool: Pool | None = None
    draining: bool = False
    inline: Inline | None = None
    prepared: PreparedCalls = field(default_factory=PreparedCalls)

    @property
    def ready(self) -> bool:
        """Whether requests will be served."""
        return self.pool is not None and not self.draining

    def workers(self) -> Pool:
        """The pool.

        Raises:
            NotReady: it is not open.
        """
        if self.pool is None:
            raise NotReady(
                "the server is starting or stopping; try again",
                extra={"retry_after_seconds": self.settings.retry_after_seconds},
            )
        return self.pool


def service_of(request: Request) -> Service:
    """The service of the application that got this request."""
    return request.app.state.service
