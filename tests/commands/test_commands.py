"""What the command line asks of the server, through the functions and through real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import numpy as np
import pytest

from tensorpost import Client
from tensorpost.bodies.frame import encode_npy_head
from tensorpost.values.datatypes import data_type
from tensorpost.values.problems import IncompleteBody, InvalidParameter
from tensorpost_server import commands
from tensorpost_server.backends import BACKENDS
from tensorpost_server.child_processes import libraries
from tensorpost_server.listener import Listener, is_loopback
from tensorpost_server.main import create_app
from tensorpost_server.serving import GuardedApplication, choose_protocol, uvicorn_config
from tensorpost_server.settings import Settings

ADDRESS = re.compile(r"tensorpost \S+ listens on (https?://(\S+):(\d+)|unix:.+)\n")
PATIENCE = 30  # seconds; a busy machine is slow, not wrong


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("TENSORPOST_")]:
        monkeypatch.delenv(name)


def process(*arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tensorpost", "serve", *arguments],
        env={**os.environ, "TENSORPOST_ACCESS_LOG": "off", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def serving(*arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    server = process(*arguments, **env)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = ADDRESS.fullmatch(line)
        assert found is not None, (line, server.communicate(timeout=PATIENCE))
        yield server, found[1]
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()


def until_in_flight(url: str, count: int) -> None:
    """Wait until so many requests have their memory."""
    end = time.monotonic() + PATIENCE
    while httpx.get(f"{url}/v1/limits", trust_env=False).json()["in_use"]["requests_in_flight"] != count:
        assert time.monotonic() < end
        time.sleep(0.01)


def refused(*arguments: str, **env: str) -> str:
    """What a server says that does not start."""
    server = process(*arguments, **env)
    out, err = server.communicate(timeout=PATIENCE)
    assert server.returncode == 1
    assert out == ""
    assert "Traceback" not in err
    return err


# Running a server


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_it_says_one_line_serves_and_stops_in_order(sign: signal.Signals, status: int) -> None:
    with serving("--port", "0") as (server, url):
        with Client(url) as tp:
            np.testing.assert_array_equal([1, 2, 1, 2], tp.tile(np.array([1, 2], np.int32), (2,)))
        server.send_signal(sign)
        out, err = server.communicate(timeout=PATIENCE)

    assert (server.returncode, out, err) == (status, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("how", ["full", "closed"])
def test_it_serves_where_standard_output_cannot_be_written_to(how: str) -> None:
    """The log has the address then; the process ends in order, without a word of Python's."""
    reading, writing = os.pipe()
    os.close(reading)
    output = os.open("/dev/full", os.O_WRONLY) if how == "full" else os.dup(writing)
    os.close(writing)
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0", "--log-level", "warning"]
    variables = {**os.environ, "TENSORPOST_BACKEND": "numpy"}
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=variables) as server:
        os.close(output)
        assert server.stderr is not None
        try:
            said = next(line for line in iter(server.stderr.readline, "") if "listens on" in line)
        finally:
            server.terminate()
        left = server.communicate(timeout=PATIENCE)[1]

    message = json.loads(said)["message"]
    assert message.startswith("standard output cannot be written to (")
    assert ADDRESS.search(message + "\n")
    assert "Exception ignored" not in left
    assert server.returncode == -signal.SIGTERM


