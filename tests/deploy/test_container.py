"""What an orchestrator asks of the container: variables that it makes itself, and whether the server is ready."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorpost import Client
from tensorpost_server import commands
from tensorpost_server.health_probe import is_ready
from tensorpost_server.service_links import is_service_link
from tensorpost_server.settings import Settings, origins

# As Kubernetes' page on Services lists them for a Service `redis-primary`, with our name and port.
LINKS = {
    "TENSORPOST_SERVICE_HOST": "10.0.0.11",
    "TENSORPOST_SERVICE_PORT": "8000",
    "TENSORPOST_SERVICE_PORT_HTTP": "8000",
    "TENSORPOST_PORT": "tcp://10.0.0.11:8000",
    "TENSORPOST_PORT_8000_TCP": "tcp://10.0.0.11:8000",
    "TENSORPOST_PORT_8000_TCP_PROTO": "tcp",
    "TENSORPOST_PORT_8000_TCP_PORT": "8000",
    "TENSORPOST_PORT_8000_TCP_ADDR": "10.0.0.11",
    "TENSORPOST_GPU_SERVICE_HOST": "10.0.0.12",
    "TENSORPOST_GPU_PORT": "tcp://10.0.0.12:8000",
}


def test_a_service_named_tensorpost_leaves_the_settings_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LINKS.items():
        monkeypatch.setenv(name, value)

    assert Settings().port == 8000
    assert origins()["port"] == "default"
    (said,) = commands.unknown_variables()
    assert f"{len(LINKS)} variables of a Kubernetes Service are ignored" in said


def test_no_setting_is_taken_for_a_service_link() -> None:
    assert all(is_service_link(name, value) for name, value in LINKS.items())
    assert not any(is_service_link(f"TENSORPOST_{name.upper()}", "1") for name in Settings.model_fields)
    assert not is_service_link("TENSORPOST_PORT", "9000")
    assert not is_service_link("TENSORPOST_OTEL_ENDPOINT", "tcp://x")


class Health(http.server.BaseHTTPRequestHandler):
    ready = True

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/ready" and self.ready else 503)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None: ...


@pytest.fixture
def port() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_port)
        server.shutdown()


def test_the_probe_follows_the_port(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, secret = tmp_path / "config.toml", tmp_path / "port"
    file.write_text(f"port = {port}\nhost = '0.0.0.0'\n")
    secret.write_text(port + "\n")

    for environment in (
        {"TENSORPOST_PORT": port, "TENSORPOST_HOST": "0.0.0.0"},
        {"tensorpost_port": port},
        {"TENSORPOST_PORT_FILE": str(secret)},
        {"TENSORPOST_CONFIG_FILE": str(file)},
        {"TENSORPOST_CONFIG_FILE": str(file), **LINKS},
    ):
        assert is_ready(environment), environment
    assert not is_ready({"TENSORPOST_PORT": "1"})
    monkeypatch.setattr(Health, "ready", False)
    assert not is_ready({"TENSORPOST_PORT": port})


def test_the_probe_imports_the_standard_library_only() -> None:
    code = "import sys, tensorpost_server.health_probe; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(Path(commands.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert {name for name in found if name not in sys.stdlib_module_names} <= {"tensorpost_server", "__main__"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with ulimit")
def test_nothing_has_to_be_written_anywhere() -> None:
    """As on a read-only root without a temporary folder: every write to a file fails, whoever runs the server."""
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0"]
    without_files = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", *command]
    nowhere = {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        without_files,
        cwd="/",
        env={**os.environ, **nowhere},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            x = np.arange(12, dtype=np.float32).reshape(3, 4)
            large = np.ones((1024, 1024), np.float32)
            with Client(server.stdout.readline().split()[-1]) as tp:
                np.testing.assert_array_equal(tp.tile(x, (2, 2)), np.tile(x, (2, 2)))
                np.testing.assert_array_equal(tp.tile(large, (2, 1)), np.tile(large, (2, 1)))
                np.testing.assert_array_equal(
                    tp.resample(x, scales=(2, 2), mode="nearest"), x.repeat(2, 0).repeat(2, 1)
                )
                np.testing.assert_array_equal(tp.transpose(x), x.T)
                np.testing.assert_array_equal(tp.add(x, x), x + x)
        finally:
            server.terminate()
