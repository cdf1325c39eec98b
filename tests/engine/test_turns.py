"""Calls that compute for long: others run between their blocks, and beside those that have none."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tensorpost_server.engine import worker_threads
from tensorpost_server.engine.worker_threads import WorkerThreads
from tensorpost_server.forms import base
from tensorpost_server.forms.base import Abandoned, away_from_processor, go_on, stoppable

PATIENCE = 60.0
LONG = 1.0  # seconds, as an estimate


@pytest.fixture
def threads() -> Iterator[WorkerThreads]:
    found = WorkerThreads(1, "test", extra_small=False, lower_priority=False, turns=True)
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "TURN_SECONDS", 0.002)
    monkeypatch.setattr(worker_threads, "TURN_SECONDS", 0.002)
    monkeypatch.setattr(worker_threads, "OVERDUE_SECONDS", 0.02)


def in_turns(threads: WorkerThreads, call: Callable[..., Any], *args: Any, stop: threading.Event | None = None) -> Any:
    with stoppable(stop or threading.Event(), threads):
        return call(*args)


def until(done: threading.Event, begun: threading.Event | None = None) -> str:
    """A computation of many blocks, which ends when `done` is set."""
    if begun is not None:
        begun.set()
    end = time.monotonic() + PATIENCE
    while not done.is_set():
        assert time.monotonic() < end
        time.sleep(0.0005)
        go_on()
    return threading.current_thread().name


def test_others_run_between_two_blocks_of_the_only_thread(threads: WorkerThreads):
    mallory, alice = threads.open("mallory"), threads.open("alice")
    begun, done = threading.Event(), threading.Event()

    long = threads.submit(mallory, LONG, in_turns, threads, until, done, begun)
    assert begun.wait(PATIENCE)
    for _ in range(5):
        assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0
        assert not long.done()
    done.set()

    assert long.result(PATIENCE)
    threads.close(mallory)
    threads.close(alice)


def test_two_long_ones_share_the_only_thread(threads: WorkerThreads):
    blocks, asked = list[str](), threading.Event()

    def count(name: str) -> None:
        assert asked.wait(PATIENCE)
        for _ in range(100):
            time.sleep(0.0005)
            blocks.append(name)
            go_on()

    flows = [threads.open(name) for name in "ab"]
    running = [
        threads.submit(flow, LONG, in_turns, threads, count, name) for flow, name in zip(flows, "ab", strict=True)
    ]
    asked.set()
    for each in running:
        each.result(PATIENCE)

    changes = sum(one != other for one, other in itertools.pairwise(blocks))
    assert sorted(blocks) == ["a"] * 100 + ["b"] * 100
    assert changes >= 3  # one after the other is one
    for flow in flows:
        threads.close(flow)


def test_of_one_caller_what_has_begun_goes_on_before_what_is_as_long(threads: WorkerThreads):
    asked, begun = threading.Event(), list[int]()

    def long(number: int) -> int:
        begun.append(number)
        assert asked.wait(PATIENCE)
        for _ in range(20):
            time.sleep(0.0005)
            go_on()
        return len(begun)

    flows = [threads.open("mallory") for _ in range(8)]
    running = [threads.submit(flow, LONG, in_turns, threads, long, number) for number, flow in enumerate(flows)]
    asked.set()

    assert [each.result(PATIENCE) for each in running] == [1, 2, 3, 4, 5, 6, 7, 8]
    for flow in flows:
        threads.close(flow)


def test_a_call_without_blocks_does_not_hold_others(threads: WorkerThreads):
    mallory, alice = threads.open("mallory"), threads.open("alice")
    begun, done = threading.Event(), threading.Event()

    def without_blocks() -> str:
        begun.set()
        assert done.wait(PATIENCE)
        go_on()  # it has lost its place, and takes it again
        return "made"

    long = threads.submit(mallory, LONG, in_turns, threads, without_blocks)
    assert begun.wait(PATIENCE)
    for _ in range(3):
        assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0
    done.set()

    assert long.result(PATIENCE) == "made"
    threads.close(mallory)
    threads.close(alice)


def test_a_caller_has_so_many_calls_without_blocks_at_a_time(threads: WorkerThreads):
    mallory = [threads.open("mallory") for _ in range(6)]
    alice, done, begun = threads.open("alice"), threading.Event(), threading.Semaphore(0)

    def without_blocks() -> None:
        begun.release()
        assert done.wait(PATIENCE)

    running = [threads.submit(flow, LONG, without_blocks) for flow in mallory]
    assert begun.acquire(timeout=PATIENCE)
    assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0
    time.sleep(0.2)
    more = sum(begun.acquire(blocking=False) for _ in mallory)
    assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0
    done.set()
    for each in running:
        each.result(PATIENCE)

    assert more == 0, "as many overdue calls as places, and nothing else of that caller"
    for flow in (*mallory, alice):
        threads.close(flow)


class AtOnce:
    """How many calls have begun and not ended, at most."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def test_calls_shorter_than_a_turn_end_before_what_is_as_long_begins(
    threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch
):
    """Each gave way to the next after its first block and was queued as long: all began, and small calls came last."""
    monkeypatch.setattr(base, "TURN_SECONDS", PATIENCE)
    monkeypatch.setattr(worker_threads, "TURN_SECONDS", PATIENCE)
    flows = [threads.open(f"caller {number // 2}") for number in range(8)]
    at_once, begun, asked = AtOnce(), threading.Event(), threading.Event()

    def slice_of_blocks() -> None:
        with at_once:
            begun.set()
            assert asked.wait(PATIENCE)
            for _ in range(10):
                time.sleep(0.0005)
                go_on()

    running = [threads.submit(flows[0], LONG, in_turns, threads, slice_of_blocks)]
    assert begun.wait(PATIENCE)
    running += [threads.submit(flow, LONG, in_turns, threads, slice_of_blocks) for flow in flows[1:]]
    asked.set()
    for each in running:
        each.result(PATIENCE)

    assert at_once.most == 1
    for flow in flows:
        threads.close(flow)


