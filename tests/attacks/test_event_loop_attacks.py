"""What one caller's connections cost the others on the event loop: turns, closed connections, garbage.

The ideas: pipelines on many connections; many connections that are closed at once; requests and connections whose
objects refer to each other in a cycle, so that the garbage collector stops the server for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import Scope
from tests.support.bodies_app import BodiesApp, settle
from tests.support.fake_transport import FakeTransport, answers, connect
from tests.support.http_app import JSON, NPY, Serving, eventually, npy_bytes, request_bytes, serving
from uvicorn.server import ServerState

from tensorpost_server.http.connection.request_turns import MOST_READ_IN_A_TURN, RequestTurns

MALLORY = "127.0.0.2"
CONNECTIONS = 40
FEW = 2  # requests that begin or end in a turn of the loop


def get(path: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n".encode()


def several(app: BodiesApp, address: str, count: int, state: ServerState) -> list[FakeTransport]:
    return [connect(app, state=state, address=address) for _ in range(count)]


def test_a_request_does_not_wait_for_every_connection_of_another_address():
    app = BodiesApp()

    async def run() -> None:
        state = ServerState()
        mallory = several(app, MALLORY, CONNECTIONS, state)
        (alice,) = several(app, "127.0.0.1", 1, state)
        for number, transport in enumerate(mallory):
            transport.read(get(f"/refuse/{number}") * 3)
        alice.read(get("/refuse/alice"))
        await settle(40 + 3 * CONNECTIONS)
        assert all(len(answers(bytes(transport.out))) == 3 for transport in mallory)

    asyncio.run(run())
    assert app.seen.index("/refuse/alice") <= 2 * FEW
    assert len(app.seen) == 3 * CONNECTIONS + 1


@pytest.mark.parametrize("end", ["answered", "closed", "stopped"])
def test_requests_that_arrive_at_once_are_read_in_turn(end: str):
    app = BodiesApp()

    async def run() -> None:
        state = ServerState()
        mallory = several(app, MALLORY, CONNECTIONS, state)
        (alice,) = several(app, "127.0.0.1", 1, state)
        for number, transport in enumerate(mallory):
            transport.read(get(f"/refuse/{number}"))
        alice.read(get("/refuse/alice"))
        held = [transport for transport in mallory if transport.paused]
        assert FEW <= CONNECTIONS - len(held) <= MOST_READ_IN_A_TURN
        for transport in held:
            if end == "closed":
                transport.lose()
            if end == "stopped":
                transport.protocol.shutdown()
        await settle(40 + CONNECTIONS)
        for transport in [*mallory, alice]:
            assert transport in held or not transport.paused
            expected = 0 if end == "closed" and transport in held else 1
            assert len(answers(bytes(transport.out))) == expected

    asyncio.run(run())
    assert app.seen.index("/refuse/alice") <= 2 * FEW


def test_requests_of_connections_that_are_closed_before_their_turn_are_not_begun():
    app = BodiesApp()

    async def run() -> None:
        mallory = several(app, MALLORY, CONNECTIONS, ServerState())
        for number, transport in enumerate(mallory):
            transport.read(get(f"/refuse/{number}"))
        for transport in mallory:
            transport.lose()
        await settle(40 + CONNECTIONS)

    asyncio.run(run())
    assert len(app.seen) <= FEW


def test_requests_of_connections_that_are_closed_at_once_end_in_turn():
    app = BodiesApp()

    async def run() -> list[int]:
        state = ServerState()
        mallory = several(app, MALLORY, CONNECTIONS, state)
        for number, transport in enumerate(mallory):
            transport.read(get(f"/endless/{number}"))
        await settle(40 + CONNECTIONS)
        assert len(app.seen) == CONNECTIONS
        for transport in mallory:
            transport.lose()
        ended = [0]
        while len(app.gone) < CONNECTIONS:
            await asyncio.sleep(0)
            ended.append(len(app.gone))
            assert len(ended) < 1000
        await settle()
        assert not state.connections
        return ended

    ended = asyncio.run(run())
    assert max(after - before for before, after in itertools.pairwise(ended)) <= FEW


def test_addresses_take_turns_and_a_failing_call_stops_nobody():
    made: list[str] = []

    def call(name: str) -> Callable[[], object]:
        return lambda: made.append(name) or (name == "fails" and 1 / 0) or (None if name != "gone" else False)

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: made.append(type(context["exception"]).__name__))
        turns = RequestTurns(loop)
        for name in ("a1", "a2", "a3", "fails", "gone", "gone", "a4"):
            turns.begin("a", call(name))
        turns.begin("b", call("b1"))
        turns.begin(None, call("c1"))
        counts = [len(made)]
        for _ in range(6):
            await asyncio.sleep(0)
            counts.append(len(made))
        return counts

    counts = asyncio.run(run())
    assert made == ["a1", "a2", "a3", "b1", "c1", "fails", "ZeroDivisionError", "gone", "gone", "a4"]
    assert counts[:4] == [2, 4, 7, 10]


def test_requests_that_are_woken_at_once_continue_in_turn():
    order: list[str] = []

    async def run() -> list[int]:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def app(scope: Scope, _receive: object, _send: object) -> None:
            await asyncio.shield(woken)
            order.append(scope["path"])

        state = ServerState()
        for address, count in ((MALLORY, CONNECTIONS), ("127.0.0.1", 1)):
            for number in range(count):
                connect(app, state=state, address=address).read(get(f"/{address}/{number}"))
        await settle(40 + CONNECTIONS)
        woken.set_result(None)
        counts = [0]
        while len(order) <= CONNECTIONS:
            await asyncio.sleep(0)
            counts.append(len(order))
            assert len(counts) < 1000
        return counts

    counts = asyncio.run(run())
    assert max(after - before for before, after in itertools.pairwise(counts)) <= FEW
    assert order.index("/127.0.0.1/0") <= 2 * FEW


def test_a_request_that_waits_for_its_turn_can_be_cancelled_and_fail():
    async def run() -> list[object]:
        loop = asyncio.get_running_loop()
        turns, woken = RequestTurns(loop), loop.create_future()

        async def app(scope: Scope, _receive: object, _send: object) -> None:
            try:
                await asyncio.shield(woken)
            except asyncio.CancelledError:
                seen.append(f"{scope['name']} is cancelled")
                raise
            raise ValueError(scope["name"])

        seen: list[object] = []
        names = [str(number) for number in range(3 * FEW)]
        tasks = [asyncio.ensure_future(turns.application(MALLORY, app)({"name": name}, never, never)) for name in names]
        await asyncio.sleep(0)
        woken.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[-1].cancel()
        seen += [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)]
        return seen

    seen = asyncio.run(run())
    assert seen == ["5 is cancelled", *[ValueError] * 5, asyncio.CancelledError]


async def never(*_: object) -> Any:
    raise AssertionError("nothing is received or sent")


# ---- garbage ---------------------------------------------------------------------------------------------------------

REQUESTS = 10
DOCUMENT = b'{"tensors":{"input":{"dtype":"F64","shape":[1],"data":[0.1]}}}'
KINDS: dict[str, bytes] = {
    "health": request_bytes("GET", "/v2/health/live"),
    "a page": request_bytes("GET", "/"),
    "a small call": request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1, 2]), NPY),
    "a stream": request_bytes("POST", "/v1/operators/tile?repeats=400000", npy_bytes([1, 2]), NPY),
    "JSON": request_bytes("POST", "/v1/operators/tile?repeats=5000", DOCUMENT, JSON),
    "a refusal": request_bytes("POST", "/v1/operators/tile?repeats=x", DOCUMENT, JSON),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as found:
        yield found


def garbage(act: Callable[[], object]) -> int:
    """Objects that only the garbage collector frees after this was done some times; what is made once left out."""
    found: list[int] = []
    gc.disable()
    try:
        for _ in range(3):
            for _ in range(REQUESTS):
                act()
            found.append(gc.collect())
        return min(found[1:])
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_leaves_nothing_for_the_garbage_collector(server: Serving, kind: str) -> None:
    with server.wire() as wire:

        def act() -> None:
            wire.send(KINDS[kind])
            wire.answer()

        assert garbage(act) < REQUESTS


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: te", KINDS["a small call"][:-1], b"x\r\n\r\n"])
def test_a_closed_connection_leaves_nothing_for_the_garbage_collector(server: Serving, data: bytes) -> None:
    connections = server.server.server_state.connections

    def act() -> None:
        with server.wire() as wire:
            wire.send(data)
            eventually(lambda: bool(connections), "it is connected")
        eventually(lambda: not connections, "it is closed")

    assert garbage(act) < REQUESTS
