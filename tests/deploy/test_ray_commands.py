"""`tensorpost serve --ray`: the real command and a Ray cluster of its own, which answers as any other server does.

Run where ray is installed (`make ray-test`); skipped elsewhere.
"""

from __future__ import annotations

import http.client
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.support.http_app import NPY
from tests.support.live_server import UNDER_TEST
from tests.support.processes import descendants, remaining

from tensorpost import Client
from tensorpost_server.settings import Settings

pytest.importorskip("ray", reason="needs ray: make ray-test")

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/conformance/test_over_http.py",
    "tests/conformance/test_through_clients.py",
    "tests/client/test_client.py",
    "tests/client/test_cli.py",
    "tests/client/test_cli_resample.py",
    "tests/client/test_cli_run.py",
    "tests/client/test_numpy_calls.py",
    "tests/client/test_resample_and_onnx.py",
    "tests/http/test_curl_lines.py",
    "tests/http/test_onnx.py",
    "tests/repository/test_languages.py",
)
"""The tests that call `default_server`."""
LEFT_OUT: dict[str, str] = {}
"""Those among them that Ray Serve cannot pass, by their ids, with the reason."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def served_on_ray(replicas: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Base URL and process of `tensorpost serve --ray`, with default settings; it is told to stop at the end."""
    port = free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORPOST_", "RAY_"))}
    command = [sys.executable, "-m", "tensorpost", "serve", "--ray", str(replicas), "--port", str(port)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{port}"
            assert process.stdout.readline() == f"tensorpost listens on {url}, {replicas} replicas on Ray\n"
            yield url, process
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def test_the_tests_of_a_server_pass() -> None:
    """The conformance suite over HTTP in every form and through the clients, and the clients' own tests."""
    left_out = [f"--deselect={test}" for test in LEFT_OUT]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *left_out, *FILES]
    with served_on_ray(2) as (url, _):
        done = subprocess.run(
            tests, check=False, cwd=ROOT, env={**os.environ, UNDER_TEST: url, "TEST_KERNELS": "0"},
            stdout=subprocess.PIPE, text=True, timeout=900,
        )  # fmt: skip

    *_, counts = done.stdout.splitlines()
    print(f"\nagainst two replicas: {counts}")
    assert done.returncode == 0, done.stdout


def test_serve_answers_and_ends_what_is_in_flight_before_it_stops() -> None:
    """By the signal to stop, as a service manager sends it, in the middle of a long answer."""
    x = np.arange(1 << 20, dtype=np.float32)
    body = io.BytesIO()
    np.save(body, x)
    headers = {**NPY, "accept": NPY["content-type"]}
    with (
        served_on_ray(2) as (url, process),
        closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection,
        Client(url) as tp,
    ):
        assert np.array_equal(tp.tile(x[:3], (2,)), np.tile(x[:3], 2))
        connection.request("GET", "/v1/operators", headers={"Host": "rebound.example"})  # as a web page could send it
        refusal = connection.getresponse()
        assert (refusal.status, b"rebound.example" in refusal.read()) == (403, True)
        cluster = descendants(process.pid)
        connection.request("POST", "/v1/operators/tile?repeats=64", body.getvalue(), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        beginning = answer.read(1000)

        process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        time.sleep(2)
        result = np.load(io.BytesIO(beginning + answer.read()))
        status = process.wait(60)
        seconds = time.monotonic() - told

        print(f"\nstopped {seconds:.1f} s after SIGTERM, with an answer in flight; {len(cluster)} processes ended")
        assert np.array_equal(result, np.tile(x, 64))
        assert status == 0
        assert seconds < Settings().shutdown_seconds
        assert len(cluster) > 5
        assert not remaining(cluster)


def test_a_second_signal_ends_the_drain_and_all_processes() -> None:
    with (
        served_on_ray(1) as (url, process),
        closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection,
    ):
        body = io.BytesIO()
        np.save(body, np.ones(1 << 20, np.float32))
        connection.request(
            "POST", "/v1/operators/tile?repeats=64", body.getvalue(), {**NPY, "accept": NPY["content-type"]}
        )
        assert connection.getresponse().status == 200  # and not read, so the replica waits for send_timeout_seconds
        cluster = descendants(process.pid)

        process.send_signal(signal.SIGTERM)
        time.sleep(3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        told = time.monotonic()
        assert process.wait(60) != 0
        seconds = time.monotonic() - told

        print(f"\nstopped {seconds:.1f} s after the second signal, with an answer in flight")
        assert seconds < 20
        left = remaining(cluster)
        assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes()[:200] for pid in left]
