"""Stored graphs of a server with several processes: each process has all of them, as the database lists them.

A process that stores, changes or deletes a graph says so in the database, and waits until the others have done the
same before it answers; so a call after the answer finds the same graphs in any of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sqlite3
from collections.abc import AsyncGenerator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tensorpost.values.problems import TensorpostError

from ...engine import WorkerThreads
from ...settings import Settings
from ...shared.process_group import ProcessGroup
from ...shared.shared_folder import graph_path, room_for, shared_file
from ...shared.siblings import CHANGE_SECONDS
from ..background_threads import CallerThreads
from ..calls.batch_settings import BatchSettings
from .graph_folder import read_graph_folder
from .graph_sources import read_source
from .graph_store import GraphStore, GraphVersion, StoreEntry

GRAPHS_QUESTION, FOLDER_QUESTION, USES_QUESTION = "graphs", "graphs of the folder", "uses of graphs"
"""What a process asks of the others: to do what the database says, to read a graph of the folder again, or `uses`."""

GraphUses = dict[tuple[str | None, str, int], tuple[int, float]]
"""Calls by owner, name and version: their number, and the time of the last one, seconds of the monotonic clock."""

_ROWS = "SELECT number, owner, name, version, media_type, file, batches FROM graphs"
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


StagedFiles = dict[int, tuple[str, str | None]]
"""Files of what was sent and their media types, by version."""


class _Row(NamedTuple):
    number: int
    owner: str
    name: str
    version: int
    media_type: str | None
    file: str
    batches: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.owner, self.name, self.version


@dataclass(slots=True)
class SharedGraphs:
    """The graphs of callers in all processes. It does nothing if there is one process.

    Attributes:
        store: the graphs of this process.
        group: the processes.
        settings: limits of what is read.
        threads: where graphs are read.
    """

    store: GraphStore
    group: ProcessGroup
    settings: Settings
    threads: WorkerThreads
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _version: int = -1
    _is_complete: bool = True
    _asking: set[asyncio.Future[list[Any]]] = field(default_factory=set[asyncio.Future[list[Any]]])
    _known: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        if self.group.is_shared:
            self.store.is_idle = self._drop_row_if_idle
            self.store.copies = self.group.processes

    @asynccontextmanager
    async def staged(self, stored: Sequence[StoredContent]) -> AsyncGenerator[StagedFiles]:
        """What was sent, in files that the other processes can read; removed unless `publish` has used them.

        It comes before a graph is put into the store, so that nothing waits between that and `publish`: else another
        request could store a graph of the same name meanwhile, and the processes would disagree about the two.

        Raises:
            InsufficientStorage: the file system has too little room.
        """
        folder, files = self.group.folder, dict[int, tuple[str, str | None]]()
        try:
            for each in stored if folder is not None else ():
                assert folder is not None
                path = graph_path(folder, self.group.place, secrets.token_hex(8))
                files[each.version] = path.name, each.media_type
                await self._threads.run(True, _write, path, each.content)
            yield files
        finally:
            if folder is not None:
                for file, _ in files.values():
                    shared_file(folder, file).unlink(missing_ok=True)

    async def publish(self, owner: str, name: str, staged: StagedFiles | None = None) -> None:
        """Let all processes have a graph of a caller as this one has it; called at once after the change.

        Args:
            owner: the caller.
            name: the graph's name.
            staged: what was sent now, of which files are taken out; None if versions were changed or deleted only.

        Raises:
            TensorpostError: it cannot be written; this process has then what the others have.
        """
        if not self.group.is_shared:
            return
        try:
            self._write_rows(owner, name, {} if staged is None else staged)
        except TensorpostError:
            for entry in self.store.versions(owner, name):
                if entry.owner == owner:
                    self.store.drop(entry)
            self._version = -1
            await self.synchronize()
            raise
        asking = asyncio.ensure_future(self.group.siblings.ask(GRAPHS_QUESTION, seconds=CHANGE_SECONDS))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await asyncio.shield(asking)  # also if the caller goes

    def _write_rows(self, owner: str, name: str, staged: StagedFiles) -> None:
        """Write into the database what this process has of a graph."""
        folder = self.group.folder
        assert folder is not None
        entries = {each.version: each for each in self.store.versions(owner, name) if each.owner == owner}
        with self.group.database.change() as database:
            found = database.execute(f"{_ROWS} WHERE owner = ? AND name = ?", (owner, name)).fetchall()
            rows = {row.version: row for row in map(_Row._make, found)}
            news: dict[int, tuple[str, str | None]] = dict(staged)
            for version, row in rows.items():
                entry = entries.get(version)
                if entry is not None and entry.number == row.number and _text_of(entry.batches) != row.batches:
                    news.setdefault(version, (row.file, row.media_type))
                is_dropped = entry is None and row.number in self._known  # else another process has just stored it
                if version in news or is_dropped:
                    database.execute("DELETE FROM graphs WHERE number = ?", (row.number,))
            numbers: dict[int, int] = {}
            for version, (file, media_type) in news.items():
                entry = entries[version]
                values = owner, name, version, media_type, file, _text_of(entry.batches), entry.used
                added = database.execute(
                    "INSERT INTO graphs (owner, name, version, media_type, file, batches, used) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    values,
                ).lastrowid
                assert added is not None
                numbers[version] = added
            gone = [row.file for row in rows.values() if not _is_named(database, row.file)]
        staged.clear()
        for version, number in numbers.items():
            entries[version].number = number
            self._known.add(number)
        for file in gone:
            shared_file(folder, file).unlink(missing_ok=True)

    async def synchronize(self) -> None:
        """Store and drop graphs in this process as the database says. What there is no memory for is tried again."""
        if not self.group.is_shared:
            return
        async with self._lock:
            self._is_complete = True
            while (version := self.group.database.version) != self._version:
                self._version = version
                rows = {row.number: row for row in map(_Row._make, self.group.database.connection.execute(_ROWS))}
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
                rows = {number for (number,) in self.group.database.connection.execute("SELECT number FROM graphs")}
                for entry in self._not_in(rows):  # none is better than the one before
                    self.store.drop(entry)

    def _not_in(self, rows: Container[int]) -> list[StoreEntry]:
        """The graphs of callers that these rows of the database do not have."""
        return [each for each in self.store.entries() if each.number and each.number not in rows]

    async def read_folder_graph(self, name: str) -> None:
        """Read a graph of the server's folder again, as another process has done."""
        assert self.settings.graphs is not None
        self.store.take_files(
            await self._threads.run(True, read_graph_folder, self.settings.graphs, self.settings, name), name
        )

    async def uses(self) -> list[tuple[str | None, str, int, int, float]]:
        """Owner, name and version of each graph, its calls in this process, and the time of the last one."""
        return [(each.owner, each.name, each.version, each.calls, each.used) for each in self.store.entries()]

    async def uses_elsewhere(self) -> GraphUses:
        """The calls of graphs in the other processes."""
        found: GraphUses = {}
        for owner, name, version, *use in [
            each for uses in await self.group.siblings.ask(USES_QUESTION) for each in uses
        ]:
            calls, last = found.get((owner, name, version), (0, 0.0))
            found[owner, name, version] = calls + use[0], max(last, use[1])
        return found

    def note_uses(self) -> None:
        """Let the other processes know when this one has used graphs; drop those that they have dropped."""
        if not self.group.is_shared:
            return
        for entry in [each for each in self.store.entries() if each.number and each.used > each.noted]:
            query = "UPDATE graphs SET used = max(used, ?) WHERE number = ?"
            entry.noted = entry.used
            if not self.group.database.connection.execute(query, (entry.used, entry.number)).rowcount:
                self.store.drop(entry)

    async def _take_over(self, row: _Row) -> None:
        """Store a graph that another process has stored."""
        assert self.group.folder is not None
        path, media_type = shared_file(self.group.folder, row.file), row.media_type
        try:
            content = await self._threads.run(True, path.read_bytes)
            source = await self._threads.run(True, read_source, content, media_type, self.settings)
            batches = None if row.batches == "null" else BatchSettings(**json.loads(row.batches))
            query = "SELECT 1 FROM graphs WHERE number = ?"
            if self.group.database.connection.execute(query, (row.number,)).fetchone() is None:
                return  # it was replaced meanwhile, perhaps by this process
            self.store.take_over(
                row.owner, row.name, GraphVersion.of(content, source, row.version, batches), row.number
            )
            self._known.add(row.number)
        except FileNotFoundError:
            pass  # it was replaced meanwhile, which the next look at the database finds
        except (TensorpostError, MemoryError, OSError) as error:
            self._is_complete = False
            _log.error("the graph %r, which another process has stored, is not here yet: %s", row.name, error)

    def _drop_row_if_idle(self, entry: StoreEntry, since: float) -> bool:
        """Whether no process has used a graph since then; then it is taken out of the database."""
        folder = self.group.folder
        assert folder is not None
        with self.group.database.change() as database:
            query = "DELETE FROM graphs WHERE number = ? AND used < ? RETURNING file"
            if (dropped := database.execute(query, (entry.number, since)).fetchone()) is not None:
                if not _is_named(database, dropped[0]):
                    shared_file(folder, dropped[0]).unlink(missing_ok=True)
                return True
            used = database.execute("SELECT used FROM graphs WHERE number = ?", (entry.number,)).fetchone()
        if used is not None:
            entry.used = max(entry.used, used[0])
        return used is None

    @property
    def _threads(self) -> CallerThreads:
        return CallerThreads(self.threads, "processes")


def _text_of(batches: BatchSettings | None) -> str:
    return json.dumps(None if batches is None else asdict(batches))


def _is_named(database: sqlite3.Connection, file: str) -> bool:
    """Whether a row names a file."""
    return database.execute("SELECT 1 FROM graphs WHERE file = ?", (file,)).fetchone() is not None


def _write(path: Path, content: bytes) -> None:
    with room_for(path, len(content)):
        path.write_bytes(content)
