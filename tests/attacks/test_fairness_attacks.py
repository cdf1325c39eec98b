"""One caller's requests beside another's: what a bomb may cost the others, in slices and turns.

The ideas: many requests of many slices, from one address or from several; uploads that stop, as many as may be in
flight; requests whose callers are gone; requests that nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest
from tests.support.http_app import (
    NPY,
    PATIENCE,
    Controlled,
    ControlledRun,
    Serving,
    Wire,
    assert_problem,
    collect,
    eventually,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.engine import Worker
from tensorpost_server.planning import Plan, make_plan

SLICE = 4096
INPUTS = [memoryview(bytes(SLICE))]


def plan_of(slices: int) -> Plan:
    return make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (SLICE,)), (slices,)), SLICE)


class SharedRun(ControlledRun):
    """A run that may be closed while slices of others are computed."""

    def close(self) -> None:
        self.closed = True


class Shared(Controlled):
    """Several requests use it at the same time."""

    def start(self, plan: Plan, inputs: object) -> SharedRun:
        del inputs
        return SharedRun(self, plan)


class Gate:
    """Lets slices through one by one, and notes how many were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.counting = threading.Lock()
        self.turns = threading.Semaphore(0)

    def __call__(self, _index: int) -> None:
        with self.counting:
            self.begun += 1
        assert self.turns.acquire(timeout=PATIENCE)

    async def open_until(self, task: asyncio.Future[bytes]) -> int:
        """Let slices through until the task is done; how many were begun meanwhile."""
        before = self.begun
        while not task.done():
            self.turns.release()
            await asyncio.sleep(0.04)  # until what it lets through has come to the event loop, on a busy machine too
        return self.begun - before


@pytest.mark.parametrize("bombs", [4, 32])
@pytest.mark.parametrize("well_behaved", ["alice", "mallory"], ids=["another caller", "the same address"])
def test_a_request_waits_for_a_turn_and_not_for_the_queue(bombs: int, well_behaved: str):
    gate = Gate()
    backend = Shared(before=gate, threads=2)

    async def beside(worker: Worker) -> int:
        at_work = [
            asyncio.ensure_future(collect(worker.run(plan_of(200), INPUTS, caller="mallory"))) for _ in range(bombs)
        ]
        while gate.begun < backend.threads:
            await asyncio.sleep(0.001)
        asked = asyncio.ensure_future(collect(worker.run(plan_of(1), INPUTS, caller=well_behaved)))
        await asyncio.sleep(0.3)  # until it is queued, on a busy machine too
        turns = await gate.open_until(asked)
        gate.turns.release(10_000)
        for bomb in at_work:
            bomb.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        return turns

    worker = Worker(backend, 3)
    try:
        turns = asyncio.run(beside(worker))
    finally:
        worker.close()

    # Its start, its slice, and what the threads computed beside them. Its slice costs as much as theirs, so it is one
    # turn of each bomb's more if they are its own caller's. In the order of arrival it would be 4 of each bomb. A busy
    # machine lets an eighth more through before the event loop hears that the request is done.
    most = 4 + 2 * backend.threads + (bombs if well_behaved == "mallory" else 0) + bombs // 8
    assert turns <= most, turns


@pytest.mark.parametrize("bombs", [4, 32])
def test_a_small_plan_does_not_wait_for_any_slice(bombs: int):
    gate = Gate()
    backend = Shared(before=gate, threads=2)
    worker = Worker(backend, 3)
    large, small = plan_of(2000), plan_of(1)

    async def beside() -> bytes:
        at_work = [asyncio.ensure_future(collect(worker.run(large, INPUTS, caller="mallory"))) for _ in range(bombs)]
        while gate.begun < backend.threads:
            await asyncio.sleep(0.001)
        begun = gate.begun
        backend.before = lambda _index: None  # of slices that begin from now on, which only the small plan's can
        found = await asyncio.wait_for(worker.run_once(small, INPUTS, caller="alice"), PATIENCE)
        assert gate.begun == begun
        assert backend.computing == backend.threads, "the bombs did not hold the threads meanwhile"
        gate.turns.release(10_000)
        for bomb in at_work:
            bomb.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        return found

    try:
        assert asyncio.run(beside()) == bytes(SLICE)
    finally:
        worker.close()


