"""The threads of a worker: every one of them takes part."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from tensorpost_server.engine.worker_threads import WorkerThreads


def test_two_calls_in_a_row_get_two_threads():
    """One idle thread was counted on twice: the second call waited for the first, beside a thread that never began."""
    for _ in range(50):
        threads = WorkerThreads(2, "test", extra_small=False, lower_priority=False)
        try:
            calls, both = threads.open("anna"), threading.Barrier(2)
            threads.submit(calls, 1.0, int).result(10)  # one thread is there, and idle now or soon
            waiting = [threads.submit(calls, 1.0, both.wait, 10) for _ in range(2)]
            assert sorted(each.result(20) for each in waiting) == [0, 1]
            threads.close(calls)
        finally:
            threads.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
@pytest.mark.parametrize("processors", [True, False])
def test_threads_that_use_processors_give_the_event_loop_precedence(processors: bool):
    threads = WorkerThreads(1, "test", extra_small=False, lower_priority=processors)
    try:
        calls = threads.open("anna")
        found = threads.submit(calls, 1.0, os.getpriority, os.PRIO_PROCESS, 0).result(10)
        threads.close(calls)
    finally:
        threads.stop()

    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert found > ours or found == 19 if processors else found == ours


def test_threads_stop_while_calls_wait_for_their_next_turn():
    """A call that was handed its next turn while the queue was emptied never had it: `stop` waited for ever."""
    for _ in range(20):
        threads = WorkerThreads(1, "test", extra_small=False, lower_priority=False, turns=True)
        began = threading.Semaphore(0)

        def compute(began: threading.Semaphore = began, threads: WorkerThreads = threads) -> None:
            began.release()
            while not threads._stopping:  # pyright: ignore[reportPrivateUsage] # no other sign of it
                threads.pause()

        for caller in ("anna", "ben", "clara"):
            threads.submit(threads.open(caller), 1.0, compute)
        assert began.acquire(timeout=10)
        stopping = threading.Thread(target=threads.stop, daemon=True)
        stopping.start()
        stopping.join(10)
        assert not stopping.is_alive()
