"""Known requests whose bodies arrive in parts: received for their replay, or the application's after all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send
from tests.support.bodies_app import Lent, settle
from tests.support.fake_transport import FakeTransport, answers, connect
from tests.support.http_app import (
    NPY,
    Serving,
    Wire,
    eventually,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
)
from tests.support.replays import count_replays
from tests.support.request_records import Records
from uvicorn.server import ServerState

from tensorpost_server import commands
from tensorpost_server.http.connection.connection_budget import is_idle
from tensorpost_server.http.connection.connection_states import TRANSITIONS, Event, Reading
from tensorpost_server.http.connection.protocol import DirectProtocol
from tensorpost_server.http.connection.whole_messages import whole_messages
from tensorpost_server.http.observability.request_record import CLIENT_DISCONNECTED

# ---- the protocol, with an application that counts -------------------------------------------------------------------


class Reception:
    """Memory between guards."""

    def __init__(self, length: int, answer: Callable[[bytes], tuple[bytes, bytes, int] | None]) -> None:
        self.lent = Lent(length)
        self.memory = self.lent.view
        self.answers = self.ends = 0
        self._answer = answer

    def answer(self) -> tuple[bytes, bytes, int] | None:
        self.answers += 1
        return self._answer(bytes(self.memory))

    def end(self) -> None:
        self.ends += 1


class Echo:
    """Answers with a body in capitals; a replay does so in brackets.

    Attributes:
        calls: requests that came here.
        bodies: the bodies of those, as far as they came.
        gone: how many of their callers hung up.
        receptions: memory that was handed out.
    """

    def __init__(self) -> None:
        self.calls = self.gone = 0
        self.bodies: list[bytes] = []
        self.receptions: list[Reception] = []
        self.refuses = self.declines = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.bodies.append(body)
                self.gone += 1
                return
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        whole = whole_messages(scope)
        assert whole is not None
        length = b"%d" % len(body)
        if not whole.send(b"content-length: %b\r\n" % length, body.upper(), self.replay, self.receive):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
            await send({"type": "http.response.body", "body": body.upper()})

    def replay(self, body: bytes, _address: str | None) -> tuple[bytes, bytes, int] | None:
        return None if self.declines else (b"content-length: %d\r\n" % (len(body) + 2), b"[%b]" % body, 1)

    def receive(self, length: int, _address: str | None) -> Reception | None:
        if self.refuses:
            return None
        self.receptions.append(Reception(length, lambda body: self.replay(body, None)))
        return self.receptions[-1]

    def assert_ended(self) -> None:
        """All memory that was handed out is let go of, and nothing was written beside it."""
        for reception in self.receptions:
            reception.lent.assert_guards()
            assert reception.ends
            assert reception.answers <= 1


def body_of(size: int, seed: int = 0) -> bytes:
    return bytes(np.random.default_rng(seed).integers(97, 123, size, np.uint8))


def post(body: bytes, **fields: Any) -> bytes:
    return request_bytes("POST", "/echo", body, fields)


def head_of(data: bytes) -> int:
    return data.index(b"\r\n\r\n") + 4


def said(transport: FakeTransport) -> list[bytes]:
    found = answers(bytes(transport.out))
    assert [status for status, _, _ in found] == [200] * len(found)
    return [body for _, _, body in found]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


SMALL, LARGE = 700, 100_000  # bodies below and above what is counted and not parsed


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("cuts", [[0], [1], [0, 1, 2], [0, 300], [-1], [5, 600]], ids=str)
def test_a_known_head_takes_its_body_in_parts(
    runner: asyncio.Runner, size: int, cuts: list[int], *, reads_first: bool
) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        first, second, third = (body_of(size, seed) for seed in range(3))
        await connect(app, state=state).deliver([post(first)])
        assert app.calls == 1
        transport = connect(app, state=state, reads_first=reads_first)
        for body in (second, third):
            data = post(body)
            ends = [0, *[head_of(data) + cut % size for cut in cuts], len(data)]
            await transport.deliver([data[begin:end] for begin, end in pairwise(ends)])
        assert said(transport) == [b"[%b]" % second, b"[%b]" % third]
        assert app.calls == 1
        assert len(app.receptions) == 2
        assert state.total_requests == 3
        assert transport.straight == sum(size - cuts[0] % size for _ in range(2)), "all but the first read, uncopied"
        assert transport.protocol.pace.arrived_bytes == len(post(second)) + len(post(third))
        app.assert_ended()

    runner.run(run())


@pytest.mark.parametrize("reads_first", [False, True])
def test_requests_behind_such_a_body(runner: asyncio.Runner, *, reads_first: bool) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        await connect(app, state=state).deliver([post(b"abc")])
        transport = connect(app, state=state, reads_first=reads_first)
        data = post(b"def") + post(b"ghi") + post(b"other") + post(b"jkl")
        cut = head_of(data) + 1
        await transport.deliver([data[:cut], data[cut:]])
        assert [body.strip(b"[]").lower() for body in said(transport)] == [b"def", b"ghi", b"other", b"jkl"]
        assert said(transport)[0] == b"[def]"
        app.assert_ended()

    runner.run(run())


def test_the_transitions_of_a_replay(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[Reading, Event]] = []
    usual = DirectProtocol._change

    def noted(self: DirectProtocol, event: Event) -> None:
        events.append((self._reading, event))
        usual(self, event)

    async def run() -> None:
        app, state = Echo(), ServerState()
        await connect(app, state=state).deliver([post(b"abc")])
        monkeypatch.setattr(DirectProtocol, "_change", noted)
        for app.declines in (False, True):
            data = post(b"def")
            await connect(app, state=state).deliver([data[: head_of(data)], b"def"])

    runner.run(run())
    replayed = [(Reading.IDLE, Event.KNOWN_HEAD), (Reading.REPLAYED, Event.REPLAY_ENDS)]
    given_up = [(Reading.IDLE, Event.REQUEST_BEGINS), (Reading.PARSED, Event.ALL_ANSWERED)]
    assert events == [*replayed, *replayed, *given_up]
    assert TRANSITIONS.keys() >= {*events}


@pytest.mark.parametrize("arrived", [0, 1, 50_000])
@pytest.mark.parametrize("how", ["lost", "end of the stream"])
def test_a_caller_who_leaves_meanwhile(runner: asyncio.Runner, how: str, arrived: int) -> None:
    """The application sees what it would have seen without the replay."""

    async def run() -> None:
        app, state = Echo(), ServerState()
        await connect(app, state=state).deliver([post(body_of(LARGE))])
        transport = connect(app, state=state)
        data = post(body_of(LARGE, 1))
        cut = head_of(data) + arrived
        await transport.deliver([data[: head_of(data)], *([data[head_of(data) : cut]] if arrived else [])])
        assert app.calls == 1
        assert not is_idle(transport.protocol._connection), "it does not make room for a new connection"
        if how == "lost":
            transport.lose()
        else:
            assert not transport.protocol.eof_received()
            transport.close()
        await settle()
        assert (app.calls, app.gone) == (2, 1)
        assert not transport.out
        assert body_of(LARGE, 1).startswith(app.bodies[-1])
        app.assert_ended()

    runner.run(run())


def test_a_body_that_does_not_come_at_once_is_the_applications(runner: asyncio.Runner) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        body = body_of(LARGE, 1)
        await connect(app, state=state, receive_seconds=0.2).deliver([post(body_of(LARGE))])
        for ends in (True, False):
            transport = connect(app, state=state, receive_seconds=0.2)
            data = post(body)
            cut = head_of(data) + 300
            await transport.deliver([data[: cut - 100], data[cut - 100 : cut]])
            calls = app.calls
            for _ in range(200):
                if app.calls > calls:
                    break
                await asyncio.sleep(0.01)
            assert app.calls == calls + 1
            if ends:
                await transport.deliver([data[cut : cut + 1000], data[cut + 1000 :]])
                assert said(transport) == [body.upper()]
            else:
                for _ in range(200):
                    if transport.closing:
                        break
                    await asyncio.sleep(0.01)
                assert transport.aborted, "the limits of a body that is slow hold"
        app.assert_ended()

    runner.run(run())


@pytest.mark.parametrize("why", ["no memory", "declined", "a caller that does not read"])
def test_what_cannot_be_replayed_goes_to_the_application(runner: asyncio.Runner, why: str) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        await connect(app, state=state).deliver([post(body_of(LARGE))])
        transport = connect(app, state=state)
        app.refuses, app.declines = why == "no memory", why == "declined"
        data, body = post(body_of(LARGE, 1)), body_of(LARGE, 1)
        cut = head_of(data) + 10
        await transport.deliver([data[:cut]])
        if why == "a caller that does not read":
            transport.protocol.pause_writing()
        await transport.deliver([data[cut : cut + 50_000], data[cut + 50_000 :]])
        transport.protocol.resume_writing()
        await settle()
        assert app.bodies[1:] == [body]
        assert len(app.receptions) == (0 if why == "no memory" else 1)
        app.assert_ended()

    runner.run(run())


def test_a_caller_that_waits_for_100_continue_is_told_to_go_on(runner: asyncio.Runner) -> None:
    async def run() -> None:
        app = Echo()
        transport = connect(app)
        for seed in range(2):
            data = post(body_of(LARGE, seed), expect="100-continue")
            await transport.deliver([data[: head_of(data)], data[head_of(data) :]])
        assert [status for status, _, _ in answers(bytes(transport.out))] == [100, 200, 100, 200]
        assert app.calls == 2

    runner.run(run())


def test_with_tls_the_application_receives(runner: asyncio.Runner) -> None:
    async def run() -> None:
        app = Echo()
        transport = connect(app, tls=True)
        for seed in range(2):
            data = post(body_of(LARGE, seed))
            await transport.deliver([data[: head_of(data)], data[head_of(data) :]])
        assert app.calls == 2
        assert not app.receptions

    runner.run(run())


def test_an_answer_before_the_end_of_a_body_is_not_written_whole(runner: asyncio.Runner) -> None:
    taken: list[bool] = []

    async def hasty(scope: Scope, _receive: Receive, send: Send) -> None:
        whole = whole_messages(scope)
        assert whole is not None
        taken.append(whole.send(b"content-length: 2\r\n", b"no"))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    async def run() -> None:
        data = post(body_of(LARGE))
        transport = connect(hasty)
        await transport.deliver([data[:1000], data[1000:]])
        assert said(transport) == [b"no"]

    runner.run(run())
    assert taken == [False]


def test_a_connection_is_not_idle_meanwhile(runner: asyncio.Runner) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        transport = connect(app, state=state)
        protocol = transport.protocol
        protocol.timeout_keep_alive = 0.1
        await transport.deliver([post(body_of(SMALL))])
        data = post(body_of(SMALL, 1))
        await transport.deliver([data[:-100]])
        await asyncio.sleep(0.3)
        assert not transport.closing
        await transport.deliver([data[-100:]])
        assert len(said(transport)) == 2
        while not transport.closing:  # in the end it is
            await asyncio.sleep(0.05)

    runner.run(run())


def test_a_server_that_stops_answers_first(runner: asyncio.Runner) -> None:
    async def run() -> None:
        app, state = Echo(), ServerState()
        body = body_of(LARGE, 1)
        await connect(app, state=state).deliver([post(body_of(LARGE))])
        transport = connect(app, state=state)
        data = post(body)
        await transport.deliver([data[:5000]])
        transport.protocol._connection.shutdown()
        await transport.deliver([data[5000:]])
        assert bytes(transport.out).endswith(body.upper())
        assert transport.closing
        app.assert_ended()

    runner.run(run())


@pytest.mark.parametrize("leaves", [False, True])
def test_answers_take_turns(runner: asyncio.Runner, *, leaves: bool) -> None:
    """Beside many connections, few are computed in a turn of the event loop."""

    async def run() -> None:
        app, state = Echo(), ServerState()
        bodies = [body_of(SMALL, seed) for seed in range(20)]
        await connect(app, state=state).deliver([post(bodies[0])])
        transports = [connect(app, state=state) for _ in bodies]
        for transport, body in zip(transports, bodies, strict=True):
            data = post(body)
            await transport.deliver([data[: head_of(data) + 1]])
        for transport, body in zip(transports, bodies, strict=True):
            assert transport.read(body[1:]) == SMALL - 1
        answered = [bool(transport.out) for transport in transports]
        assert 0 < sum(answered) < 5
        if leaves:
            transports[-1].lose()
        await settle(60)
        for transport, body in [*zip(transports, bodies, strict=True)][: -1 if leaves else None]:
            assert said(transport) == [b"[%b]" % body]
        assert not (leaves and transports[-1].out)
        assert app.calls == 1
        app.assert_ended()

    runner.run(run())


@pytest.mark.parametrize("ends", [False, True])
def test_what_comes_while_an_answer_waits_for_its_turn(runner: asyncio.Runner, *, ends: bool) -> None:
    """On Windows, where a read may go beyond the body; then the caller sends no more."""

    async def run() -> None:
        app, state = Echo(), ServerState()
        body = body_of(SMALL)
        await connect(app, state=state).deliver([post(body)])
        transports = [connect(app, state=state, reads_first=True) for _ in range(20)]
        data = post(body)
        for transport in transports:
            await transport.deliver([data[: head_of(data) + 1]])
        for transport in transports:
            transport.read(body[1:] + (b"" if ends else post(body)))
        last = transports[-1]
        assert not last.out
        if ends:
            assert last.protocol.eof_received(), "it stays open until the answer is written"
        await settle(60)
        assert said(last)[0] == b"[%b]" % body
        assert last.closing is ends
        for transport in transports:
            assert said(transport) == [b"[%b]" % body] * (1 if ends else 2)
        assert app.calls == 1
        app.assert_ended()

    runner.run(run())


# ---- the service -----------------------------------------------------------------------------------------------------

RESAMPLE = "/v1/operators/resample?interpolation_mode=NEAREST_NEIGHBOR&output_sizes=64"


def tensor(seed: int) -> Any:
    return np.random.default_rng(seed).random(1 << 16, np.float32)  # 256 KiB


def in_parts(wire: Wire, data: bytes, cut: int) -> None:
    """Send the head and `cut` bytes of the body, and what is left when they have arrived."""
    at = head_of(data) + cut
    wire.send(data[:at])
    time.sleep(0.02)
    wire.send(data[at:])


def resample(x: Any, **fields: str) -> bytes:
    return request_bytes("POST", RESAMPLE, npy_bytes(x), {**NPY, **fields})


def picked(x: Any) -> Any:
    return x[(np.arange(64) * 2 + 1) * (len(x) // 64) // 2]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(memory_bytes=1 << 26, backend="numpy") as found:
        yield found


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each body that a replay was asked to answer, whether it did; no body is given up because it is slow."""
    monkeypatch.setattr(DirectProtocol, "check", lambda _protocol, _now: None)
    return count_replays(monkeypatch)


