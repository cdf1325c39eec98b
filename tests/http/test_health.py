"""`/v2/health`, and what starting and stopping do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import httpx
import pytest
from fastapi import FastAPI
from tests.support.http_app import NPY, app_settings, assert_problem, eventually, http_app, npy_bytes

from tensorpost.values.problems import InvalidParameter
from tensorpost_server.main import create_app

TILE = "/v1/operators/tile?repeats=2"


def ask(app: FastAPI, path: str, method: str = "GET", **options: object) -> httpx.Response:
    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, **options)  # pyright: ignore[reportArgumentType] # httpx's own

    return asyncio.run(run())


def test_alive_and_ready_while_it_serves():
    with http_app() as app:
        live, ready = app.get("/v2/health/live"), app.get("/v2/health/ready")

    assert (live.status_code, live.json()) == (200, {"live": True})
    assert (ready.status_code, ready.json()) == (200, {"live": True, "ready": True})


def test_alive_but_not_ready_before_the_start():
    app = create_app(app_settings())

    assert ask(app, "/v2/health/live").status_code == 200
    ready = ask(app, "/v2/health/ready")
    assert (ready.status_code, ready.json()) == (503, {"live": True, "ready": False})
    refused = ask(app, TILE, "POST", content=npy_bytes([1]), headers=NPY)
    assert_problem(refused, 503, "not-ready")
    assert refused.headers["retry-after"] == "1"
    assert_problem(ask(app, "/v1/devices"), 503, "not-ready")


def test_not_ready_after_the_stop():
    with http_app() as app:
        stopped = app.app

    assert ask(stopped, "/v2/health/live").status_code == 200
    assert ask(stopped, "/v2/health/ready").status_code == 503
    assert_problem(ask(stopped, TILE, "POST", content=npy_bytes([1]), headers=NPY), 503, "not-ready")


def test_not_ready_while_draining():
    with http_app() as app:
        app.service.draining = True

        assert app.get("/v2/health/ready").status_code == 503
        assert app.get("/v2/health/live").status_code == 200


def test_the_lifespan_opens_the_pool_and_closes_it():
    with http_app(numpy_threads=3) as app:
        pool = app.service.pool
        assert pool is not None
        assert app.post(TILE + "&backend=numpy", npy_bytes(bytearray(300_000), "uint8")).status_code == 200
        threads = [t for t in threading.enumerate() if t.name.startswith("tensorpost-numpy")]
        assert threads

    eventually(lambda: not any(thread.is_alive() for thread in threads), "the worker's threads end")
    assert not pool.workers
    assert app.service.pool is None


@pytest.mark.parametrize("backend", ["nunpy", ""])
def test_a_forced_backend_that_does_not_exist_stops_the_start(backend: str):
    with pytest.raises(InvalidParameter, match="there is no backend"), http_app(backend=backend):
        pytest.fail("it started")


def test_the_default_backend_of_the_settings():
    with http_app(backend="null") as app:
        assert app.post(TILE, npy_bytes([1])).headers["tensorpost-backend"] == "null"
        assert app.post(TILE + "&backend=numpy", npy_bytes([1])).headers["tensorpost-backend"] == "numpy"
        assert app.get("/v1/devices").json()["default"] == "null"


def test_importing_and_creating_open_nothing():
    # In a fresh interpreter: no thread, no socket, no backend, no device library; and the SDK's client is not loaded.
    code = """
import socket, sys, threading

def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")

socket.socket.bind = socket.socket.connect = socket.socket.listen = refuse
before = set(threading.enumerate())
from tensorpost_server.main import create_app
import tensorpost_server.main
app = create_app()
assert set(threading.enumerate()) == before, "a thread was started"
assert app.state.service.pool is None
loaded = [m for m in sys.modules if m.startswith("tensorpost_server.backends.")]
assert sorted(m.rpartition(".")[2] for m in loaded) == ["base", "timeline"], loaded
assert not {"cupy", "onnxruntime", "torch", "tensorpost.client", "tensorpost.transport.one_server"} & sys.modules.keys()
"""

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
