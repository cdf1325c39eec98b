"""A machine without memory: 503 with Retry-After, and the server goes on."""

from __future__ import annotations

import contextlib
import errno
import mmap
import sys
import time
from pathlib import Path
from typing import Any, Never
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.http_app import (
    JSON,
    NPY,
    PATIENCE,
    Controlled,
    Wire,
    assert_problem,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)  # fmt: skip
from tests.support.live_server import live_process

from tensorpost_server.engine.buffer_pool import SMALLEST, BufferPool

TILE = "/v1/operators/tile?repeats=2"


def no_memory(*_: object) -> Never:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def npy_head(elements: int) -> bytes:
    """The head of an npy file of so many bytes; none of them follow."""
    head = npy_bytes([0], "uint8")[:128]
    shape = f"({elements},), }}".encode()
    begin = head[: head.index(b"(1,)")] + shape
    return begin.ljust(127) + b"\n"


def test_a_mapping_that_fails_is_counted_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(1 << 30)
    monkeypatch.setattr(mmap, "mmap", no_memory)

    with pytest.raises(MemoryError):
        pool.allocate(2 * SMALLEST)

    assert (pool.allocated_bytes, pool.kept_bytes) == (0, 0)


def test_a_large_tensor_that_cannot_be_held_is_503_and_small_ones_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(pool_bytes=1 << 30, numpy_threads=1, retry_after_seconds=7) as server:
        size = 2 * SMALLEST
        with monkeypatch.context() as patched:
            patched.setattr(mmap, "mmap", no_memory)
            request = request_bytes("POST", TILE, npy_head(size), {**NPY, "content-length": 128 + size})
            refused = server.ask(request)
        server.assert_serves_on()

    assert_problem(refused, 503, "unavailable")
    assert refused.headers["retry-after"] == "7"


FAULTS: dict[str, Exception] = {
    "MemoryError": MemoryError(),
    "ENOMEM": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "no thread": RuntimeError("can't start new thread"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("accept", ["application/x-npy", "application/json"])
def test_memory_that_is_missing_while_computing_is_503(fault: str, accept: str) -> None:
    def fail(_index: int) -> None:
        raise FAULTS[fault]

    with http_app(retry_after_seconds=7) as app:
        with use_backend(app.service, Controlled(before=fail)):
            refused = app.post(TILE, npy_bytes([1, 2]), {**NPY, "accept": accept})
        served = app.post(TILE, npy_bytes([1, 2]))

    assert_problem(refused, 503, "unavailable")
    assert (refused.headers["retry-after"], served.status_code) == ("7", 200)


def test_validation_without_memory_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Never:
        raise MemoryError

    with http_app(retry_after_seconds=7) as app:
        monkeypatch.setattr("tensorpost_server.http.routes.operator_routes.read_json", fail)
        refused = app.post("/v1/validate", b"{}", JSON)

    assert_problem(refused, 503, "unavailable")
    assert refused.headers["retry-after"] == "7"


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS of another process is set by Linux's prlimit")
def test_a_server_under_an_address_space_limit_goes_on() -> None:
    import resource  # not on Windows

    with live_process(
        TENSORPOST_NUMPY_THREADS="2", TENSORPOST_MEMORY_BYTES=str(64 << 30), TENSORPOST_ALLOWED_HOSTS="*"
    ) as (url, pid):
        host, port = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)
        small = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY)
        statuses: list[int] = []

        def ask(data: bytes) -> Any:
            with contextlib.closing(Wire(host, port)) as wire:
                wire.send(data)
                return wire.answer()

        assert ask(small).status == 200
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (160 << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))  # pyright: ignore[reportAttributeAccessIssue] # Linux
        for size in (1 << 29, 3 << 28, 1 << 28, 1 << 29):
            refused = ask(request_bytes("POST", TILE, npy_head(size), {**NPY, "content-length": 128 + size}))
            assert_problem(refused, 503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 0
        with contextlib.ExitStack() as open_wires:
            wires = [open_wires.enter_context(contextlib.closing(Wire(host, port))) for _ in range(16)]
            body = npy_bytes([1] * (8 << 20), "uint8")
            for wire in wires:
                wire.send(request_bytes("POST", TILE, body[:-1], {**NPY, "content-length": len(body)}))
            for wire in wires:
                with contextlib.suppress(OSError):  # a refused body may be cut off
                    wire.send(body[-1:])
            for wire in wires:
                with contextlib.suppress(OSError, EOFError):
                    statuses.append(wire.answer().status)
        again: Any = None
        end = time.monotonic() + 3 * PATIENCE  # a connection that gets no answer takes PATIENCE to give up
        while again is None:  # a connection may still find no memory, until that of those before it is given back
            with contextlib.suppress(OSError, EOFError):
                again = ask(small)
            assert time.monotonic() < end
        live = httpx.get(f"{url}/v2/health/live")

    assert {*statuses} <= {200, 503}, statuses  # a connection may also break, where its own buffers find no memory
    np_answer = npy_array(again.body).tolist()
    assert (again.status, np_answer, live.status_code) == (200, [1.0, 2.0, 1.0, 2.0], 200)