@pytest.mark.parametrize("cut", [0, 128, 1000])
def test_the_service_replays_bodies_in_parts(server: Serving, replayed: list[bool], cut: int) -> None:
    records = Records()
    usual, server.service.records = server.service.records, records
    try:
        with server.wire() as wire:
            for seed in range(5):
                x = tensor(seed)
                in_parts(wire, resample(x, user=f"cut {cut}"), cut)
                answer = wire.answer()
                assert answer.status == 200, answer.body
                np.testing.assert_array_equal(npy_array(answer.body), picked(x))
        eventually(lambda: len(records.found) == 5, "all requests are recorded")
    finally:
        server.service.records = usual
    assert all(replayed)
    assert len(replayed) >= 3, "all but the first, which a thread computes, and the second"
    last = records.found[-1]
    assert last.received_bytes == 128 + (1 << 18)
    assert (last.status, last.operator, last.caller) == (200, "RESAMPLE", records.found[0].caller)
    assert last.stages["receive"] >= 15, "milliseconds until the second part came"
    assert last.seconds >= 0.015
    eventually(server.idle, "no memory is in use")


def test_the_memory_of_a_call_is_reserved_while_it_is_received(server: Serving, replayed: list[bool]) -> None:
    admission = server.service.admission
    data = resample(tensor(0), user="reserved")
    with server.wire() as wire:
        for _ in range(2):
            in_parts(wire, data, 0)
            assert wire.answer().status == 200
        wire.send(data[: head_of(data) + 100])
        eventually(lambda: admission.requests_in_flight == 1, "it is admitted")
        assert admission.bytes_in_flight >= (1 << 18) + 128 + 256, "body and output"
        others = admission.admit(admission.memory_bytes - admission.bytes_in_flight)
        wire.send(data[head_of(data) + 100 :])
        assert wire.answer().status == 200
        others.release()
        eventually(server.idle, "no memory is in use")
        assert replayed
        assert all(replayed)

        taken = admission.admit((1 << 26) - 1000)
        before = len(replayed)
        in_parts(wire, data, 0)
        assert wire.answer().status == 429
        taken.release()
        assert len(replayed) == before
        in_parts(wire, data, 0)
        assert wire.answer().status == 200


