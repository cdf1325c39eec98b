"""A caller's own httpx client under ours: its auth, its hooks, its mocks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save as write_safetensors
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import AsyncClient, Client, Limits, problems

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.tile(X, (1, 2))
FRAME = write_safetensors({"output": Y}, {"backend": "fake", "device": "none"})
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
OK = http_answer(body=FRAME, content_type=SAFETENSORS["content-type"])


def answering(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=FRAME, headers=SAFETENSORS)


def tile_in_both(make: Callable[[Any], dict[str, Any]], url: str = "http://peer.example") -> list[Any]:
    """What `tile` gives through `httpx.Client(**make(...))` and through `httpx.AsyncClient(**make(...))`."""

    async def in_asyncio() -> Any:
        async with httpx.AsyncClient(**make(httpx.AsyncClient)) as http, AsyncClient(url, http_client=http) as tp:
            return await tp.tile(X, (1, 2))

    with httpx.Client(**make(httpx.Client)) as http, Client(url, http_client=http, retries=0) as tp:
        blocking = tp.tile(X, (1, 2))
    return [blocking, asyncio.run(in_asyncio())]


def test_a_mock_answers() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answering(request)

    for y in tile_in_both(lambda _: {"transport": httpx.MockTransport(answer), "headers": {"x-own": "1"}}):
        np.testing.assert_array_equal(y, Y)
    assert [str(request.url) for request in seen] == ["http://peer.example/v1/operators/tile"] * 2
    assert [request.headers["x-own"] for request in seen] == ["1", "1"]
    assert [request.headers["accept-encoding"] for request in seen] == ["identity"] * 2


def test_auth_that_asks_twice_sends_the_body_twice() -> None:
    bodies: list[bytes] = []
    challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'

    def handle(connection: socket.socket, number: int) -> None:
        while (found := read_request(connection))[0]:
            bodies.append(found[1])
            authorised = b"authorization: digest" in found[0].lower()
            refusal = http_answer("401 No", headers=f"www-authenticate: {challenge}\r\n")
            connection.sendall(OK if authorised else refusal)

    with raw_server(handle) as server:
        for y in tile_in_both(lambda _: {"auth": httpx.DigestAuth("u", "p"), "trust_env": False}, server.url):
            np.testing.assert_array_equal(y, Y)
    assert len(bodies) == 4
    assert len(set(bodies)) == 1


@pytest.mark.parametrize("reads", [False, True], ids=["looks at the head", "reads the body"])
def test_hooks_are_called(reads: bool) -> None:
    called: list[str] = []

    def options(kind: Any) -> dict[str, Any]:
        def on_request(request: httpx.Request) -> None:
            called.append("request")

        def on_response(response: httpx.Response) -> None:
            called.append("response")
            if reads:
                response.read()

        async def async_request(request: httpx.Request) -> None:
            on_request(request)

        async def async_response(response: httpx.Response) -> None:
            called.append("response")
            if reads:
                await response.aread()

        pair = (on_request, on_response) if kind is httpx.Client else (async_request, async_response)
        hooks = {"request": [pair[0]], "response": [pair[1]]}
        return {"transport": httpx.MockTransport(answering), "event_hooks": hooks}

    for y in tile_in_both(options):
        np.testing.assert_array_equal(y, Y)
    assert called == ["request", "response"] * 2


def test_what_a_hook_raises_comes_out_as_it_is() -> None:
    def refuse(request: httpx.Request) -> None:
        raise KeyError("mine")

    hooks = {"request": [refuse]}
    with (
        httpx.Client(transport=httpx.MockTransport(answering), event_hooks=hooks) as http,
        Client("http://peer.example", http_client=http) as tp,
        pytest.raises(KeyError, match="mine"),
    ):
        tp.tile(X, (1, 2))


def test_it_is_left_open_and_named() -> None:
    with httpx.Client(transport=httpx.MockTransport(answering)) as http:
        with Client("http://peer.example", http_client=http) as tp:
            assert tp.transport == "httpx, the caller's own"
        assert not http.is_closed
        with pytest.raises(RuntimeError, match="closed"):
            tp.tile(X, (1, 2))


@pytest.mark.parametrize(
    ("cls", "given", "said"),
    [
        (Client, httpx.AsyncClient(), "http_client is a AsyncClient; it must be an httpx.Client"),
        (AsyncClient, httpx.Client(), "must be an httpx.AsyncClient"),
        (Client, "http://proxy", "http_client is a str"),
    ],
)
def test_another_kind_of_client_is_refused(cls: Any, given: Any, said: str) -> None:
    with pytest.raises(problems.InvalidParameter, match=said):
        cls("http://peer.example", http_client=given)


@pytest.mark.parametrize("options", [{"limits": Limits(max_connections=1)}, {"tls": False}, {"uds": "/a/socket"}])
def test_settings_of_its_own_are_not_given_twice(options: dict[str, Any]) -> None:
    with pytest.raises(problems.InvalidParameter, match="settings of the httpx client"):
        Client("http://peer.example", http_client=httpx.Client(), **options)
