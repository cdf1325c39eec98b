"""Bodies over real sockets: our protocol class and uvicorn's two, each on both event loops, do the same.

What only ours promises is in the tests that take `direct`. The shapes of requests are those that users of uvicorn, h11,
gunicorn and others met and reported: RFC 9112, sections 6 and 11.2, says what to do with them.
"""

from __future__ import annotations

import functools
import json
import random
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.bodies_app import Serving, serve_bodies, sha
from tests.support.http_app import PATIENCE, Wire, eventually, request_bytes

from tensorpost_server.http.connection.direct_body import DIRECT_BYTES
from tensorpost_server.http.connection.protocol import DirectProtocol, protocol_class
from tensorpost_server.http.connection.timeouts import ConnectionLimits

CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"
LOOPS = [
    "asyncio",
    pytest.param(
        "uvloop",
        marks=pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not made for this system"),
    ),
]


@pytest.fixture(scope="module", params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=[DirectProtocol, "httptools", "h11"], ids=["direct", "httptools", "h11"])
def server(request: pytest.FixtureRequest, loop: str) -> Iterator[Serving]:
    with serve_bodies(request.param, loop) as found:
        yield found


@pytest.fixture(scope="module")
def direct(loop: str) -> Iterator[Serving]:
    with serve_bodies(DirectProtocol, loop) as found:
        yield found


BRIEF = ConnectionLimits(
    head_bytes=8192, head_seconds=0.4, receive_seconds=0.2, send_seconds=0.2, bytes_per_second=20_000,
    drain_bytes=1 << 20,
)  # fmt: skip


@pytest.fixture(scope="module")
def brief(loop: str) -> Iterator[Serving]:
    with serve_bodies(protocol_class(BRIEF), loop) as found:
        yield found


@pytest.fixture(autouse=True)
def begin_anew(request: pytest.FixtureRequest) -> None:
    for name in ("server", "direct", "brief"):
        if name in request.fixturenames:
            found = request.getfixturevalue(name)
            app = found.app
            app.go_on.set()
            eventually(lambda found=found: found.connections == 0, "the last test's connections end")
            eventually(lambda app=app: len(app.ended) == len(app.seen), "and its applications")
            for each in (app.seen, app.ended, app.gone, app.lent, app.after_return):
                each.clear()
            app.go_on.clear()


@functools.cache
def body_of(length: int) -> bytes:
    return random.Random(length).randbytes(length)


def post(how: str, body: bytes, **headers: Any) -> bytes:
    return request_bytes("POST", f"/{how}", body, headers)


def about(wire: Wire) -> dict[str, Any]:
    answer = wire.answer()
    assert answer.status == 200, answer
    return answer.json()


# ---- bodies ----------------------------------------------------------------------------------------------------------

SIZES = [0, 1, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 1, 1_000_003, 3_000_000]


@pytest.mark.parametrize("how", ["receive", "into", "greedy", "pieces", "mixed"])
def test_bodies_of_every_size_on_one_connection(server: Serving, how: str):
    with server.wire() as wire:
        for size in [*SIZES, *SIZES[::-1]]:
            body = body_of(size)
            wire.send(post(how, body))
            found = about(wire)
            assert (found["length"], found["sha"]) == (size, sha(body))


def test_only_our_class_receives_straight_into_memory(server: Serving, request: pytest.FixtureRequest):
    with server.wire() as wire:
        for size in SIZES:
            wire.send(post("into", body_of(size)))
            ours = "direct" in request.node.callspec.id
            assert about(wire)["straight"] == (ours and size >= DIRECT_BYTES)


def test_requests_sent_ahead(server: Serving):
    bodies = [body_of(size) for size in (200_000, 10, 0, 70_000, 3_000_000, 65_536, 1)]
    with server.wire() as wire:
        wire.send(b"".join(post(how, body) for body in bodies for how in ("into", "mixed", "greedy")))
        for body in bodies:
            for how in ("into", "mixed", "greedy"):
                found = about(wire)
                assert (found["path"], found["sha"]) == (f"/{how}", sha(body))


@pytest.mark.parametrize("how", ["into", "pieces", "mixed", "receive"])
def test_a_body_cut_anywhere(server: Serving, how: str):
    body, dice = body_of(150_000), random.Random(how)
    data = post(how, body) * 3
    with server.wire() as wire:
        at = 0
        while at < len(data):
            step = dice.choice([1, 100, 5_000, 66_000])
            wire.send(data[at : at + step])
            at += step
            if step == 100:
                time.sleep(0.001)
        assert [about(wire)["sha"] for _ in range(3)] == [sha(body)] * 3


