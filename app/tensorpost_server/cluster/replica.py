"""What a replica on Ray shares with the others. See `Cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..engine import Admission
from ..http.wires.graph_shelf import GraphShelf
from ..http.wires.tensor_store import TensorStore
from ..settings import Settings
from .graphs import RayShelf
from .link import IndexLink
from .tensors import RayTensorStore


class RayCluster:
    """See `Cluster`.

    Args:
        settings: the settings of the replica.
    """

    def __init__(self, settings: Settings) -> None:
        self._link = IndexLink(settings)
        self._shelf = RayShelf(self._link)
        self._tensors: RayTensorStore | None = None

    def tensor_store(self, settings: Settings, admission: Admission) -> TensorStore:
        del settings  # the index has them
        self._tensors = RayTensorStore(admission, self._link)
        return self._tensors

    def graph_shelf(self) -> GraphShelf:
        return self._shelf

    async def open(self, synchronize: Callable[[], Awaitable[None]]) -> None:
        await self._link.open()
        assert self._tensors is not None
        self._tensors.open()
        await self._shelf.open(synchronize)

    def close(self) -> None:
        self._shelf.close()
        self._link.close()
