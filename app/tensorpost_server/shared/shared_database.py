"""What all processes of a server keep, in a database of SQLite: held tensors, stored graphs, shared memory regions.

SQLite ends the transaction of a process that dies. A server of one process has the same database in its own memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tensorpost.values.problems import InsufficientStorage, Unavailable

_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
_FOLDER_TEXT = "/dev/shm on Linux; docker run --shm-size"  # noqa: S108 # words for a message
_WAIT_SECONDS = 10.0
"""How long a process waits for another one's transaction, which takes some 100 microseconds."""

_TABLES = """
CREATE TABLE IF NOT EXISTS tensors (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    name TEXT,
    reserved TEXT,
    place INTEGER,
    data_type TEXT NOT NULL,
    sizes TEXT NOT NULL,
    size INTEGER NOT NULL,
    created REAL NOT NULL,
    began REAL NOT NULL,
    used REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS tensors_by_name ON tensors (owner, name) WHERE name IS NOT NULL;
CREATE TABLE IF NOT EXISTS tensor_uses (
    number INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (number, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tensor_uses_by_place ON tensor_uses (place);
CREATE TABLE IF NOT EXISTS tensors_gone (
    id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL,
    at REAL NOT NULL, UNIQUE (owner, name)
);
CREATE TABLE IF NOT EXISTS tensors_dropped (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS graphs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    media_type TEXT, file TEXT NOT NULL, batches TEXT NOT NULL, used REAL NOT NULL, UNIQUE (owner, name, version)
);
CREATE TABLE IF NOT EXISTS regions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL,
    offset INTEGER NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL, UNIQUE (owner, name)
);
"""


class SharedDatabase:
    """The database. Used from one thread of each process.

    Args:
        path: its file; None for one in the memory of this process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=_WAIT_SECONDS, isolation_level=None,
            check_same_thread=False,  # the application is made on another thread than it runs on
        )  # fmt: skip
        if path is not None:
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = OFF")  # after a crash of the machine nothing of it is needed
        self.connection.executescript(_TABLES)

    @contextmanager
    def change(self) -> Generator[sqlite3.Connection]:
        """A transaction that writes: the others wait, and all of it is done or nothing.

        Raises:
            InsufficientStorage: the file system has no room for what is written.
            Unavailable: another process has not ended its transaction for ten seconds.
        """
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:  # SQLite may have ended it
                    connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF  # without what SQLite says beyond, such as SQLITE_IOERR_WRITE
            if code in _NO_ROOM:
                raise InsufficientStorage(
                    "what the processes of this server share cannot be written; make room where it is "
                    f"({_FOLDER_TEXT}): {error}"
                ) from None
            if code == sqlite3.SQLITE_BUSY:
                raise Unavailable(
                    f"another process of this server has not ended its change for {_WAIT_SECONDS:g} s; try again"
                ) from None
            raise

    @property
    def version(self) -> int:
        """Another number after each change that another process has made."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the database."""
        self.connection.close()
