"""Where what was stored as graphs lies, for all processes that have the graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ...shared.process_group import ProcessGroup
from ...shared.shared_folder import shared_file
from ..background_threads import CallerThreads
from .graph_table import GraphRow, GraphTable, Published, VersionHere

GRAPHS_QUESTION, USES_QUESTION = "graphs", "uses of graphs"
"""What a process asks of the others: to do what the table says; or `SharedGraphs.uses`."""

GraphUse = tuple[str | None, str, int, int, float]
"""Owner, name and version of a graph, how many calls there were, and the time of the last one, monotonic."""


class GraphShelf(Protocol):
    """Where what was stored lies. Used from the event loop's thread only."""

    @property
    def is_shared(self) -> bool:
        """Whether there is another process."""
        ...

    @property
    def version(self) -> int:
        """Another number after each change that another process has made."""
        ...

    async def rows(self) -> Sequence[GraphRow]:
        """All versions of all graphs."""
        ...

    async def put(self, file: str, content: bytes, threads: CallerThreads) -> None:
        """Keep what was stored, by a name that is new."""
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


class ProcessShelf:
    """See `GraphShelf`: files in the folder of the processes of one machine.

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

    async def rows(self) -> Sequence[GraphRow]:
        return self._table.rows()

    async def put(self, file: str, content: bytes, threads: CallerThreads) -> None:
        assert self._group.folder is not None
        await threads.run(True, shared_file(self._group.folder, file).write_bytes, content)

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
        self._remove(published.unused)
        return published

    async def tell(self) -> None:
        await self._group.siblings.ask(GRAPHS_QUESTION)

    def note_uses(self, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> Sequence[int]:
        del all_uses  # the others ask when they need them
        return [number for number, used in uses if not self._table.note_use(number, used)]

    def last_use(self, number: int, since: float) -> float | None:
        dropped, unused = self._table.drop_idle(since, number)
        self._remove(unused)
        return None if dropped else self._table.used(number)

    async def uses_elsewhere(self) -> Sequence[GraphUse]:
        answers: list[list[GraphUse]] = await self._group.siblings.ask(USES_QUESTION)
        return [use for uses in answers for use in uses]

    def _remove(self, files: Sequence[str]) -> None:
        assert self._group.folder is not None
        for file in files:
            shared_file(self._group.folder, file).unlink(missing_ok=True)
