"""`DirectProtocol` over a transport without a network: every cut of the same bytes gives the same answers.

The transport does what asyncio's do: it reads nothing while it is paused, asks a `BufferedProtocol` for memory before
each read, and writes no further than that memory goes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bodies_app import BodiesApp, settle, sha
from tests.support.fake_transport import FakeTransport, answers, connect

from tensorpost_server.http.connection import direct_body, lingering_close
from tensorpost_server.http.connection.connection_states import TRANSITIONS, Event, Reading
from tensorpost_server.http.connection.protocol import DirectProtocol

SMALL = 32  # what counts as a large body here, so that byte by byte is affordable


@pytest.fixture(scope="module", autouse=True)
def large_bodies_are_small() -> Iterator[None]:
    usual = direct_body.DIRECT_BYTES
    direct_body.DIRECT_BYTES = SMALL
    yield
    direct_body.DIRECT_BYTES = usual


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


def body_of(length: int, salt: int) -> bytes:
    """Bytes that look like nothing else, and sometimes like a request."""
    text = b"POST /into/smuggled HTTP/1.1\r\nContent-Length: 40\r\n\r\n" if salt % 2 else b""
    return (text + bytes((salt * 31 + at * 7) % 256 for at in range(length)))[:length]


def request(
    how: str, body: bytes, *, number: int = 0, chunk: int = 0, expect: bool = False, more: bytes = b""
) -> bytes:
    """A request; chunked in chunks of that size, if one is given."""
    start = f"POST /{how}/{number} HTTP/1.1\r\nHost: test\r\n".encode() + more
    if expect:
        start += b"Expect: 100-continue\r\n"
    if chunk:
        parts = [body[at : at + chunk] for at in range(0, len(body), chunk)]
        chunks = [b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in parts]
        return start + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\nTrailer: x\r\n\r\n"
    return start + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def cuts(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The data in pieces of these sizes, over and over."""
    found: list[bytes] = []
    at = turn = 0
    while at < len(data):
        found.append(data[at : at + sizes[turn % len(sizes)]])
        at += len(found[-1])
        turn += 1
    return found


READS_ALL = ("receive", "into", "greedy", "pieces", "mixed")
LENGTHS = st.one_of(st.sampled_from([0, 1, SMALL - 1, SMALL, SMALL + 1]), st.integers(0, 5000))
REQUESTS = st.tuples(
    st.sampled_from([*READS_ALL, "stop", "refuse"]), LENGTHS, st.sampled_from([0, 0, 0, 1, 7, 400]), st.booleans()
)
CUTS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 6000)), min_size=1, max_size=8)