@pytest.mark.parametrize("how", ["into", "mixed", "receive"])
def test_expect_100_continue(server: Serving, how: str):
    body = body_of(200_000)
    data = post(how, body, expect="100-continue")
    with server.wire() as wire:
        for _ in range(2):
            wire.send(data[: -len(body)])
            assert wire.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            wire.send(body)
            assert about(wire)["sha"] == sha(body)


def test_who_is_refused_is_not_asked_for_the_body(server: Serving):
    with server.wire() as wire:
        wire.send(post("refuse", body_of(200_000), expect="100-continue")[:-200_000])
        assert wire.socket.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after the answer"])
@pytest.mark.parametrize("how", ["refuse", "stop"])
def test_a_body_that_is_not_read_to_its_end(direct: Serving, how: str, later: bool):
    body, last = body_of(3_000_000), body_of(100_000)
    data = post(how, body)
    with direct.wire() as wire:
        if later:
            wire.send(data[:-2_000_000])
            about(wire)
            wire.send(data[-2_000_000:])
        else:
            wire.send(data)
            about(wire)
        wire.send(post("into", last))
        assert about(wire)["sha"] == sha(last)


def test_chunked_bodies(server: Serving):
    body = body_of(100_000)
    chunks = [body[at : at + 7919] for at in range(0, len(body), 7919)]
    head = b"POST /into HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"".join(b'%X;a="b"\r\n%b\r\n' % (len(each), each) for each in chunks) + b"0\r\nX-T: 1\r\n\r\n"
    with server.wire() as wire:
        wire.send(data + data)
        for _ in range(2):
            found = about(wire)
            assert (found["sha"], found["straight"]) == (sha(body), False)


@pytest.mark.parametrize("rude", [False, True], ids=["closed", "reset"])
def test_a_caller_that_hangs_up_at_any_byte(server: Serving, rude: bool):
    data = post("pieces", body_of(300_000))
    start = len(data) - 300_000
    dice = random.Random(3)
    places = [1, start - 1, start, start + 1, start + 16, len(data) - 1, *dice.sample(range(start, len(data)), 12)]
    for at in places:
        seen = len(server.app.seen)
        with server.wire() as wire:
            wire.send(data[:at])
            if at % 2 and at >= start:
                eventually(lambda seen=seen: len(server.app.seen) > seen, "the application has the request")
            if rude:
                wire.hang_up()
    eventually(lambda: len(server.app.ended) == len(server.app.seen), "every application learns it")
    eventually(lambda: server.connections == 0, "every connection ends")
    assert "/pieces" in server.app.gone
    server.app.assert_untouched()
    with server.wire() as wire:
        wire.send(data)
        assert about(wire)["length"] == 300_000


def test_a_connection_that_closes_after_its_answer(server: Serving):
    body = body_of(200_000)
    with server.wire() as wire:
        wire.send(post("into", body, connection="close"))
        answer = wire.answer()
        assert (answer.headers["connection"], answer.json()["sha"]) == ("close", sha(body))
        assert wire.is_closed()