def test_a_small_call_keeps_its_turn_beside_long_ones(threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "TURN_SECONDS", PATIENCE)
    monkeypatch.setattr(worker_threads, "TURN_SECONDS", PATIENCE)
    mallory, alice = [threads.open("mallory") for _ in range(4)], threads.open("alice", small=True)
    begun, asked, ended = threading.Event(), threading.Event(), list[str]()

    def made(name: str) -> None:
        begun.set()
        assert asked.wait(PATIENCE)
        for _ in range(10):
            time.sleep(0.0005)
            go_on()
        ended.append(name)

    running = [threads.submit(alice, 1e-4, in_turns, threads, made, "small")]
    assert begun.wait(PATIENCE)
    running += [threads.submit(flow, LONG, in_turns, threads, made, "long") for flow in mallory]
    asked.set()
    for each in running:
        each.result(PATIENCE)

    assert ended == ["small", *["long"] * 4]
    for flow in (*mallory, alice):
        threads.close(flow)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="tells no other thread's processor time")
def test_a_call_that_gets_no_processor_keeps_its_place(threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch):
    """By the clock, each took too long as soon as processors were busy, and 16 more made all of them slower."""
    monkeypatch.setattr(worker_threads, "OVERDUE_SECONDS", 0.1)
    monkeypatch.setattr(worker_threads, "_OVERDUE_TIMES", 100, raising=False)
    flows, at_once = [threads.open(f"caller {number}") for number in range(4)], AtOnce()
    begun = threading.Event()

    def slow_by_the_clock() -> None:
        with at_once:
            begun.set()
            time.sleep(0.2)

    running = [threads.submit(flows[0], 1e-4, slow_by_the_clock)]
    assert begun.wait(PATIENCE)
    running += [threads.submit(flow, 1e-4, slow_by_the_clock) for flow in flows[1:]]
    for each in running:
        each.result(PATIENCE)

    assert at_once.most == 1
    for flow in flows:
        threads.close(flow)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="tells no other thread's processor time")
def test_a_call_that_uses_a_processor_loses_its_place(threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_threads, "_OVERDUE_TIMES", 1e9)  # never by the clock
    mallory, alice, done = threads.open("mallory"), threads.open("alice"), threading.Event()

    def computes() -> str:
        while not done.is_set():
            sum(range(1000))
        return "made"

    long = threads.submit(mallory, LONG, computes)
    for _ in range(3):
        assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0
    done.set()

    assert long.result(PATIENCE) == "made"
    threads.close(mallory)
    threads.close(alice)


def test_long_calls_take_the_places_of_no_more_than_there_are_places(threads: WorkerThreads):
    flows, done = [threads.open(f"caller {number}") for number in range(6)], threading.Event()
    at_once, alice = AtOnce(), threads.open("alice")

    def without_blocks() -> None:
        with at_once:
            assert done.wait(PATIENCE)

    running = [threads.submit(flow, LONG, without_blocks) for flow in flows]
    time.sleep(0.5)  # several times as long as a call may keep its place
    most = at_once.most
    assert threads.submit(alice, 1e-4, int).result(PATIENCE) == 0  # what is short takes one
    done.set()
    for each in running:
        each.result(PATIENCE)

    assert most == 2
    for flow in (*flows, alice):
        threads.close(flow)


