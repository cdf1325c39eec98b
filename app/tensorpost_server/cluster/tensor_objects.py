"""The bytes of held tensors, as the index has them: objects in the object stores of the nodes, or bytes of its own."""

from __future__ import annotations

import asyncio
import importlib
import logging
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.problems import InsufficientStorage, Unavailable

_CHECK_SECONDS = 60.0
_log = logging.getLogger(__name__)

TensorContent = bytes | list[Any]
"""The bytes; or a list of one reference to them, which Ray leaves as it is."""


class NodeMemory:
    """An actor on a node: what its methods return is in the object store of the node, and the caller owns it."""

    def store(self, path: str, size_in_bytes: int) -> tuple[None, NDArray[np.uint8]]:
        """The bytes of a file; nothing before them, which tells that they are there."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return None, np.frombuffer(mmap.mmap(descriptor, size_in_bytes, prot=mmap.PROT_READ), np.uint8)
        finally:
            os.close(descriptor)


class TensorObjects:
    """What has the bytes of each tensor. Used from the index's event loop only.

    Args:
        lose: called with the number of a tensor that no node has any more.
    """

    def __init__(self, lose: Callable[[int], object]) -> None:
        self._ray: Any = importlib.import_module("ray")  # it has no type stubs
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._lose = lose
        self._contents: dict[int, TensorContent] = {}
        self._nodes: dict[int, str | None] = {}
        self._memories: dict[str, Any] = {}
        self._dropping = set[asyncio.Task[None]]()

    def content(self, number: int) -> TensorContent | None:
        """What has the bytes of a tensor; None if nothing does."""
        return self._contents.get(number)

    def keep(self, number: int, content: TensorContent, node: str) -> None:
        """Have the bytes of a tensor, which were received on a node, until `free`."""
        self._contents[number] = content
        if not isinstance(content, bytes):
            self._nodes[number] = node

    def free(self, number: int) -> None:
        """Let go of a tensor; whoever reads it goes on."""
        self._contents.pop(number, None)
        self._nodes.pop(number, None)

    def lose_nodes(self, nodes: set[str]) -> None:
        """Nodes have ended: look which tensors ended with them. Nothing is waited for."""
        for node in nodes:
            self._memories.pop(node, None)
        dropping = asyncio.ensure_future(self._drop_lost(nodes))
        self._dropping.add(dropping)
        dropping.add_done_callback(self._dropping.discard)

    async def store(self, node: str, path: str, size_in_bytes: int) -> TensorContent:
        """Put the bytes of a file into the object store of a node, on which the file is.

        Raises:
            InsufficientStorage: the object store and the disk are full.
            Unavailable: the node could not do it.
        """
        errors = self._ray.exceptions
        for last in (False, True):
            if node not in self._memories:
                on_node = self._strategies.NodeAffinitySchedulingStrategy(node, soft=False)
                memory = self._ray.remote(NodeMemory).options(num_cpus=0, scheduling_strategy=on_node)
                self._memories[node] = memory.remote()
            memory = self._memories[node]
            done, data = memory.store.options(num_returns=2).remote(path, size_in_bytes)
            try:
                await done
            except (errors.ObjectStoreFullError, errors.OutOfDiskError):
                raise InsufficientStorage(
                    f"the object store of the Ray node has no {size_in_bytes:,} bytes left; delete held tensors",
                    extra={"actual": size_in_bytes},
                ) from None
            except errors.RayError as error:
                if self._memories.get(node) is memory:
                    del self._memories[node]
                if last or not isinstance(error, errors.RayActorError):
                    _log.exception("a tensor of %d bytes could not be stored", size_in_bytes)
                    raise Unavailable("the Ray node could not store the tensor; send it again") from None
            else:
                return [data]
        raise AssertionError("unreachable")

    async def _drop_lost(self, nodes: set[str]) -> None:
        """Drop the tensors of which no node has a copy."""
        for number in [number for number, node in self._nodes.items() if node is None or node in nodes]:
            content = self._contents.get(number)
            if content is None or isinstance(content, bytes):
                continue  # it was freed meanwhile
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await content[0]
                if number in self._nodes:
                    self._nodes[number] = None  # Ray chose another node
            except self._ray.exceptions.ObjectLostError:
                self._lose(number)
            except TimeoutError:
                _log.warning("the tensor %d of a lost node could not be looked at", number)