def check(app: BodiesApp, transport: FakeTransport, asked: Sequence[tuple[str, int, int, bool]]) -> None:
    """Every request has its answer, in order, about its own body."""
    found = [answer for answer in answers(bytes(transport.out)) if answer[0] != 100]
    assert [f"/{how}/{number}" for number, (how, *_) in enumerate(asked)] == app.seen
    assert [200] * len(asked) == [status for status, _, _ in found]
    for number, ((how, length, chunk, _), (_, _, text)) in enumerate(zip(asked, found, strict=True)):
        about, body = json.loads(text), body_of(length, number)
        assert about["straight"] == (how not in ("receive", "refuse") and not chunk and length >= SMALL)
        if how == "refuse":
            continue
        body = body[: length // 3] if how == "stop" and about["straight"] else body
        assert (len(body), sha(body)) == (about["length"], about["sha"])
    app.assert_untouched()


@given(asked=st.lists(REQUESTS, min_size=1, max_size=5), sizes=CUTS, reads_first=st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_cut_of_any_requests(
    runner: asyncio.Runner, asked: list[tuple[str, int, int, bool]], sizes: list[int], reads_first: bool
):
    app = BodiesApp()
    data = b"".join(
        request(how, body_of(length, number), number=number, chunk=chunk, expect=expect)
        for number, (how, length, chunk, expect) in enumerate(asked)
    )

    async def run() -> FakeTransport:
        transport = connect(app, reads_first=reads_first)
        assert await transport.deliver(cuts(data, sizes)) == b""
        return transport

    check(app, runner.run(run()), asked)


@pytest.mark.parametrize("how", [*READS_ALL, "stop", "refuse"])
@pytest.mark.parametrize("chunk", [0, 5])
def test_byte_by_byte(runner: asyncio.Runner, how: str, chunk: int):
    app = BodiesApp()
    asked = [(how, length, chunk, length == 100) for length in (0, 1, SMALL - 1, SMALL, SMALL + 1, 100)]
    data = b"".join(
        request(how, body_of(length, number), number=number, chunk=chunk, expect=expect)
        for number, (how, length, chunk, expect) in enumerate(asked)
    )

    async def run() -> FakeTransport:
        transport = connect(app)
        assert await transport.deliver(cuts(data, [1])) == b""
        return transport

    check(app, runner.run(run()), asked)


def test_a_large_body_is_received_straight_into_its_memory(runner: asyncio.Runner):
    app, body = BodiesApp(), body_of(5000, 2)
    data = request("into", body)

    async def run() -> FakeTransport:
        transport = connect(app)
        await transport.deliver([data[:-5000], *cuts(body, [900])])
        return transport

    transport = runner.run(run())
    assert transport.straight == 5000, "some of it was copied on its way"
    assert json.loads(answers(bytes(transport.out))[0][2])["sha"] == sha(body)


@given(at=st.integers(0, 5200), how=st.sampled_from(READS_ALL), sizes=CUTS)
@settings(max_examples=150, deadline=None)
def test_a_caller_that_hangs_up_at_any_byte(runner: asyncio.Runner, at: int, how: str, sizes: list[int]):
    app = BodiesApp()
    data = request(how, body_of(5000, 1))
    at = min(at, len(data) - 1)

    async def run() -> None:
        transport = connect(app)
        await transport.deliver(cuts(data[:at], sizes))
        transport.lose()
        await settle(40)

    runner.run(run())
    begun = at >= len(data) - 5000
    assert [f"/{how}/0"] * begun == app.seen == app.ended == app.gone
    app.assert_untouched()


def test_memory_is_left_alone_after_a_timeout_and_the_connection_goes_on(runner: asyncio.Runner):
    app, body = BodiesApp(timeout=0.05), body_of(1000, 1)

    async def run() -> FakeTransport:
        transport = connect(app)
        data = request("into", body)
        await transport.deliver([data[:-400]])
        await asyncio.sleep(0.1)
        app.after_return.append((app.lent[0], bytes(app.lent[0].block)))
        assert await transport.deliver([data[-400:] + request("into", body, number=1)]) == b""
        return transport

    found = [json.loads(text) for _, _, text in answers(bytes(runner.run(run()).out))]
    assert [each["length"] for each in found] == [600, 1000]
    assert sha(body) == found[1]["sha"]
    app.assert_untouched()


def test_memory_is_left_alone_after_a_cancellation(runner: asyncio.Runner):
    app, body = BodiesApp(), body_of(1000, 1)

    async def run() -> FakeTransport:
        transport = connect(app)
        data = request("cancel", body)
        await transport.deliver([data[:-400]])
        await asyncio.sleep(0.2)
        assert len(app.after_return) == 1
        assert await transport.deliver([data[-400:] + request("into", body, number=1)]) == b""
        return transport

    assert len(answers(bytes(runner.run(run()).out))) == 2
    app.assert_untouched()


def test_over_tls_the_extension_is_not_offered(runner: asyncio.Runner):
    app = BodiesApp()

    async def run() -> FakeTransport:
        transport = connect(app, tls=True)
        await transport.deliver([request("into", body_of(500, 1)) * 2])
        return transport

    found = [json.loads(text) for _, _, text in answers(bytes(runner.run(run()).out))]
    assert [(each["length"], each["straight"]) for each in found] == [(500, False)] * 2


# ---- what is refused -------------------------------------------------------------------------------------------------


CHUNKED = b"POST /receive HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("step", [1, 100, 100_000])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", id="the target"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n", id="one field"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 1000 + b"\r\n", id="many fields"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"x" * 5000, id="a name"),
        pytest.param(b"\r\n" * 2500, id="blank lines"),
        pytest.param(
            request("receive", b"abc") + b"GET / HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n", id="the second"
        ),
        pytest.param(CHUNKED + b"0\r\nX: " + b"a" * 5000, id="a trailer"),
        pytest.param(CHUNKED + b"0\r\n" + b"X: a\r\n" * 1000, id="many trailers"),
        pytest.param(CHUNKED + b"1;" + b"a" * 5000, id="a chunk extension"),
    ],
)
def test_a_head_without_end(runner: asyncio.Runner, data: bytes, step: int):
    app = BodiesApp()

    async def run() -> FakeTransport:
        transport = connect(app, head_bytes=2000)
        # What comes in the same read as the end of something else is not counted; a read has an end of its own.
        begin = len(CHUNKED) if data.startswith(CHUNKED) else 0
        await transport.deliver([*cuts(data[:begin], [step]), *cuts(data[begin:], [step])])
        return transport

    transport = runner.run(run())
    status, fields, text = answers(bytes(transport.out))[-1]
    assert (status, fields["connection"]) == (431, "close")
    assert b"2,000 bytes" in text or (b"X: a\r\n" * 1000 in data and b"100 fields" in text)
    assert transport.eof


