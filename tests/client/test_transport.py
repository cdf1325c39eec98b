"""Every way a call can travel, against peers that break off, hang, refuse early or talk nonsense."""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save as write_safetensors
from tests.client.conftest import WAYS, BlockingAsyncClient
from tests.support import raw_server as support
from tests.support.raw_server import http_answer, read_request

from tensorpost import AsyncClient, BufferTensorDesc, Client, Limits, TileOperatorDesc, Timeout, problems
from tensorpost.network.connection import Connection
from tensorpost.network.connection_pool import ConnectionPool
from tensorpost.network.deadline import Deadline
from tensorpost.network.origin import Origin
from tensorpost.network.runtime import ThreadRuntime, run_blocking
from tensorpost.transport.http1 import Request
from tensorpost.transport.httpx_sender import as_problem
from tensorpost.transport.socket_sender import SocketResponse

Connect = Callable[..., Any]

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.array([[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]], np.float32)
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
FRAME = write_safetensors({"output": Y}, {"backend": "fake", "device": "none"})
SAFETENSORS = "application/vnd.safetensors"
OK = http_answer(body=FRAME, content_type=SAFETENSORS)
BIG = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (32 << 20,)), (1,))
BIG_X = np.zeros(32 << 20, np.uint8)  # more than the buffers of both ends of a connection hold


CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"
SOCKETS = ["sockets", "asyncio", "tls", "asyncio-tls"]


def tls_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False  # the certificate is localhost's, the servers here are 127.0.0.1
    return context


def tls_client(url: str, **options: Any) -> Client:
    return Client(url, tls=trusting(), **options)


def async_tls_client(url: str, **options: Any) -> BlockingAsyncClient:
    return BlockingAsyncClient(url, tls=trusting(), **options)


EVERY_WAY: dict[str, Callable[..., Any]] = {**WAYS, "tls": tls_client, "asyncio-tls": async_tls_client}
_server_tls: list[ssl.SSLContext] = []  # what the servers of the running test speak


@pytest.fixture(params=EVERY_WAY)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """As in `conftest.py`, and over TLS, which every server of the test then speaks."""
    if request.param.endswith("tls"):
        _server_tls.append(tls_server())
    try:
        with ExitStack() as stack:
            yield lambda url, **options: stack.enter_context(EVERY_WAY[request.param](url, **options))
    finally:
        _server_tls.clear()


def raw_server(handle: Callable[[socket.socket, int], None], uds: str | None = None) -> Any:
    return support.raw_server(handle, uds, _server_tls[0] if _server_tls else None)


def origin_of(url: str, **options: Any) -> Origin:
    return Origin.parse(url, **{"headers": {}, "timeout": Timeout(), "tls": True, "uds": None, **options})


def problem(error: problems.TensorpostError, status: str, **options: str) -> bytes:
    import json

    body = json.dumps(error.to_problem(int(status[:3]))).encode()
    return http_answer(status, body, "application/problem+json", **options)


def answers(*payloads: bytes) -> Callable[[socket.socket, int], None]:
    """Answer the requests of all connections with these, one after the other; the last one again and again."""
    left, lock = list(payloads), threading.Lock()

    def handle(connection: socket.socket, number: int) -> None:
        while read_request(connection)[0]:
            with lock:
                payload = left.pop(0) if len(left) > 1 else left[0]
            connection.sendall(payload)

    return handle


def test_a_connection_is_used_again(connect: Connect) -> None:
    with raw_server(answers(OK)) as server:
        tp = connect(server.url)
        for _ in range(3):
            np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        assert b"".join(tp.stream(DESC, X, block_bytes=16)) == Y.tobytes()
        assert server.connections == 1


def test_a_connection_is_used_again_after_an_error_that_was_read_whole(connect: Connect) -> None:
    with raw_server(answers(problem(problems.ServerFault("ours"), "500 X"), OK)) as server:
        tp = connect(server.url)
        with pytest.raises(problems.ServerFault):
            tp.tile(X, (1, 2))
        tp.tile(X, (1, 2))
        assert server.connections == 1


def test_a_connection_is_used_again_after_an_error_without_a_body(connect: Connect) -> None:
    with raw_server(answers(http_answer("500 X"), OK)) as server:
        tp = connect(server.url)
        with pytest.raises(problems.ServerFault):
            tp.tile(X, (1, 2))
        tp.tile(X, (1, 2))
        assert server.connections == 1


