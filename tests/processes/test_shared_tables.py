"""The tables of held tensors and stored graphs, as replicas on Ray use them in one actor: without Ray."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import TensorGone, TensorNotFound
from tensorpost_server.cluster.indexed_graphs import IndexedGraphs
from tensorpost_server.cluster.upload_memory import UploadMemory
from tensorpost_server.http.wires.graph_table import GraphTable, VersionHere
from tensorpost_server.http.wires.tensor_index import TensorIndex, TensorLimits
from tensorpost_server.shared.shared_database import SharedDatabase

LAYOUT = Layout.row_major(data_type("float32"), (2, 3))  # 24 bytes
HERE, THERE = 1, 2


class Index:
    """A `TensorIndex`, with the bytes that it holds by its own count."""

    def __init__(self) -> None:
        self.held, self.freed = 0, list[int]()
        self.database, self.freed_bytes = SharedDatabase(), 0
        limits = TensorLimits(100, 1000, 3600, 0)
        self.index = TensorIndex(limits, self.database, self._hold, self._let_go, self._free)

    def _hold(self, size: int) -> None:
        self.held += size

    def _let_go(self, size: int) -> None:
        self.held -= size

    def _free(self, numbers: Sequence[int], size: int) -> None:
        self.freed += numbers
        self.freed_bytes += size

    def make(self, name: str, place: int = HERE) -> int:
        reserved = self.index.reserve("anna", name, LAYOUT, place, replaces=False)
        self.index.finish([reserved])
        return reserved.number


def reason(index: TensorIndex, name: str) -> str:
    with pytest.raises(TensorGone) as raised:
        index.check("anna", name)
    return str(raised.value.extra["reason"])


def test_a_lost_tensor_is_gone_and_what_reads_it_still_counts() -> None:
    tables = Index()
    number = tables.make("x")
    tables.index.use("anna", "x", HERE)
    tables.index.lose(number)

    assert reason(tables.index, "x") == "lost"
    assert (tables.held, tables.index.dropped["lost"]) == (24, 1)
    tables.index.end_use(number, HERE)
    assert (tables.held, tables.freed) == (0, [number])
    tables.index.lose(number)
    assert tables.index.dropped["lost"] == 1


def test_names_of_a_lost_index_are_gone_unless_there_is_another_reason_or_a_tensor() -> None:
    tables = Index()
    tables.make("there")
    tables.make("deleted")
    tables.index.delete("anna", "deleted")
    for name in ("there", "deleted", "known"):
        tables.index.note_lost("anna", name)

    tables.index.check("anna", "there")
    assert [reason(tables.index, name) for name in ("deleted", "known")] == ["deleted", "lost"]
    with pytest.raises(TensorNotFound) as raised:
        tables.index.check("bert", "known")
    assert not isinstance(raised.value, TensorGone)


def test_a_process_that_ends_gives_back_what_it_reads_and_makes() -> None:
    tables = Index()
    both, mine = tables.make("both"), tables.make("mine")
    for name, place in (("both", HERE), ("both", THERE), ("mine", HERE)):
        tables.index.use("anna", name, place)
    for name in ("both", "mine"):
        tables.index.delete("anna", name)
    unfinished = tables.index.reserve("anna", "unfinished", LAYOUT, HERE, replaces=False)
    assert tables.held == 72
    tables.index.end_place(HERE)

    assert sorted(tables.freed) == sorted([mine, unfinished.number])
    with pytest.raises(TensorGone, match="given up"):
        tables.index.finish([unfinished])
    tables.index.end_use(both, THERE)
    assert (tables.held, tables.index.count) == (0, 0)


def test_a_transaction_that_fails_frees_nothing_and_counts_nothing() -> None:
    tables = Index()
    first, second = tables.make("first"), tables.make("second")
    tables.index.use("anna", "second", HERE)
    tables.index.delete("anna", "second")
    again = tables.index.reserve("anna", "first", LAYOUT, HERE, replaces=True)
    late = tables.index.reserve("anna", "late", LAYOUT, THERE, replaces=False)
    tables.index.give_back(late.number)
    freed = [late.number]
    assert (tables.held, tables.freed, tables.freed_bytes) == (72, freed, 24)

    with pytest.raises(TensorGone):
        tables.index.finish([again, late])  # the first one is replaced before the other one fails
    full = "CREATE TRIGGER full_{0} BEFORE {0} ON tensors BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    for change in ("DELETE", "INSERT"):
        tables.database.connection.execute(full.format(change))
    for change in (
        lambda: tables.index.delete("anna", "first"),
        lambda: tables.index.end_use(second, HERE),
        lambda: tables.index.give_back(again.number),
        lambda: tables.index.end_place(HERE),
        lambda: tables.index.reserve("anna", "new", LAYOUT, HERE, replaces=False),
    ):
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            change()
    assert (tables.held, tables.freed, tables.index.count) == (72, freed, 1)

    for change in ("DELETE", "INSERT"):
        tables.database.connection.execute(f"DROP TRIGGER full_{change}")
    tables.index.end_place(HERE)
    tables.index.end_place(HERE)
    tables.index.end_use(second, HERE)  # once more, when it is not there any more
    tables.index.delete("anna", "first")
    assert (tables.held, tables.index.count) == (0, 0)
    assert sorted(tables.freed) == sorted([first, second, again.number, *freed])


def here(version: int, number: int = 0, file: str | None = None, batches: str = "null") -> VersionHere:
    return VersionHere(version, number, batches, 0.0, file)


def test_a_table_of_graphs_has_what_was_published_last() -> None:
    table = GraphTable(SharedDatabase())
    first = table.publish("anna", "g", [here(1, file="a")], set())
    (number,) = first.numbers.values()
    assert first.unused == []

    second = table.publish("anna", "g", [here(1, number, batches="{}")], {number})  # configured
    assert (second.unused, [(row.file, row.batches) for row in table.rows()]) == ([], [("a", "{}")])
    again = second.numbers[1]
    assert table.publish("anna", "g", [here(1, again, batches="{}")], {again}).numbers == {}
    replaced = table.publish("anna", "g", [here(1, again, file="b")], {again})
    assert replaced.unused == ["a"]
    # A process that has not seen this version has another one, and neither drops nor repeats what it has not seen.
    other = table.publish("anna", "g", [here(2, file="c")], {again})
    assert sorted((row.version, row.file) for row in table.rows()) == [(1, "b"), (2, "c")]
    assert table.publish("anna", "g", [here(1, again)], {again}).numbers == {}
    # A process that has not seen the version since does not give it the configuration of the one before.
    assert table.publish("anna", "g", [here(1, again, batches="{}")], {again}).numbers == {}
    assert {row.number for row in table.rows()} == {replaced.numbers[1], other.numbers[2]}
    gone = table.publish("anna", "g", [], {replaced.numbers[1], other.numbers[2]})
    assert (sorted(gone.unused), table.rows()) == (["b", "c"], [])


def test_graphs_that_nobody_calls_leave_the_table() -> None:
    table = GraphTable(SharedDatabase())
    (used,) = table.publish("anna", "used", [here(1, file="a")], set()).numbers.values()
    (idle,) = table.publish("anna", "idle", [here(1, file="b")], set()).numbers.values()
    assert table.note_use(used, 10.0)

    assert table.drop_idle(5.0, used) == (0, [])
    assert table.drop_idle(5.0) == (1, ["b"])
    assert (table.used(used), table.used(idle), table.note_use(idle, 20.0)) == (10.0, None, False)


def test_a_stored_graph_is_waited_for_until_the_others_have_it() -> None:
    async def waits() -> None:
        graphs = IndexedGraphs(SharedDatabase(), 100)
        for place in (HERE, THERE):
            graphs.join(place)
            assert await graphs.changes(place, -1) == 100
        follower = asyncio.ensure_future(graphs.changes(THERE, 100))  # it has done 100, and waits for another one
        await asyncio.sleep(0)
        _, version = graphs.publish("anna", "g", [here(1, file="a")], set())
        telling = asyncio.ensure_future(graphs.waiting(HERE, version, 60))
        assert await follower == version
        for _ in range(5):
            await asyncio.sleep(0)
        assert not telling.done()
        polling = asyncio.ensure_future(graphs.changes(THERE, version))
        assert await telling == []
        polling.cancel()

        _, version = graphs.publish("anna", "g", [], set())
        assert await graphs.waiting(HERE, version, 0.01) == [THERE]  # and it does not come
        telling = asyncio.ensure_future(graphs.waiting(HERE, version, 60))
        await asyncio.sleep(0)
        graphs.leave(THERE)
        assert await telling == []

    asyncio.run(waits())


def test_the_calls_in_other_replicas_and_files_that_nobody_names() -> None:
    async def notes() -> None:
        graphs = IndexedGraphs(SharedDatabase(), 100)
        graphs.idle_seconds = 3600
        graphs.files |= {"a": b"{}", "b": b"{}", "c": b"{}"}
        for name, file in (("g", "a"), ("h", "b")):
            graphs.publish("anna", name, [here(1, file=file)._replace(used=-100.0)], set())
        graphs.discard(["a", "c"])  # one of them has become a graph
        assert {*graphs.files} == {"a", "b"}
        numbers = {row.name: row.number for row in graphs.table.rows()}
        graphs.note_uses(HERE, [(numbers["g"], -10.0)], [("anna", "g", 1, 3, -10.0)])
        assert graphs.uses_elsewhere(HERE) == []
        ((*use, age),) = graphs.uses_elsewhere(THERE)
        assert use == ["anna", "g", 1, 3]
        assert -20 < age <= -10
        graphs.idle_seconds = 50
        graphs.sweep()
        assert (graphs.files, [row.name for row in graphs.table.rows()]) == ({"a": b"{}"}, ["g"])
        graphs.idle_seconds = 5
        graphs.sweep()
        assert (graphs.files, graphs.table.rows()) == ({}, [])

    asyncio.run(notes())


@pytest.mark.skipif(sys.platform != "linux", reason="memory of another process is opened by /proc")
def test_another_process_reads_what_is_uploaded_until_it_is_freed() -> None:
    memory: Any = UploadMemory()
    view = memory.allocate(7, 5000)
    view[:] = bytes(5000)
    view[4990:] = b"0123456789"
    path = memory.path(7)
    code = f"print(open({path!r}, 'rb').read()[-10:].decode())"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        == "0123456789\n"
    )
    memory.free(7)
    memory.free(7)
    assert not Path(path).exists()
