"""One HTTP exchange, fed as a network might: whole, byte by byte, and with bytes after its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpost import Limits, Timeout
from tensorpost.network.connection import Connection
from tensorpost.network.connection_pool import ConnectionPool
from tensorpost.network.deadline import Deadline
from tensorpost.network.origin import Origin
from tensorpost.network.runtime import ThreadRuntime, run_blocking
from tensorpost.transport.http1 import Request, encode_head
from tensorpost.transport.socket_sender import SocketResponse
from tensorpost.values.problems import ConnectionProblem

ORIGIN = Origin.parse("http://example.org:8000/p", headers={"x-a": "b"}, timeout=Timeout(), tls=True, uds=None)

REQUEST = Request("GET", "/", ())


class FakeSocket:
    """A socket that takes everything and gives an answer, so many bytes at a time, and then its end if there is one."""

    def __init__(self, answer: bytes, size: int, *, ends: bool) -> None:
        self.left, self.size, self.ends, self.closed = answer, size, ends, False

    def send(self, data: memoryview) -> int:
        return len(data)

    def recv(self, most: int) -> bytes:
        assert self.left or self.ends, "the exchange wants more than there is"
        count = min(most, self.size)
        part, self.left = self.left[:count], self.left[count:]
        return part

    def recv_into(self, target: memoryview) -> int:
        part = self.recv(len(target))
        target[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self.closed = True


class Ready(ThreadRuntime):
    """Every socket is ready."""

    async def wait(self, sock: Any, events: int, seconds: float | None) -> int:
        return events


def begin(answer: bytes, size: int = 1 << 16, *, ends: bool = True) -> tuple[SocketResponse, FakeSocket]:
    """Receive the head of an answer that comes in pieces of this size."""
    sock: Any = FakeSocket(answer, size, ends=ends)
    response = SocketResponse(REQUEST, ConnectionPool(Limits()), Connection(sock), Deadline(Ready(), ORIGIN))
    run_blocking(response.exchange(b"request"))
    return response, sock


def read(answer: bytes, size: int = 1 << 16, *, ends: bool = False) -> tuple[int, bytes, bool]:
    """Receive an answer, its body into memory of 7 bytes at a time: status, body, whether the connection is kept."""
    (response, sock), body = begin(answer, size, ends=ends), b""
    memory = memoryview(bytearray(7))
    while count := run_blocking(response.read_into(memory)):
        body += memory[:count]
    run_blocking(response.close())
    return response.status, body, not sock.closed


CHUNKS = b"3\r\nabc\r\n9\r\n012345678\r\n0\r\n\r\n"
ANSWERS = [
    # bytes, status, body, whether the connection can be used again
    (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789", 200, b"0123456789", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: Close\r\n\r\n0123456789", 200, b"0123456789", False),
    (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", 404, b"", True),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", 304, b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", True),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS, 200, b"abc012345678", True),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 16, 1 << 16])
@pytest.mark.parametrize(("answer", "status", "body", "reusable"), ANSWERS)
def test_an_answer_is_read(answer: bytes, status: int, body: bytes, reusable: bool, size: int) -> None:
    assert read(answer, size) == (status, body, reusable)


@pytest.mark.parametrize(("answer", "status", "body", "reusable"), ANSWERS)
def test_bytes_after_an_answer_are_not_part_of_it_and_spoil_the_connection(
    answer: bytes, status: int, body: bytes, reusable: bool
) -> None:
    assert read(answer + b"HTTP/1.1 200 OK\r\n") == (status, body, False)


@pytest.mark.parametrize("size", [1, 1 << 16])
def test_without_a_length_the_body_ends_with_the_connection(size: int) -> None:
    assert read(b"HTTP/1.1 200 OK\r\n\r\n0123456789", size, ends=True) == (200, b"0123456789", False)


def test_what_is_received_straight_never_reaches_beyond_the_body() -> None:
    response, sock = begin(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789HTTP/1.1", size=42)
    memory = memoryview(bytearray(100))

    assert [run_blocking(response.read_into(memory)) for _ in range(3)] == [3, 7, 0]
    assert sock.left == b"HTTP/1.1"


def test_repeated_headers_are_joined_and_names_are_lower_case() -> None:
    response, _ = begin(
        b"HTTP/1.1 200 OK\r\nX-Many: a\r\nServer-Timing: b;dur=1\r\nx-many: c\r\ncontent-length: 0\r\n\r\n"
    )

    assert response.headers == {"x-many": "a, c", "server-timing": "b;dur=1", "content-length": "0"}


def test_the_request_s_head_is_complete() -> None:
    head = encode_head("POST", "/p/v1/x?y=1", ORIGIN.fields, (("content-length", "3"),))

    assert head == b"POST /p/v1/x?y=1 HTTP/1.1\r\nhost: example.org:8000\r\nx-a: b\r\ncontent-length: 3\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "target", "field"),
    [
        ("GET", "/a b", ("a", "b")),
        ("GET", "/\r\nx: y", ("a", "b")),
        ("GET", "", ("a", "b")),
        ("G T", "/", ("a", "b")),
        ("GET", "/", ("a b", "c")),
        ("GET", "/", ("", "c")),
        ("GET", "/", ("a", "b\r\nc: d")),
        ("GET", "/", ("a", " b")),
        ("GET", "/", ("a", "b\t")),
        ("GET", "/", ("a", "b\0")),
        ("GET", "/", ("a", "\N{SNOWMAN}")),
    ],
)
def test_a_request_that_would_break_its_head_is_refused(method: str, target: str, field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no valid request head|latin-1"):
        encode_head(method, target, (("host", "x"), field))


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
def test_an_end_before_the_head_is_no_answer(came: bytes) -> None:
    with pytest.raises(ConnectionProblem, match="without an answer"):
        begin(came)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname\x00: value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname: a\nother: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3000,
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_is_no_http_is_refused(nonsense: bytes) -> None:
    with pytest.raises(ConnectionProblem, match=r"does not speak HTTP/1\.1"):
        begin(nonsense)


@pytest.mark.parametrize(
    "rest",
    [b"zz\r\n", b"3\r\nabcd\r\n", b"\r\n", b"3" * 70_000, b"0\r\nno trailer\r\n", b"0\r\n" + b"a: b\r\n" * 20_000],
)
def test_chunks_that_are_none_are_refused(rest: bytes) -> None:
    with pytest.raises(ConnectionProblem, match=r"does not speak HTTP/1\.1"):
        read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + rest, ends=True)


def test_chunks_that_break_off_are_refused() -> None:
    with pytest.raises(ConnectionProblem):
        read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", ends=True)


# ---- beside h11 ------------------------------------------------------------------------------------------------------

BYTES = st.binary(max_size=12)
TOKENS = st.sampled_from(
    [b"X-A", b"Connection", b"Content-Length", b"content-length", b"Transfer-Encoding", b"x\x00", b""]
)
VALUES = st.sampled_from(
    [b"3", b"0", b" 3 ", b"03", b"3, 3", b"-1", b"chunked", b"Chunked", b"close", b"gzip", b"\xe4", b"a\tb"]
)
LINES = st.one_of(
    st.builds(lambda name, gap, value: name + b":" + gap + value, TOKENS, st.sampled_from([b"", b" ", b"\t"]), VALUES),
    st.builds(lambda name, value: name + b": " + value, TOKENS, BYTES),
    BYTES,
)
STATUS_LINES = st.one_of(
    st.sampled_from(
        [b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 404 Not Found", b"HTTP/1.1 204 ", b"HTTP/1.1 100 C"]
    ),
    st.builds(lambda a, b: b"HTTP/1." + a + b" " + b, BYTES, BYTES),
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
BODIES = st.one_of(st.sampled_from([b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n"]), BYTES)


@given(
    status=STATUS_LINES,
    lines=st.lists(LINES, max_size=4),
    end=ENDS,
    body=BODIES,
    method=st.sampled_from(["GET", "POST"]),
)
def test_what_is_taken_is_taken_by_h11_for_the_same(
    status: bytes, lines: list[bytes], end: bytes, body: bytes, method: str
) -> None:
    answer = end.join([status, *lines, b"", b""]) + body
    ours = by_us(answer)
    if ours is not None:
        assert by_h11(answer, method) == ours


Taken = tuple[int, Mapping[str, str], bytes, bool]


def by_us(answer: bytes) -> Taken | None:
    """Status, headers, body, and whether it came whole; None if it is refused."""
    body, memory = b"", memoryview(bytearray(100))
    try:
        response, _ = begin(answer)
    except ConnectionProblem:
        return None
    try:
        while count := run_blocking(response.read_into(memory)):
            body += memory[:count]
    except ConnectionProblem as error:
        return (response.status, response.headers, body, False) if "before the end" in str(error) else None
    return response.status, response.headers, body, True


def by_h11(answer: bytes, method: str) -> Taken | None:
    connection, body = h11.Connection(h11.CLIENT), b""
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(answer)
    head = connection.next_event()
    while isinstance(head, h11.InformationalResponse):
        head = connection.next_event()
    assert isinstance(head, h11.Response)
    headers: dict[str, str] = {}
    for name, value in ((bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in head.headers):
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif event is h11.NEED_DATA:
                connection.receive_data(b"")
            else:
                return head.status_code, headers, body, isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return head.status_code, headers, body, False