# httpx does take them for it, and that is for httpx to change.
@pytest.mark.parametrize("connect", SOCKETS, indirect=True)
def test_bytes_after_an_answer_are_not_taken_for_the_next_one(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        while read_request(connection)[0]:
            connection.sendall(OK + OK.replace(b"200 OK", b"500 No"))

    with raw_server(handle) as server:
        tp = connect(server.url, retries=0)
        for _ in range(3):
            np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        assert server.connections == 3


def test_a_connection_that_the_server_closes_is_replaced(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK)

    with raw_server(handle) as server:
        tp = connect(server.url, retries=0)
        tp.tile(X, (1, 2))
        time.sleep(0.05)  # the end of the connection arrives
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        assert server.connections == 2


def test_connection_close_is_obeyed(connect: Connect) -> None:
    with raw_server(
        answers(http_answer(body=FRAME, content_type=SAFETENSORS, headers="connection: close\r\n"))
    ) as server:
        tp = connect(server.url, retries=0)
        tp.tile(X, (1, 2))
        tp.tile(X, (1, 2))
        assert server.connections == 2


def test_the_request_says_what_it_must(connect: Connect) -> None:
    heads: list[bytes] = []

    def handle(connection: socket.socket, number: int) -> None:
        head, body = read_request(connection)
        heads.append(head)
        heads.append(str(len(body)).encode())
        connection.sendall(OK)

    with raw_server(handle) as server:
        connect(server.url + "/prefix/", headers={"Authorization": "Bearer t"}).tile(X, (1, 2))

    request, *lines = heads[0].decode().split("\r\n")
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert request == "POST /prefix/v1/operators/tile HTTP/1.1"
    assert len(found) == len(lines)
    found.pop("connection", None)  # httpx says keep-alive, which is the default
    assert found == {
        "host": server.url.partition("://")[2],
        "authorization": "Bearer t",
        "accept": SAFETENSORS,
        "accept-encoding": "identity",
        "user-agent": "tensorpost",
        "content-type": SAFETENSORS,
        "content-length": heads[1].decode(),
    }


# httpx carries TLS and proxies only, and neither is to be had over a Unix socket.
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on Windows")
@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)
def test_a_unix_socket_will_do(connect: Connect, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with raw_server(answers(OK), uds=path) as server:
        np.testing.assert_array_equal(connect(server.url, uds=path).tile(X, (1, 2)), Y)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_chunked_answer_is_read(connect: Connect, size: int) -> None:
    chunks = [FRAME[at : at + size] for at in range(0, len(FRAME), size)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {SAFETENSORS}\r\ntransfer-encoding: chunked\r\n\r\n"

    with raw_server(answers(head.encode() + body)) as server:
        tp = connect(server.url)
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        assert server.connections == 1


def test_an_answer_that_ends_with_its_connection_is_read(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: {SAFETENSORS}\r\n\r\n".encode() + FRAME)

    with raw_server(handle) as server:
        np.testing.assert_array_equal(connect(server.url).tile(X, (1, 2)), Y)


def test_an_answer_that_comes_drop_by_drop_is_read(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_request(connection)
        for at in range(len(OK)):
            connection.sendall(OK[at : at + 1])

    with raw_server(handle) as server:
        np.testing.assert_array_equal(connect(server.url).tile(X, (1, 2)), Y)


# ---- no server, no answer, not in time ------------------------------------------------------------------------------


def test_no_server_is_a_failed_connection_after_the_retries(connect: Connect) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    begin = time.monotonic()

    with pytest.raises(problems.ConnectFailed, match=f"no connection to http://127.0.0.1:{port}"):
        connect(f"http://127.0.0.1:{port}", retries=1).tile(X, (1, 2))

    assert 0.05 <= time.monotonic() - begin < 3


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on Windows")
@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)
def test_no_unix_socket_is_a_failed_connection(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(problems.ConnectFailed, match="Unix socket"):
        connect("http://localhost", uds=str(tmp_path / "none"), retries=0).tile(X, (1, 2))


def test_a_name_that_does_not_exist_is_a_failed_connection(connect: Connect) -> None:
    with pytest.raises(problems.ConnectFailed):
        connect("http://does-not-exist.invalid", retries=0).tile(X, (1, 2))


@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)
def test_what_is_no_name_is_a_failed_connection(connect: Connect) -> None:
    with pytest.raises(problems.ConnectFailed, match=r"no connection to http://a\.\.b"):
        connect("http://a..b", retries=0).tile(X, (1, 2))


def test_a_server_that_says_nothing_is_a_timeout(connect: Connect) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        release.wait(10)

    with raw_server(handle) as server:
        tp = connect(server.url, timeout=0.2)
        with pytest.raises(problems.RequestTimeout, match=r"silent for 0\.2 seconds"):
            tp.tile(X, (1, 2))
        release.set()
        assert server.connections == 1  # a timeout is not repeated


def test_a_server_that_falls_silent_in_the_middle_is_a_timeout(connect: Connect) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[:-8])
        release.wait(10)

    with raw_server(handle) as server:
        with pytest.raises(problems.RequestTimeout, match="of the answer"):
            connect(server.url, timeout=0.2).tile(X, (1, 2))
        release.set()


def test_a_server_that_does_not_read_is_a_timeout(connect: Connect) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        release.wait(10)

    with raw_server(handle) as server:
        with pytest.raises(problems.RequestTimeout):
            connect(server.url, timeout=0.3).run(BIG, BIG_X)
        release.set()


def test_a_slow_server_is_no_timeout_while_it_goes_on(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[:-40])
        for at in range(len(OK) - 40, len(OK), 8):
            time.sleep(0.1)
            connection.sendall(OK[at : at + 8])

    with raw_server(handle) as server:
        np.testing.assert_array_equal(connect(server.url, timeout=0.4).tile(X, (1, 2)), Y)


def test_a_call_more_than_there_are_connections_is_a_timeout_too(connect: Connect) -> None:
    limits, patience = Limits(max_connections=1), Timeout(pool=0.05)
    with raw_server(answers(OK)) as server:
        tp = connect(server.url, limits=limits, timeout=patience, retries=0)
        blocks = tp.stream(DESC, X, block_bytes=8)
        next(blocks)
        with pytest.raises(problems.RequestTimeout, match=r"in use for 0\.05 seconds") as caught:
            tp.tile(X, (1, 2))
        assert caught.value.extra == {"phase": "pool"}
        assert len(list(blocks)) == 5
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        assert server.connections == 1


def test_as_many_idle_connections_are_kept_as_the_limits_say(connect: Connect) -> None:
    with raw_server(answers(OK)) as server:
        tp = connect(server.url, limits=Limits(max_keepalive_connections=0))
        tp.tile(X, (1, 2))
        tp.tile(X, (1, 2))
        assert server.connections == 2


def test_a_failed_call_gives_its_connection_s_place_back(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[: len(OK) // (2 if number == 1 else 1)] if number < 3 else b"")

    with raw_server(handle) as server:
        tp = connect(server.url, limits=Limits(max_connections=1), timeout=Timeout(pool=0.5), retries=0)
        with pytest.raises(problems.IncompleteBody):
            tp.tile(X, (1, 2))
        tp.tile(X, (1, 2))
        for _ in range(2):  # the server answers nothing; how that is noticed depends on when
            with pytest.raises(problems.ConnectionProblem) as caught:
                tp.tile(X, (1, 2))
            assert caught.value.extra.get("phase") != "pool"


@pytest.mark.parametrize(("phase", "wait"), [("read", Timeout(read=0.1)), ("write", Timeout(write=0.1))])
def test_a_timeout_says_which_wait_it_was(connect: Connect, phase: str, wait: Timeout) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        if phase == "read":
            read_request(connection)
        release.wait(10)

    with raw_server(handle) as server:
        with pytest.raises(problems.RequestTimeout, match=r"silent for 0\.1 seconds") as caught:
            connect(server.url, timeout=wait).run(BIG, BIG_X)
        release.set()
    assert caught.value.extra == {"phase": phase}


# ---- broken answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("missing", [1, len(FRAME) - 1, len(FRAME)])
def test_an_answer_that_breaks_off_is_incomplete(connect: Connect, missing: int, reset: bool) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[: len(OK) - missing])
        if reset:
            time.sleep(0.1)  # what was sent arrives before the reset overtakes it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with raw_server(handle) as server:
        with pytest.raises(problems.IncompleteBody) as caught:
            connect(server.url).tile(X, (1, 2))
        assert caught.value.extra == {"received": len(FRAME) - missing, "expected": len(FRAME)}
        assert server.connections == 1


def test_a_stream_that_breaks_off_has_given_what_was_right(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[:-20])

    with raw_server(handle) as server:
        blocks = connect(server.url).stream(DESC, X, block_bytes=8)
        got = [bytes(next(blocks)) for _ in range(3)]
        with pytest.raises(problems.IncompleteBody):
            next(blocks)
        assert b"".join(got) == Y.tobytes()[:24]
        assert server.connections == 1


def test_leaving_a_stream_early_closes_its_connection(connect: Connect) -> None:
    hung_up = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(OK[:-8])
        if not connection.recv(1):
            hung_up.set()

    with raw_server(handle) as server:
        blocks = connect(server.url, timeout=5).stream(DESC, X, block_bytes=8)
        assert bytes(next(blocks)) == Y.tobytes()[:8]
        blocks.close()
        assert hung_up.wait(3)


@pytest.mark.parametrize("answered", [2, 9])
def test_a_connection_closed_without_an_answer_is_tried_again(connect: Connect, answered: int) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        if number == answered:
            connection.sendall(OK)

    with raw_server(handle) as server:
        tp = connect(server.url, retries=1)
        if answered == 2:
            np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
        else:
            with pytest.raises(problems.ConnectionProblem, match="without an answer") as caught:
                tp.tile(X, (1, 2))
            assert type(caught.value) is problems.ConnectionProblem
        assert server.connections == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"\x15\x03\x01\0\2\2\x50" * 20 + b"\r\n\r\n",
        b"\n\n\n\n" * 9,
    ],
)
def test_what_speaks_no_http_is_named(connect: Connect, nonsense: bytes) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(nonsense)

    with raw_server(handle) as server, pytest.raises(problems.ConnectionProblem) as caught:
        connect(server.url, retries=0).tile(X, (1, 2))
    assert type(caught.value) is problems.ConnectionProblem


def test_an_endless_head_is_not_read_for_ever(connect: Connect) -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"x-filler: " + b"y" * 1000 + b"\r\n")

    with raw_server(handle) as server, pytest.raises(problems.ConnectionProblem):
        connect(server.url, retries=0, timeout=5).tile(X, (1, 2))


