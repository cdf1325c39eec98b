"""Numbers and quotas that processes share: against plain dictionaries after drawn operations, and by processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InsufficientStorage, TooBusy
from tensorpost_server.engine import Admission
from tensorpost_server.http.access.access_control import SharedTokenBucket, TokenBucket
from tensorpost_server.http.wires.tensor_store import ProcessTensorStore
from tensorpost_server.settings import Settings
from tensorpost_server.shared.buckets import SharedBuckets
from tensorpost_server.shared.counts import NONE_READY, ROWS, Count, NoOthers, SharedCounts
from tensorpost_server.shared.process_group import ProcessGroup

fcntl = pytest.importorskip("fcntl", reason="Windows has no record locks, and one process")

PLACES = 3
FLOAT32 = data_type("float32")


@contextmanager
def shared_counts(folder: Path, places: int) -> Iterator[list[SharedCounts]]:
    """The counts of so many processes."""
    SharedCounts.create(folder / "counts", places)
    counts = [SharedCounts(folder / "counts", place, places) for place in range(places)]
    try:
        yield counts
    finally:
        for each in counts:
            each.close()


KEYS = st.sampled_from([None, "", "anna", "bert", "192.0.2.1", "ä"])


@given(st.lists(st.tuples(st.integers(0, PLACES - 1), KEYS, st.integers(0, 2**40), st.integers(0, 9)), max_size=30))
def test_the_others_are_all_but_oneself(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str | None, int, int]]
) -> None:
    with shared_counts(tmp_path_factory.mktemp("counts"), PLACES) as counts:
        check_others(counts, steps)


def check_others(counts: list[SharedCounts], steps: list[tuple[int, str | None, int, int]]) -> None:
    """Publish as drawn, and compare with a dictionary."""
    expected: dict[tuple[int, str | None], Count] = defaultdict(Count)
    for place, key, first, second in steps:
        with counts[place].lock():
            counts[place].publish(key, first, second)
        expected[place, key] = Count(first, second)
        for asked in range(PLACES):
            for each in (None, "", "anna", "bert", "192.0.2.1", "ä", "nobody"):
                others = [expected[other, each] for other in range(PLACES) if other != asked]
                assert counts[asked].others(each) == (sum(o.first for o in others), sum(o.second for o in others))
    counts[0].clear(1)
    for each in ("anna", None):
        assert counts[0].others(each) == expected[2, each]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[SharedCounts]]:
    with shared_counts(tmp_path, 2) as counts:
        yield counts


def test_rows_of_callers_who_have_gone_are_used_again(two: list[SharedCounts]) -> None:
    one, other = two
    for number in range(3 * ROWS):
        one.publish(f"caller {number}", 1, 100)
        assert other.others(f"caller {number}") == (1, 100)
        one.publish(f"caller {number}", 0, 0)
    # More at a time than there are rows: some are counted by each process for itself, none as another one.
    for number in range(2 * ROWS):
        one.publish(f"caller {number}", number + 1, 0)
    found = [other.others(f"caller {number}").first for number in range(2 * ROWS)]
    assert all(count in (0, number + 1) for number, count in enumerate(found))
    assert sum(map(bool, found)) > ROWS * 0.9


def test_the_least_is_that_of_processes_that_take_connections(tmp_path: Path) -> None:
    with shared_counts(tmp_path, PLACES) as counts:
        assert counts[0].least() == NONE_READY == NoOthers().least()
        for place, each in enumerate(counts):
            each.publish(None, 10 + place)
            each.set_ready(is_ready=True)
        assert [each.least() for each in counts] == [11, 10, 10]
        counts[0].set_ready(is_ready=False)
        assert counts[2].least() == 11


def test_budgets_of_several_processes_are_one(two: list[SharedCounts]) -> None:
    one, other = [Admission(1000, 4, 1, counts=counts) for counts in two]
    ticket = one.admit(600, "anna")
    with pytest.raises(TooBusy, match="needs 500 bytes and 400 of 1,000 are free now"):
        other.admit(500, "bert")
    second = other.admit(400, "bert")
    assert one.bytes_in_flight == other.bytes_in_flight == 1000
    assert one.requests_in_flight == other.requests_in_flight == 2
    ticket.release()
    assert other.bytes_in_flight == 400
    one.keep(300)
    one.hold(100)
    assert other.kept_bytes == one.kept_bytes == 400
    with pytest.raises(InsufficientStorage, match="would be 501 bytes, and this server allows 500"):
        other.keep(101)
    other.let_go(100)
    one.give_back(300)
    second.release()
    assert one.bytes_in_flight == other.bytes_in_flight == one.requests_in_flight == one.kept_bytes == 0


def test_a_callers_share_is_that_of_all_processes(two: list[SharedCounts]) -> None:
    one, other = [Admission(1000, 8, 1, caller_share=0.5, counts=counts) for counts in two]
    tickets = [each.admit(0, "anna") for each in (one, other, one, other)]
    for each in (one, other):
        with pytest.raises(TooBusy, match="4 requests of this caller are in flight"):
            each.admit(0, "anna")
    tickets.append(other.admit(0, "bert"))
    for ticket in tickets:
        ticket.release()
    assert other.requests_in_flight == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 40), st.floats(0, 30)), max_size=20))
def test_a_shared_bucket_is_a_bucket(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, float]]
) -> None:
    path = tmp_path_factory.mktemp("buckets") / "buckets"
    SharedBuckets.create(path)
    now = 1000.0
    buckets = [SharedBuckets(path) for _ in range(2)]
    alone, shared = TokenBucket(60, now), [SharedTokenBucket(60, now, each, "k") for each in buckets]
    for place, count, pause in steps:
        now += pause
        alone.wait(now)
        alone.take(count)
        shared[place].take(count, now)
        for each in shared:
            assert each.wait(now) == pytest.approx(alone.wait(now), abs=1e-9)
            assert each.wait(now, 7) == pytest.approx(alone.wait(now, 7), abs=1e-9)
    for each in buckets:
        each.close()


def take_many(path: Path, start: Any, taken: Any) -> None:
    """Take tokens while there are some."""
    bucket, count = SharedTokenBucket(6000, 0.0, SharedBuckets(path), "k"), 0
    start.wait()
    for _ in range(4000):
        if not bucket.wait(0.0):
            bucket.take(1, 0.0)
            count += 1
    taken.put(count)


def test_processes_that_take_at_the_same_time_lose_no_token(tmp_path: Path) -> None:
    SharedBuckets.create(tmp_path / "buckets")
    context = multiprocessing.get_context("spawn")
    start, taken = context.Barrier(3), context.Queue()
    processes = [context.Process(target=take_many, args=(tmp_path / "buckets", start, taken)) for _ in range(3)]
    for process in processes:
        process.start()
    total = sum(taken.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    # A look and the token that is taken then are two steps, as of requests: each process may overdraw by one.
    assert 6000 <= total <= 6002


def test_what_a_process_had_counted_is_taken_out(tmp_path: Path) -> None:
    ProcessGroup.create(tmp_path, 2)
    supervisor, one, other = [ProcessGroup.join(tmp_path, place, 2) for place in (0, 0, 1)]
    admission = Admission(1000, 4, 1, counts=other.requests)
    admission.admit(100, "anna")
    with other.database.change() as database:
        values = "'', 'half', 1, 'float32', '[1]', 50, 0, 0, 0"
        database.execute(
            "INSERT INTO tensors (owner, reserved, place, data_type, sizes, size, created, began, used) "
            f"VALUES ({values})"
        )
    admission.hold(50)
    assert (one.requests.others(None), one.requests.held_bytes) == ((1, 100), 50)
    supervisor.clear(1)
    assert (one.requests.others(None), one.requests.others("anna"), one.requests.held_bytes) == ((0, 0), (0, 0), 0)
    assert one.database.connection.execute("SELECT count(*) FROM tensors").fetchone() == (0,)
    for group in (supervisor, one, other):
        group.release()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="macOS has no such call")
def test_the_files_have_all_of_their_memory(tmp_path: Path) -> None:
    """Where none is left, an access to a part that has none would end the process (SIGBUS)."""
    ProcessGroup.create(tmp_path, 2)
    for name in ("requests", "connections", "grpc_connections", "buckets"):
        about = (tmp_path / name).stat()
        assert about.st_blocks * 512 >= about.st_size > 0


def test_files_of_a_process_that_was_killed_are_removed(tmp_path: Path) -> None:
    """It was killed after it had written them, and before the database said so, or the other way round."""
    ProcessGroup.create(tmp_path, 2)
    supervisor, one, other = [ProcessGroup.join(tmp_path, place, 2) for place in (0, 0, 1)]
    settings = Settings()
    stores = [
        ProcessTensorStore(settings, Admission(1 << 20, 4, 1, counts=each.requests), each) for each in (one, other)
    ]

    async def make() -> list[int]:
        layout = Layout.row_major(FLOAT32, (4,))
        held = [await store.place("", name, layout) for store, name in zip(stores, "ab", strict=True)]
        await held[0].finish()
        return [each.reserved.number for each in held]

    numbers = asyncio.run(make())
    (tmp_path / "tensor-77").write_bytes(b"of a tensor that was deleted")
    (tmp_path / "graph-0-00").write_bytes(b"that another process is about to store")
    (tmp_path / "graph-1-00").write_bytes(b"that nobody will store")
    supervisor.clear(1)
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(("tensor-", "graph-"))}
    assert left == {f"tensor-{numbers[0]}", "graph-0-00"}
    assert stores[0].size_in_bytes == 16
    for group in (supervisor, one, other):
        group.release()


def test_a_tensor_that_cannot_be_opened_is_not_in_use_for_ever(tmp_path: Path) -> None:
    ProcessGroup.create(tmp_path, 2)
    groups = [ProcessGroup.join(tmp_path, place, 2) for place in (0, 1)]
    one, other = [
        ProcessTensorStore(Settings(), Admission(1 << 20, 4, 1, counts=each.requests), each) for each in groups
    ]

    async def uses() -> None:
        await (await one.place("", "a", Layout.row_major(FLOAT32, (4,)))).finish()
        (path,) = tmp_path.glob("tensor-*")
        path.rename(tmp_path / "away")  # as if there were no descriptor for it
        with pytest.raises(FileNotFoundError):
            await other.use("", "a")
        assert [row.is_in_use for row in await one.listed("")] == [False]
        (tmp_path / "away").rename(path)
        (await other.use("", "a")).release()
        await one.delete("", "a")

    asyncio.run(uses())
    assert (one.size_in_bytes, [*tmp_path.glob("tensor-*")]) == (0, [])
    for group in groups:
        group.release()
