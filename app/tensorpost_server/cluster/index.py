"""The index of what all replicas have: a Ray actor with the tables that the processes of one machine share as a file.

The bytes of a held tensor are an object in the object store of the node where they were received, and the index owns
it: whatever becomes of the replica, the object stays, until the tensor is dropped or its node is lost.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InsufficientStorage, TensorpostError

from ..http.wires.graph_repository import GraphUse
from ..http.wires.graph_table import GraphRow, Published, VersionHere
from ..http.wires.held_tensor import HeldTensorRow
from ..http.wires.tensor_index import Reservation, TensorIndex, TensorLimits
from ..shared.shared_database import SharedDatabase
from .indexed_graphs import IndexedGraphs
from .tensor_objects import TensorContent, TensorObjects

REPLICA_SECONDS = 30.0
"""A replica of which nothing was heard for so long has ended."""

PROBE_SECONDS = 2.0
"""A replica that does not do something within so long is asked whether it has ended."""

IDLE_SECONDS = 60.0
"""The index ends when there has been no replica for so long."""

INLINE_BYTES = 64 << 10
"""Tensors up to so many bytes are in the index itself."""

_WATCH_SECONDS = 2.0
_log = logging.getLogger(__name__)

Row = tuple[Any, ...]
"""The columns of a held tensor, and the index's clock when it read them: clocks of machines differ."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Made(NamedTuple):
    """A tensor whose bytes are there.

    Attributes:
        reserved: number, owner, name, type, sizes, and whether it may replace another one.
        content: the bytes; or the file that has them, and how many they are.
    """

    reserved: tuple[int, str, str, str, Sequence[int], bool]
    content: bytes | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a replica is told every few seconds.

    Attributes:
        count: how many tensors there are.
        size_in_bytes: what they take.
        dropped: how many are not there any more, by the reason.
        freed: numbers of tensors that the replica has open, and that nobody needs any more.
    """

    count: int
    size_in_bytes: int
    dropped: Mapping[str, int]
    freed: Sequence[int]


class Joining(NamedTuple):
    """A replica that begins.

    Attributes:
        actor: its handle.
        actor_id: the id of that.
        node: the id of its node.
        limits: limits of held tensors; the last replica that began decides.
        graph_seconds: how long a stored graph stays that nobody calls; the last replica that began decides.
        gone: owners and names of tensors that it knew of another index, which is lost.
    """

    actor: Any
    actor_id: str
    node: str
    limits: TensorLimits
    graph_seconds: float
    gone: Sequence[tuple[str, str]]


class Left(NamedTuple):
    """The answer to a replica that counts as ended, because nothing was heard of it; it should join again."""


def _answering(
    method: Callable[Concatenate[ClusterIndex, int, _P], Awaitable[_T]],
) -> Callable[Concatenate[ClusterIndex, int, _P], Awaitable[_T | TensorpostError | Left]]:
    """A method that a replica calls, with its place: refusals are returned, and the replica is heard of."""

    @wraps(method)
    async def call(index: ClusterIndex, place: int, *args: _P.args, **kwargs: _P.kwargs) -> _T | TensorpostError | Left:
        if place not in index.heard:
            return Left()
        index.heard[place] = time.monotonic()
        try:
            return await method(index, place, *args, **kwargs)
        except TensorpostError as error:
            return error

    return call


class ClusterIndex:
    """The actor. All of its methods run on its event loop, and change the tables without waiting in between.

    Args:
        limits: limits of held tensors.
        again: whether another index was lost, with all that it had.

    Attributes:
        heard: when something was heard of each replica, by its place.
    """

    def __init__(self, limits: TensorLimits, *, again: bool) -> None:
        self._ray: Any = importlib.import_module("ray")  # it has no type stubs
        database = SharedDatabase()
        first = time.time_ns() // 1000  # no number is one of an index that was lost
        database.connection.execute("INSERT INTO sqlite_sequence VALUES ('tensors', ?), ('graphs', ?)", (first, first))
        absent = "held tensors are lost when the service stops"
        if again:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            absent = f"what was held before {when} was lost with the index of this Ray cluster"
        self._tensors = TensorIndex(limits, database, self._hold, lambda _: None, self._freed, absent)
        self._database = database
        self._graphs = IndexedGraphs(database, first)
        self.heard: dict[int, float] = {}
        self._replicas: dict[int, Joining] = {}
        self._places = itertools.count()
        self._uses = Counter[tuple[int, int]]()
        self._objects = TensorObjects(self._tensors.lose)
        self._dead = set[str]()
        self._room = 0
        self._alone_since = time.monotonic()
        self._watching: asyncio.Task[None] | None = None

    # ---- replicas ----------------------------------------------------------------------------------------------------

    async def join(self, replica: Joining) -> int:
        """A replica begins; its place."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        await self._look_at_nodes()
        self._tensors.limits, self._graphs.idle_seconds = replica.limits, replica.graph_seconds
        for place in [place for place, other in self._replicas.items() if other.actor_id == replica.actor_id]:
            self._end_place(place)
        for owner, name in replica.gone:
            self._tensors.note_lost(owner, name)
        place = next(self._places)
        self.heard[place] = time.monotonic()
        self._replicas[place] = replica
        self._graphs.join(place)
        return place

    async def leave(self, place: int) -> None:
        """A replica ends."""
        self._end_place(place)

    @_answering
    async def heartbeat(
        self, place: int, ended: Mapping[int, int], given_back: Iterable[int], opened: Iterable[int]
    ) -> Heartbeat:  # fmt: skip
        """What a replica has to say every few seconds, and what it is told.

        Args:
            place: its place.
            ended: how many uses of tensors have ended, by their numbers.
            given_back: reservations that it does not need.
            opened: numbers of the tensors that it has open.
        """
        for number, count in ended.items():
            if (left := self._uses[number, place] - count) > 0:
                self._uses[number, place] = left
            elif self._uses.pop((number, place), 0):
                self._tensors.end_use(number, place)
        for number in given_back:
            self._tensors.give_back(number)
        there = self._database.connection.execute("SELECT number FROM tensors WHERE reserved IS NULL")
        freed = {*opened} - {number for (number,) in there}
        return Heartbeat(self._tensors.count, self._size_in_bytes(), dict(self._tensors.dropped), sorted(freed))

    # ---- held tensors: see `TensorIndex` -----------------------------------------------------------------------------

    @_answering
    async def use(self, place: int, owner: str, name: str) -> Row:
        """The tensor of a name, with another use by the replica, which says in `heartbeat` when it has ended."""
        held = self._tensors.use(owner, name, place)
        self._uses[held.number, place] += 1
        return _row(held)

    @_answering
    async def content(self, place: int, number: int) -> TensorContent | None:
        """What has the bytes of a tensor that the replica uses; None if nothing does any more."""
        del place
        return self._objects.content(number)

    @_answering
    async def lost(self, place: int, number: int, owner: str, name: str) -> None:
        """The bytes of a tensor cannot be read any more; the answer is why."""
        del place
        self._tensors.lose(number)
        self._tensors.note_lost(owner, name)
        self._tensors.check(owner, name)  # raises, unless it was put again

    @_answering
    async def listed(self, place: int, owner: str) -> list[Row]:
        """The caller's tensors, by name."""
        del place
        return [_row(held) for held in self._tensors.listed(owner)]

    @_answering
    async def check_new(self, place: int, owner: str, name: str, replaces: bool) -> None:
        """Refuse a name that a new tensor cannot have."""
        del place
        self._tensors.check_new(owner, name, replaces=replaces)

    @_answering
    async def reserve(
        self, place: int, owner: str, name: str | None, kind: str, sizes: Sequence[int], replaces: bool
    ) -> tuple[int, str]:  # fmt: skip
        """Number and name of a tensor that the replica will make."""
        layout = Layout.row_major(data_type(kind), tuple(sizes))
        reserved = self._tensors.reserve(owner, name, layout, place, replaces=replaces)
        return reserved.number, reserved.name

    @_answering
    async def finish(self, place: int, made: Sequence[Made]) -> list[tuple[Row, bool]]:
        """Put bytes into the object store, and give the tensors their names: all of them or none."""
        replica = self._replicas[place]
        contents = [
            each.content if isinstance(each.content, bytes) else await self._objects.store(replica.node, *each.content)
            for each in made
        ]
        reservations = [
            Reservation(number, owner, name, Layout.row_major(data_type(kind), tuple(sizes)), replaces)
            for number, owner, name, kind, sizes, replaces in [each.reserved for each in made]
        ]
        named = self._tensors.finish(reservations)
        for (held, _), content in zip(named, contents, strict=True):
            self._objects.keep(held.number, content, replica.node)
        return [(_row(held), replaced) for held, replaced in named]

    @_answering
    async def delete(self, place: int, owner: str, name: str) -> None:
        """Take a tensor's name away."""
        del place
        self._tensors.delete(owner, name)

    @_answering
    async def free(self, place: int, owner: str, names: Sequence[str]) -> None:
        """Delete tensors that nobody refers to any more."""
        del place
        self._tensors.free(owner, names)

    # ---- stored graphs: see `IndexedGraphs` --------------------------------------------------------------------------

    @_answering
    async def graph_changes(self, place: int, done: int) -> int:
        """Another version of the table than that which the replica has done; the same one after some time."""
        return await self._graphs.changes(place, done)

    @_answering
    async def graph_known(self, place: int, version: int) -> None:
        """Wait until the other replicas have done a version."""
        waiting = await self._graphs.waiting(place, version, PROBE_SECONDS)
        for other in waiting:
            await self._end_if_dead(other)
        if waiting := await self._graphs.waiting(place, version, REPLICA_SECONDS):
            _log.warning("%d replicas have not read a stored graph within %g s", len(waiting), REPLICA_SECONDS)

    @_answering
    async def graph_rows(self, place: int) -> list[GraphRow]:
        """All versions of all graphs."""
        del place
        return self._graphs.table.rows()

    @_answering
    async def graph_put(self, place: int, file: str, content: bytes) -> None:
        """Keep what was sent to be stored."""
        del place
        self._graphs.files[file] = content

    @_answering
    async def graph_discard(self, place: int, files: Sequence[str]) -> None:
        """Drop what was sent to be stored, unless a graph has it."""
        del place
        self._graphs.discard(files)

    @_answering
    async def graph_read(self, place: int, file: str) -> bytes | None:
        """What was sent to be stored; None if it is not there any more."""
        del place
        return self._graphs.files.get(file)

    @_answering
    async def graph_publish(
        self, place: int, owner: str, name: str, here: Sequence[VersionHere], known: Collection[int]
    ) -> tuple[Published, int]:  # fmt: skip
        """See `GraphTable.publish`; and the version that the table then has."""
        del place
        return self._graphs.publish(owner, name, here, known)

    @_answering
    async def graph_used(self, place: int, uses: Sequence[tuple[int, float]], all_uses: Sequence[GraphUse]) -> None:
        """The replica has used graphs; times are seconds before now."""
        self._graphs.note_uses(place, uses, all_uses)

    @_answering
    async def graph_uses(self, place: int) -> list[GraphUse]:
        """The calls of graphs in each of the other replicas; times are seconds before now."""
        return self._graphs.uses_elsewhere(place)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _size_in_bytes(self) -> int:
        return int(self._database.connection.execute("SELECT total(size) FROM tensors").fetchone()[0])

    def _hold(self, size_in_bytes: int) -> None:
        """Refuse a tensor, which is in the table already, that the object stores have no room for."""
        total = self._size_in_bytes()
        if size_in_bytes and total > self._room:
            raise InsufficientStorage(
                f"the memory of all held tensors would be {total:,} bytes, and half of the object stores of this Ray "
                f"cluster is {self._room:,}; delete held tensors, or start nodes with a larger --object-store-memory",
                extra={"limit": self._room, "actual": total, "setting": "--object-store-memory, half of it"},
            )

    def _freed(self, numbers: Sequence[int], size_in_bytes: int) -> None:
        del size_in_bytes
        for number in numbers:
            self._objects.free(number)

    # ---- what ends ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at replicas and nodes, for as long as there are any."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = time.monotonic()
            for place in [place for place, heard in self.heard.items() if now - heard > REPLICA_SECONDS]:
                self._end_place(place)
            self._tensors.sweep()
            self._graphs.sweep()
            if self.heard:
                self._alone_since = now
            elif now - self._alone_since > IDLE_SECONDS:
                self._ray.kill(self._ray.get_runtime_context().current_actor)
                return
            try:
                await self._look_at_nodes()
            except self._ray.exceptions.RayError:  # the next turn tries again
                _log.exception("the nodes of the cluster could not be listed")

    async def _look_at_nodes(self) -> None:
        nodes: list[dict[str, Any]] = await asyncio.to_thread(self._ray.nodes)
        stores = [each["Resources"].get("object_store_memory", 0) for each in nodes if each["Alive"]]
        self._room = int(sum(stores)) // 2
        dead = {each["NodeID"] for each in nodes if not each["Alive"]} - self._dead
        self._dead |= dead
        if dead:
            self._objects.lose_nodes(dead)

    async def _end_if_dead(self, place: int) -> None:
        """Ask Ray whether a replica has ended of which nothing was heard."""
        if (replica := self._replicas.get(place)) is None:
            return
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await replica.actor.__ray_ready__.remote()
        except TimeoutError:
            pass  # it does something that takes long
        except self._ray.exceptions.RayActorError:
            self._end_place(place)

    def _end_place(self, place: int) -> None:
        if self.heard.pop(place, None) is None:
            return
        for key in [key for key in self._uses if key[1] == place]:
            del self._uses[key]
        self._tensors.end_place(place)
        self._graphs.leave(place)
        del self._replicas[place]


def _row(held: HeldTensorRow) -> Row:
    layout, now = held.layout, time.monotonic()
    return (
        held.number, held.owner, held.name, layout.data_type.numpy_name, json.dumps(layout.sizes), held.created,
        held.began - now, held.used - now, held.is_in_use,
    )  # fmt: skip
