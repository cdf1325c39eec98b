"""Graphs and ONNX models that the server keeps, each by its owner and name.

A graph belongs to the API key that stored it; without keys everybody shares them. Those of the folder `graphs` of the
settings belong to the server, and everybody may call them. What a graph takes is part of the memory budget until it is
deleted, replaced, or has not been used for too long; calls that run go on.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from .graph_sources import GraphSource, read_source

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_RESERVED = ("stats",)
"""Names that have another meaning in paths of `/v2/models`."""
_SUFFIXES = (".json", ".onnx", ".safetensors")

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StoreEntry:
    """A graph that is kept.

    Attributes:
        name: its name.
        owner: the caller that it belongs to; None for those of the server's folder.
        source: what it is made from.
        digest: the SHA-256 of what was sent, hexadecimal.
        size_in_bytes: memory that it takes.
        created: when it was stored, seconds since 1970.
        used: when it was used last, by the store's clock.
        is_kept: whether it is still there; a call that was prepared with it is not repeated otherwise.
        calls: calls so far.
        model: what `/v2` says of it, once somebody has asked.
        plans: plans of its calls; see `KeptGraph`.
    """

    name: str
    owner: str | None
    source: GraphSource
    digest: str
    size_in_bytes: int
    created: float
    used: float
    is_kept: bool = True
    calls: int = 0
    model: object = None
    plans: dict[tuple[int, bool], Plan] = field(default_factory=dict[tuple[int, bool], Plan])

    def use(self) -> bool:
        """Take note of a call; False if the graph is not kept any more."""
        self.used = time.monotonic()
        self.calls += 1
        return self.is_kept


@dataclass(slots=True)
class GraphStore:
    """The stored graphs. Used from the event loop's thread only.

    Attributes:
        settings: limits, and the folder.
        admission: the memory budget.
        is_taken: whether a name is another model's in `/v2`.
        when_dropped: called with each graph that is not kept any more.
    """

    settings: Settings
    admission: Admission
    is_taken: Callable[[str], bool]
    when_dropped: Callable[[StoreEntry], object] = lambda _: None
    _graphs: dict[tuple[str | None, str], StoreEntry] = field(default_factory=dict[tuple[str | None, str], StoreEntry])

    def find(self, owner: str, name: str) -> StoreEntry:
        """The caller's graph of this name, or the server's.

        Raises:
            GraphNotFound: there is none.
        """
        self.sweep()
        found = self._graphs.get((owner, name)) or self._graphs.get((None, name))
        if found is None:
            guess = nearest(name, [graph.name for graph in self.listed(owner)])
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise GraphNotFound(
                f"there is no stored graph {name[:100]!r}{hint}; one that nobody calls for "
                f"{self.settings.stored_graph_idle_seconds:,} s is dropped, and none outlives the server (settings "
                "TENSORPOST_STORED_GRAPH_IDLE_SECONDS, TENSORPOST_GRAPHS)",
                extra={"nearest": guess},
            )
        return found

    def has(self, owner: str, name: str) -> bool:
        """Whether the caller may call a graph of this name."""
        return (owner, name) in self._graphs or (None, name) in self._graphs

    def listed(self, owner: str) -> Sequence[StoreEntry]:
        """The graphs that a caller may call, by name."""
        self.sweep()
        return sorted(
            [each for (of, _), each in self._graphs.items() if of in (owner, None)], key=lambda each: each.name
        )

    def put(self, owner: str, name: str | None, content: bytes, source: GraphSource) -> tuple[StoreEntry, bool]:
        """Keep a graph, in place of the caller's one of the same name.

        Args:
            owner: the caller.
            name: its name; None for the digest.
            content: what was sent.
            source: the same, read.

        Returns:
            The graph, and whether there was none of its name before.

        Raises:
            InvalidParameter: the name cannot be used.
            LimitExceeded: there are too many, or they take too much memory.
            TooBusy: the memory is not there now.
            MethodNotAllowed: the name is one of the server's own graphs.
        """
        digest = hashlib.sha256(content).hexdigest()
        name = digest if name is None else name
        self._check_name(name)
        if (None, name) in self._graphs:
            raise _is_the_servers(name)
        before = self._graphs.get((owner, name))
        own = [each for (of, _), each in self._graphs.items() if of == owner and each is not before]
        settings, size = self.settings, source.size_in_bytes
        if len(own) >= settings.max_stored_graphs:
            raise LimitExceeded.of(
                "the number of your stored graphs", len(own) + 1, settings.max_stored_graphs,
                "TENSORPOST_MAX_STORED_GRAPHS", "graphs",
            )  # fmt: skip
        whole = size + sum([each.size_in_bytes for each in own])
        if whole > settings.max_stored_graph_bytes:
            raise LimitExceeded.of(
                "the memory of your stored graphs", whole, settings.max_stored_graph_bytes,
                "TENSORPOST_MAX_STORED_GRAPH_BYTES",
            )  # fmt: skip
        self.admission.keep(size)
        if before is not None:
            self._drop(before)
        graph = StoreEntry(name, owner, source, digest, size, time.time(), time.monotonic())
        self._graphs[owner, name] = graph
        return graph, before is None

    def delete(self, owner: str, name: str) -> None:
        """Drop a graph of the caller.

        Raises:
            GraphNotFound: there is none.
            MethodNotAllowed: it is the server's own.
        """
        graph = self.find(owner, name)
        if graph.owner is None:
            raise _is_the_servers(name)
        self._drop(graph)

    def sweep(self) -> None:
        """Drop graphs of callers that nobody has called for too long."""
        since = time.monotonic() - self.settings.stored_graph_idle_seconds
        for graph in [each for each in self._graphs.values() if each.owner is not None and each.used < since]:
            self._drop(graph)

    def read_folder(self) -> None:
        """Read the files of the folder in the settings, if there is one; graphs whose file has gone are dropped.

        Raises:
            InvalidParameter: the folder or a file cannot be used; nothing has changed then, nor if there is no memory.
            LimitExceeded, TooBusy: there is no memory for them.
        """
        if self.settings.graphs is None:
            return
        found: dict[str, tuple[Path, bytes, GraphSource]] = {}
        for path in _files(self.settings.graphs):
            try:
                self._check_name(path.stem)
            except InvalidParameter as error:
                raise InvalidParameter(f"{path}: {error.detail}") from None
            if path.stem in found:
                raise InvalidParameter(
                    f"{found[path.stem][0]} and {path} are two graphs of one name; rename one of them"
                )
            found[path.stem] = (path, *_read_file(path, self.settings))
        now = time.monotonic()
        entries = [
            StoreEntry(
                name, None, source, hashlib.sha256(content).hexdigest(), source.size_in_bytes, path.stat().st_mtime, now
            )
            for name, (path, content, source) in found.items()
        ]  # fmt: skip
        before = {name: entry for (owner, name), entry in self._graphs.items() if owner is None}
        changed = [each for each in entries if each.name not in before or before[each.name].digest != each.digest]
        self.admission.keep(sum([each.size_in_bytes for each in changed]))  # before anything is dropped
        names = {each.name for each in changed}
        for name, entry in before.items():
            if name in names or name not in found:
                self._drop(entry)
        self._graphs |= {(None, each.name): each for each in changed}

    def reload(self) -> None:
        """Read the folder again; a mistake in it is logged, and the graphs stay as they are."""
        try:
            self.read_folder()
            _log.info("%d stored graphs were read again from %s", len(self.listed("")), self.settings.graphs)
        except TensorpostError as error:
            _log.error("the stored graphs stay as they are: %s", error.detail)

    def close(self) -> None:
        """Drop all graphs."""
        for graph in [*self._graphs.values()]:
            self._drop(graph)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidParameter(
                f"a graph cannot be called {name[:100]!r}; a name has 1 to 100 letters, digits, dots, hyphens and "
                "underscores, and begins with a letter, a digit or an underscore"
            )
        if name in _RESERVED or self.is_taken(name):
            raise InvalidParameter(f"{name!r} is the name of another model of /v2; give the graph another one")

    def _drop(self, graph: StoreEntry) -> None:
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


def _files(folder: Path) -> Sequence[Path]:
    """The files of graphs in a folder."""
    try:
        return sorted([path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file()])
    except OSError as error:
        raise InvalidParameter(
            f"the folder {folder} (setting TENSORPOST_GRAPHS) cannot be read: {error.strerror or error}"
        ) from None


def _read_file(path: Path, settings: Settings) -> tuple[bytes, GraphSource]:
    try:
        content = path.read_bytes()
        source = read_source(content, None, settings)
    except OSError as error:
        raise InvalidParameter(f"{path}: {error.strerror or error}") from None
    except TensorpostError as error:
        raise InvalidParameter(f"{path} cannot be used as a graph: {error.detail}") from None
    return content, source
