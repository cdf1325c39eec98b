"""A server that is started again on a passed socket: under load no request is lost."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tensorpost import Client
from tensorpost.values.problems import InvalidParameter
from tensorpost_server import commands, listener
from tensorpost_server.listener import Listener
from tensorpost_server.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="systemd is Linux's; Windows passes no descriptors")

PATIENCE = 30
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"

# What systemd does between fork and exec: the socket becomes descriptor 3, and the variables name this process.
PASS = """
import os, sys
passed, count, *command = sys.argv[1:]
os.dup2(int(passed), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=count)
os.execv(sys.executable, [sys.executable, *command])
"""
SERVE = ["-m", "tensorpost", "serve", "--log-level", "warning"]


def start(listener: socket.socket, count: str = "1", *arguments: str, **env: str) -> subprocess.Popen[str]:
    number = listener.fileno()
    command = [sys.executable, "-c", PASS, str(number), count, *SERVE, *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENSORPOST_")}
    return subprocess.Popen(
        command, pass_fds=(number,), env={**clean, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def stop(server: subprocess.Popen[str]) -> str:
    """End it in order; what it wrote to standard error."""
    server.send_signal(signal.SIGTERM)
    try:
        return server.communicate(timeout=PATIENCE)[1]
    finally:
        server.kill()


@contextmanager
def load(url: str, failures: list[BaseException], done: Counter[str]) -> Iterator[None]:
    """Callers that go on from before the restarts until after them: small and large calls, on kept connections."""
    ended = threading.Event()

    def call(name: str, x: np.ndarray) -> None:
        with Client(url, timeout=PATIENCE) as tp:
            while not ended.is_set():
                try:
                    y = tp.tile(x, (2,))
                    assert y.nbytes == 2 * x.nbytes
                    assert np.array_equal(y[: x.size], x)
                    assert np.array_equal(y[x.size :], x)
                except Exception as error:  # noqa: BLE001 # whatever is raised is a lost request
                    failures.append(error)
                done[name] += 1

    small, large = np.arange(4, dtype=np.int32), np.arange(3 << 18, dtype=np.int32)
    callers = [threading.Thread(target=call, args=(f"small {number}", small)) for number in range(3)]
    callers += [threading.Thread(target=call, args=(f"large {number}", large)) for number in range(2)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        ended.set()
        for caller in callers:
            caller.join(PATIENCE)


def test_restarts_under_load_lose_no_request() -> None:
    failures, done = list[BaseException](), Counter[str]()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = start(listener)
        assert server.stdout is not None
        assert server.stdout.readline().strip().endswith(url)
        with load(url, failures, done):
            for _ in range(2):
                before = Counter(done)
                wait_for_more(before, done, failures)
                errors = stop(server)
                assert server.returncode == -signal.SIGTERM, errors
                server = start(listener)
            wait_for_more(Counter(done), done, failures)
        errors = stop(server)

    assert failures == []
    assert len(done) == 5
    assert "Traceback" not in errors


def wait_for_more(before: Counter[str], done: Counter[str], failures: list[BaseException]) -> None:
    """Wait until every caller has got a few answers more."""
    end = time.monotonic() + PATIENCE
    while len(done) < 5 or min(done[name] - before[name] for name in done) < 3:
        assert time.monotonic() < end, "the callers stand still"
        assert not failures
        time.sleep(0.02)


def test_the_passed_socket_is_not_the_next_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert listener.inherited_socket() is None


def test_a_unix_socket_that_was_passed_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = start(listener)
        assert server.stdout is not None
        assert server.stdout.readline().strip().endswith(f"unix:{path}")
        with Client(uds=str(path)) as tp:
            assert tp.ready()
        stop(server)
        assert path.exists()
    bound = Listener(Settings(port=0))
    assert bound.socket.getsockname()[1] > 0
    bound.close()


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that is not bound, passed to this process."""
    with socket.socket() as found:
        monkeypatch.setattr(listener, "_FIRST_PASSED", os.dup(found.fileno()))
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        yield found


@pytest.mark.parametrize("count", ["2", "0", "x", ""])
def test_one_socket_is_passed(passed: socket.socket, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("LISTEN_FDS", count)
    with pytest.raises(InvalidParameter, match=f"systemd passed {count or 'no'} sockets"):
        listener.inherited_socket()
    assert "LISTEN_PID" not in os.environ


def test_what_is_no_listening_socket_is_refused(passed: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameter, match="is not a listening socket"):
        listener.inherited_socket()
    with Path(os.devnull).open() as file:
        monkeypatch.setattr(listener, "_FIRST_PASSED", file.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        with pytest.raises(InvalidParameter, match="should have passed is none"):
            listener.inherited_socket()


def test_an_address_beside_the_passed_socket_is_refused(passed: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    passed.bind(("127.0.0.1", 0))
    passed.listen()
    again = os.dup(listener._FIRST_PASSED)
    with pytest.raises(InvalidParameter, match="--port says where to listen"):
        commands.serve(port=0)
    for name, value in {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "TENSORPOST_UDS": "none"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(listener, "_FIRST_PASSED", again)
    with pytest.raises(InvalidParameter, match="TENSORPOST_UDS says where to listen"):
        commands.serve()


# ---- systemd's own tools ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd's tool is not here")
def test_systemds_own_tool_passes_the_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["systemd-socket-activate", "--listen", f"127.0.0.1:{port}", "--setenv", "PYTHONPATH"]
    command += ["--setenv", "PATH", sys.executable, *SERVE]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with Client(f"http://127.0.0.1:{port}", retries=5) as tp:  # the first connection starts it
            assert tp.tile(np.arange(2), (2,)).tolist() == [0, 1, 0, 1]
    finally:
        stop(server)


def test_the_units_fit_together_and_the_server() -> None:
    units = {}
    for path in UNITS.iterdir():
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] # the documented way to keep upper case
        unit.read(path)
        units[path.suffix] = unit

    assert units[".socket"]["Socket"].get("Accept", "no") == "no"
    assert units[".service"]["Unit"]["Requires"] == "tensorpost.socket"
    stopping = int(units[".service"]["Service"]["TimeoutStopSec"])
    assert stopping > Settings.model_fields["shutdown_seconds"].default
    assert "warmup" in units[".service"]["Service"]["ExecStartPre"]
    assert int(units[".service"]["Service"]["TimeoutStartSec"]) >= 300, "compiling takes minutes on a slow machine"
    assert "--" not in units[".service"]["Service"]["ExecStart"], "the socket unit says where"


def test_a_port_in_use_is_found_out_before_all_that_computes_is_loaded():
    code = (
        "import sys; from tensorpost_server import commands\n"
        "try: commands.serve(port=int(sys.argv[1]))\n"
        "except Exception as error: print(error)\n"
        "print(*sorted({'fastapi', 'uvicorn', 'numba', 'tensorpost_server.main'} & sys.modules.keys()))"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-c", code, str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)

    said, loaded = done.stdout.splitlines()
    assert "Address already in use" in said
    assert loaded == ""
