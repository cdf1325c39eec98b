"""Callers that leave: their work ends at its next block, whatever the form of the answer and the protocol class."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.http_app import (
    JSON,
    NPY,
    PATIENCE,
    Controlled,
    Serving,
    eventually,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)  # fmt: skip

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.engine import Worker
from tensorpost_server.forms.base import Abandoned, go_on
from tensorpost_server.http.caller_watch import CallerWatch
from tensorpost_server.http.request_body import ClientDisconnected
from tensorpost_server.planning import make_plan

SLICE = 4096
ELEMENTS = 65_536
SLICES = ELEMENTS * 8 // SLICE
JSON_OUT = {"accept": "application/json"}
TILE = f"/v1/operators/tile?repeats={ELEMENTS}"
JSON_TENSOR = b'{"tensors": {"input": {"dtype": "F64", "shape": [1], "data": [1]}}}'
REQUESTS = {
    "JSON in and out": request_bytes("POST", TILE, JSON_TENSOR, JSON),
    "npy in, JSON out": request_bytes("POST", TILE, npy_bytes([1], "float64"), {**NPY, **JSON_OUT}),
    "stream": request_bytes("POST", f"/v1/operators/tile?repeats={100 * ELEMENTS}", npy_bytes([1], "float64"), NPY),
    "first small call": request_bytes("POST", TILE, npy_bytes([1], "float64"), NPY),
}


@pytest.fixture(scope="module", params=["direct", "httptools", "h11"])
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(http_protocol=request.param, slice_bytes=SLICE, slices_ahead=1, numpy_threads=1) as found:
        yield found


def blocks(ended: list[int]) -> None:
    """What a slice computed with NumPy does: many blocks, between each of which it may be stopped."""
    for _ in range(int(PATIENCE / 0.005)):
        time.sleep(0.005)
        try:
            go_on()
        except Abandoned:
            ended.append(1)
            raise


@pytest.mark.parametrize("name", REQUESTS)
def test_the_work_of_a_caller_that_left_ends_at_its_next_block(server: Serving, name: str) -> None:
    ended: list[int] = []
    backend = Controlled(before=lambda _index: blocks(ended))

    with use_backend(server.service, backend), server.wire() as wire:
        wire.send(REQUESTS[name])
        eventually(lambda: bool(backend.begun), "a slice is begun")
        wire.hang_up()
        eventually(server.idle, "everything is given back", PATIENCE / 2)

    assert len(ended) == len(backend.begun), "what was begun was stopped"
    assert backend.begun in ([0], [0, 1]), "nothing but the slice ahead was begun"
    assert backend.closed_runs == 1


@pytest.mark.parametrize("name", ["JSON in and out", "npy in, JSON out"])
def test_queued_work_of_callers_that_left_is_never_begun(server: Serving, name: str) -> None:
    go = threading.Event()
    backend = Controlled(before=lambda _index: go.wait(PATIENCE))

    with use_backend(server.service, backend), contextlib.ExitStack() as open_wires:
        wires = [open_wires.enter_context(server.wire()) for _ in range(5)]
        for count, wire in enumerate(wires, 1):
            wire.send(REQUESTS[name])
            eventually(lambda count=count: server.service.admission.requests_in_flight == count, "it is admitted")
        eventually(lambda: bool(backend.begun), "a slice is begun")
        for wire in wires:
            wire.hang_up()
        eventually(lambda: not server.server.server_state.connections, "the server sees that they have gone")
        server.ask(request_bytes("GET", "/v1/limits"))
        go.set()
        eventually(server.idle, "everything is given back")

    assert backend.begun == [0]
    assert backend.started == backend.closed_runs


def test_a_caller_that_stays_gets_its_json_and_the_next_one_too(server: Serving) -> None:
    with server.wire() as wire:
        for _ in range(3):
            wire.send(REQUESTS["JSON in and out"])
            answer = wire.answer()
            assert answer.json()["tensors"]["output"]["data"] == [1.0] * ELEMENTS
    server.assert_serves_on()


def test_a_small_call_that_is_cancelled_on_a_thread_ends_at_its_next_block() -> None:
    ended: list[int] = []
    backend = Controlled(before=lambda _index: blocks(ended))
    worker = Worker(backend, 1)
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1, 1, 1, 4)), (1, 1, 1, 1)), SLICE)

    async def run() -> None:
        running = asyncio.ensure_future(worker.run_once(plan, [memoryview(bytearray(4))]))
        while not backend.begun:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    worker.close()

    assert ended == [1]


def test_a_cancellation_by_the_server_stays_one() -> None:
    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    async def work() -> None:
        with CallerWatch(receive) as watch:  # pyright: ignore[reportArgumentType] # a message of no type
            watch.start()
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) <= 2  # the watch is being cancelled
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_disconnect_that_is_reported_after_the_last_byte_cancels_nothing() -> None:
    answered = asyncio.Event()

    async def receive() -> dict[str, str]:
        await answered.wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        with CallerWatch(receive) as watch:
            watch.start()
            await asyncio.sleep(0)
            watch.stop()
            answered.set()
            for _ in range(3):
                await asyncio.sleep(0)
            return "whole"

    async def leave() -> None:
        with CallerWatch(receive) as watch:
            watch.start()
            await asyncio.Event().wait()

    assert asyncio.run(work()) == "whole"
    with pytest.raises(ClientDisconnected):
        asyncio.run(leave())
