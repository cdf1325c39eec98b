"""Memory lent out in parts that come back by themselves."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.backends.cuda.pinned import PAGE, PinnedMemory


def staging(pages: int) -> PinnedMemory:
    return PinnedMemory(bytearray(pages * PAGE), pages * PAGE)


def lent(part: memoryview | None) -> memoryview:
    assert part is not None
    return part


def test_a_part_has_the_length_asked_for_and_may_be_written():
    part = lent(staging(2).lend(5000))

    part[:] = bytes(range(250)) * 20
    assert (part.nbytes, part.readonly, part.format) == (5000, False, "B")
    assert bytes(part) == bytes(range(250)) * 20


def test_it_comes_back_when_the_last_view_is_gone():
    memory = staging(4)
    part = lent(memory.lend(3 * PAGE))
    slice_of_it = part[10:20]
    array = np.frombuffer(part, np.uint8)[5:7]
    del part
    assert (memory.lent, memory.lend(2 * PAGE)) == (3 * PAGE, None)

    del slice_of_it
    assert memory.lent == 3 * PAGE
    del array
    assert memory.lent == 0


def test_a_tensor_s_view_keeps_its_memory():
    memory = staging(1)
    layout = Layout.row_major(data_type("F32"), (4, 8))
    view = layout.view(lent(memory.lend(128)))[1:]

    gc.collect()
    assert memory.lent == PAGE
    del view
    assert memory.lent == 0


def test_what_comes_back_is_joined_with_its_neighbours():
    memory = staging(6)
    parts = [lent(memory.lend(PAGE)) for _ in range(6)]
    for at in (1, 3, 2, 5, 0, 4):
        parts[at] = memoryview(b"")
    del at

    assert memory.lent == 0
    assert memory.lend(6 * PAGE) is not None


def test_the_tightest_room_is_taken_so_that_large_ones_stay_whole():
    memory = staging(10)
    first, second, third, fourth = (lent(memory.lend(pages * PAGE)) for pages in (4, 1, 2, 3))
    del first, third  # rooms of 4 and 2 pages

    small = lent(memory.lend(2 * PAGE))
    assert memory.lend(4 * PAGE) is not None
    del small, second, fourth


def test_no_room_is_counted_and_does_no_harm():
    memory = staging(2)

    assert memory.lend(2 * PAGE + 1) is None
    assert memory.misses == 1
    assert memory.lend(2 * PAGE) is not None


@pytest.mark.parametrize("size", [0, 1, PAGE - 1])
def test_there_may_be_no_memory_at_all(size: int):
    nothing = PinnedMemory(bytearray(), 0)
    too_little = PinnedMemory(bytearray(size), size)

    assert (nothing.lend(1), nothing.lent, nothing.size_in_bytes) == (None, 0, 0)
    assert (too_little.lend(1), too_little.size_in_bytes) == (None, 0)


def test_an_empty_tensor_has_a_part_too():
    assert lent(staging(1).lend(0)).nbytes == 0


def test_parts_may_die_on_any_thread():
    memory = staging(64)

    def borrow() -> None:
        for size in range(1, 300):
            part = memory.lend(size * 100)
            if part is not None:
                part[:1] = b"x"

    threads = [threading.Thread(target=borrow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert memory.lent == 0
    assert memory.lend(64 * PAGE) is not None


class Lending(RuleBasedStateMachine):
    """No byte is lent twice, and none is lost."""

    PAGES = 24

    def __init__(self) -> None:
        super().__init__()
        self.memory = staging(self.PAGES)
        self.parts: list[tuple[memoryview, int]] = []
        self.next_mark = 1

    @rule(size=st.integers(0, 8 * PAGE))
    def lend(self, size: int) -> None:
        part = self.memory.lend(size)
        if part is not None:
            part[:] = bytes([self.next_mark % 256]) * size
            self.parts.append((part, self.next_mark % 256))
            self.next_mark += 1

    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        if self.parts:
            self.parts.pop(which % len(self.parts))

    @invariant()
    def every_part_has_kept_its_mark(self) -> None:
        for part, mark in self.parts:
            assert bytes(part) == bytes([mark]) * part.nbytes

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.memory.lent == sum(max(1, -(-part.nbytes // PAGE)) * PAGE for part, _ in self.parts)


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
