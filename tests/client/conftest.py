"""The four ways a call can travel, each with the same face, so that a test is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.live_server import live_server

from tensorpost import AsyncClient, Client
from tensorpost._setup import DEFAULT_LIMITS
from tensorpost._transport import AsyncOverHttpx, OverHttpx


class BlockingAsyncClient:
    """An `AsyncClient` with an event loop of its own, to be called like a `Client`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def wait() -> Any:
                return await attribute(*args, **kwargs)

            return self._runner.run(wait())

        return call

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[memoryview]:
        return self._blocks(self._client.stream(*args, **kwargs))

    def _blocks(self, blocks: Any) -> Iterator[memoryview]:
        async def next_block() -> memoryview | None:
            return await anext(blocks, None)

        try:
            while (block := self._runner.run(next_block())) is not None:
                yield block
        finally:
            self._runner.run(blocks.aclose())

    def __enter__(self) -> BlockingAsyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


def httpx_client(url: str, **options: Any) -> Client:
    """A `Client` as it is for https and behind proxies."""
    client = Client(url, tls=False, **options)  # reading the certificates, for nothing here, would take longest
    client._transport.close()
    client._transport = OverHttpx(client._origin, options.get("limits", DEFAULT_LIMITS))
    return client


def async_httpx_client(url: str, **options: Any) -> BlockingAsyncClient:
    """An `AsyncClient` as it is for https and behind proxies."""
    client = BlockingAsyncClient(url, tls=False, **options)
    client._client._transport = AsyncOverHttpx(client._client._origin, options.get("limits", DEFAULT_LIMITS))
    return client


WAYS: dict[str, Callable[..., Any]] = {
    "sockets": Client,
    "asyncio": BlockingAsyncClient,
    "httpx": httpx_client,
    "asyncio-httpx": async_httpx_client,
}


@pytest.fixture(params=WAYS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`connect(url, **options)`: a client that travels one of these ways; closed when the test ends."""
    with ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(WAYS[request.param](url, **options))


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The base URL of a real server with default settings."""
    with live_server() as url:
        yield url
