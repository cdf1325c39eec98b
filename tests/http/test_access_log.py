"""The access log: one line per request on every path, in which no caller can write what he likes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import (
    JSON,
    NPY,
    PATIENCE,
    Controlled,
    Serving,
    eventually,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    use_backend,
)

from tensorpost_server.engine import Stages
from tensorpost_server.http.access.api_keys import new_key
from tensorpost_server.http.observability import batch_thread
from tensorpost_server.http.observability.access_log import AccessLog, console_line, json_line, printable
from tensorpost_server.http.observability.log_format import ConsoleFormatter
from tensorpost_server.http.observability.request_record import RecordBatch, RequestRecord

TILE = "/v1/operators/tile?repeats=2"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
RECORD = RequestRecord(
    1_700_000_000.25,
    "abc",
    "anna",
    "POST",
    "/v1/operators/tile",
    "TILE",
    "numpy",
    200,
    None,
    136,
    144,
    1,
    {"head": 0.25},
    0.0015,
)


def test_times_that_are_written_already_are_the_same_in_a_line():
    stages = Stages()
    stages.milliseconds.update({"head": 0.25, "plan": 12.3456, "compute": 1e-9})
    record = RECORD._replace(stages=stages.milliseconds)
    found = json_line(record._replace(server_timing=str(stages)))

    assert found == json_line(record)
    assert json.loads(found)["stages_ms"] == {"head": 0.25, "plan": 12.346, "compute": 0.0}


@contextmanager
def logged(**settings: Any) -> Iterator[tuple[Serving, list[str]]]:
    """A server, and the lines of its access log that were written."""
    batches: list[str] = []
    with serving(**settings) as server:
        server.service.observe_by(AccessLog(json_line, batches.append))
        yield server, batches


def lines(batches: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in "".join(batches).splitlines()]


def test_every_path_writes_one_line():
    call = request_bytes("POST", TILE, npy_bytes([1, 2]), {**NPY, "x-request-id": "id-7"})
    large = npy_bytes(np.zeros(1 << 20, "float32"))
    with logged() as (server, batches):
        for _ in range(2):
            with server.wire() as wire:  # parsed, computed in a thread; then prepared; then replayed
                for _ in range(3):
                    wire.send(call)
                    np.testing.assert_array_equal(npy_array(wire.answer().body), [1, 2, 1, 2])
        streamed = server.ask(request_bytes("POST", TILE, large, NPY))
        refused = server.ask(request_bytes("POST", "/v1/operators/tile?repeats=x", npy_bytes([1]), NPY))
        unknown = server.ask(request_bytes("POST", "/v1/operators/tiel", npy_bytes([1]), NPY))
        health = server.ask(request_bytes("GET", "/v2/health/ready"))
        nothing = server.ask(request_bytes("GET", "/nothing"))
        malformed = server.ask(b"this is no request\r\n\r\n")
        two_hosts = server.ask(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nX-Request-ID: id-8\r\n\r\n")
        eventually(lambda: len(lines(batches)) >= 13, "every line is written")

    found = lines(batches)
    assert len(found) == 13
    for line in found[:6]:
        assert (line["id"], line["operator"], line["status"], line["reason"]) == ("id-7", "TILE", 200, None)
        assert line["caller"] == "127.0.0.1", "replays too"
        assert (line["bytes_in"], line["bytes_out"]) == (len(npy_bytes([1, 2])), len(npy_bytes([1, 2, 1, 2])))
        assert list(line["stages_ms"]) == ["head", "plan", "admit", "receive", "compute"]
        assert line["ms"] >= sum(line["stages_ms"].values()) - 0.01, "each is rounded to a microsecond"
    (long,) = [line for line in found if line["bytes_in"] == len(large)]  # it may end after the next one has begun
    assert long["bytes_out"] == len(streamed.body)
    assert long["path"] == "/v1/operators/tile", "no query: it may hold what is nobody's business"
    short = [line for line in found[6:] if line is not long]
    rest = [(line["method"], line["operator"], line["status"], line["reason"]) for line in short]
    assert rest == [
        ("POST", "TILE", refused.status, "invalid-descriptor"),
        ("POST", None, unknown.status, "unknown-operator"),
        ("GET", None, 200, None),
        ("GET", None, nothing.status, "not-found"),
        ("-", None, 400, "invalid-request"),
        ("-", None, 400, "invalid-request"),
    ]
    assert malformed.status == two_hosts.status == 400
    assert short[4]["id"] == malformed.headers["x-request-id"]
    assert short[5]["id"] == two_hosts.headers["x-request-id"] == "id-8"
    assert {line["caller"] for line in found} == {"127.0.0.1"}, "also of those that were refused"
    assert short[0]["id"] == refused.headers["x-request-id"]
    assert short[2]["bytes_out"] == len(health.body)


def test_a_caller_that_leaves_is_logged_as_such():
    with logged(slice_bytes=65536, slices_ahead=0) as (server, batches):
        with server.wire(receive_buffer=4096) as wire:
            big = "/v1/operators/tile?repeats=4000"
            wire.send(request_bytes("POST", big, npy_bytes(np.zeros(10_000, "float32")), NPY))
            wire.head()
            wire.hang_up()
        with server.wire() as wire:
            wire.send(request_bytes("POST", TILE, b"", {**NPY, "content-length": 1000}))
        eventually(lambda: len(lines(batches)) >= 2, "both lines are written")
        server.assert_serves_on()

    left = sorted(lines(batches)[:2], key=lambda line: str(line["status"]))
    assert [(line["status"], line["reason"]) for line in left] == [
        (200, "client-disconnected"),
        (None, "client-disconnected"),
    ]
    assert left[0]["bytes_out"] < 160_000_000


def test_a_deadline_after_the_first_byte_is_the_reason_of_an_answer_with_status_200():
    stop = threading.Event()
    backend = Controlled(before=lambda index: index and stop.wait(PATIENCE))
    call = request_bytes("POST", TILE, npy_bytes(np.zeros(1 << 17, "uint8")), {**NPY, "prefer": "wait=1"})
    with logged(slice_bytes=1 << 16) as (server, batches):
        with use_backend(server.service, backend, slices_ahead=0), server.wire() as wire:
            wire.send(call)
            status, headers = wire.head()
            threading.Timer(1.5, stop.set).start()  # a slice that is being computed is awaited
            with pytest.raises((EOFError, ConnectionResetError)):
                wire.read(int(headers["content-length"]))
        eventually(lambda: bool(lines(batches)), "the line is written")

    (line,) = lines(batches)
    assert (status, line["status"], line["reason"]) == (200, 200, "deadline-exceeded")
    assert 1 << 16 <= line["bytes_out"] < 1 << 18, "of 262144 elements and a head"


# Line ends and escape sequences, raw where HTTP takes them and encoded where it does not
HOSTILE_PATHS = ["/%0d%0ainjected:%20line", "/%1b%5b31mred", "/%c2%9b31m", "/%7f", "/%22,%22status%22:200", "/a%20b=c"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize("form", [json_line, console_line])
def test_nothing_of_a_path_ends_a_line_or_moves_a_terminal(path: str, form: Any):
    batches: list[str] = []
    with serving() as server:
        server.service.observe_by(AccessLog(form, batches.append))
        answer = server.ask(request_bytes("GET", path, b"", {"x-request-id": "a b\t\x9b"}))
        server.ask(request_bytes("POST", "/v1/operators" + path + "?%0d%0aq=%1b", npy_bytes([1]), NPY))
        eventually(lambda: "".join(batches).count("\n") >= 2, "the lines are written")

    assert answer.status == 404
    text = "".join(batches)
    assert text.count("\n") == 2
    assert text.endswith("\n")
    assert all(" " <= character <= "~" for character in text.replace("\n", ""))
    if form is json_line:
        assert [line["status"] for line in lines(batches)] == [404, 404]
    else:
        assert all("=" not in line.split(" ")[3] or "\\x20" in line for line in text.splitlines())
        assert "b=c" not in text.split(" "), "a path cannot look like another field"


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nx: \x1b[31m\r\n\r\n", b"G\x1b[31m / HTTP/1.1\r\n\r\n", b"\x00\r\n\r\n"]
)
def test_nothing_of_a_head_that_is_refused_is_logged(sent: bytes):
    with logged() as (server, batches):
        with server.wire() as wire:
            wire.send(sent)
            status, _ = wire.head()
        eventually(lambda: bool(lines(batches)), "the line is written")

    (line,) = lines(batches)
    assert line["status"] == status
    assert "\x1b" not in "".join(batches)
    assert "31m" not in "".join(batches)


def test_the_query_the_headers_and_the_tensor_are_not_in_a_line():
    secret = "s3cret-s3cret"
    with logged() as (server, batches):
        fields = {**JSON, "authorization": f"Bearer {secret}", "x-api-key": secret, "cookie": secret}
        server.ask(request_bytes("POST", f"/v1/operators/tile?repeats=2&key={secret}", secret.encode(), fields))
        eventually(lambda: bool(batches), "the line is written")

    assert secret not in "".join(batches)


@pytest.mark.parametrize(
    "secret", [new_key(), "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0." + "Ab-_" * 21], ids=["key", "token"]
)
def test_a_key_in_a_path_or_an_id_is_masked(secret: str):
    with logged() as (server, batches):
        found = server.ask(request_bytes("GET", f"/v2/models/{secret}/ready", b"", {"x-request-id": secret}))
        server.ask(request_bytes("GET", f"/{'a' * 159}/{secret}"))  # the text is cut within it
        refused = server.ask(b"GET / HTTP/1.1\r\nX-Request-ID: %b\r\n\r\n" % secret.encode())
        eventually(lambda: len(lines(batches)) >= 3, "the lines are written")

    assert [line["path"] for line in lines(batches)] == ["/v2/models/***/ready", "/" + "a" * 159 + "/***...", "-"]
    for sent in ("".join(batches), str(found.headers), str(refused.headers)):
        assert secret[:30] not in sent
    assert re.fullmatch("[0-9a-f]{32}", found.headers["x-request-id"])


def test_both_forms_of_a_line():
    assert json.loads(json_line(RECORD)) == {
        "time": "2023-11-14T22:13:20.250Z", "event": "request", "id": "abc", "caller": "anna", "method": "POST",
        "path": "/v1/operators/tile", "operator": "TILE", "backend": "numpy", "opset_version": None, "status": 200,
        "reason": None,
        "bytes_in": 136, "bytes_out": 144, "ms": 1.5, "stages_ms": {"head": 0.25},
    }  # fmt: skip
    assert console_line(RECORD) == (
        "2023-11-14T22:13:20.250Z 200 POST /v1/operators/tile operator=TILE backend=numpy caller=anna "
        "in=136 out=144 ms=1.500 head=0.250 id=abc\n"
    )
    node = RECORD._replace(operator="Tile", opset_version=13)
    assert json.loads(json_line(node))["opset_version"] == 13
    assert " operator=Tile opset_version=13 backend=numpy " in console_line(node)
    assert " --- " in console_line(RECORD._replace(status=None))
    assert printable("ä\u2028" * 1000) == "\\xe4\\u2028" * 100 + "..."


def test_a_reader_that_does_not_read_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_thread, "MOST_BATCHES", 2)
    blocked, reading, written = threading.Event(), threading.Event(), list[str]()

    def write(batch: str) -> None:
        blocked.set()
        assert reading.wait(20)
        written.append(batch)

    log = AccessLog(console_line, write)
    log.observe([RECORD])
    assert blocked.wait(20)
    for _ in range(5):
        log.observe([RECORD, RECORD])  # returns, though nothing is written
    reading.set()
    log.close()

    assert log.dropped == 6
    assert "".join(written).count("\n") == 5


def test_a_consumer_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture):
    """The lines of a batch, its traces and its statistics were lost."""
    found = list[RequestRecord]()

    def fail(_records: Sequence[RequestRecord]) -> None:
        raise OSError(24, "Too many open files")

    batch = RecordBatch([fail, found.extend])

    async def run() -> None:
        batch.add(RECORD)
        batch.flush()

    asyncio.run(run())
    assert found == [RECORD]
    assert "Too many open files" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of open files")
def test_lines_are_made_where_no_descriptor_is_free():
    code = """
