"""Stored graphs of the replicas on Ray: what was sent lies in the index, and each replica has read it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from tensorpost.values.problems import TensorpostError

from ..http.background_threads import CallerThreads
from ..http.wires.graph_repository import GraphUse
from ..http.wires.graph_table import GraphRow, Published, VersionHere
from .index_client import IndexClient

_AGAIN_SECONDS = 1.0
_log = logging.getLogger(__name__)


class RayGraphRepository:
    """See `GraphRepository`: of all replicas.

    Args:
        client: calls the index.
    """

    is_shared, is_immediate, copies = True, False, 1  # each replica has memory of its own

    def __init__(self, client: IndexClient) -> None:
        self._client = client
        self.version = -1
        self._published = -1
        self._following: asyncio.Task[None] | None = None
        self._tasks = set[asyncio.Task[Any]]()

    async def open(self, synchronize: Callable[[], Awaitable[None]]) -> None:
        """Have the graphs that there are, and follow what becomes of them.

        Raises:
            Unavailable: the index does not answer.
        """
        self.version = await self._client.ask("graph_changes", -1)
        await synchronize()
        self._following = asyncio.ensure_future(self._follow(synchronize))

    def close(self) -> None:
        """Follow no more."""
        for task in (self._following, *self._tasks):
            if task is not None:
                task.cancel()

    async def rows(self) -> Sequence[GraphRow]:
        return await self._client.ask("graph_rows")

    def has(self, number: int) -> bool:
        """See `GraphRepository.has`: changes of this replica wait while it takes graphs over."""
        del number
        return True

    async def put(self, content: bytes, threads: CallerThreads) -> str:
        del threads
        file = f"graph-{secrets.token_hex(8)}"
        try:
            await self._client.ask("graph_put", file, content)
        except BaseException:
            self.discard([file])
            raise
        return file

    def discard(self, files: Sequence[str]) -> None:
        if files:
            self._tell("graph_discard", files)

    async def read(self, file: str, threads: CallerThreads) -> bytes | None:
        del threads
        return await self._client.ask("graph_read", file)

    async def publish(
        self, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]
    ) -> Published:  # fmt: skip
        now = time.monotonic()
        aged = [each._replace(used=each.used - now) for each in here]
        published, self._published = await self._client.ask("graph_publish", owner, name, aged, {*known})
        return published

    async def tell(self) -> None:
        await self._client.ask("graph_known", self._published)

    def note_uses(self, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> Sequence[int]:
        now = time.monotonic()
        aged = [(number, used - now) for number, used in uses]
        self._tell("graph_used", aged, [(*each[:4], each[4] - now) for each in all_uses])
        return ()  # those that are gone are dropped by `synchronize`

    def last_use(self, number: int, since: float) -> float | None:
        return since if number else None  # the index drops those that nobody uses

    async def uses_elsewhere(self) -> Sequence[GraphUse]:
        now = time.monotonic()
        return [(*each[:4], now + each[4]) for each in await self._client.ask("graph_uses")]

    def _tell(self, method: str, *args: object) -> None:
        """Tell the index something whose answer nobody waits for."""

        async def tell() -> None:
            try:
                await self._client.ask(method, *args)
            except TensorpostError as error:
                _log.warning("%s", error.detail)

        task = asyncio.ensure_future(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, synchronize: Callable[[], Awaitable[None]]) -> None:
        done = self.version
        while True:
            try:
                version = await self._client.ask("graph_changes", done)  # which says that this replica has done it
                if version != done:
                    self.version = version
                    await synchronize()
                    done = version
            except TensorpostError as error:
                _log.warning("%s", error.detail)
                await asyncio.sleep(_AGAIN_SECONDS)
