"""What a replica on Ray shares with the others. See `Cluster`."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine import Admission
from ..http.wires.tensor_index import TensorLimits
from ..http.wires.tensor_store import TensorStore
from ..settings import Settings
from ..shared.shared_folder import make_shared_folder
from .link import IndexLink
from .tensors import RayTensorStore


@dataclass(frozen=True, slots=True)
class RayCluster:
    """See `Cluster`.

    Attributes:
        application: the name of the Serve application.
    """

    application: str

    def tensor_store(self, settings: Settings, admission: Admission) -> TensorStore:
        folder = make_shared_folder()
        return RayTensorStore(admission, IndexLink(self.application, TensorLimits.of(settings), folder), folder)
