"""Where what was stored as graphs lies, for all processes that have the graphs."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from ...shared.process_group import ProcessGroup
from ...shared.shared_folder import graph_path, room_for, shared_file
from ...shared.siblings import CHANGE_SECONDS
from ..background_threads import CallerThreads
from .graph_table import GraphRow, GraphTable, Published, VersionHere

GRAPHS_QUESTION, USES_QUESTION = "graphs", "uses of graphs"
"""What a process asks of the others: to do what the table says; or `SharedGraphs.uses`."""

GraphUse = tuple[str | None, str, int, int, float]
"""Owner, name and version of a graph, how many calls there were, and the time of the last one, monotonic."""


class GraphRepository(Protocol):
    """Where what was stored lies. Used from the event loop's thread only."""

    @property
    def is_shared(self) -> bool:
        """Whether there is another process."""
        ...

    @property
    def version(self) -> int:
        """Another number after each change that another process has made."""
        ...

    @property
    def copies(self) -> int:
        """How many processes take the memory of a graph from the same budget."""
        ...

    @property
    def is_immediate(self) -> bool:
        """Whether `publish` and `rows` do not suspend; else changes in this process wait for one another."""
        ...

    async def rows(self) -> Sequence[GraphRow]:
        """All versions of all graphs."""
        ...

    def has(self, number: int) -> bool:
        """Whether the table has a graph that it had a moment ago, if this process may have changed it since."""
        ...

    async def put(self, content: bytes, threads: CallerThreads) -> str:
        """Keep what was sent to be stored; the name of the file, which is new.

        Raises:
            InsufficientStorage: there is no room.
        """
        ...

    def discard(self, files: Sequence[str]) -> None:
        """Remove files that no row names."""
        ...

    async def read(self, file: str, threads: CallerThreads) -> bytes | None:
        """What was stored; None if it is not there any more."""
        ...

    async def publish(
        self, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]
    ) -> Published:  # fmt: skip
        """See `GraphTable.publish`; files that no row names any more are removed."""
        ...

    async def tell(self) -> None:
        """Wait until the other processes have done what the table says."""
        ...

    def note_uses(self, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> Sequence[int]:
        """The process has used graphs.

        Args:
            uses: their numbers, and the times of the last uses, monotonic.
            all_uses: the calls of each graph that the process has.

        Returns:
            Numbers of graphs that the table does not have any more.
        """
        ...

    def last_use(self, number: int, since: float) -> float | None:
        """When a graph was used last in any process. If that is before `since`, it is taken out.

        Returns:
            The time, monotonic; None if the table does not have it (any more).
        """
        ...

    async def uses_elsewhere(self) -> Sequence[GraphUse]:
        """The calls of graphs in each of the other processes."""
        ...


class ProcessGraphRepository:
    """See `GraphRepository`: files in the folder of the processes of one machine.

    Args:
        group: the processes.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group, self._table = group, GraphTable(group.database)

    @property
    def is_shared(self) -> bool:
        return self._group.is_shared

    @property
    def version(self) -> int:
        return self._group.database.version

    @property
    def copies(self) -> int:
        return self._group.processes

    @property
    def is_immediate(self) -> bool:
        return True

    async def rows(self) -> Sequence[GraphRow]:
        return self._table.rows()

    def has(self, number: int) -> bool:
        return self._table.used(number) is not None

    async def put(self, content: bytes, threads: CallerThreads) -> str:
        assert self._group.folder is not None
        path = graph_path(self._group.folder, self._group.place, secrets.token_hex(8))
        try:
            await threads.run(True, _write, path, content)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path.name

    def discard(self, files: Sequence[str]) -> None:
        assert self._group.folder is not None
        for file in files:
            shared_file(self._group.folder, file).unlink(missing_ok=True)

    async def read(self, file: str, threads: CallerThreads) -> bytes | None:
        assert self._group.folder is not None
        try:
            return await threads.run(True, shared_file(self._group.folder, file).read_bytes)
        except FileNotFoundError:
            return None

    async def publish(
        self, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]
    ) -> Published:  # fmt: skip
        published = self._table.publish(owner, name, here, known)
        self.discard(published.unused)
        return published

    async def tell(self) -> None:
        await self._group.siblings.ask(GRAPHS_QUESTION, seconds=CHANGE_SECONDS)

    def note_uses(self, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> Sequence[int]:
        del all_uses  # the others ask when they need them
        return [number for number, used in uses if not self._table.note_use(number, used)]

    def last_use(self, number: int, since: float) -> float | None:
        dropped, unused = self._table.drop_idle(since, number)
        self.discard(unused)
        return None if dropped else self._table.used(number)

    async def uses_elsewhere(self) -> Sequence[GraphUse]:
        answers: list[list[GraphUse]] = await self._group.siblings.ask(USES_QUESTION)
        return [use for uses in answers for use in uses]


def _write(path: Path, content: bytes) -> None:
    with room_for(path, len(content)):
        path.write_bytes(content)