def test_it_says_the_port_of_grpc() -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed; it has no wheel for every Python")
    with serving("--port", "0", TENSORPOST_GRPC_PORT="0") as (server, _):
        assert server.stdout is not None
        watchdog = threading.Timer(PATIENCE, server.kill)  # the line would be waited for without an end
        watchdog.start()
        line = server.stdout.readline()
        watchdog.cancel()
        found = re.fullmatch(r"tensorpost \S+ listens for gRPC on (127\.0\.0\.1:[1-9]\d*)\n", line)
        assert found is not None, line
        with grpc.insecure_channel(found[1]) as channel:
            grpc.channel_ready_future(channel).result(PATIENCE)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_an_answer_that_is_under_way_is_finished_before_the_server_stops() -> None:
    x = np.arange(1 << 18, dtype=np.uint8)
    with serving("--port", "0") as (server, url), Client(url) as tp:
        from tensorpost.calls.caller_arrays import tile_call

        blocks = tp.stream(tile_call(x, (256,)).operation, x)  # 64 MiB: far more than the sockets in between can hold
        received = len(next(blocks))
        assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200
        server.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code != 503:
            assert time.monotonic() < end
        assert httpx.get(f"{url}/v2/health/live", trust_env=False).status_code == 200
        assert server.poll() is None
        received += sum(len(block) for block in blocks)
        server.communicate(timeout=PATIENCE)

    assert received == x.nbytes * 256


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("protocol", ["direct", "httptools", "h11"])
def test_a_request_that_never_ends_is_told_that_the_server_stopped(protocol: str) -> None:
    setting = {"TENSORPOST_SHUTDOWN_SECONDS": "1", "TENSORPOST_HTTP_PROTOCOL": protocol}
    with serving("--port", "0", **setting) as (server, url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as caller:
            head = (
                "POST /v1/operators/tile?repeats=2 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
            )
            part = encode_npy_head(data_type("uint8"), (1_000_000,)) + bytes(100_000)
            caller.sendall(f"{head}Content-Length: {len(part) + 900_000}\r\n\r\n".encode() + part)
            until_in_flight(url, 1)
            server.send_signal(signal.SIGTERM)
            caller.settimeout(PATIENCE)
            answer = b"".join(iter(lambda: caller.recv(1 << 16), b""))
        _, err = server.communicate(timeout=PATIENCE)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer.lower()
    assert b"setting TENSORPOST_SHUTDOWN_SECONDS" in answer
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_an_answer_that_is_not_read_breaks_off_when_the_server_stops() -> None:
    x = np.zeros(1 << 18, np.uint8)
    with serving("--port", "0", TENSORPOST_SHUTDOWN_SECONDS="1") as (server, url), Client(url, retries=0) as tp:
        from tensorpost.calls.caller_arrays import tile_call

        blocks = tp.stream(tile_call(x, (1024,)).operation, x)  # 256 MiB
        next(blocks)
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=PATIENCE)
        with pytest.raises(IncompleteBody):
            list(blocks)

    assert server.returncode == -signal.SIGTERM
    assert "Traceback" not in err


def test_answers_name_no_server_software() -> None:
    with serving("--port", "0") as (_, url):
        assert "server" not in httpx.get(f"{url}/v2/health/live", trust_env=False).headers


def test_idle_connections_end_after_the_setting() -> None:
    settings = Settings(keep_alive_seconds=7)
    config = uvicorn_config(GuardedApplication(create_app(settings)), choose_protocol(settings), "info")

    assert config.timeout_keep_alive == 7


def test_arguments_win_over_the_environment() -> None:
    with serving("--host", "127.0.0.1", "--port", "0", TENSORPOST_HOST="127.0.0.2", TENSORPOST_PORT="1") as (_, url):
        assert url.startswith("http://127.0.0.1:")


def test_without_arguments_the_settings_hold() -> None:
    with serving(TENSORPOST_HOST="localhost", TENSORPOST_PORT="0") as (_, url):
        assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets there")
@pytest.mark.parametrize("how", ["argument", "setting"])
def test_a_unix_socket_is_served_and_taken_away(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s"
    arguments, env = (["--uds", str(path)], {}) if how == "argument" else ([], {"TENSORPOST_UDS": str(path)})
    x = np.arange(1 << 20, dtype=np.uint8)
    with serving(*arguments, **env) as (server, address):
        assert address == f"unix:{path}"
        with Client(uds=str(path)) as tp:
            np.testing.assert_array_equal(tp.tile(x, (4,)), np.tile(x, 4))
        with pytest.raises(InvalidParameter, match="another server does already"):
            Listener(Settings(uds=path))
        assert path.is_socket()
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)

    assert err == ""
    assert not path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets there")
def test_the_socket_of_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with serving("--uds", str(path)), Client(uds=str(path)) as tp:
        assert tp.ready()


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets there")
def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("mine")

    for path, said in (
        (file, "is not a socket"),
        (tmp_path / "no" / "s", "No such file"),
        (tmp_path / ("s" * 200), "long"),
    ):
        with pytest.raises(InvalidParameter, match=rf"cannot listen on .*{said}.*; choose another --uds"):
            Listener(Settings(uds=path))
    assert file.read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets there")
