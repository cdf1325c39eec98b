"""Buffers that are used again: by one owner at a time, within the bound, until they are unused for long."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tensorpost_server.engine import buffer_pool as module
from tensorpost_server.engine.buffer_pool import BufferPool

KIB = 1024


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def small_blocks_count_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SMALLEST", KIB)
    yield
    gc.collect()


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


def test_what_came_back_is_lent_again():
    blocks = BufferPool(64 * KIB)
    first = blocks.allocate(10 * KIB)
    first[:] = bytes([7]) * len(first)
    where = address(first)
    assert (blocks.allocated_bytes, blocks.kept_bytes) == (10 * KIB, 0)

    del first
    assert (blocks.allocated_bytes, blocks.kept_bytes) == (0, 10 * KIB)
    second = blocks.allocate(10 * KIB - 100)
    assert address(second) == where
    assert (len(second), second.readonly, second.format, blocks.reused) == (10 * KIB - 100, False, "B", 1)


@pytest.mark.parametrize(
    "derive",
    [
        lambda view: view[100:200],
        lambda view: view.cast("I"),
        lambda view: np.frombuffer(view, np.uint8)[5:],
        lambda view: np.asarray(view).view(np.float32).reshape(-1, 4)[1:].T,
        lambda view: np.frombuffer(view, np.uint8)[3:].data[2:].cast("B"),
    ],
)
def test_any_view_of_any_kind_keeps_the_block(derive):  # one of the above
    blocks = BufferPool(64 * KIB)
    view = blocks.allocate(KIB * 4)
    kept = derive(view)
    del view
    gc.collect()

    assert (blocks.allocated_bytes, blocks.kept_bytes) == (4 * KIB, 0)
    other = blocks.allocate(4 * KIB)
    assert blocks.reused == 0
    del kept
    gc.collect()
    assert (blocks.allocated_bytes, blocks.kept_bytes) == (4 * KIB, 4 * KIB)
    del other


def test_no_more_is_kept_than_the_bound():
    blocks = BufferPool(10 * KIB)
    views = [blocks.allocate(4 * KIB) for _ in range(5)]
    views.clear()
    assert blocks.kept_bytes == 8 * KIB
    whole = blocks.allocate(16 * KIB)
    del whole
    assert blocks.kept_bytes <= 10 * KIB


def test_what_is_too_small_or_not_wanted_is_not_kept():
    for blocks, size in ((BufferPool(0), 4 * KIB), (BufferPool(64 * KIB), KIB - 1), (BufferPool(64 * KIB), 0)):
        view = blocks.allocate(size)
        assert len(view) == size
        del view
        assert (blocks.allocated_bytes, blocks.kept_bytes) == (0, 0)


def test_what_lies_unused_goes_back_oldest_first():
    clock = Clock()
    blocks = BufferPool(64 * KIB, clock)
    early, late = blocks.allocate(4 * KIB), blocks.allocate(8 * KIB)
    del early
    assert blocks.kept_bytes == 4 * KIB
    clock.now = 20.0
    del late
    assert blocks.kept_bytes == 12 * KIB

    clock.now = 29.0
    blocks.trim(30)
    assert blocks.kept_bytes == 12 * KIB
    clock.now = 30.0
    blocks.trim(30)
    assert blocks.kept_bytes == 8 * KIB
    blocks.trim(0)
    assert blocks.kept_bytes == 0


@pytest.mark.parametrize("size", [KIB, 1025, 1280, 1281, 5000, 65_537, 10**6, (1 << 30) + 1])
def test_a_block_is_at_most_a_quarter_too_large(size: int):
    assert size <= module._rounded(size) <= size * 1.25


def test_threads_never_share_a_block():
    blocks = BufferPool(40 * KIB)
    failures: list[str] = []

    def work(mark: int) -> None:
        dice = random.Random(mark)
        for _ in range(400):
            view = blocks.allocate(dice.choice([2, 4, 4, 4, 9]) * KIB)
            view[:] = bytes([mark]) * len(view)
            if view[0] != mark or bytes(view) != bytes([mark]) * len(view):
                failures.append("another owner wrote to it")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert blocks.allocated_bytes == 0
    assert blocks.kept_bytes <= 40 * KIB
    assert blocks.reused > 100
