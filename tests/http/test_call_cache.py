"""The call cache and the replay of small calls: the same answers as any other request gets, in bounded memory."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send
from tests.support.bodies_app import settle
from tests.support.fake_transport import FakeTransport, answers, connect
from tests.support.http_app import (
    FRAME,
    NPY,
    Controlled,
    Serving,
    Wire,
    eventually,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    split_frame,
    use_backend,
)
from tests.support.replays import count_replays
from uvicorn.server import ServerState

from tensorpost.bodies.frame import encode_head
from tensorpost.values.datatypes import data_type
from tensorpost_server.http.bounded_cache import MOST_KEY_BYTES, BoundedCache
from tensorpost_server.http.calls.prepared_call import received_tensors
from tensorpost_server.http.connection import shared_state
from tensorpost_server.http.connection.whole_messages import field_lines, whole_messages

JSON_OUT = {"accept": "application/json"}
TILE = "/v1/operators/tile?repeats=1,2"


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


# ---- the protocol, with an application that counts -------------------------------------------------------------------


class Echo:
    """Answers with the body in capitals, and hands over a replay that does so in brackets."""

    def __init__(self) -> None:
        self.calls = self.replays = 0
        self.addresses: list[str | None] = []
        self.declines = False

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        self.calls += 1
        message = await receive()
        body: bytes = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        whole = whole_messages(scope)
        assert whole is not None
        assert whole.send(b"content-length: %d\r\n" % len(body), body.upper(), self.replay)

    def replay(self, body: bytes, address: str | None) -> tuple[bytes, bytes, int] | None:
        self.replays += 1
        self.addresses.append(address)
        return None if self.declines else (b"content-length: %d\r\n" % (len(body) + 2), b"[%b]" % body, 1)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


def post(body: bytes, **fields: Any) -> bytes:
    return request_bytes("POST", "/echo", body, fields)


def said(transport: FakeTransport) -> list[bytes]:
    found = answers(bytes(transport.out))
    assert [status for status, _, _ in found] == [200] * len(found)
    return [body for _, _, body in found]


def test_the_same_head_does_not_reach_the_application_again(runner: asyncio.Runner):
    async def run() -> None:
        app, state = Echo(), ServerState()
        transport = connect(app, state=state)
        await transport.deliver([post(b"abc"), post(b"def"), post(b"ghij"), post(b"klm", x="1"), post(b"nop")])
        other = connect(app, state=state, address="192.0.2.7")
        await other.deliver([post(b"qrs")])

        assert said(transport) == [b"ABC", b"[def]", b"GHIJ", b"KLM", b"[nop]"]
        assert said(other) == [b"[qrs]"], "the server knows the head, not the connection"
        assert (app.calls, app.replays) == (3, 3)
        assert app.addresses[-1] == "192.0.2.7", "a replay knows whom it answers"
        assert state.total_requests == 6
        strangers = connect(Echo(), state=ServerState())
        await strangers.deliver([post(b"abc")])
        assert said(strangers) == [b"ABC"], "another server of this process knows nothing"

    runner.run(run())


@pytest.mark.parametrize("step", [1, 7, 40, 1000])
def test_a_known_head_that_comes_in_pieces(runner: asyncio.Runner, step: int):
    async def run() -> None:
        app = Echo()
        transport = connect(app)
        await transport.deliver([post(b"abc")])
        data = post(b"def") + post(b"ghi")
        await transport.deliver([data[at : at + step] for at in range(0, len(data), step)])

        assert [body.upper().strip(b"[]") for body in said(transport)] == [b"ABC", b"DEF", b"GHI"]
        await transport.deliver([post(b"jkl")])
        assert said(transport)[-1] == b"[jkl]"

    runner.run(run())


@pytest.mark.parametrize("later", [False, True], ids=["one piece", "the second while the first waits"])
def test_a_head_answers_for_itself_only(runner: asyncio.Runner, later: bool):
    """Two requests one behind the other, of the same length: neither may be remembered under the other's head."""

    async def slow(scope: Scope, receive: Receive, _send: Send) -> None:
        await settle(20)
        while (await receive()).get("more_body"):
            pass
        path = scope["path"].encode()
        lines = b"content-length: %d\r\n" % len(path)
        whole = whole_messages(scope)
        assert whole is not None
        assert whole.send(lines, path, lambda _body, _address: (lines, path, 1))

    async def run() -> None:
        state = ServerState()
        first, second = (request_bytes("POST", path, b"abc") for path in ("/first", "/other"))
        transport = connect(slow, state=state)
        await transport.deliver([first, second] if later else [first + second])
        await settle(100)
        assert said(transport) == [b"/first", b"/other"]
        for data, path in ((first, b"/first"), (second, b"/other")):
            third = connect(slow, state=state)
            await third.deliver([data])
            assert said(third) == [path]

    runner.run(run())


