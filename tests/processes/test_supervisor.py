"""The supervisor of several processes when processes fail, are ended, or cannot start: how many there are then."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import eventually, npy_bytes
from tests.support.live_server import live_process
from tests.support.server_processes import connections, server_processes

from tensorpost import Client
from tensorpost_server import commands

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="which process answers is read from /proc")

TWO: dict[str, Any] = {"TENSORPOST_WORKERS": 2, "TENSORPOST_BACKEND": "numpy"}
X, LONG = np.arange(4, dtype=np.float32), np.zeros(2468, np.float32)
NPY = {"content-type": "application/x-npy"}


def place_of(process: int) -> int:
    arguments = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return json.loads(arguments[-1])["place"]


def replaced(supervisor: int, before: set[int]) -> None:
    """Wait until none of these processes is left and each of the others takes connections."""
    eventually(lambda: not before & server_processes(supervisor), "all are replaced", 60)


def test_a_successor_that_cannot_start_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = commands.add_key(keys, "anna")
    good = keys.read_bytes()
    with live_process(**TWO, TENSORPOST_KEYS_FILE=keys) as (url, supervisor):
        before = server_processes(supervisor)
        keys.write_text("no keys")
        os.kill(supervisor, signal.SIGUSR2)
        eventually(lambda: len(server_processes(supervisor)) == 3, "a successor is started")
        eventually(lambda: server_processes(supervisor) == before, "it has ended")
        keys.write_bytes(good)
        os.kill(supervisor, signal.SIGUSR2)
        replaced(supervisor, before)
        with connections(url, supervisor) as opened:  # each of them takes connections
            assert len(opened) == 2
        with Client(url, api_key=key) as tp:
            assert tp.tile(np.ones(2), 2).tolist() == [1, 1, 1, 1]


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[str, int]]:
    with live_process(**TWO) as running:
        yield running


def test_a_process_that_is_killed_while_its_successor_starts_is_not_started_again(two: tuple[str, int]) -> None:
    url, supervisor = two
    before = server_processes(supervisor)
    os.kill(supervisor, signal.SIGUSR2)
    eventually(lambda: len(server_processes(supervisor)) == 3, "a successor is started")
    (successor,) = server_processes(supervisor) - before
    (old,) = [each for each in before if place_of(each) == place_of(successor) % 2]
    os.kill(old, signal.SIGKILL)
    replaced(supervisor, before)
    with connections(url, supervisor) as opened:
        assert len(opened) == 2
    # A successor has the devices of the process that it replaces, which are those of its place modulo 2.
    assert sorted(place_of(each) % 2 for each in server_processes(supervisor)) == [0, 1]


def test_sighup_does_not_end_a_process_that_starts(two: tuple[str, int]) -> None:
    url, supervisor = two
    before = server_processes(supervisor)
    os.kill(min(before), signal.SIGKILL)
    eventually(lambda: len(server_processes(supervisor) - before) == 1, "another one is started")
    (started,) = server_processes(supervisor) - before
    os.kill(supervisor, signal.SIGHUP)
    with connections(url, supervisor) as opened:
        assert started in {each.process for each in opened}


def test_sigterm_while_processes_start_ends_all() -> None:
    with live_process(**TWO) as (_, supervisor):
        before = server_processes(supervisor)
        os.kill(supervisor, signal.SIGUSR2)
        eventually(lambda: len(server_processes(supervisor)) == 3, "a successor is started")
        started = server_processes(supervisor) | before
        os.kill(supervisor, signal.SIGTERM)
        eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in started), "all have ended", 15)


def test_a_full_file_system_does_not_end_the_supervisor() -> None:
    with live_process(**TWO) as (url, supervisor), connections(url, supervisor) as (first, second):
        assert first.ask("PUT", "/v1/tensors/x", npy_bytes(X), NPY)[0] == 201
        first.http.sock.sendall(b"PUT /v1/tensors/half HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000\r\n")
        first.http.sock.sendall(b"content-type: application/x-npy\r\n\r\n" + npy_bytes(LONG)[:5000])

        def held() -> float:
            text = second.ask("GET", "/metrics")[1].decode()
            found = re.search(r"^tensorpost_held_tensor_bytes (\S+)$", text, re.MULTILINE)
            assert found is not None
            return float(found[1])

        whole = X.nbytes + LONG.nbytes
        eventually(lambda: held() == whole, "the upload has room")
        before = resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        assert first.process is not None
        os.kill(first.process, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{first.process}").exists(), "the supervisor has seen it")
        assert held() == whole
        resource.prlimit(supervisor, resource.RLIMIT_FSIZE, before)
        eventually(lambda: held() == X.nbytes, "the room is given back")
        eventually(lambda: len(server_processes(supervisor)) == 2, "another process is started")


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "fastapi.py").write_text("raise ImportError('this is not FastAPI')")
    command = [sys.executable, "-P", "-m", "tensorpost", "serve", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "TENSORPOST_BACKEND": "numpy", "TENSORPOST_ONNX_AHEAD": "0"}
    server = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert "listens on" in server.stdout.readline()
        server.terminate()
        _, err = server.communicate(timeout=30)
        assert (server.returncode, err) == (0, "")
    finally:
        server.kill()
        server.communicate()


def test_where_nothing_can_be_shared_the_server_does_not_start() -> None:
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    with (
        pytest.raises(RuntimeError, match="what 2 processes share cannot be made in /dev/shm: File too large; make"),
        live_process(before, **TWO),
    ):
        pass
