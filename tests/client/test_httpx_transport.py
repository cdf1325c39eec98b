"""Our sockets inside httpx's clients: the same as httpx's own to whoever does not look, and faster to who does."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import AsyncHttpxTransport, HttpxTransport, problems
from tensorpost.httpx_transport import aread_into, as_httpx_error, read_into

BODY = np.random.default_rng(5).bytes(3 << 20)
BIG = bytes(32 << 20)  # more than the buffers of both ends of a connection hold


@dataclass
class Face:
    """An httpx client with our transport, called without `await` whichever it is."""

    request: Callable[..., httpx.Response]
    receive: Callable[..., tuple[httpx.Response, int]]  # read_into of a streamed response
    body: Callable[[Sequence[bytes]], Any]  # of a request, in parts


@pytest.fixture(params=["sync", "asyncio"])
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """`open_client(**transport options)`; closed when the test ends."""
    with ExitStack() as stack:

        def make(**options: Any) -> Face:
            timeout = options.pop("timeout", 20.0)
            if request.param == "sync":
                client = stack.enter_context(httpx.Client(transport=HttpxTransport(**options), timeout=timeout))

                def receive(memory: Any, *args: Any, **kwargs: Any) -> tuple[httpx.Response, int]:
                    with client.stream(*args, **kwargs) as response:
                        return response, read_into(response, memory)

                return Face(client.request, receive, iter)
            runner = stack.enter_context(asyncio.Runner())
            aclient = httpx.AsyncClient(transport=AsyncHttpxTransport(**options), timeout=timeout)
            stack.callback(lambda: runner.run(aclient.aclose()))

            async def areceive(memory: Any, *args: Any, **kwargs: Any) -> tuple[httpx.Response, int]:
                async with aclient.stream(*args, **kwargs) as response:
                    return response, await aread_into(response, memory)

            return Face(
                lambda *args, **kwargs: runner.run(aclient.request(*args, **kwargs)),
                lambda *args, **kwargs: runner.run(areceive(*args, **kwargs)),
                asynchronously,
            )

        yield make


def read_any_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """`read_request`, which also reads to the last chunk."""
    head, body = read_request(connection)
    while b"chunked" in head.lower() and not body.endswith(b"0\r\n\r\n"):
        body += connection.recv(1 << 20)
    return head, body


def answering(*payloads: bytes, seen: list[tuple[bytes, bytes]] | None = None) -> Callable[[socket.socket, int], None]:
    """Answer each request with the next of these, the last one again and again."""
    left = list(payloads)

    def handle(connection: socket.socket, number: int) -> None:
        while True:
            head, body = read_any_request(connection)
            if not head:
                return
            if seen is not None:
                seen.append((head, body))
            connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return handle


async def asynchronously(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Streamed(httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield from (b"hel", b"lo")


# ---- the same as httpx -----------------------------------------------------------------------------------------------

MULTIPART = "multipart/form-data; boundary=b"
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "get": ("GET", {"params": {"a": "b c", "d": "\u00e4"}}),
    "head": ("HEAD", {}),
    "post": ("POST", {"content": b"12345", "headers": {"X-Twice": "1", "x-other": "2"}}),
    "large": ("PUT", {"content": BODY}),
    "form": ("POST", {"data": {"k": "v"}}),
    "json": ("PATCH", {"json": {"k": [1, 2]}}),
    "file": ("POST", {"files": {"f": ("n.bin", b"\0\1")}, "headers": {"content-type": MULTIPART}}),
    "nothing": ("DELETE", {}),
}  # fmt: skip
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
ANSWERS = {
    "plain": http_answer(body=b"hello", headers="Set-Cookie: a=b\r\nset-cookie: c=d\r\nX-Case: Kept\r\n"),
    "large": http_answer(body=BODY, content_type="application/octet-stream"),
    "gzip": http_answer(body=gzip.compress(b"hello"), headers="content-encoding: gzip\r\n"),
    "chunked": CHUNKED,
    "empty": http_answer("204 Nothing Here"),
    "error": http_answer("503 Later", b"{}", headers="retry-after: 1\r\n"),
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + http_answer(body=b"hello"),
    "closing": b"HTTP/1.0 200 Fine\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_sent_is_what_httpx_sends(open_client: Callable[..., Face], name: str) -> None:
    method, options = REQUESTS[name]
    seen: list[tuple[bytes, bytes]] = []
    answer = http_answer(body=b"" if method == "HEAD" else b"hello")

    with raw_server(answering(answer, seen=seen)) as server, httpx.Client(trust_env=False) as stock:
        stock.request(method, server.url + "/p/q", **options)
        open_client().request(method, server.url + "/p/q", **options)

    assert len(seen) == 2
    assert seen[0][1] == seen[1][1]
    assert sorted(seen[0][0].splitlines()[1:]) == sorted(seen[1][0].splitlines()[1:])
    assert seen[0][0].splitlines()[0] == seen[1][0].splitlines()[0]


@pytest.mark.parametrize("sizes", [(5,), (5, 0, 7), (70_000, 3), (3 << 20,)])
def test_a_body_without_a_length_goes_out_in_chunks(open_client: Callable[..., Face], sizes: tuple[int, ...]) -> None:
    parts = [BODY[:size] for size in sizes]
    seen: list[tuple[bytes, bytes]] = []

    with raw_server(answering(http_answer(), seen=seen)) as server:
        client = open_client()
        client.request("POST", server.url, content=client.body(parts))

    head, wire = seen[0]
    assert b"transfer-encoding: chunked" in head.lower()
    assert wire == b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_received_is_what_httpx_receives(open_client: Callable[..., Face], name: str) -> None:
    with raw_server(answering(ANSWERS[name])) as server, httpx.Client(trust_env=False) as stock:
        theirs = stock.get(server.url)
        mine = open_client().request("GET", server.url)

    assert (mine.status_code, mine.reason_phrase, mine.http_version) == (
        theirs.status_code, theirs.reason_phrase, theirs.http_version,
    )  # fmt: skip
    assert mine.headers.raw == theirs.headers.raw
    assert mine.content == theirs.content
    assert mine.cookies == theirs.cookies
    assert mine.extensions["tensorpost"] == "own sockets"


def test_a_connection_is_used_again(open_client: Callable[..., Face]) -> None:
    head_only = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    with raw_server(answering(head_only, CHUNKED, http_answer(body=b"hello"))) as server:
        client = open_client()
        assert client.request("HEAD", server.url).content == b""
        assert client.request("GET", server.url).content == b"hello world"
        assert client.request("GET", server.url).content == b"hello"
        assert server.connections == 1


def test_a_redirect_is_followed_by_the_client(open_client: Callable[..., Face]) -> None:
    moved = http_answer("302 Found", headers="location: /there\r\n")
    with raw_server(answering(moved, http_answer(body=b"hello"))) as server:
        response = open_client().request("GET", server.url, follow_redirects=True)
        assert (response.content, response.url.path, server.connections) == (b"hello", "/there", 1)


def test_several_servers_share_a_client(open_client: Callable[..., Face]) -> None:
    client = open_client(limits=httpx.Limits(max_connections=1, max_keepalive_connections=5))
    with raw_server(answering(http_answer(body=b"a"))) as one, raw_server(answering(http_answer(body=b"b"))) as two:
        for _ in range(2):
            assert [client.request("GET", url).content for url in (one.url, two.url)] == [b"a", b"b"]


def test_a_unix_socket_is_used_whatever_the_host(open_client: Callable[..., Face], tmp_path: Path) -> None:
    path, seen = str(tmp_path / "s"), list[tuple[bytes, bytes]]()
    with raw_server(answering(http_answer(body=b"hello"), seen=seen), uds=path):
        assert open_client(uds=path).request("GET", "http://a.name/x").content == b"hello"
    assert b"host: a.name" in seen[0][0].lower()


# ---- straight into memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "chunked"])
def test_a_body_is_received_into_an_array(open_client: Callable[..., Face], kind: str) -> None:
    answer = http_answer(body=BODY)
    if kind == "chunked":
        pieces = [BODY[at : at + 100_001] for at in range(0, len(BODY), 100_001)]
        answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        answer += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    with raw_server(answering(answer)) as server:
        client, memory = open_client(), np.zeros((3, 1 << 18), np.float32)
        _, count = client.receive(memory, "GET", server.url)
        # the end has not been seen by then, so that the connection may or may not be used again: both must work
        client.receive(memory, "GET", server.url)

    assert count == len(BODY)
    assert memory.tobytes() == BODY


@pytest.mark.parametrize(("room", "count"), [(0, 0), (10, 10), (len(BODY), len(BODY)), (len(BODY) + 7, len(BODY))])
def test_memory_may_be_shorter_or_longer_than_the_body(open_client: Callable[..., Face], room: int, count: int) -> None:
    with raw_server(answering(http_answer(body=BODY))) as server:
        client, memory = open_client(), bytearray(room)
        assert client.receive(memory, "GET", server.url)[1] == count
        assert memory == BODY[:count] + bytes(room - count)
        assert client.request("GET", server.url).content == BODY


def test_a_body_is_received_piece_by_piece() -> None:
    parts = [bytearray(size) for size in (1, 1 << 20, 100, 2 << 20)]
    with raw_server(answering(http_answer(body=BODY))) as server, httpx.Client(transport=HttpxTransport()) as client:
        with client.stream("GET", server.url) as response:
            counts = [read_into(response, part) for part in parts]
        assert client.get(server.url).content == BODY
        assert server.connections == 1

    assert counts == [1, 1 << 20, 100, len(BODY) - 101 - (1 << 20)]
    assert b"".join(part[:count] for part, count in zip(parts, counts, strict=True)) == BODY


@pytest.mark.parametrize(
    "memory", [bytes(10), np.zeros((4, 4))[:, :2], np.broadcast_to(np.uint8(0), (10,)), memoryview(bytearray(10))[::2]]
)
def test_memory_that_cannot_be_written_is_refused(open_client: Callable[..., Face], memory: Any) -> None:
    client = open_client()
    with (
        raw_server(answering(http_answer(body=b"hello"))) as server,
        pytest.raises(problems.InvalidParameter, match="writeable and C-contiguous"),
    ):
        client.receive(memory, "GET", server.url)


def test_a_response_of_another_transport_is_copied() -> None:
    memory = bytearray(7)
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Streamed()))) as http:
        with http.stream("GET", "http://x") as response:
            assert read_into(response, memory) == 5
        with pytest.raises(problems.InvalidParameter, match="5 bytes"), http.stream("GET", "http://x") as response:
            read_into(response, bytearray(4))
    assert memory == b"hello\0\0"


def test_views_are_sent_as_they_are() -> None:
    x, seen = np.arange(1 << 20, dtype=np.float32), list[tuple[bytes, bytes]]()
    body: Any = [memoryview(b"head"), x.data]
    with raw_server(answering(http_answer(), seen=seen)) as server, httpx.Client(transport=HttpxTransport()) as client:
        client.post(server.url, content=body, headers={"content-length": str(4 + x.nbytes)})

    assert seen[0][1] == b"head" + x.tobytes()


# ---- what httpx does -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://x/", {}),
        ("http://x/", {"headers": {"Upgrade": "websocket"}}),
        ("http://x/", {"extensions": {"trace": print}}),
        ("ftp://x/", {}),
    ],
)
def test_what_our_sockets_do_not_do_takes_the_fallback_and_says_so(
    open_client: Callable[..., Face], url: str, options: dict[str, Any]
) -> None:
    taken: list[httpx.Request] = []

    def take(request: httpx.Request) -> httpx.Response:
        taken.append(request)
        return httpx.Response(200, content=b"fallback")

    response = open_client(fallback=httpx.MockTransport(take)).request("GET", url, **options)

    assert (response.content, response.extensions["tensorpost"], len(taken)) == (b"fallback", "httpx", 1)


def test_the_fallback_is_httpx_s_own_transport(open_client: Callable[..., Face]) -> None:
    with raw_server(answering(http_answer(body=b"hello"))) as server:
        response = open_client().request("GET", server.url, headers={"Upgrade": "h2c"})

    assert (response.content, response.extensions["tensorpost"]) == (b"hello", "httpx")


def test_outside_of_asyncio_everything_takes_the_fallback() -> None:
    transport = AsyncHttpxTransport(fallback=httpx.MockTransport(lambda _: httpx.Response(204)))
    waiting = transport.handle_async_request(httpx.Request("GET", "http://x"))

    with pytest.raises(StopIteration) as done:  # driven by hand, as another library's loop would
        waiting.send(None)
    assert done.value.value.extensions["tensorpost"] == "httpx"


def test_a_closed_client_says_so(open_client: Callable[..., Face]) -> None:
    transport = HttpxTransport()
    transport.close()
    with pytest.raises(RuntimeError, match="closed"):
        transport.handle_request(httpx.Request("GET", "http://x"))


# ---- errors are httpx's ----------------------------------------------------------------------------------------------


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_there(open_client: Callable[..., Face]) -> None:
    with pytest.raises(httpx.ConnectError) as caught:
        open_client().request("GET", closed_port())
    assert isinstance(caught.value.__cause__, problems.ConnectFailed)
    assert caught.value.request.method == "GET"


@pytest.mark.parametrize(("where", "cls"), [("head", httpx.ReadTimeout), ("body", httpx.ReadTimeout)])
def test_silence(open_client: Callable[..., Face], where: str, cls: type[Exception]) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(b"" if where == "head" else http_answer(body=b"hello")[:-2])
        release.wait(10)

    with raw_server(handle) as server:
        with pytest.raises(cls):
            open_client(timeout=0.2).request("GET", server.url)
        release.set()


def test_a_server_that_does_not_read(open_client: Callable[..., Face]) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        release.wait(10)

    with raw_server(handle) as server:
        with pytest.raises(httpx.WriteTimeout):
            open_client(timeout=httpx.Timeout(10, write=0.2)).request("POST", server.url, content=BIG)
        release.set()


def test_no_free_connection() -> None:
    limits = httpx.Limits(max_connections=1)
    with (
        raw_server(answering(http_answer(body=BODY))) as server,
        httpx.Client(transport=HttpxTransport(limits=limits), timeout=httpx.Timeout(10, pool=0.05)) as client,
    ):
        with client.stream("GET", server.url), pytest.raises(httpx.PoolTimeout):
            client.get(server.url)
        assert client.get(server.url).content == BODY


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
                                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nshort"])  # fmt: skip
def test_what_is_no_whole_answer(open_client: Callable[..., Face], answer: bytes) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(answer)

    with raw_server(handle) as server:
        client = open_client()
        with pytest.raises(httpx.RemoteProtocolError):
            client.request("GET", server.url)
        if b"200 OK" in answer:
            with pytest.raises(httpx.RemoteProtocolError):
                client.receive(bytearray(20), "GET", server.url)


@pytest.mark.parametrize(("length", "said"), [("4", "Too much data"), ("6", "Too little data")])
def test_a_length_that_lies_is_refused_and_spoils_nothing(
    open_client: Callable[..., Face], length: str, said: str
) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        if read_request(connection)[0]:
            connection.sendall(http_answer(body=b"%d" % number))

    with raw_server(handle) as server:
        client = open_client()
        with pytest.raises(httpx.LocalProtocolError, match=said):
            client.request("POST", server.url, content=b"12345", headers={"content-length": length})
        assert client.request("GET", server.url).content == b"2"


def test_a_refusal_is_seen_while_a_large_body_is_sent(open_client: Callable[..., Face]) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection, body=False)
        connection.sendall(http_answer("413 Content Too Large", b"no"))
        release.wait(10)

    with raw_server(handle) as server:
        response = open_client().request("POST", server.url, content=BIG)
        release.set()
    assert (response.status_code, response.content) == (413, b"no")


def test_leaving_a_response_early_closes_its_connection() -> None:
    with raw_server(answering(http_answer(body=BODY))) as server, httpx.Client(transport=HttpxTransport()) as client:
        with client.stream("GET", server.url) as response:
            assert next(response.iter_raw())
        assert client.get(server.url).content == BODY
        assert server.connections == 2


def phased(cls: type[problems.ConnectionProblem], phase: str) -> problems.ConnectionProblem:
    return cls("said", extra={"phase": phase})


@pytest.mark.parametrize(
    ("problem", "cls"),
    [
        (problems.ConnectFailed("said"), httpx.ConnectError),
        (phased(problems.RequestTimeout, "read"), httpx.ReadTimeout),
        (phased(problems.RequestTimeout, "write"), httpx.WriteTimeout),
        (phased(problems.RequestTimeout, "pool"), httpx.PoolTimeout),
        (phased(problems.ConnectionProblem, "read"), httpx.ReadError),
        (phased(problems.ConnectionProblem, "write"), httpx.WriteError),
        (problems.ConnectionProblem("said"), httpx.RemoteProtocolError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_each_problem_has_its_error(problem: problems.ConnectionProblem, cls: type[Exception]) -> None:
    error = as_httpx_error(problem)

    assert type(error) is cls
    assert str(error) == "said"


def test_a_closed_response_is_not_read() -> None:
    with (
        raw_server(lambda connection, _: connection.sendall(http_answer(body=BODY))) as server,
        httpx.Client(transport=HttpxTransport()) as client,
    ):
        with client.stream("GET", server.url) as response:
            pass
        with pytest.raises(httpx.StreamClosed):
            read_into(response, bytearray(1))


@pytest.mark.parametrize("seconds", [0, 1e-9])
def test_no_time_at_all_is_a_timeout(open_client: Callable[..., Face], seconds: float) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.recv(1)  # until the caller hangs up

    with raw_server(handle) as server, pytest.raises(httpx.TimeoutException):
        open_client(timeout=httpx.Timeout(20, read=seconds)).request("GET", server.url)


@pytest.mark.parametrize("seconds", [1e10, float("inf")])
def test_more_time_than_a_clock_counts_is_for_ever(open_client: Callable[..., Face], seconds: float) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(http_answer(body=b"{}"))

    with raw_server(handle) as server:
        assert open_client(timeout=seconds).request("GET", server.url).content == b"{}"


def test_a_connection_that_is_not_made_in_time_is_a_timeout() -> None:
    failed = problems.ConnectFailed("said")
    failed.__cause__ = TimeoutError()

    assert type(as_httpx_error(failed)) is httpx.ConnectTimeout
