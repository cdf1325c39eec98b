"""Stored graphs that several processes have, on one machine or on Ray: each has all of them, as a table lists them.

A process that stores, changes or deletes a graph says so in the table, and waits until the others have done the same
before it answers; so a call after the answer finds the same graphs in any of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Container, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tensorpost.values.problems import TensorpostError

from ...engine import WorkerThreads
from ...settings import Settings
from ..background_threads import CallerThreads
from ..calls.batch_settings import BatchSettings
from .graph_folder import read_graph_folder
from .graph_repository import GraphRepository, GraphUse
from .graph_sources import read_source
from .graph_store import GraphStore, GraphVersion, StoreEntry
from .graph_table import GraphRow, VersionHere

FOLDER_QUESTION = "graphs of the folder"
"""What a process asks of the others on its machine: to read a graph of the folder again."""

GraphUses = dict[tuple[str | None, str, int], tuple[int, float]]
"""Calls by owner, name and version: their number, and the time of the last one, seconds of the monotonic clock."""

_log = logging.getLogger(__name__)


class StoredContent(NamedTuple):
    """What was sent to be stored.

    Attributes:
        version: the number of the version.
        content: the body.
        media_type: its type; None if the first bytes decide.
    """

    version: int
    content: bytes
    media_type: str | None


@dataclass(slots=True)
class StagedChange:
    """A change of a graph that is about to be made.

    Attributes:
        files: what was sent to be stored, by its names, and its media types; by version.
        turn: ends the turn of the change, if changes wait for one another.
    """

    files: dict[int, tuple[str, str | None]] = field(default_factory=dict[int, tuple[str, str | None]])
    turn: AsyncExitStack = field(default_factory=AsyncExitStack)

    def take(self) -> StagedChange:
        """All of it, for `publish`."""
        files, self.files = self.files, {}
        return StagedChange(files, self.turn.pop_all())


@dataclass(slots=True)
class SharedGraphs:
    """The graphs of callers in all processes. It does nothing if there is one process.

    Attributes:
        store: the graphs of this process.
        repository: what all processes have.
        settings: limits of what is read.
        threads: where graphs are read.
    """

    store: GraphStore
    repository: GraphRepository
    settings: Settings
    threads: WorkerThreads
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _version: int = -1
    _is_complete: bool = True
    _publishing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _known: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        if self.repository.is_shared:
            self.store.is_idle = self._is_idle_everywhere
            self.store.copies = self.repository.copies

    @asynccontextmanager
    async def staged(self, stored: Sequence[StoredContent] = ()) -> AsyncGenerator[StagedChange]:
        """Around each change of the store: what was sent lies where the other processes can read it.

        That comes before a graph is put into the store, so that between that and what `publish` writes no other change
        can come: nothing waits there, or others wait for their turn. Else the processes would disagree about the two.
        What `publish` has not taken is removed.

        Args:
            stored: what was sent; empty if versions are changed or deleted only.

        Raises:
            InsufficientStorage: the file system has too little room.
        """
        staged = StagedChange()
        try:
            for each in stored if self.repository.is_shared else ():
                staged.files[each.version] = await self.repository.put(each.content, self._threads), each.media_type
            if not self.repository.is_immediate:
                await staged.turn.enter_async_context(self._lock)
            yield staged
        finally:
            await staged.turn.aclose()
            self._discard(staged)

    async def publish(self, owner: str, name: str, staged: StagedChange) -> None:
        """Let all processes have a graph of a caller as this one has it; called at once after the change.

        Args:
            owner: the caller.
            name: the graph's name.
            staged: the change.

        Raises:
            TensorpostError: it cannot be written; this process has then what the others have.
        """
        if not self.repository.is_shared:
            return
        writing = self._write(owner, name, staged.take())
        if self.repository.is_immediate:
            await writing  # which does not suspend, unless it fails
        else:
            await self._in_any_case(writing)
        await self._in_any_case(self.repository.tell())

    async def _in_any_case(self, doing: Coroutine[Any, Any, None]) -> None:
        """Do something to its end, also if the caller goes."""
        task = asyncio.ensure_future(doing)
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        await asyncio.shield(task)

    async def _write(self, owner: str, name: str, staged: StagedChange) -> None:
        """Write into the table what this process has of a graph."""
        try:
            async with staged.turn:
                entries = self._own(owner, name)
                here = [
                    VersionHere(
                        version, entry.number, _text_of(entry.batches), entry.used,
                        *staged.files.get(version, (None, None)),
                    )
                    for version, entry in entries.items()
                ]  # fmt: skip
                published = await self.repository.publish(owner, name, here, self._known)
                for version, number in published.numbers.items():
                    entries[version].number = number
                    self._known.add(number)
        except BaseException as error:
            self._discard(staged)
            if isinstance(error, TensorpostError):
                for entry in self._own(owner, name).values():
                    self.store.drop(entry)
                self._version = -1
                await self.synchronize()
            raise

    def _own(self, owner: str, name: str) -> dict[int, StoreEntry]:
        return {each.version: each for each in self.store.versions(owner, name) if each.owner == owner}

    def _discard(self, staged: StagedChange) -> None:
        if staged.files:
            self.repository.discard([file for file, _ in staged.files.values()])

    async def synchronize(self) -> None:
        """Store and drop graphs in this process as the table says. What there is no memory for is tried again."""
        if not self.repository.is_shared:
            return
        async with self._lock:
            self._is_complete = True
            while (version := self.repository.version) != self._version:
                rows = {row.number: row for row in await self.repository.rows()}
                self._version = version
                keys = {row.key for row in rows.values()}  # those that were replaced stay until the new one is here
                for entry in self._not_in(rows):
                    if (entry.owner, entry.name, entry.version) not in keys:
                        self.store.drop(entry)
                here = {each.number for each in self.store.entries()}
                self._known = {*rows} & here
                for row in [row for number, row in rows.items() if number not in here]:
                    await self._take_over(row)
            if not self._is_complete:
                self._version = -1
                for entry in self._not_in({row.number for row in await self.repository.rows()}):
                    self.store.drop(entry)  # none is better than the one before

    def _not_in(self, rows: Container[int]) -> list[StoreEntry]:
        """The graphs of callers that these rows of the table do not have."""
        return [each for each in self.store.entries() if each.number and each.number not in rows]

    async def read_folder_graph(self, name: str) -> None:
        """Read a graph of the server's folder again, as another process has done."""
        assert self.settings.graphs is not None
        self.store.take_files(
            await self._threads.run(True, read_graph_folder, self.settings.graphs, self.settings, name), name
        )

    async def uses(self) -> list[GraphUse]:
        """The calls of each graph in this process."""
        return [(each.owner, each.name, each.version, each.calls, each.used) for each in self.store.entries()]

    async def uses_elsewhere(self) -> GraphUses:
        """The calls of graphs in the other processes."""
        found: GraphUses = {}
        for owner, name, version, count, used in await self.repository.uses_elsewhere():
            calls, last = found.get((owner, name, version), (0, 0.0))
            found[owner, name, version] = calls + count, max(last, used)
        return found

    def note_uses(self) -> None:
        """Let the other processes know when this one has used graphs; drop those that they have dropped."""
        if not self.repository.is_shared:
            return
        used = {each.number: each for each in self.store.entries() if each.number and each.used > each.noted}
        uses = [(each.owner, each.name, each.version, each.calls, each.used) for each in self.store.entries()]
        gone = self.repository.note_uses([(number, each.used) for number, each in used.items()], uses)
        for entry in used.values():
            entry.noted = entry.used
        for number in gone:
            self.store.drop(used[number])

    async def _take_over(self, row: GraphRow) -> None:
        """Store a graph that another process has stored."""
        try:
            content = await self.repository.read(row.file, self._threads)
            if content is None:
                return  # it was replaced meanwhile, which the next look at the table finds
            source = await self._threads.run(True, read_source, content, row.media_type, self.settings)
            batches = None if row.batches == "null" else BatchSettings(**json.loads(row.batches))
            if not self.repository.has(row.number):
                return  # it was replaced meanwhile, perhaps by this process
            self.store.take_over(
                row.owner, row.name, GraphVersion.of(content, source, row.version, batches), row.number
            )
            self._known.add(row.number)
        except (TensorpostError, MemoryError, OSError) as error:
            self._is_complete = False
            _log.error("the graph %r, which another process has stored, is not here yet: %s", row.name, error)

    def _is_idle_everywhere(self, entry: StoreEntry, since: float) -> bool:
        """Whether no process has used a graph since then; then it is taken out of the table."""
        used = self.repository.last_use(entry.number, since)
        if used is not None:
            entry.used = max(entry.used, used)
        return used is None

    @property
    def _threads(self) -> CallerThreads:
        return CallerThreads(self.threads, "processes")


def _text_of(batches: BatchSettings | None) -> str:
    return json.dumps(None if batches is None else asdict(batches))
