"""What is asked of Ray: the tasks that are started and not waited for, and where objects lie."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tensorpost.values.extras import install_command

_AHEAD = 2  # tasks that are asked for beyond those that the cluster's processors compute
_RETRIES = 5  # of a task whose node is lost

What = TypeVar("What")


def module(name: str) -> Any:
    """A library of the extra `ray`.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name} is not installed: {install_command('server', 'ray')}", name=name) from None


def connected_ray() -> Any:
    """Ray, connected to the cluster of `ray.init`, `RAY_ADDRESS`, or this machine."""
    ray = module("ray")
    if not ray.is_initialized():
        ray.init(configure_logging=False, log_to_driver=False)
    return ray


def task(function: Callable[..., Any], **options: Any) -> Any:
    """A function as a task, which is computed again if its node is lost."""
    return module("ray").remote(function).options(**{"max_retries": _RETRIES, **options})


class TasksInFlight(Generic[What]):
    """Tasks that were started and not waited for: as many as the cluster's processors compute, and two more.

    Args:
        ended: called with each reference whose task has ended, in the order in which they end, and with what was added
            with it.
    """

    def __init__(self, ended: Callable[[Any, What], None]) -> None:
        self._ray, self._ended = module("ray"), ended
        self._most = int(self._ray.cluster_resources().get("CPU", 1)) + _AHEAD
        self._refs: dict[Any, What] = {}

    def add(self, ref: Any, what: What) -> None:
        """Add a task; return when there is room for another one."""
        self._refs[ref] = what
        while len(self._refs) >= self._most:
            self._settle()

    def finish(self) -> None:
        """Wait for all."""
        while self._refs:
            self._settle()

    def _settle(self) -> None:
        (ref,), _ = self._ray.wait([*self._refs], num_returns=1)
        self._ended(ref, self._refs.pop(ref))


def this_node() -> str:
    """The node of the process that asks, in Ray's hexadecimal digits."""
    return str(module("ray").get_runtime_context().get_node_id())


def nodes_of(refs: Sequence[Any]) -> list[tuple[str, ...]]:
    """The nodes in whose object stores each object lies; none for a small one, which its owner has."""
    found = module("ray").experimental.get_object_locations([*refs])
    return [tuple(found[ref]["node_ids"]) for ref in refs]


class Placement:
    """Spreads chunks over the nodes that compute, in proportion to their object stores.

    Ray's strategy `SPREAD` does not: a worker that is ready takes the tasks that wait for workers of other nodes.
    """

    def __init__(self) -> None:
        self._room: dict[str, float] = {}
        for node in module("ray").nodes():
            resources: Mapping[str, float] = node["Resources"]
            if node["Alive"] and resources.get("CPU", 0) >= 1 and resources.get("object_store_memory"):
                self._room[node["NodeID"]] = resources["object_store_memory"]
        self._placed = dict.fromkeys(self._room, 0)

    def next(self, size: int, preferred: str = "") -> dict[str, Any]:
        """The option that has a task make a chunk of so many bytes on the node with the least chunks.

        Args:
            size: bytes of the chunk.
            preferred: a node that is taken instead unless it has two chunks more.
        """
        if not self._room:
            return {}
        node = min(self._room, key=lambda each: (self._placed[each] + size) / self._room[each])
        if preferred in self._room:
            ahead = max(0, self._placed[preferred] - 2 * size) / self._room[preferred]
            node = preferred if ahead <= self._placed[node] / self._room[node] else node
        self._placed[node] += size
        return on_node([node])


def on_node(nodes: Sequence[str]) -> dict[str, Any]:
    """The option that has a task computed on the first of these nodes, if it is still there."""
    if not nodes:
        return {}
    strategies = module("ray.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(nodes[0], soft=True)}
