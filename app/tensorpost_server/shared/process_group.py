"""The processes of one server, as one of them sees them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from .buckets import SharedBuckets
from .counts import NoOthers, ProcessCounts, SharedCounts
from .shared_database import SharedDatabase
from .shared_folder import graph_path, shared_file, tensor_path
from .siblings import Siblings

_COUNTS = ("requests", "connections", "grpc_connections")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """What a process shares with the others.

    Attributes:
        folder: where it lies; None if there is one process.
        place: which of the processes this one is, from 0 on.
        processes: how many take connections.
        requests: requests and bytes in flight.
        connections: open connections.
        buckets: what is left of quotas; None if there is one process.
        database: what is kept.
        grpc_connections: open connections of gRPC.
        siblings: the other processes, to ask them something.
        grpc_listener: the socket on which all listen for gRPC; None if there is none, or the process makes its own.
    """

    folder: Path | None = None
    place: int = 0
    processes: int = 1
    requests: ProcessCounts = field(default_factory=NoOthers)
    connections: ProcessCounts = field(default_factory=NoOthers)
    buckets: SharedBuckets | None = None
    database: SharedDatabase = field(default_factory=SharedDatabase)
    grpc_connections: ProcessCounts = field(default_factory=NoOthers)
    grpc_listener: socket.socket | None = None
    siblings: Siblings = field(default_factory=lambda: Siblings(None, 0))

    @classmethod
    def create(cls, folder: Path, processes: int) -> None:
        """Make the files of a group in an empty folder, with places for as many successors."""
        for name in _COUNTS:
            SharedCounts.create(shared_file(folder, name), places_of(processes))
        SharedBuckets.create(shared_file(folder, "buckets"))
        SharedDatabase(shared_file(folder, "database")).close()

    @classmethod
    def join(cls, folder: Path, place: int, processes: int, grpc_listener: socket.socket | None = None) -> ProcessGroup:
        """The group in a folder, for the process at a place."""
        requests, connections, grpc = [
            SharedCounts(shared_file(folder, name), place, places_of(processes)) for name in _COUNTS
        ]
        buckets = SharedBuckets(shared_file(folder, "buckets"))
        database = SharedDatabase(shared_file(folder, "database"))
        return cls(
            folder, place, processes, requests=requests, connections=connections, grpc_connections=grpc,
            buckets=buckets, database=database, siblings=Siblings(folder, place, places_of(processes)),
            grpc_listener=grpc_listener,
        )  # fmt: skip

    @property
    def is_shared(self) -> bool:
        """Whether there is another process."""
        return self.folder is not None

    def set_ready(self, *, is_ready: bool) -> None:
        """Say whether this process takes connections."""
        if isinstance(self.connections, SharedCounts):
            self.connections.set_ready(is_ready=is_ready)

    def clear(self, place: int) -> None:
        """Take out what the process at a place had counted, which has ended."""
        for counts in (self.requests, self.connections, self.grpc_connections):
            if isinstance(counts, SharedCounts):
                counts.clear(place)
        moved = 0
        try:
            with self.database.change() as database:
                database.execute("DELETE FROM tensor_uses WHERE place = ?", (place,))
                database.execute(
                    "DELETE FROM tensors WHERE place = ? OR (name IS NULL AND reserved IS NULL AND NOT EXISTS "
                    "(SELECT 1 FROM tensor_uses WHERE tensor_uses.number = tensors.number))",
                    (place,),
                )
                (held_bytes,) = database.execute("SELECT total(size) FROM tensors").fetchone()
                moved = int(held_bytes) - self.requests.held_bytes
                self.requests.hold(moved)
        except BaseException:
            self.requests.hold(-moved)  # the tensors are still there
            raise
        self._remove_files(place)

    def _remove_files(self, place: int) -> None:
        """Remove files that nothing names: the rows of tensors and graphs come before, and go after, their files."""
        assert self.folder is not None
        with self.database.change() as database:
            named = {tensor_path(self.folder, number) for (number,) in database.execute("SELECT number FROM tensors")}
            for path in self.folder.glob(tensor_path(self.folder, 0).name[:-1] + "*"):
                if path not in named:
                    path.unlink(missing_ok=True)
            for path in self.folder.glob(graph_path(self.folder, place, "*").name):  # it may have written one more
                if database.execute("SELECT 1 FROM graphs WHERE file = ?", (path.name,)).fetchone() is None:
                    path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let go of the files; what this process had counted stays until `clear`."""
        for counts in (self.requests, self.connections, self.grpc_connections):
            if isinstance(counts, SharedCounts):
                counts.close()
        if self.buckets is not None:
            self.buckets.close()
        self.database.close()

    def close(self) -> None:
        """Take no more connections from the others. What is counted stays until the process has ended."""
        self.set_ready(is_ready=False)
        self.siblings.close()

    def share_of(self, count: int) -> int:
        """The part of something that each process has of its own, at least 1 of it unless there is none."""
        return min(count, max(1, count // self.processes))


def places_of(processes: int) -> int:
    """Places for that many processes, and for the successor of each while it is replaced."""
    return 2 * processes
