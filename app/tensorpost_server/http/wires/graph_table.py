"""Which graphs callers have stored: a table that the processes of one machine share, or all replicas on Ray."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...shared.shared_database import SharedDatabase

_ROWS = "SELECT number, owner, name, version, media_type, file, batches FROM graphs"


class GraphRow(NamedTuple):
    """A version of a graph.

    Attributes:
        number: a number that no other one has.
        owner: the caller.
        name: the graph's name.
        version: the number of its version.
        media_type: the type of what was stored; None if the first bytes decide.
        file: the name of what was stored, by which it is read.
        batches: its `BatchSettings`, or null, as JSON text.
    """

    number: int
    owner: str
    name: str
    version: int
    media_type: str | None
    file: str
    batches: str

    @property
    def key(self) -> tuple[str, str, int]:
        """Owner, name and version, of which there is one row."""
        return self.owner, self.name, self.version


class VersionHere(NamedTuple):
    """A version of a graph as a process has it.

    Attributes:
        version: the number of the version.
        number: the number of its row; 0 if it has none.
        batches: its `BatchSettings`, or null, as JSON text.
        used: when it was used last, seconds of the monotonic clock.
        file: what was stored now, by its name; None if it is what it was.
        media_type: the type of that.
    """

    version: int
    number: int
    batches: str
    used: float
    file: str | None = None
    media_type: str | None = None


class Published(NamedTuple):
    """What has become of the versions of a graph.

    Attributes:
        numbers: the numbers of the new rows, by version.
        unused: files that no row names any more.
    """

    numbers: dict[int, int]
    unused: list[str]


class GraphTable:
    """The table.

    Args:
        database: where it is.
    """

    def __init__(self, database: SharedDatabase) -> None:
        self._database = database

    def rows(self) -> list[GraphRow]:
        """All versions of all graphs."""
        return [*map(GraphRow._make, self._database.connection.execute(_ROWS))]

    def publish(self, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]) -> Published:
        """Let the table have a graph of a caller as a process has it.

        Args:
            owner: the caller.
            name: the graph's name.
            here: its versions there.
            known: numbers of rows that the process has seen; others stay.
        """
        wanted, numbers = {each.version: each for each in here}, dict[int, int]()
        with self._database.change() as database:
            found = database.execute(f"{_ROWS} WHERE owner = ? AND name = ?", (owner, name)).fetchall()
            rows = {row.version: row for row in map(GraphRow._make, found)}
            for version, row in rows.items():
                mine = wanted.get(version)
                if mine is None:
                    is_over = row.number in known  # else another process has just stored it
                else:
                    is_over = mine.file is not None or (mine.number == row.number and mine.batches != row.batches)
                if is_over:
                    database.execute("DELETE FROM graphs WHERE number = ?", (row.number,))
                else:
                    wanted.pop(version, None)  # it is as it was, or another process has stored it again
            for version, mine in wanted.items():
                if mine.file is not None:
                    file, media_type = mine.file, mine.media_type
                elif version in rows:
                    file, media_type = rows[version].file, rows[version].media_type
                else:
                    continue  # another request stores it, and publishes it
                added = database.execute(
                    "INSERT INTO graphs (owner, name, version, media_type, file, batches, used) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (owner, name, version, media_type, file, mine.batches, mine.used),
                ).lastrowid
                numbers[version] = added or 0
            unused = [row.file for row in rows.values() if not self.is_named(row.file)]
        return Published(numbers, unused)

    def note_use(self, number: int, used: float) -> bool:
        """A process has used a graph; False if the table does not have it any more."""
        query = "UPDATE graphs SET used = max(used, ?) WHERE number = ?"
        return bool(self._database.connection.execute(query, (used, number)).rowcount)

    def used(self, number: int) -> float | None:
        """When a graph was used last; None if the table does not have it."""
        row = self._database.connection.execute("SELECT used FROM graphs WHERE number = ?", (number,)).fetchone()
        return None if row is None else row[0]

    def drop_idle(self, since: float, number: int | None = None) -> tuple[int, list[str]]:
        """Take out graphs that nobody has used since then.

        Args:
            since: seconds of the monotonic clock.
            number: the only one to look at; None for all.

        Returns:
            How many, and the files that no row names any more.
        """
        with self._database.change() as database:
            query = "DELETE FROM graphs WHERE used < ? AND number = ifnull(?, number) RETURNING file"
            files = [file for (file,) in database.execute(query, (since, number)).fetchall()]
            return len(files), [file for file in files if not self.is_named(file)]

    def is_named(self, file: str) -> bool:
        """Whether a row names a file."""
        return self._database.connection.execute("SELECT 1 FROM graphs WHERE file = ?", (file,)).fetchone() is not None
