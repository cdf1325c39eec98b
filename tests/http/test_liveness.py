"""`/v2/health/live` asks the workers: it fails when a device is lost, fails a Tile, or does not come back."""

from __future__ import annotations

import threading

import pytest
from tests.support.http_app import NPY, Controlled, eventually, http_app, npy_bytes, request_bytes, serving, use_backend

from tensorpost.values.problems import DeviceLost, OutOfDeviceMemory
from tensorpost_server.backends import BACKENDS, DeviceOptions
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.engine import Pool, worker

LIVE = request_bytes("GET", "/v2/health/live")
TILE = request_bytes("POST", "/v1/operators/tile?repeats=300000", npy_bytes([1, 2]), NPY)


@pytest.fixture(autouse=True)
def _beats_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HEALTH_CHECK_SECONDS", 0.0)


def test_a_thread_that_does_not_come_back_ends_liveness_until_it_does():
    begun, back = threading.Event(), threading.Event()

    def block(_: int) -> None:
        begun.set()
        assert back.wait(30)

    with serving(stuck_seconds=0.3) as server:
        assert server.ask(LIVE).json() == {"live": True}
        with use_backend(server.service, Controlled(before=block)), server.wire() as wire:
            wire.send(TILE)
            assert begun.wait(20)
            try:
                eventually(lambda: server.ask(LIVE).status == 503, "liveness fails")
                assert "a thread of numpy has computed for" in server.ask(LIVE).json()["reason"]
                assert "longer than 0.3 s" in server.ask(LIVE).json()["reason"]
            finally:
                back.set()
            assert wire.answer().status == 200
            eventually(lambda: server.ask(LIVE).status == 200, "liveness is back")


def test_work_shorter_than_the_bound_is_no_fault():
    back = threading.Event()
    with serving() as server, use_backend(server.service, Controlled(before=lambda _: back.wait(30))):
        try:
            with server.wire() as wire:
                wire.send(TILE)
                for _ in range(5):
                    assert server.ask(LIVE).status == 200
        finally:
            back.set()


def test_a_device_that_was_spoilt_while_nobody_called_is_found():
    def fail(_: int) -> None:
        raise RuntimeError("the driver was replaced")

    with serving() as server, use_backend(server.service, Controlled(before=fail)):
        eventually(lambda: server.ask(LIVE).status == 503, "liveness fails")

        reason = server.ask(LIVE).json()["reason"]
        assert reason == "numpy failed a Tile of 4 KiB: RuntimeError: the driver was replaced"


def test_a_device_that_failed_is_not_live_while_the_next_tile_runs():
    begun, back = threading.Event(), threading.Event()
    failures = iter([RuntimeError("the driver was replaced")])

    def fail_then_block(_: int) -> None:
        for failure in failures:
            raise failure
        begun.set()
        assert back.wait(30)

    with serving() as server, use_backend(server.service, Controlled(before=fail_then_block)):
        try:
            eventually(lambda: server.ask(LIVE).status == 503 and begun.is_set(), "the second Tile runs")
            for _ in range(3):
                assert server.ask(LIVE).json()["reason"].endswith("RuntimeError: the driver was replaced")
        finally:
            back.set()
        eventually(lambda: server.ask(LIVE).status == 200, "liveness is back")


def test_a_device_that_is_lost_ends_liveness():
    def fail(_: int) -> None:
        raise DeviceLost("cuda:0 failed permanently")

    with http_app() as app, use_backend(app.service, Controlled(before=fail)):
        app.service.end = lambda: None
        eventually(lambda: app.get("/v2/health/live").status_code == 503, "liveness fails")

        assert app.get("/v2/health/live").json() == {"live": False, "reason": "cuda:0 failed permanently"}
        assert 'tensorpost_device_up{backend="numpy",device="0"} 0' in app.get("/metrics").text


def test_a_device_without_memory_lives():
    def fail(_: int) -> None:
        raise OutOfDeviceMemory("no room")

    backend = Controlled(before=fail)
    with http_app() as app, use_backend(app.service, backend):
        app.get("/v2/health/live")
        eventually(lambda: backend.closed_runs >= 1, "a health check has failed")
        for _ in range(3):
            assert app.get("/v2/health/live").status_code == 200


def test_a_device_that_fails_its_first_tile_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(NumpyBackend, "start", broken)
    pool = Pool.open("auto", DeviceOptions(), 3)
    try:
        assert "numpy" not in pool.workers
        assert pool.refused["numpy"] == "it opened, but failed its first Tile: RuntimeError: illegal instruction"
        assert BACKENDS.keys() >= {"numpy"}
    finally:
        pool.close()
