"""Copies of held tensors and constants on a device, over a stand-in for CuPy: they give way when memory is short."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import collect

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import OutOfDeviceMemory
from tensorpost_server.backends import KeptMemory
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.cuda.device_copies import DeviceCopies
from tensorpost_server.backends.device_run import SMALLEST_PART
from tensorpost_server.engine import Worker
from tensorpost_server.planning import make_plan

HOST_TO_DEVICE = 1
SIZE = SMALLEST_PART  # bytes of each tensor here
LAYOUT = Layout.row_major(data_type("float32"), (SIZE // 4,))


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[FakeCupy]:
    found = FakeCupy()
    with using(found, tmp_path):
        yield found
    gc.collect()
    assert all(pool.used == 0 for pool in found.pools)


class Held:
    """A tensor of one number, as the server holds it."""

    def __init__(self, number: float) -> None:
        self.number = number
        self.data = np.full(SIZE // 4, number, np.float32).view(np.uint8).data.toreadonly()
        self.memory = KeptMemory(self.data)


def minus(held: Held, worker: Worker) -> None:
    """Compute held - x on the device, and compare."""
    document = {
        "inputs": {"w": {}, "x": {}},
        "nodes": [{"name": "y", "op_type": "Sub", "inputs": ["w", "x"]}],
        "outputs": {"y": "y"},
    }
    small = Layout.row_major(data_type("float32"), (1,))
    plan = make_plan(read_graph(document, {"w": LAYOUT, "x": small}), SIZE)
    inputs: list[Any] = [held.memory, np.ones(1, np.float32).view(np.uint8).data]
    found = asyncio.run(collect(worker.run(plan, inputs)))
    np.testing.assert_array_equal(np.frombuffer(found, np.float32), np.full(SIZE // 4, held.number - 1, np.float32))


def copied(backend: CudaBackend, tensors: list[Held]) -> list[float]:
    return [each.number for each in tensors if backend.has_copy(each.data)]


def test_the_copy_that_was_used_least_recently_gives_way(cupy: FakeCupy) -> None:
    # Room for five tensors: a call needs its copy, its output and the other operand.
    backend = CudaBackend(memory_bytes=5 * SIZE)
    worker, tensors = Worker(backend, 3), [Held(n) for n in range(4)]
    try:
        for each in tensors[:3]:
            minus(each, worker)
        assert copied(backend, tensors) == [0, 1, 2]
        minus(tensors[0], worker)  # now 1 is the one that was not used for the longest time
        minus(tensors[3], worker)
        gauges = backend.gauges()
        assert copied(backend, tensors) == [0, 2, 3]
        assert (gauges["device_copies"], gauges["device_copy_bytes"]) == (3, 3 * SIZE)
        assert (gauges["device_copies_dropped_total"], gauges["device_copies_uploaded_again_total"]) == (1, 0)
        before = cupy.copies.count(HOST_TO_DEVICE)
        minus(tensors[1], worker)
        assert cupy.copies.count(HOST_TO_DEVICE) - before == 2, "it was not uploaded again"
        assert copied(backend, tensors) == [0, 1, 3]
        gauges = backend.gauges()
        assert (gauges["device_copies_dropped_total"], gauges["device_copies_uploaded_again_total"]) == (2, 1)
    finally:
        worker.close()


def test_a_copy_that_a_run_reads_stays(cupy: FakeCupy) -> None:
    backend = CudaBackend(memory_bytes=4 * SIZE)
    read, other = Held(1), Held(2)
    first = backend.put_kept(LAYOUT, read.data)
    backend.put_kept(LAYOUT, other.data)  # which nobody holds
    with backend.working(backend.lane()):
        room = backend.room(3 * SIZE)
    assert copied(backend, [read, other]) == [1]
    with pytest.raises(OutOfDeviceMemory), backend.working(backend.lane()):
        backend.room(SIZE + 1)
    assert copied(backend, [read, other]) == [1], "what a run reads was dropped"
    assert backend.put_kept(LAYOUT, read.data).array is first.array
    del room, first
    with backend.working(backend.lane()):
        backend.room(4 * SIZE)
    assert copied(backend, [read, other]) == []
    backend.close()


def test_threads_that_need_the_same_copy_make_one(cupy: FakeCupy) -> None:
    uploads: list[int] = []

    def upload(layout: Layout, data: memoryview) -> Any:
        uploads.append(data.nbytes)
        return layout.view(data)

    copies, held = DeviceCopies(upload), Held(3)
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda _: copies.get(LAYOUT, held.data), range(64))]
    assert uploads == [SIZE]
    assert len({id(each) for each in found}) == 1
    assert [*copies.give_way(1)] == []
    del found
    assert [*copies.give_way(1)] == [SIZE]


def test_memory_that_goes_takes_its_copy_with_it_whatever_became_of_that(cupy: FakeCupy) -> None:
    copies = DeviceCopies(lambda layout, data: layout.view(data).copy())
    held, kept = Held(1), Held(2)
    for _ in range(3):
        copies.get(LAYOUT, held.data)
        copies.get(LAYOUT, kept.data)
        assert [*copies.give_way(2 * SIZE)] == [2 * SIZE]
    assert (copies.dropped, copies.uploaded_again, copies.count) == (6, 4, 0)
    copies.get(LAYOUT, kept.data)
    del held
    assert len(copies._copies) == 1
    del kept
    assert len(copies._copies) == 0


def test_many_callers_on_little_memory_get_their_results(cupy: FakeCupy) -> None:
    """Each of 12 tensors is read again and again, while there is room for two beside what calls need."""
    backend = CudaBackend(memory_bytes=8 * SIZE)
    worker, tensors = Worker(backend, 3), [Held(n) for n in range(12)]
    try:
        with ThreadPoolExecutor(2) as threads:
            for done in threads.map(lambda n: minus(tensors[n * 5 % 12], worker), range(96)):
                assert done is None
        gauges = backend.gauges()
        assert gauges["device_copies_dropped_total"] >= gauges["device_copies_uploaded_again_total"] > 0
        assert gauges["device_copy_bytes"] <= 8 * SIZE
    finally:
        worker.close()