def test_a_thread_that_waits_for_a_process_has_no_place(threads: WorkerThreads):
    mallory, alice = threads.open("mallory"), threads.open("alice")
    begun, done = threading.Event(), threading.Event()

    def waits() -> str:
        with away_from_processor():
            begun.set()
            assert done.wait(PATIENCE)
        return "made"

    long = threads.submit(mallory, LONG, in_turns, threads, waits)
    assert begun.wait(PATIENCE)
    assert [threads.submit(alice, LONG, int).result(PATIENCE) for _ in range(3)] == [0, 0, 0]
    done.set()

    assert long.result(PATIENCE) == "made"
    threads.close(mallory)
    threads.close(alice)


def test_a_call_that_waits_for_its_turn_ends_when_its_request_does(threads: WorkerThreads):
    mallory, alice = threads.open("mallory"), threads.open("alice")
    begun, also, done, stop = threading.Event(), threading.Event(), threading.Event(), threading.Event()

    long = threads.submit(mallory, LONG, in_turns, threads, until, threading.Event(), begun)
    stopped = threads.submit(alice, LONG, lambda: in_turns(threads, until, done, also, stop=stop))
    assert begun.wait(PATIENCE)
    assert also.wait(PATIENCE)
    stop.set()
    threads.close(alice)

    with pytest.raises(Abandoned):
        stopped.result(PATIENCE)
    assert not long.done()


def test_a_call_whose_request_is_closed_before_it_pauses_gets_no_turn_and_ends(threads: WorkerThreads):
    mallory, alice = threads.open("mallory"), threads.open("alice")
    begun, closed, stop = threading.Event(), threading.Event(), threading.Event()

    def pauses_late() -> None:
        begun.set()
        assert closed.wait(PATIENCE)
        threads.pause()  # as `go_on` does that has looked at `stop` just before it was set

    running = threads.submit(mallory, LONG, in_turns, threads, pauses_late)
    assert begun.wait(PATIENCE)
    waiting = threads.submit(alice, LONG, int)
    stop.set()
    threads.close(mallory)
    closed.set()

    running.result(PATIENCE)
    assert waiting.result(PATIENCE) == 0
    threads.close(alice)


def test_stopped_threads_end_what_waits_for_its_turn():
    threads = WorkerThreads(1, "test", extra_small=False, lower_priority=False, turns=True)
    flows = [threads.open(name) for name in "abc"]
    never = threading.Event()
    running = [threads.submit(flow, LONG, in_turns, threads, until, never) for flow in flows]
    time.sleep(0.05)

    threads.stop()

    for each in running:
        with pytest.raises((Abandoned, CancelledError)):
            each.result(PATIENCE)


def test_a_call_that_is_alone_again_has_a_turn_without_questions(threads: WorkerThreads):
    mallory = threads.open("mallory")

    def alone() -> bool:
        threads.wanted = True  # as something shorter leaves it that has been computed meanwhile
        threads.pause()
        return threads.wanted

    assert threads.submit(mallory, LONG, in_turns, threads, alone).result(PATIENCE) is False
    threads.close(mallory)


def test_one_caller_alone_keeps_its_thread(threads: WorkerThreads):
    mallory = threads.open("mallory")
    names = [threads.submit(mallory, LONG, in_turns, threads, blocks_of, 20) for _ in range(3)]

    assert len({each.result(PATIENCE) for each in names}) == 1
    threads.close(mallory)


def blocks_of(count: int) -> str:
    for _ in range(count):
        time.sleep(0.0005)
        go_on()
    return threading.current_thread().name


def threads_of_the_test() -> int:
    return sum(thread.name.startswith("test_") for thread in threading.enumerate())


def test_threads_that_slept_are_given_back(threads: WorkerThreads):
    flows = [threads.open(f"caller {number}") for number in range(10)]
    running = [threads.submit(flow, LONG, in_turns, threads, blocks_of, 20) for flow in flows]
    for each in running:
        each.result(PATIENCE)
    for flow in flows:
        threads.close(flow)

    end = time.monotonic() + PATIENCE
    while threads_of_the_test() > 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert threads_of_the_test() <= 3