@pytest.mark.parametrize("before", [b"\r\n", b"\r\n\r\n", b"\n"])
def test_empty_lines_are_no_head(runner: asyncio.Runner, before: bytes):
    async def run() -> None:
        app, state = Echo(), ServerState()
        await connect(app, state=state).deliver([before + post(b"abc")])
        assert not shared_state._SHARED[state].replays

    runner.run(run())


def test_what_it_declines_goes_to_the_application(runner: asyncio.Runner):
    async def run() -> None:
        app = Echo()
        transport = connect(app)
        await transport.deliver([post(b"abc")])
        app.declines = True
        await transport.deliver([post(b"def")])

        assert said(transport) == [b"ABC", b"DEF"]
        assert (app.calls, app.replays) == (2, 1)

    runner.run(run())


def test_a_head_that_asks_to_close_is_not_kept(runner: asyncio.Runner):
    class Usual(Echo):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.calls += 1
            await receive()
            whole = whole_messages(scope)
            assert whole is not None
            assert not whole.send(b"content-length: 0\r\n", b"", self.replay), "an answer that closes is uvicorn's"
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        app, state = Usual(), ServerState()
        for _ in range(2):
            transport = connect(app, state=state)
            await transport.deliver([post(b"abc", connection="close")])
            assert transport.closing
        assert (app.calls, app.replays) == (2, 0)

    runner.run(run())


def test_a_caller_that_reads_slowly_is_waited_for_in_the_usual_way(runner: asyncio.Runner):
    async def run() -> None:
        app = Echo()
        transport = connect(app)
        await transport.deliver([post(b"abc")])
        transport.protocol.pause_writing()
        await transport.deliver([post(b"def")])
        assert app.replays == 0

    runner.run(run())


def test_the_time_of_an_idle_connection_begins_with_its_last_answer(runner: asyncio.Runner):
    async def run() -> None:
        state, app = ServerState(), Echo()
        await connect(app, state=state, head_seconds=0.05).deliver([post(b"abc")])
        transport = connect(app, state=state, head_seconds=0.05)
        transport.protocol.timeout_keep_alive = 0.6
        for _ in range(15):  # longer than a keep-alive, longer than a head may take
            await transport.deliver([post(b"def")])
            await asyncio.sleep(0.06)
        assert not transport.closing, "a connection that is used is not idle"
        assert app.calls == 1
        await asyncio.sleep(1)
        assert transport.closing

    runner.run(run())


def test_half_a_head_behind_such_an_answer_has_its_time(runner: asyncio.Runner):
    async def run() -> None:
        state, app = ServerState(), Echo()
        await connect(app, state=state, head_seconds=0.1).deliver([post(b"abc")])
        transport = connect(app, state=state, head_seconds=0.1)
        await transport.deliver([post(b"def"), b"POST /echo HTTP/1.1\r\nHo"])
        await asyncio.sleep(0.4)
        await settle()
        assert [status for status, _, _ in answers(bytes(transport.out))] == [200, 408]

    runner.run(run())


# ---- the service -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(memory_bytes=1 << 26) as found:
        yield found