import resource
from tensorpost_server.http.observability.access_log import printable
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(printable("a b"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("a\\x20b\n", "")


def test_a_reader_that_is_gone_is_counted():
    def write(_: str) -> None:
        raise BrokenPipeError

    log = AccessLog(console_line, write)
    log.observe([RECORD, RECORD])
    log.close()

    assert log.dropped == 2


CHOICES = [("info", "json", 2), ("info", "off", 0), ("warning", "json", 0)]


@pytest.mark.parametrize(("level", "choice", "count"), CHOICES)
def test_serve_writes_it_to_standard_error(level: str, choice: str, count: int):
    code = (
        "import logging, os, sys, urllib.request, warnings\n"
        "os.environ['TENSORPOST_ACCESS_LOG'] = sys.argv[2]\n"
        "os.environ['TENSORPOST_NONSENSE'] = '1'\n"
        "import tensorpost_server.serving as serving, threading\n"
        "from tensorpost_server.commands import serve\n"
        "class Server(serving.Server):\n"
        "    async def startup(self, sockets=None):\n"
        "        await super().startup(sockets)\n"
        "        warnings.warn('a warning of Python')\n"
        "        error = ValueError('no\\nway')\n"
        "        logging.getLogger('uvicorn.error').error('broken %s', '\\x1b[31m\\n', exc_info=error)\n"
        "        def ask():\n"
        "            for _ in range(2):\n"
        "                urllib.request.urlopen(self._address + '/v2/health/live').close()\n"
        "            self.should_exit = True\n"
        "        threading.Thread(target=ask).start()\n"
        "serving.Server = Server\n"
        "serve(host='127.0.0.1', port=0, log_level=sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, level, choice], capture_output=True, text=True, timeout=60, check=True
    )

    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["path"] for line in found if line["event"] == "request"] == ["/v2/health/live"] * count
    records = [line for line in found if line["event"] == "log"]
    assert [(line["level"], line["logger"]) for line in records] == [
        ("warning", "tensorpost_server.commands"),
        ("warning", "py.warnings"),
        ("error", "uvicorn.error"),
    ]
    assert "TENSORPOST_NONSENSE sets nothing" in records[0]["message"]
    assert records[2]["message"] == "broken \x1b[31m\n", "in JSON the terminal gets no escape sequence"
    assert records[2]["exception"] == "ValueError: no\nway"
    assert "\x1b" not in done.stderr
    assert all(TIME.fullmatch(line["time"]) for line in found)
    assert re.fullmatch(r"tensorpost \S+ listens on http://127\.0\.0\.1:\d+\n", done.stdout)


def test_records_for_people_are_in_utc_and_no_text_looks_like_another_record():
    try:
        raise ValueError("no way\n2026-01-01T00:00:00.000Z ERROR forged\x9b31m")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "a.py", 1, "refused %s", ("é\x1b[0m\r\nnext",), sys.exc_info())
    record.created = 1_700_000_000.25

    first, *rest = ConsoleFormatter().format(record).split("\n")

    assert first == "2023-11-14T22:13:20.250Z ERROR refused é\\x1b[0m\\r\\nnext"
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)
    assert rest[-1] == "  2026-01-01T00:00:00.000Z ERROR forged\\x9b31m"


def test_a_fault_of_the_server_is_logged_with_its_status(monkeypatch: pytest.MonkeyPatch):
    batches: list[str] = []

    def broken(*_: object, **_named: object) -> None:
        raise MemoryError

    with http_app() as app:
        app.service.observe_by(AccessLog(json_line, batches.append))
        monkeypatch.setattr("tensorpost_server.http.execution.prepare", broken)
        answer = app.post(TILE, npy_bytes([1]))
        app.service.observe_by(None)

    assert answer.status_code == 503
    (line,) = lines(batches)
    assert (line["status"], line["operator"], line["reason"]) == (503, "TILE", "unavailable")