def test_the_last_place_for_a_request_is_enough(replayed: list[bool]) -> None:
    with serving(backend="numpy", max_requests=1) as server, server.wire() as wire:
        for seed in range(4):
            in_parts(wire, resample(tensor(seed)), 0)
            assert wire.answer().status == 200
    assert replayed
    assert all(replayed)


def test_another_head_of_the_same_length(server: Serving, replayed: list[bool]) -> None:
    """The head of the body is looked at when all of it is there."""
    x = tensor(1)
    with server.wire() as wire:
        for shape in ((1 << 16,), (1 << 16,), (1, 1 << 16), (1, 1 << 16), (1 << 16,)):
            in_parts(wire, resample(x.reshape(shape), user="another"), 0)
            answer = wire.answer()
            if len(shape) == 1:
                np.testing.assert_array_equal(npy_array(answer.body), picked(x))
            else:
                assert answer.status == 422, "output_sizes has one number, and the tensor two dimensions"
    assert [each for each in replayed if not each] == [False], "it is not received in vain twice"
    eventually(server.idle, "no memory is in use")


def test_a_caller_who_leaves_is_recorded(server: Serving) -> None:
    records = Records()
    usual, server.service.records = server.service.records, records
    data = resample(tensor(0), user="leaves")
    try:
        with server.wire() as wire:
            for _ in range(2):
                in_parts(wire, data, 0)
                assert wire.answer().status == 200
            wire.send(data[: head_of(data) + 100])
            eventually(lambda: server.service.admission.requests_in_flight == 1, "it is admitted")
        eventually(lambda: len(records.found) == 3, "it is recorded")
    finally:
        server.service.records = usual
    assert records.found[-1].reason == CLIENT_DISCONNECTED
    server.assert_serves_on()


