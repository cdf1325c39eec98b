"""What a replica on Ray shares with the others. See `Cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..engine import Admission
from ..http.wires.graph_repository import GraphRepository
from ..http.wires.tensor_store import TensorStore
from ..settings import Settings
from .graphs import RayGraphRepository
from .index_client import IndexClient
from .tensors import RayTensorStore


class RayCluster:
    """See `Cluster`.

    Args:
        settings: the settings of the replica.
    """

    def __init__(self, settings: Settings) -> None:
        self._client = IndexClient(settings)
        self._repository = RayGraphRepository(self._client)
        self._tensors: RayTensorStore | None = None

    def tensor_store(self, settings: Settings, admission: Admission) -> TensorStore:
        del settings  # the index has them
        self._tensors = RayTensorStore(admission, self._client)
        return self._tensors

    def graph_repository(self) -> GraphRepository:
        return self._repository

    async def open(self, synchronize: Callable[[], Awaitable[None]]) -> None:
        await self._client.open()
        assert self._tensors is not None
        self._tensors.open()
        await self._repository.open(synchronize)

    def close(self) -> None:
        self._repository.close()
        self._client.close()
