"""What lives as long as the application: settings, the worker pool, the memory budget."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from tensorpost.problems import NotReady

from ..engine import Admission, Pool
from ..settings import ENVIRONMENT_PREFIX, Settings
from .prepared import PreparedCalls

__all__ = ["Service", "service_of"]

_log = logging.getLogger(__name__)


def _stop_process() -> None:
    """Ask this process to stop in order: every ASGI server knows SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Service:
    """Made by `create_app`; the pool is opened when the application starts and closed when it stops.

    Attributes:
        settings: the limits.
        admission: the memory budget.
        pool: the workers; None before the start and after the stop.
        draining: whether the server is about to stop; it then says that it is not ready.
        prepared: calls that were lately understood.
        end: ends the process when a device failed for good, so that its supervisor starts a clean one.
    """

    settings: Settings
    admission: Admission
    pool: Pool | None = None
    draining: bool = False
    prepared: PreparedCalls = field(default_factory=PreparedCalls)
    end: Callable[[], None] = _stop_process

    @property
    def ready(self) -> bool:
        """Whether requests will be served."""
        return self.pool is not None and not self.draining and self.pool.lost is None

    def opened(self) -> Pool:
        """The pool, whatever became of its devices.

        Raises:
            NotReady: it is not open.
        """
        if self.pool is None:
            raise self._not_ready("the server is starting or stopping; try again")
        return self.pool

    def workers(self) -> Pool:
        """The pool, to run something on.

        Raises:
            NotReady: it is not open, or a device failed for good and this process is about to end.
        """
        pool = self.opened()
        if pool.lost is not None:
            raise self._not_ready(f"this server ends, and another one should start: {pool.lost}")
        return pool

    def stopped(self) -> NotReady:
        """What a request is answered that was not complete when the time to stop was over."""
        seconds = self.settings.shutdown_seconds
        return self._not_ready(
            f"the server was told to stop and waited {seconds} s for this request (setting "
            f"{ENVIRONMENT_PREFIX}SHUTDOWN_SECONDS); send it again to one that is ready"
        )

    def device_lost(self, reason: str) -> None:
        """Say so, and end the process: what a failed device leaves behind in a process cannot be repaired there."""
        _log.critical("%s; this process ends", reason)
        self.end()

    def _not_ready(self, why: str) -> NotReady:
        return NotReady(why, extra={"retry_after_seconds": self.settings.retry_after_seconds})


def service_of(request: Request) -> Service:
    """The service of the application that got this request."""
    return request.app.state.service
