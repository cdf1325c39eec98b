"""The fair queue: nobody starves, nobody gets much more than another, and an item is always taken if there is one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost_server.engine.fair_queue import FairQueue, Flow

BOMB = 1000.0


def filled(*callers: tuple[str, int, float]) -> FairQueue[tuple[str, float]]:
    """A queue with one request for each caller: name, items and the cost of each."""
    queue = FairQueue[tuple[str, float]]()
    for name, count, cost in callers:
        flow = queue.open(name)
        for _ in range(count):
            queue.add(flow, cost, (name, cost))
    return queue


def _is_small(flow: Flow[str]) -> bool:
    return flow.small


def taken(queue: FairQueue[tuple[str, float]], count: int) -> list[str]:
    return [item[0] for _ in range(count) if (item := queue.take()) is not None]


def test_an_empty_queue_has_nothing():
    assert FairQueue[int]().take() is None


def test_items_of_one_request_keep_their_order():
    queue = FairQueue[int]()
    flow = queue.open("a")
    for index, cost in enumerate([5, 1, 9, 2]):
        queue.add(flow, cost, index)

    assert [queue.take() for _ in range(5)] == [0, 1, 2, 3, None]


@pytest.mark.parametrize("bombs", [4, 32, 255])
@pytest.mark.parametrize("same_caller", [False, True])
@pytest.mark.parametrize("before", [0, 1, 7, 100])
def test_a_small_request_is_next_however_many_bombs_wait(bombs: int, same_caller: bool, before: int):
    queue = FairQueue[str]()
    for number in range(bombs):
        flow = queue.open("mallory" if same_caller else f"mallory {number}")
        for _ in range(4):
            queue.add(flow, BOMB, "bomb")
    for _ in range(before):
        queue.take()

    for caller in ("alice", "mallory"):  # also one that shares its address with the bombs
        queue.add(queue.open(caller), 1, "small")

    turns = [queue.take() for _ in range(4)]
    assert turns.count("small") == 2, turns


def test_callers_get_the_same_whatever_the_number_of_their_requests():
    queue = FairQueue[str]()
    for name, requests in (("many", 31), ("one", 1)):
        for _ in range(requests):
            flow = queue.open(name)
            for _ in range(100):
                queue.add(flow, 10, name)

    assert set(Counter(queue.take() for _ in range(100)).values()) == {50}


def test_requests_of_one_caller_take_turns():
    queue = FairQueue[int]()
    for request in range(3):
        flow = queue.open("a")
        for _ in range(4):
            queue.add(flow, 10, request)

    assert [queue.take() for _ in range(12)] == [0, 1, 2] * 4


def test_endless_small_requests_do_not_starve_a_large_one():
    queue = FairQueue[str]()
    queue.add(queue.open("a"), BOMB, "large")

    for turn in range(10_000):
        queue.add(queue.open("a" if turn % 2 else f"b{turn}"), 10, "small")
        if queue.take() == "large":
            break
    else:
        raise AssertionError("it was never taken")

    assert turn * 10 <= 4 * BOMB  # it gets half of what its caller gets, and that is half


def test_time_that_was_not_used_is_not_kept():
    queue = FairQueue[str]()
    late, busy = queue.open("late"), queue.open("busy")
    for _ in range(200):
        queue.add(busy, 10, "busy")
    for _ in range(100):
        queue.take()

    for _ in range(100):
        queue.add(late, 10, "late")

    assert Counter(queue.take() for _ in range(20)) == {"late": 10, "busy": 10}


def test_closing_a_request_drops_what_waits():
    queue = FairQueue[int]()
    bomb, other = queue.open("a"), queue.open("b")
    for item in range(3):
        queue.add(bomb, 1, item)
    queue.add(other, 1, 7)

    assert queue.close(bomb) == [0, 1, 2]
    assert (len(queue), queue.take(), queue.take()) == (1, 7, None)
    assert queue.close(other) == []


def test_only_small_requests_can_be_asked_for():
    queue = FairQueue[str]()
    large, small = queue.open("a"), queue.open("b", small=True)
    queue.add(large, 1, "large")
    queue.add(small, 50, "small")

    assert [queue.take(_is_small), queue.take(_is_small), queue.take()] == ["small", None, "large"]


def test_callers_that_have_gone_are_forgotten():
    queue = FairQueue[int]()
    keeps_it_busy = queue.open("a")
    for number in range(1000):
        flow = queue.open(f"caller {number}")
        queue.add(flow, 1, number)
        queue.add(keeps_it_busy, 1, -1)
        queue.take()
        queue.take()
        queue.close(flow)

    assert len(queue._callers) < 10


costs = st.floats(1, BOMB)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), costs), min_size=1, max_size=60), st.data())
def test_every_item_is_taken_once_and_no_turn_is_lost(items: list[tuple[int, int, float]], data: st.DataObject):
    """Work conserving: whatever is added, taken and closed in any order, a turn is empty only if the queue is."""
    queue = FairQueue[int]()
    flows: dict[tuple[int, int], Flow[int]] = {}
    waiting: set[int] = set()
    for number, (caller, request, cost) in enumerate(items):
        if (caller, request) not in flows:
            flows[caller, request] = queue.open(str(caller))
        queue.add(flows[caller, request], cost, number)
        waiting.add(number)
        action = data.draw(st.sampled_from(["add", "take", "close"]))
        if action == "take":
            found = queue.take()
            assert found is not None
            waiting.remove(found)
        elif action == "close":
            waiting -= {*queue.close(flows.pop(data.draw(st.sampled_from(sorted(flows)))))}
        assert len(queue) == len(waiting)
    while (found := queue.take()) is not None:
        waiting.remove(found)
    assert not waiting


@settings(deadline=None)
@given(st.lists(st.lists(costs, min_size=1, max_size=8), min_size=2, max_size=5), st.integers(1, 200))
def test_lag_is_bounded(callers: list[list[float]], turns: int):
    """Of callers that always wait, none got more than another by more than two of the most costly items."""
    queue = FairQueue[int]()
    flows = [queue.open(str(number)) for number in range(len(callers))]
    got, at = [0.0] * len(callers), [0] * len(callers)

    def add(number: int) -> None:
        mine = callers[number]
        queue.add(flows[number], mine[at[number] % len(mine)], number)
        at[number] += 1

    for number in range(len(callers)):
        add(number)
        add(number)
    for _ in range(turns):
        number = queue.take()
        assert number is not None
        mine = callers[number]
        got[number] += mine[(at[number] - 2) % len(mine)]
        add(number)
        assert max(got) - min(got) <= 2 * max(map(max, callers)) + 1e-6


@settings(deadline=None)
@given(costs, st.lists(st.tuples(st.integers(0, 9), st.floats(1, 50)), min_size=1, max_size=9))
def test_nobody_starves(cost: float, others: list[tuple[int, float]]):
    """However many small items come beside it, an item waits for no more than its own cost of each caller, and one."""
    queue = FairQueue[str]()
    queue.add(queue.open("victim"), cost, "victim")
    before = 0.0

    for turn in range(100_000):
        caller, small = others[turn % len(others)]
        queue.add(queue.open(f"{caller}"), small, "other")
        if queue.take() == "victim":
            break
        before += small
    else:
        raise AssertionError("it was never taken")

    assert before <= (cost + 50) * (len({caller for caller, _ in others}) + 1)
