"""The end of a call's time, `Timeout(total=...)`, against servers that are never silent for long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as write_safetensors
from tests.client.conftest import WAYS
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import BufferTensorDesc, Limits, TileOperatorDesc, Timeout, problems
from tensorpost.network.runtime import READ, AsyncioRuntime

Connect = Callable[..., Any]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
ANSWER = http_answer(body=write_safetensors({"output": np.tile(X, (1, 2))}), content_type="application/vnd.safetensors")
BUSY = http_answer("503 Busy", b"", "text/plain")
PATIENT = Timeout(read=5, write=5, pool=5, total=0.4)


def drips(payload: bytes, seconds: float) -> Callable[[socket.socket, int], None]:
    """A server that sends its answer byte by byte, for ever if need be."""

    def handle(connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_request(connection)
        for at in range(len(payload)):
            connection.sendall(payload[at : at + 1])
            time.sleep(seconds)

    return handle


def continues(connection: socket.socket, number: int) -> None:
    read_request(connection)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def refuses(connection: socket.socket, number: int) -> None:
    while read_request(connection)[0]:
        connection.sendall(BUSY)


def reads_slowly(connection: socket.socket, number: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while connection.recv(1 << 16):
        time.sleep(0.02)


def ends_in_time(
    call: Callable[[], object],
    error: type[Exception] | tuple[type[Exception], ...] = problems.RequestTimeout,
    least: float = 0.2,
) -> Any:
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        call()
    assert least < time.monotonic() - begin < 2
    return caught.value


# httpx waits for the whole head inside of itself
@pytest.mark.parametrize(
    ("connect", "where"),
    [("sockets", "head"), ("asyncio", "head"), *[(way, "body") for way in WAYS]],
    indirect=["connect"],
)
def test_an_answer_byte_by_byte_ends_with_the_call_s_time(connect: Connect, where: str) -> None:
    head, _, body = ANSWER.partition(b"\r\n\r\n")
    rest = drips(ANSWER if where == "head" else body, 0.02)

    def handle(connection: socket.socket, number: int) -> None:
        if where == "body":
            connection.sendall(head + b"\r\n\r\n")
        rest(connection, number)

    with raw_server(handle) as server:
        tp = connect(server.url, timeout=PATIENT)
        error = ends_in_time(lambda: tp.run(DESC, X))
        assert server.connections <= 1, "no second try; on a busy machine the time may end before the first is accepted"
    assert error.extra["phase"] == "total"
    assert "did not end within the 0.4 seconds of the timeout's total" in str(error)


@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)  # httpx waits for the head inside of itself
def test_endless_100_continues_end_with_the_call_s_time(connect: Connect) -> None:
    with raw_server(continues) as server:
        tp = connect(server.url, timeout=PATIENT)
        assert ends_in_time(lambda: tp.run(DESC, X)).extra["phase"] == "total"


def test_retries_end_with_the_call_s_time(connect: Connect) -> None:
    with raw_server(refuses) as server:
        tp = connect(server.url, timeout=PATIENT, retries=1000)
        # the time ends between two tries, with the last answer, or within a try
        ends_in_time(lambda: tp.run(DESC, X), (problems.Unavailable, problems.RequestTimeout), least=0.05)


@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)  # httpx sends a whole piece inside of itself
def test_a_server_that_reads_slowly_is_left_in_time(connect: Connect) -> None:
    big = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (64 << 20,)), (1,))
    with raw_server(reads_slowly) as server:
        tp = connect(server.url, timeout=PATIENT)
        assert ends_in_time(lambda: tp.run(big, np.zeros(64 << 20, np.uint8))).extra["phase"] == "total"


@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)  # httpx has a pool of its own
def test_a_wait_for_a_free_connection_ends_with_the_call_s_time(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(ANSWER)
        connection.recv(1)  # until the caller hangs up

    with raw_server(handle) as server:
        tp = connect(server.url, timeout=Timeout(pool=5, total=0.4), limits=Limits(max_connections=1))
        blocks = tp.stream(DESC, X, block_bytes=4)
        next(blocks)
        assert ends_in_time(lambda: tp.run(DESC, X)).extra["phase"] == "total"
        blocks.close()


def test_a_stream_ends_with_the_call_s_time(connect: Connect) -> None:
    with raw_server(drips(ANSWER, 0.0)) as server:
        blocks = connect(server.url, timeout=Timeout(total=0.5)).stream(DESC, X, block_bytes=4)
        assert len(next(blocks)) == 4
        time.sleep(0.6)
        with pytest.raises(problems.RequestTimeout, match="total"):
            next(blocks)


def test_a_call_within_its_time_is_left_alone(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(ANSWER)

    with raw_server(handle) as server:
        np.testing.assert_array_equal(connect(server.url, timeout=PATIENT).run(DESC, X), np.tile(X, (1, 2)))


def test_no_server_is_a_failed_connection_and_not_the_end_of_time(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(problems.ConnectFailed):
        connect(f"http://127.0.0.1:{port}", timeout=Timeout(total=5), retries=0).run(DESC, X)


def heads_of(connect: Connect, timeout: Timeout, calls: int = 1, retries: int = 0) -> list[bytes]:
    """The request heads that a server gets."""
    heads: list[bytes] = []

    def handle(connection: socket.socket, _number: int) -> None:
        while (request := read_request(connection))[0]:
            heads.append(request[0])
            connection.sendall(LATER if len(heads) <= retries else ANSWER)

    with raw_server(handle) as server:
        tp = connect(server.url, timeout=timeout, retries=retries)
        for _ in range(calls):
            tp.run(DESC, X)
    return heads


LATER = http_answer("503 Busy", b"", "text/plain", headers="retry-after: 1\r\n")


def test_the_server_is_told_how_long_it_is_waited_for(connect: Connect) -> None:
    first, second = heads_of(connect, Timeout(total=30), calls=2)

    assert b"\r\nprefer: wait=30" in first.lower()
    assert first == second, "a server that answers identical calls from its cache would not know the second"


def test_a_retry_tells_what_is_left(connect: Connect) -> None:
    first, second = heads_of(connect, Timeout(total=2.5), retries=1)

    assert b"prefer: wait=3" in first.lower()
    assert b"prefer: wait=2" in second.lower()


def test_without_an_end_nothing_is_told(connect: Connect) -> None:
    (head,) = heads_of(connect, Timeout())

    assert b"prefer" not in head.lower()


def test_on_a_loop_that_watches_no_sockets_a_wait_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such is Windows' own; it can stop watching none either."""

    async def wait() -> list[int]:
        def refuse(*_: Any) -> None:
            raise NotImplementedError

        loop, runtime, (near, far) = asyncio.get_running_loop(), AsyncioRuntime(), socket.socketpair()
        monkeypatch.setattr(loop, "add_reader", refuse)
        monkeypatch.setattr(loop, "remove_reader", refuse)
        with near, far:
            found = [await runtime.wait(near, READ, 0.05)]
            far.send(b"x")
            return [*found, await runtime.wait(near, READ, 5)]

    assert asyncio.run(wait()) == [0, READ]
