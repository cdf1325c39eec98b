"""The four ways a call can travel, each with the same face, so that a test is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from tests.support.live_server import default_server

from tensorpost import AsyncClient, Client, Limits


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

    def stream_graph(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return self._blocks(self._client.stream_graph(*args, **kwargs))

    def map(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return self._blocks(self._client.map(*args, **kwargs))

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


def httpx_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Settings of an httpx client that does what ours would; reading the certificates would take longest."""
    limits = options.pop("limits", Limits())
    return {"verify": False, "trust_env": False, "limits": httpx.Limits(**asdict(limits))}


@contextmanager
def httpx_client(url: str, **options: Any) -> Iterator[Client]:
    """A `Client` over a caller's own httpx client, as it is behind proxies."""
    with httpx.Client(**httpx_settings(options)) as http, Client(url, http_client=http, **options) as client:
        yield client


@contextmanager
def async_httpx_client(url: str, **options: Any) -> Iterator[BlockingAsyncClient]:
    """An `AsyncClient` over a caller's own httpx client."""
    http = httpx.AsyncClient(**httpx_settings(options))
    with BlockingAsyncClient(url, http_client=http, **options) as client:
        yield client
        client._runner.run(http.aclose())


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
    with default_server() as url:
        yield url
