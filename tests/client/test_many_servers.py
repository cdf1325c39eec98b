"""A client of several servers: who gets a call, what is repeated where, and who rests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import AsyncClient, Client, problems
from tensorpost.network.runtime import run_blocking
from tensorpost.transport.http1 import Request
from tensorpost.transport.many_servers import ManyServers
from tensorpost.values.problems import PROBLEM_TYPE_PREFIX

PROBLEM = b'{"type": "' + PROBLEM_TYPE_PREFIX.encode() + b'%s", "detail": "no"}'
OK = http_answer(body=b'{"a": 1}')
BUSY = http_answer(
    "429 Too Many Requests", PROBLEM % b"too-busy", "application/problem+json",
    headers="retry-after: 5\r\n",
)  # fmt: skip
NOT_READY = http_answer("503 Service Unavailable", PROBLEM % b"not-ready", "application/problem+json")


@contextlib.contextmanager
def servers(*answers: list[bytes]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """A server for each list: its answers in turn, the last one repeatedly. Yields URLs, and what each was asked."""
    asked: list[list[str]] = [[] for _ in answers]

    def handler(own: list[bytes], seen: list[str]) -> Callable[[socket.socket, int], None]:
        def handle(connection: socket.socket, _number: int) -> None:
            while (head := read_request(connection)[0]) != b"":
                seen.append(head.split()[1].decode())
                connection.sendall(answer := own.pop(0) if len(own) > 1 else own[0])
                if not answer:
                    return

        return handle

    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(raw_server(handler(own, seen))) for own, seen in zip(answers, asked, strict=True)
        ]
        yield [server.url for server in running], asked


@pytest.fixture
def closed() -> str:
    """The URL of a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_calls_take_turns_and_another_one_takes_over(closed: str) -> None:
    with servers([OK], [OK]) as (urls, asked), Client([closed, *urls], retries=0) as tp:
        answers = [tp.limits() for _ in range(8)]

    assert answers == [{"a": 1}] * 8
    assert [len(found) for found in asked] == [4, 4]


def test_the_same_for_asyncio(closed: str) -> None:
    async def calls(urls: list[str]) -> None:
        async with AsyncClient([closed, *urls]) as tp:
            await asyncio.gather(*(tp.limits() for _ in range(6)))

    with servers([OK], [OK]) as (urls, asked):
        asyncio.run(calls(urls))

    assert [len(found) for found in asked] == [3, 3]


@pytest.mark.parametrize("refusal", [BUSY, NOT_READY, b""], ids=["busy", "not ready", "closed"])
def test_a_refusal_is_repeated_elsewhere_at_once_and_its_server_rests(refusal: bytes) -> None:
    with servers([refusal, OK], [OK]) as (urls, asked), Client(urls, retries=0) as tp:
        assert [tp.limits() for _ in range(5)] == [{"a": 1}] * 5

    assert [len(found) for found in asked] == [1, 5]


def test_what_is_wrong_everywhere_is_asked_once() -> None:
    wrong = http_answer("404 Not Found", PROBLEM % b"unknown-operator", "application/problem+json")
    with servers([wrong], [wrong]) as (urls, asked), Client(urls) as tp, pytest.raises(problems.UnknownOperator):
        tp.operator("x")

    assert sum(map(len, asked)) == 1


def test_when_all_refuse_the_last_reason_is_raised() -> None:
    with servers([NOT_READY], [NOT_READY]) as (urls, asked), Client(urls, retries=1) as tp:
        with pytest.raises(problems.NotReady):
            tp.limits()
        assert not tp.ready()

    assert [len([path for path in found if path == "/v1/limits"]) for found in asked] == [2, 2]


def test_every_server_that_failed_is_named(closed: str) -> None:
    with servers([NOT_READY]) as (urls, _), Client([closed, *urls, "http://127.0.0.1:1"], retries=1) as tp:
        with pytest.raises(problems.TensorpostError) as refused:
            tp.limits()

        said = str(refused.value)
        for url in (closed, *urls, "http://127.0.0.1:1"):
            assert said.count(url.removeprefix("http://")) == 1, said

    wrong = http_answer("404 Not Found", PROBLEM % b"unknown-operator", "application/problem+json")
    with servers([NOT_READY], [wrong]) as (urls, _), Client(urls) as tp:
        with pytest.raises(problems.UnknownOperator) as refused:
            [tp.operator("x") for _ in range(2)]
        assert str(refused.value) == "no", "the caller's own mistake"


def test_ready_is_one_that_takes_requests() -> None:
    with servers([NOT_READY], [OK]) as (urls, _), Client(urls) as tp:
        assert tp.ready()


