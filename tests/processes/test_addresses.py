"""Several processes behind each kind of address, also once they are replaced: TLS, a Unix socket, systemd, gRPC."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.http_app import eventually
from tests.support.server_processes import server_processes

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="processes are found in /proc")

PEM = Path(__file__).parents[1] / "support" / "loopback.pem"

# Stands for systemd: passes the socket whose descriptor is the first argument as its third, and becomes the command.
PASSES_SOCKET = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="tensorpost.socket")
os.execv(sys.executable, [sys.executable, "-m", "tensorpost", "serve"])
"""


@contextmanager
def running(command: list[str], *descriptors: int, **env: object) -> Iterator[tuple[list[str], int]]:
    """A server of two processes: the addresses that it prints, and its process id. It must end with status 0."""
    own = {"TENSORPOST_WORKERS": 2, "TENSORPOST_BACKEND": "numpy", "TENSORPOST_ONNX_AHEAD": 0, **env}
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    lines = 2 if "TENSORPOST_GRPC_PORT" in env else 1
    server = subprocess.Popen(
        [sys.executable, *command], env=environment, pass_fds=descriptors, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield [server.stdout.readline().split()[-1] for _ in range(lines)], server.pid
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


def check(supervisor: int, ask: Callable[[], int]) -> None:
    """Each of several calls is answered, before and after the processes have been replaced."""
    assert [ask() for _ in range(6)] == [200] * 6
    before = server_processes(supervisor)
    assert len(before) == 2
    os.kill(supervisor, signal.SIGUSR2)
    eventually(lambda: not before & server_processes(supervisor), "all are replaced", 60)
    assert [ask() for _ in range(6)] == [200] * 6


def status(connection: http.client.HTTPConnection) -> int:
    with closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


def test_tls() -> None:
    tls = ssl.create_default_context(cafile=PEM)
    tls.check_hostname = False  # which is of another test
    settings = {"TENSORPOST_TLS_CERTIFICATE": PEM, "TENSORPOST_TLS_KEY": PEM}
    with running(["-m", "tensorpost", "serve", "--port", "0"], **settings) as ([address], supervisor):
        host = address.removeprefix("https://")
        check(supervisor, lambda: status(http.client.HTTPSConnection(host, timeout=20, context=tls)))


def test_a_unix_socket_and_grpc(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    path = tmp_path / "server.sock"

    def ask() -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(path))
            connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            ready = b"\x08\x01"  # field 1, a boolean, is true
            with grpc.insecure_channel(addresses[1]) as channel:
                method = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
                assert method(b"", timeout=20, wait_for_ready=True) == ready
            return int(connection.recv(100).split()[1])

    with running(["-m", "tensorpost", "serve", "--uds", str(path)], TENSORPOST_GRPC_PORT=0) as (addresses, supervisor):
        check(supervisor, ask)
        assert path.is_socket()
    assert not path.exists()


def test_a_socket_that_systemd_passed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with running(["-c", PASSES_SOCKET, str(listener.fileno())], listener.fileno()) as (_, supervisor):
            check(supervisor, lambda: status(http.client.HTTPConnection(host, timeout=20)))
        # The socket is still there for the next server.
        with socket.create_connection(listener.getsockname(), timeout=5):
            pass