def test_a_path_that_another_server_took_over_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = Listener(Settings(uds=path))
    path.unlink()
    with Listener(Settings(uds=path)):
        listener.close()
        assert path.is_socket()
    assert not path.exists()


def test_it_does_not_start_where_others_could_call_without_a_key() -> None:
    said = refused("--host", "0.0.0.0", "--port", "0")

    assert "others could reach http://0.0.0.0:" in said
    assert "set TENSORPOST_KEYS_FILE=FILE; or set TENSORPOST_ALLOW_ANONYMOUS=1 if" in said


@pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets there")
def test_it_does_not_start_where_others_could_call_grpc_beside_a_unix_socket(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed; it has no wheel for every Python")
    said = refused("--uds", str(tmp_path / "s"), TENSORPOST_HOST="0.0.0.0", TENSORPOST_GRPC_PORT="0")

    assert "others could reach gRPC at 0.0.0.0, port 0, and anybody could call" in said


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_whether_grpc_can_be_reached_from_elsewhere(host: str, *, is_loopback: bool) -> None:
    assert commands._is_loopback_host(host) == is_loopback


def test_it_warns_when_others_can_call_without_a_key() -> None:
    settings = {"TENSORPOST_ALLOW_ANONYMOUS": "1", "TENSORPOST_TRUSTED_PROXIES": "*"}
    with serving("--host", "0.0.0.0", "--port", "0", **settings) as (server, url):
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)

    assert url.startswith("http://0.0.0.0:")
    assert err.count("\n") == 2
    assert "may say whose requests it sends (TENSORPOST_TRUSTED_PROXIES is *)" in err
    assert "anybody may call (TENSORPOST_ALLOW_ANONYMOUS)" in err


def test_it_warns_when_keys_travel_unencrypted(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    commands.add_key(keys, "anna")
    with serving("--host", "0.0.0.0", "--port", "0", TENSORPOST_KEYS_FILE=str(keys)) as (server, _):
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)

    assert err.count("\n") == 1
    assert "their API keys travel unencrypted: set TENSORPOST_TLS_CERTIFICATE" in err


def test_it_warns_of_variables_that_set_nothing() -> None:
    with serving("--port", "0", TENSORPOST_MAX_OUTPUT_BYTE="1", TENSORPOST_URL="http://x") as (server, _):
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)

    assert err.count("\n") == 1
    assert "TENSORPOST_MAX_OUTPUT_BYTE sets nothing; did you mean TENSORPOST_MAX_OUTPUT_BYTES?" in err


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port)

    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use; choose another" in said


def test_a_host_that_does_not_exist_is_a_sentence() -> None:
    assert "cannot listen on 999.1.1.1, port 0: " in refused("--host", "999.1.1.1", "--port", "0")


def test_a_wrong_setting_is_a_sentence() -> None:
    said = refused("--port", "0", TENSORPOST_MAX_REQUESTS="many", TENSORPOST_SLICE_BYTES="1")

    assert "TENSORPOST_MAX_REQUESTS is 'many': expected a whole number, at least 1, for instance 256" in said
    assert "; TENSORPOST_SLICE_BYTES is '1': expected a whole number of bytes, at least 4096, with" in said


def test_a_backend_that_does_not_exist_is_a_sentence() -> None:
    said = refused("--port", "0", TENSORPOST_BACKEND="nump")

    assert "TENSORPOST_BACKEND is 'nump': there is no such backend" in said
    assert said.rstrip().endswith("did you mean numpy?")
    assert "startup failed" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="DirectML may be there")
def test_a_collector_of_json_sees_why_the_server_did_not_start() -> None:
    record, sentence = refused("--port", "0", TENSORPOST_BACKEND="directml").splitlines()

    found = json.loads(record)
    assert (found["event"], found["level"], "exception" in found) == ("log", "critical", False)
    assert "backend 'directml' was requested and cannot be opened" in found["message"]
    assert sentence == f"error: {found['message']}"


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="log level 'loud' does not exist; there are critical, error, warning"):
        commands.serve(log_level="loud")