def test_a_head_of_the_largest_size_is_served(runner: asyncio.Runner):
    # target 7, fields 4 + 4 + 4 and 1 + 1976 + 4
    head = b"GET /refuse HTTP/1.1\r\nHost: test\r\nX: " + b"a" * 1976 + b"\r\n\r\n"

    async def run(data: bytes) -> int:
        transport = connect(BodiesApp(), head_bytes=2000)
        await transport.deliver([data])
        return answers(bytes(transport.out))[0][0]

    assert runner.run(run(head)) == 200
    assert runner.run(run(head.replace(b"X: ", b"X: a"))) == 431


def test_trailers_do_not_become_header_fields(runner: asyncio.Runner):
    app = BodiesApp()
    data = request("receive", b"abc", chunk=2).replace(b"Trailer: x", b"Authorization: somebody")

    async def run() -> None:
        await connect(app).deliver([data])

    runner.run(run())
    assert app.seen
    assert [name for name, _ in app.headers] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("later", [False, True])
def test_a_bad_request_does_not_spoil_the_answer_before_it(runner: asyncio.Runner, later: bool):
    app = BodiesApp()
    good = request("wait", b"")

    async def run() -> FakeTransport:
        transport = connect(app)
        await transport.deliver([good, b"no request\r\n\r\n"] if later else [good + b"no request\r\n\r\n"])
        assert not transport.out
        app.go_on.set()
        await asyncio.sleep(0.05)
        return transport

    transport = runner.run(run())
    assert [status for status, _, _ in answers(bytes(transport.out))] == [200, 400]
    assert transport.eof


def test_what_follows_a_request_to_close_is_neither_run_nor_answered(runner: asyncio.Runner):
    app = BodiesApp()
    last = request("wait", b"", more=b"Connection: close\r\n")

    async def run(following: bytes) -> FakeTransport:
        transport = connect(app)
        await transport.deliver([last + following])
        app.go_on.set()
        await asyncio.sleep(0.05)
        return transport

    for following in (b"no request\r\n\r\n", request("refuse", b"")):
        app.go_on.clear()
        transport = runner.run(run(following))
        assert [status for status, _, _ in answers(bytes(transport.out))] == [200]
        assert transport.closing
    assert app.seen == ["/wait/0"] * 2


def test_a_broken_chunk_ends_its_request(runner: asyncio.Runner):
    app = BodiesApp()
    data = b"POST /receive HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"

    async def run() -> FakeTransport:
        transport = connect(app)
        await transport.deliver([data])
        return transport

    transport = runner.run(run())
    assert [status for status, _, _ in answers(bytes(transport.out))] == [400]
    assert app.gone == ["/receive"]


@pytest.mark.parametrize("step", [1, 60, 10_000])
@pytest.mark.parametrize("length", [3, SMALL, 500])
def test_an_upgrade_that_is_not_taken_has_its_body(runner: asyncio.Runner, step: int, length: int):
    # The parser stops behind such a head; the body must not be read as a request.
    app, body = BodiesApp(), body_of(length, 1)
    more = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    data = request("into", body, more=more) + request("into", body, number=1)

    async def run() -> FakeTransport:
        transport = connect(app)
        assert await transport.deliver(cuts(data, [step])) == b""
        return transport

    found = answers(bytes(runner.run(run()).out))
    assert [status for status, _, _ in found] == [200, 200]
    assert [sha(body)] * 2 == [json.loads(text)["sha"] for _, _, text in found]


