"""A replica's client of the index: it finds the actor, or starts it, and does so again when the actor is lost."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from tensorpost.values.problems import TensorpostError, Unavailable

from ..http.wires.tensor_index import TensorLimits
from ..settings import Settings
from .index import ClusterIndex, Joining, Left

_NAMESPACE = "tensorpost"
_HEAD = "node:__internal_head__"
"""The resource that the head node has, and no other one."""

_JOIN_SECONDS = 60.0
_ATTEMPTS = 5


class IndexClient:
    """The index of a Serve application, as one of its replicas calls it. Used from the event loop's thread only.

    Args:
        settings: the settings of the replica.

    Attributes:
        known: returns owners and names of tensors that the replica knows; asked when the index is lost.
    """

    def __init__(self, settings: Settings) -> None:
        self._ray: Any = importlib.import_module("ray")  # it has no type stubs
        self._limits, self._graph_seconds = TensorLimits.of(settings), settings.stored_graph_idle_seconds
        self._index: Any = None
        self._place = -1
        self._lock = asyncio.Lock()
        self.known: Callable[[], Iterable[tuple[str, str]]] = list

    async def open(self) -> None:
        """Find the index, or start it.

        Raises:
            Unavailable: it does not answer.
        """
        await self._join(None, -1)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the index with the replica's place and these arguments.

        Raises:
            TensorpostError: what the method refuses.
            Unavailable: there is no index, and none can be started.
        """
        for _ in range(_ATTEMPTS):
            index, place = self._index, self._place
            try:
                answer = await getattr(index, method).remote(place, *arguments)
            except self._ray.exceptions.RayActorError:
                await self._join(index, place)
                continue
            if isinstance(answer, Left):
                await self._join(index, place)
                continue
            if isinstance(answer, TensorpostError):
                raise answer
            return answer
        raise _no_index()

    def close(self) -> None:
        """Leave; nothing is waited for."""
        if self._index is not None:
            self._index.leave.remote(self._place)

    async def _join(self, lost: Any, place: int) -> None:
        """Begin with the index, where it does not know this place of the replica any more or is lost."""
        async with self._lock:
            if self._index is not lost or self._place != place:
                return
            try:
                async with asyncio.timeout(_JOIN_SECONDS):
                    while True:
                        index = await asyncio.to_thread(self._start, again=lost is not None)
                        context = self._ray.get_runtime_context()
                        joining = Joining(
                            context.current_actor, context.get_actor_id(), context.get_node_id(), self._limits,
                            self._graph_seconds, [*self.known()],
                        )  # fmt: skip
                        try:
                            self._place, self._index = await index.join.remote(joining), index
                            return
                        except self._ray.exceptions.RayActorError:
                            lost = index
                            await asyncio.sleep(0.2)  # it still has the name of the one that is lost
            except TimeoutError:
                raise _no_index() from None

    def _start(self, *, again: bool) -> Any:
        """A handle of the index of this version, which is started on the head node if there is none."""
        application = importlib.import_module("ray.serve").get_replica_context().app_name
        options: dict[str, Any] = {
            "name": f"index of {application}, tensorpost {version('tensorpost')}", "namespace": _NAMESPACE,
            "get_if_exists": True, "lifetime": "detached", "num_cpus": 0,
        }  # fmt: skip
        if any(_HEAD in each["Resources"] for each in self._ray.nodes() if each["Alive"]):
            options["resources"] = {_HEAD: 0.001}  # a soft affinity to the node may be passed over
        return self._ray.remote(ClusterIndex).options(**options).remote(self._limits, again=again)


def _no_index() -> Unavailable:
    return Unavailable("the index of held tensors of this Ray cluster does not answer; try again")