# Addresses


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.9.9:1", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", False),
        ("http://[::]:8000", False),
        ("http://192.168.0.1:80", False),
        ("http://[fe80::1%eth0]:80", False),
        ("https://127.0.0.1:8443", True),
        ("https://[::]:8443", False),
    ],
)
def test_loopback(address: str, *, own: bool) -> None:
    assert own == is_loopback(address)


# Questions


def test_doctor_has_a_row_for_each_backend() -> None:
    rows = commands.doctor()

    assert [*BACKENDS, "onnxruntime", "http"] == list(dict.fromkeys(row["name"] for row in rows))
    numpy = next(row for row in rows if row["name"] == "numpy")
    assert numpy["version"] == np.__version__
    assert (numpy["available"], numpy["reason"], numpy["auto"]) == (True, None, True)
    assert str(numpy["device"]).startswith("cpu")


def test_doctor_says_why_a_backend_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorpost_server.engine import pool

    def missing(name: str) -> type:
        raise ImportError(f"no library for {name}")

    monkeypatch.setattr(pool, "load_backend", missing)

    for row in commands.doctor()[:-2]:
        assert not row["available"]
        assert row["device"] is None
        assert f"no library for {row['name']}" in str(row["reason"])


def test_doctor_says_whether_onnx_runtime_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    row = commands.doctor()[-2]
    if row["available"]:
        assert (row["version"], row["reason"]) == (version("onnxruntime"), None)
        assert "convolutions" in str(row["device"])

    monkeypatch.setattr(libraries.ONNX_RUNTIME, "installed", False)
    row = commands.doctor()[-2]
    assert (row["name"], row["available"], row["device"]) == ("onnxruntime", False, None)
    assert str(row["reason"]).endswith("pip install '.[onnx]' in a clone of tensorpost")


def test_doctor_names_the_protocol_and_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    row = commands.doctor()[-1]
    assert row["version"] == version("uvicorn")
    assert (row["available"], row["reason"], row["auto"]) == (True, None, True)
    assert str(row["device"]).startswith("direct on ")

    monkeypatch.setenv("TENSORPOST_HTTP_PROTOCOL", "h11")
    row = commands.doctor()[-1]
    assert str(row["device"]).startswith("h11 on ")
    assert "copied" in str(row["device"])
    assert not row["auto"]


def test_config_says_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_MAX_REQUESTS", "7")
    monkeypatch.setenv("tensorpost_slices_ahead", "3")
    monkeypatch.setenv("TENSORPOST_UDS", "/tmp/s")

    rows = {row["name"]: row for row in commands.config()}

    assert json.loads(json.dumps(rows)) == rows  # config --json
    assert rows["uds"]["value"] == str(Path("/tmp/s"))
    assert list(Settings.model_fields) == list(rows)
    assert (rows["max_requests"]["value"], rows["max_requests"]["origin"]) == (7, "environment")
    assert (rows["slices_ahead"]["value"], rows["slices_ahead"]["origin"]) == (3, "environment")
    assert (rows["port"]["value"], rows["port"]["origin"]) == (8000, "default")
    assert rows["port"]["variable"] == "TENSORPOST_PORT"
    assert all(row["description"] for row in rows.values())


def test_a_wrong_variable_is_named_by_the_questions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PORT", "10.0.0.1:8000")

    for ask in (commands.config, commands.doctor):
        with pytest.raises(InvalidParameter, match=r"TENSORPOST_PORT is '10\.0\.0\.1:8000': expected a whole"):
            ask()


def test_unknown_variables_are_named_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PROT", "1")
    monkeypatch.setenv("TENSORPOST_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TENSORPOST_URL", "http://x")
    monkeypatch.setenv("TENSORPOST_PORT", "1")

    said = commands.unknown_variables()

    assert len(said) == 2
    assert "TENSORPOST_PROT sets nothing; did you mean TENSORPOST_PORT?" in said[0]
    assert "a variable of a Kubernetes Service is ignored, TENSORPOST_SERVICE_HOST; " in said[1]
