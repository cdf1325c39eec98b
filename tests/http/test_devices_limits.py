"""`/v1/devices` and `/v1/limits`: what is here, what is not and why, and what is in use now."""

from __future__ import annotations

import asyncio
import re
import threading

import httpx
from tests.support.http_app import (
    FRAME,
    NPY,
    PATIENCE,
    Controlled,
    app_settings,
    assert_problem,
    frame_bytes,
    http_app,
    npy_bytes,
    split_frame,
    use_backend,
)

from tensorpost_server.backends import BACKENDS
from tensorpost_server.settings import ENVIRONMENT_PREFIX, Settings

TILE = "/v1/operators/tile"


NOTHING = {"minimum_work": 0, "queued_bytes": 0, "gauges": {}}


def test_devices_lists_every_backend_in_the_order_of_the_table():
    with http_app(numpy_threads=3) as app:
        found = app.get("/v1/devices").json()

    assert found["default"] == "auto"
    assert list(BACKENDS) == list(dict.fromkeys(device["name"] for device in found["devices"]))
    numpy = next(device for device in found["devices"] if device["name"] == "numpy")
    assert numpy["device"].startswith("cpu (")
    said = {"name": "numpy", "index": 0, "device": numpy["device"], "reason": None, "auto": True, "threads": 3}
    assert said | NOTHING == numpy
    null = next(device for device in found["devices"] if device["name"] == "null")
    said = {"name": "null", "index": 0, "device": "none (returns zeros)", "reason": None, "auto": False, "threads": 1}
    assert said | NOTHING == null


def test_a_device_that_could_not_be_opened_says_why():
    with http_app() as app:
        pool = app.service.pool
        assert pool is not None
        pool.workers.pop("null").close()
        pool.refused["null"] = "OSError: unplugged"

        found = app.get("/v1/devices").json()["devices"]
        problem = assert_problem(app.post(TILE + "?repeats=2&backend=null", npy_bytes([1])), 501, "no-backend")

    said = {"name": "null", "index": None, "device": None, "reason": "OSError: unplugged", "auto": False, "threads": 0}
    assert said | NOTHING in found
    assert problem["refused"] == {"null": "OSError: unplugged"}


def test_a_reason_names_no_path_of_the_machine():
    """The log and `tensorpost backends` have the path; a caller has no use for it."""
    reason = "the kernels cannot be kept in /home/anna/.cache/tensorpost: No space left; set NUMBA_CACHE_DIR"
    with http_app() as app:
        pool = app.service.pool
        assert pool is not None
        pool.workers.pop("null").close()
        pool.refused["null"] = reason

        said = [
            app.get("/v1/devices").text,
            app.post(TILE + "?repeats=2&backend=null", npy_bytes([1])).text,
            app.post(TILE + "?repeats=2&backend=null&device=0", npy_bytes([1])).text,
        ]
        pool.lost = "/usr/lib/driver.so.1 failed permanently"
        said.append(app.get("/v2/health/live").text)

    for text in said:
        assert "/home" not in text
        assert "/usr" not in text
        assert "(path)" in text


NUMBER = re.compile(r"(<class '(int|float)'>|(int|float) \| None)")


def test_limits_lists_every_setting_that_is_one():
    settings = app_settings(max_output_bytes=12345, receive_timeout_seconds=1.5)
    with http_app(max_output_bytes=12345, receive_timeout_seconds=1.5) as app:
        found = app.get("/v1/limits").json()

    listed = {limit["name"]: limit for limit in found["limits"]}
    numbers = {name for name, field in Settings.model_fields.items() if NUMBER.fullmatch(str(field.annotation))}
    unlisted = {"port", "grpc_port", "workers"}
    assert listed.keys() == numbers - unlisted, "no switch, path, name, address or process of this server"
    for name, limit in listed.items():
        assert getattr(settings, name) == limit["value"]
        assert ENVIRONMENT_PREFIX + name.upper() == limit["setting"]
        assert limit["description"].endswith((".", "60.")), "a sentence, with its reason"
    assert (listed["max_output_bytes"]["value"], listed["receive_timeout_seconds"]["value"]) == (12345, 1.5)
    assert found["in_use"] == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_what_is_computed_on_the_loops_thread_can_be_said_and_is_shown():
    body = npy_bytes(bytearray(300), "uint8")
    for said, work, on_the_loop in ((600, 600, True), (599, 600, False), (600, 599, False), (0, 0, False)):
        backend = Controlled()
        with http_app(inline_bytes=said, inline_work=work) as app:
            worker = app.service.workers().workers["numpy"]
            listed = {limit["name"]: limit["value"] for limit in app.get("/v1/limits").json()["limits"]}
            worker.backend = backend
            app.post(TILE + "?repeats=2&backend=numpy", body)
            backend.thread_names.clear()  # the first time is a thread's
            answer = app.post(TILE + "?repeats=2&backend=numpy", body)

        assert (said, work) == (listed["inline_bytes"], listed["inline_work"])
        assert answer.status_code == 200
        assert on_the_loop is (backend.thread_names == {threading.current_thread().name})


