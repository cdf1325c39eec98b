"""What is remembered is right, bounded, and forgotten when it is not used."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpost_server.http.remembered import Remembered


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=200))
def test_it_says_what_was_put_and_holds_no_more_than_agreed(steps: list[tuple[int, int]]):
    memory, sizes = Remembered[int, str](8, 100), dict[int, int]()
    for key, size in steps:
        found = memory.get(key)
        assert found in (None, f"value {key}")
        if found is None:
            memory.put(key, f"value {key}", size)
            sizes[key] = size
        held = [*memory._young, *memory._old]
        assert len(memory) == len(held) == len(set(held)) <= 8
        assert sum(sizes[key] for key in held) <= 100


def test_what_is_used_stays_and_what_is_not_goes():
    memory = Remembered[int, int](8, 1000)
    memory.put(0, 1, 1)
    for key in range(1, 50):
        memory.put(key, 1, 1)
        assert memory.get(0) == 1, "used all the time"
    assert memory.get(1) is None


@pytest.mark.parametrize("size", [51, 1000])
def test_what_is_too_large_is_not_remembered(size: int):
    memory = Remembered[int, int](8, 100)
    memory.put(1, 1, size)
    assert memory.get(1) is None


def test_of_nothing_nothing_is_kept():
    memory = Remembered[int, int](0, 100)
    memory.put(1, 1, 1)
    assert (len(memory), memory.get(1)) == (0, None)


def test_a_random_walk_agrees_with_a_dictionary():
    memory, truth, rng = Remembered[int, int](64, 10_000), dict[int, int](), random.Random(3)
    hits = 0
    for _ in range(5000):
        key = rng.randrange(40)
        found = memory.get(key)
        if found is None:
            truth[key] = rng.randrange(1000)
            memory.put(key, truth[key], 10)
        else:
            hits += 1
            assert found == truth[key]
    assert hits > 4000, "most of what fits is found"
