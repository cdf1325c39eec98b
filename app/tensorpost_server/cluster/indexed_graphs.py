"""The stored graphs of all replicas on Ray, in the index: a table, and what was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from ..http.wires.graph_repository import GraphUse
from ..http.wires.graph_table import GraphTable, Published, VersionHere
from ..shared.shared_database import SharedDatabase

POLL_SECONDS = 10.0
"""A replica that asks for changes is answered after so long, if there are none."""


class IndexedGraphs:
    """The graphs. Used from the index's event loop only.

    Args:
        database: where the table is.
        version: the number of the table's state; larger than that of an index that was lost.

    Attributes:
        table: which graphs there are.
        files: what was sent, by the names in the table.
        idle_seconds: how long a graph stays that nobody calls.
    """

    def __init__(self, database: SharedDatabase, version: int) -> None:
        self.table, self.files, self.idle_seconds = GraphTable(database), dict[str, bytes](), 0.0
        self._version = version
        self._done: dict[int, int] = {}
        self._uses: dict[int, tuple[float, Sequence[GraphUse]]] = {}
        self._changed = asyncio.Condition()
        self._notifying = set[asyncio.Task[None]]()

    def join(self, place: int) -> None:
        """A replica begins, and has no graphs yet."""
        self._done[place] = -1

    def leave(self, place: int) -> None:
        """A replica has ended."""
        self._done.pop(place, None)
        self._uses.pop(place, None)
        self._notify()

    async def changes(self, place: int, done: int) -> int:
        """The version of the table, when it is another one than the replica has done, or after some time."""
        if self._done.get(place, done) != done:
            self._done[place] = done
            self._notify()
        try:
            async with asyncio.timeout(POLL_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._version != done)
        except TimeoutError:
            pass
        return self._version

    async def waiting(self, place: int, version: int, seconds: float) -> list[int]:
        """The other replicas that have not done a version after so long."""

        def others() -> list[int]:
            return [other for other, done in self._done.items() if other != place and done < version]

        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: not others())
        except TimeoutError:
            pass
        return others()

    def publish(
        self, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]
    ) -> tuple[Published, int]:  # fmt: skip
        """See `GraphTable.publish`; times are seconds before now. And the version that the table then has."""
        now = time.monotonic()
        published = self.table.publish(owner, name, [each._replace(used=now + each.used) for each in here], known)
        self._remove(published.unused)
        return published, self._version

    def discard(self, files: Sequence[str]) -> None:
        """Drop files, unless the table names them."""
        for file in files:
            if not self.table.is_named(file):
                self.files.pop(file, None)

    def note_uses(self, place: int, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> None:
        """A replica has used graphs; times are seconds before now."""
        now = time.monotonic()
        for number, age in uses:
            self.table.note_use(number, now + age)
        self._uses[place] = now, all_uses

    def uses_elsewhere(self, place: int) -> list[GraphUse]:
        """The calls of graphs in each of the other replicas; times are seconds before now."""
        now = time.monotonic()
        return [
            (*use[:4], use[4] - (now - noted))
            for other, (noted, uses) in self._uses.items() if other != place
            for use in uses
        ]  # fmt: skip

    def sweep(self) -> None:
        """Drop graphs that nobody has called for too long."""
        dropped, unused = self.table.drop_idle(time.monotonic() - self.idle_seconds)
        if dropped:
            self._remove(unused)

    def _remove(self, files: Sequence[str]) -> None:
        for file in files:
            self.files.pop(file, None)
        self._version += 1
        self._notify()

    def _notify(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)