# ---- refusals before the request was read ----------------------------------------------------------------------------

REFUSALS = {
    "413": (problems.LimitExceeded.of("the request body", 9, 8, "TENSORPOST_MAX_BODY_BYTES"), "413 Content Too Large"),
    "429": (problems.TooBusy("every byte is lent out"), "429 Too Many Requests"),
}


# Not httpx on asyncio: asyncio forgets what a connection has received as soon as a send on it fails.
@pytest.mark.parametrize("connect", ["sockets", "asyncio", "httpx"], indirect=True)
@pytest.mark.parametrize("status", REFUSALS)
def test_an_early_refusal_is_understood_when_the_server_then_hangs_up(connect: Connect, status: str) -> None:
    error, line = REFUSALS[status]

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection, body=False)
        connection.sendall(problem(error, line, headers="connection: close\r\n"))
        # Closing with bytes unread resets the connection, so that the client's next send fails.

    with raw_server(handle) as server, pytest.raises(type(error)) as caught:
        connect(server.url, retries=0).run(BIG, BIG_X)
    assert caught.value.status == int(status)


@pytest.mark.parametrize("status", REFUSALS)
def test_an_early_refusal_is_understood_when_the_server_reads_on(connect: Connect, status: str) -> None:
    error, line = REFUSALS[status]

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection, body=False)
        connection.sendall(problem(error, line))
        while connection.recv(1 << 20):
            pass

    with raw_server(handle) as server, pytest.raises(type(error)):
        connect(server.url, retries=0).run(BIG, BIG_X)