@pytest.fixture
def wire(server: Serving) -> Iterator[Wire]:
    with server.wire() as found:
        yield found


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every time that the application was not asked first: whether it was not asked at all."""
    return count_replays(monkeypatch)


def ask(wire: Wire, array: Any, target: str = TILE, **fields: str) -> Any:
    wire.send(request_bytes("POST", target, npy_bytes(array), {**NPY, **fields}))
    return wire.answer()


def test_answers_are_complete_and_their_own(wire: Wire, replayed: list[bool]):
    found = []
    for number in range(4):
        x = np.full((3, 5), number, np.float32)
        answer = ask(wire, x, user="complete")
        assert answer.status == 200
        np.testing.assert_array_equal(npy_array(answer.body), np.tile(x, (1, 2)))
        found.append(answer.headers)
    assert replayed == [True] * 3
    assert len({headers["x-request-id"] for headers in found}) == 4
    for headers in found:
        assert headers.keys() == found[0].keys()
        assert re.fullmatch(r"(\w+;dur=\d+\.\d{3}(, )?){5}", headers["server-timing"])


def test_an_id_of_the_callers_is_echoed(wire: Wire, replayed: list[bool]):
    ids = [ask(wire, ones(2, 2), **{"x-request-id": "my-id"}).headers["x-request-id"] for _ in range(3)]
    assert ids == ["my-id"] * 3
    assert replayed == [True, True]


def test_the_same_head_before_another_tensor(wire: Wire, replayed: list[bool]):
    for shape in ((2, 6), (3, 4), (2, 6), (6, 2), (3, 4)):  # of the same length
        x = np.random.default_rng(1).random(shape, np.float32)
        np.testing.assert_array_equal(npy_array(ask(wire, x, user="shapes").body), np.tile(x, (1, 2)))
    assert replayed == [False, True, False, True]


def test_several_inputs_and_outputs_are_replayed(wire: Wire, replayed: list[bool]):
    for number in range(3):
        a, b = ones(2, 3) * number, ones(2, 3)
        head = encode_head([(name, data_type("float32"), (2, 3)) for name in "ab"])  # padded, hence aligned
        body = head + a.tobytes() + b.tobytes()
        wire.send(request_bytes("POST", "/v1/operators/element_wise_add", body, FRAME))
        assert split_frame(wire.answer().body)[1] == {"output": (a + b).tobytes()}
        body = encode_head([("input", data_type("float32"), (2, 3))]) + a.tobytes()
        wire.send(request_bytes("POST", "/v1/operators/split?axis=1&output_sizes=2,1;2,2", body, FRAME))
        found = split_frame(wire.answer().body)[1]
        assert found == {"output_0": a[:, :1].tobytes(), "output_1": a[:, 1:].tobytes()}
    assert replayed == [True] * 4


def test_the_same_head_before_nonsense(wire: Wire, replayed: list[bool]):
    good = npy_bytes(ones(2, 3))
    for body, status in ((good, 200), (b"?" * len(good), 400), (good, 200)):
        wire.send(request_bytes("POST", TILE, body, {**NPY, "user": "nonsense"}))
        assert wire.answer().status == status
    assert replayed == [False, True]


def test_long_outputs_and_refusals_are_the_applications(server: Serving, wire: Wire, replayed: list[bool]):
    for _ in range(2):
        assert len(ask(wire, ones(1, 1000), "/v1/operators/tile?repeats=1000,1").body) == 4_000_128
        assert ask(wire, ones(1, 10), "/v1/operators/tile?repeats=0,1").status == 422
        assert ask(wire, ones(1, 10), TILE + "&backend=cuda").status == 501
    assert replayed == []
    assert ask(wire, ones(1, 10), user="room").status == 200
    taken = server.service.admission.admit((1 << 26) - 10)
    assert ask(wire, ones(1, 10), user="room").status == 429
    taken.release()
    assert ask(wire, ones(1, 10), user="room").status == 200
    assert replayed == [False, True]


def test_a_device_that_refuses_for_a_while(server: Serving, wire: Wire, replayed: list[bool]):
    backend = Controlled()
    with use_backend(server.service, backend):
        assert ask(wire, ones(1, 10), user="refuses").status == 200
        backend.refusal = "not today"
        assert ask(wire, ones(1, 10), user="refuses").status == 501
        backend.refusal = None
        assert ask(wire, ones(1, 10), user="refuses").status == 200
        assert backend.started == backend.closed_runs == 2
    assert replayed == [False, True]
    eventually(server.idle, "no memory is in use")


def test_middleware_sees_every_answer():
    class Marks:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def marked(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"marked", b"yes")]
                await send(message)

            await self.app(scope, receive, marked)

    with serving(before_start=lambda app: app.add_middleware(Marks)) as server, server.wire() as wire:
        for _ in range(3):
            assert ask(wire, ones(2, 2)).headers["marked"] == "yes"


def test_without_the_extension_nothing_changes():
    with http_app() as app:
        for _ in range(2):
            answer = app.post(TILE, npy_bytes(ones(2, 2)), NPY)
            assert answer.headers["content-type"] == "application/x-npy"
            np.testing.assert_array_equal(npy_array(answer.content), np.ones((2, 4)))


# ---- tensors where they have arrived ---------------------------------------------------------------------------------


def address(block: Any) -> int:
    return np.frombuffer(block, np.uint8).__array_interface__["data"][0]


def test_tensors_are_used_in_place_only_if_that_is_safe():
    body = bytes(range(96))
    whole = memoryview(body)

    assert [bytes(part) for part in received_tensors(whole, [96]) or ()] == [body]
    assert [bytes(part) for part in received_tensors(whole, [32, 0, 64]) or ()] == [body[:32], b"", body[32:]]
    assert received_tensors(whole[16:], [80]) is not None
    assert [address(part) % 16 for part in received_tensors(whole[:80], [80]) or ()] == [0]
    assert address(whole) == address((received_tensors(whole, [96]) or [b""])[0]), "not copied"
    for begin in (1, 8):  # not aligned, or not for the longest elements
        (copied,) = received_tensors(whole[begin:], [96 - begin]) or [memoryview(b"")]
        assert (bytes(copied), address(copied) % 16) == (body[begin:], 0)
    assert received_tensors(whole, [95]) is None, "a byte too many"
    assert received_tensors(whole, [97]) is None, "a byte is missing"
    assert received_tensors(memoryview(bytearray(body)), [96]) is None, "the caller could change it"
    assert received_tensors(whole[:0], [0]) is None


def test_the_first_time_a_call_is_computed_in_a_thread(server: Serving, wire: Wire, replayed: list[bool]):
    """Backends make tables and compile then, which may take long."""
    backend = Controlled()
    with use_backend(server.service, backend):
        threads: list[set[str]] = []
        for _ in range(3):
            backend.thread_names.clear()
            assert ask(wire, ones(3, 7), user="first").status == 200
            threads.append({name.partition("_")[0] for name in backend.thread_names})
    assert threads == [{"tensorpost-numpy"}, {"uvicorn"}, {"uvicorn"}]


# ---- what the cache holds --------------------------------------------------------------------------------------------


def test_a_full_cache_drops_its_oldest_entry():
    cache = BoundedCache[int, str](3)
    for key in (1, 2, 3):
        cache.put(key, "first")
    cache.put(2, "again")
    assert [*cache] == [1, 2, 3], "an entry that is replaced drops no other"
    cache.put(4, "fourth")
    assert cache.get(1) is None
    assert {key: cache[key] for key in cache} == {2: "again", 3: "first", 4: "fourth"}


def tile(rank: int, number: int) -> str:
    repeats = [1 + number % 7, 1 + number // 7, *[1] * (rank - 2)]
    return "/v1/operators/tile?repeats=" + ",".join(map(str, repeats))


def resize(rank: int, number: int) -> str:
    sizes = [2 + number % 7, 1 + number // 7, *[1] * (rank - 2)]
    return "/v1/onnx/Resize?opset=19&mode=linear&sizes=" + ",".join(map(str, sizes))


@pytest.mark.parametrize(
    ("url", "rank", "most"), [(tile, 2, 16_000), (tile, 8, 20_000), (resize, 2, 16_000), (resize, 64, 64_000)]
)
def test_a_cached_call_holds_little(url: Callable[[int, int], str], rank: int, most: int) -> None:
    """So many bytes a call, at most 512 calls: even with tensors of 64 dimensions the cache holds below 32 MiB."""
    body = npy_bytes(np.ones([2] + [1] * (rank - 1), np.float32))
    calls = 60
    with http_app(backend="numpy") as app:

        def post(numbers: range) -> None:
            for number in numbers:
                assert app.post(url(rank, number), body).status_code == 200

        post(range(calls))  # and whatever else is made once
        tracemalloc.start()
        try:
            post(range(calls, 2 * calls))
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert len(app.service.calls) == 2 * calls
        assert app.service.calls.most_entries == 512
    assert held / calls < most


def test_a_long_call_is_not_cached():
    with http_app() as app:
        spaces = "%20" * (MOST_KEY_BYTES // 3)
        for query, cached in (("repeats=1,2", 1), (f"repeats=1,{spaces}2", 1)):
            assert app.post(f"/v1/operators/tile?{query}", npy_bytes(ones(2, 2))).status_code == 200
            assert len(app.service.calls) == cached


@pytest.mark.parametrize("field", [(b"x y", b"1"), (b"x", b"1\r\nset-cookie: a"), (b"", b"1"), (b"x", b"\0")])
def test_a_header_field_cannot_end_its_line(field: tuple[bytes, bytes]):
    with pytest.raises(ValueError, match="is not a header field"):
        field_lines([field])


def test_later_calls_of_one_head_get_the_outputs_of_their_own_bytes_as_json() -> None:
    with serving() as server:
        answers = [
            server.ask(request_bytes("POST", TILE, npy_bytes(np.full((1, 3), number, np.float32)), {**NPY, **JSON_OUT}))
            for number in (1, 2, 3)
        ]
    assert [answer.status for answer in answers] == [200] * 3
    values = [json.loads(answer.body)["tensors"]["output"]["data"] for answer in answers]
    assert [np.ravel(value).tolist() for value in values] == [[number] * 6 for number in (1, 2, 3)]
