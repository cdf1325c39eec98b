"""Bodies in and out of a real server: early answers, slices on their way, and callers that stop in the middle."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    PATIENCE,
    Controlled,
    Serving,
    assert_problem,
    eventually,
    frame_bytes,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)

TILE = "/v1/operators/tile"
SLICE = 65536
HEAD = 128  # bytes of the npy heads here


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(
        slice_bytes=SLICE, slices_ahead=2, numpy_threads=2, memory_bytes=64 << 20, max_body_bytes=32 << 20,
        max_output_bytes=1 << 40, receive_timeout_seconds=PATIENCE, send_timeout_seconds=PATIENCE,
    ) as found:  # fmt: skip
        yield found


@pytest.fixture(autouse=True)
def it_serves_on(server: Serving) -> Iterator[None]:
    yield
    server.assert_serves_on()


def tile_request(size: int, repeats: int, *, body: bytes | None = None) -> bytes:
    """A Tile of so many bytes."""
    body = npy_bytes(np.zeros(size, np.uint8)) if body is None else body
    return request_bytes("POST", f"{TILE}?repeats={repeats}", body, NPY)


def head_only(size: int, repeats: int) -> bytes:
    """The same, up to the last byte before the tensor."""
    whole = tile_request(size, repeats)
    return whole[: len(whole) - size]


# ---- early answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        pytest.param(
            request_bytes("POST", TILE + "?repeats=2", b"", NPY | {"content-length": 99 << 30}), 413, "limit-exceeded",
            id="a body beyond the limit",
        ),
        pytest.param(
            request_bytes("POST", TILE, b"", JSON | {"content-length": 30 << 20}), 413, "limit-exceeded", id="long JSON"
        ),
        pytest.param(
            request_bytes("POST", "/v1/operators/tiel", b"", NPY | {"content-length": 30 << 20}), 404,
            "unknown-operator", id="an unknown operator",
        ),
        pytest.param(
            request_bytes("POST", TILE, b"", {"content-length": 30 << 20}), 415, "unsupported-media-type", id="no form"
        ),
        pytest.param(
            request_bytes(
                "POST", TILE + "?repeats=1,1", npy_bytes(np.zeros((1 << 20, 7), np.float32))[:128],
                NPY | {"content-length": 128 + (28 << 20), "accept": "text/css"},
            ),
            406, "not-acceptable", id="no answer",
        ),
        pytest.param(
            request_bytes("POST", TILE, b"", NPY | {"content-length": None}), 411, "length-required", id="no length"
        ),
        pytest.param(
            request_bytes("POST", TILE, b"", {"content-length": None, "transfer-encoding": "chunked"}), 415,
            "unsupported-media-type", id="chunked and no form",
        ),
        # from here on the head of the body is there, and not one byte of the tensor
        pytest.param(head_only(30 << 20, 0), 422, "invalid-descriptor", id="a descriptor that breaks a rule"),
        pytest.param(head_only(30 << 20, 1 << 20), 422, "invalid-descriptor", id="more than 2^32 - 1 elements"),
        pytest.param(
            request_bytes("POST", TILE, b"\xff" * 8, FRAME | {"content-length": 30 << 20}), 413, "limit-exceeded",
            id="a head of 2^64 bytes",
        ),
        pytest.param(
            request_bytes("POST", TILE, npy_bytes(np.zeros(9))[:HEAD], NPY | {"content-length": 30 << 20}), 400,
            "body-length-mismatch", id="a head that is a lie",
        ),
    ],
)  # fmt: skip
def test_a_refusal_does_not_wait_for_the_body(server: Serving, data: bytes, status: int, code: str):
    with server.wire() as wire:
        wire.send(data)
        assert_problem(wire.answer(), status, code)


@pytest.mark.parametrize("form", ["npy", "frame"])
def test_a_busy_server_says_so_before_a_tensor_byte_is_read(server: Serving, form: str):
    ticket = server.service.admission.admit(60 << 20)
    try:
        if form == "npy":
            data = head_only(30 << 20, 1)
        else:
            op = {"op": json.dumps({"type": "TILE", "desc": {"Repeats": [1]}})}
            body = frame_bytes({"input": ("U8", [30 << 20], bytes(30 << 20))}, op)
            data = request_bytes("POST", TILE, body, FRAME)[: -(30 << 20)]
        with server.wire() as wire:
            wire.send(data)
            problem = assert_problem(wire.answer(), 429, "too-busy")
        assert server.service.admission.bytes_in_flight == (60 << 20)
    finally:
        ticket.release()
    assert problem["retry_after_seconds"] == 1


def test_a_device_that_refuses_says_so_before_a_tensor_byte_is_read(server: Serving):
    with use_backend(server.service, Controlled(refusal="no")), server.wire() as wire:
        wire.send(head_only(30 << 20, 1))
        assert_problem(wire.answer(), 501, "no-backend")


def test_expect_100_continue(server: Serving):
    # RFC 9110, section 10.1.1: who is refused is not asked for the body; who is not refused is.
    with server.wire() as wire:
        wire.send(request_bytes("POST", TILE, b"", NPY | {"content-length": 99 << 30, "expect": "100-continue"}))
        assert wire.socket.recv(12) == b"HTTP/1.1 413"
    body = npy_bytes([1, 2])
    with server.wire() as wire:
        wire.send(request_bytes("POST", TILE + "?repeats=1", body, NPY | {"expect": "100-continue"})[: -len(body)])
        assert wire.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(body)
        assert wire.answer().status == 200


# ---- a body in pieces ------------------------------------------------------------------------------------------------


def test_a_request_byte_by_byte(server: Serving):
    data = tile_request(0, 2, body=npy_bytes([1, 2, 3]))
    with server.wire() as wire:
        for at in range(len(data)):
            wire.send(data[at : at + 1])
            if at % 40 == 0:
                time.sleep(0.001)
        np.testing.assert_array_equal([1, 2, 3, 1, 2, 3], npy_array(wire.answer().body))


@pytest.mark.parametrize("cut", [1, 6, 9, 10, 127, 128, 129, 300])
def test_a_body_cut_anywhere(server: Serving, cut: int):
    body = npy_bytes(np.arange(100, dtype="<u4"))
    data = request_bytes("POST", TILE + "?repeats=2", body, NPY)
    with server.wire() as wire:
        wire.send(data[: -len(body) + cut])
        time.sleep(0.02)
        wire.send(data[-len(body) + cut :])
        np.testing.assert_array_equal([*range(100)] * 2, npy_array(wire.answer().body))


def test_requests_one_after_the_other_and_all_at_once_on_one_connection(server: Serving):
    data = [request_bytes("POST", TILE + "?repeats=2", npy_bytes([n]), NPY) for n in range(5)]
    with server.wire() as wire:
        for each in data:
            wire.send(each)
            wire.answer()
        wire.send(b"".join(data))
        for n in range(5):
            np.testing.assert_array_equal([n, n], npy_array(wire.answer().body))


# ---- an output on its way --------------------------------------------------------------------------------------------


def long_of(slices: int) -> tuple[bytes, int]:
    """A request whose output has so many slices, and the bytes of the answer."""
    return tile_request(SLICE, slices), HEAD + slices * SLICE


def test_slices_are_sent_while_later_ones_are_made(server: Serving):
    # Slice 5 is not made before slice 2 is read: the output is not collected first.
    read = threading.Event()
    backend = Controlled(before=lambda index: index < 5 or read.wait(PATIENCE))
    data, length = long_of(40)

    with use_backend(server.service, backend), server.wire() as wire:
        wire.send(data)
        status, headers = wire.head()
        assert (200, str(length)) == (status, headers["content-length"])
        begin = wire.read(HEAD + 3 * SLICE)
        assert not read.is_set()
        read.set()
        rest = wire.read(length - len(begin))

    assert b"".join(bytes([index]) * SLICE for index in range(40)) == (begin + rest)[HEAD:]


def test_nothing_is_sent_before_the_first_slice_is_made(server: Serving):
    go_on = threading.Event()
    data, length = long_of(40)

    with use_backend(server.service, Controlled(before=lambda _index: go_on.wait(PATIENCE))), server.wire() as wire:
        wire.send(data)
        wire.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            wire.socket.recv(1)
        wire.socket.settimeout(PATIENCE)
        go_on.set()
        assert length == len(wire.answer().body)


def fail_at(failing: int, error: type[Exception] = RuntimeError) -> Callable[[int], None]:
    def before(index: int) -> None:
        if index == failing:
            raise error("the device is full")

    return before


@pytest.mark.parametrize(
    ("error", "status", "code", "closes"),
    [(RuntimeError, 500, "internal-error", True), (MemoryError, 503, "unavailable", False)],
)
def test_a_failure_of_the_first_slice_is_a_problem_and_a_fault_closes_the_connection(
    server: Serving, caplog: pytest.LogCaptureFixture, error: type[Exception], status: int, code: str, closes: bool
):
    data, _ = long_of(40)
    with use_backend(server.service, Controlled(before=fail_at(0, error))), server.wire() as wire:
        wire.send(data)
        answer = wire.answer()
        assert wire.is_closed(PATIENCE if closes else 0.1) == closes

    problem = assert_problem(answer, status, code)
    assert answer.headers.get("connection") == ("close" if closes else None)
    assert ("retry-after" in answer.headers) == (not closes)

    assert any(
        problem["request_id"] in record.getMessage() and "the device is full" in record.getMessage()
        for record in caplog.records
    ), "the log does not say what happened to this request"


@pytest.mark.parametrize("failing", [1, 20, 39])
def test_a_failure_after_the_first_byte_is_a_broken_connection(server: Serving, failing: int):
    data, length = long_of(40)

    with use_backend(server.service, Controlled(before=fail_at(failing))), server.wire() as wire:
        wire.send(data)
        status, headers = wire.head()
        assert (200, str(length)) == (status, headers["content-length"])
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.read(length)


def test_a_deadline_after_the_first_byte_is_a_broken_connection(server: Serving, caplog: pytest.LogCaptureFixture):
    stop = threading.Event()
    backend = Controlled(before=lambda index: index and stop.wait(PATIENCE))
    body = npy_bytes(np.zeros(SLICE, np.uint8))

    with use_backend(server.service, backend, slices_ahead=0), server.wire() as wire:
        wire.send(request_bytes("POST", f"{TILE}?repeats=40", body, NPY | {"prefer": "wait=1"}))
        status, headers = wire.head()
        threading.Timer(1.5, stop.set).start()  # a slice that is being computed is awaited
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.read(int(headers["content-length"]))

    assert status == 200
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == ["ASGI callable returned without completing response."]  # uvicorn's, when it closes


def test_a_caller_that_stops_reading_stops_its_own_computation_only(server: Serving):
    backend = Controlled(threads=1)
    data, _ = long_of(4000)

    with use_backend(server.service, backend):
        with server.wire(receive_buffer=4096) as wire:
            wire.send(data)
            wire.read(10_000)
            settled = settle(backend)
            assert settled < 400, "the output is made far ahead of its reader"
            # Others are served meanwhile, on the same device.
            for _ in range(5):
                assert server.ask(tile_request(0, 2, body=npy_bytes([1]))).status == 200
                other, length = long_of(10)
                assert length == len(server.ask(other).body)
            eventually(lambda: server.service.admission.requests_in_flight == 1, "only the reader's is left")
            wire.hang_up()
        eventually(server.idle, "what the reader had is given back")

    assert len([index for index in backend.begun if index > 500]) == 0


def settle(backend: Controlled) -> int:
    """Slices begun when no more are for a while."""
    begun = -1
    while begun != len(backend.begun):
        begun = len(backend.begun)
        time.sleep(0.1)
    return begun


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_caller_that_hangs_up_in_a_huge_output_stops_the_computation(server: Serving, how: str):
    backend = Controlled(threads=2)
    data, _ = long_of(60_000)  # some 4 GB

    with use_backend(server.service, backend):
        with server.wire() as wire:
            wire.send(data)
            wire.read(5 * SLICE)
            if how == "reset":
                wire.hang_up()
        eventually(server.idle, "everything is given back")
        begun = settle(backend)

    assert begun < 5000
    assert (backend.started, backend.closed_runs) == (1, 1)


def test_a_caller_that_hangs_up_while_it_waits_for_the_first_slice(server: Serving):
    go_on = threading.Event()
    backend = Controlled(before=lambda _index: go_on.wait(PATIENCE))
    data, _ = long_of(1000)

    with use_backend(server.service, backend):
        with server.wire() as wire:
            wire.send(data)
            eventually(lambda: bool(backend.begun), "the first slice is begun")
            wire.hang_up()
        go_on.set()
        eventually(server.idle, "everything is given back")
        assert settle(backend) < 100


def test_a_real_output_larger_than_the_memory_for_it(server: Serving):
    # 256 MiB out of 1 MiB, with a budget of 64 MiB: the whole process stays small, and every byte is right.
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system has no /proc/self/statm to read the memory in use from")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * 4096

    x = np.random.default_rng(3).integers(0, 256, 1 << 20, np.uint8)
    with server.wire() as wire:
        wire.send(tile_request(0, 256, body=npy_bytes(x)))
        _, headers = wire.head()
        assert int(headers["content-length"]) == HEAD + (256 << 20)
        wire.read(HEAD)
        before, most, expected = resident(), 0, x.tobytes()
        for at in range(256):
            assert wire.read(1 << 20) == expected
            if at % 8 == 0:
                most = max(most, resident())

    assert most - before < 48 << 20


# ---- an input that stops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [20, HEAD, HEAD + 1, HEAD + 3_000_000], ids=["head", "after the head", "1", "3 MB"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_caller_that_hangs_up_while_sending(server: Serving, cut: int, how: str, caplog: pytest.LogCaptureFixture):
    data = tile_request(10_000_000, 2)
    start = len(data) - 10_000_000 - HEAD
    with server.wire() as wire:
        wire.send(data[: start + cut])
        if cut > HEAD:
            eventually(lambda: not server.idle(), "memory is in use")
        if how == "reset":
            wire.hang_up()
    eventually(server.idle, "everything is given back")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "that is no fault of ours"


@pytest.mark.parametrize("path", ["/v1/validate", TILE])
def test_a_caller_that_hangs_up_while_sending_json(server: Serving, path: str, caplog: pytest.LogCaptureFixture):
    with server.wire() as wire:
        wire.send(request_bytes("POST", path, b'{"type"', JSON | {"content-length": 1000}))
        time.sleep(0.05)
        wire.hang_up()
    server.assert_serves_on()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "that is no fault of ours"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Serving]:
    with serving(receive_timeout_seconds=0.2, send_timeout_seconds=0.2, slice_bytes=SLICE) as found:
        yield found


@pytest.mark.parametrize(
    ("data", "cut"),
    [
        pytest.param(tile_request(1_000_000, 2), HEAD - 100, id="in the head"),
        pytest.param(tile_request(1_000_000, 2), HEAD + 500_000, id="in the tensor"),
        pytest.param(request_bytes("POST", TILE, b" " * 1000, JSON), 500, id="in JSON"),
        pytest.param(request_bytes("POST", "/v1/validate", b" " * 1000, JSON), 500, id="in a document"),
        pytest.param(tile_request(1_000_000, 2), 0, id="before the head"),
    ],
)
def test_a_caller_that_stops_sending_is_told_so(hasty: Serving, data: bytes, cut: int):
    body = data.index(b"\r\n\r\n") + 4
    with hasty.wire() as wire:
        begin = time.monotonic()
        wire.send(data[: body + cut])
        problem = assert_problem(wire.answer(), 408, "receive-timeout")
        assert 0.2 <= time.monotonic() - begin < PATIENCE
    assert "TENSORPOST_RECEIVE_TIMEOUT_SECONDS" in problem["detail"]
    assert f"{cut:,} of {len(data) - body:,} bytes" in problem["detail"]
    hasty.assert_serves_on()


def test_a_caller_that_sends_slowly_but_steadily_is_served():
    # The timeout is for one pause, not for the whole: 12 pauses of 0.1 s with a timeout of 1 s.
    data = tile_request(0, 2, body=npy_bytes(np.arange(200, dtype="<u4")))
    with serving(receive_timeout_seconds=1) as patient, patient.wire() as wire:
        wire.send(data[:-600])
        for at in range(-600, 0, 50):
            time.sleep(0.1)
            wire.send(data[at : at + 50 or None])
        assert wire.answer().status == 200


def test_a_caller_that_stops_reading_is_dropped(hasty: Serving, caplog: pytest.LogCaptureFixture):
    backend = Controlled()
    with use_backend(hasty.service, backend):
        with hasty.wire(receive_buffer=4096) as wire:
            wire.send(tile_request(SLICE, 4000))
            wire.read(1000)
            eventually(hasty.idle, "what the reader had is given back")
            with pytest.raises((EOFError, ConnectionResetError)):
                wire.read(4000 * SLICE)
        assert backend.closed_runs == 1
    assert not any(record.exc_info for record in caplog.records), "a slow caller is no fault of ours"
    hasty.assert_serves_on()


# ---- many callers ----------------------------------------------------------------------------------------------------


def test_sixteen_callers_at_once_get_their_own_answers(server: Serving):
    def talk(caller: int) -> None:
        random = np.random.default_rng(caller)
        with server.wire() as wire:
            for _ in range(12):
                size, repeats = int(random.integers(1, 60_000)), int(random.integers(1, 30))
                x = random.integers(0, 256, size, np.uint8)
                wire.send(tile_request(0, repeats, body=npy_bytes(x)))
                answer = wire.answer()
                assert answer.status == 200, answer.body[:500]
                assert x.tobytes() * repeats == answer.body[HEAD:]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(talk, range(16)))


def test_requests_beyond_the_budget_are_refused_and_those_within_are_right():
    with serving(memory_bytes=3_000_000, slice_bytes=SLICE, max_requests=4) as small:

        def talk(caller: int) -> list[int]:
            x = np.full(900_000, caller, np.uint8)
            found: list[int] = []
            with small.wire() as wire:
                for _ in range(6):
                    wire.send(tile_request(0, 3, body=npy_bytes(x)))
                    answer = wire.answer()
                    found.append(answer.status)
                    if answer.status == 200:
                        assert x.tobytes() * 3 == answer.body[HEAD:]
                    else:
                        assert_problem(answer, 429, "too-busy")
            return found

        with ThreadPoolExecutor(8) as threads:
            statuses = [status for found in threads.map(talk, range(8)) for status in found]

        assert len(statuses) == 48
        assert {200, 429} >= {*statuses}
        assert 200 in statuses
        small.assert_serves_on()


def test_a_server_that_is_told_to_stop_finishes_what_it_began():
    go_on = threading.Event()
    backend = Controlled(before=lambda index: index < 3 or go_on.wait(PATIENCE))
    with serving(slice_bytes=SLICE) as found, found.wire() as wire:
        with use_backend(found.service, backend):
            data, length = long_of(40)
            wire.send(data)
            begin = wire.head()
            found.server.should_exit = True
            time.sleep(0.2)
            go_on.set()
            body = wire.read(length)
        assert begin[0] == 200
        assert bytes([39]) * SLICE == body[-SLICE:]
        assert wire.is_closed()
