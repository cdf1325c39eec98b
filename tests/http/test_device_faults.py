"""Devices that fail while requests are on the wire: each ends as it should, and the next request is served."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import (
    NPY,
    Controlled,
    Serving,
    assert_problem,
    eventually,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)

from tensorpost import Client
from tensorpost.values.problems import DeviceLost, NoBackend, OutOfDeviceMemory
from tensorpost_server.engine import Worker
from tensorpost_server.http import service as module
from tensorpost_server.main import create_app

TILE = "/v1/operators/tile?repeats=200"
TILE_TWICE = "/v1/operators/tile?repeats=2"
BODY = npy_bytes(np.zeros(4096, np.uint8))  # 200 slices of 4 KiB come back
SLICES = 200
PATIENCE = 30


def once_at(index: int, error: Exception) -> Callable[[int], None]:
    left = [error]

    def before(at: int) -> None:
        if at == index and left:
            raise left.pop()

    return before


@contextmanager
def failing(before: Callable[[int], object], **settings: Any) -> Iterator[tuple[Serving, Controlled, list[str]]]:
    """A real server whose `numpy` is a device that does as it is told; what ends the process is noted instead."""
    ended: list[str] = []
    with serving(slice_bytes=4096, retry_after_seconds=3, **settings) as server:
        server.service.end = lambda: ended.append("ended")
        backend = Controlled(before=before, inline=False, device="cuda:0 a test's")
        with use_backend(server.service, backend):
            yield server, backend, ended


def post(server: Serving) -> Any:
    return server.ask(request_bytes("POST", TILE, BODY, NPY))


def assert_breaks(server: Serving) -> None:
    """The answer begins with 200 and does not come to its end."""
    with server.wire() as wire:
        wire.send(request_bytes("POST", TILE, BODY, NPY))
        status, headers = wire.head()
        assert status == 200
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.read(int(headers["content-length"]))


def assert_served(server: Serving) -> None:
    answer = post(server)
    assert (answer.status, len(answer.body)) == (200, 128 + SLICES * 4096)
    eventually(server.idle, "all memory is released")


def test_out_of_memory_before_the_first_byte_is_a_503_and_the_next_request_is_served():
    with failing(once_at(0, OutOfDeviceMemory("cuda:0 has no room"))) as (server, backend, ended):
        answer = post(server)
        problem = assert_problem(answer, 503, "out-of-device-memory")
        assert (answer.headers["retry-after"], problem["retry_after_seconds"]) == ("3", 3)
        assert problem["detail"] == "cuda:0 has no room"
        assert_served(server)
        assert (backend.closed_runs, ended) == (2, [])


def test_out_of_memory_in_mid_stream_breaks_the_connection_and_the_next_request_is_served():
    with failing(once_at(100, OutOfDeviceMemory("cuda:0 has no room"))) as (server, backend, ended):
        assert_breaks(server)
        assert_served(server)
        assert (backend.closed_runs, ended) == (2, [])


def test_a_mistake_of_ours_is_a_500_and_the_next_request_is_served():
    with failing(once_at(0, ValueError("secret"))) as (server, backend, ended):
        answer = post(server)
        assert b"secret" not in answer.body
        assert_problem(answer, 500, "internal-error")
        assert_served(server)
        assert (backend.closed_runs, ended) == (2, [])


def test_a_mistake_in_mid_stream_breaks_the_connection_and_the_next_request_is_served():
    with failing(once_at(100, ValueError("secret"))) as (server, backend, ended):
        assert_breaks(server)
        assert_served(server)
        assert (backend.closed_runs, ended) == (2, [])


@pytest.mark.parametrize("at", [0, 100])
def test_a_lost_device_fails_readiness_refuses_the_rest_and_ends_the_process(at: int):
    reason = "cuda:0 failed permanently: an uncorrectable memory error (ECC)"
    with failing(once_at(at, DeviceLost(reason))) as (server, backend, ended):
        assert server.ask(request_bytes("GET", "/v2/health/ready")).status == 200
        if at == 0:
            answer = post(server)
            assert reason in assert_problem(answer, 503, "device-lost")["detail"]
            assert answer.headers["retry-after"] == "3"
        else:
            assert_breaks(server)

        eventually(lambda: ended == ["ended"], "the process is told to end")
        ready = server.ask(request_bytes("GET", "/v2/health/ready"))
        assert (ready.status, ready.json()) == (503, {"live": False, "ready": False})
        live = server.ask(request_bytes("GET", "/v2/health/live"))
        assert (live.status, live.json()) == (503, {"live": False, "reason": reason})
        refused = post(server)
        detail = assert_problem(refused, 503, "not-ready")["detail"]
        assert detail == f"this server is ending, and another one should start: {reason}"
        assert refused.headers["retry-after"] == "3"
        listed = server.ask(request_bytes("GET", "/v1/devices")).json()["devices"]
        assert reason in [device["reason"] for device in listed], "who looks is still told why"
        eventually(server.idle, "all memory is released")
        assert (backend.started, backend.closed_runs, ended) == (1, 1, ["ended"])


def test_without_a_server_of_ours_the_process_is_asked_to_end(monkeypatch: pytest.MonkeyPatch):
    sent: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda _pid, number: sent.append(number))

    create_app().state.service.device_lost("cuda:0 failed permanently")

    assert sent == [signal.SIGTERM]


def test_the_command_ends_with_an_error_so_that_a_supervisor_starts_it_again():
    # A real process whose numpy loses its device on the first request of more than a MiB.
    code = textwrap.dedent("""
        import os, sys
        from tensorpost.__main__ import main
        from tensorpost.problems import DeviceLost
        from tensorpost_server.backends.numpy_ import NumpyBackend

        def start(self, plan, inputs, usual=NumpyBackend.start):
            if plan.output_bytes > 1 << 20:
                raise DeviceLost("cuda:0 failed permanently: a kernel touched memory that is not its own")
            return usual(self, plan, inputs)

        NumpyBackend.start = start
        sys.argv = ["tensorpost", "serve", "--port", "0"]
        os.environ["TENSORPOST_BACKEND"] = "numpy"
        main()
    """)
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"listens on (\S+)", server.stdout.readline())
        assert address is not None
        with Client(address[1], retries=0) as tp:
            np.testing.assert_array_equal(tp.tile(np.ones(4, np.uint8), (2,)), np.ones(8, np.uint8))
            with pytest.raises(DeviceLost, match="a kernel touched memory"):
                tp.tile(np.ones(1 << 16, np.uint8), (32,))
        out, err = server.communicate(timeout=PATIENCE)
    finally:
        server.kill()
        server.communicate()

    assert (server.returncode, out) == (1, "")
    assert '"level": "critical"' in err
    assert "cuda:0 failed permanently: a kernel touched memory that is not its own; this process ends" in err
    assert err.endswith("error: a device failed permanently (the log says which); start the server again\n")
    assert "Traceback" not in err


# ---- what is not a fault ---------------------------------------------------------------------------------------------


def test_a_body_is_received_into_the_memory_of_its_device():
    lent: list[memoryview] = []

    class Lending(Controlled):
        def host_memory(self, size_in_bytes: int) -> memoryview:
            lent.append(memoryview(bytearray(size_in_bytes)))
            return lent[-1]

    sent = np.arange(100_000, dtype=np.uint32)
    with http_app() as app, use_backend(app.service, Lending()):
        answer = app.post("/v1/operators/tile?repeats=1", npy_bytes(sent))

    assert answer.status_code == 200
    assert [bytes(block) for block in lent] == [sent.tobytes()]


def test_a_small_request_to_a_device_is_not_computed_on_the_event_loop():
    backend = Controlled(inline=False, device="cuda:0 NVIDIA H200")
    with http_app() as app, use_backend(app.service, backend):
        answer = app.post("/v1/operators/tile?repeats=2", npy_bytes([1]))

    assert answer.headers["tensorpost-device"] == "cuda:0 NVIDIA H200"
    assert {name.rpartition("_")[0] for name in backend.thread_names} == {"tensorpost-numpy"}


@pytest.mark.parametrize("path", ["/v1/operators/tile?repeats=2", "/v1/onnx/Tile?repeats=2"])
def test_a_device_is_named_in_the_query(path: str):
    with http_app() as app:
        assert app.post(f"{path}&backend=null&device=0", npy_bytes([1])).headers["tensorpost-backend"] == "null"
        missing = assert_problem(app.post(f"{path}&backend=numpy&device=3", npy_bytes([1])), 501, "no-backend")
        alone = assert_problem(app.post(f"{path}&device=0", npy_bytes([1])), 400, "invalid-parameter")
        for value in ("-1", "first", "", "99999", "%D9%A1"):
            problem = assert_problem(
                app.post(f"{path}&backend=null&device={value}", npy_bytes([1])), 400, "invalid-parameter"
            )
            assert problem["parameter"] == "device"

    assert missing["refused"] == {"numpy:3": "there is no device 3 of numpy here; there is only device 0"}
    assert alone["parameter"] == "device"


def test_the_sdk_names_a_device():
    with serving() as server, Client(server.url) as tp:
        x = np.ones(3, np.float32)
        assert tp.tile(x, (2,), backend="null", device=0).tolist() == [0] * 6
        np.testing.assert_array_equal(tp.resample(x, sizes=6, axes=0, backend="numpy", device=0), np.ones(6))
        np.testing.assert_array_equal(
            tp.onnx("Tile", x, np.array([2], np.int64), backend="numpy", device=0), npy_array(npy_bytes(np.ones(6)))
        )
        with pytest.raises(NoBackend, match="there is no device 4 of numpy here"):
            tp.tile(x, (2,), backend="numpy", device=4)


# ---- devices that know only when they begin --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 300_000], ids=["small", "long"])
@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_device_that_refuses_when_it_begins_is_passed_over_by_auto(length: int, accept: str):
    if accept == "application/json" and length > 10:
        accept = "application/vnd.safetensors"  # as JSON it is too long
    picky = Controlled(name="directml", inline=False)

    def starting() -> None:
        picky.refusal = "not this node"
        raise NoBackend("directml: not this node", extra={"refused": {"directml": "not this node"}})

    picky.starting = starting
    body = npy_bytes(bytearray(length), "uint8")
    with serving() as server:
        pool = server.service.pool
        assert pool is not None
        usual = dict(pool.workers)
        pool.workers.clear()
        pool.workers.update({"directml": Worker(picky, 3), **usual})
        for _ in range(2):
            answer = server.ask(request_bytes("POST", TILE_TWICE, body, {**NPY, "accept": accept}))
            assert (answer.status, answer.headers["tensorpost-backend"]) in [(200, "numba"), (200, "numpy")]
        picky.refusal = None
        forced = server.ask(request_bytes("POST", TILE_TWICE + "&backend=directml", body, NPY))
        assert_problem(forced, 501, "no-backend")
        assert picky.started == 0
        eventually(server.idle, "no memory is in use")
        assert [worker.queued_bytes for worker in pool.workers.values()] == [0] * len(pool.workers)


class Holding(Controlled):
    """Holds memory beside the inputs and the slices."""

    def held_bytes(self, plan: Any) -> int:
        del plan
        return 1 << 20


@pytest.mark.parametrize(("memory_bytes", "status"), [(1 << 30, 200), (1 << 20, 413)])
def test_the_memory_that_the_next_device_holds_is_reserved(memory_bytes: int, status: int):
    picky, reserved = Controlled(name="directml", inline=False), list[int]()

    def starting() -> None:
        picky.refusal = "not this node"
        raise NoBackend("directml: not this node")

    picky.starting = starting
    with serving(memory_bytes=memory_bytes) as server:
        pool, admission = server.service.pool, server.service.admission
        assert pool is not None
        holding = Holding(before=lambda _: reserved.append(admission.bytes_in_flight), inline=False)
        with use_backend(server.service, holding):
            pool.workers = {"directml": Worker(picky, 3), **pool.workers}
            answers: list[int] = []
            for _ in range(2):  # the second call goes to it at once
                answers.append(server.ask(request_bytes("POST", TILE_TWICE, npy_bytes([1, 2]), NPY)).status)
                eventually(server.idle, "no memory is in use")

    assert answers == [status] * 2
    assert len({*reserved}) == (1 if status == 200 else 0), "the same both times; nothing is computed if refused"
    assert all(size > 1 << 20 for size in reserved)


# ---- callers that do not read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["direct", "httptools", "h11"])
def test_the_last_part_of_an_answer_has_its_time_too(protocol: str):
    with (
        serving(
            http_protocol=protocol, send_timeout_seconds=0.3, slice_bytes=1 << 26, min_bytes_per_second=0
        ) as server,
        server.wire(receive_buffer=4096) as wire,
    ):
        wire.send(request_bytes("POST", "/v1/operators/tile?repeats=60", npy_bytes(bytearray(1 << 20), "uint8"), NPY))
        wire.head()
        assert not server.idle()
        eventually(server.idle, "all memory is released")
        if protocol == "direct":  # uvicorn's own keep the socket until the caller reads or goes
            eventually(lambda: not server.server.server_state.connections, "the connection is closed")


# ---- what is held before a plan exists -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["application/json", "application/vnd.safetensors"])
def test_bytes_that_are_read_to_understand_a_call_are_counted(form: str):
    length = 100_000
    with serving(max_requests=3) as server, contextlib.ExitStack() as open_wires:
        begin = (
            b'{"op": "' + b" " * 9000 if form == "application/json" else (99_000).to_bytes(8, "little") + b" " * 9000
        )
        for count in range(1, 4):
            wire = open_wires.enter_context(server.wire())
            wire.send(
                request_bytes("POST", "/v1/operators/tile", begin, {"content-type": form, "content-length": length})
            )
            eventually(lambda count=count: server.service.admission.requests_in_flight == count, "it has a place")
        assert server.service.admission.bytes_in_flight == 3 * length
        late = server.ask(request_bytes("POST", TILE_TWICE, npy_bytes(bytearray(10), "uint8"), NPY))
        assert_problem(late, 429, "too-busy")
        open_wires.close()
        eventually(server.idle, "all memory is released")