def test_slices_of_a_request_that_is_closed_leave_the_queue_at_once():
    gate = Gate()
    backend = Controlled(before=gate)
    worker = Worker(backend, 8)

    async def close_early() -> int:
        bomb = asyncio.ensure_future(collect(worker.run(plan_of(200), INPUTS)))
        while not gate.begun:
            await asyncio.sleep(0.001)
        assert len(worker._threads._queue) == 8
        bomb.cancel()
        await asyncio.sleep(0.01)
        left = len(worker._threads._queue)
        gate.turns.release()
        with pytest.raises(asyncio.CancelledError):
            await bomb
        return left

    try:
        assert asyncio.run(close_early()) == 0
    finally:
        worker.close()
    assert backend.begun == [0]


# ---- admission -------------------------------------------------------------------------------------------------------

TILE = "/v1/operators/tile?repeats=2"
HONEST = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY)


@contextlib.contextmanager
def stopped_uploads(server: Serving, count: int, size: int) -> Iterator[list[Wire]]:
    """Uploads of bodies that stop after their heads, each admitted."""
    body = npy_bytes([0.0] * (size // 4))
    with contextlib.ExitStack() as stack:
        wires: list[Wire] = []
        for number in range(count):
            wires.append(stack.enter_context(server.wire()))
            wires[-1].send(request_bytes("POST", TILE, body, NPY)[: -size + 64])
            admitted = min(number + 1, server.service.settings.max_requests)
            eventually(lambda n=admitted: server.service.admission.requests_in_flight >= n, "it is admitted")
        yield wires


@pytest.mark.parametrize("size", [4096, 1 << 20], ids=["small bodies", "bodies received into memory"])
def test_uploads_that_stop_do_not_lock_others_out(size: int):
    with serving(max_requests=8, slow_upload_seconds=0.2, caller_share=1) as server:
        with stopped_uploads(server, 8, size) as wires:
            eventually(lambda: server.ask(HONEST).status == 200, "an honest request is served")
            answers = [wires[0].answer()]
            problem = assert_problem(answers[0], 408, "receive-timeout")
            assert "TENSORPOST_SLOW_UPLOAD_SECONDS" in problem["detail"]
            assert server.service.admission.requests_in_flight == 7
        eventually(lambda: server.service.admission.requests_in_flight == 0, "all memory is released")
        assert not server.service.admission.held
        assert server.service.admission.bytes_in_flight == 0


def test_one_caller_cannot_hold_every_place():
    with serving(max_requests=8, caller_share=0.5) as server, stopped_uploads(server, 4, 4096):
        refused = assert_problem(server.ask(HONEST), 429, "too-busy")

        assert refused["setting"] == "TENSORPOST_CALLER_SHARE"
        assert server.service.admission.admit(100, "another address").reserved == 100


# ---- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 400], ids=["one slice", "a stream"])
def test_work_that_nobody_waits_for_is_dropped(slices: int):
    go_on = threading.Event()
    backend = Controlled(before=lambda _index: go_on.wait(PATIENCE), inline=False)
    waits = request_bytes("POST", f"/v1/operators/tile?repeats={slices}", npy_bytes([0.0] * 4096), NPY)
    impatient = request_bytes(
        "POST", f"/v1/operators/tile?repeats={slices}", npy_bytes([0.0] * 4096), NPY | {"prefer": "wait=1"}
    )
    with serving(slice_bytes=16384) as server, use_backend(server.service, backend), server.wire() as first:
        first.send(waits)
        eventually(lambda: len(backend.begun) == 1, "the thread is taken")

        problem = assert_problem(server.ask(impatient), 504, "deadline-exceeded")

        assert "within the 1 s" in problem["detail"]
        assert len(backend.begun) == 1
        go_on.set()
        assert first.answer().status == 200
    assert backend.started == 1, "the request that nobody waited for was started"


def test_a_deadline_that_is_kept_changes_nothing():
    with serving() as server:
        kept = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY | {"prefer": "respond-async, wait=20"})

        for _ in range(3):
            answer = server.ask(kept)
            assert answer.status == 200
            assert npy_array(answer.body).tolist() == [1, 2, 1, 2]


def test_a_body_that_comes_after_the_deadline_is_not_waited_for():
    with serving() as server, server.wire() as wire:
        wire.send(request_bytes("POST", TILE, npy_bytes([0.0] * 1000), NPY | {"prefer": "wait=1"})[:-1000])

        assert_problem(wire.answer(), 504, "deadline-exceeded")
        eventually(lambda: server.service.admission.requests_in_flight == 0, "its memory is released")
