"""What several machines share, as the service sees it (Ray)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ...engine import Admission
from ...settings import Settings
from .graph_repository import GraphRepository
from .tensor_store import TensorStore


class Cluster(Protocol):
    """Machines that serve as one: what one of them keeps, all of them have."""

    def tensor_store(self, settings: Settings, admission: Admission) -> TensorStore:
        """The held tensors of all machines."""
        ...

    def graph_repository(self) -> GraphRepository:
        """The stored graphs of all machines."""
        ...

    async def open(self, synchronize: Callable[[], Awaitable[None]]) -> None:
        """Called once, before the first request.

        Args:
            synchronize: makes the graphs of this machine those of the repository; called whenever they have changed.

        Raises:
            Unavailable: the other machines cannot be reached.
        """
        ...

    def close(self) -> None:
        """Leave the others, after the tensor store was closed."""
        ...