# Nothing fails here but the client's patience, so it must listen while it sends; httpx does not, and times out.
@pytest.mark.parametrize("connect", SOCKETS, indirect=True)
def test_sockets_see_an_early_refusal_of_a_server_that_reads_no_further(connect: Connect) -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection, body=False)
        connection.sendall(problem(problems.TooBusy("full"), "429 Too Many Requests"))
        release.wait(10)

    with raw_server(handle) as server:
        tp = connect(server.url, retries=0, timeout=5)
        begin = time.monotonic()
        with pytest.raises(problems.TooBusy):
            tp.run(BIG, BIG_X)
        assert time.monotonic() - begin < 2
        release.set()


def test_a_server_that_hangs_up_while_a_request_is_sent_is_no_error_of_its_own() -> None:
    """The answer, if there is one, is in the connection still; only reading it shows why the server hung up."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    deadline = Deadline(ThreadRuntime(), origin_of("http://x"))
    with ours:
        response = SocketResponse(Request("GET", "/", ()), ConnectionPool(Limits()), Connection(ours), deadline)
        assert run_blocking(response._send(memoryview(b"x"))) is False


@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)  # the two that wait: one second is enough
def test_a_refused_call_is_repeated_after_what_the_server_asked_for(connect: Connect) -> None:
    busy = problem(problems.TooBusy("full"), "429 Too Many Requests", headers="retry-after: 1\r\n")
    with raw_server(answers(busy, OK)) as server:
        begin = time.monotonic()
        np.testing.assert_array_equal(connect(server.url).tile(X, (1, 2)), Y)
        assert 1.0 <= time.monotonic() - begin < 3.0
        assert server.connections == 1


# ---- the caller's own doing ------------------------------------------------------------------------------------------


def test_a_certificate_that_is_not_trusted_is_named_and_not_asked_for_again() -> None:
    context = tls_server()
    met: list[int] = []

    def handle(connection: socket.socket, number: int) -> None:
        met.append(number)
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with (
        raw_server(handle) as server,
        Client(server.url.replace("http:", "https:")) as tp,
        pytest.raises(problems.ConnectFailed, match=r"certificate of https://.* is not trusted: .*cafile=") as caught,
    ):
        tp.limits()

    assert len(met) == 1
    assert "self-signed" in caught.value.extra["certificate"] or "self signed" in caught.value.extra["certificate"]


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue is silent on Linux; elsewhere it refuses")
@pytest.mark.parametrize("connect", ["sockets", "asyncio"], indirect=True)
def test_the_next_address_of_a_name_is_tried(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one takes no connection: its queue is full, so the handshake is never answered."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for sock in waiting:
        sock.setblocking(False)
        sock.connect_ex(full.getsockname())
    try:
        with raw_server(answers(OK)) as server:
            places = [full.getsockname(), ("127.0.0.1", int(server.url.rpartition(":")[2]))]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            tp = connect("http://two.example", timeout=Timeout(connect=0.3), retries=0)
            np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)
    finally:
        for sock in (full, *waiting):
            sock.close()


@pytest.mark.parametrize("error", [KeyError("mine"), TimeoutError("mine"), BrokenPipeError("mine")], ids=repr)
@pytest.mark.parametrize("when", ["sending", "receiving"])
def test_what_progress_raises_ends_the_call_as_it_is(connect: Connect, error: Exception, when: str) -> None:
    def report(progress: Any) -> None:
        if progress.received if when == "receiving" else progress.sent:
            raise error

    with raw_server(answers(OK)) as server:
        tp = connect(server.url, retries=0)
        with pytest.raises(type(error), match="mine") as caught:
            tp.tile(X, (1, 2), progress=report)
        assert caught.value is error
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)


def test_a_closed_client_says_so(connect: Connect) -> None:
    with raw_server(answers(OK)) as server:
        tp = connect(server.url)
        tp.tile(X, (1, 2))
        tp.close()
        with pytest.raises(RuntimeError, match="closed"):
            tp.tile(X, (1, 2))


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    def handle(connection: socket.socket, number: int) -> None:
        heads.append(read_request(connection)[0])
        connection.sendall(OK)

    with raw_server(handle) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.delenv("no_proxy", raising=False)
        with Client("http://tensors.example") as tp:
            np.testing.assert_array_equal(tp.tile(X, (1, 2)), Y)

    assert heads[0].startswith(b"POST http://tensors.example/v1/operators/tile HTTP/1.1\r\n")


def test_every_transport_error_of_httpx_has_a_counterpart() -> None:
    deadline = Deadline(ThreadRuntime(), origin_of("http://x", timeout=Timeout.from_value(None)))
    classes, todo = set[type[httpx.TransportError]](), [httpx.TransportError]
    while todo:
        classes.add(cls := todo.pop())
        todo += cls.__subclasses__()
    assert len(classes) > 10

    for cls in classes - {httpx.LocalProtocolError}:
        assert isinstance(as_problem(cls("x"), deadline), problems.ConnectionProblem)
    for cls in (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError):
        assert type(as_problem(cls("x"), deadline)) is problems.ConnectFailed
    for cls in (httpx.ReadTimeout, httpx.WriteTimeout):
        found = as_problem(cls("x"), deadline)
        assert type(found) is problems.RequestTimeout
        assert "silent for too long" in found.detail
    with pytest.raises(httpx.LocalProtocolError):  # a mistake of ours, which must not look like the network's
        as_problem(httpx.LocalProtocolError("x"), deadline)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://127.0.0.1:1", {}, "own sockets, TCP"),
        ("http://localhost", {"uds": "/no/such"}, "own sockets, Unix"),
        ("https://127.0.0.1:1", {"tls": False}, "own sockets, TLS"),
        ("http://tensors.example", {}, "httpx, for a proxy"),
    ],
)
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_a_client_says_how_its_calls_travel(
    cls: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, url: str, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.example:1")
    monkeypatch.delenv("no_proxy", raising=False)

    client = cls(url, **options)

    assert client.transport == said
    assert repr(client).startswith(f"<{cls.__name__} of {url}")
    assert repr(client).endswith(f" over {said}>")
    assert "secret" not in repr(client)
