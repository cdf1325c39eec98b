"""Graphs and ONNX models that the server keeps, each by its owner, name and version.

A call that names no version goes to the newest, which has the highest number. A graph belongs to the API key that
stored it; without keys everybody shares them. Those of the folder `graphs` of the settings belong to the server, and
everybody may call them. What a graph takes is part of the memory budget until it is deleted, replaced, or has not been
used for too long; calls that run go on.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tensorpost.descriptors import NEWEST
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    GraphNotFound,
    InvalidParameter,
    LimitExceeded,
    MethodNotAllowed,
    TensorpostError,
    nearest,
)

from ...engine import Admission
from ...planning import Plan
from ...settings import Settings
from ..calls.batch_settings import BatchSettings
from ..calls.call import PlanKind
from .graph_folder import FolderGraph, read_graph_folder
from .graph_sources import GraphSource

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_RESERVED = ("stats",)
"""Names that have another meaning in paths of `/v2/models`."""

_log = logging.getLogger(__name__)


class GraphVersion(NamedTuple):
    """A version of a graph that was read, to be kept.

    Attributes:
        version: its number, at least 1.
        digest: the SHA-256 of what was sent, hexadecimal.
        source: what it is made from.
        batches: how many rows its calls may have, and whether they are joined; None for any number.
    """

    version: int
    digest: str
    source: GraphSource
    batches: BatchSettings | None = None

    @classmethod
    def of(
        cls, content: bytes, source: GraphSource, version: int = 1, batches: BatchSettings | None = None
    ) -> GraphVersion:  # fmt: skip
        """The version that these bytes are."""
        return cls(version, hashlib.sha256(content).hexdigest(), source, batches)


@dataclass(slots=True, eq=False)
class StoreEntry:
    """A version of a graph that is kept.

    Attributes:
        name: its name.
        owner: the caller that it belongs to; None for those of the server's folder.
        source: what it is made from.
        digest: the SHA-256 of what was sent, hexadecimal.
        size_in_bytes: memory that it takes.
        created: when it was stored, seconds since 1970.
        used: when it was used last, by the store's clock.
        version: its number.
        batches: how many rows its calls may have, and whether they are joined; None for any number.
        is_kept: whether it is still there, and still the newest if it was; a call that was prepared with it is not
            repeated otherwise.
        calls: calls so far.
        model: what `/v2` says of it, once somebody has asked.
        joined_calls: how many calls were computed together with others, or could have been.
        batches_computed: how many batches of them were computed.
        number: its number in the database of several processes; 0 if it is not there.
        noted: the last use that the other processes know of.
        plans: plans of its calls; see `KeptGraph`.
    """

    name: str
    owner: str | None
    source: GraphSource
    digest: str
    size_in_bytes: int
    created: float
    used: float
    version: int = 1
    batches: BatchSettings | None = None
    is_kept: bool = True
    calls: int = 0
    model: object = None
    joined_calls: int = 0
    batches_computed: int = 0
    number: int = 0
    noted: float = 0.0
    plans: dict[tuple[int, PlanKind], Plan] = field(default_factory=dict[tuple[int, PlanKind], Plan])

    @property
    def fingerprint(self) -> Hashable:
        """Equal for graphs whose calls have the same answers."""
        return self.digest, self.version, self.batches

    @property
    def tag(self) -> str:
        """What tells its answers from those of any other graph."""
        return f"graph {self.version} {self.digest}"

    @property
    def input_names(self) -> frozenset[str]:
        """The inputs that each call sends."""
        return frozenset([tensor.name for tensor in self.source.inputs])

    def graph_of(self, sent: Mapping[str, Layout], outputs: Sequence[str]) -> Graph:
        """The graph for tensors of these types and sizes; of a model, what these outputs need."""
        wanted = outputs if self.source.kind == "onnx" else None
        return self.source.graph(sent, {}, wanted, NEWEST, self.source.node_count)

    def count_batch(self, calls: int) -> None:
        """Take note of a batch of so many calls."""
        self.joined_calls += calls
        self.batches_computed += 1

    def use(self) -> bool:
        """Take note of a call; False if the graph is not kept any more."""
        self.used = time.monotonic()
        self.calls += 1
        return self.is_kept


_Versions = dict[int, StoreEntry]
"""The versions of a graph by their numbers."""


@dataclass(slots=True)
class GraphStore:
    """The stored graphs. Used from the event loop's thread only.

    Attributes:
        settings: limits, and the folder.
        admission: the memory budget.
        is_taken: whether a name is another model's in `/v2`.
        when_dropped: called with each graph that is not kept any more.
        is_idle: whether a graph that nobody has called here since a time may be dropped.
        copies: how many processes keep each graph of a caller.
    """

    settings: Settings
    admission: Admission
    is_taken: Callable[[str], bool]
    when_dropped: Callable[[StoreEntry], object] = lambda _: None
    is_idle: Callable[[StoreEntry, float], bool] = lambda _entry, _since: True
    copies: int = 1
    _graphs: dict[tuple[str | None, str], _Versions] = field(default_factory=dict[tuple[str | None, str], _Versions])

    def find(self, owner: str, name: str, version: str | None = None) -> StoreEntry:
        """The caller's graph of this name, or the server's.

        Args:
            owner: the caller.
            name: the graph's name.
            version: the number of its version, decimal; None for the newest.

        Raises:
            GraphNotFound: there is none, or no such version of it; `extra["versions"]` are those that there are.
        """
        self.sweep()
        found = self.versions(owner, name)
        if not found:
            guess = nearest(name, [graph.name for graph in self.listed(owner)])
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise GraphNotFound(
                f"there is no stored graph {name[:100]!r}{hint}; one that nobody calls for "
                f"{self.settings.stored_graph_idle_seconds:,} s is dropped, and none outlives the server (settings "
                "TENSORPOST_STORED_GRAPH_IDLE_SECONDS, TENSORPOST_GRAPHS)",
                extra={"nearest": guess},
            )
        if version is None:
            return found[-1]
        for each in found:
            if str(each.version) == version:
                return each
        known = [each.version for each in found]
        only = f"version {known[0]} only" if len(known) == 1 else f"the versions {', '.join(map(str, known))}"
        raise GraphNotFound(
            f"the stored graph {name!r} has no version {version[:20]!r}; it has {only}", extra={"versions": known}
        )

    def versions(self, owner: str, name: str) -> Sequence[StoreEntry]:
        """The versions of the graph of this name that the caller may call, the newest last; empty if there is none."""
        found = self._graphs.get((owner, name)) or self._graphs.get((None, name)) or {}
        return [found[version] for version in sorted(found)]

    def has(self, owner: str, name: str) -> bool:
        """Whether the caller may call a graph of this name."""
        return (owner, name) in self._graphs or (None, name) in self._graphs

    def is_of(self, owner: str, name: str) -> bool:
        """Whether the caller has stored a graph of this name."""
        return (owner, name) in self._graphs

    def listed(self, owner: str) -> Sequence[StoreEntry]:
        """The versions of graphs that a caller may call, by name and version."""
        self.sweep()
        found = [each for each in self.entries() if each.owner in (owner, None)]
        return sorted(found, key=lambda each: (each.name, each.version))

    def put(
        self, owner: str, name: str | None, versions: Sequence[GraphVersion], *, keeps_others: bool = False
    ) -> tuple[StoreEntry, bool]:  # fmt: skip
        """Keep versions of a graph, in place of the caller's one of the same name.

        Args:
            owner: the caller.
            name: its name; None for the digest.
            versions: what was sent, at least one version.
            keeps_others: whether other versions of the name stay.

        Returns:
            The newest of these versions, and whether there was nothing in its place before.

        Raises:
            InvalidParameter: the name cannot be used.
            LimitExceeded: there are too many, or they take too much memory.
            InsufficientStorage: what stays on the server has taken its half of the memory.
            TooBusy: the memory is not there now.
            MethodNotAllowed: the name is one of the server's own graphs.
        """
        name = versions[0].digest if name is None else name
        self._check_name(name)
        if (None, name) in self._graphs:
            raise _is_the_servers(name)
        numbers = {each.version for each in versions}
        before = [
            each
            for number, each in self._graphs.get((owner, name), {}).items()
            if number in numbers or not keeps_others
        ]  # fmt: skip
        own = [each for each in self.entries() if each.owner == owner and each not in before]
        settings, size = self.settings, sum([each.source.size_in_bytes for each in versions])
        if len(own) + len(versions) > settings.max_stored_graphs:
            raise LimitExceeded.of(
                "the number of your stored graphs", len(own) + len(versions), settings.max_stored_graphs,
                "TENSORPOST_MAX_STORED_GRAPHS", "graphs",
            )  # fmt: skip
        whole = size + sum([each.size_in_bytes for each in own])
        if whole > settings.max_stored_graph_bytes:
            raise LimitExceeded.of(
                "the memory of your stored graphs", whole, settings.max_stored_graph_bytes,
                "TENSORPOST_MAX_STORED_GRAPH_BYTES",
            )  # fmt: skip
        self.admission.keep(size, copies=self.copies)
        for each in before:
            self._drop(each)
        entries = [_new_entry(owner, name, each) for each in versions]
        for entry in entries:
            self._add(entry)
        return max(entries, key=lambda each: each.version), not before

    def configure(
        self, owner: str, name: str, batches: Mapping[int, BatchSettings | None], dropped: Collection[int]
    ) -> None:  # fmt: skip
        """Change how many rows the calls of the caller's graph may have, and whether they are joined.

        Args:
            owner: the caller.
            name: the graph's name.
            batches: the same by version.
            dropped: versions that are dropped.

        Raises:
            GraphNotFound: there is none.
            MethodNotAllowed: it is the server's own.
        """
        for graph in self._of_caller(owner, name, None):
            if graph.version in dropped:
                self._drop(graph)
            elif graph.version in batches and graph.batches != batches[graph.version]:
                self._renew(graph, batches[graph.version])

    def delete(self, owner: str, name: str, version: str | None = None) -> None:
        """Drop a graph of the caller, or a version of it.

        Raises:
            GraphNotFound: there is none.
            MethodNotAllowed: it is the server's own.
        """
        for graph in self._of_caller(owner, name, version):
            self._drop(graph)

    def sweep(self) -> None:
        """Drop graphs of callers that nobody has called for too long."""
        since = time.monotonic() - self.settings.stored_graph_idle_seconds
        for graph in [each for each in self.entries() if each.owner is not None and each.used < since]:
            if self.is_idle(graph, since):
                self._drop(graph)

    def take_over(self, owner: str, name: str, version: GraphVersion, number: int) -> None:
        """Keep a version that another process has stored, in place of one that it has replaced.

        Raises:
            LimitExceeded, InsufficientStorage, TooBusy: there is no memory for it.
        """
        before = self._graphs.get((owner, name), {}).get(version.version)
        self.admission.keep(version.source.size_in_bytes)
        if before is not None:
            self._drop(before)
        entry = _new_entry(owner, name, version)
        entry.number = number
        self._add(entry)

    def drop(self, graph: StoreEntry) -> None:
        """Drop a graph that another process has dropped."""
        self._drop(graph)

    def read_folder(self) -> None:
        """Read the files of the folder in the settings, if there is one; graphs whose file has gone are dropped.

        Raises:
            InvalidParameter: the folder or a file cannot be used; nothing has changed then, nor if there is no memory.
            LimitExceeded, TooBusy: there is no memory for them.
        """
        if self.settings.graphs is not None:
            self.take_files(read_graph_folder(self.settings.graphs, self.settings))

    def take_files(self, files: Sequence[FolderGraph], only: str | None = None) -> None:
        """Keep graphs of the folder in place of those of before; the same ones stay as they are.

        Args:
            files: what was read.
            only: the name of the only graph that was looked for; None for all.

        Raises:
            InvalidParameter: a name cannot be used; nothing has changed then, nor if there is no memory.
            LimitExceeded, TooBusy: there is no memory for them.
        """
        for file in files:
            try:
                self._check_name(file.name)
            except InvalidParameter as error:
                raise InvalidParameter(f"{file.path}: {error.detail}") from None
        entries = {(file.name, file.version): _entry_of(file) for file in files}
        before = {(each.name, each.version): each for each in self.entries() if each.owner is None}
        changed = {
            key: entry
            for key, entry in entries.items()
            if key not in before or before[key].fingerprint != entry.fingerprint
        }
        self.admission.keep(sum([each.size_in_bytes for each in changed.values()]))  # before anything is dropped
        for key, entry in before.items():
            if key in changed or (key not in entries and only in (None, entry.name)):
                self._drop(entry)
        for entry in changed.values():
            self._add(entry)

    def reload(self) -> None:
        """Read the folder again; a mistake in it is logged, and the graphs stay as they are."""
        try:
            self.read_folder()
            _log.info("%d stored graphs were read again from %s", len(self.listed("")), self.settings.graphs)
        except TensorpostError as error:
            _log.error("the stored graphs stay as they are: %s", error.detail)

    def close(self) -> None:
        """Drop all graphs."""
        for graph in [*self.entries()]:
            self._drop(graph)

    def entries(self) -> Iterator[StoreEntry]:
        """All graphs, each version by itself."""
        for versions in self._graphs.values():
            yield from versions.values()

    def _of_caller(self, owner: str, name: str, version: str | None) -> Sequence[StoreEntry]:
        """A version of the caller's graph, which may be changed; all of them without a version."""
        graph = self.find(owner, name, version)
        if graph.owner is None:
            raise _is_the_servers(name)
        return self.versions(owner, name) if version is None else [graph]

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidParameter(
                f"a graph cannot be called {name[:100]!r}; a name has 1 to 100 letters, digits, dots, hyphens and "
                "underscores, and begins with a letter, a digit or an underscore"
            )
        if name in _RESERVED or self.is_taken(name):
            raise InvalidParameter(f"{name!r} is the name of another model of /v2; give the graph another one")

    def _add(self, graph: StoreEntry) -> None:
        """Keep a graph; calls that name no version go to it if it is the newest one."""
        versions = self._graphs.setdefault((graph.owner, graph.name), {})
        newest = versions[max(versions)] if versions else graph
        versions[graph.version] = graph
        if newest.version < graph.version:
            self._renew(newest, newest.batches)

    def _renew(self, graph: StoreEntry, batches: BatchSettings | None) -> None:
        """Forget the calls that were prepared with a graph, which stays."""
        graph.is_kept = False
        self.when_dropped(graph)
        renewed = replace(graph, batches=batches, model=None, is_kept=True)
        self._graphs[graph.owner, graph.name][graph.version] = renewed

    def _drop(self, graph: StoreEntry) -> None:
        versions = self._graphs[graph.owner, graph.name]
        del versions[graph.version]
        if not versions:
            del self._graphs[graph.owner, graph.name]
        graph.is_kept = False
        graph.plans.clear()
        self.admission.give_back(graph.size_in_bytes)
        self.when_dropped(graph)


def _is_the_servers(name: str) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"the graph {name!r} is one of the server's own (setting TENSORPOST_GRAPHS), which callers cannot change; "
        "store yours under another name",
        extra={"allow": "GET, HEAD, OPTIONS, POST"},
    )


def _new_entry(owner: str, name: str, stored: GraphVersion) -> StoreEntry:
    version, digest, source, batches = stored
    return StoreEntry(
        name, owner, source, digest, source.size_in_bytes, time.time(), time.monotonic(), version, batches
    )  # fmt: skip


def _entry_of(file: FolderGraph) -> StoreEntry:
    return StoreEntry(
        file.name, None, file.source, file.digest, file.source.size_in_bytes, file.modified, time.monotonic(),
        file.version, file.batches,
    )  # fmt: skip