class Fake:
    """A transport whose answers stay open until the test closes them."""

    def __init__(self, name: str) -> None:
        self.origin, self.retries, self.asked = Origin(name), 2, list[Request]()
        self.runtime: Any = None
        self.error: BaseException | None = None

    async def attempt(self, request: Request, _deadline: object) -> Any:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return Answer()


class Origin:
    def __init__(self, host: str) -> None:
        self.host, self.port, self.headers, self.address = host, 1, dict[str, str](), None
        self.timeout = type("Timeout", (), {"total": None, "connect": 1})()


class Answer:
    expected = 1 << 20
    span = when_closed = None

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None: ...
    async def read(self) -> bytes:
        return b""


def many(*fakes: Fake, clock: Callable[[], float] = lambda: 0.0) -> ManyServers:
    return ManyServers(fakes, None, fakes[0], clock)  # pyright: ignore[reportArgumentType] # as much of it as is used


def post(size: int) -> Request:
    return Request("POST", "/", (), (memoryview(bytes(size)),))


def test_the_fewest_outstanding_bytes_of_requests_and_answers_decide() -> None:
    a, b = Fake("a"), Fake("b")
    all_of_them = many(a, b)

    first: Any = run_blocking(all_of_them.ask(post(0)))  # a: 1 MiB of answer to come
    for _ in range(3):
        small: Any = run_blocking(all_of_them.ask(post(10)))
        small.when_closed()
    assert (len(a.asked), len(b.asked)) == (1, 3)
    first.when_closed()
    run_blocking(all_of_them.ask(post(10)))  # nothing is outstanding: the one that was longest without
    assert (len(a.asked), len(b.asked)) == (2, 3)


def test_rests_grow_and_a_large_body_is_announced_by_a_question() -> None:
    now = [0.0]
    a, b = Fake("a"), Fake("b")
    all_of_them = many(a, b, clock=lambda: now[0])
    a.error = problems.ConnectFailed("")

    def ask(size: int = 0) -> None:
        answer: Any = run_blocking(all_of_them.ask(post(size)))
        answer.when_closed()

    ask()
    ask()
    now[0] = 0.6
    ask()
    assert len(a.asked) == 2, "half a second"
    now[0] = 1.4
    ask()
    assert len(a.asked) == 2, "now a whole one"
    now[0] = 1.7
    ask(2 << 20)
    assert a.asked[-1].target == "/v2/health/ready"
    now[0], a.error = 10.0, None
    ask(2 << 20)
    assert [request.target for request in a.asked[-2:]] == ["/v2/health/ready", "/"]


@pytest.mark.parametrize("error", [problems.QuotaExceeded(""), asyncio.CancelledError()])
def test_what_is_the_caller_s_own_rests_no_server(error: BaseException) -> None:
    server = Fake("a")
    one = many(server)
    server.retries, server.error = 0, error
    with pytest.raises(type(error)):
        run_blocking(one.ask(post(0)))

    server.error = None
    run_blocking(one.ask(post(2 << 20)))  # after a failure, a question would come first
    assert [request.target for request in server.asked] == ["/", "/"]


def test_every_address_of_a_name_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(host: str, port: int, **_: object) -> list[Any]:
        return [(2, 1, 6, "", (found, port)) for found in ([host] if host[0].isdigit() else ["127.0.0.1", "127.0.0.2"])]

    monkeypatch.setattr("socket.getaddrinfo", addresses)
    with servers([OK]) as (urls, asked):
        port = urls[0].rpartition(":")[2]
        with Client(f"dns+http://tensors.test:{port}", retries=0) as tp:
            assert [tp.limits() for _ in range(3)] == [{"a": 1}] * 3
            assert "every address of http://tensors.test" in repr(tp)
            found: Any = tp._transport
            assert {server.transport.origin.address for server in found._servers} == {"127.0.0.1", "127.0.0.2"}

    assert len(asked[0]) == 3


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ([], {}, "a URL, or several that differ"),
        (["http://a", "http://a"], {}, "a URL, or several that differ"),
        (["http://a", "dns+http://b"], {}, "must be the only URL"),
        (["http://a", "http://b"], {"uds": "/x"}, "leads to one server"),
        (["http://a", "http://b"], {"shared_memory": True}, "is of one server on this host"),
        (["http://a", "ftp://b"], {}, "is not an http or https URL"),
        ("dns+ftp://b", {}, "is not an http or https URL"),
        (["http://a", 3], {}, "base_url"),
    ],
)
def test_malformed(url: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(problems.InvalidParameter, match=said):
        Client(url, **more)