@pytest.mark.parametrize("fields", [{"prefer": "wait=5"}, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}], ids=str)
def test_calls_with_a_time_limit_or_a_trace_are_the_applications(
    server: Serving, replayed: list[bool], fields: dict[str, str]
) -> None:
    with server.wire() as wire:
        for seed in range(3):
            in_parts(wire, resample(tensor(seed), **fields), 0)
            assert wire.answer().status == 200
    assert replayed == []


# ---- keys ------------------------------------------------------------------------------------------------------------


def look_again(server: Serving) -> None:
    """Let the keys file be looked at for the next request, not a second later."""
    watched = server.service.access._file
    assert watched is not None
    watched.next_look = 0.0


def test_a_key_is_looked_at_before_and_after_the_body(tmp_path: Path, replayed: list[bool]) -> None:
    file = tmp_path / "keys.jsonl"
    anna, ben = (commands.add_key(file, name, scopes=("run",)) for name in ("anna", "ben"))
    with serving(backend="numpy", keys_file=file) as server:
        for name, key, when in (("anna", anna, "meanwhile"), ("ben", ben, "before")):
            data = resample(tensor(0), authorization=f"Bearer {key}")
            with server.wire() as wire:
                for _ in range(3):
                    in_parts(wire, data, 0)
                    assert wire.answer().status == 200
                assert replayed
                assert all(replayed)
                replayed.clear()
                cut = head_of(data) + 100
                if when == "meanwhile":
                    wire.send(data[:cut])
                    eventually(lambda: server.service.admission.requests_in_flight == 1, "it is admitted")
                commands.revoke_key(file, name)
                look_again(server)
                if when == "before":
                    wire.send(data[:cut])
                    time.sleep(0.02)
                wire.send(data[cut:])
                assert wire.answer().status == 401
            assert replayed == []
        eventually(server.idle, "no memory is in use")


def test_a_key_with_a_quota_of_bytes_is_the_applications(tmp_path: Path, replayed: list[bool]) -> None:
    file = tmp_path / "keys.jsonl"
    requests = commands.add_key(file, "requests", scopes=("run",), requests_per_minute=3)
    octets = commands.add_key(file, "bytes", scopes=("run",), bytes_per_minute=600_000)
    with serving(backend="numpy", keys_file=file) as server, server.wire() as wire:
        for key in (requests, octets):
            replayed.clear()
            found: list[int] = []
            for seed in range(4):
                in_parts(wire, resample(tensor(seed), authorization=f"Bearer {key}"), 0)
                found.append(wire.answer().status)
            assert found == [200, 200, 200, 429]
            assert bool(replayed) is (key == requests)