def test_what_is_lent_out_is_shown_while_it_is():
    # 300,000 bytes in; out 600,000, of which 5 slices of 4 KiB exist at a time: 1 sent, 1 computed, 3 ahead.
    go_on = threading.Event()
    backend = Controlled(before=lambda _index: go_on.wait(PATIENCE))

    async def both(client: httpx.AsyncClient) -> dict[str, int]:
        post = asyncio.ensure_future(
            client.post(TILE + "?repeats=2", content=npy_bytes(bytearray(300_000), "uint8"), headers=NPY)
        )
        while not backend.begun:
            await asyncio.sleep(0.001)
        try:
            return (await client.get("/v1/limits")).json()["in_use"]
        finally:
            go_on.set()
            await post

    with http_app(slice_bytes=4096, slices_ahead=3) as app, use_backend(app.service, backend):
        during = app.run(both(app.client))
        after = app.in_use()

    assert during == {"bytes_in_flight": 300_000 + 5 * 4096, "requests_in_flight": 1}
    assert after == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_too_busy_says_when_to_come_back():
    go_on = threading.Event()
    backend = Controlled(before=lambda _index: go_on.wait(PATIENCE))
    body = npy_bytes(bytearray(300_000), "uint8")

    async def two(client: httpx.AsyncClient, query: str) -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.ensure_future(client.post(TILE + "?repeats=2", content=body, headers=NPY))
        while not backend.begun:
            await asyncio.sleep(0.001)
        try:
            second = await client.post(TILE + query, content=body, headers=NPY)
        finally:
            go_on.set()
        return await first, second

    for limits, setting in (
        ({"memory_bytes": 500_000}, "TENSORPOST_MEMORY_BYTES"),
        ({"max_requests": 1}, "TENSORPOST_MAX_REQUESTS"),
    ):
        go_on.clear()
        backend.begun.clear()
        with http_app(slice_bytes=4096, retry_after_seconds=7, **limits) as app, use_backend(app.service, backend):
            first, second = app.run(two(app.client, "?repeats=2"))
            again = app.post(TILE + "?repeats=2", body)

        problem = assert_problem(second, 429, "too-busy")
        assert ("7", 7, setting) == (second.headers["retry-after"], problem["retry_after_seconds"], problem["setting"])
        assert (first.status_code, again.status_code) == (200, 200)


def test_small_inputs_among_the_tensors_do_not_make_two_requests_of_one():
    # ONNX Tile whose repeats travel as a tensor: it is read before the output's size is known.
    body = frame_bytes({"input": ("U8", [2], b"ab"), "repeats": ("I64", [1], (3).to_bytes(8, "little"))}, {})
    with http_app(max_requests=1) as app:
        answer = app.post("/v1/onnx/Tile?opset=13", body, FRAME)
        assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}

    assert answer.status_code == 200, answer.text
    assert split_frame(answer.content)[1]["output"] == b"ababab"


def test_more_than_the_whole_budget_is_no_matter_of_waiting():
    with http_app(memory_bytes=100_000) as app:
        answer = app.post(TILE + "?repeats=1", npy_bytes(bytearray(200_000), "uint8"))

    problem = assert_problem(answer, 413, "limit-exceeded")
    assert "retry-after" not in answer.headers
    assert problem["setting"] == "TENSORPOST_MEMORY_BYTES"


def test_a_budget_smaller_than_the_output_is_enough_for_it():
    # 4 MB of output with 200 KB of memory: it is made and sent slice by slice.
    with http_app(memory_bytes=200_000, slice_bytes=4096, max_output_bytes=1 << 30) as app:
        answer = app.post(TILE + "?repeats=40", npy_bytes(bytearray(100_000), "uint8"))

    assert (answer.status_code, len(answer.content)) == (200, 4_000_128)
