"""One HTTP exchange, fed as a network might: whole, byte by byte, and with bytes behind it that nobody asked for."""

from __future__ import annotations

import pytest
from tensorpost._steps import Request

from tensorpost._http1 import HttpExchange, exchange_of
from tensorpost._options import Timeout
from tensorpost._origin import Origin
from tensorpost.problems import ConnectionProblem

ORIGIN = Origin.parse("http://example.org:8000/p", headers={"X-A": "b"}, timeout=Timeout(), tls=True, uds=None)


def begin() -> HttpExchange:
    return exchange_of(ORIGIN, Request("POST", "/v1/x?y=1", {"accept": "a/b"}, (memoryview(b"12"), memoryview(b"3"))))


def read(answer: bytes, size: int, *, ends: bool = False) -> tuple[HttpExchange, bytes]:
    """Feed an answer in pieces of this size, and read its body into memory of 7 bytes at a time."""
    exchange, left, body = begin(), answer, b""

    def feed() -> None:
        nonlocal left
        assert left or ends, "the exchange wants more than there is"
        exchange.feed(left[:size])
        left = left[size:]

    while exchange.head is None:
        feed()
    while True:
        into = memoryview(bytearray(7))
        count = exchange.take(into)
        if count is None and (target := exchange.straight(into)) is not None:
            count = min(len(target), len(left), size)
            assert count
            target[:count] = left[:count]
            left = left[count:]
            exchange.received_straight(count)
        if count is None:
            feed()
        elif count == 0:
            return exchange, body
        else:
            body += into[:count]


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
    exchange, found = read(answer, size)

    assert exchange.head is not None
    assert (exchange.head.status, found, exchange.reusable) == (status, body, reusable)


@pytest.mark.parametrize(("answer", "status", "body", "reusable"), ANSWERS)
def test_bytes_behind_an_answer_are_not_part_of_it_and_spoil_the_connection(
    answer: bytes, status: int, body: bytes, reusable: bool
) -> None:
    exchange, found = read(answer + b"HTTP/1.1 200 OK\r\n", 1 << 16)

    assert exchange.head is not None
    assert (exchange.head.status, found, exchange.reusable) == (status, body, False)


@pytest.mark.parametrize("size", [1, 1 << 16])
def test_without_a_length_the_body_ends_with_the_connection(size: int) -> None:
    exchange, found = read(b"HTTP/1.1 200 OK\r\n\r\n0123456789", size, ends=True)

    assert (found, exchange.reusable) == (b"0123456789", False)


def test_straight_memory_never_reaches_beyond_the_body() -> None:
    exchange = begin()
    exchange.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123")

    assert exchange.take(memoryview(bytearray(100))) == 4
    target = exchange.straight(memoryview(bytearray(100)))
    assert target is not None
    assert len(target) == 6


def test_repeated_headers_are_joined_and_names_are_lower_case() -> None:
    exchange = begin()
    exchange.feed(b"HTTP/1.1 200 OK\r\nX-Many: a\r\nServer-Timing: b;dur=1\r\nx-many: c\r\ncontent-length: 0\r\n\r\n")

    assert exchange.head is not None
    assert exchange.head.headers == {"x-many": "a, c", "server-timing": "b;dur=1", "content-length": "0"}


def test_the_request_s_head_is_complete() -> None:
    line, *headers = begin().request_head.removesuffix(b"\r\n\r\n").lower().split(b"\r\n")

    assert line == b"post /p/v1/x?y=1 http/1.1"
    assert sorted(headers) == [b"accept: a/b", b"content-length: 3", b"host: example.org:8000", b"x-a: b"]


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
def test_an_end_before_the_head_is_no_answer(came: bytes) -> None:
    exchange = begin()
    if came:
        exchange.feed(came)
    with pytest.raises(ConnectionProblem, match="without an answer"):
        exchange.feed(b"")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname\x00: value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_is_no_http_is_refused(nonsense: bytes) -> None:
    with pytest.raises(ConnectionProblem, match=r"does not speak HTTP/1\.1"):
        begin().feed(nonsense)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"3\r\nabcd\r\n"])
def test_chunks_that_are_none_are_refused(rest: bytes) -> None:
    with pytest.raises(ConnectionProblem, match=r"does not speak HTTP/1\.1"):
        read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + rest, 1 << 16, ends=True)


def test_chunks_that_break_off_are_refused() -> None:
    with pytest.raises(ConnectionProblem):
        read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", 1 << 16, ends=True)
