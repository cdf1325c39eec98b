"""Stored graphs that several processes have, on one machine or on Ray: each has all of them, as a table lists them.

A process that stores, changes or deletes a graph says so in the table, and waits until the others have done the same
before it answers; so a call after the answer finds the same graphs in any of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from tensorpost.values.problems import TensorpostError

from ...engine import WorkerThreads
from ...settings import Settings
from ..background_threads import CallerThreads
from ..calls.batch_settings import BatchSettings
from .graph_folder import read_graph_folder
from .graph_shelf import GraphShelf, GraphUse
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
class SharedGraphs:
    """The graphs of callers in all processes. It does nothing if there is one process.

    Attributes:
        store: the graphs of this process.
        shelf: what all processes have.
        settings: limits of what is read.
        threads: where graphs are read.
    """

    store: GraphStore
    shelf: GraphShelf
    settings: Settings
    threads: WorkerThreads
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _version: int = -1
    _known: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        if self.shelf.is_shared:
            self.store.is_idle = self._is_idle_everywhere

    async def publish(self, owner: str, name: str, stored: Sequence[StoredContent] = ()) -> None:
        """Let all processes have a graph of a caller as this one has it.

        Args:
            owner: the caller.
            name: the graph's name.
            stored: what was sent now; empty if versions were changed or deleted only.
        """
        if not self.shelf.is_shared:
            return
        files = {each.version: f"graph-{secrets.token_hex(8)}" for each in stored}
        for each in stored:
            await self.shelf.put(files[each.version], each.content, self._threads)
        media_types = {each.version: each.media_type for each in stored}
        async with self._lock:
            entries = {each.version: each for each in self.store.versions(owner, name) if each.owner == owner}
            here = [
                VersionHere(
                    version, entry.number, _text_of(entry.batches), entry.used, files.get(version),
                    media_types.get(version),
                )
                for version, entry in entries.items()
            ]  # fmt: skip
            published = await self.shelf.publish(owner, name, here, self._known)
            for version, number in published.numbers.items():
                entries[version].number = number
                self._known.add(number)
        await self.shelf.tell()

    async def synchronize(self) -> None:
        """Store and drop graphs in this process as the table says."""
        async with self._lock:
            while (version := self.shelf.version) != self._version:
                self._version = version
                rows = {row.number: row for row in await self.shelf.rows()}
                for entry in [each for each in self.store.entries() if each.number and each.number not in rows]:
                    self.store.drop(entry)
                here = {each.number for each in self.store.entries()}
                self._known = {*rows} & here
                for row in [row for number, row in rows.items() if number not in here]:
                    await self._take_over(row)

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
        for owner, name, version, count, used in await self.shelf.uses_elsewhere():
            calls, last = found.get((owner, name, version), (0, 0.0))
            found[owner, name, version] = calls + count, max(last, used)
        return found

    def note_uses(self) -> None:
        """Let the other processes know when this one has used graphs; drop those that they have dropped."""
        if not self.shelf.is_shared:
            return
        used = {each.number: each for each in self.store.entries() if each.number and each.used > each.noted}
        uses = [(each.owner, each.name, each.version, each.calls, each.used) for each in self.store.entries()]
        gone = self.shelf.note_uses([(number, each.used) for number, each in used.items()], uses)
        for entry in used.values():
            entry.noted = entry.used
        for number in gone:
            self.store.drop(used[number])

    async def _take_over(self, row: GraphRow) -> None:
        """Store a graph that another process has stored."""
        try:
            content = await self.shelf.read(row.file, self._threads)
            if content is None:
                return  # it was replaced meanwhile, which the next look at the table finds
            source = await self._threads.run(True, read_source, content, row.media_type, self.settings)
            batches = None if row.batches == "null" else BatchSettings(**json.loads(row.batches))
            self.store.take_over(
                row.owner, row.name, GraphVersion.of(content, source, row.version, batches), row.number
            )
            self._known.add(row.number)
        except TensorpostError as error:
            _log.error("the graph %r, which another process has stored, is not here: %s", row.name, error.detail)

    def _is_idle_everywhere(self, entry: StoreEntry, since: float) -> bool:
        """Whether no process has used a graph since then; then it is taken out of the table."""
        used = self.shelf.last_use(entry.number, since)
        if used is not None:
            entry.used = max(entry.used, used)
        return used is None

    @property
    def _threads(self) -> CallerThreads:
        return CallerThreads(self.threads, "processes")


def _text_of(batches: BatchSettings | None) -> str:
    return json.dumps(None if batches is None else asdict(batches))