def test_an_upgrade_with_a_chunked_body_is_refused(runner: asyncio.Runner):
    app = BodiesApp()

    async def run() -> FakeTransport:
        transport = connect(app)
        more = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
        await transport.deliver([request("receive", request("refuse", b""), chunk=1000, more=more)])
        return transport

    transport = runner.run(run())
    assert [status for status, _, _ in answers(bytes(transport.out))] == [400]
    assert app.seen == []


# ---- who takes too long ----------------------------------------------------------------------------------------------


def test_who_hangs_up_is_gone_for_the_request_that_runs_and_those_sent_ahead(runner: asyncio.Runner):
    app = BodiesApp()

    async def run() -> None:
        transport = connect(app)
        await transport.deliver([request("endless", b"") + request("refuse", b"", number=1)])
        transport.lose()
        await settle(40)

    runner.run(run())
    assert ["/endless/0"] == app.seen == app.gone


def test_the_body_of_a_refused_request_is_discarded_up_to_a_bound(runner: asyncio.Runner):
    body = body_of(900, 1)

    async def run(data: bytes, pieces: int) -> FakeTransport:
        transport = connect(BodiesApp(), drain_bytes=1000)
        await transport.deliver(cuts(data, [pieces]))
        return transport

    kept = runner.run(run(request("refuse", body) + request("refuse", b"", number=1), 100))
    assert [fields.get("connection", "keep") for _, fields, _ in answers(bytes(kept.out))] == ["keep", "keep"]
    assert not kept.closing

    ended = runner.run(run(request("refuse", body * 3), 100))
    ((status, fields, _),) = answers(bytes(ended.out))
    assert (status, fields["connection"]) == (200, "close")
    assert ended.eof
    assert ended.aborted, "the rest was read for ever"

    chunked = runner.run(run(request("refuse", body * 3, chunk=50), 100))
    assert chunked.aborted


def test_the_rest_of_an_unread_body_is_waited_for_a_moment_only(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lingering_close, "LINGER_SECONDS", 0.05)

    async def run() -> FakeTransport:
        transport = connect(BodiesApp(), drain_bytes=1000)
        await transport.deliver([request("refuse", body_of(5000, 1))[:-4000]])
        assert transport.eof
        assert not transport.closing
        await asyncio.sleep(0.1)
        return transport

    assert runner.run(run()).aborted


def test_the_rate_of_a_body(runner: asyncio.Runner):
    # Over two times 0.25 s, 100 bytes a second are 50 bytes.
    async def run(step: int, pause: float) -> FakeTransport:
        transport = connect(BodiesApp(), receive_seconds=0.25, bytes_per_second=100)
        data = request("into", body_of(600, 1))
        await transport.deliver([data[:-600]])
        for piece in cuts(data[-600:], [step]):
            await transport.deliver([piece])
            await asyncio.sleep(pause)
            if transport.closing:
                break
        return transport

    slow, fast = runner.run(run(1, 0.04)), runner.run(run(20, 0.02))
    assert slow.aborted
    assert not fast.aborted
    assert [status for status, _, _ in answers(bytes(fast.out))] == [200]


def test_the_rate_of_an_answer(runner: asyncio.Runner):
    app = BodiesApp()

    async def run(per_look: int) -> FakeTransport:
        transport = connect(app, send_seconds=0.15, bytes_per_second=1000)
        await transport.deliver([request("endless", b"")])
        transport.unsent = 100_000
        transport.protocol.pause_writing()
        for _ in range(45):
            await asyncio.sleep(0.01)
            transport.unsent -= per_look
        return transport

    slow, stopped, fast = runner.run(run(2)), runner.run(run(0)), runner.run(run(1000))
    assert (slow.aborted, stopped.aborted, fast.aborted) == (True, True, False)
    assert len(app.gone) == 2