def test_http_1_0(server: Serving):
    body = body_of(200_000)
    with server.wire() as wire:
        wire.send(post("into", body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert about(wire)["sha"] == sha(body)
        assert wire.is_closed()


def test_a_server_that_stops_finishes_the_body_it_receives(loop: str):
    body = body_of(5_000_000)
    data = post("into", body)
    with serve_bodies(DirectProtocol, loop) as found, found.wire() as wire:
        wire.send(data[:-3_000_000])
        eventually(lambda: found.app.seen == ["/into"], "the request is there")
        found.server.should_exit = True
        time.sleep(0.2)
        wire.send(data[-3_000_000:])
        answer = wire.answer()
        assert (answer.headers["connection"], answer.json()["sha"]) == ("close", sha(body))
        assert wire.is_closed()


@pytest.mark.parametrize("protocol", [DirectProtocol, "httptools"], ids=["direct", "httptools"])
def test_tls(protocol: Any, loop: str):
    with serve_bodies(protocol, loop, CERTIFICATE) as found, found.wire() as wire:
        for how, size in (("into", 2_000_000), ("mixed", 70_000), ("into", 10), ("refuse", 300_000), ("into", 65_536)):
            body = body_of(size)
            wire.send(post(how, body))
            answer = about(wire)
            assert not answer["straight"]
            assert how == "refuse" or answer["sha"] == sha(body)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on Windows")
def test_unix_sockets(loop: str, tmp_path: Path):
    path = str(tmp_path / "s")
    with serve_bodies(DirectProtocol, loop, uds=path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(path)
        for size in (10, 3_000_000, 70_000):
            body = body_of(size)
            connection.sendall(post("into", body))
            _, _, text = connection.recv(65536).partition(b"\r\n\r\n")
            found = json.loads(text or connection.recv(65536))
            assert (found["sha"], found["straight"]) == (sha(body), size >= DIRECT_BYTES)


# ---- requests that two readers may divide differently ----------------------------------------------------------------

SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n"
SHAPES = {
    "both lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "both lengths, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "two lengths that differ": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "a list of lengths": b"Content-Length: 5, 6\r\n",
    "a plus": b"Content-Length: +5\r\n",
    "a minus": b"Content-Length: -5\r\n",
    "hexadecimal": b"Content-Length: 0x5\r\n",
    "an underscore": b"Content-Length: 0_5\r\n",
    "other digits": "Content-Length: \u0665\r\n".encode(),
    "a fraction": b"Content-Length: 5.0\r\n",
    "no number": b"Content-Length: \r\n",
    "2^64 + 5": b"Content-Length: 18446744073709551621\r\n",
    "a space before the colon": b"Content-Length : 5\r\n",
    "a folded line": b"Content-Length: 5\r\n Transfer-Encoding: chunked\r\n",
    "a folded length": b"Content-Length:\r\n 5\r\n",
    "a coding that is not known": b"Transfer-Encoding: xchunked\r\n",
    "chunked is not the last": b"Transfer-Encoding: chunked, identity\r\n",
    "a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "a bare CR": b"X: y\rTransfer-Encoding: chunked\r\n",
    "a zero byte": b"X: \x00\r\nContent-Length: 5\r\n",
    "a space in a name": b"X y: 1\r\nContent-Length: 5\r\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_that_could_be_divided_in_two_ways(server: Serving, shape: str):
    is_h11 = "h11" in str(server.server.config.http_protocol_class)
    if is_h11 and shape == "2^64 + 5":
        pytest.skip("h11 counts without a bound, and waits for so many bytes: not divided in two ways")
    with server.wire() as wire:
        wire.send(b"POST /receive HTTP/1.1\r\nHost: test\r\n" + SHAPES[shape] + b"\r\n" + b"0\r\n\r\n" + SMUGGLED)
        status, fields = wire.head()
        lenient = is_h11 and status == 200
        assert lenient or (status, fields["connection"]) == (400, "close")
    # h11 joins folded lines (RFC 9112, section 5.2, allows it) and prefers chunked to a length, as section 6.3 says.
    assert not lenient or shape in ("a folded line", "a folded length", *list(SHAPES)[:2])
    assert "/smuggled" not in server.app.seen or lenient


CHUNKS = {
    "a plus": b"+5\r\nabcde\r\n0\r\n\r\n",
    "a minus": b"-5\r\nabcde\r\n0\r\n\r\n",
    "0x": b"0x5\r\nabcde\r\n0\r\n\r\n",
    "no size": b"\r\nabcde\r\n0\r\n\r\n",
    "2^64 + 5": b"10000000000000005\r\nabcde\r\n0\r\n\r\n",
    "too short": b"4\r\nabcde\r\n0\r\n\r\n",
    "no line end behind the data": b"5\r\nabcde0\r\n\r\n",
    "two bytes that are no line end": b"5\r\nabcdexx0\r\n\r\n",
    "a bare LF behind the size": b"5\nabcde\r\n0\r\n\r\n",
    "a bare LF in an extension": b"5;a\nb\r\nabcde\r\n0\r\n\r\n",
    "an underscore": b"0_5\r\nabcde\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("shape", CHUNKS)
def test_chunks_that_could_be_divided_in_two_ways(direct: Serving, shape: str):
    with direct.wire() as wire:
        wire.send(
            b"POST /receive HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS[shape] + SMUGGLED
        )
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert wire.is_closed()
    eventually(lambda: direct.app.gone == ["/receive"], "its application learns it")
    assert direct.app.seen == ["/receive"]


@pytest.mark.parametrize(
    "data",
    [
        b"POST /receive HTTP/1.1\nHost: test\nContent-Length: 0\n\n",
        b"POST /receive HTTP/1.1\r\nHost: test\nContent-Length: 0\r\n\r\n",
        b"POST /receive HTTP/1.1\rHost: test\rContent-Length: 0\r\r",
        b"POST /receive HTTP/1.1 \r\nContent-Length: 0\r\n\r\n",
        b"POST /receive HTTP/01.1\r\nContent-Length: 0\r\n\r\n",
        b"post /receive HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_line_ends_and_spaces_are_exactly_those_of_the_standard(direct: Serving, data: bytes):
    with direct.wire() as wire:
        wire.send(data + SMUGGLED)
        assert wire.answer().status == 400
        assert wire.is_closed()
    assert direct.app.seen == []


def test_a_length_said_twice_alike_is_refused_or_believed(server: Serving):
    with server.wire() as wire:
        wire.send(
            b"POST /receive HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde" + SMUGGLED
        )
        assert wire.answer().status in (200, 400)


@pytest.mark.parametrize("how", ["into", "refuse", "mixed", "stop"])
def test_a_body_that_looks_like_requests_is_none(server: Serving, how: str):
    body = SMUGGLED * 4000
    with server.wire() as wire:
        wire.send(post(how, body))
        about(wire)
        time.sleep(0.05)
    assert server.app.seen == [f"/{how}"]


# ---- what only our class promises ------------------------------------------------------------------------------------


def test_an_upgrade_that_is_not_taken_has_its_body(direct: Serving):
    more = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
    with direct.wire() as wire:
        for body in (SMUGGLED, SMUGGLED * 4000):
            data = post("into", body, **more)
            wire.send(data[: -len(body)])
            time.sleep(0.02)
            wire.send(body)
            assert about(wire)["sha"] == sha(body)
    assert direct.app.seen == ["/into", "/into"]


def test_who_hangs_up_is_gone_for_requests_sent_ahead_too(direct: Serving):
    with direct.wire() as wire:
        wire.send(post("endless", b"") + post("into", b"") * 3)
        wire.read(100_000)
        wire.hang_up()
    eventually(lambda: direct.app.gone == ["/endless"], "the answer that is not read ends")
    assert direct.app.seen == ["/endless"]


def test_a_bad_request_does_not_spoil_the_answer_before_it(direct: Serving):
    with direct.wire() as wire:
        wire.send(post("wait", b"") + b"no request\r\n\r\n")
        time.sleep(0.05)
        direct.app.go_on.set()
        assert about(wire)["path"] == "/wait"
        assert wire.answer().status == 400
        assert wire.is_closed()


def test_a_head_without_end(brief: Serving):
    with brief.wire() as wire:
        wire.send(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(40):
            wire.send(b"a" * 250)
        assert wire.answer().status == 431
        assert wire.is_closed()
    assert brief.app.seen == []


@pytest.mark.parametrize("data", [b"", b"GET /", b"POST /into HTTP/1.1\r\nContent-Le", post("into", b"a") + b"GET"])
def test_a_head_that_stays_half_open(brief: Serving, data: bytes):
    with brief.wire() as wire:
        wire.send(data)
        if data.startswith(b"POST /into") and data.endswith(b"GET"):
            about(wire)
        if data:
            assert wire.answer().status == 408
        assert wire.is_closed(5)
    eventually(lambda: brief.connections == 0, "the socket comes back")


@pytest.mark.parametrize("how", ["into", "receive"])
def test_a_caller_that_drips(brief: Serving, how: str):
    data = post(how, body_of(100_000))
    with brief.wire() as wire:
        wire.send(data[:-90_000])
        for at in range(1000):
            try:
                wire.send(data[10_000 + at : 10_001 + at])
            except OSError:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it may go on")
    eventually(lambda: brief.app.gone == [f"/{how}"], "the application learns it")
    eventually(lambda: brief.connections == 0, "the socket comes back")


def test_a_caller_that_stops_reading(brief: Serving):
    with brief.wire(receive_buffer=4096) as wire:
        wire.send(post("endless", b""))
        wire.read(1000)
        eventually(lambda: brief.app.gone == ["/endless"], "the application learns it")
        eventually(lambda: brief.connections == 0, "the socket comes back")


def test_a_caller_that_does_not_read_the_end_of_an_answer(brief: Serving):
    # The application is done; the rest of its answer waits in the transport.
    with brief.wire(receive_buffer=4096) as wire:
        wire.send(request_bytes("POST", f"/big/{50_000_000}", b"", {"connection": "close"}))
        wire.read(1000)
        eventually(lambda: len(brief.app.ended) == 1, "the application is done")
        eventually(lambda: brief.connections == 0, "the socket comes back")


@pytest.mark.parametrize("how", ["refuse", "stop"])
def test_the_answer_to_a_body_that_is_too_long_to_throw_away_arrives(brief: Serving, how: str):
    body = bytes(5_000_000)
    with brief.wire() as wire:
        wire.send(post(how, body)[:-3_000_000])
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert json.loads(answer.body)["path"] == f"/{how}"
        with pytest.raises((EOFError, OSError)):  # noqa: PT012 # it is cut off in one of these
            wire.send(body[:3_000_000])
            wire.send(body)
            wire.read(1)
    eventually(lambda: brief.connections == 0, "the socket comes back", PATIENCE)
