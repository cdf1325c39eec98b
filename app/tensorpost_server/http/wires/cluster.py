"""What several machines share, as the service sees it (Ray)."""

from __future__ import annotations

from typing import Protocol

from ...engine import Admission
from ...settings import Settings
from .tensor_store import TensorStore


class Cluster(Protocol):
    """Machines that serve as one: what one of them keeps, all of them have."""

    def tensor_store(self, settings: Settings, admission: Admission) -> TensorStore:
        """The held tensors of all machines."""
        ...