def test_what_is_left_of_an_answer_goes_with_its_application(runner: asyncio.Runner):
    # The application gave up; a caller that does not read must not keep the socket.
    async def run() -> FakeTransport:
        transport = connect(BodiesApp(), send_seconds=0.1)
        await transport.deliver([request("endless", b"")])
        transport.unsent = 100_000
        transport.closing = True
        await asyncio.sleep(0.1)
        return transport

    assert runner.run(run()).aborted


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", None), (b"\r\n", None), (b"GET / HTTP/1.1\r\nX: ", 408), (request("refuse", b"") + b"GET /", 408)],
    ids=["nothing", "a blank line", "half a head", "half a second head"],
)
def test_a_head_has_its_time(runner: asyncio.Runner, data: bytes, status: int | None):
    async def run() -> FakeTransport:
        transport = connect(BodiesApp(), head_seconds=0.1)
        cut = data.rfind(b"GET")
        await transport.deliver([piece for piece in (data[:cut], data[cut:]) if piece])
        for _ in range(20):
            await asyncio.sleep(0.02)
            if transport.closing or transport.eof:
                break
            if status == 408:
                await transport.deliver([b"x"])  # a byte now and then does not help
        return transport

    transport = runner.run(run())
    assert transport.closing or transport.eof
    found = [each for each, _, _ in answers(bytes(transport.out))]
    assert found[-1:] == [408] if status else 408 not in found


def test_an_idle_connection_and_one_that_is_worked_for_have_no_rate(runner: asyncio.Runner):
    app = BodiesApp()

    async def run() -> tuple[FakeTransport, FakeTransport]:
        brief: dict[str, Any] = {"head_seconds": 0.05, "receive_seconds": 0.02, "send_seconds": 0.02}
        idle, waiting = connect(app, **brief), connect(app, **brief)
        await idle.deliver([request("refuse", b"")])
        await waiting.deliver([request("wait", body_of(500, 1))[:-400]])
        await asyncio.sleep(0.3)
        return idle, waiting

    idle, waiting = runner.run(run())
    assert not idle.closing, "uvicorn's keep-alive timeout is longer"
    assert not waiting.closing, "that the application does not read is not the caller's fault"


def test_the_keep_alive_timer_goes_with_a_connection_that_was_reset(runner: asyncio.Runner):
    async def run() -> Any:
        transport = connect(BodiesApp())
        await transport.deliver([request("refuse", b"")])
        assert transport.protocol.timeout_keep_alive_task is not None
        protocol = transport.protocol
        transport.lose()
        return protocol

    assert runner.run(run()).timeout_keep_alive_task is None


# ---- the states ------------------------------------------------------------------------------------------------------


def test_every_state_is_reached_and_only_the_last_one_is_left_by_nothing():
    table = TRANSITIONS
    reached, left = {Reading.IDLE, *table.values()}, {state for state, _ in table}
    assert reached == set(Reading)
    assert left == set(Reading) - {Reading.LINGERING}
    assert {event for _, event in table} == set(Event)


def test_the_transitions_of_a_connection(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch):
    """Every row of the table happens, in the order in which a caller would expect it."""
    events: list[tuple[Reading, Event]] = []
    usual = DirectProtocol._change

    def noted(self: DirectProtocol, event: Event) -> None:
        events.append((self._reading, event))
        usual(self, event)

    monkeypatch.setattr(DirectProtocol, "_change", noted)

    async def run() -> None:
        transport = connect(BodiesApp(), drain_bytes=1000)
        await transport.deliver([request("into", body_of(500, 1)), request("receive", b"abc"), b"no request\r\n\r\n"])
        assert transport.eof
        transport = connect(BodiesApp(), drain_bytes=1000)
        await transport.deliver([request("refuse", bytes(2000))[:200]])
        assert transport.eof

    runner.run(run())
    begins = (Reading.IDLE, Event.REQUEST_BEGINS)
    counted = [begins, (Reading.PARSED, Event.DIRECT_BODY)]
    answered = (Reading.PARSED, Event.ALL_ANSWERED)
    assert events == [
        *counted, (Reading.DIRECT, Event.BODY_ENDS), answered,
        begins, answered,
        begins, (Reading.PARSED, Event.REFUSE), (Reading.REFUSED, Event.LAST_RESPONSE),
        *counted, (Reading.DIRECT, Event.LAST_RESPONSE),
    ]  # fmt: skip
    of_replays = {Event.KNOWN_HEAD, Event.REPLAY_ENDS}  # test_received_replays.py
    assert set(events) == {row for row in TRANSITIONS if row[1] not in of_replays}
